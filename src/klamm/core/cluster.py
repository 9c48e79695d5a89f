"""The controller's state in memory: brokers, topics, and partitions and replicas as columns.

There is one writer, the event loop, and so the columns are changed in place: an event that touches
ten partitions of a million must not copy a million rows. The procedures in `klamm.core.procedures`
record what ZooKeeper has accepted, through the methods below.

A *row* is a partition. Rows are handed out once and reused after a topic is gone; `topic_of[row]`
is NO_TOPIC for a free one. A *slot* is a position in a row's replica list.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

import numpy as np

from klamm.core.columns import (
    I8,
    I32,
    NO_BROKER,
    Mask,
    as_run,
    distinct,
    is_one_of,
    padded,
    tally,
    unpad,
    widen,
)
from klamm.core.elections import RECOVERED, is_imbalanced
from klamm.core.reassignment import Assignment
from klamm.core.transitions import PartitionState, ReplicaState
from klamm.names import TopicPartition

NO_TOPIC: Final = -1
NO_EPOCH: Final = -1
#: Leader and leader epoch of a partition whose topic is being deleted, as brokers are told.
LEADER_DURING_DELETE: Final = -2
EPOCH_DURING_DELETE: Final = -2


@dataclass(frozen=True, slots=True)
class AdvertisedEndpoint:
    """A listener of a broker: name, address and security protocol (0 is PLAINTEXT)."""

    listener: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True)
class RegisteredBroker:
    """A registration in ZooKeeper; `epoch` is the czxid of its znode."""

    id: int
    epoch: int
    endpoints: tuple[AdvertisedEndpoint, ...] = ()
    rack: str | None = None
    features: tuple[tuple[str, int, int], ...] = ()
    #: A node that only competes for the controller's role: placement skips it.
    controller_only: bool = False

    def supports(self, finalized: Mapping[str, int]) -> bool:
        """Whether the broker can live with the levels that the cluster's features are at."""
        known = {name: (lowest, highest) for name, lowest, highest in self.features}
        return all(
            name in known and known[name][0] <= level <= known[name][1]
            for name, level in finalized.items()
        )


@dataclass(frozen=True, slots=True)
class TopicRead:
    """What a topic's znode says: its id, if it has one, and replicas by partition number.

    `adding` and `removing` name only partitions that are being reassigned. A topic whose znode is
    missing or unreadable has no partitions.
    """

    topic_id: str | None
    replicas: Mapping[int, Sequence[int]]
    adding: Mapping[int, Sequence[int]] = field(default_factory=dict)
    removing: Mapping[int, Sequence[int]] = field(default_factory=dict)

    def only(self, partitions: Iterable[int]) -> "TopicRead":
        """The same topic with these of its partitions."""
        chosen = set(partitions)
        return TopicRead(
            self.topic_id,
            *(
                {number: brokers for number, brokers in lists.items() if number in chosen}
                for lists in (self.replicas, self.adding, self.removing)
            ),
        )


@dataclass(slots=True, eq=False)
class Topic:
    """A topic's name, id and partitions: `rows[k]` holds partition `numbers[k]`."""

    index: int
    name: str
    id: str | None
    rows: I32 = field(default_factory=lambda: np.empty(0, np.int32))
    numbers: I32 = field(default_factory=lambda: np.empty(0, np.int32))

    def add(self, rows: I32, numbers: I32) -> None:
        """Note rows for more partitions, given in the order of their numbers."""
        if len(self.numbers):
            rows = np.concatenate([self.rows, rows])
            numbers = np.concatenate([self.numbers, numbers])
            order = np.argsort(numbers)
            rows, numbers = rows[order], numbers[order]
        self.rows, self.numbers = rows, numbers

    def row_of(self, partition: int) -> int | None:
        """The row of a partition, if the topic has it."""
        at = int(self.numbers.searchsorted(partition))
        if at < len(self.numbers) and self.numbers[at] == partition:
            return int(self.rows[at])
        return None


