"""A connection to one broker for Fetch requests about partitions that it leads."""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from klamm.errors import UnavailableError
from klamm.net.blocking import BlockingConnection
from klamm.net.secure import INSECURE, SecureClient
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode
from klamm.protocol.fast.fetch import FetchPartitionResponse

#: The last version that names topics; from 13 on Fetch has their ids.
_LAST_BY_NAME: Final = 12
_CONSUMER: Final = -1
_NO_SESSION: Final = 0
_OUTSIDE_OF_SESSIONS: Final = -1
#: Java's defaults, but for the sizes: 1 MB for a partition is little when there is only one, and
#: a task keeps one response in memory.
_FETCH_BYTES: Final = 4 << 20
_SHARED_FETCH_BYTES: Final = 16 << 20
_SHARE_BYTES: Final = 1 << 20
_TIMEOUT_S: Final = 30.0
_WAIT_MS: Final = 500

Address: TypeAlias = tuple[str, int]


class Wish(NamedTuple):
    """A partition that the broker leads, and the offset from which on records are wanted."""

    topic: str
    topic_id: uuid.UUID | None
    partition: int
    position: int


class FetchLink:
    """Sends the next Fetch request while its caller decodes the response to the last one.

    At most one request is pending. A failure of the connection is an `UnavailableError`.
    """

    def __init__(
        self, address: Address, kafka: Mapping[str, str], secure: SecureClient = INSECURE
    ) -> None:
        self._kafka = kafka
        timeout_ms = kafka.get("socket.timeout.ms")
        self._timeout_s = _TIMEOUT_S if timeout_ms is None else int(timeout_ms) / 1000
        self._connection = BlockingConnection(*address, kafka["client.id"], secure)
        self._version = self._connection.version(ApiKey.FETCH, self._timeout_s)
        self._pending: tuple[RequestHeader, Sequence[Wish]] | None = None

    def close(self) -> None:
        self._connection.close()

    @property
    def goes_by_ids(self) -> bool:
        """Whether Fetch requests name topics by id, so that a recreated topic is noticed."""
        return self._version > _LAST_BY_NAME

    def send(self, wishes: Sequence[Wish]) -> None:
        """Send a request; `receive` reads its response."""
        assert self._pending is None, "the last response has not been read"
        version = self._version
        if any(each.topic_id is None for each in wishes):
            version = min(version, _LAST_BY_NAME)
        values = self._values(wishes)
        header = self._connection.begin(ApiKey.FETCH, version, values, self._timeout_s)
        self._pending = header, wishes

    def receive(self) -> dict[tuple[str, int], FetchPartitionResponse]:
        """The response to the last request, by topic and partition."""
        assert self._pending is not None, "no request was sent"
        (header, wishes), self._pending = self._pending, None
        response = self._connection.finish(header)
        if response.error_code:
            code = ErrorCode.of(response.error_code)
            where = f"{self._connection.host}:{self._connection.port}"
            raise UnavailableError(f"{where} ({code.name}: {code.message})")
        names = {each.topic_id: each.topic for each in wishes}
        return {
            (topic.name or names[topic.topic_id], each.partition): each
            for topic in response.topics
            for each in topic.partitions
        }

    def _values(self, wishes: Sequence[Wish]) -> dict[str, Any]:
        """A request, in the form of `klamm.protocol.codec.encoding`."""
        kafka = self._kafka
        is_shared = len(wishes) > 1
        share = int(
            kafka.get("max.partition.fetch.bytes", _SHARE_BYTES if is_shared else _FETCH_BYTES)
        )
        size = max(share, _SHARED_FETCH_BYTES if is_shared else _FETCH_BYTES)
        topics: dict[str, dict[str, Any]] = {}
        for topic, topic_id, partition, position in wishes:
            entry = topics.get(topic)
            if entry is None:
                entry = topics[topic] = {"topic": topic, "topic_id": topic_id, "partitions": []}
            entry["partitions"].append(
                {
                    "partition": partition,
                    "current_leader_epoch": -1,
                    "fetch_offset": position,
                    "last_fetched_epoch": -1,
                    "log_start_offset": -1,
                    "partition_max_bytes": share,
                }
            )
        return {
            "replica_id": _CONSUMER,
            "replica_state": {"replica_id": _CONSUMER, "replica_epoch": -1},
            "max_wait": int(kafka.get("fetch.wait.max.ms", _WAIT_MS)),
            "min_bytes": int(kafka.get("fetch.min.bytes", 1)),
            "max_bytes": int(kafka.get("fetch.max.bytes", size)),
            "isolation_level": int(kafka["isolation.level"] == "read_committed"),
            "session_id": _NO_SESSION,
            "session_epoch": _OUTSIDE_OF_SESSIONS,
            "topics": list(topics.values()),
            "forgotten_topics_data": [],
            "rack_id": "",
        }
