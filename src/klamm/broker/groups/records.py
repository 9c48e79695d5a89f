"""The records of `__consumer_offsets` as bytes (KIP-211, KIP-345 and their predecessors).

Every key and value opens with the version of its own schema. What is written here is what Kafka
3.9 writes; what is read is all that any release has written, since a compacted topic keeps old
records for as long as nothing replaces them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from klamm.broker.groups.messages import NO_LEADER_EPOCH
from klamm.errors import RemoteProtocolError

OFFSET_KEY_VERSION: Final = 1
GROUP_KEY_VERSION: Final = 2
OFFSET_VALUE_VERSION: Final = 3
#: The last version with a time of expiry of its own, still used where a client asked for one.
EXPIRING_OFFSET_VALUE_VERSION: Final = 1
GROUP_VALUE_VERSION: Final = 3
#: From this version on values are flexible: compact lengths and tagged fields.
FLEXIBLE_VALUE_VERSION: Final = 4
NEWEST_VALUE_VERSION: Final = 4
NO_TIMESTAMP: Final = -1
#: Strings are written with a signed 16-bit length.
MAX_STRING_BYTES: Final = 2**15 - 1

T = TypeVar("T")

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")


class GroupRecord(NamedTuple):
    """A key and what it is set to; None is a tombstone."""

    key: bytes
    value: bytes | None


class OffsetKey(NamedTuple):
    """The key of a committed offset."""

    group_id: str
    topic: str
    partition: int


class GroupKey(NamedTuple):
    """The key of a group's metadata."""

    group_id: str


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The committed offset of a group for one partition."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None  # None: as the broker is configured


@dataclass(frozen=True, slots=True)
class StoredMember:
    """A member in the stored record of a group."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A generation of a group in its stored record."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    state_timestamp_ms: int | None
    members: tuple[StoredMember, ...]


def is_storable(*texts: str | None) -> bool:
    """Whether these fit into a record. Newer requests can carry longer strings than that."""
    return all(text is None or len(text.encode()) <= MAX_STRING_BYTES for text in texts)


def offset_record(key: OffsetKey, committed: CommittedOffset) -> GroupRecord:
    """The record of a committed offset."""
    return GroupRecord(encode_offset_key(key), encode_offset_value(committed))


def offset_tombstone(key: OffsetKey) -> GroupRecord:
    """The tombstone of a committed offset."""
    return GroupRecord(encode_offset_key(key), None)


def group_record(group_id: str, group: StoredGroup) -> GroupRecord:
    """The record of a group's generation."""
    return GroupRecord(encode_group_key(group_id), encode_group_value(group))


def group_tombstone(group_id: str) -> GroupRecord:
    """The tombstone of a group."""
    return GroupRecord(encode_group_key(group_id), None)


def encode_offset_key(key: OffsetKey) -> bytes:
    """Encode the key of a committed offset."""
    return b"".join(
        (
            _INT16.pack(OFFSET_KEY_VERSION),
            _string(key.group_id),
            _string(key.topic),
            _INT32.pack(key.partition),
        )
    )


def encode_group_key(group_id: str) -> bytes:
    """Encode the key of a group's metadata."""
    return _INT16.pack(GROUP_KEY_VERSION) + _string(group_id)


def encode_offset_value(committed: CommittedOffset) -> bytes:
    """Version 3; version 1 if the client asked for a time of expiry, which later ones lack."""
    if committed.expire_timestamp_ms is not None:
        return b"".join(
            (
                _INT16.pack(EXPIRING_OFFSET_VALUE_VERSION),
                _INT64.pack(committed.offset),
                _string(committed.metadata),
                _INT64.pack(committed.commit_timestamp_ms),
                _INT64.pack(committed.expire_timestamp_ms),
            )
        )
    return b"".join(
        (
            _INT16.pack(OFFSET_VALUE_VERSION),
            _INT64.pack(committed.offset),
            _INT32.pack(committed.leader_epoch),
            _string(committed.metadata),
            _INT64.pack(committed.commit_timestamp_ms),
        )
    )


