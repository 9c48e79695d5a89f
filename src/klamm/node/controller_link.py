"""The socket between a broker's process and its controller process.

`ProcessLink` carries the messages of both sides. `ControllerLink` is the broker's side: it starts
the controller's process, forwards requests to it, and replaces it when it dies.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from typing import Any, Final

import orjson

from klamm.errors import UnavailableError
from klamm.processes import Forked, keep_descriptors, set_command_line

log = logging.getLogger("klamm.node.controller_link")
_EPOCH: Final = struct.Struct(">q")
_RESTART_PAUSE_S: Final = 0.5


_HEAD: Final = struct.Struct(">IBI")


#: In front of a forwarded request: the size of the text that says who asks.
REQUESTER_SIZE: Final = struct.Struct(">I")


class MessageKind(IntEnum):
    """What a message is about."""

    #: Who asks, and a request frame of Kafka's protocol for the controller, without its size.
    KAFKA_REQUEST = 1
    #: A request of the broker's own, as JSON.
    REQUEST = 2
    #: The response to either, under the same number; empty if there is none.
    RESPONSE = 3
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


Handler = Callable[[MessageKind, int, bytes], Awaitable[None]]


class ProcessLink:
    """One end of the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes]] = {}

    def tell(self, kind: MessageKind, body: bytes = b"", number: int = 0) -> None:
        """Send a message that needs no response, or is a response."""
        if not self._writer.is_closing():
            self._writer.write(_HEAD.pack(len(body), kind, number) + body)

    async def request(self, kind: MessageKind, body: bytes) -> bytes:
        """Send a request and wait for its response; ConnectionError if the other process ends."""
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

    async def receive(self) -> tuple[MessageKind, int, bytes]:
        """Wait for the next message, before `serve` handles all others."""
        size, kind, number = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
        return MessageKind(kind), number, await self._reader.readexactly(size)

    async def serve(self, handler: Handler) -> None:
        """Pass messages to the handler, in order, until the other process ends."""
        try:
            while True:
                kind, number, body = await self.receive()
                if kind == MessageKind.RESPONSE:
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
        """Close the connection; pending requests fail with ConnectionError."""
        self._writer.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(ConnectionError("the other process is gone"))


def fork_controller() -> tuple[Forked, socket.socket]:
    """Fork the controller's process off this one, which has no threads and no event loop yet.

    So it need not import again what the broker has imported, which takes as long as all the rest of
    its start. It waits for its settings. This function returns in the broker's process only.
    """
    ours, theirs = socket.socketpair()
    sys.stdout.flush()
    sys.stderr.flush()
    broker = os.getpid()
    pid = os.fork()
    if pid:
        theirs.close()
        return Forked(pid), ours
    keep_descriptors(theirs.fileno())
    from klamm.node import controller_process

    set_command_line("klamm", "controller")
    controller_process.run(theirs.detach(), broker)
    sys.exit()


