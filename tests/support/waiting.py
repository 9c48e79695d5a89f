"""Waiting for a condition, with a deadline."""

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
#: How long a test waits by default; a busy machine is slow.
PATIENCE_S = 30.0


def wait_until(look: Callable[[], T], what: str = "", timeout_s: float = PATIENCE_S) -> T:
    """Return the first true value of `look`; TimeoutError if there is none in time."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what or look}; last: {found!r}")
        threading.Event().wait(0.02)
    return found


async def until(condition: Callable[[], object]) -> None:
    """The same for a coroutine: the event loop runs between two looks."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - what is waited for announces nothing
            await asyncio.sleep(0.001)
