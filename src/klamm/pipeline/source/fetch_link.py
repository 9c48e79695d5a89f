"""A connection to one broker for Fetch requests about partitions that it leads."""

import contextlib
import socket
import struct
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from klamm.errors import RemoteProtocolError, UnavailableError
from klamm.net.secure import INSECURE, SecureClient
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.frames import decode_response, encode_request
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode
from klamm.protocol.fast.fetch import FetchPartitionResponse

_SIZE: Final = struct.Struct(">i")
_LAST_BY_NAME: Final = 12
_CONSUMER: Final = -1
_NO_SESSION: Final = 0
_OUTSIDE_OF_SESSIONS: Final = -1
#: Java's defaults, but for the sizes: 1 MB for a partition is little when there is only one, and
#: tasks have as much in memory as one answer holds.
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
    """At most one request is under way. Whatever goes wrong is an `UnavailableError`."""

    def __init__(
        self, address: Address, kafka: Mapping[str, str], secure: SecureClient = INSECURE
    ) -> None:
        self.address = address
        self._kafka = kafka
        self._secure = secure
        #: When to authenticate again, for sessions that end.
        self._login_at: float | None = None
        self._correlation_id = 0
        self._asked: tuple[RequestHeader, Sequence[Wish]] | None = None
        timeout_ms = kafka.get("socket.timeout.ms")
        timeout_s = _TIMEOUT_S if timeout_ms is None else int(timeout_ms) / 1000
        with self._failing():
            self._socket = socket.create_connection(address, timeout_s)
        with self._failing():
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = secure.wrap(self._socket, address[0])
            self._version = self._agree()
            if secure.logs_in:
                self._log_in()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.close()

    @property
    def goes_by_ids(self) -> bool:
        """Whether the broker notices that a topic is another one of the same name."""
        return self._version > _LAST_BY_NAME

    def ask(self, wishes: Sequence[Wish]) -> None:
        """Send a request now whose answer is wanted later."""
        assert self._asked is None, "an answer has not been read"
        version = self._version
        if any(each.topic_id is None for each in wishes):
            version = min(version, _LAST_BY_NAME)
        with self._failing():
            if self._login_at is not None and time.monotonic() >= self._login_at:
                self._log_in()
            header = self._header(ApiKey.FETCH, version)
            self._socket.sendall(encode_request(header, self._values(wishes)))
        self._asked = header, wishes

    def answer(self) -> dict[tuple[str, int], FetchPartitionResponse]:
        """What the broker says about each partition that it was asked for, by name."""
        assert self._asked is not None, "nothing was asked"
        (header, wishes), self._asked = self._asked, None
        with self._failing():
            response = decode_response(header, self._receive())
        if response.error_code:
            code = ErrorCode.of(response.error_code)
            raise UnavailableError(f"{self._name} ({code.name}: {code.message})")
        names = {each.topic_id: each.topic for each in wishes}
        return {
            (topic.name or names[topic.topic_id], each.partition): each
            for topic in response.topics
            for each in topic.partitions
        }

    def _log_in(self) -> None:
        """Authenticate, for the first time or again before the session ends (SEC-5)."""
        steps = self._secure.login()
        try:
            api, version, values = next(steps)
            while True:
                header = self._header(api, version)
                self._socket.sendall(encode_request(header, values))
                api, version, values = steps.send(decode_response(header, self._receive()))
        except StopIteration as done:
            self._login_at = done.value

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

    def _header(self, api: ApiKey, version: int) -> RequestHeader:
        self._correlation_id += 1
        return RequestHeader(api, version, self._correlation_id, self._kafka["client.id"])

    def _agree(self) -> int:
        """The newest version of Fetch that both know; from 13 on topics go by their ids."""
        header = self._header(ApiKey.API_VERSIONS, 0)
        self._socket.sendall(encode_request(header, {}))
        offered = {each.api_key: each for each in decode_response(header, self._receive()).api_keys}
        ours, theirs = APIS[ApiKey.FETCH], offered.get(ApiKey.FETCH)
        version = min(ours.max_version, theirs.max_version) if theirs else -1
        if theirs is None or version < max(ours.min_version, theirs.min_version):
            raise RemoteProtocolError(f"the broker at {self._name} has no Fetch that klamm knows")
        return version

    def _receive(self) -> memoryview:
        (size,) = _SIZE.unpack(self._read(_SIZE.size))
        if size < 0:
            raise RemoteProtocolError(f"what answers at {self._name} is not a Kafka broker")
        return self._read(size)

    def _read(self, size: int) -> memoryview:
        # A buffer of its own for each answer: Arrow may go on using it.
        content = memoryview(bytearray(size))
        at = 0
        while at < size:
            count = self._socket.recv_into(content[at:])
            if not count:
                raise ConnectionError("the connection was closed")
            at += count
        return content.toreadonly()

    @property
    def _name(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise UnavailableError(f"{self._name} ({reason})") from error
