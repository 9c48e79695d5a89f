"""The asyncio client connection: one request at a time, with timeouts and correlation ids.

Brokers, controllers and the history use it to reach other brokers. A response is read into a buffer
of its own size, so that a follower appends what it has fetched without another copy.
"""

import asyncio
import random
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar, cast

from klamm.errors import RemoteProtocolError, UnavailableError
from klamm.net.sasl import LoginError
from klamm.net.secure import INSECURE, SecureClient
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import decode_response, encode_request
from klamm.protocol.codec.headers import RequestHeader

_SIZE: Final = struct.Struct(">i")
#: Larger than any response of a broker.
_RESPONSE_MAX_BYTES: Final = 1 << 30
_SCRATCH_BYTES: Final = 16 * 1024
#: A larger buffer is not kept for the next response.
_KEPT_BYTES_MAX: Final = 4 << 20
_SETUP_JITTER: Final = 0.2
#: Enough for any timeout to have reached its limit.
_SETUP_FAILURES_MAX: Final = 32
_CORRELATION_ID_MAX: Final = 0x7FFFFFFF

T = TypeVar("T")
#: Encodes a request, size included, with the header that it is given.
EncodeRequest: TypeAlias = Callable[[RequestHeader], Sequence[bytes | memoryview]]


class SetupTimeout:
    """How long to wait for a connection: twice as long after each failure, up to a limit.

    As in Apache Kafka, each wait is up to 20 % shorter or longer, so that many nodes do not
    try again at the same time.
    """

    def __init__(self, first_s: float, max_s: float) -> None:
        self._first_s = first_s
        self._max_s = max(first_s, max_s)
        self._failures = 0

    def next_s(self) -> float:
        """The time to wait for the next attempt, in seconds."""
        timeout_s = min(self._first_s * 2.0**self._failures, self._max_s)
        return timeout_s * random.uniform(1 - _SETUP_JITTER, 1 + _SETUP_JITTER)

    def on_failure(self) -> None:
        """An attempt has failed or timed out."""
        self._failures = min(self._failures + 1, _SETUP_FAILURES_MAX)

    def on_success(self) -> None:
        """The connection is there: the next one begins with the first timeout again."""
        self._failures = 0


class ClientConnection:
    """Sends requests to one node at a time, and connects to it when necessary."""

    def __init__(
        self,
        client_id: str,
        timeout_s: float,
        connect_timeout_s: float,
        connect_timeout_max_s: float | None = None,
        secure: SecureClient = INSECURE,
        *,
        reuses_buffer: bool = False,
    ) -> None:
        """With `reuses_buffer`, the bytes of a response are good until the next request."""
        self._client_id = client_id
        self._reuses_buffer = reuses_buffer
        self._secure = secure
        self._login_at: float | None = None
        self._timeout_s = timeout_s
        self._setup = SetupTimeout(connect_timeout_s, connect_timeout_max_s or connect_timeout_s)
        self._correlation_id = 0
        self._wire: _Wire | None = None
        #: The node that the connection leads to; None if there is no connection.
        self.address: tuple[str, int] | None = None

    async def send(
        self, host: str, port: int, key: ApiKey, version: int, body: Mapping[str, Any]
    ) -> Any:
        """Send a request and return the body of its response.

        A failure closes the connection and is raised as an UnavailableError.
        """
        return await self.exchange(
            host,
            port,
            key,
            version,
            partial(_encoded, body),
            decode_response,
        )

    async def exchange(
        self,
        host: str,
        port: int,
        key: ApiKey,
        version: int,
        encode: EncodeRequest,
        decode: Callable[[RequestHeader, memoryview], T],
    ) -> T:
        """Send a request that the caller encodes, and return what `decode` makes of its response.

        `decode` has to check the correlation id of the response against the request's header.
        """
        try:
            wire = await self._connected(host, port)
            return await self._transfer(wire, key, version, encode, decode)
        except (OSError, TimeoutError, RemoteProtocolError, LoginError) as error:
            self.close()
            raise UnavailableError(f"{key.name} to {host}:{port} failed: {error!r}") from error
        except asyncio.CancelledError:
            self.close()
            raise

    async def _connected(self, host: str, port: int) -> "_Wire":
        if self._wire is None or self._wire.is_closed or self.address != (host, port):
            self.close()
            self._wire = await self._connect(host, port)
            self.address = (host, port)
            if self._secure.logs_in:
                await self._log_in(self._wire)
        elif self._login_at is not None and time.monotonic() >= self._login_at:
            await self._log_in(self._wire)
        return self._wire

    async def _transfer(
        self,
        wire: "_Wire",
        key: ApiKey,
        version: int,
        encode: EncodeRequest,
        decode: Callable[[RequestHeader, memoryview], T],
    ) -> T:
        self._correlation_id = (self._correlation_id + 1) & _CORRELATION_ID_MAX
        header = RequestHeader(key, version, self._correlation_id, self._client_id)
        return decode(header, await wire.send(encode(header), self._timeout_s))

    async def _log_in(self, wire: "_Wire") -> None:
        """Authenticate, for the first time or again before the session ends (SEC-5)."""
        steps = self._secure.login()
        try:
            key, version, values = next(steps)
            while True:
                encode = partial(_encoded, values)
                response = await self._transfer(wire, key, version, encode, decode_response)
                key, version, values = steps.send(response)
        except StopIteration as done:
            self._login_at = done.value

    async def _connect(self, host: str, port: int) -> "_Wire":
        loop = asyncio.get_running_loop()
        context = self._secure.context
        try:
            async with asyncio.timeout(self._setup.next_s()):
                _, wire = await loop.create_connection(
                    lambda: _Wire(self._reuses_buffer),
                    host,
                    port,
                    ssl=context,
                    server_hostname=None if context is None else host,
                )
        except (OSError, TimeoutError):
            self._setup.on_failure()
            raise
        self._setup.on_success()
        return wire

    @property
    def lost_at(self) -> float | None:
        """When the other end closed or broke the present connection, in seconds since 1970."""
        return None if self._wire is None else self._wire.lost_at

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
            self.address = None


