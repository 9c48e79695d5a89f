"""The blocking client connection: it negotiates versions and sends one request at a time.

A caller that has work to do while the broker prepares its response sends the request with `begin`
and reads the response with `finish`.
"""

import contextlib
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeAlias

from klamm.errors import UnavailableError
from klamm.net.secure import INSECURE, SecureClient
from klamm.protocol.apis import KNOWN_APIS, ApiKey
from klamm.protocol.codec.encoding import Values
from klamm.protocol.codec.frames import decode_response, encode_request
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode, KafkaError

#: Makes a value of the bytes of a response, given the header of its request.
ResponseDecoder: TypeAlias = Callable[[RequestHeader, memoryview], Any]

_SIZE: Final = struct.Struct(">i")
_CONNECT_TIMEOUT_S: Final = 5.0
_RESPONSE_MAX_BYTES: Final = 1 << 30
#: The last versions about a single group or key, and about topic names. Later ones differ in form.
_SINGLE_FORM: Final[Mapping[ApiKey, int]] = MappingProxyType(
    {ApiKey.DELETE_TOPICS: 5, ApiKey.FIND_COORDINATOR: 3, ApiKey.OFFSET_FETCH: 7}
)


class BlockingConnection:
    """A connection to one broker that threads can share: their requests wait for each other.

    A failure of the connection is raised as an `UnavailableError`; the next request connects again.
    """

    def __init__(
        self, host: str, port: int, client_id: str, secure: SecureClient = INSECURE
    ) -> None:
        self._secure = secure
        self._login_at: float | None = None
        self.host = host
        self.port = port
        self._client_id = client_id
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._versions: dict[int, tuple[int, int]] = {}
        self._correlation_id = 0

    def send(
        self,
        api: ApiKey,
        values: Values,
        timeout_s: float,
        decode: ResponseDecoder = decode_response,
    ) -> Any:
        """Send a request in the newest version that both sides know; return the response's body."""
        with self._lock, self._closed_on_failure():
            self._ensure_connected(timeout_s)
            header = self._write(api, self._version(api), values, timeout_s)
            return self._read_response(header, decode)

    def version(self, api: ApiKey, timeout_s: float) -> int:
        """The newest version of an API that both sides know."""
        with self._lock, self._closed_on_failure():
            self._ensure_connected(timeout_s)
            return self._version(api)

    def begin(self, api: ApiKey, version: int, values: Values, timeout_s: float) -> RequestHeader:
        """Send a request and return the header that `finish` needs; nothing is sent in between."""
        with self._lock, self._closed_on_failure():
            self._ensure_connected(timeout_s)
            return self._write(api, version, values, timeout_s)

    def finish(self, header: RequestHeader) -> Any:
        """Read the response to a request that `begin` sent; return its body."""
        with self._lock, self._closed_on_failure():
            return self._read_response(header)

    def close(self) -> None:
        """Close the connection after the request that another thread is sending."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    @contextlib.contextmanager
    def _closed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._close()
            reason = error.strerror or str(error) or type(error).__name__
            raise UnavailableError(f"{self.host}:{self.port} ({reason})") from error
        except BaseException:
            # Part of the response may still be unread, so the connection cannot be used again.
            self._close()
            raise

    def _ensure_connected(self, timeout_s: float) -> None:
        if self._socket is not None and _is_readable(self._socket):
            # There is no response to read, so the broker has closed the connection: it was
            # restarted, or the connection was idle for too long.
            self._close()
        if self._socket is None:
            self._connect(timeout_s)
        elif self._login_at is not None and time.monotonic() >= self._login_at:
            self._log_in(timeout_s)

    def _connect(self, timeout_s: float) -> None:
        self._socket = socket.create_connection(
            (self.host, self.port), min(timeout_s, _CONNECT_TIMEOUT_S)
        )
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = self._secure.wrap(self._socket, self.host)
        response = self._exchange(ApiKey.API_VERSIONS, 0, {}, timeout_s)
        self._versions = {
            each.api_key: (each.min_version, each.max_version) for each in response.api_keys
        }
        if self._secure.logs_in:
            self._log_in(timeout_s)

    def _log_in(self, timeout_s: float) -> None:
        """Authenticate, for the first time or again before the session ends (SEC-5)."""
        steps = self._secure.login()
        try:
            request = next(steps)
            while True:
                api, version, values = request
                request = steps.send(self._exchange(api, version, values, timeout_s))
        except StopIteration as done:
            self._login_at = done.value

    def _version(self, api: ApiKey) -> int:
        ours = KNOWN_APIS[api]
        lowest, highest = self._versions.get(api, (0, -1))
        version = min(highest, ours.max_version, _SINGLE_FORM.get(api, highest))
        if version < max(lowest, ours.min_version):
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"the broker at {self.host}:{self.port} has no {ours.name} in a version that "
                "klamm knows.",
            )
        return version

    def _exchange(self, api: ApiKey, version: int, values: Values, timeout_s: float) -> Any:
        return self._read_response(self._write(api, version, values, timeout_s))

    def _write(self, api: ApiKey, version: int, values: Values, timeout_s: float) -> RequestHeader:
        assert self._socket is not None
        self._correlation_id += 1
        header = RequestHeader(api, version, self._correlation_id, self._client_id)
        self._socket.settimeout(timeout_s)
        self._socket.sendall(encode_request(header, values))
        return header

    def _read_response(
        self, header: RequestHeader, decode: ResponseDecoder = decode_response
    ) -> Any:
        (size,) = _SIZE.unpack(self._read(_SIZE.size))
        if not 0 <= size <= _RESPONSE_MAX_BYTES:
            raise OSError("the peer is not a Kafka broker")
        return decode(header, self._read(size))

    def _read(self, size: int) -> memoryview:
        if self._socket is None:
            raise ConnectionError("the connection was closed")
        # Each response has a buffer of its own: Arrow columns may go on using it.
        content = memoryview(bytearray(size))
        at = 0
        while at < size:
            count = self._socket.recv_into(content[at:])
            if not count:
                raise ConnectionAbortedError("it closed the connection")
            at += count
        return content.toreadonly()


def _is_readable(connected: socket.socket) -> bool:
    poll = select.poll()
    poll.register(connected, select.POLLIN)
    return bool(poll.poll(0))
