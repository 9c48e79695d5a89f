"""The network of a local cluster: free ports, and a proxy that can cut a broker from ZooKeeper."""

import asyncio
import contextlib
import random
import socket
from typing import Final

HOST: Final = "127.0.0.1"
#: Below the ports of outgoing connections, so that the port of a stopped broker stays free for
#: its restart.
_CANDIDATES: Final = range(20_000, 31_000)
_CHUNK: Final = 1 << 16


def is_free(port: int) -> bool:
    """Whether no process listens on the port now."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((HOST, port))
        except OSError:
            return False
        return True


def free_ports(count: int) -> list[int]:
    """Distinct ports on which no process listens now."""
    found: list[int] = []
    for port in random.sample(_CANDIDATES, len(_CANDIDATES)):
        if len(found) == count:
            break
        if is_free(port):
            found.append(port)
    return found


class Proxy:
    """Forwards bytes until it is cut; then it ends every connection, new ones too.

    It belongs to the event loop that it was started in.
    """

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._is_cut = False
        self._open: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> str:
        """Listen on any free port and return the address."""
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    async def cut(self) -> None:
        """End every connection, and refuse new ones."""
        self._is_cut = True
        for writer in list(self._open):
            writer.transport.abort()

    async def restore(self) -> None:
        """Accept connections again."""
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
        if self._is_cut:  # meanwhile
            writer.transport.abort()
            onward.transport.abort()
            return
        self._open |= {writer, onward}
        try:
            # Python 3.11 logs a handler that is cancelled at the end of its event loop.
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(self._pass(reader, onward), self._pass(onward_reader, writer))
        finally:
            self._open -= {writer, onward}
            writer.transport.abort()
            onward.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                writer.write(data)
                await writer.drain()
        # When one direction ends, so does the other.
        writer.transport.abort()
