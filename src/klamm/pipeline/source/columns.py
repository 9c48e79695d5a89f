"""Record batches of the wire as columns of Arrow, without a Python object for each record.

Records have lengths before them, so finding where each begins takes a loop; everything after that
is done for all records of a response at once. Arrow copies keys and values out of the response.

Arrays are made from buffers: `pa.array` and `pa.scalar` import pandas if there is one, and each
worker that Spark starts would spend more time on that than on tens of thousands of records.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from klamm.errors import RemoteProtocolError
from klamm.protocol.codec.primitives import decode_varint
from klamm.protocol.compression import decompress_into
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
#: The columns of Spark's `kafka` format.
_TYPES: Final = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": _TIMESTAMP,
    "timestampType": pa.int32(),
    "headers": _HEADERS,
}
_MAGIC_AT: Final = 16
#: The size of an Arrow batch, give or take a record batch: a small response may be large once it is
#: decompressed, and Spark works on one portion while the next is made.
_PORTION_BYTES: Final = 4 << 20
#: A portion is at least as large before it becomes rows, and its last batch makes it larger.
_MEMORY_BYTES: Final = 2 * _PORTION_BYTES
#: The largest offset in a column of strings in Arrow.
_COLUMN_BYTES_MAX: Final = (1 << 31) - 1
#: A varint of 64 bits has no more bytes.
_VARINT_BYTES_MAX: Final = 10
#: Of a marker's key: version and type, of which this is an abort.
_ABORT: Final = b"\0\0\0\0"


def schema(columns: Sequence[str]) -> pa.Schema:
    """Columns of Spark's `kafka` format, by name."""
    return pa.schema([(name, _TYPES[name]) for name in columns])


def is_old_format(records: memoryview) -> bool:
    """Whether a response begins with messages from before Kafka 0.11."""
    return len(records) > _MAGIC_AT and records[_MAGIC_AT] != MAGIC


def offset_after(records: memoryview, start: int) -> int:
    """The next offset to read: after the last one that a response covers, with a record or not."""
    position, at = start, 0
    while len(records) - at >= HEADER_SIZE and records[at + _MAGIC_AT] == MAGIC:
        header = decode_batch_header(records, at)
        at += header.size
        if at > len(records):
            break
        position = max(position, header.last_offset + 1)
    return position


class FetchedRecords(NamedTuple):
    """The bytes that a leader sent for one partition, and the range of offsets to decode.

    It may begin before `start`, in the middle of a batch, and may end in a batch that is cut short
    or in messages of an old format; those are left alone.
    """

    topic: str
    partition: int
    records: memoryview
    start: int
    until: int
    aborted: Sequence[AbortedTransaction] = ()


class _Portion:
    """Batches that become rows together: each with its response and the bytes of its records.

    What is compressed is decompressed into `memory`, one batch behind the other, as long as there
    is room: memory of its own for each batch, and joining them, would cost more than decompressing.
    """

    def __init__(self, memory: bytearray) -> None:
        self.fetched: list[FetchedRecords] = []
        self.headers: list[BatchHeader] = []
        self.parts: list[Any] = []
        self.size = 0
        self._memory = memory
        self._used = 0

    def add(self, fetched: FetchedRecords, batch: Batch) -> None:
        part: Any = self._decompressed(batch) if batch.header.codec else None
        if part is None:
            part = records_data(batch)
        self.fetched.append(fetched)
        self.headers.append(batch.header)
        self.parts.append(part)
        self.size += len(part)

    def _decompressed(self, batch: Batch) -> memoryview | None:
        room = memoryview(self._memory)[self._used :]
        size = decompress_into(batch.header.codec, batch.data[HEADER_SIZE:], room)
        if size is None:
            return None
        self._used += size
        return room[:size]

    def content(self) -> bytes | bytearray:
        """The records of all batches; there may be more behind them."""
        if self._used == self.size:
            return self._memory
        return bytes(self.parts[0]) if len(self.parts) == 1 else b"".join(self.parts)

    def is_all_wanted(self) -> bool:
        return all(
            header.base_offset >= each.start and header.last_offset < each.until
            for each, header in zip(self.fetched, self.headers, strict=True)
        )


