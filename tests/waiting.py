"""Waiting for a condition, with a deadline."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(look: Callable[[], T], what: str, timeout_s: float = 30.0) -> T:
    """The first true value of `look`."""
    deadline = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {what}")
        threading.Event().wait(0.02)
    return found
