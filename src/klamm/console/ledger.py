"""The history in memory: events in order, and the cluster as it was after any of them.

Batches come from several nodes, in any order and perhaps twice. An event is one position, named by
(controller epoch, sequence); its decisions stay Arrow columns. What is asked about the past is
answered from an index of all decisions, which is built anew when something new has arrived.
"""

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from klamm.console.columns import ClusterColumns, ShownBroker, with_named_brokers
from klamm.console.history import SCHEMA, event_sentence, story_rows
from klamm.console.watch import ChangeListeners
from klamm.core.columns import I32, I64, NO_BROKER, Mask, widen
from klamm.errors import KlammError
from klamm.pipeline.arrow import rows_from_arrow

Key = tuple[int, int]

_HEADER: Final = [name for name in SCHEMA.names if name not in ("decisions", "topics", "parts")]
_DECISIONS_KEPT: Final = 3
_GONE: Final = ("deleted", "vanished")
_ELECTIONS: Final = ("clean", "unclean", "preferred", "reassignment", "controlled_shutdown")
PHASES: Final = ("queued", "reading", "deciding", "writing", "announcing")


@dataclass(slots=True)
class HistoryEvent:
    """One event: its header, how many decisions it had and the first few of them."""

    key: Key
    row: dict[str, Any]
    total: int = 0
    unclean: int = 0
    leaderless: int = 0
    elections: int = 0
    first: list[dict[str, Any]] = field(default_factory=list)
    #: Parts of the event that have come, each with its decisions.
    parts: dict[int, pa.StructArray] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.key[0]}:{self.key[1]}"

    @property
    def text(self) -> str:
        return event_sentence(self.row, self.first, self.total)

    @property
    def failure(self) -> str | None:
        """The error with which the event failed, if it did."""
        failed = [c["broker"] for c in self.row["broker_changes"] if c["change"] == "failed"]
        if failed:
            listed = ", ".join(map(str, failed))
            return f"broker{'s' * (len(failed) > 1)} {listed} failed"
        if self.leaderless:
            return f"{self.leaderless:,} partition{'s' * (self.leaderless > 1)} lost the leader"
        if self.unclean:
            return f"{self.unclean:,} unclean election{'s' * (self.unclean > 1)}"
        if self.row["term"] == "began" and self.key[0] > 1:
            return f"broker {self.row['controller']} took over as controller"
        return None

    @property
    def tells(self) -> bool:
        """Whether the event had an effect; most events are timers, requests and responses."""
        row = self.row
        changes = row["broker_changes"] or row["topic_changes"] or row["moves"]
        return bool(self.total or changes or row["term"] or row["outcome"] != "done")

    def describe(self) -> dict[str, Any]:
        """The event as JSON, for the stream and for lists."""
        row = self.row
        return {
            "id": self.id,
            "controller_epoch": self.key[0],
            "seq": self.key[1],
            "at": row["at"].isoformat(),
            "controller": row["controller"],
            "kind": row["kind"],
            "cause": row["cause"],
            "outcome": row["outcome"],
            "text": self.text,
            "tells": self.tells,
            "failure": self.failure,
            "decisions": self.total,
            "elections": self.elections,
            "phases": {name: row[f"{name}_us"] for name in PHASES},
            "total_us": row["total_us"],
            "partitions": [f"{each['topic']}-{each['partition']}" for each in self.first],
        }


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    """All events in order, with the decisions and moves of all of them as columns."""

    keys: list[Key]
    events: list[HistoryEvent]
    names: list[tuple[str, int]]  # of partitions, by number
    at: I64  # the position of each state's event, ascending
    number: I64  # of its partition
    leader: I32
    leader_epoch: I32
    isr: I32
    replicas: I32
    sets_leader: Mask  # a move says only which replicas there are
    #: (position, topic) of topics that ended, (position, broker, is live), (position, controller).
    ended: list[tuple[int, str]]
    brokers: list[tuple[int, int, bool]]
    controllers: list[tuple[int, int]]


