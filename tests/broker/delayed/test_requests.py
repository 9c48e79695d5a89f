"""Requests wait in rooms: one timer ends them, a change of their partition wakes them."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from klamm.broker.clock import SystemClock
from klamm.broker.delayed.operations import DelayedProduce
from klamm.broker.delayed.requests import Purgatories, purgatory_sizes
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


class Partitions:
    """Whether partitions are committed, as far as a waiting produce asks."""

    def __init__(self) -> None:
        self.answer: ErrorCode | None = None

    def find(self, name: TopicPartition) -> Any:
        return self

    def check_committed(self, required_offset: int) -> ErrorCode | None:
        return self.answer


def wait(purgatories: Purgatories, partitions: Partitions, timeout_ms: int = 10_000) -> Any:
    waiter = DelayedProduce({ONE: 1}, partitions.find)
    return asyncio.create_task(
        purgatories.wait(purgatories.produces, waiter, waiter.keys, timeout_ms)
    )


@pytest.mark.rule("HW-5", "PROD-7")
def test_a_rise_of_the_high_watermark_completes_a_produce() -> None:
    async def test() -> None:
        purgatories, partitions = Purgatories(SystemClock()), Partitions()
        waiting = wait(purgatories, partitions)
        await asyncio.sleep(0)
        purgatories.on_high_watermark(OTHER)
        purgatories.on_high_watermark(ONE)
        assert purgatory_sizes(purgatories)["Produce"] == (1, 1), "not committed yet"
        partitions.answer = ErrorCode.NONE
        purgatories.on_append(ONE)
        assert not waiting.done()
        purgatories.on_high_watermark(ONE)
        assert await waiting
        assert purgatory_sizes(purgatories)["Produce"] == (0, 0)
        purgatories.close()

    run(test())


@pytest.mark.rule("PROD-8")
def test_time_runs_out_in_the_order_of_the_deadlines() -> None:
    async def test() -> None:
        purgatories, partitions = Purgatories(SystemClock()), Partitions()
        ended: list[int] = []
        late, early = wait(purgatories, partitions, 60), wait(purgatories, partitions, 20)
        late.add_done_callback(lambda _: ended.append(60))
        early.add_done_callback(lambda _: ended.append(20))
        assert await asyncio.gather(late, early) == [False, False]
        await asyncio.sleep(0)
        assert ended == [20, 60]
        purgatories.close()

    run(test())


@pytest.mark.rule("FRM-3")
def test_a_client_that_goes_away_takes_its_request_along() -> None:
    async def test() -> None:
        purgatories = Purgatories(SystemClock())
        waiting = wait(purgatories, Partitions())
        await asyncio.sleep(0)
        assert purgatory_sizes(purgatories)["Produce"] == (1, 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert purgatory_sizes(purgatories)["Produce"] == (0, 0)
        purgatories.close()

    run(test())


def test_a_change_of_leadership_looks_at_everybody() -> None:
    async def test() -> None:
        purgatories, partitions = Purgatories(SystemClock()), Partitions()
        waiting = wait(purgatories, partitions)
        await asyncio.sleep(0)
        partitions.answer = ErrorCode.NOT_LEADER_OR_FOLLOWER
        purgatories.on_change(ONE)
        assert await waiting
        purgatories.close()

    run(test())
