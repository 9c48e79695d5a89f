"""The deadlines of groups, most of which are moved before they are reached."""

import enum
import heapq
from collections.abc import Iterator
from typing import NamedTuple


class TimerKind(enum.IntEnum):
    """The kinds of deadlines."""

    SESSION = enum.auto()  # a member has been silent for too long
    PENDING_MEMBER = enum.auto()  # a member id was handed out and never used
    JOIN = enum.auto()  # the join phase ends, even if members are missing
    SYNC = enum.auto()  # members that did not fetch their assignment are given up
    RETENTION = enum.auto()  # expired offsets are dropped


class GroupTimer(NamedTuple):
    """The name of one deadline; setting it again moves the deadline."""

    kind: TimerKind
    group_id: str = ""
    member_id: str = ""


class GroupTimers:
    """Deadlines by name.

    Heartbeats move deadlines every few seconds. The heap is not changed for that: an outdated entry
    is found when its time comes, and goes back into the heap with the current deadline.
    """

    def __init__(self) -> None:
        self._deadline_ms: dict[GroupTimer, int] = {}
        self._heap: list[tuple[int, int, GroupTimer]] = []
        self._queued_ms: dict[GroupTimer, int] = {}  # the earliest heap entry of each timer
        self._sequence = 0  # timers due at the same time fire in the order of arming

    def arm(self, timer: GroupTimer, at_ms: int) -> None:
        """Set or move the deadline of `timer` to `at_ms`."""
        self._deadline_ms[timer] = at_ms
        queued_ms = self._queued_ms.get(timer)
        if queued_ms is None or at_ms < queued_ms:
            self._queue(timer, at_ms)

    def cancel(self, timer: GroupTimer) -> None:
        """Remove the deadline of `timer` if it has one."""
        self._deadline_ms.pop(timer, None)

    def is_armed(self, timer: GroupTimer) -> bool:
        """Whether `timer` has a deadline."""
        return timer in self._deadline_ms

    def count(self, *kinds: TimerKind) -> int:
        """How many deadlines there are of these kinds."""
        return sum(timer.kind in kinds for timer in self._deadline_ms)

    def next_deadline_ms(self) -> int | None:
        """The earliest deadline; None if there is none."""
        while self._heap:
            at_ms, _, timer = self._heap[0]
            if self._is_current(at_ms, timer):
                return at_ms
            self._requeue_first()
        return None

    def due(self, now_ms: int) -> Iterator[GroupTimer]:
        """Yield the timers that are due, one by one, because acting on one may move others."""
        while (at_ms := self.next_deadline_ms()) is not None and at_ms <= now_ms:
            _, _, timer = heapq.heappop(self._heap)
            del self._queued_ms[timer], self._deadline_ms[timer]
            yield timer

    def _is_current(self, at_ms: int, timer: GroupTimer) -> bool:
        return self._deadline_ms.get(timer) == at_ms == self._queued_ms.get(timer)

    def _requeue_first(self) -> None:
        at_ms, _, timer = heapq.heappop(self._heap)
        if self._queued_ms.get(timer) != at_ms:
            return  # an earlier entry took its place
        del self._queued_ms[timer]
        if timer in self._deadline_ms:
            self._queue(timer, self._deadline_ms[timer])

    def _queue(self, timer: GroupTimer, at_ms: int) -> None:
        self._queued_ms[timer] = at_ms
        self._sequence += 1
        heapq.heappush(self._heap, (at_ms, self._sequence, timer))
