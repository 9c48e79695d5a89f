"""Requests that wait for something to happen to partitions, or for their time to run out.

A request waits under the keys of what could complete it. It is looked at when one of those keys
is reported, and not otherwise: ten thousand idle fetches cost what their memory costs. Requests
decide for themselves whether they are complete; this module only knows whom to ask and when.
"""

import heapq
from collections.abc import Hashable, Iterable
from typing import Any, Final, Generic, Protocol, TypeVar

#: Below this many it is not worth sorting out which timers still count.
_FEW: Final = 64


K = TypeVar("K", bound=Hashable)
ToCheck = TypeVar("ToCheck", bound=Hashable, contravariant=True)


class Waiter(Protocol[ToCheck]):
    """A request that may have to wait."""

    def check(self, key: ToCheck) -> bool:
        """Look again at what `key` stands for; whether the request is now complete."""


W = TypeVar("W", bound=Waiter[Any])


class Ticket(Generic[K, W]):
    """A request's place in a waiting room."""

    __slots__ = ("deadline_ms", "keys", "waiter")

    def __init__(self, waiter: W, keys: tuple[K, ...], deadline_ms: int) -> None:
        self.waiter: W | None = waiter
        self.keys = keys
        self.deadline_ms = deadline_ms

    def __lt__(self, other: "Ticket[K, W]") -> bool:
        return self.deadline_ms < other.deadline_ms


class DelayedOperationPurgatory(Generic[K, W]):
    """Where requests of one kind wait."""

    def __init__(self) -> None:
        self._by_key: dict[K, dict[Ticket[K, W], None]] = {}
        self._timers: list[Ticket[K, W]] = []
        self._count = 0
        self._watched = 0

    def __len__(self) -> int:
        return self._count

    @property
    def watched(self) -> int:
        """How many keys those who wait are waiting under, each on its own."""
        return self._watched

    def add(self, waiter: W, keys: Iterable[K], deadline_ms: int) -> Ticket[K, W]:
        """Let a request wait under `keys`; whoever adds it has seen that it is not complete."""
        ticket = Ticket(waiter, tuple(keys), deadline_ms)
        for key in ticket.keys:
            self._by_key.setdefault(key, {})[ticket] = None
        heapq.heappush(self._timers, ticket)
        self._count += 1
        self._watched += len(ticket.keys)
        return ticket

    def wake(self, key: K) -> list[W]:
        """Look at those that wait under `key`; the complete ones leave and are returned."""
        waiting = self._by_key.get(key)
        if not waiting:
            return []
        return [
            waiter
            for ticket in tuple(waiting)
            if (waiter := ticket.waiter) is not None and waiter.check(key) and self._leave(ticket)
        ]

    def tick(self, now_ms: int) -> list[W]:
        """Those whose time has run out, in the order of their deadlines; they leave."""
        late: list[W] = []
        while self._timers and self._timers[0].deadline_ms <= now_ms:
            ticket = heapq.heappop(self._timers)
            if (waiter := ticket.waiter) is not None:
                self._leave(ticket)
                late.append(waiter)
        return late

    def next_deadline_ms(self) -> int | None:
        """When `tick` will next have something to do; None while nobody waits."""
        while self._timers and self._timers[0].waiter is None:
            heapq.heappop(self._timers)
        return self._timers[0].deadline_ms if self._timers else None

    def remove(self, ticket: Ticket[K, W]) -> bool:
        """Let a request go that nobody wants a response to any more; whether it still waited."""
        return ticket.waiter is not None and self._leave(ticket)

    def _leave(self, ticket: Ticket[K, W]) -> bool:
        for key in ticket.keys:
            waiting = self._by_key.get(key)
            if waiting is not None:
                waiting.pop(ticket, None)
                if not waiting:
                    del self._by_key[key]
        # The timer stays in the heap without its request, which may hold a lot of memory. When
        # such timers outnumber the others, all of them are swept out at once.
        ticket.waiter = None
        self._count -= 1
        self._watched -= len(ticket.keys)
        if len(self._timers) > 2 * self._count + _FEW:
            self._timers = [timer for timer in self._timers if timer.waiter is not None]
            heapq.heapify(self._timers)
        return True
