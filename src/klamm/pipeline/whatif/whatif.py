"""What a failure does to partitions, without trying out every failure.

A failure takes down units: brokers or racks, some of them at once. What becomes of a partition
depends only on which of *its own* units are among them, so a partition is judged once for each
small set of its units, not once for each scenario. The sum over all partitions follows for any
scenario by inclusion and exclusion. Let f(T) be what a partition adds to a sum when exactly the
units T of its own fail. Then

    term(S) = sum over T within S of (-1)^(|S| - |T|) * f(T)
    f(T)    = sum over S within T of term(S)

and the terms, unlike f, may be added up over all partitions by S alone, because a scenario F gets
from each partition the terms of all S within F, whether or not the partition has units outside S.

The leaders are chosen by the controller's own kernels.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from math import comb
from typing import Final

import numpy as np
from numpy.typing import NDArray

from klamm.core.columns import I8, I32, I64, NO_BROKER, Mask, contains, count, keep
from klamm.core.elections import CLEAN, RECOVERED, UNCLEAN, elect_offline, shrink_isr
from klamm.errors import ConfigError
from klamm.pipeline.arrow import PartitionColumns

#: How a partition ends. Only a clean election or no election at all can be below min ISR.
FINE: Final = 0
LEADERLESS: Final = 1
UNCLEAN_LEADER: Final = 2
BELOW_MIN_ISR: Final = 3
OUTCOMES: Final = ("fine", "leaderless", "unclean", "below_min_isr")
#: Why a partition does not end well: it has one replica; the failure takes all of them, or so many
#: that the others are fewer than min ISR; or enough are alive, but they were not in sync.
REASONS: Final = ("one_replica", "replicas_failed", "not_in_sync")
_ONE_REPLICA, _REPLICAS_FAILED, _NOT_IN_SYNC = range(3)

#: The sums of a scenario, in the order of their numbers; after them come the leaders of brokers.
SUMS: Final = (
    "leaderless",
    "unclean",
    "below_min_isr",
    "leaders_moved",
    "leaderless_in_sync",
    "unclean_in_sync",
    "below_min_isr_in_sync",
    "leaders_moved_in_sync",
)
_PER_VIEW: Final = 4
_SCENARIOS_MAX: Final = 1_000_000
_NO_UNIT: Final = -1
_DENSE_CELLS_MAX: Final = 4_000_000

Slots = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Failures:
    """The failures that are asked about: every set of `together` of the units."""

    kind: str  # brokers or racks, as in the names of scenarios
    brokers: tuple[int, ...]  # alive before the failure, in ascending order
    units: tuple[tuple[int, ...], ...]  # the brokers of each unit
    labels: tuple[str, ...]  # of the units, in ascending order
    together: int

    def __post_init__(self) -> None:
        if not 1 <= self.together <= len(self.units):
            raise ConfigError(
                f"{self.together} of {len(self.units)} {self.kind} cannot fail together."
            )
        if len(self) > _SCENARIOS_MAX:
            raise ConfigError(
                f"There are {len(self):,} sets of {self.together} out of {len(self.units)} "
                f"{self.kind}, and {_SCENARIOS_MAX:,} scenarios are as many as can be asked for."
            )

    def __len__(self) -> int:
        return comb(len(self.units), self.together)

    def sets(self) -> I32:
        """The units of each scenario: a row each."""
        chosen = chain.from_iterable(combinations(range(len(self.units)), self.together))
        return np.fromiter(chosen, np.int32, len(self) * self.together).reshape(-1, self.together)

    def name(self, units: Iterable[int]) -> str:
        """What a scenario is called."""
        return f"{self.kind}:{','.join(self.labels[unit] for unit in units)}"

    def failed(self, units: Iterable[int]) -> list[int]:
        """The brokers that a scenario takes down."""
        return sorted(broker for unit in units for broker in self.units[unit])

    def unit_of(self, rows: I32) -> I32:
        """The unit of each slot's broker; -1 for padding and for brokers of no unit."""
        known = {broker: unit for unit, brokers in enumerate(self.units) for broker in brokers}
        # One slot more than the highest id, for padding, which indexes from the end.
        table = np.full(max([*known, int(rows.max(initial=0))]) + 2, _NO_UNIT, np.int32)
        table[list(known)] = list(known.values())
        return np.asarray(table[rows])


