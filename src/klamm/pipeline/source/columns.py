"""Record batches of the wire as columns of Arrow, without a Python object for each record.

Records have lengths before them, so finding where each begins takes a loop; everything after that
is done for all records of an answer at once. Keys and values are copied out of the answer by Arrow.

Arrays are made from buffers: `pa.array` and `pa.scalar` import pandas if there is one, and each
worker that Spark starts would spend more time on that than on tens of thousands of records.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from klamm.errors import RemoteProtocolError
from klamm.protocol.codec.primitives import decode_varint
from klamm.protocol.fast.fetch import AbortedTransaction
from klamm.protocol.records import (
    HEADER_SIZE,
    MAGIC,
    Batch,
    BatchHeader,
    decode_batch_header,
    has_valid_crc,
    records_data,
)

I64: TypeAlias = npt.NDArray[np.int64]
Bytes: TypeAlias = npt.NDArray[np.uint8]

CREATE_TIME: Final = 0
LOG_APPEND_TIME: Final = 1

_HEADERS: Final = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
_SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", _TIMESTAMP),
        ("timestampType", pa.int32()),
    ]
)
_MAGIC_AT: Final = 16
#: What is made one Arrow batch, give or take a batch of the wire: a small answer may hold a lot
#: once it is decompressed, and Spark works on one portion while the next is made.
_PORTION_BYTES: Final = 4 << 20
#: What the offsets of Arrow's strings reach.
_COLUMN_BYTES_MAX: Final = (1 << 31) - 1
#: A varint of 64 bits has no more bytes.
_VARINT_BYTES_MAX: Final = 10
#: Of a marker's key: version and type, of which this is an abort.
_ABORT: Final = b"\0\0\0\0"


class OldFormatError(RemoteProtocolError):
    """Messages from before Kafka 0.11, which are left to librdkafka."""


def schema(*, include_headers: bool) -> pa.Schema:
    """The columns of Spark's `kafka` format."""
    return _SCHEMA.append(pa.field("headers", _HEADERS)) if include_headers else _SCHEMA


def offset_after(records: memoryview, start: int) -> int:
    """Where to read on: after the last offset that an answer covers, be there a record or not."""
    position, at = start, 0
    while len(records) - at >= HEADER_SIZE and records[at + _MAGIC_AT] == MAGIC:
        header = decode_batch_header(records, at)
        at += header.size
        if at > len(records):
            break
        position = max(position, header.last_offset + 1)
    return position


class Decoder:
    """Turns the answers about one partition into rows."""

    def __init__(
        self,
        topic: str,
        partition: int,
        *,
        include_headers: bool,
        read_committed: bool,
        check_crcs: bool = True,
    ) -> None:
        self._topic = topic
        self._partition = partition
        self._include_headers = include_headers
        self._read_committed = read_committed
        self._check_crcs = check_crcs

    def decode(
        self,
        records: memoryview,
        start: int,
        until: int,
        aborted: Iterable[AbortedTransaction] = (),
    ) -> Iterator[pa.RecordBatch]:
        """The records at offsets from `start` to before `until`.

        The answer may begin before `start`, in the middle of a batch, and may end in one that is
        cut short. Markers and records of aborted transactions are passed over.
        """
        fate = _Transactions(aborted)
        kept: list[BatchHeader] = []
        parts: list[Any] = []
        size = at = 0
        while len(records) - at >= HEADER_SIZE:
            if records[at + _MAGIC_AT] != MAGIC:
                raise OldFormatError(f"messages of magic {records[at + _MAGIC_AT]}")
            header = decode_batch_header(records, at)
            if header.size > len(records) - at:
                break
            batch = Batch(header, records[at : at + header.size])
            at += header.size
            if header.last_offset < start:
                continue
            if header.base_offset >= until:
                break
            if self._check_crcs and not has_valid_crc(batch):
                raise RemoteProtocolError(
                    f"the batch at offset {header.base_offset} of {self._topic}-{self._partition} "
                    "does not match its checksum"
                )
            is_wanted = not (self._read_committed and fate.is_aborted(batch))
            if is_wanted and not header.is_control and header.record_count > 0:
                kept.append(header)
                parts.append(records_data(batch))
                size += len(parts[-1])
            if size >= _PORTION_BYTES:
                yield from self._rows(kept, parts, start, until)
                kept, parts, size = [], [], 0
        if kept:
            yield from self._rows(kept, parts, start, until)

    def _rows(
        self, headers: list[BatchHeader], parts: list[Any], start: int, until: int
    ) -> Iterator[pa.RecordBatch]:
        content = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        ends = _record_ends(content, headers, parts)
        data = np.frombuffer(content, np.uint8)
        try:
            fields = _Fields(data, ends, headers, with_headers=self._include_headers)
        except IndexError:
            raise RemoteProtocolError("a record goes beyond its batch") from None
        is_wanted = (fields.offset >= start) & (fields.offset < until)
        wanted = None if is_wanted.all() else np.flatnonzero(is_wanted)
        count = len(ends) if wanted is None else len(wanted)
        if not count:
            return
        buffer = pa.py_buffer(content)
        columns = [
            _slices(buffer, fields.key_start, fields.key_size, pa.binary(), wanted),
            _slices(buffer, fields.value_start, fields.value_size, pa.binary(), wanted),
            _repeated(self._topic, count),
            _numbers(np.full(count, self._partition, np.int32), pa.int32()),
            _numbers(_take(fields.offset, wanted), pa.int64()),
            _numbers(_take(fields.timestamp * 1000, wanted), _TIMESTAMP),
            _numbers(_take(fields.timestamp_type, wanted), pa.int32()),
        ]
        if self._include_headers:
            all_headers = _header_lists(data, buffer, fields)
            columns.append(
                all_headers if wanted is None else all_headers.take(_numbers(wanted, pa.int64()))
            )
        yield pa.RecordBatch.from_arrays(
            columns, schema=schema(include_headers=self._include_headers)
        )


