"""The server's connections: they read request frames and write response frames (FRM-1..3, 8).

A connection serves one request at a time. Requests that arrive meanwhile are read ahead, up to
`READ_AHEAD_BYTES`: they wait here and not in the socket's buffer, which a client that sends many
small requests fills with little. A connection reads through the event loop's transport
(`incoming.py` cuts the bytes into frames) and writes to the socket directly, so that the kernel can
send ranges of files (`os.sendfile`) without a copy in Python. This module does not know what a
frame means.
"""

import asyncio
import errno
import logging
import math
import os
import resource
import socket
import ssl
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, cast

from klamm.config.endpoints import ListenerEndpoint
from klamm.errors import ConfigError, RemoteProtocolError
from klamm.metrics.requests import RequestMeter, Unsent
from klamm.net.incoming import SCRATCH_BYTES, IncomingFrames
from klamm.net.responses import BYTES, MeasuredResponse, Part, in_one_piece
from klamm.slices import SLICE_S, Delayed

log = logging.getLogger("klamm.net.server")

#: The principal of a client that has not said who it is.
ANONYMOUS: Final = "User:ANONYMOUS"
#: A buffer size that leaves the choice to the operating system.
OS_DEFAULT_BUFFER: Final = -1
_SENDFILE_MAX_BYTES: Final = 1 << 20
#: How long the parts of one response are written before other connections have a turn: after each
#: system call the event loop may have to wait for another thread.
SENDING_S: Final = 0.002
#: How much of a client's next requests is read before the one in hand has its response.
READ_AHEAD_BYTES: Final = 1 << 20
#: A client that has sent a request above this size sends in bulk.
BULK_REQUEST_BYTES: Final = 128 << 10
#: Descriptors that connections leave to the log and to requests of the broker's own.
_RESERVED_DESCRIPTORS: Final = 256


class CloseConnection(Exception):
    """Closes the connection without a response. The reason is logged."""


Dispatch: TypeAlias = Callable[
    ["ServerConnection", memoryview], MeasuredResponse | Awaitable[MeasuredResponse]
]


#: The value of `hold` for a connection that is closed after its response is sent.
CLOSE: Final = -1.0


@dataclass(frozen=True, slots=True)
class Listener:
    """What all connections of one listener have in common."""

    name: str
    dispatch: Dispatch
    frame_bytes_max: int
    #: With TLS: the context for a new connection, and the principal of its client's certificate;
    #: None as a principal refuses the connection.
    tls: Callable[[], ssl.SSLContext] | None = None
    principal_of: Callable[[bytes | None], str | None] = lambda _: ANONYMOUS
    #: Prepares a connection that has to authenticate before anything is served to it.
    on_connected: Callable[["ServerConnection"], None] | None = None
    #: Opens the listener, where the event loop's own way of accepting does not do.
    open: "Callable[[Server, Listener, str, int, int], Acceptor] | None" = None


