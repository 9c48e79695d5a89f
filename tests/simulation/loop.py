"""An event loop without a selector: time passes when nothing else is left to do.

Every callback belongs to a process of the simulation, the one whose context it was scheduled in.
A process that is paused has its callbacks kept for later; those of a dead one are never run. So a
crash is what it is in reality: the next instruction does not happen.
"""

import asyncio
import contextlib
import contextvars
import heapq
import random
from collections.abc import Callable, Coroutine
from typing import Any

#: How long something takes that is done in another thread, in seconds.
_THREAD_S = (0.0002, 0.003)


class Process:
    """Something that can crash, be stopped and go on: a broker, its candidate, a client."""

    def __init__(self, name: str, node: str, loop: "SimulatedLoop") -> None:
        self.name = name
        #: The machine that it runs on; connections inside of one cannot be cut.
        self.node = node
        self.is_alive = True
        self.is_paused = False
        #: By how much its wall clock is wrong.
        self.clock_offset_s = 0.0
        self.signal_handlers: dict[int, Callable[[], object]] = {}
        #: Stands for `klamm.slices.turn_of_process`.
        self.turn = asyncio.Lock()
        self.on_end: list[Callable[[], None]] = []
        self._loop = loop
        self._held: list[asyncio.Handle] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self.context = contextvars.copy_context()
        self.context.run(CURRENT.set, self)

    def __repr__(self) -> str:
        return self.name

    def start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Begin with something; it and all that it starts is this process's."""
        task = self._loop.create_task(work, context=self.context.copy())
        task.add_done_callback(self._loop.report)
        return task

    def end(self) -> None:
        """Crash, or exit: nothing more is done here."""
        if self.is_alive:
            self.is_alive = False
            self._held.clear()
            # Kept until the history is over: what is collected runs its `finally` blocks.
            self._loop.graveyard.extend(self._tasks)
            for tell in self.on_end:
                tell()

    def pause(self) -> None:
        """Stop, as by SIGSTOP."""
        self.is_paused = True

    def resume(self) -> None:
        """Go on with what has been waiting."""
        self.is_paused = False
        held, self._held = self._held, []
        self._loop.add_ready(held)

    def signal(self, number: int) -> None:
        """Deliver a signal that the process has a handler for."""
        handler = self.signal_handlers.get(number)
        if self.is_alive and handler is not None:
            self._loop.call_soon(handler, context=self.context)

    def hold(self, handle: asyncio.Handle) -> None:
        """Keep a callback that came while the process was not running."""
        if self.is_alive:
            self._held.append(handle)

    def own(self, task: asyncio.Task[Any]) -> None:
        """Remember a task, and forget those that have ended."""
        self._tasks.append(task)
        if len(self._tasks) > 256:
            self._tasks = [each for each in self._tasks if not each.done()]
        if not self.is_alive:
            self._loop.graveyard.append(task)


CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


def current() -> Process:
    """The process whose code is running."""
    process = CURRENT.get()
    assert process is not None, "this is nobody's code"
    return process


class _Handle(asyncio.Handle):
    __slots__ = ("process",)

    def _run(self) -> None:
        process = self.process
        if process is None or (process.is_alive and not process.is_paused):
            super()._run()
        else:
            process.hold(self)


class _TimerHandle(asyncio.TimerHandle):
    __slots__ = ("process",)

    def _run(self) -> None:
        process = self.process
        if process is None or (process.is_alive and not process.is_paused):
            super()._run()
        else:
            process.hold(self)


class _Time:
    """Stands where a selector would: instead of waiting for sockets, the clock is put forward."""

    def __init__(self, loop: "SimulatedLoop") -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("nothing will ever happen again")
        if timeout > 0:
            self._loop.jump(timeout)
        return []


class SimulatedLoop(asyncio.BaseEventLoop):
    """asyncio's own loop, but for where it would meet the world."""

    def __init__(self, chance: random.Random, network: Any) -> None:
        super().__init__()
        self._now = 0.0
        self._chance = chance
        self._network = network
        self._selector = _Time(self)
        #: The context of what belongs to no process.
        self.outside = contextvars.Context()
        self.graveyard: list[asyncio.Task[Any]] = []
        self.failures: list[str] = []
        self.on_failure: Callable[[str], None] = lambda failure: None
        self.set_exception_handler(self._on_exception)

    # Time

    def time(self) -> float:
        return self._now

    def jump(self, seconds: float) -> None:
        """Put the clock to the next moment for which something is planned."""
        next_at = self._scheduled[0]._when if self._scheduled else self._now
        self._now = max(self._now, next_at)

    def _call_soon(
        self, callback: Callable[..., Any], args: Any, context: contextvars.Context | None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        handle.process = CURRENT.get() if context is None else context.get(CURRENT)
        self._ready.append(handle)
        return handle

    def call_soon(
        self,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        return self._call_soon(callback, args, context)

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(
        self,
        when: float,
        callback: Callable[..., Any],
        *args: Any,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        timer = _TimerHandle(when, callback, args, self, context)
        timer.process = CURRENT.get() if context is None else context.get(CURRENT)
        heapq.heappush(self._scheduled, timer)
        timer._scheduled = True
        return timer

    def add_ready(self, handles: list[asyncio.Handle]) -> None:
        """Let callbacks run that have been kept."""
        self._ready.extend(handles)

    # Tasks, threads, signals

    def create_task(self, coro: Any, *, name: Any = None, context: Any = None) -> asyncio.Task[Any]:
        task = super().create_task(coro, name=name, context=context)
        process = CURRENT.get() if context is None else context.get(CURRENT)
        if process is not None:
            process.own(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Threads take turns with the loop, so that there is one order of everything."""
        future = self.create_future()

        def run() -> None:
            if future.cancelled():
                return
            try:
                result = func(*args)
            except StopIteration as error:
                future.set_exception(RuntimeError(repr(error)))
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.call_later(self._chance.uniform(*_THREAD_S), run)
        return future

    def add_signal_handler(self, sig: int, callback: Callable[..., Any], *args: Any) -> None:
        current().signal_handlers[int(sig)] = lambda: callback(*args)

    # The network

    async def create_connection(self, protocol_factory: Any, host: Any, port: Any, **_: Any) -> Any:
        return await self._network.connect(protocol_factory, host, port)

    # The end

    def report(self, task: asyncio.Task[Any]) -> None:
        """Note what ended a task that should not have ended so."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_exception(self, {"message": task.get_coro().__qualname__, "exception": error})

    def _on_exception(self, loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, ProcessExit):
            self.failures.append(f"{context.get('message')}: {error!r}")
            self.on_failure(self.failures[-1])

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass

    def bury(self) -> None:
        """Take everything apart that was under way, without letting it do anything more."""
        pending = [task for task in (*self.graveyard, *asyncio.all_tasks(self)) if not task.done()]
        self._ready.clear()
        self._scheduled.clear()
        self.close()
        for task in pending:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            # An error says that it would have waited for something more.
            with contextlib.suppress(RuntimeError, ValueError):
                task.get_coro().close()
        self.graveyard.clear()


async def wait_until(condition: Callable[[], bool]) -> None:
    """Look at something again and again until it is true."""
    while not condition():  # noqa: ASYNC110 - time is simulated: looking costs next to nothing
        await asyncio.sleep(0.05)


class ProcessExit(BaseException):
    """What a process raises in itself that is about to be no more."""
