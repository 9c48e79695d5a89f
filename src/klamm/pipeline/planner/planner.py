"""From where replicas are to where they should be, with as little movement as possible.

The rules come first: no broker twice in a partition, replicas spread over racks as Kafka's
rack-aware rule wants it, capacities, pinned topics. Then balance: replicas, preferred leaders and
bytes of each broker within two percent or one replica of its share. A replica is moved only if a
rule or a limit wants it. The same input and seed give the same plan.

Decisions that an operator has to know:

* Pinned topics stay exactly as they are, a change of the replication factor included.
* A partition with a replica on a broker that was not alive, and is not to be removed, stays as it
  is too: Kafka refuses assignments to such brokers, and theirs may be a short absence.
* A partition of unknown size counts with the mean of the known ones; if none is known, bytes are
  not balanced, and the movement is counted in replicas.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from klamm.core.columns import I32, I64, NO_BROKER, Mask, contains, count, keep, widen
from klamm.errors import ConfigError
from klamm.names import counted
from klamm.pipeline.arrow import numbers_from_arrow, rows_from_arrow
from klamm.pipeline.planner.balance import balance_bytes, balance_leaders, balance_replicas
from klamm.pipeline.planner.notes import Measure, movement_note
from klamm.pipeline.planner.state import HOLE, ReplicaPlan, held_by, places_of
from klamm.pipeline.planner.targets import F64, Target, shares

_UNLIMITED: Final = float("inf")
#: What takes several arrays of the size of its rows is done in portions.
_ROWS_AT_A_TIME: Final = 1_000_000


class ImpossibleError(ConfigError):
    """The demands cannot be met; the message has the reason and the least change that helps."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most that a broker may hold."""

    replicas: float = _UNLIMITED
    bytes: float = _UNLIMITED


@dataclass(frozen=True, slots=True)
class Demands:
    """What is asked for; nothing at all means to repair racks and to balance."""

    add: Sequence[int] = ()
    remove: Sequence[int] = ()
    replication_factor: int | None = None
    topics: str = ".*"  # whose replication factor is to change
    pin: str | None = None
    racks: Mapping[int, str] = field(default_factory=dict)  # of brokers that are to be added
    capacities: Mapping[int, Capacity] = field(default_factory=dict)
    seed: int = 0

    def check(self) -> None:
        """Refuse what no snapshot could make sense of."""
        if both := sorted(set(self.add) & set(self.remove)):
            raise ConfigError(f"Broker {both[0]} cannot be both added and removed.")
        if self.replication_factor is not None and self.replication_factor < 1:
            raise ConfigError("A replication factor is at least 1.")
        for pattern in filter(None, (self.topics, self.pin)):
            _compiled(pattern)


@dataclass(frozen=True, slots=True)
class Bound:
    """The least that has to move, and why."""

    replicas: int
    bytes: int | None
    reason: str


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """Where replicas were and where they shall be; rows are those of the partition table."""

    brokers: I32  # those that stay, by id
    before: I32  # replicas by id
    after: I32
    leader: I32  # who leads now
    weight: F64 | None  # bytes of one replica; None where no size is known
    bound: Bound
    notes: tuple[str, ...]
    racks: Mapping[int, str | None]  # of brokers that were alive, or are to be added

    @property
    def added(self) -> Mask:
        """The slots of `after` that are new."""
        return np.asarray((self.after != NO_BROKER) & ~contains(self.before, self.after))

    @property
    def changed(self) -> I64:
        """The rows to write down: other replicas, or the same in another order."""
        width = max(self.before.shape[1], self.after.shape[1])
        return np.flatnonzero((widen(self.before, width) != widen(self.after, width)).any(axis=1))

    @property
    def replicas_moved(self) -> int:
        return int(self.added.sum())

    @property
    def bytes_moved(self) -> int | None:
        if self.weight is None:
            return None
        return int((self.added.sum(axis=1) * self.weight).sum())


