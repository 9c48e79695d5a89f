"""Work that takes long is done in slices, and other requests are served in between.

A handler of a request that may name very much is a generator: it yields after each item, and it
yields an awaitable to be sent what comes of it. What is done within one slice is answered at once,
like the response of any other handler; what waits for a future goes on when that is resolved
(`Delayed`); the rest becomes a coroutine. All such requests take turns, so that together they hold
the event loop no longer than one of them does.
"""

import asyncio
import functools
import gc
import inspect
import logging
import sys
import threading
import weakref
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from time import perf_counter
from typing import Any, Final, Generic, ParamSpec, TypeAlias, TypeVar

log = logging.getLogger("klamm.slices")

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")

Steps: TypeAlias = Generator[Awaitable[Any] | None, Any, T]

#: The longest time to hold the event loop before others get a turn. A request of somebody else
#: needs several turns: one that is forwarded to the controller five in each of two processes.
SLICE_S: Final = 0.003

_SWITCH_S: Final = 0.0002
#: How many items at most are dealt with in one step.
_PIECE: Final = 200
#: From this many new objects on, the garbage collector is told to leave them alone.
_MANY_OBJECTS: Final = 2000

#: One thread for all that is large, because each more would take its share from the event loop.
_aside = ThreadPoolExecutor(1, "large-requests")
_turns: "weakref.WeakKeyDictionary[Any, asyncio.Lock]" = weakref.WeakKeyDictionary()
#: Set while objects are frozen that were made after the start of the process.
_has_frozen = threading.Event()


class LargeBody(dict[str, Any]):
    """The body of a response that took more than a slice to make, and will to encode."""


def prefer_event_loop() -> None:
    """Have other threads hand over to the event loop after 0.2 ms instead of 5 ms.

    The loop waits for that whenever it is woken, and after every system call.
    """
    sys.setswitchinterval(_SWITCH_S)


class Delayed(Generic[T]):
    """A result that is made when an event has come.

    It can be awaited like a coroutine, but needs no task: of every record that is produced with
    acks=all, three requests are delayed, and in a rebalance nearly all.
    """

    __slots__ = ("event", "respond")

    def __init__(
        self, event: "asyncio.Future[Any]", respond: Callable[[], T | Awaitable[T]]
    ) -> None:
        self.event = event
        self.respond = respond

    def __await__(self) -> Generator[Any, None, T]:
        try:
            yield from self.event
        except Exception:
            log.debug("an event has failed, which is for `respond` to find", exc_info=True)
        result = self.respond()
        if inspect.isawaitable(result):
            return (yield from result.__await__())
        return result


def run(steps: Steps[Any]) -> Any:
    """Take steps for the time of a slice; return the result, or what has to be awaited for it."""
    return _take(steps, functools.partial(next, steps))


def _take(steps: Steps[Any], step: Callable[[], Awaitable[Any] | None]) -> Any:
    until = perf_counter() + SLICE_S
    try:
        wanted = step()
        while True:
            if wanted is None:
                if perf_counter() > until:
                    return _go_on(steps, None)
                wanted = next(steps)
            elif isinstance(wanted, asyncio.Future):
                go_on = functools.partial(_send, steps, wanted)
                if not wanted.done():
                    return Delayed(wanted, functools.partial(_take, steps, go_on))
                wanted = go_on()
            else:
                return _go_on(steps, wanted)
    except StopIteration as end:
        return end.value


def _send(steps: Steps[Any], event: "asyncio.Future[Any]") -> Awaitable[Any] | None:
    """Send what came of an awaited future."""
    try:
        result = event.result()
    except Exception as error:
        return steps.throw(error)
    return steps.send(result)


async def finish(steps: Steps[T]) -> T:
    """Take all steps, for a caller that waits for the result anyhow."""
    result = run(steps)
    finished: T = await result if inspect.isawaitable(result) else result
    return finished


def turn_of_process() -> asyncio.Lock:
    """The lock that the large requests of this process share: each event loop has its own.

    The simulation, where many processes share one event loop, puts another function in its place.
    """
    return _turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())