def encode_group_value(group: StoredGroup) -> bytes:
    """Encode the metadata of a group."""
    timestamp_ms = group.state_timestamp_ms
    parts = [
        _INT16.pack(GROUP_VALUE_VERSION),
        _string(group.protocol_type),
        _INT32.pack(group.generation),
        _string(group.protocol),
        _string(group.leader),
        _INT64.pack(NO_TIMESTAMP if timestamp_ms is None else timestamp_ms),
        _INT32.pack(len(group.members)),
    ]
    for member in group.members:
        parts += (
            _string(member.member_id),
            _string(member.instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _INT32.pack(member.rebalance_timeout_ms),
            _INT32.pack(member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        )
    return b"".join(parts)


def decode_key(key: bytes) -> OffsetKey | GroupKey | None:
    """Decode the key of a record; None for a key version that is newer than this code."""
    reader = _Reader(key)
    version = reader.int16()
    if 0 <= version <= OFFSET_KEY_VERSION:
        return OffsetKey(reader.string(), reader.string(), reader.int32())
    if version == GROUP_KEY_VERSION:
        return GroupKey(reader.string())
    return None


def decode_offset_value(value: bytes) -> CommittedOffset:
    """Decode a committed offset of any version."""
    reader, version = _open_value(value)
    return CommittedOffset(
        offset=reader.int64(),
        leader_epoch=reader.int32() if version >= 3 else NO_LEADER_EPOCH,
        metadata=reader.string(),
        commit_timestamp_ms=reader.int64(),
        expire_timestamp_ms=reader.int64() if version == EXPIRING_OFFSET_VALUE_VERSION else None,
    )


def decode_group_value(value: bytes) -> StoredGroup:
    """Decode the metadata of a group, of any version."""
    reader, version = _open_value(value)
    return StoredGroup(
        protocol_type=reader.string(),
        generation=reader.int32(),
        protocol=reader.nullable_string(),
        leader=reader.nullable_string(),
        state_timestamp_ms=_known_time(reader.int64()) if version >= 2 else None,
        members=reader.array(lambda: _decode_member(reader, version)),
    )


def subscribed_topics(subscription: bytes) -> frozenset[str]:
    """The topics that a member of a consumer group subscribes to.

    Read as version 0, which opens all later versions, so that this keeps working as they come.
    """
    reader = _Reader(subscription)
    reader.int16()
    return frozenset(reader.array(reader.string))


def _decode_member(reader: _Reader, version: int) -> StoredMember:
    member_id = reader.string()
    instance_id = reader.nullable_string() if version >= 3 else None
    client_id, client_host = reader.string(), reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else None
    session_timeout_ms = reader.int32()
    subscription, assignment = reader.blob(), reader.blob()
    reader.tagged_fields()
    return StoredMember(
        member_id=member_id,
        instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=(
            session_timeout_ms if rebalance_timeout_ms is None else rebalance_timeout_ms
        ),
        session_timeout_ms=session_timeout_ms,
        subscription=subscription,
        assignment=assignment,
    )


def _known_time(timestamp_ms: int) -> int | None:
    return None if timestamp_ms == NO_TIMESTAMP else timestamp_ms


def _open_value(value: bytes) -> tuple[_Reader, int]:
    reader = _Reader(value)
    version = reader.int16()
    if not 0 <= version <= NEWEST_VALUE_VERSION:
        raise RemoteProtocolError(f"value of unknown version {version} in the offsets topic")
    reader.flexible = version >= FLEXIBLE_VALUE_VERSION
    return reader, version


def _string(text: str | None) -> bytes:
    if text is None:
        return _INT16.pack(-1)
    data = text.encode()
    return _INT16.pack(len(data)) + data


def _bytes(data: bytes) -> bytes:
    return _INT32.pack(len(data)) + data


class _Reader:
    """Decodes the fields of a key or a value one after the other."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self.flexible = False

    def int16(self) -> int:
        return self._unpack(_INT16)

    def int32(self) -> int:
        return self._unpack(_INT32)

    def int64(self) -> int:
        return self._unpack(_INT64)

    def nullable_string(self) -> str | None:
        length = self._length(_INT16)
        if length is None:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError(f"a string that is not UTF-8: {error}") from error

    def string(self) -> str:
        return self._present(self.nullable_string())

    def blob(self) -> bytes:
        return self._take(self._present(self._length(_INT32)))

    def array(self, element: Callable[[], T]) -> tuple[T, ...]:
        count = self._present(self._length(_INT32))
        # An element takes a byte at the least, so a count beyond that is not worth trying.
        if count > len(self._data) - self._at:
            raise RemoteProtocolError(f"an array of {count} elements is cut short")
        return tuple(element() for _ in range(count))

    def tagged_fields(self) -> None:
        """Skip what a later release may have added."""
        if not self.flexible:
            return
        for _ in range(self._varint()):
            self._varint()
            self._take(self._varint())

    def _length(self, fixed: struct.Struct) -> int | None:
        length = self._varint() - 1 if self.flexible else self._unpack(fixed)
        return None if length < 0 else length

    def _varint(self) -> int:
        value = 0
        for shift in range(0, 35, 7):
            byte = self._take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise RemoteProtocolError("a variable-length number of more than five bytes")

    def _unpack(self, field: struct.Struct) -> int:
        value: int = field.unpack(self._take(field.size))[0]
        return value

    def _take(self, length: int) -> bytes:
        start, self._at = self._at, self._at + length
        if self._at > len(self._data):
            raise RemoteProtocolError(f"cut short: {length} bytes wanted at {start}")
        return self._data[start : self._at]

    @staticmethod
    def _present(value: T | None) -> T:
        if value is None:
            raise RemoteProtocolError("null where a value is required")
        return value