def make_plan(
    partitions: pa.Table, racks: Mapping[int, str | None], demands: Demands | None = None
) -> Planned:
    """Plan for the partitions and live brokers of a snapshot."""
    demands = demands or Demands()
    demands.check()
    staying = staying_brokers(racks, demands)
    ids = np.array(sorted(staying), np.int32)
    before = rows_from_arrow(partitions["replicas"])
    weight, notes = _weights(partitions)
    topic = partitions["topic"]
    is_pinned = _matching(topic, demands.pin)
    removed = np.isin(before, np.array(demands.remove, np.int32)) & (before != NO_BROKER)
    unknown = (before != NO_BROKER) & ~np.isin(before, ids) & ~removed
    _check_pins(topic, is_pinned & removed.any(axis=1), before, demands)
    is_absent = unknown.any(axis=1) & ~is_pinned
    if is_absent.any():
        gone = ", ".join(map(str, np.unique(before[unknown]).tolist()))
        notes.append(
            f"{counted(int(is_absent.sum()), 'partition stays', 'partitions stay')} as before, "
            f"because of replicas on brokers that were not alive: {gone}. Start those, or remove "
            "them with --remove-brokers."
        )
    fixed = is_pinned | is_absent
    wanted = count(before).astype(np.int64)
    if demands.replication_factor is not None:
        changes = _matching(topic, demands.topics) & ~fixed
        wanted[changes] = demands.replication_factor
    _check_factor(wanted[~fixed], len(ids), demands)
    state = _state(before, ids, staying, wanted, fixed, weight, demands)
    target, target_bytes = _targets(state, weight)
    at_first = _Loads.of(state, np.ones(len(state.rows), np.bool_))
    kept = state.rows.copy()
    _shed_surplus(state, target, target_bytes)
    _break_up_racks(state, target, target_bytes)
    # Where there was a choice of what to take away, another plan might have chosen otherwise.
    without_choice = _Loads.of(state, (state.rows == kept).all(axis=1))
    bound = _bound(state, at_first, without_choice, target, target_bytes, weight)
    while len(rows := np.flatnonzero((state.holes() > 0) & ~state.fixed)):
        if len(failed := state.fill(rows, target)):
            raise _no_place(state, failed)
    balance_replicas(state, target, target_bytes)
    if weight is not None:
        balance_bytes(state, target, target_bytes)
    _check_capacities(state, ids)
    places = _in_old_order(before, state, ids)
    target_leaders = _leader_target(places, state)
    has_leader = places[:, 0] != HOLE
    places[has_leader] = balance_leaders(
        places[has_leader], fixed[has_leader], state.brokers, target_leaders
    )
    planned = Planned(
        ids,
        before,
        _as_ids(places, before, fixed, ids),
        numbers_from_arrow(partitions["leader"], NO_BROKER).astype(np.int32),
        weight,
        bound,
        tuple(notes),
        {**racks, **staying},
    )
    pinned = _Loads.of(state, fixed)
    measures = [
        Measure("replicas", state.load, target, pinned.replicas, 1),
        Measure(
            "preferred leaders",
            _count_first(places, state.brokers),
            target_leaders,
            _count_first(places[fixed], state.brokers),
            1,
        ),
    ]
    if weight is not None:
        largest = float(weight.max(initial=0))
        measures.append(Measure("bytes", state.bytes, target_bytes, pinned.bytes, largest))
    notes += (text for measure in measures for text in measure.notes(ids))
    return replace(planned, notes=(*notes, *_movement_notes(planned)))


# --- demands --------------------------------------------------------------------------------------


def staying_brokers(racks: Mapping[int, str | None], demands: Demands) -> dict[int, str | None]:
    """The brokers that replicas may be on, with their racks: all of them have one, or none."""
    staying = {broker: rack for broker, rack in racks.items() if broker not in demands.remove}
    for broker in demands.add:
        staying.setdefault(broker, demands.racks.get(broker))
    if not staying:
        raise ImpossibleError(
            "No broker is left when all of them are removed: keep or add at least one."
        )
    if without := sorted(broker for broker, rack in staying.items() if rack is None):
        if len(without) == len(staying):
            return staying
        listed = ", ".join(map(str, without))
        raise ImpossibleError(
            f"Replicas cannot be spread over racks, because some brokers have none: {listed}. "
            "Set broker.rack there and take the snapshot again, or name the racks of brokers that "
            f"are not up yet: --rack {without[0]}=NAME."
        )
    return staying