def broker_failures(racks: Mapping[int, str | None], together: int) -> Failures:
    """All failures of this number of brokers at once."""
    brokers = tuple(sorted(racks))
    return Failures(
        "brokers", brokers, tuple((b,) for b in brokers), tuple(map(str, brokers)), together
    )


def rack_failures(racks: Mapping[int, str | None], together: int) -> Failures:
    """All failures of this number of racks at once. A broker without a rack never fails."""
    names = sorted({rack for rack in racks.values() if rack is not None})
    if not names:
        raise ConfigError("No broker of the snapshot has a rack, so no rack can fail.")
    units = tuple(tuple(b for b, rack in sorted(racks.items()) if rack == name) for name in names)
    return Failures("racks", tuple(sorted(racks)), units, tuple(names), together)


def named_failure(racks: Mapping[int, str | None], kind: str, names: Sequence[str]) -> Failures:
    """One failure: these brokers or racks at once."""
    every = broker_failures(racks, 1) if kind == "brokers" else rack_failures(racks, 1)
    for name in names:
        if name not in every.labels:
            raise ConfigError(
                f"The snapshot has no {kind[:-1]} {name}; it has {', '.join(every.labels)}."
            )
    chosen = sorted({every.labels.index(name) for name in names})
    label = ",".join(every.labels[unit] for unit in chosen)
    members = tuple(sorted(broker for unit in chosen for broker in every.units[unit]))
    return Failures(kind, every.brokers, (members,), (label,), 1)


# --- judging --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Judgement:
    """How partitions end, row by row."""

    leader: I32
    isr: I32
    outcome: I8
    moved: Mask  # whether the leader differs from before
    alive: I64  # how many replicas are left


def judge(partitions: PartitionColumns, online: Mask) -> Judgement:
    """What the controller does about partitions of whose replicas only those are `online`.

    A leader that stays keeps the live members of its ISR. A partition without one gets an election;
    without a candidate, the controller still takes the failed members out of the ISR one by
    one, all but the last.
    """
    replicas, isr = partitions.replicas, partitions.isr
    alive = np.where(online, replicas, NO_BROKER)
    stays = contains(alive, partitions.leader[:, None])[:, 0]
    leader = np.where(stays, partitions.leader, np.int32(NO_BROKER))
    ends_with = keep(isr, contains(alive, isr))
    outcome = np.zeros(len(partitions), np.int8)
    lost = np.flatnonzero(~stays)
    elections = elect_offline(
        replicas[lost],
        isr[lost],
        online[lost],
        partitions.unclean[lost],
        np.full(len(lost), RECOVERED, np.int8),
    )
    leader[lost] = elections.leader
    ends_with[lost] = _without_the_dead(elections.leader, elections.isr, alive[lost])
    outcome[lost] = np.choose(
        elections.outcome, [np.int8(FINE), np.int8(UNCLEAN_LEADER), np.int8(LEADERLESS)]
    )
    outcome[(outcome == FINE) & (count(ends_with) < partitions.min_isr)] = BELOW_MIN_ISR
    moved = (leader != partitions.leader) & (leader != NO_BROKER)
    return Judgement(leader, ends_with, outcome, moved, count(alive).astype(np.int64))


def _without_the_dead(leader: I32, isr: I32, alive: I32) -> I32:
    """The ISR of leaderless partitions after each failed broker was taken out in turn."""
    shrunk = isr.copy()
    waiting = np.flatnonzero((leader == NO_BROKER) & (count(isr) > 1))
    dead = np.where(contains(alive[waiting], isr[waiting]), NO_BROKER, isr[waiting])
    for broker in np.unique(dead[dead != NO_BROKER]).tolist():
        rows = waiting[(dead == broker).any(axis=1)]
        shrunk[rows] = shrink_isr(leader[rows], shrunk[rows], broker).isr
    return shrunk


