import asyncio

import pytest

from klamm.errors import SessionLostError
from klamm.node.config_changes import ConfigChanges
from klamm.zookeeper import znodes
from klamm.zookeeper.memory import MemoryZooKeeper


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
