from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.groups.timers import GroupTimer, GroupTimers, TimerKind

A = GroupTimer(TimerKind.SESSION, "g", "a")
B = GroupTimer(TimerKind.SESSION, "g", "b")

actions = st.lists(
    st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 50), st.integers(0, 10)),
    max_size=60,
)


def test_a_timer_that_was_moved_fires_once_at_its_last_deadline():
    timers = GroupTimers()
    timers.arm(A, 10)
    timers.arm(A, 30)
    timers.arm(A, 20)
    assert timers.next_deadline_ms() == 20
    assert list(timers.due(19)) == []
    assert list(timers.due(40)) == [A]
    assert timers.next_deadline_ms() is None


def test_acting_on_a_timer_may_cancel_another_that_is_due():
    timers = GroupTimers()
    timers.arm(A, 1)
    timers.arm(B, 1)
    fired = []
    for timer in timers.due(5):
        fired.append(timer)
        timers.cancel(B)
    assert fired == [A]


def test_heartbeats_do_not_grow_the_queue():
    timers = GroupTimers()
    for now in range(10_000):
        timers.arm(A, now + 10)
    assert len(timers._heap) == 1


@given(actions)
def test_timers_behave_like_a_table_of_deadlines(script):
    timers, table, now = GroupTimers(), {}, 0
    for name, delay, step in script:
        timer = GroupTimer(TimerKind.SESSION, "g", name)
        if delay is None:
            timers.cancel(timer)
            table.pop(timer, None)
        else:
            timers.arm(timer, now + delay)
            table[timer] = now + delay
        assert timers.next_deadline_ms() == min(table.values(), default=None)
        now += step
        due = {timer for timer, at in table.items() if at <= now}
        fired = list(timers.due(now))
        assert len(fired) == len(due)
        assert set(fired) == due
        assert [table[timer] for timer in fired] == sorted(table[timer] for timer in due)
        table = {timer: at for timer, at in table.items() if timer not in due}
