"""Topics whose deletion a broker missed; tests/simulation has whole clusters with them."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from klamm.broker.identity import BrokerIdentity
from klamm.broker.metadata import missed_deletions
from klamm.broker.metadata.cache import MetadataCache, MetadataUpdate, SnapshotChange
from klamm.broker.metadata.missed_deletions import MissedDeletions
from klamm.errors import SessionLostError
from klamm.names import TopicPartition
from klamm.protocol.fast.control_decode import TopicStates
from klamm.protocol.fast.metadata_states import PartitionMetadata
from klamm.zookeeper import znodes
from klamm.zookeeper.memory import MemoryStore, MemoryZooKeeper
from tests.broker.metadata_states import states_of
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missed_deletions, "_PAUSE_S", 0)


class Broker:
    """The part of a broker that has to do with its metadata."""

    def __init__(self, store: MemoryStore) -> None:
        self.identity = BrokerIdentity(1, "cluster", broker_epoch=10, controller_epoch=1)
        self.metadata = MetadataCache()
        self.announced: list[SnapshotChange] = []
        #: What clients could be told of when stray replicas were looked for.
        self.checks: list[list[str]] = []
        self.missed = MissedDeletions(
            self.identity,
            store,
            self.metadata,
            asyncio.Lock(),
            self.announced.append,
            self._find_strays,
        )

    @property
    def topics(self) -> list[str]:
        return sorted(each.name for each in self.metadata.snapshot.topics())

    async def _find_strays(self) -> None:
        self.checks.append(self.topics)

    def hears_of(self, *topics: str) -> None:
        """An UpdateMetadata that names these topics comes from the controller."""
        states = states_of(PartitionMetadata(0, 1, 0, (1,), (1,)))
        named = [TopicStates(each, each.ljust(16).encode(), states) for each in topics]
        change = self.metadata.snapshot.after(MetadataUpdate(1, [], named))
        self.metadata.install(change)
        self.missed.on_metadata(change)

    async def has_checked(self, times: int) -> None:
        await until(lambda: len(self.checks) >= times)


def run(test: Callable[[Broker, MemoryStore], Awaitable[None]], *topics: str) -> None:
    """A broker that is registered and has been told of the topics that ZooKeeper has."""

    async def main() -> None:
        store = MemoryZooKeeper().session()
        await store.ensure_path(znodes.TOPICS)
        await store.ensure_path(znodes.DELETE_TOPICS)
        for topic in topics:
            await store.create(znodes.topic_path(topic), b"")
        broker = Broker(store)
        broker.hears_of(*topics)
        await broker.has_checked(1)
        assert broker.topics == sorted(topics)
        await test(broker, store)
        broker.missed.close()
        await store.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    "epochs", [pytest.param((11, 1), id="registration"), pytest.param((10, 2), id="controller")]
)
def test_a_topic_that_was_deleted_unheard_is_forgotten_before_strays_are_looked_for(
    epochs: tuple[int, int],
) -> None:
    async def test(broker: Broker, store: MemoryStore) -> None:
        await store.delete(znodes.topic_path("gone"))
        broker.identity.broker_epoch, broker.identity.controller_epoch = epochs
        broker.hears_of()
        broker.hears_of("stays")
        await broker.has_checked(2)
        assert broker.checks[-1] == broker.topics == ["stays"]
        (change,) = broker.announced
        assert change.snapshot is broker.metadata.snapshot
        assert change.deleted == (TopicPartition("gone", 0),)

    run(test, "gone", "stays")


def test_a_topic_whose_deletion_was_queued_unheard_is_forgotten_while_it_waits() -> None:
    async def test(broker: Broker, store: MemoryStore) -> None:
        await store.create(znodes.delete_topic_path("waits"))
        broker.identity.broker_epoch = 11
        broker.hears_of("stays")
        await broker.has_checked(2)
        assert broker.topics == ["stays"]

    run(test, "stays", "waits")


def test_a_deletion_that_ends_while_zookeeper_is_asked_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(broker: Broker, store: MemoryStore) -> None:
        await store.create(znodes.delete_topic_path("gone"))
        children = store.children

        async def then_delete(path: str) -> list[str]:
            found = await children(path)
            if await store.exists(znodes.topic_path("gone")):
                await store.delete(znodes.delete_topic_path("gone"))
                await store.delete(znodes.topic_path("gone"))
            return found

        monkeypatch.setattr(store, "children", then_delete)
        broker.identity.broker_epoch = 11
        broker.hears_of("stays")
        await broker.has_checked(2)
        assert broker.topics == ["stays"]

    run(test, "gone", "stays")


def test_a_topic_that_zookeeper_has_is_kept_even_if_the_controller_is_late_to_name_it() -> None:
    async def test(broker: Broker, _: MemoryStore) -> None:
        broker.identity.controller_epoch = 2
        broker.hears_of()
        await broker.has_checked(2)
        assert broker.topics == ["late", "named"]
        assert not broker.announced

    run(test, "late", "named")


def test_zookeeper_is_not_asked_if_the_controller_has_named_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test(broker: Broker, store: MemoryStore) -> None:
        async def children(*_: object, **__: object) -> list[str]:
            raise AssertionError

        monkeypatch.setattr(store, "children", children)
        broker.identity.broker_epoch = 11
        broker.hears_of("a", "b")
        await broker.has_checked(2)
        assert broker.topics == ["a", "b"]

    run(test, "a", "b")


def test_a_check_waits_for_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: Broker, store: MemoryStore) -> None:
        await store.delete(znodes.topic_path("gone"))
        children, failures = store.children, [SessionLostError(), SessionLostError()]

        async def unsure(path: str) -> list[str]:
            if failures:
                raise failures.pop()
            return await children(path)

        monkeypatch.setattr(store, "children", unsure)
        broker.identity.broker_epoch = 11
        broker.hears_of()
        await broker.has_checked(2)
        assert not failures
        assert broker.topics == []

    run(test, "gone")


def test_there_is_one_check_for_a_registration_and_a_controller() -> None:
    async def test(broker: Broker, store: MemoryStore) -> None:
        await store.delete(znodes.topic_path("t"))
        broker.hears_of("u")
        await asyncio.sleep(0.01)
        assert len(broker.checks) == 1
        assert broker.topics == ["t", "u"]

    run(test, "t")
