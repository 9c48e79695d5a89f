"""Produce requests without copying record data, and responses without a walk over the schema.

Measured (`python -m bench protocol`): a request of 100 partitions is decoded in 110 microseconds,
by kio in 430; its response is encoded in 22, by kio in 490. For one partition kio's native reader
is faster (0.9 against 3.6), but copies the record data.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from klamm.errors import RemoteProtocolError
from klamm.protocol.codec.headers import RequestHeader, encode_response_header, framed
from klamm.protocol.codec.large import ITEMS_MAX
from klamm.protocol.codec.primitives import (
    Cursor,
    decode_uvarint,
    encode_count,
    encode_string,
    encode_tagged,
)
from klamm.protocol.fast.fetch import LeaderHint, NodeEndpoint, encode_endpoints

_ACKS_TIMEOUT: Final = struct.Struct(">hi")
_INT32: Final = struct.Struct(">i")
_LEADER: Final = struct.Struct(">iix")
#: A request for one topic, up to its name: whether there is a transactional id, acks and timeout,
#: how many topics, and the length of the name.
_ONE_TOPIC: Final = struct.Struct(">BhiBB")
#: A response about one topic, up to its name: its size, correlation id and no tags, how many
#: topics, and the length of the name. Then come how many partitions, each partition without an
#: error, and the end: no tags of the topic, the throttle time, no tags of the response.
_ONE_TOPIC_RESULT: Final = struct.Struct(">iixBB")
_PARTITION_RESULT: Final = struct.Struct(">ihqqqBxx")
_ONE_TOPIC_RESULT_END: Final = struct.Struct(">xix")
_RESULT: Final = struct.Struct(">ihqqq")
_RESULT_BEFORE_LOG_START: Final = struct.Struct(">ihqq")

_FIRST_WITH_LOG_START: Final = 5
_FIRST_WITH_RECORD_ERRORS: Final = 8
_FIRST_FLEXIBLE: Final = 9
_FIRST_WITH_LEADER: Final = 10
#: Lengths of one byte are below this.
_SHORT: Final = 0x80
#: This many topics and partitions take about a millisecond.
_FEW_ENTRIES: Final = 500


class ManyEntriesError(RemoteProtocolError):
    """A request has more topics and partitions than are decoded here."""


class ProducePartition(NamedTuple):
    """The records for one partition, where they lie in the request's frame."""

    partition: int
    records: memoryview | None


class ProduceTopic(NamedTuple):
    """The partitions of one topic."""

    name: str
    partitions: list[ProducePartition]