class _Transactions:
    """Which batches belong to transactions that were aborted, going through them in order."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._pending = sorted(aborted, key=lambda each: each.first_offset, reverse=True)
        self._open: set[int] = set()

    def is_aborted(self, batch: Batch) -> bool:
        header = batch.header
        while self._pending and self._pending[-1].first_offset <= header.last_offset:
            self._open.add(self._pending.pop().producer_id)
        if header.is_control:
            data = bytes(records_data(batch))
            # Length, attributes, timestamp, offset and the key's size come before the key.
            at = 0
            for skipped in (0, 1, 0, 0):
                _, at = decode_varint(data, at + skipped)
            if data[at : at + len(_ABORT)] == _ABORT:
                self._open.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._open


class _Fields:
    """Where the parts of each record are, and its numbers."""

    def __init__(
        self, data: Bytes, ends: I64, headers: list[BatchHeader], *, with_headers: bool
    ) -> None:
        counts = np.array([header.record_count for header in headers])
        at = np.empty(len(ends), np.int64)
        at[0] = 0
        at[1:] = ends[:-1]
        _, at = _varints(data, at)  # the length
        timestamp_delta, at = _varints(data, at + 1)  # after the attributes, which say nothing
        offset_delta, at = _varints(data, at)
        self.key_size, self.key_start = _varints(data, at)
        at = self.key_start + np.maximum(self.key_size, 0)
        self.value_size, self.value_start = _varints(data, at)
        at = self.value_start + np.maximum(self.value_size, 0)
        if with_headers:
            self.header_count, at = _varints(data, at)
            self.headers_start = at
        if (at > ends).any():
            raise RemoteProtocolError("a record is shorter than its fields")
        self.offset = offset_delta + _repeat([each.base_offset for each in headers], counts)
        by_broker = np.array([each.has_log_append_time for each in headers])
        is_by_broker = np.repeat(by_broker, counts)
        self.timestamp = timestamp_delta + _repeat(
            [each.base_timestamp for each in headers], counts
        )
        if by_broker.any():
            appended = _repeat([each.max_timestamp for each in headers], counts)
            self.timestamp = np.where(is_by_broker, appended, self.timestamp)
        self.timestamp_type = np.where(is_by_broker, LOG_APPEND_TIME, CREATE_TIME).astype(np.int32)


def _repeat(values: list[int], counts: npt.NDArray[Any]) -> I64:
    return np.repeat(np.array(values, np.int64), counts)


def _take(values: Any, wanted: I64 | None) -> Any:
    return values if wanted is None else values[wanted]


def _numbers(values: Any, kind: Any, is_null: npt.NDArray[np.bool_] | None = None) -> Any:
    """An array of a type that has the same bytes as the values."""
    validity = None if is_null is None else _bits(~is_null)
    content = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kind, len(values), [validity, content])


def _bits(mask: npt.NDArray[np.bool_]) -> Any:
    return pa.py_buffer(np.packbits(mask, bitorder="little"))


def _repeated(text: str, count: int) -> Any:
    """The same string so many times."""
    encoded = text.encode()
    if len(encoded) * count > _COLUMN_BYTES_MAX:
        raise RemoteProtocolError(f"{count} records in one batch are too many for Arrow")
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(len(encoded))
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(encoded * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def _record_ends(data: bytes, headers: list[BatchHeader], parts: list[Any]) -> I64:
    """Where each record ends, which is where the next one begins."""
    ends: list[int] = []
    note = ends.append
    at = expected = 0
    try:
        for header, part in zip(headers, parts, strict=True):
            expected += len(part)
            for _ in range(header.record_count):
                size = data[at]
                at += 1
                if size >= 0x80:
                    if data[at] < 0x80:
                        size = size & 0x7F | data[at] << 7
                        at += 1
                    else:
                        decoded, at = decode_varint(data, at - 1)
                        size = decoded << 1
                at += size >> 1
                note(at)
            if at != expected:
                raise RemoteProtocolError("the records of a batch do not fill it")
    except IndexError:
        raise RemoteProtocolError("a batch has fewer records than it says") from None
    return np.array(ends, np.int64)


def _varints(data: Bytes, at: I64) -> tuple[I64, I64]:
    """The zig-zag numbers at these positions, and the positions after them."""
    byte = data[at]
    coded = (byte & 0x7F).astype(np.int64)
    at = at + 1
    more = byte >= 0x80
    if more.any():
        rows = np.flatnonzero(more)
        for shift in range(7, 7 * _VARINT_BYTES_MAX, 7):
            byte = data[at[rows]]
            coded[rows] |= (byte & 0x7F).astype(np.int64) << shift
            at[rows] += 1
            rows = rows[byte >= 0x80]
            if not len(rows):
                break
        else:
            raise RemoteProtocolError("a variable-length integer is longer than ten bytes")
    # The top bit of a coded number is not a sign, so it must not be shifted in.
    half = (coded >> 1) & np.int64(0x7FFFFFFFFFFFFFFF)
    return half ^ -(coded & 1), at


def _slices(buffer: Any, start: I64, size: I64, kind: Any, wanted: I64 | None = None) -> Any:
    """These pieces of a buffer as an array; a negative size stands for null.

    Arrow's offsets leave no gaps, so what lies between two pieces is made an element as well, and
    every other element is taken.
    """
    bounds = np.empty(2 * len(start) + 1, np.int32)
    bounds[0] = 0
    bounds[1::2] = start
    bounds[2::2] = start + np.maximum(size, 0)
    pieces = pa.Array.from_buffers(
        kind, len(bounds) - 1, [None, pa.py_buffer(bounds), buffer], null_count=0
    )
    index = np.arange(1, len(bounds), 2, dtype=np.int32)
    is_null = size < 0
    if wanted is not None:
        index, is_null = index[wanted], is_null[wanted]
    return pieces.take(_numbers(index, pa.int32(), is_null if is_null.any() else None))


def _header_lists(data: Bytes, buffer: Any, fields: _Fields) -> Any:
    """The headers of each record; null where there are none, as Spark has it."""
    count = fields.header_count
    if (count < 0).any():
        raise RemoteProtocolError("a record announces a negative number of headers")
    first = np.zeros(len(count) + 1, np.int32)
    np.cumsum(count, out=first[1:])
    # The n-th headers of all records that have so many, for one n after another.
    key_start, key_size, value_start, value_size = np.empty((4, first[-1]), np.int64)
    at = fields.headers_start.copy()
    rows = np.flatnonzero(count > 0)
    number = 0
    while len(rows):
        place = first[rows] + number
        key_size[place], key_start[place] = _varints(data, at[rows])
        value_size[place], value_start[place] = _varints(data, key_start[place] + key_size[place])
        at[rows] = value_start[place] + np.maximum(value_size[place], 0)
        number += 1
        rows = rows[count[rows] > number]
    entries = pa.StructArray.from_arrays(
        [
            _slices(buffer, key_start, key_size, pa.string()),
            _slices(buffer, value_start, value_size, pa.binary()),
        ],
        fields=list(_HEADERS.value_type),
    )
    has_none = pa.Array.from_buffers(pa.bool_(), len(count), [None, _bits(count == 0)])
    return pa.ListArray.from_arrays(
        _numbers(first, pa.int32()), entries, type=_HEADERS, mask=has_none
    )
