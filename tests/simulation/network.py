"""Connections between processes: bytes arrive in order, late, or not at all.

Each direction of a connection is a line of its own, so that what is sent on two connections may
arrive in any order. While two nodes cannot reach each other, what they send is on its way, as it is
with TCP; a connection that is reset loses what has not arrived.
"""

import asyncio
import inspect
import os
import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from klamm.errors import RemoteProtocolError
from klamm.net.server import ANONYMOUS, CloseConnection
from klamm.protocol.apis import APIS
from tests.simulation.loop import Process, SimulatedLoop, current, wait_until

#: Usual delays of a message in seconds, and how likely one is that takes much longer.
_DELAY_S = (0.0003, 0.004)
_SLOW_S = (0.02, 0.4)
_SLOW_CHANCE = 0.02
#: Gaps between two deliveries on one line, so that they stay in order.
_TICK_S = 1e-7

Note = Callable[[str, str, str], None]


class Network:
    """Listeners, connections, and which machines are cut off from each other."""

    def __init__(self, chance: random.Random, note: Note) -> None:
        self.loop: SimulatedLoop
        self.delivered = 0
        self._chance = chance
        self._note = note
        self._listeners: dict[tuple[str, int], tuple[Process, Callable[[], Any]]] = {}
        self._connections: list[Connection] = []
        self._cuts: dict[frozenset[str], int] = {}

    # Listening and connecting

    def listen(self, process: Process, host: str, port: int, factory: Callable[[], Any]) -> None:
        self._listeners[host, port] = process, factory
        process.on_end.append(lambda: self.close_listener(process))

    def close_listener(self, process: Process) -> None:
        self._listeners = {
            at: each for at, each in self._listeners.items() if each[0] is not process
        }

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> Any:
        client = current()
        await asyncio.sleep(self.delay_s())
        await wait_until(lambda: not self.is_cut(client.node, host))
        listener = self._listeners.get((host, port))
        if listener is None:
            raise ConnectionRefusedError(111, f"nobody listens on {host}:{port}")
        server, accept = listener
        protocol = factory()
        connection = self.join(client, protocol, server, accept)
        protocol.connection_made(connection.ends[0])
        return connection.ends[0], protocol

    def join(
        self, client: Process, protocol: Any, server: Process, accept: Callable[[], Any]
    ) -> "Connection":
        connection = Connection(self, client, server)
        self._connections.append(connection)
        connection.ends[0].protocol = protocol

        def accepted() -> None:
            end = connection.ends[1]
            end.protocol = accept()
            end.protocol.connection_made(end)
            end.receive()

        self.loop.call_later(self.delay_s(), accepted, context=server.context)
        return connection

    def delay_s(self) -> float:
        slow = self._chance.random() < _SLOW_CHANCE
        return self._chance.uniform(*(_SLOW_S if slow else _DELAY_S))

    # Faults

    def cut(self, one: str, other: str) -> None:
        """From now on nothing gets through between two nodes."""
        pair = frozenset((one, other))
        self._cuts[pair] = self._cuts.get(pair, 0) + 1

    def heal(self, one: str, other: str) -> None:
        """What was on its way arrives after all."""
        pair = frozenset((one, other))
        self._cuts[pair] -= 1
        if not self._cuts[pair]:
            del self._cuts[pair]
        for connection in self.between(one, other):
            for end in connection.ends:
                end.go_on()

    def is_cut(self, one: str, other: str) -> bool:
        return bool(self._cuts) and frozenset((one, other)) in self._cuts

    def reset(self, one: str, other: str) -> int:
        """Break all connections between two nodes; how many there were."""
        broken = self.between(one, other)
        for connection in broken:
            connection.reset()
        return len(broken)

    def between(self, one: str, other: str) -> list["Connection"]:
        pair = {one, other}
        self._connections = [each for each in self._connections if each.is_open]
        return [each for each in self._connections if each.nodes == pair]

    def forget(self, process: Process) -> None:
        """A process has ended: its kernel closes its connections."""
        for connection in list(self._connections):
            if connection.is_open and process in connection.processes:
                connection.end_of(process)
        self._connections = [each for each in self._connections if each.is_open]

    def close(self) -> None:
        """The history is over: drop all connections silently."""
        for connection in self._connections:
            for end in connection.ends:
                end.is_closed = True

    def count(self, sender: Process, receiver: Process, data: bytes, is_request: bool) -> None:
        self.delivered += 1
        label = f"answer of {len(data)} bytes"
        if is_request and len(data) >= 6:
            api = APIS.get(int.from_bytes(data[4:6], "big"))
            label = f"{api.name}, {len(data)} bytes" if api else label
        self._note(sender.name, receiver.name, label)


class Connection:
    """Two ends."""

    def __init__(self, network: Network, client: Process, server: Process) -> None:
        self.network = network
        self.processes = (client, server)
        self.nodes = {client.node, server.node}
        self.is_local = client.node == server.node
        self.ends = (End(self, client, is_client=True), End(self, server, is_client=False))

    @property
    def is_open(self) -> bool:
        """Whether there is anybody left to hear of its end."""
        return any(not end.is_lost for end in self.ends)

    @property
    def is_cut(self) -> bool:
        return not self.is_local and self.network.is_cut(
            self.processes[0].node, self.processes[1].node
        )

    def other(self, end: "End") -> "End":
        return self.ends[1] if end is self.ends[0] else self.ends[0]

    def reset(self) -> None:
        """Both sides see an error; what was under way is lost."""
        for end in self.ends:
            end.lose(ConnectionResetError(104, "connection reset by peer"))

    def end_of(self, process: Process) -> None:
        """One side is gone; the other hears of it behind what was sent before."""
        for end in self.ends:
            if end.process is process and not end.is_lost:
                end.is_closed = end.is_lost = True
                end.send(None)


