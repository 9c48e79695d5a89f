"""A connection to the leader of one partition, for Fetch requests about that partition."""

import contextlib
import socket
import struct
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from klamm.errors import RemoteProtocolError, UnavailableError
from klamm.net.secure import INSECURE, SecureClient
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.frames import decode_response, encode_request
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.fast.fetch import FetchPartitionResponse

_SIZE: Final = struct.Struct(">i")
_LAST_BY_NAME: Final = 12
_CONSUMER: Final = -1
_NO_SESSION: Final = 0
_OUTSIDE_OF_SESSIONS: Final = -1
#: Java's defaults, but for the size: 1 MB for a partition is little when there is only one.
_FETCH_BYTES: Final = 4 << 20
_TIMEOUT_S: Final = 30.0
_WAIT_MS: Final = 500


@dataclass(frozen=True, slots=True)
class Wish:
    """What every request on a link asks for, apart from the offset."""

    topic: str
    topic_id: uuid.UUID | None
    partition: int
    kafka: Mapping[str, str]

    def values(self, position: int) -> dict[str, Any]:
        """A request, in the form of `klamm.protocol.codec.encoding`."""
        kafka = self.kafka
        size = int(kafka.get("max.partition.fetch.bytes", _FETCH_BYTES))
        return {
            "replica_id": _CONSUMER,
            "replica_state": {"replica_id": _CONSUMER, "replica_epoch": -1},
            "max_wait": int(kafka.get("fetch.wait.max.ms", _WAIT_MS)),
            "min_bytes": int(kafka.get("fetch.min.bytes", 1)),
            "max_bytes": int(kafka.get("fetch.max.bytes", max(size, _FETCH_BYTES))),
            "isolation_level": int(kafka["isolation.level"] == "read_committed"),
            "session_id": _NO_SESSION,
            "session_epoch": _OUTSIDE_OF_SESSIONS,
            "topics": [
                {
                    "topic": self.topic,
                    "topic_id": self.topic_id,
                    "partitions": [
                        {
                            "partition": self.partition,
                            "current_leader_epoch": -1,
                            "fetch_offset": position,
                            "last_fetched_epoch": -1,
                            "log_start_offset": -1,
                            "partition_max_bytes": size,
                        }
                    ],
                }
            ],
            "forgotten_topics_data": [],
            "rack_id": "",
        }


class LeaderLink:
    """At most one request is under way. Whatever goes wrong is an `UnavailableError`."""

    def __init__(
        self, address: tuple[str, int], wish: Wish, secure: SecureClient = INSECURE
    ) -> None:
        self._secure = secure
        self._login_at: float | None = None
        self._address = address
        self._wish = wish
        self._correlation_id = 0
        self._asked: tuple[int, RequestHeader] | None = None
        timeout_ms = wish.kafka.get("socket.timeout.ms")
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

    def ask(self, position: int) -> None:
        """Send a request now whose answer is wanted later."""
        with self._failing():
            if self._login_at is not None and time.monotonic() >= self._login_at:
                self._log_in()
            header = self._header(ApiKey.FETCH, self._version)
            self._socket.sendall(encode_request(header, self._wish.values(position)))
            self._asked = position, header

    def answer(self, position: int) -> FetchPartitionResponse:
        """What the leader has at this offset, which may have been asked for already."""
        if self._asked is None:
            self.ask(position)
        assert self._asked is not None
        asked, header = self._asked
        assert asked == position, "another offset was asked for"
        self._asked = None
        with self._failing():
            response = decode_response(header, self._receive())
        if response.error_code or not response.topics:
            return FetchPartitionResponse(self._wish.partition, response.error_code)
        found: FetchPartitionResponse = response.topics[0].partitions[0]
        return found

    def _header(self, api: ApiKey, version: int) -> RequestHeader:
        self._correlation_id += 1
        return RequestHeader(api, version, self._correlation_id, self._wish.kafka["client.id"])

    def _agree(self) -> int:
        """The newest version of Fetch that both know; from 13 on topics go by their ids."""
        header = self._header(ApiKey.API_VERSIONS, 0)
        self._socket.sendall(encode_request(header, {}))
        offered = {each.api_key: each for each in decode_response(header, self._receive()).api_keys}
        ours, theirs = APIS[ApiKey.FETCH], offered.get(ApiKey.FETCH)
        newest = ours.max_version if self._wish.topic_id else _LAST_BY_NAME
        version = min(newest, theirs.max_version) if theirs else -1
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
        return f"{self._address[0]}:{self._address[1]}"

    @contextlib.contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or str(error) or type(error).__name__
            raise UnavailableError(f"{self._name} ({reason})") from error
