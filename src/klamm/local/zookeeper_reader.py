"""What ZooKeeper says about a cluster right now, for callers that are not async."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from klamm.errors import SessionLostError
from klamm.local.loop_thread import LoopThread
from klamm.zookeeper import znodes
from klamm.zookeeper.session import ZooKeeperStore, open_store
from klamm.zookeeper.store import NoNodeError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The state of one partition; a leader of None means that it has none."""

    leader: int | None
    leader_epoch: int
    isr: tuple[int, ...]

    def __str__(self) -> str:
        led = "no leader" if self.leader is None else f"leader {self.leader}"
        return f"{led}, leader epoch {self.leader_epoch}, ISR {','.join(map(str, self.isr))}"


class ZooKeeperReader:
    """Reads, over a session that is replaced when it is lost."""

    def __init__(self, loop_thread: LoopThread, connect: str) -> None:
        self._loop_thread = loop_thread
        self._store: ZooKeeperStore = loop_thread.call(open_store(connect))

    def close(self) -> None:
        """End the session."""
        self._loop_thread.call(self._store.close())

    def controller(self) -> int | None:
        """Who has the controller's role."""
        data = self._read(znodes.CONTROLLER)
        return None if data is None else znodes.decode_controller(data)

    def brokers(self) -> set[int]:
        """Who is registered."""

        async def read() -> set[int]:
            try:
                return {int(name) for name in await self._store.children(znodes.BROKER_IDS)}
            except NoNodeError:
                return set()

        return self._ask(read)

    def partition(self, topic: str, partition: int) -> PartitionStatus | None:
        """The state of a partition; None while there is no such partition."""
        path = znodes.state_path(topic, partition)
        state = znodes.decode_state(path, self._read(path))
        if state is None:
            return None
        leader = state.leader if state.leader >= 0 else None
        return PartitionStatus(leader, state.leader_epoch, tuple(state.isr))

    def _read(self, path: str) -> bytes | None:
        async def read() -> bytes | None:
            try:
                return (await self._store.get(path)).data
            except NoNodeError:
                return None

        return self._ask(read)

    def _ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        async def until_answered() -> T:
            while True:
                try:
                    return await ask()
                except SessionLostError:
                    await self._store.renew()

        return self._loop_thread.call(until_answered())
