"""Metadata responses, encoded from the packed states of the metadata cache.

Such a response may have every partition of the cluster: clients ask for all topics, or name all
that they use. The fields are put together from the bytes in the cache without decoding the numbers.
"""

import struct
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
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


#: Authorized operations that were not asked for.
NOT_ASKED: Final = -(1 << 31)


class FoundTopic(NamedTuple):
    """What is known of a topic that a client has asked for, or the error for it."""

    name: str | None
    error: ErrorCode = ErrorCode.NONE
    topic_id: uuid.UUID | None = None
    #: Without an error: the topic in the cache.
    topic: TopicMetadata | None = None


class MetadataEncoder:
    """Encodes one Metadata response, topic by topic (META-1..4)."""

    def __init__(
        self,
        header: RequestHeader,
        snapshot: ClusterSnapshot,
        listener: str,
        cluster_id: str,
        cluster_operations: int = NOT_ASKED,
    ) -> None:
        """`cluster_operations` are those that the client may do, as Kafka's bit field."""
        self._header = header
        self._snapshot = snapshot
        self._nodes = snapshot.nodes(listener)
        self._cluster_id = cluster_id
        self._cluster_operations = cluster_operations
        self._is_flexible = header.api_version >= _FIRST_FLEXIBLE
        self._leaders = _Leaders(snapshot, self._nodes, header.api_version)
        self._topics: list[bytes] = []
        self._topic_count = 0
        #: How often the response has each error code.
        self.errors: Counter[int] = Counter()

    def add(self, found: FoundTopic, operations: int = NOT_ASKED) -> None:
        """Add a topic, with the operations that the client may do with it."""
        version, is_flexible = self._header.api_version, self._is_flexible
        topic = found.topic
        head = _pack_error(found.error) + encode_string(found.name, is_flexible)
        if version >= _FIRST_WITH_TOPIC_IDS:
            given = b"" if found.topic_id is None else found.topic_id.bytes
            head += (given if topic is None else topic.id_bytes) or _NO_TOPIC_ID
        if version >= _FIRST_WITH_RACKS:
            head += b"\1" if found.name is not None and is_internal(found.name) else b"\0"
        records: Sequence[bytes] = ()
        if topic is not None:
            records = self._leaders.shown(topic.response_records(), self.errors)
        self.errors[found.error] += 1
        self._topics.append(head + encode_count(len(records), is_flexible))
        if is_flexible:
            self._topics += records
        else:
            self._topics += (_before_flexible(record, version) for record in records)
        if version >= _FIRST_WITH_OPERATIONS:
            self._topics.append(_pack_int32(operations))
        if is_flexible:
            self._topics.append(b"\0")
        self._topic_count += 1

    def frame(self) -> bytes:
        """The frame of the response."""
        version, is_flexible = self._header.api_version, self._is_flexible
        parts = [encode_response_header(self._header)]
        if version >= _FIRST_WITH_THROTTLE:
            parts.append(_NO_THROTTLE)
        parts.append(encode_count(len(self._nodes), is_flexible))
        parts += (_encode_node(node, version) for node in self._nodes)
        if version >= _FIRST_WITH_CLUSTER_ID:
            parts.append(encode_string(self._cluster_id, is_flexible))
        if version >= _FIRST_WITH_RACKS:
            parts.append(_pack_int32(self._snapshot.controller_id))
        parts.append(encode_count(self._topic_count, is_flexible))
        parts += self._topics
        if _FIRST_WITH_OPERATIONS <= version <= _LAST_WITH_CLUSTER_OPERATIONS:
            parts.append(_pack_int32(self._cluster_operations))
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

    def shown(self, records: list[bytes], errors: Counter[int]) -> list[bytes]:
        """The records of a topic, with an error in place of a leader that cannot be reached."""
        reachable = self._reachable
        lost = [at for at, record in enumerate(records) if record[_LEADER] not in reachable]
        errors[ErrorCode.NONE] += len(records) - len(lost)
        for at in lost:
            error = self._error_of(records[at])
            errors[error] += 1
            records[at] = _with_leader_error(records[at], error)
        return records

    def _error_of(self, record: bytes) -> ErrorCode:
        is_alive = self._snapshot.is_alive(int.from_bytes(record[_LEADER], "big", signed=True))
        if is_alive and self._knows_listeners:
            return ErrorCode.LISTENER_NOT_FOUND
        return ErrorCode.LEADER_NOT_AVAILABLE


def _encode_node(node: BrokerNode, version: int) -> bytes:
    is_flexible = version >= _FIRST_FLEXIBLE
    encoded = _pack_int32(node.id) + encode_string(node.host, is_flexible) + _pack_int32(node.port)
    if version >= _FIRST_WITH_RACKS:
        encoded += encode_string(node.rack, is_flexible)
    return encoded + b"\0" if is_flexible else encoded


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
