"""Connections between the parts of a cluster, each of which can be parted from any other.

Every part listens behind a gate. A gate to ZooKeeper belongs to one broker. A gate to a broker is
for all the others, which tell who they are in the first request on a connection: brokers and
controllers have their id in their client id, those of Apache Kafka too.
"""

import asyncio
import contextlib
import re
import struct
from dataclasses import dataclass, field
from typing import Final

from klamm.local.network import HOST

_CHUNK: Final = 1 << 16
#: Of a request: size, key, version, correlation id, and the length of the client id.
_HEAD: Final = struct.Struct(">ihhih")
_BROKERS_CLIENT_ID: Final = re.compile(r"(?:broker-)?(\d+)(?:-fetcher-\d+)?")
#: The name of a client that is no broker; only brokers are cut off.
STRANGER: Final = ""


@dataclass(slots=True, eq=False)
class _Link:
    """Whether connections from one part to another are let through."""

    is_cut: bool = False
    #: While this is not set, bytes wait, as in a network that loses packets.
    flows: asyncio.Event = field(default_factory=asyncio.Event)
    open: set[asyncio.StreamWriter] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.flows.set()


class Links:
    """All gates of a cluster; everything here belongs to one event loop."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], _Link] = {}
        self._servers: list[asyncio.Server] = []
        self._connections: set[asyncio.Task[None]] = set()

    async def open_gate(self, target: str, port: int, source: str | None = None) -> str:
        """A gate to `target`, which listens on a port; the address to use instead of that."""

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)
            with (
                contextlib.closing(writer.transport),
                contextlib.suppress(OSError, asyncio.IncompleteReadError),
            ):
                head = b""
                who = source
                if who is None:
                    head, who = await _introduction(reader)
                await self._connect(self._link(who, target), port, head, reader, writer)

        server = await asyncio.start_server(accept, HOST, 0)
        self._servers.append(server)
        host, chosen = server.sockets[0].getsockname()
        return f"{host}:{chosen}"

    async def part(self, source: str, target: str, *, silently: bool = False) -> None:
        """Let nothing through that `source` opens to `target`.

        Connections are reset, or else silent: they take bytes, and lose none when joined again.
        """
        link = self._link(source, target)
        if silently:
            link.flows.clear()
            return
        link.is_cut = True
        for writer in list(link.open):
            writer.transport.abort()

    async def join(self) -> None:
        """Let everything through again."""
        for link in self._links.values():
            link.is_cut = False
            link.flows.set()

    async def close(self) -> None:
        """Stop listening, and end every connection."""
        for server in self._servers:
            server.close()
        connections = list(self._connections)
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def _link(self, source: str, target: str) -> _Link:
        return self._links.setdefault((source, target), _Link())

    async def _connect(
        self,
        link: _Link,
        port: int,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        if link.is_cut:
            return
        link.open.add(writer)
        try:
            await link.flows.wait()
            onward_reader, onward = await asyncio.open_connection(HOST, port)
            link.open.add(onward)
            try:
                onward.write(head)
                await asyncio.gather(
                    _pass(link, reader, onward), _pass(link, onward_reader, writer)
                )
            finally:
                link.open.discard(onward)
                onward.transport.close()
        finally:
            link.open.discard(writer)


async def _introduction(reader: asyncio.StreamReader) -> tuple[bytes, str]:
    """The beginning of a first request, and the name of the broker that it comes from."""
    head = await reader.readexactly(_HEAD.size)
    length = _HEAD.unpack(head)[-1]
    client_id = await reader.readexactly(length) if length > 0 else b""
    known = _BROKERS_CLIENT_ID.fullmatch(client_id.decode(errors="replace"))
    return head + client_id, STRANGER if known is None else f"broker {known[1]}"


async def _pass(link: _Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            await link.flows.wait()
            writer.write(data)
            await writer.drain()
    # One direction is of no use without the other.
    writer.transport.abort()
