"""Where data requests wait: a room for each kind, and one timer of the event loop for all."""

import asyncio
from collections.abc import Iterable
from typing import Final, NamedTuple

from klamm.broker.clock import Clock
from klamm.broker.delayed.operations import DelayedDeleteRecords, DelayedFetch, DelayedProduce
from klamm.broker.delayed.purgatory import DelayedOperationPurgatory
from klamm.names import TopicPartition

#: Longer waits are cut; nobody waits for a day.
_WAIT_MAX_MS: Final = 86_400_000

Waiter = DelayedProduce | DelayedFetch | DelayedDeleteRecords


class Parked:
    """A waiting request and the future that its handler awaits."""

    __slots__ = ("is_complete", "waiter")

    def __init__(self, waiter: Waiter) -> None:
        self.waiter = waiter
        #: True once it is complete, False once its time is up.
        self.is_complete: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def check(self, key: TopicPartition) -> bool:
        return self.waiter.check(key)

    def settle(self, is_complete: bool) -> None:
        if not self.is_complete.done():
            self.is_complete.set_result(is_complete)


Room = DelayedOperationPurgatory[TopicPartition, Parked]


class Purgatories:
    """The rooms, by what wakes those in them."""

    def __init__(self, clock: Clock) -> None:
        #: Followers are woken by an append.
        self.follower_fetches: Room = DelayedOperationPurgatory()
        #: Consumers and all below are woken by a rise of the high watermark.
        self.consumer_fetches: Room = DelayedOperationPurgatory()
        self.produces: Room = DelayedOperationPurgatory()
        self.deletes: Room = DelayedOperationPurgatory()
        self._rooms = (self.follower_fetches, self.consumer_fetches, self.produces, self.deletes)
        self._clock = clock
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0

    async def wait(
        self, room: Room, waiter: Waiter, keys: Iterable[TopicPartition], timeout_ms: int
    ) -> bool:
        """Let a request wait that is not complete; whether it was completed in time."""
        parked = Parked(waiter)
        deadline_ms = self._clock.steady_ms() + min(max(timeout_ms, 0), _WAIT_MAX_MS)
        ticket = room.add(parked, keys, deadline_ms)
        if self._timer is None or deadline_ms < self._timer_ms:
            self._arm(deadline_ms)
        try:
            return await parked.is_complete
        finally:
            # The client may be gone, and the request with it.
            room.remove(ticket)

    def on_append(self, name: TopicPartition) -> None:
        """The log of a leader has grown."""
        _wake(self.follower_fetches, name)

    def on_high_watermark(self, name: TopicPartition) -> None:
        """More is committed than before."""
        _wake(self.consumer_fetches, name)
        _wake(self.produces, name)
        _wake(self.deletes, name)

    def on_low_watermark(self, name: TopicPartition) -> None:
        """A replica has raised its log start."""
        _wake(self.deletes, name)

    def on_change(self, name: TopicPartition) -> None:
        """The partition is led by another, under another epoch, or is gone."""
        for room in self._rooms:
            _wake(room, name)

    def close(self) -> None:
        """Stop the timer; who waits, waits on."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, deadline_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(deadline_ms - self._clock.steady_ms(), 0) / 1000
        self._timer_ms = deadline_ms
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        now_ms = self._clock.steady_ms()
        for room in self._rooms:
            for parked in room.tick(now_ms):
                parked.settle(False)
        deadlines = [room.next_deadline_ms() for room in self._rooms]
        pending = [deadline for deadline in deadlines if deadline is not None]
        if pending:
            self._arm(min(pending))


def _wake(room: Room, name: TopicPartition) -> None:
    if len(room):
        for parked in room.wake(name):
            parked.settle(True)


class PurgatorySize(NamedTuple):
    """Requests of one kind that wait, and the partitions they wait for, each request on its own."""

    requests: int
    watched: int


def purgatory_sizes(purgatories: Purgatories) -> dict[str, PurgatorySize]:
    """How many requests of each kind wait, for the metrics."""
    return {
        kind: PurgatorySize(sum(map(len, rooms)), sum(room.watched for room in rooms))
        for kind, rooms in (
            ("Fetch", (purgatories.follower_fetches, purgatories.consumer_fetches)),
            ("Produce", (purgatories.produces,)),
            ("DeleteRecords", (purgatories.deletes,)),
        )
    }
