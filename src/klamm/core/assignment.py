"""Assigns replicas to new partitions.

Given the same brokers, start and shift, the result is Kafka's, replica for replica. The leaders go
round the list of brokers, beginning at `start`. The other replicas of a partition stand further
along the list, at a distance that begins with `shift` and grows after every round, so that what
one broker leads is followed by many others. With racks the list alternates between them, and a
broker is passed over while its rack has a replica that another rack lacks.

Start and shift are drawn by the caller: there is no randomness here.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from klamm.core.columns import I32, I64, alone, contains
from klamm.errors import KlammError

#: Brokers in the order in which they are considered, with their racks.
Racks = Mapping[int, str | None]


class AssignmentRefusal(StrEnum):
    """Why there is no assignment, by the name of Kafka's error."""

    INVALID_PARTITIONS = "INVALID_PARTITIONS"
    INVALID_REPLICATION_FACTOR = "INVALID_REPLICATION_FACTOR"
    # Kafka has no code of its own for brokers of which only some have a rack.
    INCOMPLETE_RACKS = "UNKNOWN_SERVER_ERROR"


class AssignmentError(KlammError):
    """Replicas cannot be assigned; clients get the message."""

    def __init__(self, kind: AssignmentRefusal, message: str) -> None:
        super().__init__(message)
        self.kind: Final = kind


def assign_replicas(
    racks: Racks,
    partitions: int,
    replication_factor: int,
    *,
    start: int,
    shift: int,
    first_partition: int = 0,
) -> I32:
    """Assign replicas to partitions numbered from `first_partition`: a row each."""
    _check_counts(len(racks), partitions, replication_factor)
    rounds = _rounds(len(racks), partitions, start, shift, max(0, first_partition))
    rack_of = {broker: rack for broker, rack in racks.items() if rack is not None}
    if not rack_of:
        brokers = list(racks)
        places = _spread(rounds, replication_factor)
    elif len(rack_of) < len(racks):
        raise AssignmentError(
            AssignmentRefusal.INCOMPLETE_RACKS,
            "Not all brokers have rack information for replica rack aware assignment.",
        )
    else:
        brokers = alternate_racks(rack_of)
        names = sorted(set(rack_of.values()))
        rack_at = np.array([names.index(rack_of[broker]) for broker in brokers], np.int32)
        places = _spread_over_racks(rounds, rack_at, replication_factor)
    assigned: I32 = np.array(brokers, np.int32)[places]
    return assigned


def assign_more_replicas(
    racks: Racks, first_assignment: Sequence[int], existing: int, added: int
) -> I32:
    """Assign replicas to partitions that are added to a topic: a row each.

    `first_assignment` is that of partition 0, and `existing` the number of partitions. To go on
    where the topic began, the start is the place of its first leader, or of the next broker if
    that one is gone. That place is counted by broker id, also when racks then reorder the list.
    """
    brokers = sorted(racks)
    head = first_assignment[0]
    start = next((place for place, broker in enumerate(brokers) if broker >= head), 0)
    return assign_replicas(
        {broker: racks[broker] for broker in brokers},
        added,
        len(first_assignment),
        start=start,
        shift=start,
        first_partition=existing,
    )


def alternate_racks(rack_of: Mapping[int, str]) -> list[int]:
    """Take one broker of each rack in turn, racks by name and brokers by id, until none is left."""
    taken: Counter[str] = Counter()
    order = []
    for broker in sorted(rack_of):
        rack = rack_of[broker]
        order.append((taken[rack], rack, broker))
        taken[rack] += 1
    return [broker for _, _, broker in sorted(order)]


def _check_counts(brokers: int, partitions: int, replication_factor: int) -> None:
    if partitions <= 0:
        raise AssignmentError(
            AssignmentRefusal.INVALID_PARTITIONS, "Number of partitions must be larger than 0."
        )
    if replication_factor <= 0:
        raise AssignmentError(
            AssignmentRefusal.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0.",
        )
    if replication_factor > brokers:
        raise AssignmentError(
            AssignmentRefusal.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {replication_factor} larger than available brokers: {brokers}.",
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Rounds:
    """For each partition the place of its leader in the list of brokers, and its shift."""

    brokers: int
    leader: I32
    shift: I64

    def place(self, k: int, stretch: int = 1) -> I32:
        """The k-th place after each leader's own: any but that one, all of them in turn."""
        step = 1 + (self.shift * stretch + k) % (self.brokers - 1)
        place: I32 = ((self.leader + step) % self.brokers).astype(np.int32)
        return place


def _rounds(brokers: int, partitions: int, start: int, shift: int, first_partition: int) -> _Rounds:
    partition = np.arange(partitions, dtype=np.int64) + first_partition
    # The shift grows at each multiple of the number of brokers but 0, the first partition's own
    # number included; multiples that were passed by earlier partitions do not count.
    passed = (max(first_partition, 1) - 1) // brokers
    return _Rounds(
        brokers,
        leader=((partition + start) % brokers).astype(np.int32),
        shift=shift + partition // brokers - passed,
    )


def _spread(rounds: _Rounds, replication_factor: int) -> I32:
    followers = [rounds.place(k) for k in range(replication_factor - 1)]
    return np.stack([rounds.leader, *followers], axis=1)


def _spread_over_racks(rounds: _Rounds, rack_at: I32, replication_factor: int) -> I32:
    """Fill each row with the first places that are neither taken nor in a rack that can wait.

    All rows look at their k-th place at the same time; a row that is full has nothing to do.
    """
    racks = int(rack_at.max()) + 1
    places = alone(rounds.leader, replication_factor)
    rack_taken = np.zeros((len(places), racks), np.bool_)
    rack_taken[np.arange(len(places)), rack_at[rounds.leader]] = True
    filled = np.ones(len(places), np.int32)
    k = 0
    while (unfilled := np.flatnonzero(filled < replication_factor)).size:
        place = rounds.place(k, stretch=racks)[unfilled]
        rack = rack_at[place]
        is_taken = contains(places[unfilled], place[:, None])[:, 0]
        can_wait = rack_taken[unfilled, rack] & ~rack_taken[unfilled].all(axis=1)
        fits = ~is_taken & ~can_wait
        row = unfilled[fits]
        places[row, filled[row]] = place[fits]
        rack_taken[row, rack[fits]] = True
        filled[row] += 1
        k += 1
    return places