class ProduceRequest(NamedTuple):
    """A Produce request of any version."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[ProduceTopic]


class RecordError(NamedTuple):
    """A record that had its batch refused."""

    batch_index: int
    message: str | None


class ProducePartitionResponse(NamedTuple):
    """The result for one partition; fields that a version does not have are left out."""

    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[RecordError] = ()
    error_message: str | None = None
    current_leader: LeaderHint | None = None


class ProduceTopicResponse(NamedTuple):
    """The partitions of one topic."""

    name: str
    partitions: Sequence[ProducePartitionResponse]


class ProduceResponse(NamedTuple):
    """A response to a Produce request of any version."""

    topics: Sequence[ProduceTopicResponse]
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


def decode_produce_request(view: memoryview, at: int, version: int) -> ProduceRequest:
    """Read a body of version 3 or later that starts at `at`."""
    return _decode(view, at, version, ITEMS_MAX)


def decode_short_produce_request(view: memoryview, at: int, version: int) -> ProduceRequest:
    """The same, but raise a ManyEntriesError where decoding would take long."""
    request = _decode_one_topic(view, at) if version >= _FIRST_FLEXIBLE else None
    return request or _decode(view, at, version, _FEW_ENTRIES)


def _decode_one_topic(view: memoryview, at: int) -> ProduceRequest | None:
    """Read a request for a few partitions of one topic, as most are; None for any other.

    It is read up to its tags: whatever comes after them is ignored in other requests too.
    """
    partitions = []
    try:
        is_transactional, acks, timeout_ms, topics, name_size = _ONE_TOPIC.unpack_from(view, at)
        name_at = at + _ONE_TOPIC.size
        at = name_at + name_size - 1
        count = view[at]
        if is_transactional or topics != 2 or not 1 < name_size < _SHORT or not 1 < count < _SHORT:
            return None
        name = str(view[name_at:at], "utf-8", "replace")
        at += 1
        for _ in range(count - 1):
            (partition,) = _INT32.unpack_from(view, at)
            size, start = decode_uvarint(view, at + _INT32.size)
            end = start + size - 1
            if size < 1 or view[end]:
                return None
            partitions.append(ProducePartition(partition, view[start:end]))
            at = end + 1
        if view[at] or view[at + 1]:
            return None
    except (IndexError, struct.error, RemoteProtocolError):
        return None
    return ProduceRequest(None, acks, timeout_ms, [ProduceTopic(name, partitions)])


def _decode(view: memoryview, at: int, version: int, entries_max: int) -> ProduceRequest:
    cursor = Cursor(view, at, version >= _FIRST_FLEXIBLE)
    transactional_id = cursor.nullable_string()
    acks, timeout_ms = cursor.unpack(_ACKS_TIMEOUT)
    topics = []
    left = entries_max
    for _ in range(cursor.count(item_size=2)):
        name = cursor.string()
        partitions = []
        count = cursor.count(item_size=5)
        left -= count + 1
        if left < 0:
            raise ManyEntriesError(f"Produce with more than {entries_max} entries")
        for _ in range(count):
            (partition,) = cursor.unpack(_INT32)
            partitions.append(ProducePartition(partition, cursor.nullable_bytes()))
            cursor.tags()
        cursor.tags()
        topics.append(ProduceTopic(name, partitions))
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def encode_produce_response(header: RequestHeader, response: ProduceResponse) -> bytes:
    """Encode a response, size included."""
    version = header.api_version
    is_flexible = version >= _FIRST_FLEXIBLE
    if is_flexible and len(response.topics) == 1:
        encoded = _encode_one_topic(header.correlation_id, response)
        if encoded is not None:
            return encoded
    layout = _RESULT if version >= _FIRST_WITH_LOG_START else _RESULT_BEFORE_LOG_START
    fixed = layout.pack
    fixed_fields = 5 if layout is _RESULT else 4
    usual_end = _encode_usual_end(version)
    parts = [encode_response_header(header), encode_count(len(response.topics), is_flexible)]
    for topic in response.topics:
        parts.append(encode_string(topic.name, is_flexible))
        parts.append(encode_count(len(topic.partitions), is_flexible))
        for partition in topic.partitions:
            parts.append(fixed(*partition[:fixed_fields]))
            parts.append(_encode_end(partition, version) if partition.error_code else usual_end)
        if is_flexible:
            parts.append(b"\0")
    parts.append(_INT32.pack(response.throttle_time_ms))
    if version >= _FIRST_WITH_LEADER and response.node_endpoints:
        parts.append(encode_endpoints(response.node_endpoints))
    elif is_flexible:
        parts.append(b"\0")
    return framed(parts)


def _encode_one_topic(correlation_id: int, response: ProduceResponse) -> bytes | None:
    """Encode a response about one topic without an error; None for any other."""
    (topic,) = response.topics
    name, count = topic.name.encode(), len(topic.partitions)
    if max(count, len(name)) + 1 >= _SHORT or response.node_endpoints:
        return None
    size = _ONE_TOPIC_RESULT.size + len(name) + 1 + count * _PARTITION_RESULT.size
    size += _ONE_TOPIC_RESULT_END.size - _INT32.size
    parts = [
        _ONE_TOPIC_RESULT.pack(size, correlation_id, 2, len(name) + 1),
        name,
        encode_count(count, is_flexible=True),
    ]
    for partition in topic.partitions:
        if partition.error_code:
            return None
        parts.append(_PARTITION_RESULT.pack(*partition[:5], 1))
    parts.append(_ONE_TOPIC_RESULT_END.pack(response.throttle_time_ms))
    return b"".join(parts)


@lru_cache
def _encode_usual_end(version: int) -> bytes:
    return _encode_end(ProducePartitionResponse(0, 0), version)


def _encode_end(partition: ProducePartitionResponse, version: int) -> bytes:
    """Encode the fields after the offsets, which are set only if there is an error."""
    if version < _FIRST_WITH_RECORD_ERRORS:
        return b""
    is_flexible = version >= _FIRST_FLEXIBLE
    parts = [encode_count(len(partition.record_errors), is_flexible)]
    for batch_index, message in partition.record_errors:
        parts.append(_INT32.pack(batch_index))
        parts.append(encode_string(message, is_flexible))
        if is_flexible:
            parts.append(b"\0")
    parts.append(encode_string(partition.error_message, is_flexible))
    if is_flexible:
        leader = partition.current_leader if version >= _FIRST_WITH_LEADER else None
        parts.append(encode_tagged([(0, _LEADER.pack(*leader))] if leader else []))
    return b"".join(parts)
