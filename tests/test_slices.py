"""Work that is cut into steps is done at once where it is short, and else in turns with others."""

import asyncio
import gc
import inspect
import weakref
from typing import Any

import pytest

from klamm import slices
from klamm.slices import (
    Delayed,
    LargeBody,
    Steps,
    aside,
    collect_frozen,
    counted,
    each,
    finish,
    paced,
    pieces,
    run,
    uncollected,
)
from tests.support.event_loop import in_loop


def long() -> Steps[dict[str, Any]]:
    yield from each(str, range(10))
    return {"done": True}


@pytest.fixture
def tiny_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step takes longer than a slice."""
    monkeypatch.setattr(slices, "SLICE_S", -1)


def test_short_work_is_done_at_once() -> None:
    assert run(each(str, range(3))) == ["0", "1", "2"]


def test_an_item_is_counted_wherever_it_stands() -> None:
    assert run(counted("abca")) == {"a": 2, "b": 1, "c": 1}


def test_pieces_are_all_of_the_items() -> None:
    items = list(range(1001))
    assert [each for piece in pieces(items) for each in piece] == items
    assert not list(pieces([]))


@pytest.mark.usefixtures("tiny_slices")
@in_loop
async def test_long_work_lets_others_run() -> None:
    answering = run(long())
    assert inspect.isawaitable(answering)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    result = await answering
    other.cancel()
    assert turns >= 10
    assert isinstance(result, LargeBody), "and it is encoded elsewhere"


@in_loop
async def test_the_result_of_an_awaitable_goes_back_into_the_steps() -> None:
    def steps() -> Steps[int]:
        found: int = yield asyncio.sleep(0, 5)
        try:
            yield _fail()
        except ValueError:
            return found + 1
        return 0

    async def _fail() -> None:
        raise ValueError

    assert await finish(steps()) == 6


@in_loop
async def test_a_future_that_is_done_delays_nothing() -> None:
    future = asyncio.get_running_loop().create_future()
    future.set_result(3)

    def steps() -> Steps[int]:
        found: int = yield future
        return found

    assert run(steps()) == 3


@in_loop
async def test_steps_that_wait_for_futures_need_no_task() -> None:
    first, second = (asyncio.get_running_loop().create_future() for _ in range(2))

    def steps() -> Steps[tuple[int, int]]:
        return (yield first), (yield second)

    delayed = run(steps())
    assert isinstance(delayed, Delayed)
    assert delayed.event is first
    first.set_result(1)
    delayed = delayed.respond()
    assert isinstance(delayed, Delayed)
    assert delayed.event is second
    second.set_result(2)
    assert delayed.respond() == (1, 2)


@pytest.mark.parametrize("fails_first", [True, False])
@in_loop
async def test_steps_learn_that_a_future_has_failed(fails_first: bool) -> None:
    event: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def steps() -> Steps[str]:
        try:
            yield event
        except OSError as error:
            return str(error)
        return "nothing failed"

    if fails_first:
        event.set_exception(OSError("gone"))
        assert run(steps()) == "gone"
    else:
        delayed = run(steps())
        event.set_exception(OSError("gone"))
        assert await delayed == "gone"


@in_loop
async def test_what_many_requests_waited_for_is_given_to_all_of_them_in_one_turn() -> None:
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(200)]
    done: list[int] = []

    def steps(awaited: asyncio.Future[int]) -> Steps[None]:
        done.append((yield awaited))

    waiting = [asyncio.ensure_future(run(steps(future))) for future in futures]
    await asyncio.sleep(0)
    for number, future in enumerate(futures):
        future.set_result(number)
    await asyncio.sleep(0)
    assert done == list(range(200))
    await asyncio.gather(*waiting)


@pytest.mark.usefixtures("tiny_slices")
@in_loop
async def test_what_fails_in_a_later_slice_is_raised() -> None:
    def steps() -> Steps[None]:
        yield from long()
        raise ValueError("later")

    with pytest.raises(ValueError, match="later"):
        await finish(steps())


@in_loop
async def test_steps_of_a_client_that_left_are_closed() -> None:
    is_closed = False

    def steps() -> Steps[None]:
        nonlocal is_closed
        try:
            yield asyncio.get_running_loop().create_future()
        finally:
            is_closed = True

    task = asyncio.ensure_future(run(steps()))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    del task
    assert is_closed


@in_loop
async def test_a_loop_in_a_coroutine_can_be_paced() -> None:
    assert [item async for item in paced(range(5))] == list(range(5))


@in_loop
async def test_the_collector_works_again_after_work_in_the_other_thread() -> None:
    assert await aside(gc.isenabled) is False
    assert gc.isenabled()


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_cycles_that_lived_during_a_large_request_are_freed_later() -> None:
    cycle = Cycle()
    alive = weakref.ref(cycle)
    with uncollected():
        many = [[number] for number in range(5000)]
    del cycle, many
    gc.collect()
    assert alive() is not None
    collect_frozen()
    assert alive() is None
