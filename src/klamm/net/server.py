"""The server's connections: they read request frames and write response frames (FRM-1..3, 8).

A connection serves one request at a time. It reads through the event loop's transport into a buffer
that all connections share, unless a frame is too large for it, so that an idle connection needs
little memory. It writes to the socket directly, so that the kernel can send ranges of files
(`os.sendfile`) without a copy in Python. This module does not know what a frame means.
"""

import asyncio
import errno
import inspect
import logging
import os
import socket
import struct
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol, TypeAlias, cast

from klamm.config.endpoints import ListenerEndpoint
from klamm.errors import ConfigError, RemoteProtocolError
from klamm.metrics.requests import RequestMeter, Unsent

log = logging.getLogger("klamm.net.server")

_SIZE: Final = struct.Struct(">i")
#: A buffer size that leaves the choice to the operating system.
OS_DEFAULT_BUFFER: Final = -1
_SCRATCH_BYTES: Final = 256 * 1024
_SENDFILE_MAX_BYTES: Final = 1 << 20
#: The first buffer of a large frame. It grows as bytes arrive, because a client can announce any
#: size.
_FIRST_BYTES: Final = 1 << 20


class FileRange(Protocol):
    """Part of a file that is sent unchanged. The file stays open while this object lives."""

    @property
    def position(self) -> int: ...

    @property
    def size(self) -> int: ...

    def fileno(self) -> int: ...


Part: TypeAlias = bytes | memoryview | FileRange
#: The parts of one response frame; None if there is no response.
Parts: TypeAlias = Sequence[Part] | None
#: A response, the meter of its API, and the measurements to note there when it has been sent.
MeasuredResponse: TypeAlias = tuple[Parts, RequestMeter, Unsent]


class CloseConnection(Exception):
    """Closes the connection without a response. The reason is logged."""


Dispatch: TypeAlias = Callable[
    ["ServerConnection", memoryview], MeasuredResponse | Awaitable[MeasuredResponse]
]


