"""Responses on their way from a handler to a connection: parts of frames, and what comes later."""

import asyncio
import errno
import inspect
import os
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from klamm.metrics.requests import RequestMeter, Unsent

T = TypeVar("T")

#: A response up to this size is sent in one piece: copying its ranges of files takes less time than
#: a system call for each of them and for what is between them.
_ONE_PIECE_BYTES: Final = 32 * 1024


class FileRange(Protocol):
    """Part of a file that is sent unchanged. The file stays open while this object lives."""

    @property
    def position(self) -> int: ...

    @property
    def size(self) -> int: ...

    def fileno(self) -> int: ...


Part: TypeAlias = bytes | memoryview | FileRange
#: The parts of one response frame; None if there is no response.
Parts: TypeAlias = Sequence[Part] | None
#: A response, the meter of its API, and the measurements to note there when it has been sent.
MeasuredResponse: TypeAlias = tuple[Parts, RequestMeter, Unsent]


class Delayed(Generic[T]):
    """A response, or what a handler makes it from, that is made when an event has come.

    It can be awaited like a coroutine, but needs no task: of every record that is produced with
    acks=all, three requests are delayed.
    """

    __slots__ = ("event", "respond")

    def __init__(
        self, event: "asyncio.Future[None]", respond: Callable[[], T | Awaitable[T]]
    ) -> None:
        self.event = event
        self.respond = respond

    def __await__(self) -> Generator[Any, None, T]:
        yield from self.event
        response = self.respond()
        if inspect.isawaitable(response):
            return (yield from response.__await__())
        return response


def in_one_piece(parts: Sequence[Part]) -> Sequence[Part]:
    """The parts of a response, joined if they are small."""
    size = 0
    for part in parts:
        size += len(part) if isinstance(part, bytes | memoryview) else part.size
        if size > _ONE_PIECE_BYTES:
            return parts
    piece = b"".join(
        part
        if isinstance(part, bytes | memoryview)
        else os.pread(part.fileno(), part.size, part.position)
        for part in parts
    )
    if len(piece) < size:
        raise OSError(errno.EIO, "a file is shorter than it was")
    return [piece]