def _encoded(body: Mapping[str, Any], header: RequestHeader) -> list[bytes]:
    return [encode_request(header, body)]


class _Wire(asyncio.BufferedProtocol):
    """Writes one request frame and reads one response frame at a time.

    A response begins in the scratch, where most fit as a whole, so that they need one system call.
    The rest of a larger one is read into a buffer of its size. Memory that is new to the process
    costs more than what is read into it, so a caller that is done with a response before the next
    lets the buffer be used again.
    """

    def __init__(self, reuses_buffer: bool) -> None:
        self.is_closed = False
        self.lost_at: float | None = None
        self._transport: asyncio.Transport | None = None
        self._scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._frame: memoryview | None = None
        self._reuses_buffer = reuses_buffer
        self._kept = memoryview(b"")
        self._filled = 0
        self._response: asyncio.Future[memoryview] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def send(
        self, parts: Sequence[bytes | memoryview], timeout_s: float
    ) -> asyncio.Future[memoryview]:
        """Write a request; the result is its response, or TimeoutError if there is none in time."""
        assert self._transport is not None, "connected before anything is sent"
        loop = asyncio.get_running_loop()
        self._response = response = loop.create_future()
        self._timer = loop.call_later(timeout_s, self._expire, response)
        self._transport.writelines(parts)
        return response

    def close(self) -> None:
        self.is_closed = True
        self._cancel_timer()
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods without its base class; they set TCP_NODELAY.
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return (self._scratch if self._frame is None else self._frame)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._frame is None:
            if self._filled < _SIZE.size:
                return
            (size,) = _SIZE.unpack_from(self._scratch)
            if not 0 < size <= _RESPONSE_MAX_BYTES:
                self._fail(ConnectionError(f"a response of {size} bytes"))
                return
            self._frame = self._buffer_of(size)
            self._filled -= _SIZE.size
            if self._filled > size:
                self._fail(ConnectionError("more than the response to a request"))
                return
            self._frame[: self._filled] = self._scratch[_SIZE.size : _SIZE.size + self._filled]
        if self._filled == len(self._frame):
            frame, self._frame, self._filled = self._frame, None, 0
            self._cancel_timer()
            if self._response is not None and not self._response.done():
                self._response.set_result(frame)
            else:
                self._fail(ConnectionError("a response without a request"))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _buffer_of(self, size: int) -> memoryview:
        if len(self._kept) >= size:
            return self._kept[:size]
        buffer = memoryview(bytearray(size))
        if self._reuses_buffer and size <= _KEPT_BYTES_MAX:
            self._kept = buffer
        return buffer

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_closed:
            self.lost_at = time.time()
        self._fail(exc or ConnectionResetError("the connection was closed"))

    def _expire(self, response: asyncio.Future[memoryview]) -> None:
        # Not `_fail`: another request, sent against the rule, may have taken the place of this one.
        if not response.done():
            response.set_exception(TimeoutError())
        self.close()

    def _fail(self, error: Exception) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)
        self.close()
