"""The controller's one queue: first in, first out, and cleared whole in favour of one event."""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Queued:
    """An event that waits: when it came, why, and who wants its answer, if anybody does."""

    event: Any
    enqueued_at: float
    cause: str
    answer: Callable[[Any], None] | None = None


class EventQueue:
    """Unbounded, in order, for one consumer (EVT-1..5)."""

    def __init__(self, clock: Callable[[], float], preempted: Callable[[Queued], None]) -> None:
        self._clock = clock
        self._preempted = preempted
        self._waiting: deque[Queued] = deque()
        self._arrived = asyncio.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, event: Any, *, cause: str, answer: Callable[[Any], None] | None = None) -> None:
        """Add an event at the end."""
        self._waiting.append(Queued(event, self._clock(), cause, answer))
        self._arrived.set()

    def clear_and_put(self, event: Any, *, cause: str) -> None:
        """Preempt everything that waits, then add the event."""
        waiting, self._waiting = self._waiting, deque()
        for queued in waiting:
            self._preempted(queued)
        self.put(event, cause=cause)

    async def take(self) -> Queued:
        """The next event, waited for."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        return self._waiting.popleft()
