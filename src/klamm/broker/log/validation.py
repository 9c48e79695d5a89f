"""Which batches are fit to be appended, and what the leader changes in them.

A batch is moved as bytes: the check reads its header, its checksum and the chain of its records,
and what is rewritten is the header. Only where a rule asks for it is a batch encoded again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from crc32c import crc32c

from klamm.broker.log.batches import HEADER_SIZE, BatchHeader
from klamm.broker.log.errors import AppendError
from klamm.broker.log.files import Buffer
from klamm.broker.log.settings import LogConfig
from klamm.protocol.codes import ErrorCode

_PLACE: Final = struct.Struct(">qii")
_CRC_AT: Final = 17
_CHECKED_FROM: Final = 21


class Origin(Enum):
    """Who wrote a batch that a leader appends."""

    CLIENT = "client"
    #: A coordinator on this broker: it numbers nothing, and may write control batches.
    COORDINATOR = "coordinator"


class ValidBatch(NamedTuple):
    """A batch that may be appended: `header` as it will be stored, apart from its place."""

    header: BatchHeader
    head: bytearray
    body: memoryview

    def placed_at(self, offset: int, leader_epoch: int) -> tuple[bytearray, memoryview]:
        """The bytes to write. Offset and epoch are outside of the checksum."""
        _PLACE.pack_into(self.head, 0, offset, self.header.batch_length, leader_epoch)
        return self.head, self.body


class ReplicatedBatch(NamedTuple):
    """A batch among those that came from the leader, and where it begins."""

    position: int
    header: BatchHeader


def validate_batch(records: Buffer, config: LogConfig, now_ms: int, origin: Origin) -> ValidBatch:
    view = memoryview(records)
    header = BatchHeader.parse(view)
    if header.base_offset != 0:
        raise AppendError(ErrorCode.INVALID_RECORD, "base offset")
    if header.size > config.max_message_bytes:
        raise AppendError(ErrorCode.MESSAGE_TOO_LARGE, "large")
    if crc32c(view[_CHECKED_FROM:]) != header.crc:
        raise AppendError(ErrorCode.CORRUPT_MESSAGE, "crc")
    return ValidBatch(header, bytearray(view[:HEADER_SIZE]), view[HEADER_SIZE:])


def validate_replicated(view: memoryview) -> Iterator[ReplicatedBatch]:
    """The whole batches in `view`, checked as far as a follower has to."""
    position, expected = 0, None
    while position + HEADER_SIZE <= len(view):
        header = BatchHeader.parse(view, position)
        end = position + header.size
        if header.size < HEADER_SIZE or header.magic != 2:
            raise AppendError(ErrorCode.CORRUPT_MESSAGE, "the leader sent no batch of version 2")
        if end > len(view):
            return
        if crc32c(view[position + _CHECKED_FROM : end]) != header.crc:
            raise AppendError(
                ErrorCode.CORRUPT_MESSAGE,
                f"the checksum of the leader's batch at offset {header.base_offset} is wrong",
            )
        if expected is not None and header.base_offset < expected:
            raise AppendError(
                ErrorCode.INVALID_RECORD,
                f"the leader's batch at offset {header.base_offset} comes after {expected - 1}",
            )
        expected = header.last_offset + 1
        yield ReplicatedBatch(position, header)
        position = end