assert (CLEAN, UNCLEAN) == (0, 1), "`judge` translates the kernels' outcomes by their number"


@dataclass(frozen=True, slots=True, eq=False)
class AffectedPartitions:
    """Partitions, with the units that a failure may touch them through."""

    partitions: PartitionColumns
    online: Mask
    slot_unit: I32  # of each replica
    units: I32  # of each partition, without repetition; padded

    @classmethod
    def by(cls, failures: Failures, partitions: PartitionColumns) -> "AffectedPartitions":
        online = np.isin(partitions.replicas, np.array(failures.brokers, np.int32))
        slot_unit = failures.unit_of(partitions.replicas)
        units = np.sort(np.where(online, slot_unit, _NO_UNIT), axis=1)
        units[:, 1:][units[:, 1:] == units[:, :-1]] = _NO_UNIT
        return cls(partitions, online, slot_unit, units)

    def subsets(self, size_max: int) -> Iterator[Slots]:
        """The places of `units` to take together, none of them first."""
        width = self.units.shape[1]
        for size in range(min(size_max, width) + 1):
            yield from combinations(range(width), size)

    def rows_with(self, slots: Slots) -> I64:
        """The rows that have a unit in each of these places."""
        if not slots:
            return np.arange(len(self.units))
        return np.flatnonzero((self.units[:, slots] != _NO_UNIT).all(axis=1))

    def judged(self, rows: I64, slots: Slots, partitions: PartitionColumns) -> Judgement:
        """How these rows end when the units in these places fail."""
        online = self.online[rows]
        for slot in slots:
            online &= self.slot_unit[rows] != self.units[rows, slot][:, None]
        return judge(_take(partitions, rows), online)


def _take(partitions: PartitionColumns, rows: I64) -> PartitionColumns:
    return PartitionColumns(
        partitions.replicas[rows],
        partitions.isr[rows],
        partitions.leader[rows],
        partitions.min_isr[rows],
        partitions.unclean[rows],
    )


def in_sync(partitions: PartitionColumns, online: Mask) -> PartitionColumns:
    """The same partitions as if every live replica had caught up."""
    replicas = partitions.replicas
    isr = keep(replicas, online)
    dead = ~online.any(axis=1)
    isr[dead] = replicas[dead]
    return PartitionColumns(
        replicas, isr, partitions.leader, partitions.min_isr, partitions.unclean
    )


# --- sums -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """Sparse terms: `value` belongs to the sum `number` of all scenarios that contain `key`."""

    key: I64  # a set of units, see `key_of`
    number: I32
    value: I64

    def where(self, some: Mask) -> "Terms":
        return Terms(self.key[some], self.number[some], self.value[some])

    def about(self, numbers: range) -> "Terms":
        """The terms of some of the sums."""
        return self.where((self.number >= numbers.start) & (self.number < numbers.stop))


def key_of(units: I32, radix: int) -> I64:
    """A number for each row of ascending units; the empty set is 0."""
    key = np.zeros(len(units), np.int64)
    for slot in range(units.shape[1]):
        key = key * radix + units[:, slot] + 1
    return key


def least_key(size: int, radix: int) -> int:
    """The smallest key that a set of this size, or a larger one, can have."""
    return sum(radix**place for place in range(size))


