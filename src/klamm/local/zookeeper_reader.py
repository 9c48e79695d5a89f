"""The present state of a cluster, read from ZooKeeper by callers that are not async."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from klamm.client.admin import NO_LEADER
from klamm.client.topics import PartitionDescription
from klamm.errors import SessionLostError
from klamm.local.loop_thread import LoopThread
from klamm.names import TopicPartition
from klamm.zookeeper import znodes
from klamm.zookeeper.session import ZooKeeperStore, open_store
from klamm.zookeeper.store import NoNodeError

T = TypeVar("T")
K = TypeVar("K")
_PATIENCE_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The state of one partition; a leader of None means no leader."""

    leader: int | None
    leader_epoch: int
    isr: tuple[int, ...]

    def __str__(self) -> str:
        led = "no leader" if self.leader is None else f"leader {self.leader}"
        return f"{led}, leader epoch {self.leader_epoch}, ISR {','.join(map(str, self.isr))}"


class ZooKeeperReader:
    """Reads znodes over a session that is replaced when it is lost."""

    def __init__(self, loop_thread: LoopThread, connect: str) -> None:
        self._loop_thread = loop_thread
        self._store: ZooKeeperStore = loop_thread.call(open_store, connect)

    def close(self) -> None:
        """End the session."""
        self._loop_thread.call(self._store.close)

    def controller(self) -> int | None:
        """The id of the controller; None if there is none."""
        data = self._read(znodes.CONTROLLER)
        return None if data is None else znodes.decode_controller(data)

    def brokers(self) -> set[int]:
        """The ids of the registered brokers."""

        async def read() -> set[int]:
            try:
                return {int(name) for name in await self._store.children(znodes.BROKER_IDS)}
            except NoNodeError:
                return set()

        return self._ask(read)

    def partition(self, topic: str, partition: int) -> PartitionStatus | None:
        """The state of a partition; None if there is no such partition."""
        path = znodes.state_path(topic, partition)
        state = znodes.decode_state(path, self._read(path))
        if state is None:
            return None
        leader = state.leader if state.leader >= 0 else None
        return PartitionStatus(leader, state.leader_epoch, tuple(state.isr))

    def partitions(self) -> dict[TopicPartition, PartitionDescription]:
        """All partitions; TimeoutError if ZooKeeper does not respond for two seconds."""

        async def read() -> dict[TopicPartition, PartitionDescription]:
            async with asyncio.timeout(_PATIENCE_S):
                topics = sorted(await self._store.children(znodes.TOPICS))
                replicas = {
                    TopicPartition(topic, partition): tuple(brokers)
                    async for topic, data in self._read_many(topics, znodes.topic_path)
                    if data is not None
                    for partition, brokers in znodes.decode_topic(topic, data).partitions.items()
                }
                return {
                    name: _description(name, replicas[name], data)
                    async for name, data in self._read_many(
                        sorted(replicas), lambda name: znodes.state_path(*name)
                    )
                }

        return self._ask(read)

    async def _read_many(
        self, keys: list[K], path_of: Callable[[K], str]
    ) -> AsyncIterator[tuple[K, bytes | None]]:
        found = iter(keys)
        async for chunk in self._store.read_many(map(path_of, keys)):
            for data in chunk.data:
                yield next(found), data

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

        return self._loop_thread.call(until_answered)


def _description(
    name: TopicPartition, replicas: tuple[int, ...], data: bytes | None
) -> PartitionDescription:
    state = znodes.decode_state(znodes.state_path(*name), data)
    leader, epoch, isr = (NO_LEADER, 0, ()) if state is None else state[:3]
    return PartitionDescription(*name, leader, epoch, replicas, tuple(isr), ())
