"""What the twin in memory offers to simulations, beyond the contract."""

import asyncio

import pytest

from klamm.errors import SessionLostError
from klamm.zookeeper.memory import MemoryZooKeeper
from klamm.zookeeper.store import (
    EventKind,
    SessionExpired,
    SessionStarted,
    SessionSuspended,
    WatchEvent,
)


async def test_a_session_that_is_cut_off_hears_of_its_end_only_when_it_is_back():
    zookeeper = MemoryZooKeeper()
    cut_off, other = zookeeper.session(), zookeeper.session()
    await cut_off.create("/e", ephemeral=True)
    await other.get("/e", watch=True)
    zookeeper.disconnect(cut_off)
    zookeeper.expire(cut_off)
    write = asyncio.create_task(cut_off.create("/late"))
    assert await other.exists("/e") is None
    assert not write.done()
    zookeeper.reconnect(cut_off)
    zookeeper.reconnect(cut_off)
    with pytest.raises(SessionLostError):
        await write
    await cut_off.close()
    await other.close()
    assert [event async for event in cut_off.events()] == [
        SessionStarted(1),
        SessionSuspended(),
        SessionExpired(1),
    ]
    assert [event async for event in other.events()] == [
        SessionStarted(2),
        WatchEvent(EventKind.DELETED, "/e"),
    ]


async def test_two_runs_of_the_same_story_are_the_same():
    async def story() -> list[object]:
        zookeeper = MemoryZooKeeper()
        stores = [zookeeper.session() for _ in range(3)]
        await stores[0].create("/p")
        await asyncio.gather(*(store.children("/p", watch=True) for store in stores))
        await asyncio.gather(
            *(store.create("/p/n-", sequential=True, ephemeral=True) for store in stores)
        )
        zookeeper.expire(stores[1])
        stats = [await stores[0].exists(f"/p/n-{i:010d}") for i in range(3)]
        for store in stores:
            await store.close()
        return [stats, [[event async for event in store.events()] for store in stores]]

    assert await story() == await story()
