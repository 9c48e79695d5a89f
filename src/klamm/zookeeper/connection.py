"""One ZooKeeper session, carried by kazoo: the bridge between its thread and our event loop.

kazoo connects, pings, reconnects and notices expiry, in a thread of its own. Requests are our own
(see `wire.py`) and are handed to its connection as they are. Everything that comes back, whether
reply, watch or change of the connection, is passed to the event loop by that one thread, so it
arrives in the order in which the server sent it.

Watches are kept here rather than by kazoo, which forgets them all when a connection breaks. They
are armed again with one `setWatches` request, before anything else is sent.
"""

import asyncio
import contextlib
import logging
import select
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Final

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, KazooException, SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionHandler
from kazoo.protocol.serialization import Connect
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry

from klamm.errors import LocalProtocolError, SessionLostError
from klamm.zookeeper import wire
from klamm.zookeeper.store import (
    EventKind,
    SessionExpired,
    SessionResumed,
    SessionStarted,
    SessionSuspended,
    StoreEvent,
    WatchEvent,
    ZooKeeperCode,
    node_error,
)
from klamm.zookeeper.wire import Opcode

_LOG: Final = logging.getLogger(__name__)
#: kazoo's own words. It warns at every attempt to connect, of which there are many when ZooKeeper
#: is away; what matters of that is said here, once.
_KAZOO_LOG: Final = logging.getLogger(f"{__name__}.kazoo")
_KAZOO_LOG.setLevel(logging.ERROR)

#: How long a server has at first to open a session; twice as long after each time that it did not,
#: up to what kazoo waits. A ZooKeeper that is just starting lets some connections hang: it fails
#: when it wants to close them (a NullPointerException in `ZooKeeperServer.removeCnxn`).
_FIRST_HANDSHAKE_S: Final = 0.5

#: Paths of one setWatches request, with room to spare below the server's limit.
_SET_WATCHES_BYTES: Final = 512 * 1024


@dataclass(frozen=True, slots=True)
class DigestLogin:
    """A user of ZooKeeper, who logs in with DIGEST-MD5; the password stays out of `repr`."""

    username: str
    password: str = field(repr=False)

    def options(self) -> dict[str, str]:
        """What kazoo takes."""
        return {
            "mechanism": "DIGEST-MD5",
            "username": self.username,
            "password": self.password,
        }