@dataclass(frozen=True, slots=True, eq=False)
class LeaderAndIsrs:
    """Leadership of many partitions, as read from their `state` znodes or as decided."""

    row: I32
    leader: I32
    leader_epoch: I32
    isr: I32
    recovery: I8
    controller_epoch: I32
    #: Data version of the znode: of what was read, or, in a write, what it must still be.
    version: I32

    def __len__(self) -> int:
        return len(self.row)

    def at(self, chosen: Mask | I32) -> "LeaderAndIsrs":
        """The given rows only, chosen by mask or by position."""
        if chosen.dtype == np.bool_ and chosen.all():
            return self
        return LeaderAndIsrs(
            self.row[chosen],
            self.leader[chosen],
            self.leader_epoch[chosen],
            self.isr[chosen],
            self.recovery[chosen],
            self.controller_epoch[chosen],
            self.version[chosen],
        )

    def decided_in(self, controller_epoch: int) -> "LeaderAndIsrs":
        """The same leaders and ISRs as decided by the controller with that epoch."""
        return replace(
            self, controller_epoch=np.full(len(self), controller_epoch, self.controller_epoch.dtype)
        )

    def accepted(self) -> "LeaderAndIsrs":
        """The states as ZooKeeper has them once it has accepted them: one version further."""
        return replace(self, version=self.version + 1)