async def _go_on(steps: Steps[Any], wanted: Awaitable[Any] | None) -> Any:
    """Take the rest of the steps.

    What was awaited by requests that are small may arrive for hundreds of them at once, as when a
    group has its assignments, so they go on at once; only those that have had a slice take turns.
    """
    turn = turn_of_process()
    is_large = False
    try:
        while True:
            step: Callable[[], Awaitable[Any] | None]
            if wanted is None:
                is_large = True
                step = functools.partial(next, steps)
            else:
                try:
                    step = functools.partial(steps.send, await wanted)
                except Exception as error:
                    step = functools.partial(steps.throw, error)
            if is_large:
                async with turn:
                    await asyncio.sleep(0)
                    with uncollected():
                        wanted = _slice(step, steps)
            else:
                wanted = _slice(step, steps)
    except _Done as end:
        result = await end.result if inspect.isawaitable(end.result) else end.result
        if is_large and type(result) is dict:
            return LargeBody(result)
        return result
    finally:
        steps.close()


class _Done(Exception):
    """The steps are at their end. A coroutine cannot raise StopIteration."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self.result = result


def _slice(step: Callable[[], Awaitable[Any] | None], steps: Steps[Any]) -> Awaitable[Any] | None:
    until = perf_counter() + SLICE_S
    try:
        wanted = step()
        while wanted is None and perf_counter() < until:
            wanted = next(steps)
    except StopIteration as end:
        raise _Done(end.value) from None
    return wanted


async def paced(items: Iterable[T]) -> AsyncIterator[T]:
    """The items for a loop of a coroutine; others get a turn whenever a slice is over."""
    turn = turn_of_process()
    left = iter(items)
    collected: AbstractContextManager[None] = nullcontext()
    while True:
        until = perf_counter() + SLICE_S
        with collected:
            for item in left:
                yield item
                if perf_counter() > until:
                    break
            else:
                return
        async with turn:
            await asyncio.sleep(0)
        # What takes more than a slice makes many objects.
        collected = uncollected()


def each(function: Callable[[T], R], items: Iterable[T]) -> Steps[list[R]]:
    """Steps that call a function for each of the items; the results in their order."""
    results = []
    for item in items:
        results.append(function(item))
        yield None
    return results


def pieces(items: Sequence[T]) -> Iterator[tuple[T, ...]]:
    """The items in pieces of a size that one step may handle."""
    for start in range(0, len(items), _PIECE):
        yield tuple(items[start : start + _PIECE])


def counted(items: Iterable[T]) -> Steps[dict[T, int]]:
    """Steps that count how often each item is there, in the order of their first appearance."""
    counts: dict[T, int] = {}
    for item in items:
        counts[item] = counts.get(item, 0) + 1
        yield None
    return counts


async def aside(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Do in another thread what needs nothing but its arguments."""

    def call() -> T:
        with uncollected():
            return function(*args, **kwargs)

    return await asyncio.get_running_loop().run_in_executor(_aside, call)


def discard(dismantle: Callable[[T], None], message: T) -> None:
    """Take a message, or something that was made of it, apart in the other thread: nobody waits for
    it, and freed at once it would stop all threads, if it is large.
    """
    if isinstance(message, list | dict | set) and len(message) < _MANY_OBJECTS:
        return
    asyncio.get_running_loop().run_in_executor(_aside, dismantle, message)


@contextmanager
def uncollected() -> Iterator[None]:
    """Keep the garbage collector from the very many objects that are made meanwhile, and from those
    that were made just before.

    It would visit all of them in one go, again and again. None of them is part of a cycle: they are
    freed with their last reference. But freezing takes in every object of the process, cycles
    included, so `collect_frozen` has to follow from time to time.
    """
    gc.disable()
    try:
        yield None
    finally:
        if gc.get_count()[0] > _MANY_OBJECTS:
            gc.freeze()
            _has_frozen.set()
        gc.enable()


def collect_frozen() -> None:
    """Free the cycles that large requests have kept from the garbage collector.

    This stops the process for a full collection, so it is for a time when that matters little.
    """
    if _has_frozen.is_set():
        _has_frozen.clear()
        gc.unfreeze()
        gc.collect()
        gc.freeze()
