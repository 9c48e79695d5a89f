"""Server-sent events: the decisions as they are taken, and the cluster as it changes.

The stream of decisions has an id for each, `EPOCH:SEQUENCE`, and goes on behind the one that a
browser names when it connects again. A listener that does not keep up is not waited for: what it
misses of the history it reads again, and what it misses of the cluster it replaces by a new map.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Final

import orjson
from starlette.responses import StreamingResponse

from klamm.console.requests import parse_key
from klamm.console.watch import ClusterWatch

if TYPE_CHECKING:
    from klamm.console.ledger import HistoryEvent, Key, Ledger

_KEEP_ALIVE_S: Final = 10.0
_BACKLOG: Final = 200
_TOGETHER_MAX: Final = 200
_HEADERS: Final = {"x-accel-buffering": "no"}


def stream_events(ledger: "Ledger", last: str | None, stopping: asyncio.Event) -> StreamingResponse:
    """The decisions behind `last`, or the newest ones, and those to come."""
    after = None if last is None else parse_key(last)
    return _response(_events(ledger, after, stopping))


async def _events(
    ledger: "Ledger", after: "Key | None", stopping: asyncio.Event
) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    arrived = asyncio.Event()

    def on_events(_: "list[HistoryEvent]") -> None:
        loop.call_soon_threadsafe(arrived.set)

    end = ledger.listen(on_events)
    try:
        yield b"retry: 500\n\n"
        found = ledger.backlog(_BACKLOG) if after is None else ledger.after(after)
        while not stopping.is_set():
            for start in range(0, len(found), _TOGETHER_MAX):
                some = found[start : start + _TOGETHER_MAX]
                yield b"".join(_frame(each.describe(), each.id) for each in some)
            if found:
                after = found[-1].key
            if await _wait(arrived, stopping):
                arrived.clear()
            else:
                yield b": \n\n"
            # Listening began before the first look, so that nothing falls between the two.
            found = ledger.backlog(_BACKLOG) if after is None else ledger.after(after)
    finally:
        end()


def stream_changes(watch: ClusterWatch | None, stopping: asyncio.Event) -> StreamingResponse:
    """The changes of the cluster: brokers, controller, health and rows of the map.

    A saved history (None) does not change.
    """
    return _response(_changes(watch, stopping))


async def _changes(watch: ClusterWatch | None, stopping: asyncio.Event) -> AsyncIterator[bytes]:
    loop = asyncio.get_running_loop()
    waiting: list[dict[str, Any]] = []
    arrived = asyncio.Event()

    def take(change: dict[str, Any]) -> None:
        waiting.append(change)
        arrived.set()

    def on_change(change: dict[str, Any]) -> None:
        loop.call_soon_threadsafe(take, change)

    end = watch.listen(on_change) if watch is not None else lambda: None
    try:
        yield b"retry: 500\n\n"
        while not stopping.is_set():
            if not await _wait(arrived, stopping):
                yield b": \n\n"
                continue
            arrived.clear()
            some, waiting[:] = list(waiting), []
            yield b"".join(_frame(each) for each in some)
    finally:
        end()


async def _wait(arrived: asyncio.Event, stopping: asyncio.Event) -> bool:
    """Wait until something has arrived, or for a while, so that a dead connection is noticed."""
    tasks = {asyncio.ensure_future(arrived.wait()), asyncio.ensure_future(stopping.wait())}
    try:
        await asyncio.wait(tasks, timeout=_KEEP_ALIVE_S, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    return arrived.is_set()


def _frame(data: dict[str, Any], id: str | None = None) -> bytes:
    head = b"" if id is None else b"id: %s\n" % id.encode()
    return head + b"data: " + orjson.dumps(data) + b"\n\n"


def _response(content: AsyncIterator[bytes]) -> StreamingResponse:
    return StreamingResponse(content, media_type="text/event-stream", headers=_HEADERS)