class Ledger:
    """Takes batches in any thread, and serves queries from those that have arrived."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._batches: list[pa.RecordBatch] = []
        self._events: dict[Key, HistoryEvent] = {}
        self._order: list[Key] = []
        self._is_sorted = True
        self._index: Index | None = None
        self._listeners: ChangeListeners[list[HistoryEvent]] = ChangeListeners()
        self.caught_up = threading.Event()

    def __len__(self) -> int:
        return len(self._events)

    def listen(self, listener: Callable[[list[HistoryEvent]], None]) -> Callable[[], None]:
        """Call a listener with new events, in order; return a function that ends this."""
        return self._listeners.add(listener)

    def add(self, batches: Sequence[pa.RecordBatch], is_all: bool = True) -> list[HistoryEvent]:
        """Take batches; returns the events that are new, and tells them to listeners."""
        fresh: list[HistoryEvent] = []
        with self._lock:
            for batch in batches:
                fresh += self._add(batch)
            if fresh:
                self._index = None
        fresh.sort(key=lambda event: event.key)
        if fresh:
            self._listeners.tell(fresh)
        if is_all:
            self.caught_up.set()
        return fresh

    def _add(self, batch: pa.RecordBatch) -> list[HistoryEvent]:
        fresh: list[HistoryEvent] = []
        self._batches.append(batch)
        decisions = batch.column("decisions")
        for at, row in enumerate(batch.select(_HEADER).to_pylist()):
            key, part = (row["controller_epoch"], row["seq"]), row.pop("part")
            event = self._events.get(key)
            if event is None:
                event = self._events[key] = HistoryEvent(key, row)
                if self._order and key < self._order[-1]:
                    self._is_sorted = False
                self._order.append(key)
                fresh.append(event)
            elif part in event.parts:
                continue  # shipped twice
            if part == 0:
                event.row = row  # the only one with moves and changes of brokers and topics
            entries = decisions.slice(at, 1).flatten()
            event.parts[part] = entries
            _count_in(event, entries)
        return fresh

    # Questions

    def recent(self, limit: int) -> list[HistoryEvent]:
        """The last events, in order."""
        with self._lock:
            order = self._sorted()
            return [self._events[key] for key in order[-limit:]]

    def last_term(self) -> dict[str, Any] | None:
        """The event with which the newest controller term began."""
        with self._lock:
            rows = (self._events[key].row for key in reversed(self._sorted()))
            return next((row for row in rows if row["term"] == "began"), None)

    def backlog(self, limit: int) -> list[HistoryEvent]:
        """What a new page shows first: the last events with a decision, and the very last ones."""
        with self._lock:
            order = self._sorted()
            last = [self._events[key] for key in order[-limit // 4 :]]
            telling: list[HistoryEvent] = []
            for key in reversed(order[: -limit // 4]):
                if len(telling) >= limit:
                    break
                if self._events[key].tells:
                    telling.append(self._events[key])
        return [*reversed(telling), *last]

    def after(self, key: Key) -> list[HistoryEvent]:
        """The events behind a position, in order."""
        with self._lock:
            order = self._sorted()
            return [self._events[each] for each in order[bisect_right(order, key) :]]

    def event(self, key: Key) -> HistoryEvent:
        with self._lock:
            found = self._events.get(key)
        if found is None:
            raise KlammError(f"The history has no event {key[0]}:{key[1]}.")
        return found

    def story(self, name: str) -> list[dict[str, Any]]:
        with self._lock:
            batches = list(self._batches)
        return story_rows(batches, name)

    def index(self) -> Index:
        """All events in order; built again if events have arrived since."""
        with self._lock:
            if self._index is None:
                self._index = _build([self._events[key] for key in self._sorted()])
            return self._index

    def _sorted(self) -> list[Key]:
        if not self._is_sorted:
            self._order.sort()
            self._is_sorted = True
        return self._order

    def position_of(self, key: Key) -> int:
        """The position of an event, or of the last one before it."""
        keys = self.index().keys
        at = bisect_left(keys, key)
        return at if at < len(keys) and keys[at] == key else max(0, at - 1)

    def state_at(
        self, position: int, racks: Mapping[int, ShownBroker] | None = None
    ) -> ClusterColumns:
        """The cluster after the event at a position, as far as the history mentions it."""
        return state_at(self.index(), position, racks or {})


def _count_in(event: HistoryEvent, entries: pa.StructArray) -> None:
    if not len(entries):
        return
    is_done = pc.equal(entries.field("outcome"), "done")
    kinds = pc.value_counts(entries.field("kind").filter(is_done)).to_pylist()
    counted = {each["values"]: each["counts"] for each in kinds}
    event.total += len(entries)
    event.unclean += counted.get("unclean", 0)
    event.elections += sum(counted.get(kind, 0) for kind in _ELECTIONS)
    lost = pc.and_(
        pc.less(entries.field("leader"), 0), pc.greater_equal(entries.field("old_leader"), 0)
    )
    event.leaderless += pc.sum(pc.and_(lost, is_done)).as_py() or 0
    missing = _DECISIONS_KEPT - len(event.first)
    if missing > 0:
        event.first += entries.slice(0, missing).to_pylist()


def _build(events: list[HistoryEvent]) -> Index:
    decided: list[pa.StructArray] = []
    at: list[int] = []
    moves: list[tuple[int, int, Mapping[str, Any]]] = []  # position, place among states, move
    ended: list[tuple[int, str]] = []
    brokers: list[tuple[int, int, bool]] = []
    controllers: list[tuple[int, int]] = []
    alive: set[int] = set()
    for position, event in enumerate(events):
        for part in sorted(event.parts):
            decided.append(event.parts[part])
            at += [position] * len(event.parts[part])
        row = event.row
        moves += [(position, len(at), move) for move in row["moves"] if move["phase"] != "dropped"]
        ended += [(position, c["topic"]) for c in row["topic_changes"] if c["change"] in _GONE]
        present = {c["broker"] for c in row["broker_changes"] if c["change"] == "present"}
        if row["term"] == "began":
            controllers.append((position, row["controller"]))
            if present:  # a new controller lists all that it finds
                brokers += [(position, broker, False) for broker in alive - present]
                alive &= present
        elif row["term"] == "ended":
            controllers.append((position, NO_BROKER))
        for change in row["broker_changes"]:
            if change["change"] in ("present", "started", "bounced"):
                brokers.append((position, change["broker"], True))
                alive.add(change["broker"])
            elif change["change"] == "failed":
                brokers.append((position, change["broker"], False))
                alive.discard(change["broker"])
    decision = SCHEMA.field("decisions").type.value_type
    entries = pa.concat_arrays(decided or [pa.array([], decision)])
    is_done = pc.equal(entries.field("outcome"), "done").to_numpy(zero_copy_only=False)
    topic = entries.field("topic").dictionary_encode()
    topics: list[str] = topic.dictionary.to_pylist()
    place = {name: number for number, name in enumerate(topics)}
    for _, _, move in moves:
        place.setdefault(move["topic"], len(place))

    def numbers(name: str) -> Any:
        return entries.field(name).to_numpy(zero_copy_only=False)

    columns = (
        topic.indices.to_numpy(zero_copy_only=False).astype(np.int64),
        numbers("partition").astype(np.int64),
        # Below -1 is a leader that is being deleted, which is nobody either.
        np.maximum(numbers("leader"), NO_BROKER).astype(np.int32),
        numbers("leader_epoch").astype(np.int32),
    )
    isr = rows_from_arrow(entries.field("isr"))
    replicas = rows_from_arrow(entries.field("replicas"))
    where = np.array(at, np.int64)
    where, isr, replicas = where[is_done], isr[is_done], replicas[is_done]
    topic_at, partition, leader, epoch = (column[is_done] for column in columns)
    if moves:
        # A move stands behind the decisions of its event: it says which replicas are left.
        extra = len(moves)
        width = max(replicas.shape[1], *(len(move["replicas"]) for _, _, move in moves))
        moved = np.full((extra, width), NO_BROKER, np.int32)
        for n, (_, _, move) in enumerate(moves):
            moved[n, : len(move["replicas"])] = move["replicas"]
        where = np.concatenate([where, [position for position, _, _ in moves]])
        topic_at = np.concatenate([topic_at, [place[move["topic"]] for _, _, move in moves]])
        partition = np.concatenate([partition, [move["partition"] for _, _, move in moves]])
        leader = np.concatenate([leader, np.full(extra, NO_BROKER, np.int32)])
        epoch = np.concatenate([epoch, np.full(extra, NO_BROKER, np.int32)])
        isr = np.concatenate([isr, np.full((extra, isr.shape[1]), NO_BROKER, np.int32)])
        replicas = np.concatenate([widen(replicas, width), moved])
    sets_leader = np.ones(len(where), np.bool_)
    sets_leader[len(where) - len(moves) :] = False
    order = np.argsort(where, kind="stable")
    radix = int(partition.max(initial=0)) + 1
    known, number = np.unique(topic_at * radix + partition, return_inverse=True)
    spelled = {code: name for name, code in place.items()}
    names = [(spelled[code // radix], code % radix) for code in known.tolist()]
    return Index(
        [event.key for event in events],
        events,
        names,
        where[order],
        number[order],
        leader[order],
        epoch[order],
        isr[order],
        replicas[order],
        sets_leader[order],
        ended,
        brokers,
        controllers,
    )


def state_at(index: Index, position: int, known: Mapping[int, ShownBroker]) -> ClusterColumns:
    """The last state of each partition up to a position, of topics that have not ended by then."""
    if not index.events:
        raise KlammError("The history is empty.")
    until = int(np.searchsorted(index.at, position, side="right"))
    size = len(index.names)
    # Of several assignments to one place the last one stays.
    states, assigned = np.full(size, -1, np.int64), np.full(size, -1, np.int64)
    rows = np.arange(until)
    led = rows[index.sets_leader[:until]]
    states[index.number[led]] = led
    assigned[index.number[:until]] = rows
    end_of: dict[str, int] = {}
    for at, topic in index.ended:
        if at <= position:
            end_of[topic] = at
    is_there = states >= 0
    if end_of:
        ends = np.array([end_of.get(topic, -1) for topic, _ in index.names], np.int64)
        is_there &= index.at[np.maximum(states, 0)] > ends
    chosen = sorted(np.flatnonzero(is_there).tolist(), key=index.names.__getitem__)
    topics: dict[str, int] = {}
    for number in chosen:
        topic = index.names[number][0]
        topics[topic] = topics.get(topic, 0) + 1
    last, by_replicas = states[chosen], assigned[chosen]
    live: dict[int, bool] = {}
    for when, broker, is_live in index.brokers:
        if when <= position:
            live[broker] = is_live
    replicas = index.replicas[by_replicas]
    alive = [known.get(broker, ShownBroker(broker)) for broker, is_live in live.items() if is_live]
    gone = {broker: known.get(broker, ShownBroker(broker)) for broker in live}
    controller = NO_BROKER
    for when, broker in index.controllers:
        if when <= position:
            controller = broker
    return ClusterColumns(
        brokers=with_named_brokers(
            [ShownBroker(b.id, b.host, b.port, b.rack, live=True) for b in alive], replicas, gone
        ),
        controller=controller,
        topics=tuple(topics),
        topic_ids=(None,) * len(topics),
        internal=tuple(topic.startswith("__") for topic in topics),
        counts=np.array(list(topics.values()), np.int32),
        partition=np.array([index.names[number][1] for number in chosen], np.int32),
        leader=index.leader[last],
        leader_epoch=index.leader_epoch[last],
        replicas=replicas,
        isr=index.isr[last],
    )
