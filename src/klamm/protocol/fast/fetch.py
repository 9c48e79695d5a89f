"""Fetch: its messages in a form that does not depend on the version, and its requests as bytes.

Requests of the flexible versions are read by hand if they are as nearly all are: few partitions and
no unknown tags. Others are read by kio, whose native reader is faster for many partitions; only the
fields that moved between versions are brought to one place. `fetch_response.py` has the responses.

Measured (`python -m bench protocol`): a request of 100 partitions is decoded in 26 microseconds, by
kio alone, in one form for each version, in 20. A request of one partition takes 3 by hand, and 8
with kio.
"""

import struct
from collections.abc import Sequence
from datetime import timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from klamm.errors import LocalProtocolError
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.headers import (
    RequestHeader,
    encode_request_header,
    framed,
)
from klamm.protocol.codec.large import read_large
from klamm.protocol.codec.primitives import (
    encode_count,
    encode_string,
    encode_tagged,
)
from klamm.protocol.schema.lookup import message_reader, message_schema

FIRST_WITH_SESSIONS: Final = 7
FIRST_FLEXIBLE: Final = 12
FIRST_WITH_TOPIC_IDS: Final = 13
_FIRST_WITH_REPLICA_STATE: Final = 15

_INT32: Final = struct.Struct(">i")

#: A request up to its topics; before version 15 it begins with the id of the replica.
_REQUEST_TOP: Final = struct.Struct(">iiibii")
_REQUEST_TOP_WITH_REPLICA: Final = struct.Struct(">iiiibii")
#: A partition of a request, and the number of its tags.
REQUESTED: Final = struct.Struct(">iiqiqiB")
#: The tagged field with the state of the replica: how many tags there are, its tag and its size,
#: the id and the epoch, and the number of tags in it.
_REPLICA_STATE: Final = struct.Struct(">BBBiqB")
_REPLICA_STATE_HEAD: Final = (1, 1, 13)
#: A request of about 16 partitions; kio reads larger ones faster.
_SHORT_REQUEST_BYTES: Final = 600
#: Lengths of one byte are below this.
_SHORT: Final = 0x80

_NO_UUID: Final = bytes(16)
_MILLISECOND: Final = timedelta(milliseconds=1)
_REMEMBERED_IDS: Final = 4096


class LeaderHint(NamedTuple):
    """The current leader of a partition; -1 if it is unknown."""

    leader_id: int
    leader_epoch: int


class NodeEndpoint(NamedTuple):
    """The address of a leader that a hint names."""

    node_id: int
    host: str
    port: int
    rack: str | None


def encode_endpoints(endpoints: Sequence[NodeEndpoint]) -> bytes:
    """Encode the tagged section at the end of a response that names endpoints, which are tag 0."""
    parts = [encode_count(len(endpoints), is_flexible=True)]
    for node_id, host, port, rack in endpoints:
        parts += (
            _INT32.pack(node_id),
            encode_string(host, is_flexible=True),
            _INT32.pack(port),
            encode_string(rack, is_flexible=True),
            b"\0",
        )
    return encode_tagged([(0, b"".join(parts))])


class Placeholder(Protocol):
    """Record data that is sent from where it lies, between the encoded chunks."""

    @property
    def size(self) -> int:
        """How many bytes will be sent in its place."""


Chunk: TypeAlias = bytes | Placeholder


class FetchPartition(Protocol):
    """One partition of a request: kio's own object, or FetchPartitionRequest."""

    @property
    def partition(self) -> int: ...
    @property
    def current_leader_epoch(self) -> int: ...
    @property
    def fetch_offset(self) -> int: ...
    @property
    def last_fetched_epoch(self) -> int: ...
    @property
    def log_start_offset(self) -> int: ...
    @property
    def partition_max_bytes(self) -> int: ...


class FetchPartitionRequest(NamedTuple):
    """The same, read by hand, or of a version that did not have all the fields."""

    partition: int
    current_leader_epoch: int
    fetch_offset: int
    last_fetched_epoch: int
    log_start_offset: int
    partition_max_bytes: int


class FetchTopic(NamedTuple):
    """The partitions of a topic that is named, or from version 13 on, known by its id."""

    name: str | None
    topic_id: UUID | None
    partitions: Sequence[FetchPartition]


class ForgottenTopic(NamedTuple):
    """Partitions that leave an incremental session."""

    name: str | None
    topic_id: UUID | None
    partitions: Sequence[int]


class FetchRequest(NamedTuple):
    """A Fetch request of any version."""

    replica_id: int  # -1: a consumer
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: Sequence[FetchTopic]
    forgotten_topics: Sequence[ForgottenTopic]
    rack_id: str