def _matching(topic: pa.ChunkedArray, pattern: str | None) -> Mask:
    """The rows whose topic matches the whole pattern."""
    if pattern is None:
        return np.zeros(len(topic), np.bool_)
    compiled = _compiled(pattern)
    encoded = topic.combine_chunks().dictionary_encode()
    names = encoded.dictionary.to_pylist()
    matches = np.array([compiled.fullmatch(name) is not None for name in names], np.bool_)
    if not len(names):
        return np.zeros(0, np.bool_)
    return np.asarray(matches[encoded.indices.to_numpy()])


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{pattern!r} is not a regular expression: {error}.") from None


def _check_pins(topic: pa.ChunkedArray, bad: Mask, before: I32, demands: Demands) -> None:
    if not bad.any():
        return
    names = sorted(set(topic.filter(pa.array(bad)).to_pylist()))
    on = sorted(set(before[bad].ravel().tolist()) & set(demands.remove))
    raise ImpossibleError(
        f"{counted(int(bad.sum()), 'partition')} of pinned topics would have to leave brokers "
        f"that are to be removed ({', '.join(map(str, on))}): unpin {', '.join(names[:10])}"
        f"{' and others' if len(names) > 10 else ''}, or keep those brokers."
    )


def _check_factor(wanted: I64, brokers: int, demands: Demands) -> None:
    highest = int(wanted.max(initial=0))
    if highest > brokers:
        missing = highest - brokers
        keep_some = f"keep {missing} of the brokers to be removed, " if demands.remove else ""
        raise ImpossibleError(
            f"{highest} replicas need {highest} brokers, and {brokers} would be there: "
            f"{keep_some}add {missing}, or --set-rf {brokers}."
        )


def _weights(partitions: pa.Table) -> tuple[F64 | None, list[str]]:
    known = partitions["bytes"]
    missing = known.null_count
    if missing == len(known):
        return None, ["No sizes are known: movement is counted in replicas."]
    if not missing:
        return known.to_numpy().astype(np.float64), []
    mean = float(pc.mean(known).as_py())
    note = (
        f"{counted(missing, 'partition')} of unknown size: each counts as the mean of the others."
    )
    return numbers_from_arrow(known.cast(pa.float64()), mean).astype(np.float64), [note]


def _state(
    before: I32,
    ids: I32,
    staying: Mapping[int, str | None],
    wanted: I64,
    fixed: Mask,
    weight: F64 | None,
    demands: Demands,
) -> ReplicaPlan:
    places = places_of(before, ids)
    places = keep(places, places != HOLE)
    width = max(before.shape[1], int(wanted.max(initial=1)))
    places = widen(places, width)
    # A row that stays as it is has no holes, whatever it lacks.
    wanted = np.where(fixed, (places != HOLE).sum(axis=1), wanted)
    names = sorted({rack for rack in staying.values() if rack is not None})
    # Without racks every broker is one of its own, and the rule is that of distinct brokers.
    rack = [names.index(r) if (r := staying[b]) is not None else n for n, b in enumerate(ids)]
    limits = [demands.capacities.get(int(broker), Capacity()) for broker in ids]
    state = ReplicaPlan.of(
        places,
        wanted,
        fixed,
        np.zeros(len(places)) if weight is None else weight,
        np.array(rack, np.int32),
        np.array([each.replicas for each in limits], np.float64),
        np.array([each.bytes for each in limits], np.float64),
        demands.seed,
    )
    _check_room("replicas", float(wanted.sum()), state.room, state.load, fixed, ids)
    _check_room(
        "bytes", float((wanted * state.weight).sum()), state.room_bytes, state.bytes, fixed, ids
    )
    return state


