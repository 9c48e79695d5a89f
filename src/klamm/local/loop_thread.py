"""An event loop in a thread of its own, for callers that are not async.

It also works in a notebook, which already runs an event loop in the user's thread.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Final, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_PATIENCE_S: Final = 60.0


class LoopThread:
    """Runs coroutines for callers in any thread."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def call(self, work: Callable[[*Ts], Coroutine[Any, Any, T]], *arguments: *Ts) -> T:
        """Run a coroutine function in the loop and return its result.

        The coroutine is made in the loop's thread, where no Ctrl-C comes between its making and its
        start.
        """
        begun: Future[Future[T]] = Future()

        def begin() -> None:
            begun.set_result(asyncio.run_coroutine_threadsafe(work(*arguments), self._loop))

        self._loop.call_soon_threadsafe(begin)
        future = begun.result(_PATIENCE_S)
        try:
            return future.result(_PATIENCE_S)
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel all tasks, then end the loop and the thread."""
        self.call(_cancel_the_rest)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _cancel_the_rest() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