class ControllerLink:
    """Runs the controller's process and starts it again when it ends; sends it the registration."""

    def __init__(
        self,
        on_session_lost: Callable[[int], Awaitable[None]],
        first: tuple[Forked, socket.socket] | None = None,
    ) -> None:
        """`first` is a process that has been forked (`fork_controller`), to begin with."""
        self._on_session_lost = on_session_lost
        self._first = first
        self._process: subprocess.Popen[bytes] | Forked | None = None
        self._link: ProcessLink | None = None
        self._serving: asyncio.Task[None] | None = None
        self._hello: dict[str, Any] | None = None
        self._dynamic: dict[str, Any] | None = None
        self._broker_epoch: int | None = None
        self._is_stopping = False

    async def spawn(self) -> None:
        """Start the process; it waits for its settings, so this can be done early."""
        self._process, ours = self._first or self._execute()
        self._first = None
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        self._link = ProcessLink(reader, writer)
        self._serving = asyncio.create_task(self._serve(self._link, self._process))

    @staticmethod
    def _execute() -> "tuple[subprocess.Popen[bytes], socket.socket]":
        """Start the process in an interpreter of its own: a broker that serves has threads, and
        cannot be forked."""
        ours, theirs = socket.socketpair()
        with theirs:
            fd = theirs.fileno()
            command = [sys.executable, "-m", "klamm.node.controller_process"]
            return subprocess.Popen(
                [*command, str(fd), str(os.getpid())], pass_fds=[fd], stdin=subprocess.DEVNULL
            ), ours

    def configure(self, properties: Mapping[str, str], broker_id: int, cluster_id: str) -> None:
        """Give the process its settings."""
        self._hello = {
            "properties": dict(properties),
            "broker_id": broker_id,
            "cluster_id": cluster_id,
        }
        self._tell_json(MessageKind.HELLO, self._hello)

    def registered(self, broker_epoch: int) -> None:
        """The broker is registered: the controller may take part in the election."""
        self._broker_epoch = broker_epoch
        self._tell(MessageKind.REGISTERED, _EPOCH.pack(broker_epoch))

    def session_lost(self) -> None:
        """The broker's session is lost: the candidate's counts as lost too."""
        if self._broker_epoch is not None:
            self._tell(MessageKind.SESSION_LOST, _EPOCH.pack(self._broker_epoch))
            self._broker_epoch = None

    def dynamic_config(self, default: Mapping[str, str], own: Mapping[str, str]) -> None:
        """The dynamic configuration of the broker changed."""
        self._dynamic = {"dynamic": {"default": dict(default), "broker": dict(own)}}
        self._tell_json(MessageKind.CONFIG, self._dynamic)

    def unclean_topic(self, topic: str) -> None:
        """A topic's override of unclean election was switched on (LEAD-17)."""
        self._tell_json(MessageKind.CONFIG, {"unclean_topic": topic})

    async def forward(self, frame: bytes | memoryview, requester: str = "") -> bytes:
        """Forward a request to the controller's process.

        UnavailableError if it does not respond.

        `requester` says who asks, for the history; empty for clients that did not authenticate.
        """
        who = requester.encode()
        body = REQUESTER_SIZE.pack(len(who)) + who + bytes(frame)
        response = await self._ask(MessageKind.KAFKA_REQUEST, body)
        if not response:
            raise UnavailableError("the controller's process could not answer")
        return response

    async def request(self, request: Any) -> Any:
        """A request of the broker's own."""
        return orjson.loads(await self._ask(MessageKind.REQUEST, orjson.dumps(request)))

    async def stop(self) -> None:
        """Stop the controller's process and wait for its end."""
        self._is_stopping = True
        self._tell(MessageKind.STOP)
        if self._serving is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._serving), timeout=5)
            self._serving.cancel()
        if self._process is not None:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    def resume(self) -> None:
        """Go on together after a stop (see `klamm.processes.follow_parent`)."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGCONT)

    def _tell(self, kind: MessageKind, body: bytes = b"") -> None:
        if self._link is not None:
            self._link.tell(kind, body)

    def _tell_json(self, kind: MessageKind, value: Any) -> None:
        self._tell(kind, orjson.dumps(value))

    async def _ask(self, kind: MessageKind, body: bytes) -> bytes:
        if self._link is None:
            raise UnavailableError("the controller's process is not running")
        try:
            return await self._link.request(kind, body)
        except ConnectionError as error:
            raise UnavailableError(str(error)) from error

    async def _serve(self, link: ProcessLink, process: "subprocess.Popen[bytes] | Forked") -> None:
        await link.serve(self._on_message)
        if self._is_stopping:
            return
        process.kill()
        code = await asyncio.to_thread(process.wait)
        log.error("the controller's process ended with %s; starting another", code)
        # Its session still owns /controller if it had the role; the loss of that session is the
        # loss of both, and a new registration comes with a new candidacy.
        epoch = self._broker_epoch
        self._link = None
        await asyncio.sleep(_RESTART_PAUSE_S)
        await self.spawn()
        if self._hello is not None:
            self._tell_json(MessageKind.HELLO, self._hello)
        if self._dynamic is not None:
            self._tell_json(MessageKind.CONFIG, self._dynamic)
        if epoch is not None:
            await self._on_session_lost(epoch)

    async def _on_message(self, kind: MessageKind, number: int, body: bytes) -> None:
        if kind is MessageKind.SESSION_LOST:
            await self._on_session_lost(_EPOCH.unpack(body)[0])
        else:
            log.error("message %s of the controller's process is out of place", kind.name)