def _check_room(what: str, total: float, room: F64, load: F64, fixed: Mask, ids: I32) -> None:
    if total > room.sum():
        raise ImpossibleError(
            f"{int(total):,} {what} do not fit into capacities of {int(room.sum()):,}: raise them "
            f"by {int(np.ceil(total - room.sum())):,}, or add a broker that takes as much."
        )
    if fixed.all() and (over := np.flatnonzero(load > room)).size:
        raise ImpossibleError(
            f"Broker {ids[over[0]]} holds more {what} than its capacity, and all of it is pinned: "
            f"raise the capacity to {int(load[over[0]]):,}."
        )


def _check_capacities(state: ReplicaPlan, ids: I32) -> None:
    for what, load, room in (
        ("replicas", state.load, state.room),
        ("bytes", state.bytes, state.room_bytes),
    ):
        if len(over := np.flatnonzero(load > room)):
            raise ImpossibleError(
                f"No plan was found in which broker {ids[over[0]]} holds no more {what} than its "
                f"capacity: raise that to {int(np.ceil(load[over[0]])):,}."
            )


def _no_place(state: ReplicaPlan, rows: I64) -> ImpossibleError:
    smallest = state.weight[rows].min()
    return ImpossibleError(
        f"{counted(len(rows), 'replica finds', 'replicas find')} no broker that has room and is in "
        f"a rack that they may be in: raise the capacities by {counted(len(rows), 'replica')}"
        + (f", or by {int(smallest):,} bytes on one broker of each rack." if smallest else ".")
    )


# --- rules ----------------------------------------------------------------------------------------


def _targets(state: ReplicaPlan, weight: F64 | None) -> tuple[Target, Target]:
    # A broker that may hold few bytes may not hold many replicas either.
    mean = float(np.average(state.weight, weights=state.wanted)) if state.wanted.any() else 0.0
    room = np.minimum(state.room, state.room_bytes / mean) if mean else state.room
    share = shares(state.rack, state.wanted, np.ones(len(state.rows)), room)
    of_bytes = shares(state.rack, state.wanted, state.weight, state.room_bytes)
    one = 0.0 if weight is None else float(state.weight.max(initial=0))
    return Target.around(share, 1, state.room), Target.around(of_bytes, one, state.room_bytes)


def _shed_surplus(state: ReplicaPlan, target: Target, target_bytes: Target) -> None:
    """Take away what is more than the replication factor, from racks that have several first."""
    while len(rows := np.flatnonzero((state.holes() < 0) & ~state.fixed)):
        _take_worst(state, rows, target, target_bytes, only_repeated=False)


def _break_up_racks(state: ReplicaPlan, target: Target, target_bytes: Target) -> None:
    """Take replicas out of racks that have several while another rack has to have one."""
    every = np.arange(len(state.rows))
    while True:
        lacks = state.racks_lacking(every) > np.maximum(state.holes(), 0)
        if not len(rows := np.flatnonzero(lacks & ~state.fixed)):
            return
        _take_worst(state, rows, target, target_bytes, only_repeated=True)


