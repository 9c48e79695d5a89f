import asyncio
import time

import pytest

from klamm.errors import SessionLostError
from klamm.node.config_changes import ConfigChanges
from klamm.zookeeper import znodes
from klamm.zookeeper.memory import MemoryZooKeeper
from klamm.zookeeper.store import Stat


@pytest.mark.rule("CFG-2")
def test_a_description_begins_with_the_changes_that_there_are():
    async def run() -> list[list[str]]:
        zookeeper = MemoryZooKeeper()
        store, applied = zookeeper.session(), list[str]()
        await store.ensure_path(znodes.CONFIG_CHANGES)

        async def apply(entity: str, settings: dict[str, str]) -> None:
            applied.append(entity)

        changes, seen = ConfigChanges(store, apply), []
        for number, user in enumerate(("alice", "bob")):
            path = f"{znodes.CONFIG_CHANGES}/config_change_{number:010}"
            await store.create(path, znodes.encode_config_change(f"users/{user}"))
            await changes.catch_up()
            seen.append(list(applied))
        await changes.process()
        zookeeper.expire(store)
        await changes.catch_up()
        return [*seen, applied]

    assert asyncio.run(run()) == [["users/alice"], *[["users/alice", "users/bob"]] * 2]


@pytest.mark.rule("CFG-2", "CFG-3")
def test_a_change_that_a_lost_session_interrupts_is_applied_with_the_next():
    async def run() -> list[str]:
        zookeeper = MemoryZooKeeper()
        store, applied = zookeeper.session(), list[str]()
        await store.ensure_path(znodes.CONFIG_CHANGES)
        for number, topic in enumerate(("orders", "payments")):
            path = f"{znodes.CONFIG_CHANGES}/config_change_{number:010}"
            await store.create(path, znodes.encode_config_change(f"topics/{topic}"))

        async def apply(entity: str, settings: dict[str, str]) -> None:
            if not applied and entity == "topics/payments":
                raise AssertionError("the order of notifications is kept")
            applied.append(entity)
            if len(applied) == 1:
                zookeeper.expire(store)

        changes = ConfigChanges(store, apply)
        with pytest.raises(SessionLostError):
            await changes.process()
        assert applied == ["topics/orders"]
        await store.renew()
        await changes.process()
        await changes.process()
        return applied

    assert asyncio.run(run()) == ["topics/orders", "topics/payments"]


@pytest.mark.rule("CFG-3")
def test_old_notifications_are_removed_and_no_young_one_but_the_oldest_is_asked_for():
    minute_ms = 60_000
    ages = [20 * minute_ms, 16 * minute_ms, *(number * minute_ms for number in range(10, 0, -1))]

    async def run() -> tuple[list[int], list[int]]:
        store, asked = MemoryZooKeeper().session(), list[int]()
        await store.ensure_path(znodes.CONFIG_CHANGES)
        for _ in ages:
            data = znodes.encode_config_change("topics/orders")
            await store.create(znodes.CONFIG_CHANGE_PREFIX, data, sequential=True)
        exists = store.exists

        async def exists_since_its_age(path: str, *, watch: bool = False) -> Stat | None:
            number = znodes.sequence_number(path)
            asked.append(number)
            stat = await exists(path, watch=watch)
            return stat and stat._replace(ctime=round(time.time() * 1000) - ages[number])

        store.exists = exists_since_its_age  # type: ignore[method-assign]

        async def apply(entity: str, settings: dict[str, str]) -> None:
            pass

        await ConfigChanges(store, apply).process()
        left = await store.children(znodes.CONFIG_CHANGES)
        return sorted(map(znodes.sequence_number, left)), asked

    left, asked = asyncio.run(run())
    assert left == list(range(2, 12))
    assert asked == [0, 1, 2]