class ZooKeeperConnection:
    """One session from its first connection to its end; it cannot be opened again.

    `on_event` is called on the event loop. The last event of a session that was not closed by us
    is `SessionExpired`. `on_response` is called with the seconds that each request took.
    """

    def __init__(
        self,
        hosts: str,
        chroot: str,
        session_timeout_ms: int,
        max_in_flight: int,
        on_event: Callable[[StoreEvent], None],
        on_response: Callable[[float], None],
        tls: ssl.SSLContext | None = None,
        login: DigestLogin | None = None,
    ) -> None:
        self.chroot = chroot
        self.session_id = 0
        self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        self._on_response = on_response
        self._watches = _Watches()
        #: Set while requests can be sent, and when none ever can be again.
        self._usable = asyncio.Event()
        self._started = False
        self._ended = False
        self._in_flight = asyncio.Semaphore(max_in_flight)
        self._pending: set[asyncio.Future[bytes | None]] = set()
        self._loop_turned = True
        self._client = _Client(
            hosts, session_timeout_ms, self._watch_fired, self._may_ping, tls, login
        )
        self._client.add_listener(self._state_changed)

    # --- on the event loop ---

    async def open(self) -> None:
        """Connect, and wait until a server responds."""
        self._client.start_async()
        await self._usable.wait()
        if self._ended:
            raise self._lost()

    async def close(self) -> None:
        """End the session and fail all pending requests."""
        self._end()
        # kazoo waits for its thread, which waits for the server's farewell.
        await asyncio.to_thread(self._close_client)

    def _close_client(self) -> None:
        self._client.stop()
        self._client.close()

    async def request(
        self, opcode: Opcode, payload: bytes, path: str = "", *, watch: EventKind | None = None
    ) -> bytes | None:
        """Send a request until it gets a response; `exists` returns None for a missing node.

        `watch` is the kind of watch that the request sets: on the CHILDREN of `path`, or on its
        data.
        """
        if len(payload) > wire.REQUEST_BYTES_MAX - 8:
            # The server would cut the connection, and sending it again would end in the same way.
            raise LocalProtocolError(
                f"A request of {len(payload)} bytes about {path or 'many nodes'} is more than "
                f"the {wire.REQUEST_BYTES_MAX} that ZooKeeper takes."
            )
        async with self._in_flight:
            while True:
                await self._usable.wait()
                if self._ended:
                    raise self._lost()
                reply: asyncio.Future[bytes | None] = self._loop.create_future()
                self._pending.add(reply)
                sent_at = self._loop.time()
                try:
                    self._client.send(_Request(opcode, payload), _Reply(self, reply, path, watch))
                    response = await reply
                    self._on_response(self._loop.time() - sent_at)
                    return response
                except ConnectionLoss:
                    continue
                except SessionExpiredError:
                    raise self._lost() from None
                except KazooException as error:
                    raise node_error(
                        ZooKeeperCode(getattr(error, "code", ZooKeeperCode.SYSTEM_ERROR)), path
                    ) from None
                finally:
                    self._pending.discard(reply)

    async def watch_data(self, paths: Sequence[str], since_zxid: int) -> None:
        """Arm data watches with as few requests as the size limit allows."""
        full = [wire.full_path(self.chroot, path) for path in paths]
        for batch in _batches(full):
            # Registered before sending: a watch may fire before the response arrives.
            self._watches.add_data(batch)
            await self.request(
                Opcode.SET_WATCHES, wire.encode_set_watches(since_zxid, batch, (), ())
            )

    def _end(self) -> None:
        self._ended = True
        self._usable.set()
        for reply in self._pending:
            if not reply.done():
                reply.set_exception(self._lost())

    def _lost(self) -> SessionLostError:
        return SessionLostError(f"ZooKeeper session {self.session_id:#x} is gone.")

    def _publish(self, event: StoreEvent) -> None:
        if self._ended:
            return
        match event:
            case SessionStarted(session_id):
                self.session_id = session_id
                self._usable.set()
                _LOG.info("ZooKeeper session %#x has started", self.session_id)
            case SessionResumed():
                self._usable.set()
                _LOG.info("ZooKeeper session %#x is connected again", self.session_id)
            case SessionSuspended():
                self._usable.clear()
                _LOG.warning("ZooKeeper session %#x has lost its connection", self.session_id)
            case SessionExpired():
                self._end()
                _LOG.warning("ZooKeeper session %#x has expired", self.session_id)
        self._on_event(event)

    def _note_turn(self) -> None:
        self._loop_turned = True

    def _resolve(self, reply: "asyncio.Future[bytes | None]", value: bytes | None) -> None:
        if not reply.done():
            reply.set_result(value)

    def _fail(self, reply: "asyncio.Future[bytes | None]", error: Exception) -> None:
        if isinstance(error, ConnectionLoss) and not self._ended:
            # Nothing is sent again before the connection is back, though kazoo would queue it.
            self._usable.clear()
        if not reply.done():
            reply.set_exception(error)

    # --- in kazoo's thread ---

    def _post(self, callback: Callable[..., None], *args: Any) -> None:
        # The event loop may be closed already; then there is no consumer for the event.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    def _may_ping(self) -> bool:
        """Whether the event loop has turned since the last ping.

        The session has to end when the loop hangs, although this thread does not: other brokers
        can take over only then.
        """
        may_ping, self._loop_turned = self._loop_turned, False
        self._post(self._note_turn)
        if not may_ping:
            _LOG.error(
                "ZooKeeper session %#x is not kept alive: the event loop hangs", self.session_id
            )
        return may_ping

    def _state_changed(self, state: str) -> None:
        if state == KazooState.SUSPENDED:
            self._post(self._publish, SessionSuspended())
        elif state == KazooState.CONNECTED and not self._started:
            self._started = True
            self._post(self._publish, SessionStarted(self._client.session_id))
        elif state == KazooState.CONNECTED:
            self._rearm_watches()
            self._post(self._publish, SessionResumed())
        elif not self._client.is_stopped and self._started:
            self._post(self._publish, SessionExpired(self._client.session_id))
            # kazoo would now open a new session. There is one only after somebody asked for it
            # (ELEC-15), and then on a client of its own; so this thread has nothing left to do.
            self._client.wait_until_stopped()

    def _rearm_watches(self) -> None:
        requests = self._watches.requests(self._client.last_zxid)
        for i, payload in enumerate(requests):
            is_last = i == len(requests) - 1
            reply = _Rearmed(self._watches if is_last else None)
            self._client.send_first(_Request(Opcode.SET_WATCHES, payload), reply, position=i)

    def _watch_fired(self, event: bytes, offset: int) -> None:
        kind, path = wire.decode_event(event, offset)
        self._watches.fired(kind, path)
        self._post(self._publish, WatchEvent(kind, path[len(self.chroot) :] or "/"))


