"""Metadata responses about all topics, encoded from the packed states of the metadata cache.

Such a response has every partition of the cluster. Their fields are put together from the bytes in
the cache without decoding the numbers.
"""

import struct
from collections.abc import Iterable
from typing import Final, NamedTuple

from klamm.broker.metadata.cache import BrokerNode, ClusterSnapshot, TopicMetadata
from klamm.names import is_internal
from klamm.protocol.codec.headers import RequestHeader, encode_response_header, framed
from klamm.protocol.codec.primitives import encode_count, encode_string
from klamm.protocol.codes import ErrorCode

_FIRST_WITH_RACKS: Final = 1
_FIRST_WITH_CLUSTER_ID: Final = 2
_FIRST_WITH_THROTTLE: Final = 3
_FIRST_WITH_OFFLINE_REPLICAS: Final = 5
_FIRST_WITH_LISTENER_ERRORS: Final = 6
_FIRST_WITH_LEADER_EPOCH: Final = 7
_FIRST_WITH_OPERATIONS: Final = 8
_FIRST_FLEXIBLE: Final = 9
_FIRST_WITH_TOPIC_IDS: Final = 10
_LAST_WITH_CLUSTER_OPERATIONS: Final = 10

_NO_TOPIC_ID: Final = bytes(16)
_NO_THROTTLE: Final = bytes(4)
_pack_int32: Final = struct.Struct(">i").pack
#: Where the leader's id is in a partition of a response.
_LEADER: Final = slice(6, 10)
_pack_error: Final = struct.Struct(">h").pack


class Operations(NamedTuple):
    """The authorized operations of the client, as Kafka's bit fields."""

    topic: int
    cluster: int


def encode_all_topics(
    header: RequestHeader,
    snapshot: ClusterSnapshot,
    listener: str,
    cluster_id: str,
    operations: Operations,
) -> bytes:
    """The frame of a Metadata response about every topic (META-1..4)."""
    version = header.api_version
    is_flexible = version >= _FIRST_FLEXIBLE
    nodes = snapshot.nodes(listener)
    parts = [encode_response_header(header)]
    if version >= _FIRST_WITH_THROTTLE:
        parts.append(_NO_THROTTLE)
    parts.append(encode_count(len(nodes), is_flexible))
    parts += (_encode_node(node, version) for node in nodes)
    if version >= _FIRST_WITH_CLUSTER_ID:
        parts.append(encode_string(cluster_id, is_flexible))
    if version >= _FIRST_WITH_RACKS:
        parts.append(_pack_int32(snapshot.controller_id))
    parts.append(encode_count(snapshot.topic_count, is_flexible))
    leaders = _Leaders(snapshot, nodes, version)
    for topic in snapshot.topics():
        _encode_topic(topic, version, leaders, operations.topic, parts)
    if _FIRST_WITH_OPERATIONS <= version <= _LAST_WITH_CLUSTER_OPERATIONS:
        parts.append(_pack_int32(operations.cluster))
    if is_flexible:
        parts.append(b"\0")
    return framed(parts)


class _Leaders:
    """The leaders that the client can reach, and the errors for partitions of other leaders."""

    def __init__(
        self, snapshot: ClusterSnapshot, nodes: Iterable[BrokerNode], version: int
    ) -> None:
        self._reachable = frozenset(_pack_int32(node.id) for node in nodes)
        self._snapshot = snapshot
        self._knows_listeners = version >= _FIRST_WITH_LISTENER_ERRORS

    def shown(self, records: Iterable[bytes]) -> list[bytes]:
        """The records of a topic, with an error in place of a leader that cannot be reached."""
        reachable = self._reachable
        return [
            record if record[_LEADER] in reachable else self._leaderless(record)
            for record in records
        ]

    def _leaderless(self, record: bytes) -> bytes:
        is_alive = self._snapshot.is_alive(int.from_bytes(record[_LEADER], "big", signed=True))
        if is_alive and self._knows_listeners:
            return _with_leader_error(record, ErrorCode.LISTENER_NOT_FOUND)
        return _with_leader_error(record, ErrorCode.LEADER_NOT_AVAILABLE)


def _encode_node(node: BrokerNode, version: int) -> bytes:
    is_flexible = version >= _FIRST_FLEXIBLE
    encoded = _pack_int32(node.id) + encode_string(node.host, is_flexible) + _pack_int32(node.port)
    if version >= _FIRST_WITH_RACKS:
        encoded += encode_string(node.rack, is_flexible)
    return encoded + b"\0" if is_flexible else encoded


def _encode_topic(
    topic: TopicMetadata,
    version: int,
    leaders: _Leaders,
    operations: int,
    parts: list[bytes],
) -> None:
    is_flexible = version >= _FIRST_FLEXIBLE
    head = _pack_error(ErrorCode.NONE) + encode_string(topic.name, is_flexible)
    if version >= _FIRST_WITH_TOPIC_IDS:
        head += topic.id_bytes or _NO_TOPIC_ID
    if version >= _FIRST_WITH_RACKS:
        head += b"\1" if is_internal(topic.name) else b"\0"
    parts.append(head + encode_count(len(topic), is_flexible))
    shown = leaders.shown(topic.response_records())
    parts += shown if is_flexible else (_before_flexible(record, version) for record in shown)
    if version >= _FIRST_WITH_OPERATIONS:
        parts.append(_pack_int32(operations))
    if is_flexible:
        parts.append(b"\0")


def _with_leader_error(record: bytes, error: int) -> bytes:
    """The record as clients get it while its leader cannot be named to them."""
    return _pack_error(error) + record[2:6] + b"\xff\xff\xff\xff" + record[10:]


def _before_flexible(record: bytes, version: int) -> bytes:
    """A record in the form of versions before 9: four-byte lengths, and no newer fields."""
    head = record[:14] if version >= _FIRST_WITH_LEADER_EPOCH else record[:10]
    arrays = 3 if version >= _FIRST_WITH_OFFLINE_REPLICAS else 2
    at = 14
    for _ in range(arrays):
        count = record[at] - 1
        end = at + 1 + 4 * count
        head += _pack_int32(count) + record[at + 1 : end]
        at = end
    return head