def sum_terms(failures: Failures, partitions: PartitionColumns) -> Terms:
    """The terms of these partitions, added up."""
    touched = AffectedPartitions.by(failures, partitions)
    numbers = len(SUMS) + len(failures.brokers)
    brokers = np.array(failures.brokers, np.int32)
    views = (partitions, in_sync(partitions, touched.online))
    # What each row adds, as (number of the sum, whether it adds), for every subset seen so far.
    adds: dict[Slots, list[tuple[I64, Mask]]] = {}
    found: list[Terms] = []
    for slots in touched.subsets(failures.together):
        rows = touched.rows_with(slots)
        here: list[tuple[I64, Mask]] = []
        for view, base in zip(views, (0, _PER_VIEW), strict=True):
            judged = touched.judged(rows, slots, view)
            here.append((base + judged.outcome.astype(np.int64) - 1, judged.outcome != FINE))
            here.append((np.full(len(rows), base + _PER_VIEW - 1), judged.moved))
            if base == 0:
                place = np.searchsorted(brokers, judged.leader)
                here.append((len(SUMS) + place, judged.leader != NO_BROKER))
        adds[slots] = [_spread(number, mask, rows, len(partitions)) for number, mask in here]
        key = key_of(touched.units[rows][:, list(slots)], len(failures.units) + 1)
        distinct, group = np.unique(key, return_inverse=True)
        cells, signs = [], []
        for size in range(len(slots) + 1):
            sign = -1 if (len(slots) - size) % 2 else 1
            for part in combinations(slots, size):
                for number, mask in adds[part]:
                    cells.append((group * numbers + number[rows])[mask[rows]])
                    signs.append(np.full(len(cells[-1]), sign, np.int8))
        at, total = _counted(np.concatenate(cells), np.concatenate(signs), len(distinct) * numbers)
        found.append(Terms(distinct[at // numbers], (at % numbers).astype(np.int32), total))
    return merge_terms(found)


def _counted(cells: I64, signs: I8, size: int) -> tuple[I64, I64]:
    """Of `size` cells, those whose signs do not cancel out, and their sums.

    Pairs of a thousand brokers have far more cells than a chunk of partitions touches.
    """
    at: I64 = np.arange(size)
    if size > _DENSE_CELLS_MAX:
        at, cells = np.unique(cells, return_inverse=True)
    sums = np.bincount(cells, weights=signs, minlength=len(at)).astype(np.int64)
    return at[sums != 0], sums[sums != 0]


def _spread(number: I64, mask: Mask, rows: I64, size: int) -> tuple[I64, Mask]:
    """The same for all rows of the table: those that were not judged add nothing."""
    every_number, every_mask = np.zeros(size, np.int64), np.zeros(size, np.bool_)
    every_number[rows], every_mask[rows] = number, mask
    return every_number, every_mask


def merge_terms(terms: Sequence[Terms]) -> Terms:
    """The sum of several tables of terms."""
    key = np.concatenate([each.key for each in terms])
    number = np.concatenate([each.number for each in terms])
    value = np.concatenate([each.value for each in terms])
    order = np.lexsort((number, key))
    key, number, value = key[order], number[order], value[order]
    first = np.ones(len(key), np.bool_)
    first[1:] = (key[1:] != key[:-1]) | (number[1:] != number[:-1])
    starts = np.flatnonzero(first)
    totals = np.add.reduceat(value, starts) if len(starts) else value
    return Terms(key[starts], number[starts], totals)


def scenario_sums(
    failures: Failures, sets: I32, terms: Terms, numbers: range | None = None
) -> NDArray[np.int64]:
    """For each scenario its sums, and behind them the leaders of each broker.

    `numbers` chooses some of these columns; the terms may have others.
    """
    numbers = numbers or range(len(SUMS) + len(failures.brokers))
    terms = terms.about(numbers)
    distinct, group = np.unique(terms.key, return_inverse=True)
    dense = np.zeros((len(distinct) + 1, len(numbers)), np.int64)
    dense[group, terms.number - numbers.start] = terms.value
    totals = np.zeros((len(sets), len(numbers)), np.int64)
    radix = len(failures.units) + 1
    widest = _elements(int(distinct.max(initial=0)), radix)
    for size in range(min(failures.together, widest) + 1):
        for places in combinations(range(failures.together), size):
            key = key_of(sets[:, list(places)], radix)
            at = np.minimum(np.searchsorted(distinct, key), max(len(distinct) - 1, 0))
            is_known = np.zeros(len(key), np.bool_) if not len(distinct) else distinct[at] == key
            totals += dense[np.where(is_known, at, len(distinct))]
    return totals


def block_of(key: I64, blocks: int) -> I32:
    """The block of a scenario, by the key of its units."""
    # Multiply by an odd number and take the upper bits: neighbouring keys go to different blocks.
    mixed = (key.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(33)
    return (mixed % np.uint64(blocks)).astype(np.int32)


def _elements(key: int, radix: int) -> int:
    """How many units the set behind a key has."""
    elements = 0
    while key:
        key //= radix
        elements += 1
    return elements


# --- casualties -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Casualties:
    """Partitions without a leader, unclean or below min ISR, with their scenarios."""

    scenario: I64  # row of `Failures.sets`
    row: I64  # row of the partitions
    leader: I32
    isr: I32
    outcome: I8
    changed: Mask  # whether it is the failure that made it so
    reason: I8  # index of `REASONS`

    def __len__(self) -> int:
        return len(self.row)


def find_casualties(
    failures: Failures, sets: I32, partitions: PartitionColumns, cells_max: int = 4_000_000
) -> Iterator[Casualties]:
    """All of them, in portions: about `cells_max` pairs of scenario and partition are looked at."""
    touched = AffectedPartitions.by(failures, partitions)
    radix = len(failures.units) + 1
    set_key = key_of(sets, radix)
    sets_at = np.argsort(set_key)
    set_key = set_key[sets_at]
    with_unit = _rows_by_unit(sets, len(failures.units))
    before = touched.judged(np.arange(len(partitions)), (), partitions).outcome
    for slots in touched.subsets(failures.together):
        rows = touched.rows_with(slots)
        judged = touched.judged(rows, slots, partitions)
        bad = np.flatnonzero(judged.outcome != FINE)
        key = key_of(touched.units[rows[bad]][:, list(slots)], radix)
        if len(slots) == failures.together:
            # The scenario is the set of units itself, and takes no other unit.
            scenario = sets_at[np.searchsorted(set_key, key)]
            yield _casualties(scenario, rows, bad, judged, before, partitions)
            continue
        others = np.delete(touched.units, list(slots), axis=1)
        order = np.argsort(key, kind="stable")
        for group in np.split(bad[order], np.flatnonzero(np.diff(key[order])) + 1):
            if not len(group):
                continue
            hit = touched.units[rows[group[0]]][list(slots)]
            scenarios = np.arange(len(sets))
            for unit in hit:
                scenarios = np.intersect1d(scenarios, with_unit[unit], assume_unique=True)
            step = max(1, cells_max // max(1, len(scenarios)))
            for start in range(0, len(group), step):
                part = group[start : start + step]
                # A scenario that takes another unit of the partition too is another case.
                spared = np.ones((len(part), len(scenarios)), np.bool_)
                for unit in others[rows[part]].T:
                    for fails in sets[scenarios].T:
                        spared &= fails[None, :] != unit[:, None]
                at, scenario = np.nonzero(spared)
                hit_by = scenarios[scenario]
                yield _casualties(hit_by, rows, part[at], judged, before, partitions)


def _rows_by_unit(sets: I32, units: int) -> list[I64]:
    """The scenarios that each unit fails in, in ascending order."""
    order = np.argsort(sets.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(sets.ravel(), minlength=units))
    return np.split(order // sets.shape[1], ends[:-1])


def _casualties(
    scenario: I64,
    rows: I64,
    index: I64,
    judged: Judgement,
    before: I8,
    partitions: PartitionColumns,
) -> Casualties:
    row = rows[index]
    outcome = judged.outcome[index]
    needed = np.where(outcome == BELOW_MIN_ISR, partitions.min_isr[row], 1)
    reason = np.where(judged.alive[index] < needed, _REPLICAS_FAILED, _NOT_IN_SYNC)
    reason[count(partitions.replicas[row]) == 1] = _ONE_REPLICA
    return Casualties(
        scenario=scenario,
        row=row,
        leader=judged.leader[index],
        isr=judged.isr[index],
        outcome=outcome,
        changed=outcome != before[row],
        reason=reason.astype(np.int8),
    )