class _Watches:
    """The watches that are armed, by full path, so that they can be armed on a new connection."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._data: set[str] = set()
        self._exist: set[str] = set()
        self._children: set[str] = set()
        #: The zxid from which changes are reported, until setting the watches again has succeeded.
        self._since_zxid: int | None = None

    def add(self, watch: EventKind, path: str, found: bool) -> None:
        with self._lock:
            if watch is EventKind.CHILDREN:
                self._children.add(path)
            elif found:
                self._data.add(path)
            else:
                self._exist.add(path)

    def add_data(self, paths: Sequence[str]) -> None:
        with self._lock:
            self._data.update(paths)

    def fired(self, kind: EventKind, path: str) -> None:
        with self._lock:
            if kind is not EventKind.CHILDREN:
                self._data.discard(path)
                self._exist.discard(path)
            if kind is EventKind.CHILDREN or kind is EventKind.DELETED:
                self._children.discard(path)

    def requests(self, last_zxid: int) -> list[bytes]:
        """The setWatches requests that arm all of them again, as of what has been seen."""
        with self._lock:
            data, exist, children = list(self._data), list(self._exist), list(self._children)
            if not (data or exist or children):
                return []
            # Changes that were seen before the watches were set again do not count for them.
            since = self._since_zxid = self._since_zxid or last_zxid
        return [
            *(wire.encode_set_watches(since, paths, (), ()) for paths in _batches(data)),
            *(wire.encode_set_watches(since, (), paths, ()) for paths in _batches(exist)),
            *(wire.encode_set_watches(since, (), (), paths) for paths in _batches(children)),
        ]

    def armed(self) -> None:
        """All watches are set again; from now on the last zxid that was seen counts."""
        with self._lock:
            self._since_zxid = None


def _batches(paths: Sequence[str]) -> Iterator[list[str]]:
    """The paths in lists that each fit into a setWatches request."""
    batch: list[str] = []
    size = 0
    for path in paths:
        if size > _SET_WATCHES_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += 4 + wire.text_bytes(path)
    if batch:
        yield batch


# --- what kazoo is given --------------------------------------------------------------------------


class _Request:
    """A request in the form in which kazoo's connection wants it."""

    def __init__(self, opcode: Opcode, payload: bytes) -> None:
        self.type = int(opcode)
        self._payload = payload

    def serialize(self) -> bytes:
        return self._payload

    def deserialize(self, reply: bytes, offset: int) -> tuple[bytes]:
        # A tuple, because kazoo searches the results of transactions for paths.
        # Decoding is left to the event loop: this thread has the next reply to receive.
        return (reply,)


class _Reply:
    """Receives the response to a request from kazoo's thread."""

    def __init__(
        self,
        connection: ZooKeeperConnection,
        future: "asyncio.Future[bytes | None]",
        path: str,
        watch: EventKind | None,
    ) -> None:
        self._connection = connection
        self._future = future
        self._path = path
        self._watch = watch

    def set(self, value: Sequence[bytes] | None) -> None:
        connection = self._connection
        if self._watch is not None:
            full = wire.full_path(connection.chroot, self._path)
            connection._watches.add(self._watch, full, found=value is not None)
        reply = None if value is None else value[0]
        connection._post(connection._resolve, self._future, reply)

    def set_exception(self, error: Exception) -> None:
        self._connection._post(self._connection._fail, self._future, error)