class AbortedTransaction(NamedTuple):
    """A transaction whose records a read-committed consumer must skip."""

    producer_id: int
    first_offset: int


class EpochEndOffset(NamedTuple):
    """The largest epoch that a follower and its leader share, and where it ended."""

    epoch: int
    end_offset: int


class SnapshotId(NamedTuple):
    """A snapshot of the metadata log: the offset after its last record, and that one's epoch."""

    end_offset: int
    epoch: int


class FetchPartitionResponse(NamedTuple):
    """One partition of a response; fields that a version does not have are left out."""

    partition: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    records: bytes | memoryview | Placeholder | None = b""
    aborted_transactions: Sequence[AbortedTransaction] | None = None
    preferred_read_replica: int = -1
    diverging_epoch: EpochEndOffset | None = None
    current_leader: LeaderHint | None = None
    #: Of a KRaft controller: where to read what came before the log; klamm's brokers have none.
    snapshot_id: SnapshotId | None = None


class FetchTopicResponse(NamedTuple):
    """The partitions of one topic, which is named as the request's version names topics."""

    name: str | None
    topic_id: UUID | None
    partitions: Sequence[FetchPartitionResponse]


class FetchResponse(NamedTuple):
    """A response to a Fetch request of any version."""

    topics: Sequence[FetchTopicResponse]
    error_code: int = 0
    session_id: int = 0
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = ()


def encode_fetch_request(header: RequestHeader, request: FetchRequest) -> bytes:
    """Encode a request of a flexible version, size included."""
    version = header.api_version
    if version < FIRST_FLEXIBLE:
        raise LocalProtocolError(f"Fetch version {version} is not sent")
    has_state = version >= _FIRST_WITH_REPLICA_STATE
    parts = [encode_request_header(header)]
    if has_state:
        parts.append(_REQUEST_TOP.pack(*request[2:8]))
    else:
        parts.append(_REQUEST_TOP_WITH_REPLICA.pack(request.replica_id, *request[2:8]))
    parts.append(encode_count(len(request.topics), is_flexible=True))
    for topic in request.topics:
        parts += encode_requested(topic, version)
    parts.append(encode_count(len(request.forgotten_topics), is_flexible=True))
    for forgotten in request.forgotten_topics:
        parts.append(encode_topic_key(forgotten, version))
        parts.append(encode_count(len(forgotten.partitions), is_flexible=True))
        parts.append(struct.pack(f">{len(forgotten.partitions)}ix", *forgotten.partitions))
    parts.append(encode_string(request.rack_id, is_flexible=True))
    if has_state:
        parts.append(
            _REPLICA_STATE.pack(*_REPLICA_STATE_HEAD, request.replica_id, request.replica_epoch, 0)
        )
    else:
        parts.append(b"\0")
    return framed(parts)


def encode_requested(topic: FetchTopic, version: int) -> list[bytes]:
    """The parts of a request of a flexible version that are about one topic."""
    return [
        encode_topic_key(topic, version),
        encode_count(len(topic.partitions), is_flexible=True),
        *(
            REQUESTED.pack(
                each.partition,
                each.current_leader_epoch,
                each.fetch_offset,
                each.last_fetched_epoch,
                each.log_start_offset,
                each.partition_max_bytes,
                0,
            )
            for each in topic.partitions
        ),
        b"\0",
    ]


def request_topics_at(header: RequestHeader) -> int:
    """Where the topics of a flexible request begin; the session epoch is just before them."""
    has_state = header.api_version >= _FIRST_WITH_REPLICA_STATE
    top = _REQUEST_TOP if has_state else _REQUEST_TOP_WITH_REPLICA
    return len(encode_request_header(header)) + top.size


def decode_fetch_request(view: memoryview, at: int, version: int) -> FetchRequest:
    """Read a body, by hand or with kio, into the form that handlers know."""
    if version >= FIRST_FLEXIBLE and len(view) - at <= _SHORT_REQUEST_BYTES:
        request = _decode_usual(view, at, version)
        if request is not None:
            return request
    body, _ = message_reader(ApiKey.FETCH, version, "request")(view, at)
    return _fetch_request(body, version)


def decode_large_fetch_request(view: memoryview, at: int, version: int) -> FetchRequest:
    """The same for a request of very many partitions, beside the event loop."""
    return _fetch_request(
        read_large(message_schema(ApiKey.FETCH, version, "request"), view, at), version
    )


