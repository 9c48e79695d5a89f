"""Tests that are coroutines, and work that is cut into steps."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from klamm.slices import Steps

P = ParamSpec("P")
T = TypeVar("T")


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run the test in an event loop of its own; fixtures and parameters are passed on."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def result_of(steps: Steps[T]) -> T:
    """Take all steps at once; none of them waits for anything."""
    while True:
        try:
            assert next(steps) is None, "a step waits"
        except StopIteration as end:
            result: T = end.value
            return result
