"""Where the replicas of new partitions go.

Given the same brokers, start and shift, the result is Kafka's, replica for replica. The leaders go
round the list of brokers, beginning at `start`. The other replicas of a partition stand further
along the list, at a distance that begins with `shift` and grows after every round, so that what
one broker leads is followed by many others. With racks the list alternates between them, and a
broker is passed over while its rack has a replica that another rack lacks.

Start and shift are drawn by the caller: there is no randomness here.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

import numpy as np

from klamm.core.columns import I32, NO_BROKER, Mask, contains
from klamm.errors import KlammError

#: Brokers in the order in which they are considered, with their racks.
Racks = Mapping[int, str | None]


class Refusal(StrEnum):
    """Why there is no assignment, by the name of Kafka's error."""

    INVALID_PARTITIONS = "INVALID_PARTITIONS"
    INVALID_REPLICATION_FACTOR = "INVALID_REPLICATION_FACTOR"
    # Kafka has no code of its own for brokers of which only some have a rack.
    INCOMPLETE_RACKS = "UNKNOWN_SERVER_ERROR"


class AssignmentError(KlammError):
    """Replicas cannot be assigned; the message is the one that clients are told."""

    def __init__(self, kind: Refusal, message: str) -> None:
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
    _check(racks, partitions, replication_factor)
    partition = np.arange(partitions, dtype=np.int64) + first_partition
    if all(rack is None for rack in racks.values()):
        brokers = np.fromiter(racks, np.int32, len(racks))
        slot = _spread(partition, len(racks), replication_factor, start, shift)
    else:
        alternated = alternate_racks(racks)
        brokers = np.array(alternated, np.int32)
        _, rack_of = np.unique([racks[broker] or "" for broker in alternated], return_inverse=True)
        slot = _spread_over_racks(
            partition, rack_of.astype(np.int32), replication_factor, start, shift
        )
    assigned: I32 = brokers[slot]
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


def alternate_racks(racks: Racks) -> list[int]:
    """Take one broker of each rack in turn, racks by name and brokers by id, until none is left."""
    turns: dict[str | None, int] = {}
    order = []
    for broker in sorted(racks):
        turn = turns[racks[broker]] = turns.get(racks[broker], -1) + 1
        order.append((turn, racks[broker] or "", broker))
    return [broker for _, _, broker in sorted(order)]


def _check(racks: Racks, partitions: int, replication_factor: int) -> None:
    if partitions <= 0:
        raise AssignmentError(
            Refusal.INVALID_PARTITIONS, "Number of partitions must be larger than 0."
        )
    if replication_factor <= 0:
        raise AssignmentError(
            Refusal.INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0."
        )
    if replication_factor > len(racks):
        raise AssignmentError(
            Refusal.INVALID_REPLICATION_FACTOR,
            f"Replication factor: {replication_factor} larger than available brokers: "
            f"{len(racks)}.",
        )
    if None in racks.values() and any(rack is not None for rack in racks.values()):
        raise AssignmentError(
            Refusal.INCOMPLETE_RACKS,
            "Not all brokers have rack information for replica rack aware assignment.",
        )