class ClusterState:
    """The controller's state in memory; each controller term begins with a new one."""

    def __init__(self, width: int = 3, capacity: int = 64) -> None:
        self.controller_id = NO_BROKER
        self.controller_epoch = 0
        #: Live and shutting-down brokers, by id.
        self.brokers: dict[int, RegisteredBroker] = {}
        self.shutting_down: set[int] = set()
        #: For each broker the rows it last called KAFKA_STORAGE_ERROR.
        self.offline_dirs: dict[int, set[int]] = {}
        #: Levels of the cluster's features; brokers that do not support them are left out.
        self.finalized_features: Mapping[str, int] = {}

        self.topics: dict[str, Topic] = {}
        self.topic_names: dict[str, str] = {}  # by topic id
        self._topic_at: list[Topic | None] = []
        self._free_topics: list[int] = []

        #: Topics accepted for deletion, those among them that are paused, those whose work began.
        self.queued_for_deletion: set[str] = set()
        self.ineligible_for_deletion: set[str] = set()
        self.deletion_started: set[str] = set()
        #: Topics that were queued at failover: brokers learn of them as deleted from the start.
        self.hidden_from_brokers: set[str] = set()

        #: Rows being reassigned; lists of adding and removing replicas exist for these only.
        self.being_reassigned: set[int] = set()
        self.adding: dict[int, tuple[int, ...]] = {}
        self.removing: dict[int, tuple[int, ...]] = {}
        #: States of replicas (row, broker) that are no longer assigned and not yet forgotten.
        self.leaving: dict[tuple[int, int], ReplicaState] = {}

        self._used = 0
        self._free_rows: list[int] = []
        self.width = width
        self.topic_of: I32 = np.full(capacity, NO_TOPIC, np.int32)
        self.partition: I32 = np.zeros(capacity, np.int32)
        self.state: I8 = np.full(capacity, PartitionState.NON_EXISTENT, np.int8)
        self.has_leadership: Mask = np.zeros(capacity, np.bool_)
        self.leader: I32 = np.full(capacity, NO_BROKER, np.int32)
        self.leader_epoch: I32 = np.zeros(capacity, np.int32)
        self.partition_epoch: I32 = np.zeros(capacity, np.int32)
        self.decided_in: I32 = np.zeros(capacity, np.int32)
        self.recovery: I8 = np.zeros(capacity, np.int8)
        self.replicas: I32 = np.full((capacity, width), NO_BROKER, np.int32)
        self.isr: I32 = np.full((capacity, width), NO_BROKER, np.int32)
        self.replica_state: I8 = np.full((capacity, width), ReplicaState.NON_EXISTENT, np.int8)
        #: How many partitions are offline, and how many have leadership.
        self.offline_count = 0
        self.led_count = 0
        self._restated: list[I32] = []
        #: Which partitions the gauge of imbalanced ones counts, and how many those are.
        self.imbalanced: Mask = np.zeros(capacity, np.bool_)
        self.imbalanced_count = 0

    # Brokers

    @property
    def live(self) -> set[int]:
        """Brokers that are registered and not on their way out."""
        return self.brokers.keys() - self.shutting_down

    @property
    def live_or_shutting_down(self) -> list[int]:
        """The audience of most requests, in ascending order."""
        return sorted(self.brokers)

    def online(self, rows: I32, *, count_shutting_down: bool = False) -> Mask:
        """For each slot of the rows' replicas: is the broker live and its log directory well?"""
        brokers = self.brokers.keys() if count_shutting_down else self.live
        replicas = self.replicas[as_run(rows)]
        return is_one_of(replicas, list(brokers)) & ~self._on_offline_dir(rows, replicas)

    def leader_is_online(self, rows: I32) -> Mask:
        """Is the cached leader of each row an online replica?"""
        leader = self.leader[as_run(rows)][:, None]
        return (is_one_of(leader, list(self.live)) & ~self._on_offline_dir(rows, leader))[:, 0]

    def _on_offline_dir(self, rows: I32, brokers: I32) -> Mask:
        offline = np.zeros(brokers.shape, np.bool_)
        for broker, lost in self.offline_dirs.items():
            if lost:
                hit = np.isin(rows, np.fromiter(lost, np.int32, len(lost)))
                offline |= hit[:, None] & (brokers == broker)
        return offline

    # Topics and rows

    def add_topic(self, name: str, topic_id: str | None) -> Topic:
        """Make a topic known, without partitions."""
        if name in self.topics:
            raise ValueError(f"topic {name} is known already")
        if topic_id is not None and self.topic_names.get(topic_id, name) != name:
            raise ValueError(
                f"topic id {topic_id} of {name} belongs to {self.topic_names[topic_id]} already"
            )
        if self._free_topics:
            index = self._free_topics.pop()
        else:
            index = len(self._topic_at)
            self._topic_at.append(None)
        topic = Topic(index, name, topic_id)
        self._topic_at[index] = self.topics[name] = topic
        if topic_id is not None:
            self.topic_names[topic_id] = name
        return topic

    def set_topic_id(self, name: str, topic_id: str) -> None:
        """Record the id that a topic without one was given."""
        self.topics[name].id = topic_id
        self.topic_names[topic_id] = name

    def add_partitions(self, reads: Mapping[str, TopicRead]) -> I32:
        """Give rows to partitions of known topics, of many topics at once.

        The rows come back topic by topic, each in the order of its partition numbers.
        """
        sizes = np.fromiter((len(read.replicas) for read in reads.values()), np.int64, len(reads))
        total = int(sizes.sum())
        numbers = np.fromiter(
            chain.from_iterable(read.replicas for read in reads.values()), np.int32, total
        )
        replicas = padded(chain.from_iterable(read.replicas.values() for read in reads.values()))
        topics = [self.topics[name] for name in reads]
        owner = np.repeat(np.arange(len(topics), dtype=np.int32), sizes)
        if not np.all((np.diff(owner) > 0) | (np.diff(numbers) > 0)):
            order = np.lexsort((numbers, owner))
            numbers, replicas = numbers[order], replicas[order]
        rows = self._take_rows(total)
        self._ensure_width(replicas.shape[1])
        self.topic_of[rows] = np.array([topic.index for topic in topics], np.int32)[owner]
        self.partition[rows] = numbers
        self.replicas[rows] = widen(replicas, self.width)
        end = 0
        for topic, read, size in zip(topics, reads.values(), sizes.tolist(), strict=True):
            start, end = end, end + size
            topic.add(rows[start:end], numbers[start:end])
            for number in read.adding.keys() | read.removing.keys():
                row = topic.row_of(number)
                if row is not None:
                    self.adding[row] = tuple(read.adding.get(number, ()))
                    self.removing[row] = tuple(read.removing.get(number, ()))
        return rows

    def remove_topic(self, name: str) -> None:
        """Forget a topic and everything about its partitions; an unknown one is forgotten too."""
        self.queued_for_deletion.discard(name)
        self.ineligible_for_deletion.discard(name)
        self.deletion_started.discard(name)
        self.hidden_from_brokers.discard(name)
        topic = self.topics.pop(name, None)
        if topic is None:
            return
        if topic.id is not None:
            self.topic_names.pop(topic.id, None)
        rows = topic.rows
        self._discount(rows)
        self.set_state(rows, PartitionState.NON_EXISTENT)
        self.led_count -= int(np.count_nonzero(self.has_leadership[rows]))
        for column, empty in _EMPTY.items():
            getattr(self, column)[rows] = empty
        gone = set(rows.tolist())
        if self.adding.keys() & gone:
            self.adding = {r: a for r, a in self.adding.items() if r not in gone}
            self.removing = {r: b for r, b in self.removing.items() if r not in gone}
        self.leaving = {k: state for k, state in self.leaving.items() if k[0] not in gone}
        self.being_reassigned -= gone
        for lost in self.offline_dirs.values():
            lost -= gone
        self._free_rows.extend(gone)
        self._topic_at[topic.index] = None
        self._free_topics.append(topic.index)

    def queue_for_deletion(self, names: Iterable[str]) -> None:
        """Accept topics for deletion; they no longer count as imbalanced (DEL-6)."""
        names = set(names)
        self.queued_for_deletion |= names
        self._discount(self.rows_of(names))

    def all_rows(self) -> I32:
        """Every partition."""
        return np.flatnonzero(self.topic_of[: self._used] != NO_TOPIC).astype(np.int32)

    def rows_of(self, names: Iterable[str]) -> I32:
        """All partitions of the given topics; unknown names are passed over."""
        parts = [self.topics[n].rows for n in names if n in self.topics]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def row(self, topic: str, partition: int) -> int | None:
        """The row of a partition; None if it is unknown."""
        known = self.topics.get(topic)
        return None if known is None else known.row_of(partition)

    def topic(self, row: int) -> Topic:
        """The topic of a row in use."""
        return self.topic_at(int(self.topic_of[row]))

    def topic_at(self, index: int) -> Topic:
        """The topic with the given index (a value of the `topic_of` column)."""
        found = self._topic_at[index]
        assert found is not None, f"topic index {index} is free"
        return found

    def name(self, row: int) -> TopicPartition:
        """Topic and partition number of a row, for responses and messages."""
        return TopicPartition(self.topic(row).name, int(self.partition[row]))

    def describe(self, row: int) -> str:
        """A partition with its leadership, for logs."""
        topic, partition = self.name(row)
        return (
            f"{topic}-{partition} (leader {self.leader[row]}, epoch {self.leader_epoch[row]}, "
            f"ISR {unpad(self.isr[row])}, replicas {unpad(self.replicas[row])})"
        )

    def topic_names_of(self, rows: I32) -> set[str]:
        """The names of the rows' topics."""
        return {self.topic_at(index).name for index in np.unique(self.topic_of[rows]).tolist()}

    def topics_by_row(self, rows: I32) -> Iterator[tuple[Topic, I32]]:
        """The rows grouped by topic, each group in the order of partition numbers."""
        order = rows[np.lexsort((self.partition[rows], self.topic_of[rows]))]
        index = self.topic_of[order]
        for chunk in np.split(order, np.flatnonzero(np.diff(index)) + 1):
            if len(chunk):
                yield self.topic(int(chunk[0])), chunk

    def is_queued(self, rows: I32) -> Mask:
        """Which rows belong to topics queued for deletion?"""
        return self._of_topics(rows, self.queued_for_deletion)

    def is_deletion_started(self, rows: I32) -> Mask:
        """Which rows belong to topics whose deletion has started?"""
        return self._of_topics(rows, self.deletion_started)

    def _of_topics(self, rows: I32, names: set[str]) -> Mask:
        index = [self.topics[n].index for n in names if n in self.topics]
        if not index:
            return np.zeros(len(rows), np.bool_)
        return np.isin(self.topic_of[rows], np.array(index, np.int32))

    # Assignments

    def assignment(self, row: int) -> Assignment:
        """Replicas, adding and removing replicas of a partition."""
        return Assignment(
            tuple(unpad(self.replicas[row])), self.adding.get(row, ()), self.removing.get(row, ())
        )

    def assignments(self, name: str) -> dict[int, Assignment]:
        """The same for each partition of a topic, by partition number."""
        topic = self.topics[name]
        # One pass for all: during a reassignment of many partitions this is called again and again.
        columns = topic.numbers, topic.rows, self.replicas[topic.rows]
        adding, removing = self.adding.get, self.removing.get
        return {
            number: Assignment(
                tuple([broker for broker in slots if broker != NO_BROKER]),
                adding(row, ()),
                removing(row, ()),
            )
            for number, row, slots in zip(*(c.tolist() for c in columns), strict=True)
        }

    def set_assignment(self, row: int, assignment: Assignment) -> None:
        """Replace a replica list; see the plural."""
        self.set_assignments({row: assignment})

    def set_assignments(self, assignments: Mapping[int, Assignment]) -> None:
        """Replace replica lists.

        A replica that stays keeps its state, and so does one that is no longer assigned, until it
        is forgotten. A new one has no state yet.
        """
        for row, assignment in assignments.items():
            self._set_assignment(row, assignment)
        self._recount(np.array(list(assignments), np.int32))

    def _set_assignment(self, row: int, assignment: Assignment) -> None:
        states = {
            broker: ReplicaState(state)
            for broker, state in zip(
                self.replicas[row].tolist(), self.replica_state[row].tolist(), strict=True
            )
            if broker != NO_BROKER
        }
        replicas = assignment.replicas
        for broker in states.keys() - set(replicas):
            if states[broker] != ReplicaState.NON_EXISTENT:
                self.leaving[row, broker] = states[broker]
        self._ensure_width(len(replicas))
        self.replicas[row] = NO_BROKER
        self.replica_state[row] = ReplicaState.NON_EXISTENT
        self.replicas[row, : len(replicas)] = replicas
        self.replica_state[row, : len(replicas)] = [
            states.get(broker) or self.leaving.pop((row, broker), ReplicaState.NON_EXISTENT)
            for broker in replicas
        ]
        if assignment.is_being_reassigned:
            self.adding[row] = tuple(assignment.adding)
            self.removing[row] = tuple(assignment.removing)
        else:
            self.adding.pop(row, None)
            self.removing.pop(row, None)

    def hosted_by(self, brokers: Iterable[int], rows: I32 | None = None) -> tuple[I32, I32]:
        """Replicas (row, broker) that the brokers are assigned, among the rows or among all."""
        rows = self.all_rows() if rows is None else rows
        return self.replicas_at(rows, is_one_of(self.replicas[as_run(rows)], list(brokers)))

    def replicas_of(self, rows: I32) -> tuple[I32, I32]:
        """All assigned replicas (row, broker) of the rows."""
        return self.replicas_at(rows, self.replicas[as_run(rows)] != NO_BROKER)

    def replicas_in(self, rows: I32, state: ReplicaState) -> tuple[I32, I32]:
        """The assigned replicas (row, broker) of the rows that are in a state."""
        return self.replicas_at(rows, self.replica_state[as_run(rows)] == state)

    def replicas_at(self, rows: I32, mask: Mask) -> tuple[I32, I32]:
        """The replicas (row, broker) in the marked slots of the rows."""
        # As one long column: numpy takes many times longer to list the marks of a matrix. Columns
        # may have become wider since the mask was made.
        at = np.flatnonzero(mask)
        width = mask.shape[1]
        return rows[at // width], self.replicas[as_run(rows)][:, :width].reshape(-1)[at]

    def states_of(self, row: I32, broker: I32) -> I8:
        """State of each replica (row, broker); NON_EXISTENT where none is known."""
        states = np.full(len(row), ReplicaState.NON_EXISTENT, np.int8)
        for slot in range(self.width):
            np.copyto(
                states, self.replica_state[row, slot], where=self.replicas[row, slot] == broker
            )
        for k in self._positions_leaving(row, broker):
            states[k] = self.leaving[int(row[k]), int(broker[k])]
        return states

    def set_replica_state(self, row: I32, broker: I32, state: ReplicaState) -> None:
        """Record the new state of replicas (row, broker)."""
        for slot in range(self.width):
            self.replica_state[row[self.replicas[row, slot] == broker], slot] = state
        for k in self._positions_leaving(row, broker):
            self.leaving[int(row[k]), int(broker[k])] = state

    def forget_replicas(self, row: I32, broker: I32) -> None:
        """Take replicas out of the assignments in memory, with their states (RSM-22)."""
        for k in self._positions_leaving(row, broker):
            del self.leaving[int(row[k]), int(broker[k])]
        rows, inverse = np.unique(row, return_inverse=True)
        stays = self.replicas[rows] != NO_BROKER
        for slot in range(self.width):
            stays[inverse[self.replicas[row, slot] == broker], slot] = False
        states = np.full(stays.shape, ReplicaState.NON_EXISTENT, np.int8)
        packed = np.arange(self.width) < tally(stays)[:, None]
        states[packed] = self.replica_state[rows][stays]
        replicas = np.full(stays.shape, NO_BROKER, np.int32)
        replicas[packed] = self.replicas[rows][stays]
        self.replicas[rows], self.replica_state[rows] = replicas, states
        for r, b in zip(row.tolist(), broker.tolist(), strict=True) if self.adding else ():
            if r in self.adding:
                self.set_assignment(r, self.assignment(r).without(b))
        self._recount(rows)

    def _positions_leaving(self, row: I32, broker: I32) -> list[int]:
        """Where in the columns replicas are named that are no longer assigned."""
        if not self.leaving:
            return []
        replicas = zip(row.tolist(), broker.tolist(), strict=True)
        return [k for k, replica in enumerate(replicas) if replica in self.leaving]

    # States

    def set_state(self, rows: I32, state: PartitionState | I8) -> None:
        """Change the state of (different) partitions."""
        offline = PartitionState.OFFLINE
        at = as_run(rows)
        self.offline_count -= int(np.count_nonzero(self.state[at] == offline))
        self.state[at] = state
        self.offline_count += int(np.count_nonzero(self.state[at] == offline))
        self._restated.append(rows)

    def take_restated(self) -> I32:
        """Partitions whose state was changed since the last call, for the history."""
        restated, self._restated = self._restated, []
        return distinct(restated, len(self.state))

    # Leadership

    def leadership(self, rows: I32) -> LeaderAndIsrs:
        """What is cached about the rows; only rows that have leadership make sense."""
        return LeaderAndIsrs(
            rows,
            self.leader[rows],
            self.leader_epoch[rows],
            self.isr[rows],
            self.recovery[rows],
            self.decided_in[rows],
            self.partition_epoch[rows],
        )

    def record_leadership(self, states: LeaderAndIsrs) -> None:
        """Cache what ZooKeeper holds, be it read or just written."""
        row = as_run(states.row)
        self._ensure_width(states.isr.shape[1])
        self.leader[row] = states.leader
        self.leader_epoch[row] = states.leader_epoch
        self.isr[row] = widen(states.isr, self.width)
        self.recovery[row] = states.recovery
        self.decided_in[row] = states.controller_epoch
        self.partition_epoch[row] = states.version
        self.led_count += len(states) - int(np.count_nonzero(self.has_leadership[row]))
        self.has_leadership[row] = True
        self._recount(states.row)

    def _recount(self, rows: I32) -> None:
        """Look again at whether (different) rows are led by their preferred replica."""
        adding = padded((self.adding.get(row, ()) for row in rows.tolist()) if self.adding else ())
        if not len(adding):
            adding = np.full((len(rows), 1), NO_BROKER, np.int32)
        at = as_run(rows)
        after = is_imbalanced(
            self.replicas[at], adding, self.leader[at], self.isr[at], self.has_leadership[at]
        )
        after &= ~self.is_queued(rows)
        before = np.count_nonzero(self.imbalanced[at])
        self.imbalanced[at] = after
        self.imbalanced_count += int(np.count_nonzero(after)) - int(before)

    def _discount(self, rows: I32) -> None:
        self.imbalanced_count -= int(np.count_nonzero(self.imbalanced[rows]))
        self.imbalanced[rows] = False

    # Storage of the columns

    def _take_rows(self, count: int) -> I32:
        """Rows for new partitions, in ascending order; those that were freed come first."""
        reuse = min(count, len(self._free_rows))
        taken = sorted(self._free_rows[len(self._free_rows) - reuse :])
        del self._free_rows[len(self._free_rows) - reuse :]
        fresh = count - reuse
        if self._used + fresh > len(self.topic_of):
            self._grow(max(self._used + fresh, len(self.topic_of) * 3 // 2))
        rows = np.arange(self._used - reuse, self._used + fresh, dtype=np.int32)
        rows[:reuse] = taken
        self._used += fresh
        return rows

    def _grow(self, capacity: int) -> None:
        for name, empty in _EMPTY.items():
            column = getattr(self, name)
            grown = np.empty((capacity, *column.shape[1:]), column.dtype)
            grown[: len(column)] = column
            grown[len(column) :] = empty
            setattr(self, name, grown)

    def _ensure_width(self, width: int) -> None:
        if width > self.width:
            missing = ((0, 0), (0, width - self.width))
            self.width = width
            self.replicas = widen(self.replicas, width)
            self.isr = widen(self.isr, width)
            self.replica_state = np.pad(
                self.replica_state, missing, constant_values=ReplicaState.NON_EXISTENT
            )

    @property
    def nbytes(self) -> int:
        """The size of all columns."""
        return sum(getattr(self, name).nbytes for name in _EMPTY)


#: Each column, with what it holds in rows that are free.
_EMPTY: Final = {
    "topic_of": NO_TOPIC,
    "partition": 0,
    "state": PartitionState.NON_EXISTENT,
    "has_leadership": False,
    "leader": NO_BROKER,
    "leader_epoch": 0,
    "partition_epoch": 0,
    "decided_in": 0,
    "recovery": RECOVERED,
    "replicas": NO_BROKER,
    "isr": NO_BROKER,
    "replica_state": ReplicaState.NON_EXISTENT,
    "imbalanced": False,
}
