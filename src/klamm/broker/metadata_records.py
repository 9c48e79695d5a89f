"""A partition as the metadata cache keeps it: the bytes that Metadata answers from v9 on carry.

A broker knows every partition of the cluster and is asked about few of them, so what counts is
how little memory one takes: some 80 bytes, and none of them an object that the garbage collector
has to visit. Being an answer's bytes already, a record of a partition with a live leader goes to
clients as it is.
"""

import struct
from functools import cache
from typing import Final, NamedTuple

from klamm.errors import RemoteProtocolError

#: Counts up to this one take a single byte in the compact form.
_MAX_REPLICAS: Final = 126
_INDEX_LEADER_EPOCH: Final = struct.Struct(">iii")
_INDEX_AT: Final = 2
_ARRAYS_AT: Final = 14
#: Where the leader's id is in a record.
LEADER: Final = slice(6, 10)


class PartitionMetadata(NamedTuple):
    """What the controller has told every broker about a partition."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()


def pack_partition(partition: PartitionMetadata) -> bytes:
    """The partition as it stands in a Metadata answer without an error."""
    index, leader, leader_epoch, replicas, isr, offline = partition
    lengths = len(replicas), len(isr), len(offline)
    if max(lengths) > _MAX_REPLICAS:
        raise RemoteProtocolError(f"partition {index} has more than {_MAX_REPLICAS} replicas")
    return _layout(*lengths).pack(
        0,
        index,
        leader,
        leader_epoch,
        lengths[0] + 1,
        *replicas,
        lengths[1] + 1,
        *isr,
        lengths[2] + 1,
        *offline,
        0,
    )


def unpack_partition(record: bytes) -> PartitionMetadata:
    index, leader, leader_epoch = _INDEX_LEADER_EPOCH.unpack_from(record, _INDEX_AT)
    replicas, at = _array(record, _ARRAYS_AT)
    isr, at = _array(record, at)
    offline, _ = _array(record, at)
    return PartitionMetadata(index, leader, leader_epoch, replicas, isr, offline)


def index_of(record: bytes) -> int:
    return int.from_bytes(record[2:6], "big", signed=True)


def with_leader_error(record: bytes, error: int) -> bytes:
    """The record as clients get it while its leader cannot be named to them."""
    return struct.pack(">h", error) + record[2:6] + b"\xff\xff\xff\xff" + record[10:]


@cache
def _layout(replicas: int, isr: int, offline: int) -> struct.Struct:
    return struct.Struct(f">hiiiB{replicas}iB{isr}iB{offline}iB")


@cache
def _ids(count: int) -> struct.Struct:
    return struct.Struct(f">{count}i")


def _array(record: bytes, at: int) -> tuple[tuple[int, ...], int]:
    layout = _ids(record[at] - 1)
    return layout.unpack_from(record, at + 1), at + 1 + layout.size
