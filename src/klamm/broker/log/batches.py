"""Stand-in."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from typing import NamedTuple

from crc32c import crc32c

from klamm.protocol.varints import decode_varint, encode_varint

_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_SIZE = 61


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    partition_leader_epoch: int
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

    @classmethod
    def parse(cls, buffer, at: int = 0) -> BatchHeader:
        return cls._make(_HEADER.unpack_from(buffer, at))

    @property
    def size(self) -> int:
        return self.batch_length + 12

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def codec(self) -> int:
        return self.attributes & 7

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & 16)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & 32)


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple = ()


def iter_records(batch) -> Iterator[Record]:
    h = BatchHeader.parse(batch)
    body = bytes(batch[61:])
    if h.codec == 1:
        body = gzip.decompress(body)
    at = 0
    for _ in range(h.record_count):
        n, at = decode_varint(body, at)
        end = at + n
        at += 1
        ts, at = decode_varint(body, at)
        od, at = decode_varint(body, at)
        kl, at = decode_varint(body, at)
        key = None
        if kl >= 0:
            key, at = body[at : at + kl], at + kl
        vl, at = decode_varint(body, at)
        value = None
        if vl >= 0:
            value, at = body[at : at + vl], at + vl
        yield Record(
            h.base_offset + od,
            h.max_timestamp if h.attributes & 8 else h.base_timestamp + ts,
            key,
            value,
        )
        at = end


def build_batch(
    records,
    *,
    base_offset=0,
    leader_epoch=-1,
    codec=0,
    producer_id=-1,
    producer_epoch=-1,
    base_sequence=-1,
    attributes=0,
    last_offset=None,
    base_timestamp=None,
    max_timestamp=None,
) -> bytes:
    records = list(records)
    body = b""
    bt = records[0].timestamp if base_timestamp is None else base_timestamp
    for r in records:
        one = b"\0" + encode_varint(r.timestamp - bt) + encode_varint(r.offset - base_offset)
        for f in (r.key, r.value):
            one += encode_varint(-1) if f is None else encode_varint(len(f)) + f
        one += encode_varint(0)
        body += encode_varint(len(one)) + one
    if codec == 1:
        body = gzip.compress(body)
    last = records[-1].offset if last_offset is None else last_offset
    mt = max(r.timestamp for r in records) if max_timestamp is None else max_timestamp
    tail = _HEADER.pack(
        base_offset,
        49 + len(body),
        leader_epoch,
        2,
        0,
        attributes | codec,
        last - base_offset,
        bt,
        mt,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    b = bytearray(tail + body)
    struct.pack_into(">I", b, 17, crc32c(bytes(b[21:])))
    return bytes(b)


class Marker(NamedTuple):
    is_abort: bool
    coordinator_epoch: int


def decode_marker(header: BatchHeader, body) -> Marker | None:
    for r in iter_records(b"\0" * 57 + struct.pack(">i", header.record_count) + bytes(body)):
        return Marker(struct.unpack(">hh", r.key)[1] == 0, struct.unpack(">hi", r.value)[1])
    return None
