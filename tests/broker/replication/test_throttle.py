"""Replication throttles."""

import pytest

from klamm.broker.replication.throttle import ReplicationThrottle, parse_throttled_replicas

T0 = 1_000_000


@pytest.mark.rule("CFG-6")
@pytest.mark.parametrize(
    ("value", "partitions"),
    [("*", None), ("", set()), ("0:1,1:2,3:1", {0, 3}), ("0:2", set())],
)
def test_replicas_are_named_as_partition_and_broker(value, partitions):
    assert parse_throttled_replicas(value, 1) == partitions


@pytest.mark.rule("CFG-6")
def test_only_named_replicas_are_covered():
    throttle = ReplicationThrottle()
    throttle.set_partitions("all", None)
    throttle.set_partitions("some", frozenset({1}))
    assert throttle.covers("all", 7)
    assert throttle.covers("some", 1)
    assert not throttle.covers("some", 2)
    assert not throttle.covers("other", 1)
    throttle.set_partitions("some", frozenset())
    throttle.forget_topics(["all", "unknown"])
    assert not throttle.covers("some", 1)
    assert not throttle.covers("all", 7)


def test_without_a_rate_nothing_is_held_back():
    throttle = ReplicationThrottle()
    throttle.record(1 << 40, T0)
    assert not throttle.is_exceeded(T0)
    assert throttle.open_again_ms(T0) == T0


def test_a_debt_is_paid_at_the_allowed_rate():
    throttle = ReplicationThrottle()
    throttle.set_rate(1000, T0)
    throttle.record(3000, T0)
    assert throttle.open_again_ms(T0) == T0 + 2001
    assert throttle.is_exceeded(T0 + 1999)
    assert not throttle.is_exceeded(T0 + 2001)


def test_what_was_not_used_is_kept_for_a_second_only():
    throttle = ReplicationThrottle()
    throttle.set_rate(1000, T0)
    throttle.record(1000, T0 + 3_600_000)
    assert throttle.is_exceeded(T0 + 3_600_000)


def test_over_time_the_rate_is_kept():
    throttle = ReplicationThrottle()
    throttle.set_rate(1000, T0)
    moved = 0
    for now_ms in range(T0, T0 + 10_000, 10):
        if not throttle.is_exceeded(now_ms):
            throttle.record(500, now_ms)
            moved += 500
    assert 10_000 <= moved <= 11_500
