"""Taking the role and giving it up, down to the single write (sections 3.1 and 3.3)."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from klamm.controller import channels, metrics
from klamm.controller.election import NOBODY, Won, elect
from klamm.core.context import FIRST_REBALANCE_DELAY_S
from klamm.core.events import ListReassignments
from klamm.errors import KlammError
from klamm.zookeeper import znodes
from klamm.zookeeper.memory import MemoryZooKeeper
from klamm.zookeeper.store import Op, TransactionResult
from tests.support.candidate import Node, running

BROKER, OTHER = 1, 2


def now_ms() -> int:
    return 0


def lose_replies(store: Any) -> None:
    """The reply to a transaction is lost, and the client sends it again."""
    multi = store.multi

    async def twice(ops: Sequence[Op]) -> TransactionResult:
        await multi(ops)
        return await multi(ops)

    store.multi = twice


@pytest.mark.rule("ELEC-6")
def test_a_role_that_was_won_without_hearing_of_it_is_won():
    async def scenario() -> None:
        store = MemoryZooKeeper().session()
        await store.create(znodes.CONTROLLER_EPOCH, b"6")
        lose_replies(store)
        won = await elect(store, BROKER, now_ms)
        assert isinstance(won, Won)
        assert won.epoch == 7
        # The licence is that of the transaction that went through: it still opens the door.
        stat = await store.exists(znodes.CONTROLLER_EPOCH)
        assert stat is not None
        assert won.fence.version == stat.version == 1
        await store.close()

    asyncio.run(scenario())


@pytest.mark.rule("ELEC-6", "ELEC-7")
@pytest.mark.parametrize("what", ["another", "epoch", "gone"])
def test_whatever_else_is_found_after_a_lost_transaction_is_a_lost_election(what: str):
    async def scenario() -> None:
        zookeeper = MemoryZooKeeper()
        store, rival = zookeeper.session(), zookeeper.session()
        await store.create(znodes.CONTROLLER_EPOCH, b"6")
        multi = store.multi

        async def beaten(ops: Sequence[Op]) -> TransactionResult:
            holder = OTHER if what == "another" else BROKER
            await rival.create(znodes.CONTROLLER, znodes.encode_controller(holder, 0))
            epoch = b"9" if what == "epoch" else b"7"
            await rival.set(znodes.CONTROLLER_EPOCH, epoch)
            result = await multi(ops)
            if what == "gone":
                await rival.delete(znodes.CONTROLLER)
            return result

        store.multi = beaten  # type: ignore[method-assign]
        outcome = await elect(store, BROKER, now_ms)
        assert outcome == {"another": OTHER, "epoch": BROKER, "gone": NOBODY}[what]
        for session in (store, rival):
            await session.close()

    asyncio.run(scenario())


async def fail_at(node: Node, meanwhile: Any) -> None:
    """Make the failover fail when it reads the topics; run `meanwhile` just before."""
    children = node.store.children
    failed = asyncio.Event()

    async def failing(path: str, *, watch: bool = False) -> list[str]:
        if path == znodes.TOPICS and not failed.is_set():
            await meanwhile()
            failed.set()
            raise KlammError("cannot read the topics")
        return await children(path, watch=watch)

    node.store.children = failing  # type: ignore[method-assign]
    await node.controller.enter_election()
    await failed.wait()


async def nothing() -> None:
    pass


def run(directory: Path, scenario: Any) -> None:
    async def main() -> None:
        async with running(directory) as node:
            await scenario(node)

    asyncio.run(main())


@pytest.mark.rule("ELEC-9", "RESIGN-2", "RESIGN-3")
def test_a_node_whose_failover_fails_gives_the_role_up_and_may_win_it_again(tmp_path: Path):
    async def scenario(node: Node) -> None:
        await node.register(7, port=1)
        await fail_at(node, nothing)
        await node.until(lambda: node.controller.context is None)
        assert not node.controller.is_active
        assert list(node.channels) == []
        await node.until(lambda: node.controller.context is not None)
        assert node.controller.context.cluster.controller_epoch == 2

    run(tmp_path, scenario)


@pytest.mark.rule("RESIGN-3", "RESIGN-4")
def test_a_node_that_fails_after_it_lost_the_role_cleans_up_and_leaves_the_node_alone(
    tmp_path: Path,
):
    async def scenario(node: Node) -> None:
        rival = node.zookeeper.session()

        async def another_takes_over() -> None:
            await rival.delete(znodes.CONTROLLER)
            await rival.create(
                znodes.CONTROLLER, znodes.encode_controller(OTHER, 0), ephemeral=True
            )

        await fail_at(node, another_takes_over)
        await node.until(lambda: node.controller.context is None)
        await node.until(lambda: node.controller.active_id == OTHER)
        assert znodes.decode_controller((await rival.get(znodes.CONTROLLER)).data) == OTHER
        answers: list[Any] = []
        node.controller.submit(ListReassignments(None), "test", answers.append)
        await node.until(lambda: answers == [(41, {})])
        await rival.close()

    run(tmp_path, scenario)


@pytest.mark.rule("RESIGN-5")
def test_a_role_that_somebody_else_took_away_first_need_not_be_given_up(tmp_path: Path):
    async def scenario(node: Node) -> None:
        delete = node.store.delete

        async def too_late(path: str, version: int = -1) -> None:
            if path == znodes.CONTROLLER:
                await delete(path)
            await delete(path, version)

        node.store.delete = too_late  # type: ignore[method-assign]
        await fail_at(node, nothing)
        await node.until(lambda: node.controller.context is not None)
        assert node.controller.is_active

    run(tmp_path, scenario)


@pytest.mark.rule("FENCE-6")
def test_what_is_not_the_controllers_own_is_written_without_its_licence(tmp_path: Path):
    """Here: the features. An epoch that has moved on stops nothing but the controller's work."""

    async def scenario(node: Node) -> None:
        children = node.store.children

        async def fenced(path: str, *, watch: bool = False) -> list[str]:
            if path == znodes.LOG_DIR_EVENTS:
                await node.store.create(znodes.LOG_DIR_EVENT_PREFIX, b"{}", sequential=True)
                await node.store.set(znodes.CONTROLLER_EPOCH, b"7")
            return await children(path, watch=watch)

        node.store.children = fenced  # type: ignore[method-assign]
        await node.controller.enter_election()
        await node.until(lambda: node.controller.is_active)
        await node.until(lambda: not node.controller.is_active)
        features = znodes.decode_features((await node.store.get(znodes.FEATURE)).data)
        assert features.enabled
        # The notification was not deleted: that needed the licence.
        assert await children(znodes.LOG_DIR_EVENTS)
        node.store.children = children  # type: ignore[method-assign]

    run(tmp_path, scenario)


@pytest.mark.rule("CONF-1")
def test_what_cannot_be_configured_is_as_kafka_has_it(tmp_path: Path):
    assert channels.RETRY_PAUSE_S == 0.1
    assert FIRST_REBALANCE_DELAY_S == 5.0
    assert metrics.QUIET_S == 300
    assert znodes.PRODUCER_ID_BLOCK_SIZE == 1000

    async def scenario(node: Node) -> None:
        seen = []
        create = node.store.create

        async def watched(path: str, data: bytes | None = None, **how: Any) -> Any:
            seen.append((path, data))
            return await create(path, data, **how)

        node.store.create = watched  # type: ignore[method-assign]
        await node.controller.enter_election()
        await node.until(lambda: node.controller.context is not None)
        assert (znodes.CONTROLLER_EPOCH, b"0") in seen

    run(tmp_path, scenario)
