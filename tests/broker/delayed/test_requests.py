"""Requests wait in rooms: one timer ends them, a change of their partition wakes them."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from klamm.broker.clock import SystemClock
from klamm.broker.delayed.operations import WaitingProduce
from klamm.broker.delayed.requests import Parking, count_waiting
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


def wait(parking: Parking, partitions: Partitions, timeout_ms: int = 10_000) -> Any:
    waiter = WaitingProduce({ONE: 1}, partitions.find)
    return asyncio.create_task(parking.wait(parking.produces, waiter, waiter.keys, timeout_ms))


@pytest.mark.rule("HW-5", "PROD-7")
def test_a_rise_of_the_high_watermark_completes_a_produce() -> None:
    async def test() -> None:
        parking, partitions = Parking(SystemClock()), Partitions()
        waiting = wait(parking, partitions)
        await asyncio.sleep(0)
        parking.on_high_watermark(OTHER)
        parking.on_high_watermark(ONE)
        assert count_waiting(parking)["Produce"] == (1, 1), "not committed yet"
        partitions.answer = ErrorCode.NONE
        parking.on_append(ONE)
        assert not waiting.done()
        parking.on_high_watermark(ONE)
        assert await waiting
        assert count_waiting(parking)["Produce"] == (0, 0)
        parking.close()

    run(test())


@pytest.mark.rule("PROD-8")
def test_time_runs_out_in_the_order_of_the_deadlines() -> None:
    async def test() -> None:
        parking, partitions = Parking(SystemClock()), Partitions()
        ended: list[int] = []
        late, early = wait(parking, partitions, 60), wait(parking, partitions, 20)
        late.add_done_callback(lambda _: ended.append(60))
        early.add_done_callback(lambda _: ended.append(20))
        assert await asyncio.gather(late, early) == [False, False]
        await asyncio.sleep(0)
        assert ended == [20, 60]
        parking.close()

    run(test())


@pytest.mark.rule("FRM-3")
def test_a_client_that_goes_away_takes_its_request_along() -> None:
    async def test() -> None:
        parking = Parking(SystemClock())
        waiting = wait(parking, Partitions())
        await asyncio.sleep(0)
        assert count_waiting(parking)["Produce"] == (1, 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert count_waiting(parking)["Produce"] == (0, 0)
        parking.close()

    run(test())


def test_a_change_of_leadership_looks_at_everybody() -> None:
    async def test() -> None:
        parking, partitions = Parking(SystemClock()), Partitions()
        waiting = wait(parking, partitions)
        await asyncio.sleep(0)
        partitions.answer = ErrorCode.NOT_LEADER_OR_FOLLOWER
        parking.on_change(ONE)
        assert await waiting
        parking.close()

    run(test())
