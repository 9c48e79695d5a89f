"""A log in memory: what replication needs of one, without a disk.

Batches are Kafka's, as far as their headers go; what they hold is up to the test.
"""

import struct
import uuid
from bisect import bisect_right
from dataclasses import dataclass, field

from klamm.broker.log.epochs import NO_EPOCH, UNDEFINED_END, EpochEnd
from klamm.broker.log.errors import AppendError, OffsetOutOfRangeError
from klamm.protocol.codes import ErrorCode

_HEADER = struct.Struct(">qii7xi30xi")  # base offset, length, epoch, last offset delta, count
_HEADER_SIZE = 61


@dataclass(frozen=True, slots=True)
class Batch:
    base_offset: int
    last_offset: int
    epoch: int
    payload: bytes

    def encode(self) -> bytes:
        delta = self.last_offset - self.base_offset
        length = _HEADER_SIZE - 12 + len(self.payload)
        return _HEADER.pack(self.base_offset, length, self.epoch, delta, delta + 1) + self.payload


def decode_batches(records: bytes | memoryview) -> list[Batch]:
    batches, at = [], 0
    while at + _HEADER_SIZE <= len(records):
        base, length, epoch, delta, _ = _HEADER.unpack_from(records, at)
        end = at + 12 + length
        if end > len(records):
            break
        batches.append(Batch(base, base + delta, epoch, bytes(records[at + _HEADER_SIZE : end])))
        at = end
    return batches


@dataclass
class MemoryEpochs:
    entries: list[tuple[int, int]] = field(default_factory=list)

    @property
    def latest(self) -> int:
        return self.entries[-1][0] if self.entries else NO_EPOCH

    def assign(self, epoch: int, start_offset: int) -> None:
        if self.entries and epoch == self.latest and start_offset >= self.entries[-1][1]:
            return
        self.entries = [e for e in self.entries if e[0] < epoch and e[1] < start_offset]
        self.entries.append((epoch, start_offset))

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        if epoch == NO_EPOCH or epoch > self.latest:
            return UNDEFINED_END
        if epoch == self.latest:
            return EpochEnd(epoch, log_end_offset)
        after = bisect_right(self.entries, epoch, key=lambda entry: entry[0])
        return EpochEnd(self.entries[after - 1][0] if after else epoch, self.entries[after][1])

    def truncate_from(self, offset: int) -> None:
        self.entries = [e for e in self.entries if e[1] < offset]

    def truncate_before(self, offset: int) -> None:
        after = bisect_right(self.entries, offset, key=lambda entry: entry[1])
        if after:
            self.entries = [(self.entries[after - 1][0], offset), *self.entries[after:]]


class MemoryLog:
    """Batches in a list. Every `segment_batches` of them count as a segment."""

    def __init__(self, topic_id: uuid.UUID | None = None, *, segment_batches: int = 1000) -> None:
        self.topic_id = topic_id
        self.epochs = MemoryEpochs()
        self.batches: list[Batch] = []
        self.start_offset = 0
        self.end_offset = 0
        self.high_watermark = 0
        self.open_transaction: int | None = None
        self._segment_batches = segment_batches
        self._base_offset = 0

    @property
    def last_stable_offset(self) -> int:
        if self.open_transaction is None:
            return self.high_watermark
        return min(self.open_transaction, self.high_watermark)

    def append_as_leader(self, payload: bytes, epoch: int, count: int = 1) -> int:
        """Append one batch of `count` records and return its first offset."""
        first = self.end_offset
        self._add(Batch(first, first + count - 1, epoch, payload))
        return first

    def append_as_follower(self, records: bytes | bytearray | memoryview, *, now_ms: int) -> int:
        batches = decode_batches(memoryview(records))
        for batch in batches:
            if batch.base_offset < self.end_offset:
                raise AppendError(ErrorCode.INVALID_RECORD, f"{batch} begins before the end")
            self._add(batch)
        return sum(len(batch.encode()) for batch in batches)

    def _add(self, batch: Batch) -> None:
        self.batches.append(batch)
        self.epochs.assign(batch.epoch, batch.base_offset)
        self.end_offset = batch.last_offset + 1

    def read(self, offset: int, max_bytes: int, upper_offset: int) -> bytes:
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRangeError(f"{offset}")
        taken = b""
        for batch in self.batches:
            if batch.last_offset < offset or batch.last_offset >= upper_offset:
                continue
            encoded = batch.encode()
            if taken and len(taken) + len(encoded) > max_bytes:
                break
            taken += encoded
        return taken

    def bytes_between(self, start_offset: int, end_offset: int) -> int | None:
        rows = [
            row
            for row, batch in enumerate(self.batches)
            if batch.last_offset >= start_offset and batch.base_offset < end_offset
        ]
        if rows and rows[0] // self._segment_batches != rows[-1] // self._segment_batches:
            return None
        return sum(len(self.batches[row].encode()) for row in rows)

    def advance_high_watermark(self, offset: int) -> int:
        self.high_watermark = max(self.start_offset, min(offset, self.end_offset))
        return self.high_watermark

    def raise_start_offset(self, offset: int) -> bool:
        if offset > self.high_watermark:
            raise OffsetOutOfRangeError(f"{offset}")
        if offset <= self.start_offset:
            return False
        self.start_offset = offset
        self.epochs.truncate_before(offset)
        return True

    def truncate_to(self, offset: int, *, now_ms: int) -> bool:
        if offset >= self.end_offset:
            self.epochs.truncate_from(offset)
            return False
        if offset < self._base_offset:
            self.truncate_fully_and_start_at(offset, now_ms=now_ms)
            return True
        self.batches = [batch for batch in self.batches if batch.last_offset < offset]
        self.end_offset = self.batches[-1].last_offset + 1 if self.batches else self._base_offset
        self.start_offset = min(self.start_offset, self.end_offset)
        self.epochs.truncate_from(self.end_offset)
        self.advance_high_watermark(self.high_watermark)
        return True

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        self.batches = []
        self.epochs.entries = []
        self._base_offset = self.start_offset = self.end_offset = self.high_watermark = offset