def _take_worst(
    state: ReplicaPlan, rows: I64, target: Target, target_bytes: Target, *, only_repeated: bool
) -> None:
    """Take one replica from each row: in a rack that has another, on the fullest broker."""
    step = max(1, len(rows) // 50)
    for start in range(0, len(rows), step):
        some = rows[start : start + step]
        places = state.rows[some]
        racks = state.racks_of(some)
        repeated = (racks[:, :, None] == racks[:, None, :]).sum(axis=2) > 1
        full = state.load / np.maximum(target.share, 1) + state.bytes / np.maximum(
            target_bytes.share, 1
        )
        fullness = full[places]
        # The first replica leads: it goes only if no other will do.
        fullness[:, 0] -= 1e9
        score = np.where(repeated, fullness + 1e12, -np.inf if only_repeated else fullness)
        score = np.where(places == HOLE, -np.inf, score)
        state.take(some, places[np.arange(len(some)), score.argmax(axis=1)])


@dataclass(frozen=True, slots=True, eq=False)
class _Loads:
    """What brokers hold of some rows, in replicas and in bytes."""

    replicas: F64
    bytes: F64

    @classmethod
    def of(cls, state: ReplicaPlan, some: Mask) -> "_Loads":
        return cls(*held_by(state.rows, state.weight, state.brokers, some))


def _bound(
    state: ReplicaPlan,
    at_first: _Loads,
    without_choice: _Loads,
    target: Target,
    target_bytes: Target,
    weight: F64 | None,
) -> Bound:
    """What any plan has to move: what the rules demand, and what balance demands beyond it."""
    holes = np.where(state.fixed, 0, np.maximum(state.holes(), 0))
    forced = int(holes.sum())
    too_many = np.ceil(target.excess(without_choice.replicas))
    excess = int(too_many.sum())
    deficit = int(np.ceil(target.deficit(at_first.replicas)).sum())
    replicas = max(forced + excess, deficit)
    by_rules = (
        f"{counted(forced, 'replica has', 'replicas have')} to be placed anew (brokers removed, "
        "replication factor, racks)"
    )
    if replicas == deficit > forced + excess:
        lacking = counted(deficit, "replica")
        reason = f"brokers that hold too little lack {lacking} of their least share"
    elif excess:
        more = counted(excess, "is more than its broker", "are more than their brokers")
        reason = f"{by_rules}, and {more} may hold"
    else:
        reason = by_rules
    if weight is None:
        return Bound(replicas, None, reason + ".")
    forced_bytes = float((holes * weight).sum())
    excess_bytes = float(target_bytes.excess(without_choice.bytes).sum())
    deficit_bytes = float(target_bytes.deficit(at_first.bytes).sum())
    least = max(forced_bytes + excess_bytes, deficit_bytes)
    # Replicas that have to leave a broker because of their number weigh something too.
    by_number = forced_bytes + _lightest(state, weight, too_many)
    return Bound(replicas, int(max(least, by_number)), reason + ".")


def _lightest(state: ReplicaPlan, weight: F64, excess: F64) -> float:
    """The bytes of the lightest replicas that could go where there are too many."""
    total = 0.0
    for broker in np.flatnonzero(excess):
        rows = (state.rows == broker).any(axis=1) & ~state.fixed
        total += float(np.sort(weight[rows])[: int(excess[broker])].sum())
    return total


# --- the result -----------------------------------------------------------------------------------


def _in_old_order(before: I32, state: ReplicaPlan, ids: I32) -> I32:
    """The places of replicas: those that stay in their order, new ones behind."""
    ordered = np.empty_like(state.rows)
    width = state.rows.shape[1]
    for start in range(0, len(before), _ROWS_AT_A_TIME):
        some = slice(start, start + _ROWS_AT_A_TIME)
        old = places_of(before[some], ids)
        old = widen(old, max(width, old.shape[1]))
        now = widen(state.rows[some], old.shape[1])
        stay, come = keep(old, contains(now, old)), keep(now, ~contains(old, now))
        both = np.concatenate([stay, come], axis=1)
        ordered[some] = keep(both, both != HOLE)[:, :width]
    return ordered


def _leader_target(rows: I32, state: ReplicaPlan) -> Target:
    """How many partitions each broker should be preferred for: at most those that it holds."""
    share = np.minimum(_count_first(rows, state.brokers).sum() / state.brokers, state.load)
    return Target.around(share, 1, state.load)


def _count_first(rows: I32, brokers: int) -> F64:
    first = rows[:, 0]
    return np.bincount(first[first != HOLE], minlength=brokers).astype(np.float64)


def _as_ids(rows: I32, before: I32, fixed: Mask, ids: I32) -> I32:
    """Replicas by id; rows that stay as they are may have brokers that are not alive."""
    after = np.where(rows == HOLE, NO_BROKER, ids[rows]).astype(np.int32)
    after = widen(after, before.shape[1])
    after[fixed] = NO_BROKER
    after[fixed, : before.shape[1]] = before[fixed]
    return after


def _movement_notes(planned: Planned) -> list[str]:
    if planned.weight is None or planned.bytes_moved is None or planned.bound.bytes is None:
        return movement_note("replicas", planned.replicas_moved, planned.bound.replicas, 1)
    largest = float(planned.weight.max(initial=0))
    return movement_note("bytes", planned.bytes_moved, planned.bound.bytes, largest)
