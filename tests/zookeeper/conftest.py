"""The two ZooKeepers that the contract tests run on: a real server, and the twin in memory."""

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Iterator
from typing import Protocol

import pytest
from kazoo.client import KazooClient

from klamm.zookeeper.memory import MemoryStore, MemoryZooKeeper
from klamm.zookeeper.server import ZooKeeperServer
from klamm.zookeeper.session import ZooKeeperStore, open_store
from klamm.zookeeper.store import SessionStarted, Store, StoreEvent
from tests.zookeeper.proxy import Proxy

_CHROOTS = itertools.count()
_DEADLINE_S = 20


class Client:
    """A store, and the events that the test has yet to look at."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._events: AsyncIterator[StoreEvent] = store.events()

    async def event(self) -> StoreEvent:
        """The next event."""
        async with asyncio.timeout(_DEADLINE_S):
            return await anext(self._events)

    async def no_more_events(self) -> None:
        """Nothing happened that has not been looked at: the next to happen is the next event."""
        marker = f"/marker-{next(_CHROOTS)}"
        await self.store.exists(marker, watch=True)
        await self.store.create(marker)
        event = await self.event()
        assert getattr(event, "path", event) == marker

    async def events_end(self) -> None:
        """The stream is over."""
        async with asyncio.timeout(_DEADLINE_S):
            with pytest.raises(StopAsyncIteration):
                await anext(self._events)


class ZooKeeper(Protocol):
    """What a test can do to a ZooKeeper from outside."""

    async def client(self, chroot: str = "") -> Client: ...

    async def expire(self, client: Client) -> None: ...

    async def disconnect(self, client: Client) -> None: ...

    async def reconnect(self, client: Client) -> None: ...

    async def close(self) -> None: ...


class RealZooKeeper:
    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self._chroot = f"/test-{next(_CHROOTS)}"
        self._clients: dict[Client, Proxy] = {}

    async def client(self, chroot: str = "") -> Client:
        proxy = Proxy(self._server.host, self._server.port)
        await proxy.start()
        store = await open_store(proxy.address + self._chroot + chroot, 10_000)
        client = Client(store)
        self._clients[client] = proxy
        assert await client.event() == SessionStarted(store.session_id)
        return client

    async def expire(self, client: Client) -> None:
        # Somebody else who knows the password can end a session.
        store = client.store
        assert isinstance(store, ZooKeeperStore)
        kazoo = store._connection._client
        await asyncio.to_thread(self._end_session, (kazoo._session_id, kazoo._session_passwd))

    def _end_session(self, client_id: tuple[int, bytes]) -> None:
        thief = KazooClient(hosts=self._server.address, client_id=client_id)
        thief.start()
        thief.stop()
        thief.close()

    async def disconnect(self, client: Client) -> None:
        self._clients[client].cut()

    async def reconnect(self, client: Client) -> None:
        self._clients[client].restore()

    async def close(self) -> None:
        for client, proxy in self._clients.items():
            await client.store.close()
            await proxy.close()


class SimulatedZooKeeper:
    def __init__(self) -> None:
        self._zookeeper = MemoryZooKeeper()

    async def client(self, chroot: str = "") -> Client:
        client = Client(self._zookeeper.session(chroot))
        assert await client.event() == SessionStarted(client.store.session_id)
        return client

    async def expire(self, client: Client) -> None:
        self._zookeeper.expire(self._store(client))

    async def disconnect(self, client: Client) -> None:
        self._zookeeper.disconnect(self._store(client))

    async def reconnect(self, client: Client) -> None:
        self._zookeeper.reconnect(self._store(client))

    def _store(self, client: Client) -> MemoryStore:
        assert isinstance(client.store, MemoryStore)
        return client.store

    async def close(self) -> None:
        """Nothing outlives it."""


@pytest.fixture
def runner() -> Iterator[asyncio.Runner]:
    """The event loop of a test and of its fixtures."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    runner = pyfuncitem.funcargs.get("runner")
    run = runner.run if isinstance(runner, asyncio.Runner) else asyncio.run
    run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.real), "memory"])
def zk(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[ZooKeeper]:
    """A ZooKeeper that is empty, from the test's point of view."""
    zookeeper: ZooKeeper
    if request.param == "real":
        zookeeper = RealZooKeeper(request.getfixturevalue("zookeeper_server"))
    else:
        zookeeper = SimulatedZooKeeper()
    yield zookeeper
    runner.run(zookeeper.close())
