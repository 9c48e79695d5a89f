"""The simulated ZooKeeper keeps what the real one promises about the order of responses."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from klamm.errors import SessionLostError
from klamm.zookeeper.store import EventKind, NodeExistsError, SessionStarted, WatchEvent
from tests.simulation.ensemble import _DELAY_S, Ensemble
from tests.simulation.loop import Process, SimulatedLoop


def simulate(scenario: Callable[[Ensemble], Coroutine[Any, Any, None]], seed: int = 1) -> None:
    """Run a scenario as one process of a simulation."""
    loop = SimulatedLoop(random.Random(seed), network=None)
    ensemble = Ensemble(loop, random.Random(seed), lambda *_: None)
    try:
        loop.run_until_complete(Process("c1", "n1", loop).start(scenario(ensemble)))
    finally:
        loop.bury()


def test_requests_and_responses_take_time():
    async def scenario(ensemble: Ensemble) -> None:
        store = ensemble.open(6000)
        for request in (
            lambda: store.create("/a", b"0"),
            lambda: store.get("/a"),
            lambda: store.exists("/b"),
            lambda: store.set("/a", b"1"),
            lambda: store.delete("/a"),
        ):
            began = ensemble.loop.time()
            await request()
            assert ensemble.loop.time() - began >= 2 * _DELAY_S[0]

    simulate(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_a_response_does_not_overtake_an_event_that_was_sent_before_it(seed):
    async def scenario(ensemble: Ensemble) -> None:
        reader, writer = ensemble.open(6000), ensemble.open(6000)
        seen = []

        async def follow() -> None:
            async for event in reader.events():
                seen.append(event)

        following = asyncio.create_task(follow())
        await reader.create("/a", b"old")
        await reader.get("/a", watch=True)
        writing = asyncio.create_task(writer.set("/a", b"new"))
        while (await reader.get("/a")).data == b"old":
            pass
        assert seen == [SessionStarted(reader.session_id), WatchEvent(EventKind.CHANGED, "/a")]
        await writing
        following.cancel()

    simulate(scenario, seed)


def test_a_create_whose_response_is_lost_is_sent_again_and_meets_itself():
    async def scenario(ensemble: Ensemble) -> None:
        store = ensemble.open(6000)
        ensemble.after_write = lambda _: ensemble.disconnect(store)
        creating = asyncio.create_task(store.create("/a"))
        await asyncio.sleep(1)
        ensemble.after_write = lambda _: None
        ensemble.reconnect(store)
        with pytest.raises(NodeExistsError):
            await creating

    simulate(scenario)


def test_a_session_that_is_given_up_writes_nothing_more():
    async def scenario(ensemble: Ensemble) -> None:
        store, other = ensemble.open(6000), ensemble.open(6000)
        renewal = asyncio.create_task(store.renew())
        await asyncio.sleep(0)
        with pytest.raises(SessionLostError):
            await store.create("/a", ephemeral=True)
        await renewal
        assert await other.exists("/a") is None

    simulate(scenario)
