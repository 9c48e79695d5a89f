"""A TCP proxy in front of a server, so that a test can cut and restore a connection."""

import asyncio
import contextlib


class Proxy:
    """Passes bytes on, until it is cut; while it is cut, connections end as soon as they begin."""

    def __init__(self, host: str, port: int) -> None:
        self._target = host, port
        self._is_cut = False
        #: Whether what the server answers is dropped, as if the connection broke on the way back.
        self.swallow_replies = False
        self.swallowed = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)

    @property
    def address(self) -> str:
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def cut(self) -> None:
        self._is_cut = True
        for writer in self._writers:
            writer.transport.abort()

    def restore(self) -> None:
        self._is_cut = False

    async def close(self) -> None:
        self.cut()
        self._server.close()
        await self._server.wait_closed()
        await asyncio.gather(*self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_cut:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        onward_reader, onward_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, onward_writer}
        await asyncio.gather(
            self._pass(reader, onward_writer),
            self._pass(onward_reader, writer, are_replies=True),
        )
        self._writers -= {writer, onward_writer}
        self._tasks.discard(task)

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, are_replies: bool = False
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                if are_replies and self.swallow_replies:
                    self.swallowed.set()
                else:
                    writer.write(data)
                    await writer.drain()
        writer.transport.abort()
