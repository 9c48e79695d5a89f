"""What a broker's two processes say to each other over the socket that connects them.

The broker relays the controller's requests as they came and gets answers as they go out. Each tells
the other when it has lost its ZooKeeper session, since the loss of one counts as the loss of both.
Neither waits for the other except for answers to requests.
"""

import asyncio
import itertools
import struct
from collections.abc import Awaitable, Callable
from enum import IntEnum
from typing import Any, Final

import orjson

_HEAD: Final = struct.Struct(">IBI")


class Kind(IntEnum):
    """What a message is about."""

    #: A request frame of Kafka's protocol for the controller, without its size.
    KAFKA_REQUEST = 1
    #: A request of the broker's own, as JSON.
    REQUEST = 2
    #: The answer to either, under the same number; empty: there is none.
    ANSWER = 3
    #: The settings to run with, as JSON; the first message.
    HELLO = 4
    #: The broker is registered, under this epoch.
    REGISTERED = 5
    #: The session is lost that belonged to the registration of this epoch.
    SESSION_LOST = 6
    #: The configuration changed, as JSON.
    CONFIG = 7
    #: Resign and end.
    STOP = 8


Handler = Callable[[Kind, int, bytes], Awaitable[None]]


class Link:
    """One end of the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    def tell(self, kind: Kind, body: bytes = b"", number: int = 0) -> None:
        """Send a message that needs no answer, or is one."""
        if not self._writer.is_closing():
            self._writer.write(_HEAD.pack(len(body), kind, number) + body)

    def tell_json(self, kind: Kind, value: Any) -> None:
        """The same with a JSON body."""
        self.tell(kind, orjson.dumps(value))

    async def ask(self, kind: Kind, body: bytes) -> bytes:
        """Send a request and wait for its answer; ConnectionError if the other end goes away."""
        if self._writer.is_closing():
            raise ConnectionError("the other process is gone")
        number = next(self._numbers)
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        try:
            self.tell(kind, body, number)
            return await future
        finally:
            self._waiting.pop(number, None)

    async def receive(self) -> tuple[Kind, int, bytes]:
        """The next message, for whoever waits for one in particular before serving the rest."""
        size, kind, number = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
        return Kind(kind), number, await self._reader.readexactly(size)

    async def serve(self, handler: Handler) -> None:
        """Hand messages to the handler, in order, until the other end goes away."""
        try:
            while True:
                kind, number, body = await self.receive()
                if kind == Kind.ANSWER:
                    waiting = self._waiting.get(number)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(body)
                else:
                    await handler(kind, number, body)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Give up the connection; whoever waits for an answer learns that none will come."""
        self._writer.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("the other process is gone"))
