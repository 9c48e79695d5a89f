"""ZooKeeper's twin in memory, behind a network: late and lost responses, expiring sessions.

Requests of a session arrive in order, and so do its responses and events. A session ends when
nothing has been heard of its owner for the length of its timeout: because it has crashed, is
stopped, or cannot reach ZooKeeper.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from klamm.zookeeper.memory import MemoryStore, MemoryZooKeeper
from klamm.zookeeper.store import EventKind, NodeError, Op, TransactionResult, WatchEvent
from tests.simulation.loop import Process, SimulatedLoop, current, wait_until

T = TypeVar("T")
_DELAY_S = (0.0002, 0.003)
_SLOW_S = (0.01, 0.2)
_SLOW_CHANCE = 0.02
_TICK_S = 1e-7

#: Told of every transaction that was carried out: whose, what, and with what result.
Observer = Callable[[Process | None, int, Sequence[Op], TransactionResult], None]


class Ensemble(MemoryZooKeeper):
    """The nodes, and sessions that know whose they are."""

    def __init__(self, loop: SimulatedLoop, chance: random.Random, observe: Observer) -> None:
        super().__init__()
        self.loop = loop
        self.requests = 0
        #: Asked after each write of a process; may end it.
        self.after_write: Callable[[Process], None] = lambda process: None
        self._chance = chance
        self._observe = observe
        self._stores: list[SimulatedStore] = []
        #: How many reasons there are why nothing is heard of a process.
        self._silences: dict[Process, int] = {}

    def open(self, session_timeout_ms: int) -> "SimulatedStore":
        """A session for the process that is running."""
        store = SimulatedStore(self, current(), session_timeout_ms)
        self._stores.append(store)
        return store

    def is_silent(self, process: Process) -> bool:
        """Whether nothing is heard of a process."""
        return self._silences.get(process, 0) > 0

    def delay_s(self) -> float:
        slow = self._chance.random() < _SLOW_CHANCE
        return self._chance.uniform(*(_SLOW_S if slow else _DELAY_S))

    def _transact(self, ops: Any, session_id: int) -> TransactionResult:
        ops = list(ops)
        result = super()._transact(ops, session_id)
        if result.ok and ops:
            owner = self._sessions.get(session_id)
            process = owner.process if isinstance(owner, SimulatedStore) else None
            self._observe(process, session_id, ops, result)
        return result

    # Faults

    def of(self, process: Process) -> list["SimulatedStore"]:
        self._stores = [store for store in self._stores if store.is_wanted]
        return [store for store in self._stores if store.process is process]

    def lose_sight(self, process: Process) -> None:
        """Nothing is heard of a process any more; its sessions have their timeouts left."""
        self._silences[process] = self._silences.get(process, 0) + 1
        if self._silences[process] > 1:
            return
        for store in self.of(process):
            self.disconnect(store)
            store.silent_since = self.loop.time()
            self.loop.call_later(
                store.session_timeout_ms / 1000,
                self._expire_if_silent,
                store,
                store.silent_since,
                context=self.loop.outside,
            )

    def see_again(self, process: Process) -> None:
        """A process is heard of again, unless there is another reason why it is not."""
        self._silences[process] -= 1
        if self._silences[process]:
            return
        for store in self.of(process):
            store.silent_since = None
            self.reconnect(store)

    def expire_now(self, process: Process) -> None:
        """End the sessions of a process although it is alive."""
        for store in self.of(process):
            if not store.is_ended:
                self.expire(store)

    def _expire_if_silent(self, store: "SimulatedStore", since: float) -> None:
        if store.silent_since == since:
            self._end_session(store.session_id)


class SimulatedStore(MemoryStore):
    """A session whose requests and responses take their time."""

    def __init__(self, ensemble: Ensemble, process: Process, session_timeout_ms: int) -> None:
        self.process = process
        self.silent_since: float | None = None
        #: Set by users of the connection that count responses; unused here.
        self.on_response: Any = None
        self._ensemble = ensemble
        self._last_request_at = self._last_response_at = 0.0
        super().__init__(ensemble, "", session_timeout_ms)

    @property
    def is_wanted(self) -> bool:
        """Whether the process may still use it, or ZooKeeper still holds its session."""
        return self.process.is_alive or self._session_id in self._ensemble._sessions

    async def renew(self) -> None:
        self._give_up_session()
        await asyncio.sleep(self._ensemble.delay_s())
        await wait_until(lambda: not self._ensemble.is_silent(self.process))
        self._start()

    def _transact(self, ops: Sequence[Op]) -> TransactionResult:
        result = super()._transact(ops)
        self._ensemble.after_write(self.process)
        return result

    async def _request(self, perform: Callable[[], T]) -> T:
        """Carry out a request when it has arrived.

        If the connection breaks before its response has arrived, it is sent again.
        """
        loop, session_id = self._ensemble.loop, self._session_id
        while True:
            await asyncio.sleep(self._arrival_at() - loop.time())
            await self._connected.wait()
            self._check_session(session_id)
            outcome: T | NodeError
            try:
                outcome = perform()
            except NodeError as error:
                outcome = error
            await asyncio.sleep(self._response_at() - loop.time())
            self._check_session(session_id)
            if not self.is_connected:
                continue
            if isinstance(outcome, NodeError):
                raise outcome
            return outcome

    def _arrival_at(self) -> float:
        ensemble = self._ensemble
        ensemble.requests += 1
        at = max(ensemble.loop.time() + ensemble.delay_s(), self._last_request_at + _TICK_S)
        self._last_request_at = at
        return at

    def _response_at(self) -> float:
        ensemble = self._ensemble
        at = max(ensemble.loop.time() + ensemble.delay_s(), self._last_response_at + _TICK_S)
        self._last_response_at = at
        return at

    def _changed(self, kind: EventKind, path: str) -> None:
        if self._watches.pop(kind, path):
            self._ensemble.loop.call_at(
                self._response_at(),
                self._publish,
                WatchEvent(kind, path),
                self._session_id,
                context=self.process.context,
            )

    def _publish(self, event: WatchEvent, session_id: int) -> None:
        if not self._ended and session_id == self._session_id:
            self._events.put_nowait(event)
