"""What the services of the group coordinator and of the transaction coordinator have in common.

A coordinator decides and returns effects. A service owns its clock and timer, the appends to the
internal topic, the tasks and the futures of delayed requests.
"""

import asyncio
import itertools
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Generic, Protocol, TypeVar

from klamm.broker.clock import Clock
from klamm.broker.delayed.operations import DelayedProduce
from klamm.broker.log.errors import AppendError
from klamm.broker.log.log import Log
from klamm.broker.log.producers import VerificationStateEntry
from klamm.broker.log.validation import AppendOrigin
from klamm.broker.replication.manager import ReplicaManager
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode
from klamm.protocol.records import Batch

E = TypeVar("E")
#: Chosen by the service to find the request that a response belongs to.
Ticket = int


class CoordinatorMachine(Protocol[E]):
    """The interface of a coordinator to its service."""

    def appended(self, number: int, error: ErrorCode, now_ms: int) -> list[E]:
        """The append `number` was acknowledged, or failed with `error`."""
        ...

    def tick(self, now_ms: int) -> list[E]:
        """Run the timers that are due."""
        ...


class CoordinatorService(ABC, Generic[E]):
    """A coordinator with its clock, its log and its pending requests."""

    def __init__(
        self, machine: CoordinatorMachine[E], clock: Clock, replicas: ReplicaManager | None
    ) -> None:
        """A node without data has no replicas; its coordinator's appends fail."""
        self._machine = machine
        self._clock = clock
        self._replicas = replicas
        self._tickets = itertools.count(1)
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}
        self._effects: deque[E] = deque()
        self._is_carrying_out = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    def _perform(self, effect: E) -> None:
        """Perform one effect; it may add others."""

    @abstractmethod
    def _next_deadline_ms(self) -> int | None:
        """When `tick` is due; None: not before something else happens."""

    def _on_performed(self) -> None:
        """Called when no effect is left."""
        self._arm()

    # Requests

    @property
    def now_ms(self) -> int:
        """The time of the coordinator's clock."""
        return self._clock.steady_ms()

    def submit(self, request: Callable[[Ticket, int], list[E]]) -> asyncio.Future[Any]:
        """Submit a request that the coordinator may complete later."""
        ticket = next(self._tickets)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        # The future is cancelled when the client disconnects.
        future.add_done_callback(lambda _: self._waiting.pop(ticket, None))
        self._carry_out(request(ticket, self.now_ms))
        return future

    # Effects

    def _carry_out(self, effects: list[E]) -> None:
        """Perform effects in order; performing one may add others."""
        self._effects.extend(effects)
        if self._is_carrying_out:
            return
        self._is_carrying_out = True
        try:
            while self._effects:
                self._perform(self._effects.popleft())
        finally:
            self._is_carrying_out = False
        self._on_performed()

    def _respond(self, ticket: Ticket, response: Any) -> None:
        future = self._waiting.get(ticket)
        if future is not None and not future.done():
            future.set_result(response)

    def _write(
        self,
        number: int,
        name: TopicPartition,
        batch: Batch,
        timeout_ms: int,
        *,
        acks_all: bool = True,
        verification: VerificationStateEntry | None = None,
    ) -> None:
        """Append a batch, and report the result of append `number` once it is known."""
        if self._replicas is None:
            self._report(number, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        try:
            result = self._replicas.append(
                name,
                batch.data,
                acks_all=acks_all,
                origin=AppendOrigin.COORDINATOR,
                verification=verification,
            )
        except AppendError as error:
            self._report(number, error.code)
            return
        if not acks_all:
            self._report(number, ErrorCode.NONE)
            return
        operation = self._replicas.delay_produce({name: result.last_offset + 1}, timeout_ms)
        if operation.is_pending:
            self._start(self._wait(number, name, operation))
        else:
            self._report(number, operation.errors[name])

    async def _wait(self, number: int, name: TopicPartition, operation: DelayedProduce) -> None:
        await operation.wait()
        self._report(number, operation.errors[name])

    def _report(self, number: int, error: ErrorCode) -> None:
        self._carry_out(self._machine.appended(number, error, self.now_ms))

    # Time

    def _arm(self) -> None:
        deadline_ms = self._next_deadline_ms()
        if self._timer is not None:
            if deadline_ms is not None and self._timer_ms <= deadline_ms:
                return  # looks early and arms itself again: most deadlines are only moved
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            self._timer_ms = deadline_ms
            delay_s = max(deadline_ms - self.now_ms, 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._carry_out(self._machine.tick(self.now_ms))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cancel the timer and all tasks; pending requests stay unresolved."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks:
            task.cancel()


def read_portions(replica: Log, portion_bytes: int) -> Iterator[list[Batch]]:
    """The batches of a log up to its current end, in portions of about that many bytes."""
    start, end = replica.start_offset, replica.end_offset
    portion: list[Batch] = []
    size = 0
    for segment in replica.segments:
        for batch in segment.batches():
            header = batch.header
            if header.base_offset >= end:
                break
            if header.last_offset < start:
                continue
            portion.append(batch)
            size += header.size
            if size >= portion_bytes:
                yield portion
                portion, size = [], 0
    if portion:
        yield portion
