"""A proxy between a node and ZooKeeper: it kills the node at one of its writes, or cuts it off."""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Final

_CREATE, _DELETE, _SET, _MULTI, _CREATE2 = 1, 2, 5, 14, 15
_WRITES: Final = {_CREATE, _DELETE, _SET, _MULTI, _CREATE2}
_CLOSE_SESSION: Final = struct.pack(">iii", 8, 0, -11)


class KillingProxy:
    """Passes on what a node and ZooKeeper say to each other, until the node's time has come.

    It then says goodbye to ZooKeeper in the node's place, for all its sessions: nobody has to wait
    until they expire.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._kill: Callable[[], None] = lambda: None
        #: How many writes may still go by; None: any number.
        self._left: int | None = None
        self._is_heard = True
        self._is_cut = False
        self.has_killed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, write: int, kill: Callable[[], None], *, is_heard: bool) -> None:
        """Kill at the write of this number, counted from now on.

        If it is heard, ZooKeeper carries it out, and the node dies before it learns of that.
        """
        with self._lock:
            self._left, self._kill, self._is_heard = write, kill, is_heard
            self.has_killed.clear()

    def disarm(self) -> None:
        with self._lock:
            self._left = None

    def close(self) -> None:
        self._listener.close()
        for connection in list(self._connections):
            connection.close()

    def may_pass(self, connection: "_Connection", xid: int, opcode: int) -> bool:
        """Whether a request goes on to ZooKeeper."""
        with self._lock:
            if connection.is_orphaned:
                return False
            if self._left is None or opcode not in _WRITES:
                return True
            self._left -= 1
            if self._left > 0:
                return True
            self._left = None
            if self._is_heard:
                connection.kills_at = xid
                return True
        self.execute()
        return False

    def execute(self) -> None:
        for connection in list(self._connections):
            connection.is_orphaned = True
        self._kill()
        self.has_killed.set()
        for connection in list(self._connections):
            connection.say_goodbye()

    def expire(self) -> None:
        """End the node's sessions in its place; it hears of that when it connects again."""
        connections = list(self._connections)
        for connection in connections:
            connection.is_orphaned = True
        for connection in connections:
            connection.say_goodbye()

    def cut(self) -> None:
        """Break the node's connections, and let it make no others until they are restored."""
        self._is_cut = True
        for connection in list(self._connections):
            connection.close()

    def restore(self) -> None:
        self._is_cut = False

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                node, _ = self._listener.accept()
                if self._is_cut:
                    node.close()
                    continue
                connection = _Connection(self, node, socket.create_connection(self._target))
                self._connections.add(connection)
                connection.start()

    def forget(self, connection: "_Connection") -> None:
        self._connections.discard(connection)


class _Connection:
    def __init__(self, proxy: KillingProxy, node: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._node = node
        self._server = server
        #: The request whose response kills; nothing more is passed back to the node until then.
        self.kills_at: int | None = None
        #: The node is dead, or is about to be, or its session has been ended without its knowledge.
        self.is_orphaned = False

    def start(self) -> None:
        for target in (self._requests, self._answers):
            threading.Thread(target=target, daemon=True).start()

    def _requests(self) -> None:
        with contextlib.suppress(OSError):
            stream = self._node.makefile("rb")
            # The first frame asks for a session, and has another form.
            self._server.sendall(_frame(stream))
            while frame := _frame(stream):
                xid, opcode = struct.unpack_from(">ii", frame, 4)
                if self._proxy.may_pass(self, xid, opcode):
                    self._server.sendall(frame)
        if not self.is_orphaned:
            self.close()

    def _answers(self) -> None:
        with contextlib.suppress(OSError):
            stream = self._server.makefile("rb")
            self._node.sendall(_frame(stream))
            while frame := _frame(stream):
                if self.kills_at is None and not self.is_orphaned:
                    with contextlib.suppress(OSError):
                        self._node.sendall(frame)
                elif struct.unpack_from(">i", frame, 4)[0] == self.kills_at:
                    self._proxy.execute()
        self.close()

    def say_goodbye(self) -> None:
        with contextlib.suppress(OSError):
            self._server.sendall(_CLOSE_SESSION)

    def close(self) -> None:
        self._proxy.forget(self)
        for each in (self._node, self._server):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


def _frame(stream) -> bytes:
    """One frame with its size; nothing at the end."""
    size = stream.read(4)
    if len(size) < 4:
        return b""
    return size + stream.read(struct.unpack(">i", size)[0])
