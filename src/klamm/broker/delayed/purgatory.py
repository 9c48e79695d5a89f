"""Purgatories: requests that wait for an event on one of their partitions, or for their timeout.

A delayed operation is watched under its partitions; a fetch of a session is watched under the
session, which stands for all its partitions. An event on a partition checks only the operations
that are watched under it, so that ten thousand idle fetches cost no more than their memory.
Operations decide when they are complete; this module decides when they are checked.

An event also marks the partition in the fetch sessions that have it: their next fetch reads it.
"""

import asyncio
import heapq
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final, NamedTuple

from klamm.broker.clock import Clock
from klamm.broker.fetch.sessions import FetchSession, SessionPartitions
from klamm.names import TopicPartition

#: The key under which an operation is watched.
WatchKey = TopicPartition | FetchSession
#: Fewer stale timers than this stay in the heap.
_STALE_TIMERS_MAX: Final = 64
#: Longer timeouts are cut to a day.
_TIMEOUT_MAX_MS: Final = 86_400_000


class DelayedOperation(ABC):
    """A request that may have to wait before it can be answered.

    Subclasses state the condition under which they are complete above `try_complete`.
    """

    __slots__ = ("deadline_ms", "finished", "is_watched", "keys", "partition_count")

    def __init__(self, keys: Iterable[WatchKey], partition_count: int | None = None) -> None:
        """`partition_count` is how many partitions the keys stand for, if not one each."""
        self.keys = tuple(keys)
        self.partition_count = len(self.keys) if partition_count is None else partition_count
        self.deadline_ms = 0
        self.is_watched = False
        #: Resolved when the operation is complete or expired; None if it was complete at once.
        self.finished: asyncio.Future[None] | None = None

    def __lt__(self, other: "DelayedOperation") -> bool:
        return self.deadline_ms < other.deadline_ms

    @abstractmethod
    def try_complete(self, key: TopicPartition) -> bool:
        """Check one partition again; return whether the whole operation is complete."""

    @abstractmethod
    def try_complete_all(self) -> bool:
        """Check every partition; return whether the operation is complete."""

    @abstractmethod
    def on_expiration(self) -> None:
        """Note that the timeout has passed before the operation was complete."""

    @property
    def is_pending(self) -> bool:
        """Whether the operation still waits."""
        return self.finished is not None and not self.finished.done()

    async def wait(self) -> None:
        """Return when the operation is complete or expired. Cancelling this stops watching it."""
        if self.finished is not None:
            await self.finished


class DelayedOperationPurgatory:
    """The delayed operations of one kind, by partition and by deadline."""

    def __init__(self) -> None:
        #: How often events have come that may complete an operation.
        self.checks = 0
        self._by_key: dict[WatchKey, dict[DelayedOperation, None]] = {}
        self._timers: list[DelayedOperation] = []
        self._count = 0
        self._watched_keys = 0

    def __len__(self) -> int:
        return self._count

    @property
    def watched_keys(self) -> int:
        """The partitions of all operations; a partition of two operations counts twice."""
        return self._watched_keys

    def watch(self, operation: DelayedOperation, deadline_ms: int) -> None:
        """Watch an operation that is not complete yet, until `deadline_ms`."""
        operation.deadline_ms = deadline_ms
        operation.is_watched = True
        for key in operation.keys:
            self._by_key.setdefault(key, {})[operation] = None
        heapq.heappush(self._timers, operation)
        self._count += 1
        self._watched_keys += operation.partition_count

    def check(
        self, name: TopicPartition, session: FetchSession | None = None
    ) -> list[DelayedOperation]:
        """Check the operations of a partition; remove and return those that are complete.

        They are those under its name, or those under a session that has the partition.
        """
        watched = self._by_key.get(name if session is None else session)
        if not watched:
            return []
        return [
            operation
            for operation in tuple(watched)
            if operation.is_watched and operation.try_complete(name) and self.remove(operation)
        ]

    def complete(self, name: TopicPartition, session: FetchSession | None = None) -> None:
        """Check the operations of a partition, and end those that are complete."""
        self.checks += 1
        if self._by_key:
            for operation in self.check(name, session):
                _finish(operation)

    def expire(self, now_ms: int) -> list[DelayedOperation]:
        """Remove and return the operations whose deadline has passed, earliest first."""
        expired: list[DelayedOperation] = []
        while self._timers and self._timers[0].deadline_ms <= now_ms:
            operation = heapq.heappop(self._timers)
            if self.remove(operation):
                operation.on_expiration()
                expired.append(operation)
        return expired

    def next_deadline_ms(self) -> int | None:
        """The earliest deadline of a watched operation; None if there is none."""
        while self._timers and not self._timers[0].is_watched:
            heapq.heappop(self._timers)
        return self._timers[0].deadline_ms if self._timers else None

    def remove(self, operation: DelayedOperation) -> bool:
        """Stop watching an operation; return whether it was watched."""
        if not operation.is_watched:
            return False
        operation.is_watched = False
        for key in operation.keys:
            watched = self._by_key[key]
            del watched[operation]
            if not watched:
                del self._by_key[key]
        self._count -= 1
        self._watched_keys -= operation.partition_count
        # A removed operation stays in the heap until its deadline. When such operations outnumber
        # the watched ones they are swept out at once, because they may hold a lot of memory.
        if len(self._timers) > 2 * self._count + _STALE_TIMERS_MAX:
            self._timers = [timer for timer in self._timers if timer.is_watched]
            heapq.heapify(self._timers)
        return True