class Decoder:
    """Turns fetched records into rows with the columns that are wanted."""

    def __init__(
        self, columns: Sequence[str], *, read_committed: bool, check_crcs: bool = True
    ) -> None:
        self._columns = columns
        self._schema = schema(columns)
        self._read_committed = read_committed
        self._check_crcs = check_crcs

    def decode(self, fetched: Iterable[FetchedRecords]) -> Iterator[pa.RecordBatch]:
        """The records of the responses, one response after another.

        Markers and records of aborted transactions are passed over.
        """
        # Rows are copies, so the next portion may use the same memory.
        memory = bytearray(_MEMORY_BYTES)
        portion = _Portion(memory)
        for each in fetched:
            for batch in self._batches(each):
                portion.add(each, batch)
                if portion.size >= _PORTION_BYTES:
                    yield from self._rows(portion)
                    portion = _Portion(memory)
        if portion.headers:
            yield from self._rows(portion)

    def _batches(self, fetched: FetchedRecords) -> Iterator[Batch]:
        """The batches of one response that hold something wanted."""
        fate = _Transactions(fetched.aborted)
        records, at = fetched.records, 0
        while len(records) - at >= HEADER_SIZE and records[at + _MAGIC_AT] == MAGIC:
            header = decode_batch_header(records, at)
            if header.size > len(records) - at:
                break
            batch = Batch(header, records[at : at + header.size])
            at += header.size
            if header.last_offset < fetched.start:
                continue
            if header.base_offset >= fetched.until:
                break
            if self._check_crcs and not has_valid_crc(batch):
                raise RemoteProtocolError(
                    f"the batch at offset {header.base_offset} of "
                    f"{fetched.topic}-{fetched.partition} does not match its checksum"
                )
            is_wanted = not (self._read_committed and fate.is_aborted(batch))
            if is_wanted and not header.is_control and header.record_count > 0:
                yield batch

    def _rows(self, portion: _Portion) -> Iterator[pa.RecordBatch]:
        headers, content = portion.headers, portion.content()
        ends = _record_ends(content, headers, portion.parts)
        data = np.frombuffer(content, np.uint8, portion.size)
        try:
            fields = _Fields(data, ends, headers, with_headers="headers" in self._columns)
        except IndexError:
            raise RemoteProtocolError("a record goes beyond its batch") from None
        wanted = None
        if not portion.is_all_wanted():
            start = _repeat([each.start for each in portion.fetched], fields.counts)
            until = _repeat([each.until for each in portion.fetched], fields.counts)
            wanted = np.flatnonzero((fields.offset >= start) & (fields.offset < until))
        if wanted is not None and not len(wanted):
            return
        made = _Columns(portion.fetched, fields, data, pa.py_buffer(content), wanted)
        yield pa.RecordBatch.from_arrays(
            [made.column(name) for name in self._columns], schema=self._schema
        )


class _Columns:
    """Columns of the records that are wanted; None stands for all of them."""

    def __init__(
        self,
        fetched: list[FetchedRecords],
        fields: "_Fields",
        data: Bytes,
        buffer: Any,
        wanted: I64 | None,
    ) -> None:
        self._fetched = fetched
        self._fields = fields
        self._data = data
        self._buffer = buffer
        self._wanted = wanted

    def column(self, name: str) -> Any:
        fields, wanted = self._fields, self._wanted
        match name:
            case "key":
                return _slices(self._buffer, fields.key_start, fields.key_size, pa.binary(), wanted)
            case "value":
                start, size = fields.value_start, fields.value_size
                return _slices(self._buffer, start, size, pa.binary(), wanted)
            case "topic":
                return self._topics()
            case "partition":
                numbers = np.array([each.partition for each in self._fetched], np.int32)
                return _numbers(_take(np.repeat(numbers, fields.counts), wanted), pa.int32())
            case "offset":
                return _numbers(_take(fields.offset, wanted), pa.int64())
            case "timestamp":
                return _numbers(_take(fields.timestamp * 1000, wanted), _TIMESTAMP)
            case "timestampType":
                return _numbers(_take(fields.timestamp_type, wanted), pa.int32())
        headers = _header_lists(self._data, self._buffer, fields)
        return headers if wanted is None else headers.take(_numbers(wanted, pa.int64()))

    def _topics(self) -> Any:
        names = list(dict.fromkeys(each.topic for each in self._fetched))
        if len(names) == 1:
            rows = len(self._fields.offset) if self._wanted is None else len(self._wanted)
            return _repeated(names[0], rows)
        places = {name: place for place, name in enumerate(names)}
        numbers = np.array([places[each.topic] for each in self._fetched], np.int32)
        encoded = [name.encode() for name in names]
        bounds = np.zeros(len(names) + 1, np.int32)
        np.cumsum([len(each) for each in encoded], out=bounds[1:])
        buffers = [None, pa.py_buffer(bounds), pa.py_buffer(b"".join(encoded))]
        topics = pa.Array.from_buffers(pa.string(), len(names), buffers)
        index = _take(np.repeat(numbers, self._fields.counts), self._wanted)
        return topics.take(_numbers(index, pa.int32()))


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
        counts = self.counts = np.array([header.record_count for header in headers])
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
    """An array of one string, repeated."""
    encoded = text.encode()
    if len(encoded) * count > _COLUMN_BYTES_MAX:
        raise RemoteProtocolError(f"{count} records in one batch are too many for Arrow")
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(len(encoded))
    buffers = [None, pa.py_buffer(bounds), pa.py_buffer(encoded * count)]
    return pa.Array.from_buffers(pa.string(), count, buffers)


def _record_ends(data: bytes | bytearray, headers: list[BatchHeader], parts: list[Any]) -> I64:
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
                        decoded, at = decode_varint(memoryview(data), at - 1)
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
    # For n = 0, 1, ...: the n-th headers of all records that have more than n headers.
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