def _decode_usual(view: memoryview, at: int, version: int) -> FetchRequest | None:
    """Read a request with few partitions and no unknown tags; None for any other."""
    replica_id = replica_epoch = -1
    topics = []
    try:
        if version >= _FIRST_WITH_REPLICA_STATE:
            top: tuple[int, ...] = _REQUEST_TOP.unpack_from(view, at)
            at += _REQUEST_TOP.size
        else:
            top = _REQUEST_TOP_WITH_REPLICA.unpack_from(view, at)
            at += _REQUEST_TOP_WITH_REPLICA.size
            replica_id, top = top[0], top[1:]
        topic_count = view[at]
        at += 1
        if not 0 < topic_count < _SHORT:
            return None
        for _ in range(topic_count - 1):
            name, topic_id, at = _decode_topic_key(view, at, version)
            count = view[at]
            at += 1
            if not 0 < count < _SHORT:
                return None
            partitions = []
            for _ in range(count - 1):
                *fields, tags = REQUESTED.unpack_from(view, at)
                at += REQUESTED.size
                if tags:
                    return None
                partitions.append(FetchPartitionRequest(*fields))
            if view[at]:
                return None
            at += 1
            topics.append(FetchTopic(name, topic_id, partitions))
        # Partitions are seldom forgotten.
        if view[at] != 1 or not 0 < view[at + 1] < _SHORT:
            return None
        rack_end = at + 1 + view[at + 1]
        rack_id = str(view[at + 2 : rack_end], "utf-8")
        if view[rack_end]:
            *head, replica_id, replica_epoch, tags = _REPLICA_STATE.unpack_from(view, rack_end)
            if tuple(head) != _REPLICA_STATE_HEAD or tags or version < _FIRST_WITH_REPLICA_STATE:
                return None
    except (IndexError, struct.error, UnicodeDecodeError, _UnusualError):
        return None
    max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = top
    return FetchRequest(
        replica_id,
        replica_epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        [],
        rack_id,
    )


class _UnusualError(Exception):
    """A topic is not as nearly all are."""


def _decode_topic_key(
    view: memoryview, at: int, version: int
) -> tuple[str | None, UUID | None, int]:
    """The name or the id of a topic, and the position after it."""
    if version >= FIRST_WITH_TOPIC_IDS:
        return None, topic_id_of(bytes(view[at : at + 16])), at + 16
    end = at + view[at]
    if not at < end < at + _SHORT:
        raise _UnusualError
    return str(view[at + 1 : end], "utf-8"), None, end


@lru_cache(_REMEMBERED_IDS)
def topic_id_of(raw: bytes) -> UUID | None:
    """A topic id; None if it is zero. Making one takes longer than all else about a partition."""
    return None if raw == _NO_UUID else UUID(bytes=raw)


def _fetch_request(body: Any, version: int) -> FetchRequest:
    has_sessions = version >= FIRST_WITH_SESSIONS
    replica: Any = getattr(body, "replica_state", body)
    return FetchRequest(
        replica_id=replica.replica_id,
        replica_epoch=getattr(replica, "replica_epoch", -1),
        max_wait_ms=body.max_wait // _MILLISECOND,
        min_bytes=body.min_bytes,
        max_bytes=body.max_bytes,
        isolation_level=body.isolation_level,
        session_id=body.session_id if has_sessions else 0,
        session_epoch=body.session_epoch if has_sessions else -1,
        topics=[
            FetchTopic(*_topic_key(topic), _partitions(topic.partitions, version))
            for topic in body.topics
        ],
        forgotten_topics=[
            ForgottenTopic(*_topic_key(topic), topic.partitions)
            for topic in (body.forgotten_topics_data if has_sessions else ())
        ],
        rack_id=getattr(body, "rack_id", ""),
    )


def _topic_key(topic: Any) -> tuple[str | None, UUID | None]:
    return getattr(topic, "topic", None), getattr(topic, "topic_id", None)


def _partitions(partitions: Sequence[Any], version: int) -> Sequence[FetchPartition]:
    if version >= FIRST_FLEXIBLE:
        return partitions
    return [
        FetchPartitionRequest(
            each.partition,
            getattr(each, "current_leader_epoch", -1),
            each.fetch_offset,
            -1,
            getattr(each, "log_start_offset", -1),
            each.partition_max_bytes,
        )
        for each in partitions
    ]


def encode_topic_key(
    topic: FetchTopic | ForgottenTopic | FetchTopicResponse, version: int
) -> bytes:
    if version >= FIRST_WITH_TOPIC_IDS:
        return _NO_UUID if topic.topic_id is None else topic.topic_id.bytes
    if topic.name is None:
        raise LocalProtocolError(f"Fetch version {version} needs topic names")
    return encode_string(topic.name, version >= FIRST_FLEXIBLE)