class End(asyncio.Transport):
    """One side of a connection, as asyncio's protocols see it."""

    def __init__(self, connection: Connection, process: Process, *, is_client: bool) -> None:
        super().__init__()
        self.connection = connection
        self.process = process
        self.protocol: Any = None
        self.is_closed = False
        self.is_lost = False
        self._is_client = is_client
        self._arrivals: deque[bytes | None] = deque()  # None: the other side has closed
        self._stalled: deque[bytes | None] = deque()
        self._last_at = 0.0
        self._is_reading = True

    # Sending

    def write(self, data: Any) -> None:
        if not self.is_closed and len(data):
            self.send(bytes(data))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(bytes(each) for each in list_of_data))

    def send(self, data: bytes | None) -> None:
        network = self.connection.network
        peer = self.connection.other(self)
        at = max(network.loop.time() + network.delay_s(), peer._last_at + _TICK_S)
        peer._last_at = at
        network.loop.call_at(at, peer._arrive, data, context=peer.process.context)

    # Receiving

    def _arrive(self, data: bytes | None) -> None:
        if self.connection.is_cut:
            self._stalled.append(data)
        else:
            self._arrivals.append(data)
            self.receive()

    def go_on(self) -> None:
        """The way is open again."""
        if self._stalled and self.process.is_alive:
            self._arrivals.extend(self._stalled)
            self._stalled.clear()
            self.connection.network.loop.call_soon(self.receive, context=self.process.context)

    def receive(self) -> None:
        while self._arrivals and self._is_reading and self.protocol is not None:
            data = self._arrivals.popleft()
            if self.is_lost:
                return
            if data is None:
                self.lose(None)
                return
            sender = self.connection.other(self).process
            self.connection.network.count(sender, self.process, data, not self._is_client)
            if isinstance(self.protocol, asyncio.BufferedProtocol):
                self._fill(memoryview(data))
            else:
                self.protocol.data_received(data)

    def _fill(self, data: memoryview) -> None:
        while len(data) and not self.is_lost:
            buffer = self.protocol.get_buffer(len(data))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            data = data[size:]
            self.protocol.buffer_updated(size)

    def pause_reading(self) -> None:
        self._is_reading = False

    def resume_reading(self) -> None:
        if not self._is_reading:
            self._is_reading = True
            if self._arrivals:
                self.connection.network.loop.call_soon(self.receive)

    # The end

    def lose(self, error: Exception | None) -> None:
        """Let the protocol know that the connection is gone."""
        self.is_closed = True
        if not self.is_lost and self.protocol is not None:
            self.is_lost = True
            loop = self.connection.network.loop
            loop.call_soon(self.protocol.connection_lost, error, context=self.process.context)

    def close(self) -> None:
        if not self.is_closed:
            self.send(None)
            self.lose(None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self.is_closed

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.connection.other(self).process.name, 0
        return default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


class SimulatedServer:
    """Stands where the broker's server does: frames in, answers out, one request at a time."""

    network: Network

    def __init__(self, dispatch: Any, **_: Any) -> None:
        self._dispatch = dispatch
        self._process = current()
        self._open: list[_Served] = []

    async def listen(self, endpoint: Any, listener: Any = None) -> int:
        self.network.listen(
            self._process, endpoint.host, endpoint.port, lambda: self._accept(endpoint.name)
        )
        return int(endpoint.port)

    def _accept(self, listener: str) -> "_Served":
        self._open = [each for each in self._open if not each.is_closing()]
        served = _Served(self._dispatch, listener)
        self._open.append(served)
        return served

    async def close(self) -> None:
        self.network.close_listener(self._process)
        for each in self._open:
            each.close()


class _Served(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, dispatch: Any, listener: str) -> None:
        self.listener = listener
        self.peer = self.client_host = "?"
        self.principal = ANONYMOUS
        self.shortcut: Any = None
        self._dispatch = dispatch
        self._transport: asyncio.Transport
        self._pending = b""
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self.peer = self.client_host = transport.get_extra_info("peername")[0]

    def data_received(self, data: bytes) -> None:
        self._pending += data
        if self._task is None:
            self._take()

    def _take(self) -> None:
        while len(self._pending) >= 4 and not self._transport.is_closing():
            end = 4 + int.from_bytes(self._pending[:4], "big")
            if len(self._pending) < end:
                return
            frame, self._pending = self._pending[4:end], self._pending[end:]
            try:
                response = self._dispatch(self, memoryview(frame))
            except (RemoteProtocolError, CloseConnection):
                self.close()
                return
            if inspect.isawaitable(response):
                self._transport.pause_reading()
                self._task = asyncio.ensure_future(self._await(response))
                return
            self._send(response)

    async def _await(self, response: Any) -> None:
        try:
            self._send(await response)
        except (RemoteProtocolError, CloseConnection):
            self.close()
            return
        self._task = None
        self._take()
        if self._task is None:
            self._transport.resume_reading()

    def _send(self, response: Any) -> None:
        parts, meter, unsent = response
        meter.note(unsent)
        if parts is not None:
            self._transport.writelines(
                part if isinstance(part, bytes | memoryview) else _content(part) for part in parts
            )

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._task is not None:
            self._task.cancel()


def _content(part: Any) -> bytes:
    content = os.pread(part.fileno(), part.size, part.position)
    if len(content) < part.size:
        raise CloseConnection("the file is shorter than it was")
    return content