class PurgatorySize(NamedTuple):
    """Requests of one kind that wait, and the partitions that all of them wait for."""

    requests: int
    watched: int


class Purgatories:
    """The purgatories of a broker, the events that check them, and one timer for all."""

    def __init__(self, clock: Clock, sessions: SessionPartitions | None = None) -> None:
        """`sessions` has the partitions of the broker's fetch sessions."""
        #: Fetches of followers are checked by an append.
        self.follower_fetches = DelayedOperationPurgatory()
        #: Fetches of consumers and all below are checked when the high watermark rises.
        self.consumer_fetches = DelayedOperationPurgatory()
        self.produces = DelayedOperationPurgatory()
        self.delete_records = DelayedOperationPurgatory()
        self._all = (
            self.follower_fetches,
            self.consumer_fetches,
            self.produces,
            self.delete_records,
        )
        self._sessions = sessions or SessionPartitions()
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    def try_complete_else_watch(
        self,
        purgatory: DelayedOperationPurgatory,
        operation: DelayedOperation,
        timeout_ms: int,
        *,
        is_incomplete: bool = False,
    ) -> asyncio.Future[None] | None:
        """Complete the operation now if possible; otherwise watch it until the timeout.

        Both happen in one step of the event loop, so that no event falls between them. Returns what
        is resolved at the end of the operation; None if it is complete. `is_incomplete` says that
        the caller has just checked it.
        """
        if not is_incomplete and operation.try_complete_all():
            return None
        finished = operation.finished = asyncio.get_running_loop().create_future()
        # The future is cancelled with the request when the client disconnects.
        finished.add_done_callback(lambda _: purgatory.remove(operation))
        deadline_ms = self._clock.steady_ms() + min(max(timeout_ms, 0), _TIMEOUT_MAX_MS)
        purgatory.watch(operation, deadline_ms)
        if self._timer is None or deadline_ms < self._timer_ms:
            self._start_timer(deadline_ms)
        return finished

    def on_append(self, name: TopicPartition) -> None:
        """The log of a leader has grown."""
        self.follower_fetches.complete(name)
        for session in self._sessions.mark(name, for_followers=True):
            self.follower_fetches.complete(name, session)

    def on_high_watermark(self, name: TopicPartition) -> None:
        """The high watermark has risen, or the ISR has changed."""
        self.consumer_fetches.complete(name)
        self.produces.complete(name)
        self.delete_records.complete(name)
        for session in self._sessions.mark(name):
            self.consumer_fetches.complete(name, session)

    def on_low_watermark(self, name: TopicPartition) -> None:
        """A replica has raised its log start offset."""
        self.delete_records.complete(name)
        self._sessions.mark(name)

    def on_leadership_change(self, name: TopicPartition) -> None:
        """The partition has another leader or leader epoch, or is gone."""
        for purgatory in self._all:
            purgatory.complete(name)
        for session in self._sessions.mark(name):
            self.follower_fetches.complete(name, session)
            self.consumer_fetches.complete(name, session)

    def on_settings_change(self, name: TopicPartition) -> None:
        """A setting of the topic has changed that may decide about fetches."""
        self._sessions.mark(name)

    def sizes(self) -> dict[str, PurgatorySize]:
        """How many requests wait, by the name that Kafka's metrics give the purgatory."""
        return {
            kind: PurgatorySize(sum(map(len, parts)), sum(part.watched_keys for part in parts))
            for kind, parts in (
                ("Fetch", (self.follower_fetches, self.consumer_fetches)),
                ("Produce", (self.produces,)),
                ("DeleteRecords", (self.delete_records,)),
            )
        }

    def close(self) -> None:
        """Cancel the timer; pending requests stay unresolved."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_timer(self, deadline_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(deadline_ms - self._clock.steady_ms(), 0) / 1000
        self._timer_ms = deadline_ms
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        now_ms = self._clock.steady_ms()
        for purgatory in self._all:
            for operation in purgatory.expire(now_ms):
                _finish(operation)
        deadlines = [purgatory.next_deadline_ms() for purgatory in self._all]
        pending = [deadline for deadline in deadlines if deadline is not None]
        if pending:
            self._start_timer(min(pending))


def _finish(operation: DelayedOperation) -> None:
    if operation.finished is not None and not operation.finished.done():
        operation.finished.set_result(None)
