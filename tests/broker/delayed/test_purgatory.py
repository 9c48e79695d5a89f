"""Who waits, who is woken, and who has waited long enough."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.delayed.purgatory import DelayedOperationPurgatory


class Patient:
    """Complete once it has been looked at often enough."""

    def __init__(self, looks=1):
        self.left = looks
        self.seen = []

    def check(self, key):
        self.seen.append(key)
        self.left -= 1
        return self.left <= 0


@pytest.mark.rule("FETCH-7")
def test_only_those_under_the_key_are_looked_at():
    room = DelayedOperationPurgatory()
    one, two = Patient(), Patient()
    room.add(one, ["a", "b"], 10)
    room.add(two, ["c"], 10)
    assert room.wake("b") == [one]
    assert (one.seen, two.seen) == (["b"], [])
    assert len(room) == 1
    assert room.wake("a") == []


def test_an_incomplete_request_goes_on_waiting():
    room = DelayedOperationPurgatory()
    waiter = Patient(looks=2)
    room.add(waiter, ["a"], 10)
    assert room.wake("a") == []
    assert room.wake("a") == [waiter]


@pytest.mark.rule("FETCH-6", "PROD-8")
def test_deadlines_are_met_in_order_and_only_once():
    room = DelayedOperationPurgatory()
    late, early = Patient(), Patient()
    room.add(late, ["a"], 20)
    room.add(early, ["a"], 10)
    assert room.next_deadline_ms() == 10
    assert room.tick(9) == []
    assert room.tick(30) == [early, late]
    assert room.tick(30) == []
    assert room.next_deadline_ms() is None
    assert room.wake("a") == []
    assert early.seen == late.seen == []


def test_a_request_that_nobody_wants_an_answer_to_is_let_go():
    room = DelayedOperationPurgatory()
    ticket = room.add(Patient(), ["a"], 10)
    assert room.remove(ticket)
    assert not room.remove(ticket)
    assert room.wake("a") == room.tick(10) == []


def test_completed_requests_do_not_pile_up_behind_long_deadlines():
    room = DelayedOperationPurgatory()
    for _ in range(10_000):
        room.add(Patient(), ["a"], 30_000)
        room.wake("a")
    assert len(room._timers) < 200
    assert not room._by_key


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.sets(st.sampled_from("abc")), st.integers(0, 20)),
            st.tuples(st.just("wake"), st.sampled_from("abc"), st.none()),
            st.tuples(st.just("tick"), st.integers(0, 20), st.none()),
        )
    )
)
def test_everybody_leaves_exactly_once(steps):
    room, waiting, now_ms = DelayedOperationPurgatory(), {}, 0
    for step, argument, deadline in steps:
        if step == "add":
            waiter = Patient()
            waiting[waiter] = (argument, deadline)
            room.add(waiter, argument, deadline)
            continue
        if step == "wake":
            expected = [w for w, (keys, _) in waiting.items() if argument in keys]
            left = room.wake(argument)
        else:
            now_ms = max(now_ms, argument)
            expected = [w for w, (_, deadline) in waiting.items() if deadline <= now_ms]
            left = room.tick(now_ms)
        assert set(left) == set(expected)
        assert len(left) == len(expected)
        for waiter in left:
            del waiting[waiter]
        assert len(room) == len(waiting)
        deadlines = [deadline for _, deadline in waiting.values()]
        assert room.next_deadline_ms() == min(deadlines, default=None)