class _Rearmed:
    """Receives the response to a setWatches request after a reconnection."""

    def __init__(self, watches: _Watches | None) -> None:
        self._watches = watches

    def set(self, value: object) -> None:
        if self._watches is not None:
            self._watches.armed()

    def set_exception(self, error: Exception) -> None:
        """Nothing to do: the connection broke again, and the next one begins with arming all."""


class _Client(KazooClient):  # type: ignore[misc]
    """kazoo, for the life of one session."""

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int,
        watch_fired: Callable[[bytes, int], None],
        may_ping: Callable[[], bool],
        tls: ssl.SSLContext | None = None,
        login: DigestLogin | None = None,
    ) -> None:
        # Brokers start beside ZooKeeper, and should not sleep when it begins to serve.
        retry = KazooRetry(max_tries=-1, delay=0.02, backoff=2, max_delay=0.1)
        super().__init__(
            hosts=hosts,
            timeout=session_timeout_ms / 1000,
            handler=_Handler(tls),
            connection_retry=retry,
            logger=_KAZOO_LOG,
        )
        self.watch_fired = watch_fired
        self.may_ping = may_ping
        self._connection = _KazooConnection(
            self,
            self._conn_retry.copy(),
            logger=_KAZOO_LOG,
            sasl_options=None if login is None else login.options(),
        )

    @property
    def session_id(self) -> int:
        session_id: int = self._session_id
        return session_id

    @property
    def is_stopped(self) -> bool:
        stopped: bool = self._stopped.is_set()
        return stopped

    def wait_until_stopped(self) -> None:
        self._stopped.wait()

    def send(self, request: _Request, reply: _Reply) -> None:
        self._call(request, reply)

    def send_first(self, request: _Request, reply: _Rearmed, position: int) -> None:
        """Send ahead of all that waits. For kazoo's own thread, which is the one that sends."""
        self._queue.insert(position, (request, reply))
        self._connection._write_sock.send(b"\0")


class _KazooConnection(ConnectionHandler):  # type: ignore[misc]
    """kazoo's connection; events go to us as they come, not to watchers that it has on record.

    Pings go three times in a session timeout, and only while the event loop turns.
    """

    _handshake_s = _FIRST_HANDSHAKE_S

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return super()._invoke(timeout, request, xid)
        patience_s = min(timeout, self._handshake_s)
        try:
            result = super()._invoke(patience_s, request, xid)
        except self.handler.timeout_exception:
            self._handshake_s = 2 * patience_s
            raise
        self._handshake_s = _FIRST_HANDSHAKE_S
        return result

    def _send_ping(self, connect_timeout: float) -> None:
        if self.client.may_ping():
            super()._send_ping(connect_timeout)

    def _read_watch_event(self, buffer: bytes, offset: int) -> None:
        self.client.watch_fired(buffer, offset)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's handler of threads. It starts only the connection's thread, since no callback is
    used.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        super().__init__()
        self._tls = tls

    def create_connection(self, *args: Any, **options: Any) -> socket.socket:
        connected: socket.socket = super().create_connection(*args, **options)
        if self._tls is None:
            return connected
        return self._tls.wrap_socket(connected, server_hostname=options["hostname"])

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False

    def select(
        self, rlist: Sequence[Any], wlist: Sequence[Any], xlist: Sequence[Any], timeout: float
    ) -> tuple[list[Any], list[Any], list[Any]]:
        # kazoo's own sets up and tears down an epoll object for each of its calls.
        decrypted = [sock for sock in rlist if isinstance(sock, ssl.SSLSocket) and sock.pending()]
        if decrypted:
            return decrypted, [], []  # the socket itself may have nothing more to say
        poll = select.poll()
        for sock in rlist:
            poll.register(sock, select.POLLIN)
        for sock in wlist:
            poll.register(sock, select.POLLOUT)
        ready = {fd for fd, _ in poll.poll(timeout * 1000)}
        return (
            [sock for sock in rlist if sock.fileno() in ready],
            [sock for sock in wlist if sock.fileno() in ready],
            [],
        )
