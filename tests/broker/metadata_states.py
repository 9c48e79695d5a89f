"""States of the metadata cache, made field by field."""

import struct

from klamm.protocol.fast.metadata_states import PackedStates, PartitionMetadata

CONTROLLER_EPOCH, VERSION = 5, 9


def packed(partition: PartitionMetadata) -> bytes:
    """The state of a partition as it stands in an UpdateMetadata."""
    index, leader, leader_epoch, replicas, isr, offline = partition
    numbers = struct.pack(">iiii", index, CONTROLLER_EPOCH, leader, leader_epoch)
    version = struct.pack(">i", VERSION)
    return numbers + _ids(isr) + version + _ids(replicas) + _ids(offline) + b"\0"


def states_of(*partitions: PartitionMetadata) -> PackedStates:
    """The states of several partitions in one piece."""
    return PackedStates.of(map(packed, partitions))


def _ids(brokers: tuple[int, ...]) -> bytes:
    return struct.pack(f">B{len(brokers)}i", len(brokers) + 1, *brokers)