class ServerConnection(asyncio.BufferedProtocol):
    """A client's connection.

    It dispatches a request only after the previous one has its response.
    """

    def __init__(self, server: "Server", listener: Listener) -> None:
        self.listener = listener.name
        self.incoming = IncomingFrames(server.scratch, listener.frame_bytes_max)
        #: The state of an authentication, which `broker/security` keeps here.
        self.authentication: Any = None
        #: What may serve the next request if that is like the last one; `broker/handlers` knows.
        self.shortcut: Any = None
        #: Seconds for which nothing is read after the next response, or `CLOSE`.
        self.hold = 0.0
        self._dispatch = listener.dispatch
        self._means = listener
        self.peer = "?"
        self.client_host = "?"
        self.principal = ANONYMOUS
        self.last_active = time.monotonic()
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._socket: socket.socket | None = None
        #: A copy of the descriptor, while a response waits for room in the socket's buffer.
        self._waiting_fd: int | None = None
        #: The request in hand: a task, or the event that its response waits for.
        self._task: asyncio.Future[None] | None = None
        self._outbox: deque[Part] = deque()
        self._sent = 0  # of the first part in the outbox
        self._is_paused = False
        self._is_muted = False  # paused until a time, whatever there is room for
        self._has_ended = False  # the client sends nothing more
        self._is_bulk = False  # the client has sent a large request
        self._drained: asyncio.Future[None] | None = None

    # Reading

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have asyncio's methods without its base class.
        self._transport = cast(asyncio.Transport, transport)
        original = transport.get_extra_info("socket")
        if original.fileno() > self._server.descriptor_max:
            log.warning("refusing a connection: file descriptors are nearly used up")
            transport.abort()  # type: ignore[attr-defined]
            return
        # The transport reads, and closes the descriptor; this connection only writes to it.
        self._socket = socket.socket(fileno=original.fileno())
        self._socket.setblocking(False)
        if self._socket.family in (socket.AF_INET, socket.AF_INET6):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._admit(transport.get_extra_info("peername") or ("?", 0))

    def _admit(self, peer: tuple[Any, ...]) -> None:
        self.client_host = str(peer[0])
        self.peer = f"{peer[0]}:{peer[1]}"
        self._server.connections.add(self)
        self._server.on_connected(self)
        if self._means.on_connected is not None:
            self._means.on_connected(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.incoming.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = time.monotonic()
        self.incoming.on_read(nbytes)
        self._serve()

    def eof_received(self) -> bool:
        """Serve what has been read before closing the connection; some clients still listen."""
        self._has_ended = self.is_busy
        return self._has_ended

    def _serve(self) -> None:
        """Handle frames until a request has to wait, or others have to have a turn."""
        incoming = self.incoming
        until = time.perf_counter() + SLICE_S if len(incoming.whole) > 1 else math.inf
        while incoming.whole and self._task is None:
            self._handle(incoming.take())
            if incoming.whole and self._task is None and time.perf_counter() > until:
                self._begin(self._give_turn())
        if incoming.bad_size is not None:
            self._judge_size()
        elif incoming.size > READ_AHEAD_BYTES:
            self._pause()

    def _judge_size(self) -> None:
        """Refuse a frame that is too large, once all before it are done: a login raises the limit.

        Nothing is read until then.
        """
        incoming = self.incoming
        if not self.is_busy:
            incoming.judge_again()
            if incoming.bad_size is None:
                self._serve()
            else:
                self.refuse(f"a frame of {incoming.bad_size} bytes")
        else:
            self._pause()

    def _handle(self, frame: memoryview) -> None:
        """Start to process a request; unless it is done at once, the connection is busy then."""
        if self._is_closing:
            return
        if len(frame) > BULK_REQUEST_BYTES and not self._is_bulk:
            self._is_bulk = True
            self._server.bound_receive_buffer(self._socket)
        try:
            response = self._dispatch(self, frame)
        except (RemoteProtocolError, CloseConnection) as error:
            self.refuse(str(error))
            return
        self._respond(response)

    def _respond(self, response: MeasuredResponse | Awaitable[MeasuredResponse]) -> bool:
        """Send a response, or begin to wait for it; return whether the next request may follow."""
        if isinstance(response, Delayed):
            self._task = response.event
            response.event.add_done_callback(partial(self._resume, response.respond))
            return False
        if not isinstance(response, tuple):
            self._begin(self._await(response))
            return False
        parts, meter, unsent = response
        if parts is not None and not self._send(parts):
            self._begin(self._await_sent(meter, unsent))
            return False
        meter.note(unsent)
        return not self.hold or self._keep_hold()

    def _resume(
        self,
        respond: Callable[[], MeasuredResponse | Awaitable[MeasuredResponse]],
        event: "asyncio.Future[None]",
    ) -> None:
        """The event has come that a response has waited for."""
        if event.cancelled():
            return
        try:
            response = respond()
        except (RemoteProtocolError, CloseConnection) as error:
            self.refuse(str(error))
            return
        if self._respond(response):
            self._go_on()

    def _keep_hold(self) -> bool:
        """Close after the response, or pause reading; the next request is never handled now."""
        hold, self.hold = self.hold, 0.0
        if hold == CLOSE:
            self.close()
            return False
        self._is_muted = True
        self._pause()
        self._begin(self._mute(hold))
        return False

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._on_end_of_task)
        self._task = task

    def _on_end_of_task(self, task: "asyncio.Task[None]") -> None:
        """Close a connection whose request failed without a response: its client can try again."""
        error = None if task.cancelled() else task.exception()
        if (error is not None or task.cancelled()) and not self._is_closing:
            log.error("closing the connection of %s: its request failed", self.peer, exc_info=error)
            self.close()

    async def _mute(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._is_muted = False
        self._go_on()

    async def _give_turn(self) -> None:
        await asyncio.sleep(0)
        self._go_on()

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
        if self.hold:
            self._keep_hold()
        else:
            self._go_on()

    def _go_on(self) -> None:
        """Handle the frames that were read ahead, and read on where reading has paused."""
        self._task = None
        self.last_active = time.monotonic()
        self._serve()
        if self._is_closing or self._is_muted:
            return
        if self._has_ended:
            if not self.is_busy:
                self.close()
        elif self._is_paused and self._has_room:
            self._is_paused = False
            self._resume_reading()

    @property
    def _has_room(self) -> bool:
        return self.incoming.size < READ_AHEAD_BYTES // 2 and self.incoming.bad_size is None

    def _pause(self) -> None:
        if not self._is_paused and not self._is_closing:
            self._is_paused = True
            self._pause_reading()

    @property
    def _is_closing(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def _pause_reading(self) -> None:
        assert self._transport is not None
        self._transport.pause_reading()

    def _resume_reading(self) -> None:
        assert self._transport is not None
        self._transport.resume_reading()

    # Writing

    def _send(self, parts: Sequence[Part]) -> bool:
        """Write a response to the socket; return whether all of it was written at once."""
        try:
            self._outbox.extend(parts if len(parts) == 1 else in_one_piece(parts))
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
        until = time.perf_counter() + SENDING_S
        while self._outbox:
            part = self._outbox[0]
            try:
                if isinstance(part, BYTES):
                    size = len(part)
                    # MSG_MORE: the head of a response should not take a packet of its own.
                    more = socket.MSG_MORE if len(self._outbox) > 1 else 0
                    rest = memoryview(part)[self._sent :] if self._sent else part
                    count = size - self._sent
                    sent = self._socket.send(rest, more)
                else:
                    size = part.size
                    count = min(size - self._sent, _SENDFILE_MAX_BYTES)
                    sent = os.sendfile(fd, part.fileno(), part.position + self._sent, count)
                    if sent == 0 and count:
                        raise OSError(errno.EIO, "the file is shorter than it was")
            except BlockingIOError:
                sent = 0
            self._sent += sent
            if self._sent >= size:
                self._outbox.popleft()
                self._sent = 0
            if sent < count or (self._outbox and time.perf_counter() > until):
                # The socket is full, or other connections have waited long enough. They have their
                # turn even if this client is so fast that there would be room again at once.
                self._wait_writable(fd)
                return False
        return True

    def _writable(self) -> None:
        assert self._socket is not None
        self.last_active = time.monotonic()
        try:
            if not self._flush():
                return
        except OSError as error:
            self._lost(error)
        self._stop_waiting()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)

    def _wait_writable(self, fd: int) -> None:
        if self._waiting_fd is None:
            # The event loop takes no second callback for a descriptor that a transport has.
            self._waiting_fd = os.dup(fd)
            asyncio.get_running_loop().add_writer(self._waiting_fd, self._writable)

    def _stop_waiting(self) -> None:
        if self._waiting_fd is not None:
            asyncio.get_running_loop().remove_writer(self._waiting_fd)
            os.close(self._waiting_fd)
            self._waiting_fd = None

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

    def serve_later(self, delay_s: float | None, then_close: bool = False) -> None:
        """Read nothing for a while; without a time, until `serve_now` is called."""
        loop = asyncio.get_running_loop()
        # The transport begins to read only after this connection has been made.
        loop.call_soon(self._pause)
        if delay_s is not None:
            loop.call_later(delay_s, self.close if then_close else self.serve_now)

    def serve_now(self) -> None:
        """Begin to read."""
        if self._task is None and self._is_paused and not self._is_closing:
            self._is_paused = False
            self._resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything. Without an error this side has closed: its request is cancelled.

        A request whose client is gone is processed to its end, as Apache Kafka does.
        """
        if self in self._server.connections:
            self._server.connections.discard(self)
            self._server.on_lost(self)
        self._stop_waiting()
        self._let_socket_go()
        self._clear_outbox()
        self.incoming.whole.clear()
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)
        if self._task is not None and exc is None:
            self._task.cancel()

    def _let_socket_go(self) -> None:
        """Forget the descriptor, which the transport is about to close."""
        if self._socket is not None:
            self._socket.detach()


class Acceptor(Protocol):
    """Accepts the connections of a listener; the interface of asyncio's servers."""

    @property
    def sockets(self) -> Sequence[socket.socket]: ...

    async def start_serving(self) -> None: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


class AdmissionDecision(Protocol):
    """The decision about a new connection: accept, delay or close it."""

    @property
    def is_refused(self) -> bool: ...

    @property
    def delay_ms(self) -> int: ...


class ConnectionAdmission(Protocol):
    """Counts connections and decides about new ones."""

    def has_room(self, listener: str) -> bool: ...

    def is_over(self) -> bool: ...

    def on_accepted(self, listener: str, ip: str, now_ms: int) -> AdmissionDecision: ...

    def on_closed(self, listener: str, ip: str) -> None: ...


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
        bulk_receive_buffer_bytes: int = OS_DEFAULT_BUFFER,
        quotas: ConnectionAdmission | None = None,
    ) -> None:
        """A receive buffer has the bulk size from the first large request of its client on."""
        self._quotas = quotas
        self._waiting: deque[ServerConnection] = deque()
        self._dispatch = dispatch
        self._frame_bytes_max = frame_bytes_max
        self.connections: set[ServerConnection] = set()
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self.descriptor_max = (
            sys.maxsize if limit == resource.RLIM_INFINITY else limit - _RESERVED_DESCRIPTORS
        )
        self._idle_max_s = idle_max_s
        self._backlog = backlog
        self._buffers = {
            socket.SO_SNDBUF: send_buffer_bytes,
            socket.SO_RCVBUF: receive_buffer_bytes,
        }
        self._bulk_receive_buffer_bytes = bulk_receive_buffer_bytes
        self._servers: list[asyncio.Server | Acceptor] = []
        self._sweep: asyncio.TimerHandle | None = None

    async def listen(self, endpoint: ListenerEndpoint, listener: Listener | None = None) -> int:
        """Open one listener and return its port, which is new if the configured port is 0.

        Without a `listener` there is neither TLS nor authentication.
        """
        means = listener or Listener(endpoint.name, self._dispatch, self._frame_bytes_max)
        server: asyncio.Server | Acceptor
        try:
            if means.open is not None:
                server = means.open(self, means, endpoint.host, endpoint.port, self._backlog)
            else:
                server = await asyncio.get_running_loop().create_server(
                    lambda: ServerConnection(self, means),
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

    def bound_receive_buffer(self, of: socket.socket | None) -> None:
        """A client sends large requests: let no more of them wait in the kernel than configured."""
        if of is not None and self._bulk_receive_buffer_bytes != OS_DEFAULT_BUFFER:
            of.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._bulk_receive_buffer_bytes)

    def on_connected(self, connection: ServerConnection) -> None:
        """Decide whether a new connection is served at once, later, or not at all (SEC-19)."""
        quotas = self._quotas
        if quotas is None:
            return
        has_room = quotas.has_room(connection.listener)
        admission = quotas.on_accepted(
            connection.listener, connection.client_host, time.monotonic_ns() // 1_000_000
        )
        if admission.is_refused:
            log.info("closing the connection of %s: its address has too many", connection.peer)
            if admission.delay_ms:
                connection.serve_later(admission.delay_ms / 1000, then_close=True)
            else:
                asyncio.get_running_loop().call_soon(connection.close)
        elif not has_room:
            self._waiting.append(connection)
            connection.serve_later(None)
        elif admission.delay_ms:
            connection.serve_later(admission.delay_ms / 1000)
        if has_room and quotas.is_over():
            self._close_longest_idle(connection)

    def on_lost(self, connection: ServerConnection) -> None:
        """A connection is gone: one that waits may take its place."""
        if self._quotas is None:
            return
        self._quotas.on_closed(connection.listener, connection.client_host)
        if connection in self._waiting:
            self._waiting.remove(connection)
        elif self._waiting:
            self._waiting.popleft().serve_now()

    def _close_longest_idle(self, newest: ServerConnection) -> None:
        others = [each for each in self.connections if each is not newest and not each.is_busy]
        if others:
            idle = min(others, key=lambda each: each.last_active)
            log.info("closing the connection of %s: a broker needs its place", idle.peer)
            idle.close()

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
