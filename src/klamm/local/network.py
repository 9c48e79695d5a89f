"""The network of a local cluster: free ports, and a proxy that can cut a broker from ZooKeeper."""

import asyncio
import contextlib
import random
import socket
from typing import Final

HOST: Final = "127.0.0.1"
#: Below the ports that the system gives to outgoing connections, so that a broker which is away
#: for a moment finds its own port free when it returns.
_CANDIDATES: Final = range(20_000, 31_000)
_CHUNK: Final = 1 << 16


def is_free(port: int) -> bool:
    """Whether nobody listens there at the moment."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """Distinct ports that nobody listens on at the moment."""
    found: list[int] = []
    for port in random.sample(_CANDIDATES, len(_CANDIDATES)):
        if len(found) == count:
            break
        if is_free(port):
            found.append(port)
    return found


class Proxy:
    """Passes bytes on until it is cut; while it is cut, connections end as soon as they begin.

    It belongs to the event loop that it was started in.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._is_cut = False
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Listen on any free port; the address."""
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def cut(self) -> None:
        """End every connection, and let none begin."""
        self._is_cut = True
        for writer in list(self._open):
            writer.transport.abort()

    async def restore(self) -> None:
        """Let connections begin again."""
        self._is_cut = False

    async def close(self) -> None:
        """Stop listening, and end every connection."""
        await self.cut()
        if self._server is not None:
            self._server.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        try:
            onward_reader, onward = await asyncio.open_connection(*self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, onward}
        try:
            await asyncio.gather(self._pass(reader, onward), self._pass(onward_reader, writer))
        finally:
            self._open -= {writer, onward}

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                writer.write(data)
                await writer.drain()
        # One direction is of no use without the other.
        writer.transport.abort()
