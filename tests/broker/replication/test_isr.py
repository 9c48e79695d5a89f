"""The leader's state of its followers, and the line of ISR changes for the controller."""

from types import SimpleNamespace

import pytest

from klamm.broker.replication.isr import (
    RETRY_BACKOFF_MS,
    AlterPartitionItem,
    AlterPartitionQueue,
    AlterPartitionResult,
    FollowerState,
)
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode as E

T0 = 1_000_000
OK = AlterPartitionResult(E.NONE, 1, 2, (1,))


def proposal(partition=0, epoch=1):
    return AlterPartitionItem(
        TopicPartition("t", partition), None, epoch, 1, (1, 2), is_expansion=True
    )


@pytest.mark.rule("BISR-6")
def test_one_request_is_under_way_and_the_rest_goes_into_the_next():
    line = AlterPartitionQueue()
    one, two, three = proposal(0), proposal(1), proposal(2)
    line.submit(one)
    line.submit(two)
    assert line.next_batch(7, T0) == (7, (one, two))
    line.submit(three)
    assert line.next_batch(7, T0) is None
    answered = line.on_response({one.partition: OK, two.partition: OK}, T0)
    assert answered == [(one, OK), (two, OK)]
    assert line.next_batch(7, T0) == (7, (three,))


@pytest.mark.rule("LIFE-10")
def test_proposals_wait_until_a_controller_is_known():
    line = AlterPartitionQueue()
    line.submit(proposal())
    assert line.next_batch(None, T0) is None
    assert line.next_batch(7, T0)


@pytest.mark.rule("BISR-7")
def test_a_partition_that_is_missing_from_the_response_is_sent_again():
    line = AlterPartitionQueue()
    one, two = proposal(0), proposal(1)
    line.submit(one)
    line.submit(two)
    line.next_batch(7, T0)
    assert line.on_response({two.partition: OK}, T0) == [(two, OK)]
    assert line.next_batch(7, T0) == (7, (one,))


@pytest.mark.rule("BISR-7")
@pytest.mark.parametrize("error", [E.STALE_BROKER_EPOCH, E.CLUSTER_AUTHORIZATION_FAILED])
def test_an_error_of_the_whole_request_is_retried_a_little_later(error):
    line = AlterPartitionQueue()
    one = proposal()
    line.submit(one)
    line.next_batch(7, T0)
    line.on_error(error, T0)
    assert line.next_batch(8, T0) is None
    assert line.next_attempt_ms() == T0 + RETRY_BACKOFF_MS
    assert line.next_batch(7, T0 + RETRY_BACKOFF_MS) == (7, (one,))


@pytest.mark.rule("BISR-7", "LIFE-11")
@pytest.mark.parametrize("how", ["top level", "in a partition", "disconnect"])
def test_another_controller_is_tried_at_once_and_the_same_one_after_a_pause(how):
    line = AlterPartitionQueue()
    one = proposal()
    line.submit(one)
    line.next_batch(7, T0)
    if how == "top level":
        line.on_error(E.NOT_CONTROLLER, T0)
    elif how == "in a partition":
        assert line.on_response({one.partition: AlterPartitionResult(E.NOT_CONTROLLER)}, T0) == []
    else:
        line.on_disconnect(T0)
    assert line.next_batch(7, T0) is None
    assert line.next_batch(8, T0) == (8, (one,))


@pytest.mark.rule("LIFE-11", "BISR-9")
def test_a_proposal_is_resent_without_end_until_it_has_a_response():
    line = AlterPartitionQueue()
    one = proposal()
    line.submit(one)
    for attempt in range(20):
        now_ms = T0 + attempt * RETRY_BACKOFF_MS
        assert line.next_batch(7, now_ms) == (7, (one,))
        line.on_disconnect(now_ms)
    assert len(line) == 1


@pytest.mark.rule("BISR-10")
def test_a_newer_proposal_survives_the_response_to_an_older_one():
    line = AlterPartitionQueue()
    old, new = proposal(epoch=1), proposal(epoch=2)
    line.submit(old)
    line.next_batch(7, T0)
    line.submit(new)
    assert line.on_response({old.partition: OK}, T0) == [(old, OK)]
    assert line.next_batch(7, T0) == (7, (new,))


def test_a_withdrawn_proposal_is_not_sent():
    line = AlterPartitionQueue()
    line.submit(proposal())
    line.withdraw(TopicPartition("t", 0))
    assert line.next_batch(7, T0) is None
    assert line.next_attempt_ms() is None


class TestSettledFollower:
    """A follower that has everything, whose session goes on fetching."""

    @staticmethod
    def settled(session):
        follower = FollowerState()
        follower.record(5, 0, 5, T0)
        follower.join_session(session)
        return follower

    @pytest.mark.rule("BISR-4")
    def test_it_is_caught_up_with_each_fetch_of_its_session(self):
        session = SimpleNamespace(last_fetch_ms=T0)
        follower = self.settled(session)
        session.last_fetch_ms = T0 + 9_000
        assert follower.caught_up_ms == T0 + 9_000
        # The leader has appended: what counts is how long ago the last fetch was.
        assert follower.is_caught_up(6, T0 + 9_500, 1_000)
        assert not follower.is_caught_up(6, T0 + 10_001, 1_000)

    @pytest.mark.rule("BISR-4")
    def test_after_an_append_its_next_fetch_counts_as_caught_up_at_the_one_before(self):
        session = SimpleNamespace(last_fetch_ms=T0)
        follower = self.settled(session)
        session.last_fetch_ms = T0 + 9_000
        follower.leave_session(session)
        session.last_fetch_ms = T0 + 9_400
        follower.last_caught_up_ms = T0
        follower.record(5, 0, 6, T0 + 9_400)
        assert follower.caught_up_ms == T0 + 9_000

    def test_the_end_of_an_older_session_does_not_take_it_out_of_the_newer_one(self):
        old, new = SimpleNamespace(last_fetch_ms=T0), SimpleNamespace(last_fetch_ms=T0 + 1)
        follower = self.settled(old)
        follower.leave_session()
        follower.join_session(new)
        follower.leave_session(old)
        new.last_fetch_ms = T0 + 7_000
        assert follower.caught_up_ms == T0 + 7_000