class ServerConnection(asyncio.BufferedProtocol):
    """A client's connection.

    It dispatches a request only after the previous one has its response.
    """

    def __init__(self, server: "Server", listener: str) -> None:
        self.listener = listener
        self.peer = "?"
        self.client_host = "?"
        self.last_active = time.monotonic()
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        self._frame: bytearray | None = None  # a frame under way that the scratch cannot hold
        self._filled = 0
        self._size = 0  # of that frame, of which the buffer may be only a part
        self._pending = b""  # read, but not yet a whole frame, or behind the one in hand
        self._task: asyncio.Task[None] | None = None
        self._outbox: deque[Part] = deque()
        self._sent = 0  # of the first part in the outbox
        self._is_paused = False
        self._drained: asyncio.Future[None] | None = None

    # Reading

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods without its base class.
        self._transport = cast(asyncio.Transport, transport)
        original = transport.get_extra_info("socket")
        self._socket = socket.socket(fileno=os.dup(original.fileno()))
        self._socket.setblocking(False)
        if self._socket.family in (socket.AF_INET, socket.AF_INET6):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = transport.get_extra_info("peername") or ("?", 0)
        self.client_host = str(peer[0])
        self.peer = f"{peer[0]}:{peer[1]}"
        self._server.connections.add(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        return self._server.scratch

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = time.monotonic()
        if self._frame is None:
            arrived = self._server.scratch[:nbytes]
            self._take(self._pending + arrived if self._pending else arrived)
            return
        self._filled += nbytes
        if self._filled == self._size:
            frame, self._frame = self._frame, None
            self._handle(memoryview(frame))
        elif self._filled == len(self._frame):
            self._frame = _enlarged(self._frame, self._size)

    def _take(self, data: bytes | memoryview) -> None:
        """Handle the frames in `data`; keep the incomplete rest in `_pending`."""
        view = memoryview(data)
        at = 0
        while len(view) - at >= _SIZE.size:
            (size,) = _SIZE.unpack_from(view, at)
            if not 0 <= size <= self._server.frame_bytes_max:
                self.refuse(f"a frame of {size} bytes")
                return
            start = at + _SIZE.size
            end = start + size
            if end > len(view):
                if size > _SCRATCH_BYTES // 2:
                    self._frame = bytearray(min(size, _FIRST_BYTES))
                    self._size = size
                    self._filled = len(view) - start
                    self._frame[: self._filled] = view[start:]
                    at = len(view)
                break
            at = end
            # Copied, because other connections use the shared buffer while this request is
            # processed.
            if not self._handle(memoryview(bytes(view[start:end]))):
                break
        self._pending = bytes(view[at:])

    def _handle(self, frame: memoryview) -> bool:
        """Start to process a request.

        Return whether its response is sent and the next may follow.
        """
        if self._transport is None or self._transport.is_closing():
            return False
        try:
            response = self._server.dispatch(self, frame)
        except (RemoteProtocolError, CloseConnection) as error:
            self.refuse(str(error))
            return False
        if inspect.isawaitable(response):
            self._pause()
            self._task = asyncio.ensure_future(self._await(response))
            return False
        parts, meter, unsent = response
        if parts is not None and not self._send(parts):
            self._pause()
            self._task = asyncio.ensure_future(self._await_sent(meter, unsent))
            return False
        meter.note(unsent)
        return True

    async def _await(self, response: Awaitable[MeasuredResponse]) -> None:
        try:
            parts, meter, unsent = await response
        except (RemoteProtocolError, CloseConnection) as error:
            self.refuse(str(error))
            return
        if parts is not None:
            self._send(parts)
        await self._await_sent(meter, unsent)

    async def _await_sent(self, meter: RequestMeter, unsent: Unsent) -> None:
        await self._wait_drained()
        meter.note(unsent)
        self._go_on()

    def _go_on(self) -> None:
        """Handle the frames that were read behind the finished request, then resume reading."""
        self._task = None
        self.last_active = time.monotonic()
        if self._transport is None or self._transport.is_closing():
            return
        pending, self._pending = self._pending, b""
        self._take(pending)
        if self._task is None and self._is_paused and not self._transport.is_closing():
            self._is_paused = False
            self._transport.resume_reading()

    def _pause(self) -> None:
        if not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()

    # Writing

    def _send(self, parts: Sequence[Part]) -> bool:
        """Write a response to the socket; return whether all of it was written at once."""
        self._outbox.extend(parts)
        try:
            return self._flush()
        except OSError as error:
            self._lost(error)
            return True

    def _flush(self) -> bool:
        assert self._socket is not None
        fd = self._socket.fileno()
        if fd < 0:
            self._clear_outbox()
            return True
        while self._outbox:
            part = self._outbox[0]
            try:
                if isinstance(part, bytes | memoryview):
                    size = len(part)
                    # MSG_MORE: the head of a response should not take a packet of its own.
                    more = socket.MSG_MORE if len(self._outbox) > 1 else 0
                    rest = memoryview(part)[self._sent :] if self._sent else part
                    self._sent += self._socket.send(rest, more)
                else:
                    size = part.size
                    count = min(size - self._sent, _SENDFILE_MAX_BYTES)
                    sent = os.sendfile(fd, part.fileno(), part.position + self._sent, count)
                    if sent == 0 and count:
                        raise OSError(errno.EIO, "the file is shorter than it was")
                    self._sent += sent
            except BlockingIOError:
                asyncio.get_running_loop().add_writer(fd, self._writable)
                return False
            if self._sent >= size:
                self._outbox.popleft()
                self._sent = 0
        return True

    def _writable(self) -> None:
        assert self._socket is not None
        self.last_active = time.monotonic()
        asyncio.get_running_loop().remove_writer(self._socket.fileno())
        try:
            if not self._flush():
                return
        except OSError as error:
            self._lost(error)
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    async def _wait_drained(self) -> None:
        if self._outbox:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    def _clear_outbox(self) -> None:
        self._outbox.clear()
        self._sent = 0

    # The end

    @property
    def is_busy(self) -> bool:
        """Whether a request of this connection is being processed or its response is being sent."""
        return self._task is not None

    def refuse(self, reason: str) -> None:
        """Close the connection and log what was wrong with the peer's request."""
        log.warning("closing the connection of %s: %s", self.peer, reason)
        self.close()

    def close(self) -> None:
        """Close at once; a response that is being sent is cut off."""
        if self._transport is not None:
            self._transport.abort()

    def _lost(self, error: OSError) -> None:
        log.debug("connection of %s: %s", self.peer, error)
        self._clear_outbox()
        self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        if self._socket is not None:
            if self._outbox:
                asyncio.get_running_loop().remove_writer(self._socket.fileno())
            self._socket.close()
        self._clear_outbox()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._task is not None:
            self._task.cancel()


def _enlarged(buffer: bytearray, size_max: int) -> bytearray:
    """A larger copy. The old buffer cannot be resized while the event loop refers to it."""
    larger = bytearray(min(2 * len(buffer), size_max))
    larger[: len(buffer)] = buffer
    return larger


class Server:
    """Listens on the broker's endpoints until closed."""

    def __init__(
        self,
        dispatch: Dispatch,
        *,
        frame_bytes_max: int,
        idle_max_s: float,
        backlog: int,
        send_buffer_bytes: int = OS_DEFAULT_BUFFER,
        receive_buffer_bytes: int = OS_DEFAULT_BUFFER,
    ) -> None:
        self.dispatch = dispatch
        self.frame_bytes_max = frame_bytes_max
        self.connections: set[ServerConnection] = set()
        self.scratch = memoryview(bytearray(_SCRATCH_BYTES))
        self._idle_max_s = idle_max_s
        self._backlog = backlog
        self._buffers = {
            socket.SO_SNDBUF: send_buffer_bytes,
            socket.SO_RCVBUF: receive_buffer_bytes,
        }
        self._servers: list[asyncio.Server] = []
        self._sweep: asyncio.TimerHandle | None = None

    async def listen(self, endpoint: ListenerEndpoint) -> int:
        """Open one listener and return its port, which is new if the configured port is 0."""
        loop = asyncio.get_running_loop()
        try:
            server = await loop.create_server(
                lambda: ServerConnection(self, endpoint.name),
                endpoint.host or None,
                endpoint.port,
                backlog=self._backlog,
                start_serving=False,
            )
            for listening in server.sockets:
                self._set_buffers(listening.fileno())
            await server.start_serving()
        except OSError as error:
            raise ConfigError(
                f"listeners: {endpoint} cannot be opened: {error.strerror or error}"
            ) from error
        self._servers.append(server)
        if self._sweep is None and self._idle_max_s > 0:
            self._close_idle()
        return int(server.sockets[0].getsockname()[1])

    def _set_buffers(self, fd: int) -> None:
        """Set the sizes of a listening socket's buffers; accepted sockets inherit them."""
        with socket.socket(fileno=os.dup(fd)) as listening:
            for option, size in self._buffers.items():
                if size != OS_DEFAULT_BUFFER:
                    listening.setsockopt(socket.SOL_SOCKET, option, size)

    def _close_idle(self) -> None:
        """Close connections that were idle for too long.

        A connection with a request is not idle.
        """
        now = time.monotonic()
        for connection in list(self.connections):
            if not connection.is_busy and now - connection.last_active > self._idle_max_s:
                log.info("closing the idle connection of %s", connection.peer)
                connection.close()
        pause = min(max(self._idle_max_s / 4, 0.05), 60.0)
        self._sweep = asyncio.get_running_loop().call_later(pause, self._close_idle)

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._sweep is not None:
            self._sweep.cancel()
        for server in self._servers:
            server.close()
        for connection in list(self.connections):
            connection.close()
        for server in self._servers:
            await server.wait_closed()
