"""Purgatories: which operations an event checks, and which a deadline expires."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.clock import SystemClock
from klamm.broker.delayed.operations import DelayedProduce
from klamm.broker.delayed.purgatory import (
    DelayedOperation,
    DelayedOperationPurgatory,
    Purgatories,
)
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode

ONE, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)


class CountedChecks(DelayedOperation):
    """Complete after a number of checks."""

    def __init__(self, *keys, checks=1):
        super().__init__(keys)
        self.left = checks
        self.checked = []
        self.is_expired = False

    def try_complete(self, key):
        self.checked.append(key)
        self.left -= 1
        return self.left <= 0

    def try_complete_all(self):
        return False

    def on_expiration(self):
        self.is_expired = True


@pytest.mark.rule("FETCH-7")
def test_only_the_operations_under_the_key_are_checked():
    purgatory = DelayedOperationPurgatory()
    one, two = CountedChecks("a", "b"), CountedChecks("c")
    purgatory.watch(one, 10)
    purgatory.watch(two, 10)
    assert purgatory.check("b") == [one]
    assert (one.checked, two.checked) == (["b"], [])
    assert len(purgatory) == 1
    assert purgatory.check("a") == []


def test_an_incomplete_operation_stays_watched():
    purgatory = DelayedOperationPurgatory()
    operation = CountedChecks("a", checks=2)
    purgatory.watch(operation, 10)
    assert purgatory.check("a") == []
    assert purgatory.check("a") == [operation]


@pytest.mark.rule("FETCH-6", "PROD-8")
def test_operations_expire_once_and_in_the_order_of_their_deadlines():
    purgatory = DelayedOperationPurgatory()
    late, early = CountedChecks("a"), CountedChecks("a")
    purgatory.watch(late, 20)
    purgatory.watch(early, 10)
    assert purgatory.next_deadline_ms() == 10
    assert purgatory.expire(9) == []
    assert purgatory.expire(30) == [early, late]
    assert early.is_expired
    assert purgatory.expire(30) == []
    assert purgatory.next_deadline_ms() is None
    assert purgatory.check("a") == []
    assert early.checked == late.checked == []


def test_a_removed_operation_is_neither_checked_nor_expired():
    purgatory = DelayedOperationPurgatory()
    operation = CountedChecks("a")
    purgatory.watch(operation, 10)
    assert purgatory.remove(operation)
    assert not purgatory.remove(operation)
    assert purgatory.check("a") == purgatory.expire(10) == []


def test_completed_operations_do_not_pile_up_behind_long_deadlines():
    purgatory = DelayedOperationPurgatory()
    for _ in range(10_000):
        purgatory.watch(CountedChecks("a"), 30_000)
        purgatory.check("a")
    assert len(purgatory._timers) < 200
    assert not purgatory._by_key


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("watch"), st.sets(st.sampled_from("abc")), st.integers(0, 20)),
            st.tuples(st.just("check"), st.sampled_from("abc"), st.none()),
            st.tuples(st.just("expire"), st.integers(0, 20), st.none()),
        )
    )
)
def test_every_operation_leaves_exactly_once(steps):
    purgatory, watched, now_ms = DelayedOperationPurgatory(), {}, 0
    for step, argument, deadline in steps:
        if step == "watch":
            operation = CountedChecks(*argument)
            watched[operation] = (argument, deadline)
            purgatory.watch(operation, deadline)
            continue
        if step == "check":
            expected = [each for each, (keys, _) in watched.items() if argument in keys]
            left = purgatory.check(argument)
        else:
            now_ms = max(now_ms, argument)
            expected = [each for each, (_, deadline) in watched.items() if deadline <= now_ms]
            left = purgatory.expire(now_ms)
        assert set(left) == set(expected)
        assert len(left) == len(expected)
        for operation in left:
            del watched[operation]
        assert len(purgatory) == len(watched)
        assert purgatory.watched_keys == sum(len(keys) for keys, _ in watched.values())
        deadlines = [deadline for _, deadline in watched.values()]
        assert purgatory.next_deadline_ms() == min(deadlines, default=None)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


class Partitions:
    """Partitions that are committed once `error` is set."""

    def __init__(self) -> None:
        self.error: ErrorCode | None = None

    def find(self, name: TopicPartition) -> Any:
        return self

    def check_committed(self, required_offset: int) -> ErrorCode | None:
        return self.error


def delay(
    purgatories: Purgatories, partitions: Partitions, timeout_ms: int = 10_000
) -> DelayedProduce:
    operation = DelayedProduce({ONE: 1}, partitions.find)
    purgatories.try_complete_else_watch(purgatories.produces, operation, timeout_ms)
    return operation


@pytest.mark.rule("PROD-7")
def test_an_operation_that_is_complete_at_once_is_not_watched() -> None:
    async def test() -> None:
        purgatories, partitions = Purgatories(SystemClock()), Partitions()
        partitions.error = ErrorCode.NONE
        operation = delay(purgatories, partitions)
        assert not operation.is_pending
        await operation.wait()
        assert purgatories.sizes()["Produce"] == (0, 0)

    run(test())


@pytest.mark.rule("HW-5", "PROD-7")
def test_a_rise_of_the_high_watermark_completes_a_produce() -> None:
    async def test() -> None:
        purgatories, partitions = Purgatories(SystemClock()), Partitions()
        operation = delay(purgatories, partitions)
        purgatories.on_high_watermark(OTHER)
        purgatories.on_high_watermark(ONE)
        assert purgatories.sizes()["Produce"] == (1, 1), "not committed yet"
        partitions.error = ErrorCode.NONE
        purgatories.on_append(ONE)
        assert operation.is_pending
        purgatories.on_high_watermark(ONE)
        await operation.wait()
        assert operation.errors == {ONE: ErrorCode.NONE}
        assert purgatories.sizes()["Produce"] == (0, 0)
        purgatories.close()

    run(test())


@pytest.mark.rule("PROD-8")
def test_operations_time_out_in_the_order_of_their_deadlines() -> None:
    async def test() -> None:
        purgatories, partitions = Purgatories(SystemClock()), Partitions()
        ended: list[int] = []
        late, early = delay(purgatories, partitions, 60), delay(purgatories, partitions, 20)
        for operation, timeout_ms in ((late, 60), (early, 20)):
            waiting = asyncio.ensure_future(operation.wait())
            waiting.add_done_callback(lambda _, timeout_ms=timeout_ms: ended.append(timeout_ms))
        await asyncio.gather(late.wait(), early.wait())
        await asyncio.sleep(0)
        assert ended == [20, 60]
        assert late.errors == early.errors == {ONE: ErrorCode.REQUEST_TIMED_OUT}
        purgatories.close()

    run(test())


@pytest.mark.rule("FRM-3")
def test_a_client_that_disconnects_takes_its_request_along() -> None:
    async def test() -> None:
        purgatories = Purgatories(SystemClock())
        waiting = asyncio.create_task(delay(purgatories, Partitions()).wait())
        await asyncio.sleep(0)
        assert purgatories.sizes()["Produce"] == (1, 1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert purgatories.sizes()["Produce"] == (0, 0)
        purgatories.close()

    run(test())


def test_a_change_of_leadership_checks_every_operation() -> None:
    async def test() -> None:
        purgatories, partitions = Purgatories(SystemClock()), Partitions()
        operation = delay(purgatories, partitions)
        partitions.error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        purgatories.on_leadership_change(ONE)
        await operation.wait()
        assert operation.errors == {ONE: ErrorCode.NOT_LEADER_OR_FOLLOWER}
        purgatories.close()

    run(test())
