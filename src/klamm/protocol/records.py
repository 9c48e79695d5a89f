"""Record batches, magic 2: their headers, their records, and walking them without making either.

Everything here works on whole batches in memory and copies nothing but what it returns as bytes.
What a broker must refuse raises RemoteProtocolError; which Kafka error that is, the broker knows.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from klamm.errors import LocalProtocolError, RemoteProtocolError
from klamm.protocol.codec.primitives import Buffer, decode_varint, encode_varint
from klamm.protocol.compression import DECOMPRESSED_BYTES_MAX, Codec, compress, decompress

MAGIC: Final = 2

#: Bytes before the records.
HEADER_SIZE: Final = 61
#: Bytes before and including the batch's length, which counts what follows it.
LENGTH_END: Final = 12
#: Where the leader's assignments end: offset, length and leader epoch, all outside of the CRC.
ASSIGNED_SIZE: Final = 16

_CRC_START: Final = 21  # the first byte that the CRC covers

_CODEC_BITS: Final = 0x07
_LOG_APPEND_TIME: Final = 0x08
_TRANSACTIONAL: Final = 0x10
_CONTROL: Final = 0x20
_DELETE_HORIZON: Final = 0x40

#: Below every timestamp delta.
_NO_TIMESTAMP_DELTA: Final = -(1 << 64)

#: Records of one shape are checked together from this many on.
_ALIKE_MIN: Final = 8
#: The bytes of the offset deltas 0, 1, 2, ... as they are coded, in columns: of one byte, of two.
_OFFSET_COLUMNS: Final[Mapping[int, Sequence[bytes]]] = {
    1: (bytes(range(0, 0x80, 2)),),
    2: (bytes(range(0x80, 0x100, 2)) * 0x80, bytes(each >> 6 for each in range(0x2000))),
}

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_ASSIGNED: Final = struct.Struct(">qii")
_CHECKED: Final = struct.Struct(">hiqqqhii")  # the header from the first checked byte on


class BatchHeader(NamedTuple):
    """The header of a batch, in the order of the wire."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Of the whole batch."""
        return LENGTH_END + self.batch_length

    @property
    def last_offset(self) -> int:
        """The last offset that the batch takes up, whether or not a record is left there."""
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        """A Codec, or a number that is not one."""
        return self.attributes & _CODEC_BITS

    @property
    def has_log_append_time(self) -> bool:
        """Whether the broker's clock set the timestamps."""
        return bool(self.attributes & _LOG_APPEND_TIME)

    @property
    def is_transactional(self) -> bool:
        """Whether the batch is part of a transaction."""
        return bool(self.attributes & _TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        """Whether it holds a marker rather than data."""
        return bool(self.attributes & _CONTROL)

    @property
    def has_delete_horizon(self) -> bool:
        """Whether the base timestamp is the time from which tombstones may go."""
        return bool(self.attributes & _DELETE_HORIZON)


class Batch(NamedTuple):
    """A whole batch where it lies."""

    header: BatchHeader
    data: memoryview


class Record(NamedTuple):
    """One record; `offset` is absolute, and -1 in a record that has none yet."""

    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: Sequence[tuple[str, bytes | None]] = ()
    offset: int = -1


class Scan(NamedTuple):
    """What walking the records of a batch has shown; timestamps are relative to its base."""

    min_timestamp_delta: int
    max_timestamp_delta: int
    is_dense: bool  # the offset deltas are 0, 1, 2, ...
    null_key_index: int  # of the first record without key, -1 if all have one


def decode_batch_header(buffer: Buffer, at: int = 0) -> BatchHeader:
    """The header of the batch at `at`; checks nothing but that it is all there."""
    if len(buffer) - at < HEADER_SIZE:
        raise RemoteProtocolError(f"a batch header is cut short: {len(buffer) - at} bytes")
    return BatchHeader(*_HEADER.unpack_from(buffer, at))


def encode_batch_header(header: BatchHeader) -> bytes:
    """The header's bytes, its CRC as given."""
    return _HEADER.pack(*header)


def iterate_batches(buffer: Buffer, *, may_end_early: bool = False) -> Iterator[Batch]:
    """The batches that lie one after the other in `buffer`.

    A Fetch response may end in the middle of a batch, which is then left out. Anywhere else that is
    an error, as is a length that no batch can have.
    """
    view = memoryview(buffer).toreadonly()
    at, end = 0, len(view)
    while at < end:
        if end - at < HEADER_SIZE and may_end_early:
            return
        header = decode_batch_header(view, at)
        if header.size < HEADER_SIZE or header.magic != MAGIC:
            raise RemoteProtocolError(
                f"no batch of magic {MAGIC} at byte {at}: length {header.batch_length}, "
                f"magic {header.magic}"
            )
        if at + header.size > end:
            if may_end_early:
                return
            raise RemoteProtocolError(f"the batch at byte {at} is cut short")
        yield Batch(header, view[at : at + header.size])
        at += header.size


def has_valid_crc(batch: Batch) -> bool:
    """Whether the batch is as its producer sent it."""
    return bool(crc32c(batch.data[_CRC_START:]) == batch.header.crc)


def encode_assigned(header: BatchHeader, base_offset: int, leader_epoch: int) -> bytes:
    """The first ASSIGNED_SIZE bytes of the batch once it has its place in the log.

    They replace as many bytes of what the producer sent; everything after them stays.
    """
    return _ASSIGNED.pack(base_offset, header.batch_length, leader_epoch)


def with_timestamps(batch: Batch, *, log_append_time: bool, max_timestamp: int) -> Batch:
    """The batch with another timestamp type or maximum, and so another CRC; records as they are."""
    attributes = batch.header.attributes & ~_LOG_APPEND_TIME
    if log_append_time:
        attributes |= _LOG_APPEND_TIME
    header = batch.header._replace(attributes=attributes, max_timestamp=max_timestamp)
    return _sealed(header, batch.data[HEADER_SIZE:])


def _sealed(header: BatchHeader, body: Buffer) -> Batch:
    """The whole batch, with the CRC that it needs."""
    checked = _CHECKED.pack(*header[5:])
    header = header._replace(crc=crc32c(body, crc32c(checked)))
    return Batch(header, memoryview(b"".join([encode_batch_header(header), body])))


def records_data(batch: Batch, limit: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
    """The bytes of the records, decompressed if they have to be."""
    data, codec = batch.data[HEADER_SIZE:], batch.header.codec
    return decompress(codec, data, limit) if codec else data


def iterate_records(batch: Batch, limit: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """The records of a batch; their number is in the header."""
    header = batch.header
    data = bytes(records_data(batch, limit))
    at = 0
    for _ in range(header.record_count):
        record, at = _decode_record(data, at, header)
        yield record
    if at != len(data):
        raise RemoteProtocolError(f"{len(data) - at} bytes follow the last record")


def _decode_record(data: bytes, at: int, header: BatchHeader) -> tuple[Record, int]:
    size, at = decode_varint(data, at)
    end = at + size
    if size < 0 or end > len(data):
        raise RemoteProtocolError("a record is cut short")
    timestamp_delta, at = decode_varint(data, at + 1)  # after the attributes, which say nothing
    offset_delta, at = decode_varint(data, at)
    key, at = _decode_bytes(data, at)
    value, at = _decode_bytes(data, at)
    count, at = decode_varint(data, at)
    if not 0 <= count <= size:
        raise RemoteProtocolError(f"a record announces {count} headers")
    headers = []
    for _ in range(count):
        name, at = _decode_bytes(data, at)
        if name is None:
            raise RemoteProtocolError("a record header has no key")
        content, at = _decode_bytes(data, at)
        headers.append((name.decode(errors="replace"), content))
    if at != end:
        raise RemoteProtocolError("a record does not end where its length says")
    timestamp = (
        header.max_timestamp
        if header.has_log_append_time
        else header.base_timestamp + timestamp_delta
    )
    return Record(key, value, timestamp, headers, header.base_offset + offset_delta), end


def _decode_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = decode_varint(data, at)
    if size < 0:
        return None, at
    if at + size > len(data):
        raise RemoteProtocolError("a record is cut short")
    return data[at : at + size], at + size


def scan_records(data: Buffer, count: int, *, find_null_key: bool = False) -> Scan:
    """Walk the records, decompressed, without making objects of them.

    There must be `count` of them, one after the other and together as long as `data`, and each has
    to end where the lengths of its key, value and headers say: the checksum only tells that the
    bytes came as they were sent, and a record that cannot be read would stop the log cleaner and
    every consumer. This runs for every record that is produced, hence the short cuts for numbers
    of one and two bytes, and hence comparing them as they are coded: twice the number, and odd if
    it is negative. Records of one shape are checked together (`_count_alike`).
    """
    if count < 1:
        raise RemoteProtocolError(f"a batch announces {count} records")
    data = memoryview(data)
    at, end = 0, len(data)
    is_dense, null_key_index = True, -1
    highest, lowest = _NO_TIMESTAMP_DELTA, -_NO_TIMESTAMP_DELTA
    last_timestamp, lengths = -1, 0
    index = look_at = 0
    pause = _ALIKE_MIN
    try:
        while index < count:
            start = at
            coded = data[at]
            at += 1
            if coded >= 0x80:
                if data[at] < 0x80:
                    coded = coded & 0x7F | data[at] << 7
                    at += 1
                else:
                    coded, at = _decode_long(data, at - 1)
            next_at = at + (coded >> 1)
            lengths |= coded

            coded = data[at + 1]  # after the attributes, which say nothing
            at += 2
            if coded >= 0x80:
                if data[at] < 0x80:
                    coded = coded & 0x7F | data[at] << 7
                    at += 1
                else:
                    coded, at = _decode_long(data, at - 1)
            if coded != last_timestamp:  # records of the same millisecond come together
                last_timestamp = coded
                delta = -(coded >> 1) - 1 if coded & 1 else coded >> 1
                if delta > highest:
                    highest = delta
                if delta < lowest:
                    lowest = delta

            coded = data[at]
            at += 1
            if coded >= 0x80:
                if data[at] < 0x80:
                    coded = coded & 0x7F | data[at] << 7
                    at += 1
                else:
                    coded, at = _decode_long(data, at - 1)
            if coded != index << 1:
                is_dense = False

            coded = data[at]  # the key's length
            at += 1
            if coded >= 0x80:
                if data[at] < 0x80:
                    coded = coded & 0x7F | data[at] << 7
                    at += 1
                else:
                    coded, at = _decode_long(data, at - 1)
            if coded & 1:
                if find_null_key and null_key_index < 0:
                    null_key_index = index
            else:
                at += coded >> 1

            coded = data[at]  # the value's length
            at += 1
            if coded >= 0x80:
                if data[at] < 0x80:
                    coded = coded & 0x7F | data[at] << 7
                    at += 1
                else:
                    coded, at = _decode_long(data, at - 1)
            if not coded & 1:
                at += coded >> 1

            index += 1
            if at + 1 != next_at or data[at]:  # anything but: no headers, and the end
                _check_headers(data, at, next_at)
            elif index >= look_at and count - index >= _ALIKE_MIN:
                alike, deltas = _count_alike(data, start, next_at, index, count)
                if alike:
                    pause = _ALIKE_MIN
                    index += alike
                    next_at += alike * (next_at - start)
                    lowest, highest = min(lowest, *deltas), max(highest, *deltas)
                else:
                    look_at, pause = index + pause, 2 * pause
            at = next_at
    except IndexError:
        raise RemoteProtocolError(f"the data ends before record {count}") from None
    if at != end:
        raise RemoteProtocolError(f"{count} records take {at} bytes of {end}")
    if lengths & 1:
        raise RemoteProtocolError("a record has a negative length")
    return Scan(lowest, highest, is_dense, null_key_index)


def _count_alike(
    data: memoryview, start: int, end: int, index: int, count: int
) -> tuple[int, list[int]]:
    """Count the records that follow the one from `start` to `end`, and have the same shape.

    Return their timestamp deltas as well, each once. The record has no headers; the next one is
    the one with this `index` of `count`.

    Records of one shape have the same lengths, and numbers of as many bytes, so they are a table:
    a byte of a field is a column, every `size`-th byte of the data, which is compared in one step.
    Timestamps may differ; offset deltas have to be those that belong there. If not all records are
    alike, half as many are tried.
    """
    size = end - start
    distant = start + size * _ALIKE_MIN
    if data[start : start + 2] != data[distant : distant + 2]:
        return 0, []  # they have other lengths: most data is like that
    timestamp_at = _varint_end(data, start) + 1
    offset_at = _varint_end(data, timestamp_at)
    key_at = _varint_end(data, offset_at)
    key_size, key_start = decode_varint(data, key_at)
    value_at = key_start + max(key_size, 0)
    offset_columns = _OFFSET_COLUMNS.get(key_at - offset_at)
    if offset_columns is None or offset_at - timestamp_at > 2:
        return 0, []
    equal_at = [*range(start, timestamp_at - 1), *range(key_at, key_start)]
    equal_at += (*range(value_at, _varint_end(data, value_at)), end - 1)
    alike = min(count - index, len(offset_columns[0]) - index, (len(data) - end) // size)
    while alike >= _ALIKE_MIN:
        after = size + alike * size
        for at in equal_at:
            if data[at + size : at + after : size] != data[at : at + 1].tobytes() * alike:
                break
        else:
            for at, expected in enumerate(offset_columns, offset_at):
                if data[at + size : at + after : size] != expected[index : index + alike]:
                    break
            else:
                deltas = _decode_columns(
                    [
                        data[at + size : at + after : size].tobytes()
                        for at in range(timestamp_at, offset_at)
                    ]
                )
                if deltas:
                    return alike, deltas
        alike //= 2
    return 0, []


def _decode_columns(columns: Sequence[bytes]) -> list[int]:
    """The numbers whose coded bytes are in these columns, one or two, each number once.

    The list is empty if some number has fewer bytes than there are columns, or more.
    """
    *others, last = columns
    if not last.isascii() or any(min(column) < 0x80 for column in others):
        return []
    coded = (
        {low & 0x7F | high << 7 for low, high in set(zip(*columns, strict=True))}
        if others
        else set(last)
    )
    return [-(each >> 1) - 1 if each & 1 else each >> 1 for each in coded]


def _varint_end(data: memoryview, at: int) -> int:
    while data[at] >= 0x80:
        at += 1
    return at + 1


def _check_headers(data: Buffer, at: int, end: int) -> None:
    """Refuse a record whose headers, from `at` on, do not end where the record does."""
    count, at = decode_varint(data, at)
    if not 0 <= count <= end - at:
        raise RemoteProtocolError(f"a record announces {count} headers")
    for _ in range(count):
        size, at = decode_varint(data, at)
        if size < 0:
            raise RemoteProtocolError("a record header has no key")
        size, at = decode_varint(data, at + size)
        at += max(size, 0)
    if at != end:
        raise RemoteProtocolError("a record does not end where its length says")


def _decode_long(data: Buffer, at: int) -> tuple[int, int]:
    """A number as it is coded, and the position after it."""
    value, after = decode_varint(data, at)
    return (value << 1 if value >= 0 else (-value << 1) - 1), after


def build_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    last_offset: int | None = None,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    log_append_time: bool = False,
    transactional: bool = False,
    control: bool = False,
) -> Batch:
    """A batch of these records.

    Records without an offset follow each other from `base_offset` on. A batch that was thinned out
    keeps the offsets it took up: give it its old `base_offset` and `last_offset`.
    """
    if not records:
        raise LocalProtocolError("a batch needs a record")
    base_timestamp = records[0].timestamp
    encoded = []
    offset = base_offset
    for record in records:
        offset = record.offset if record.offset >= 0 else offset
        encoded.append(_encode_record(record, offset - base_offset, base_timestamp))
        offset += 1
    body = compress(codec, b"".join(encoded), level)
    attributes = (
        codec
        | log_append_time * _LOG_APPEND_TIME
        | transactional * _TRANSACTIONAL
        | control * _CONTROL
    )
    header = BatchHeader(
        base_offset=base_offset,
        batch_length=HEADER_SIZE - LENGTH_END + len(body),
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        last_offset_delta=(offset - 1 if last_offset is None else last_offset) - base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=max(record.timestamp for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        record_count=len(records),
    )
    return _sealed(header, body)


def thin_batch(
    header: BatchHeader, records: Sequence[Record], *, delete_horizon_ms: int | None = None
) -> Batch:
    """What compaction leaves of a batch: some of its records or none, in its place.

    A delete horizon is kept where the base timestamp otherwise is. A batch without records has
    neither horizon nor codec, as Kafka writes it.
    """
    attributes = header.attributes & ~_DELETE_HORIZON
    base_timestamp, max_timestamp = header.base_timestamp, header.max_timestamp
    if not records:
        attributes &= ~_CODEC_BITS
        base_timestamp = max_timestamp
    elif delete_horizon_ms is not None:
        attributes |= _DELETE_HORIZON
        base_timestamp = delete_horizon_ms
    if records and not header.has_log_append_time:
        max_timestamp = max(record.timestamp for record in records)
    encoded = b"".join(
        _encode_record(record, record.offset - header.base_offset, base_timestamp)
        for record in records
    )
    body = compress(Codec(attributes & _CODEC_BITS), encoded)
    thinned = header._replace(
        batch_length=HEADER_SIZE - LENGTH_END + len(body),
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        record_count=len(records),
    )
    return _sealed(thinned, body)


def _encode_record(record: Record, offset_delta: int, base_timestamp: int) -> bytes:
    parts = [
        b"\0",
        encode_varint(record.timestamp - base_timestamp),
        encode_varint(offset_delta),
        _encode_bytes(record.key),
        _encode_bytes(record.value),
        encode_varint(len(record.headers)),
    ]
    for name, value in record.headers:
        parts += (_encode_bytes(name.encode()), _encode_bytes(value))
    body = b"".join(parts)
    return encode_varint(len(body)) + body


def _encode_bytes(value: bytes | None) -> bytes:
    return encode_varint(-1) if value is None else encode_varint(len(value)) + value
