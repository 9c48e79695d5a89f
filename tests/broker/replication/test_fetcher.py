"""The follower's fetch loop, and its side of fetch sessions."""

import uuid

import pytest

from klamm.broker.log.epochs import EpochEnd
from klamm.broker.log.errors import AppendError, StorageError
from klamm.broker.replication.fetcher import (
    EARLIEST,
    LATEST,
    ListOffsetsResult,
    ReplicaFetcher,
    Truncation,
    fetcher_index,
    truncation_offset,
)
from klamm.broker.replication.replica_log import FetchPosition
from klamm.broker.replication.throttle import ReplicationThrottle
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode as E
from klamm.protocol.fast.fetch import (
    EpochEndOffset,
    FetchPartitionResponse,
    FetchResponse,
    FetchTopicResponse,
)
from tests.support.memory_log import Batch, MemoryLog

T0 = 1_000_000
BACKOFF_MS = 1000
ID = uuid.UUID(int=7)
A, B, C = (TopicPartition("t", index) for index in range(3))


def log_of(*epochs):
    """A log with one record for each of `epochs`."""
    log = MemoryLog(ID)
    for epoch in epochs:
        log.append_as_leader(b"%d" % epoch, epoch)
    return log


def batch(offset, epoch):
    return Batch(offset, offset, epoch, b"%d" % epoch).encode()


class Follower:
    def __init__(self, *partitions, epoch=5, throttle=None, topic_id=ID):
        self.fetcher = ReplicaFetcher(backoff_ms=BACKOFF_MS, throttle=throttle)
        self.logs = {}
        self.now_ms = T0
        for name in partitions:
            self.add(name, log_of(1, 1), epoch, topic_id)

    def add(self, name, log, epoch=5, topic_id=ID):
        self.logs[name] = log
        return self.fetcher.add(name, topic_id, log, epoch)

    def plan(self):
        return self.fetcher.next_fetch(self.now_ms)

    def respond(self, *entries, error=0, session_id=0, throttled=0):
        topics = [FetchTopicResponse(None, ID, entries)] if entries else []
        response = FetchResponse(topics, error, session_id, throttled)
        return self.fetcher.on_response(response, self.now_ms)

    def exchange(self, *entries, session_id=0):
        self.plan()
        return self.respond(*entries, session_id=session_id)


def entry(name, error=0, *, hw=2, start=0, records=b"", diverging=None):
    return FetchPartitionResponse(
        name.partition,
        error,
        high_watermark=hw,
        log_start_offset=start,
        records=memoryview(records),
        diverging_epoch=EpochEndOffset(*diverging) if diverging else None,
    )


class TestRequests:
    @pytest.mark.rule("REPL-1")
    def test_a_partition_always_goes_to_the_same_loop(self):
        assert {fetcher_index(A, 1), fetcher_index(B, 1)} == {0}
        assert fetcher_index(A, 4) == fetcher_index(TopicPartition("t", 4), 4)
        assert fetcher_index(A, 4) != fetcher_index(B, 4)

    @pytest.mark.rule("REPL-2")
    def test_a_fetch_asks_from_the_end_of_the_log_and_says_what_is_there(self):
        follower = Follower()
        log = log_of(1, 3, 3)
        log.advance_high_watermark(2)
        log.raise_start_offset(1)
        follower.add(A, log, epoch=5)
        wanted = follower.plan().partitions[A]
        assert wanted.position == FetchPosition(3, current_leader_epoch=5, last_fetched_epoch=3)
        assert wanted.start_offset == 1

    @pytest.mark.rule("REPL-3")
    def test_topic_ids_are_used_when_all_are_known(self):
        follower = Follower(A)
        assert follower.plan().by_id
        follower.add(B, log_of(1), topic_id=None)
        assert not follower.plan().by_id
        follower.fetcher.remove(B)
        assert follower.plan().by_id

    @pytest.mark.rule("REPL-10")
    def test_a_log_without_epochs_is_first_cut_to_its_high_watermark(self):
        log = log_of(1, 1, 1)
        log.advance_high_watermark(2)
        log.epochs.entries = []
        follower = Follower()
        truncation = follower.add(A, log)
        assert truncation == Truncation(A, 5, 2)
        assert follower.plan() is None
        truncation.carry_out(log, T0)
        follower.fetcher.on_truncated(truncation)
        assert follower.plan().partitions[A].position.offset == 2

    @pytest.mark.rule("REPL-10")
    def test_a_log_with_epochs_is_fetched_from_its_end(self):
        log = log_of(1, 1, 1)
        follower = Follower()
        assert follower.add(A, log) is None
        assert follower.plan().partitions[A].position.offset == 3

    @pytest.mark.rule("LISR-11")
    def test_a_higher_leader_epoch_starts_anew_and_the_same_one_does_not(self):
        follower = Follower(A)
        follower.exchange(entry(A, E.UNKNOWN_LEADER_EPOCH))
        follower.add(A, follower.logs[A], epoch=5)
        assert follower.plan() is None
        follower.add(A, follower.logs[A], epoch=6)
        assert follower.plan().partitions[A].position.current_leader_epoch == 6

    @pytest.mark.rule("LOG-30", "BADM-9")
    def test_a_log_start_that_follows_the_leaders_is_told_in_the_next_fetch(self):
        follower = Follower(A)
        follower.exchange(entry(A), session_id=9)
        follower.exchange(entry(A, start=1), session_id=9)
        assert follower.plan().partitions[A].start_offset == 1

    def test_a_partition_with_data_comes_last_in_the_next_full_request(self):
        follower = Follower(A, B)
        follower.exchange(entry(A, records=batch(2, 5), hw=2), entry(B))
        assert list(follower.plan().partitions) == [B, A]


class TestSessions:
    @pytest.mark.rule("SESS-1", "SESS-6")
    def test_after_the_first_request_only_changes_are_named(self):
        follower = Follower(A, B)
        first = follower.plan()
        assert (first.session_id, first.session_epoch, list(first.partitions)) == (0, 0, [A, B])
        follower.respond(entry(A), entry(B), session_id=9)
        second = follower.plan()
        assert (second.session_id, second.session_epoch, second.partitions) == (9, 1, {})
        follower.respond(entry(B, records=batch(2, 5)), session_id=9)
        third = follower.plan()
        assert (third.session_epoch, list(third.partitions)) == (2, [B])

    @pytest.mark.rule("SESS-5")
    def test_what_is_no_longer_wanted_is_forgotten(self):
        follower = Follower(A, B)
        follower.exchange(entry(A), entry(B), session_id=9)
        follower.fetcher.remove(A)
        follower.add(C, log_of(1))
        plan = follower.plan()
        assert list(plan.partitions) == [C]
        assert plan.forgotten == ((A, ID),)

    @pytest.mark.rule("SESS-5")
    def test_a_topic_that_was_created_again_is_forgotten_under_its_old_id(self):
        follower = Follower(A, B)
        follower.exchange(entry(A), entry(B), session_id=9)
        follower.fetcher.remove(A)
        follower.add(A, log_of(), topic_id=uuid.UUID(int=8))
        plan = follower.plan()
        assert plan.forgotten == ((A, ID),)
        assert plan.partitions[A].topic_id == uuid.UUID(int=8)

    @pytest.mark.rule("SESS-2")
    def test_a_leader_that_declines_gets_full_requests(self):
        follower = Follower(A)
        follower.exchange(entry(A), session_id=0)
        assert follower.plan().is_full

    @pytest.mark.rule("SESS-4")
    @pytest.mark.parametrize(
        ("error", "session_id"),
        [(E.FETCH_SESSION_ID_NOT_FOUND, 0), (E.INVALID_FETCH_SESSION_EPOCH, 9)],
    )
    def test_an_error_starts_over_and_closes_what_may_be_left(self, error, session_id):
        follower = Follower(A)
        follower.exchange(entry(A), session_id=9)
        follower.plan()
        follower.respond(error=error)
        plan = follower.plan()
        assert (plan.session_id, plan.is_full, list(plan.partitions)) == (session_id, True, [A])

    @pytest.mark.rule("SESS-8")
    def test_a_full_response_that_is_not_full_is_discarded(self):
        follower = Follower(A, B)
        effects = follower.exchange(entry(A, records=batch(2, 5)), session_id=9)
        assert not effects.appended
        assert follower.logs[A].end_offset == 2
        assert follower.plan().is_full

    @pytest.mark.rule("FRM-9")
    def test_a_throttled_empty_response_to_a_full_request_is_followed_by_another(self):
        follower = Follower(A)
        follower.plan()
        follower.respond(throttled=100)
        assert follower.plan().is_full

    def test_an_incremental_response_with_something_unknown_starts_over(self):
        follower = Follower(A)
        follower.exchange(entry(A), session_id=9)
        follower.plan()
        follower.respond(entry(C, records=batch(2, 5)), session_id=9)
        assert follower.plan()[:2] == (9, 0)

    @pytest.mark.rule("SESS-4")
    def test_a_change_from_ids_to_names_needs_another_session(self):
        follower = Follower(A)
        follower.exchange(entry(A), session_id=9)
        follower.add(B, log_of(1), topic_id=None)
        plan = follower.plan()
        assert (plan.session_id, plan.is_full, plan.by_id) == (9, True, False)


class TestAnswers:
    @pytest.mark.rule("REPL-5")
    def test_data_is_appended_then_the_watermark_moves_then_the_start(self):
        follower = Follower(A)
        records = batch(2, 5) + batch(3, 5)
        effects = follower.exchange(entry(A, records=records, hw=3, start=1))
        log = follower.logs[A]
        assert (log.start_offset, log.high_watermark, log.end_offset) == (1, 3, 4)
        assert effects.appended == {A: len(records)}
        assert effects.moved == [A]
        assert follower.plan().partitions[A].position.offset == 4

    @pytest.mark.rule("REPL-5")
    def test_the_watermark_stays_within_the_log(self):
        follower = Follower(A)
        follower.exchange(entry(A, hw=100, start=50))
        log = follower.logs[A]
        assert (log.start_offset, log.high_watermark, log.end_offset) == (2, 2, 2)

    @pytest.mark.rule("REPL-6", "FETCH-7")
    def test_the_watermark_moves_with_a_response_only(self):
        follower = Follower(A)
        assert follower.logs[A].high_watermark == 0
        assert follower.exchange(entry(A, hw=1)).moved == [A]
        assert follower.exchange(entry(A, hw=1)).moved == []

    @pytest.mark.rule("REPL-4")
    def test_a_response_for_another_offset_is_not_used(self):
        follower = Follower(A)
        follower.plan()
        follower.logs[A].truncate_to(1, now_ms=T0)
        assert not follower.respond(entry(A, records=batch(2, 5))).appended

    @pytest.mark.rule("REPL-4")
    def test_a_response_for_a_partition_that_left_or_changed_its_leader_is_not_used(self):
        follower = Follower(A, B)
        follower.plan()
        follower.fetcher.remove(A)
        follower.add(B, follower.logs[B], epoch=6)
        effects = follower.respond(
            entry(A, records=batch(2, 5)), entry(B, records=batch(2, 5)), session_id=9
        )
        assert not effects.appended

    @pytest.mark.rule("REPL-7")
    @pytest.mark.parametrize(
        "error",
        [
            E.NOT_LEADER_OR_FOLLOWER,
            E.UNKNOWN_LEADER_EPOCH,
            E.UNKNOWN_TOPIC_OR_PARTITION,
            E.UNKNOWN_TOPIC_ID,
            E.INCONSISTENT_TOPIC_ID,
            E.KAFKA_STORAGE_ERROR,
            9999,
        ],
    )
    def test_most_errors_delay_their_partition_only(self, error):
        follower = Follower(A, B)
        follower.exchange(entry(A, error), entry(B), session_id=9)
        plan = follower.plan()
        assert plan.forgotten == ((A, ID),)
        assert follower.fetcher.next_attempt_ms(T0) == T0 + BACKOFF_MS
        follower.respond(session_id=9)
        follower.now_ms += BACKOFF_MS
        assert list(follower.plan().partitions) == [A]

    @pytest.mark.rule("REPL-7")
    def test_a_fenced_partition_is_left_alone_until_the_next_order(self):
        follower = Follower(A)
        assert follower.exchange(entry(A, E.FENCED_LEADER_EPOCH)).stopped == [A]
        assert A not in follower.fetcher
        assert follower.plan() is None
        assert follower.fetcher.next_attempt_ms(T0) is None

    @pytest.mark.rule("REPL-7")
    @pytest.mark.parametrize(
        ("failure", "stopped"),
        [(AppendError(E.CORRUPT_MESSAGE, "torn"), []), (StorageError("broken"), [A])],
    )
    def test_bad_data_is_fetched_again_and_a_bad_disk_is_not(self, failure, stopped):
        follower = Follower(A)

        def fail(records, *, now_ms):
            raise failure

        follower.logs[A].append_as_follower = fail
        assert follower.exchange(entry(A, records=batch(2, 5))).stopped == stopped
        follower.now_ms += BACKOFF_MS
        assert bool(follower.plan()) is not bool(stopped)

    @pytest.mark.rule("REPL-8")
    def test_a_lost_connection_delays_everything_and_restarts_the_session(self):
        follower = Follower(A, B)
        follower.exchange(entry(A), entry(B), session_id=9)
        follower.plan()
        follower.fetcher.on_disconnect(T0)
        assert follower.plan() is None
        assert follower.fetcher.next_attempt_ms(T0) == T0 + BACKOFF_MS
        follower.now_ms += BACKOFF_MS
        plan = follower.plan()
        assert (plan.session_id, plan.is_full, list(plan.partitions)) == (9, True, [A, B])

    def test_the_lag_is_known_after_a_response(self):
        follower = Follower(A)
        assert list(follower.fetcher.lags()) == []
        follower.exchange(entry(A, hw=10))
        assert list(follower.fetcher.lags()) == [(A, 8)]


class TestTruncation:
    @pytest.mark.rule("TRUNC-2")
    @pytest.mark.parametrize(
        ("own_epochs", "diverging", "offset"),
        [
            ((1, 1, 2, 2), EpochEnd(2, 3), 3),  # the leader's epoch 2 is shorter
            ((1, 1, 2, 2), EpochEnd(2, 9), 4),  # the leader's is longer
            ((1, 1, 3, 3), EpochEnd(2, 9), 2),  # only the older epoch 1 is here
            ((3, 3, 3), EpochEnd(2, 1), 0),  # here everything is younger
            ((1, 1), EpochEnd(5, 1), 1),  # nothing is known of such an epoch
        ],
    )
    def test_the_log_is_cut_where_both_agree_at_most(self, own_epochs, diverging, offset):
        assert truncation_offset(log_of(*own_epochs), diverging) == offset

    @pytest.mark.rule("TRUNC-2", "TRUNC-5")
    def test_divergence_is_settled_before_anything_is_taken_over(self):
        follower = Follower()
        log = log_of(1, 1, 3)
        follower.add(A, log)
        diverging = entry(A, hw=50, start=1, records=batch(3, 5), diverging=(1, 2))
        effects = follower.exchange(diverging, session_id=9)
        assert effects.truncations == [Truncation(A, 5, 2)]
        assert (log.start_offset, log.high_watermark, log.end_offset) == (0, 0, 3)
        assert follower.plan() is None  # nothing is fetched until the log is cut
        effects.truncations[0].carry_out(log, T0)
        follower.fetcher.on_truncated(effects.truncations[0])
        assert follower.plan().partitions[A].position == FetchPosition(2, 5, 1)

    def test_a_truncation_for_a_former_leader_does_not_start_fetching_again(self):
        follower = Follower()
        log = log_of(1, 1, 3)
        follower.add(A, log)
        (truncation,) = follower.exchange(entry(A, diverging=(1, 2))).truncations
        follower.fetcher.remove(A)
        follower.fetcher.on_truncated(truncation)
        assert follower.plan() is None


class TestOutOfRange:
    def out_of_range(self):
        follower = Follower(A)
        effects = follower.exchange(entry(A, E.OFFSET_OUT_OF_RANGE, hw=-1))
        assert not effects.truncations
        assert follower.plan() is None
        return follower

    def ask(self, follower, **replies):
        question = follower.fetcher.next_list_offsets()
        effects = follower.fetcher.on_list_offsets(question, {A: ListOffsetsResult(**replies)}, T0)
        return question, effects

    @pytest.mark.rule("REPL-9")
    def test_a_leader_that_ends_earlier_is_followed_there(self):
        follower = self.out_of_range()
        question, effects = self.ask(follower, error=0, offset=1)
        assert question == (LATEST, {A: 5})
        assert effects.truncations == [Truncation(A, 5, 1)]
        assert follower.fetcher.next_list_offsets() is None

    @pytest.mark.rule("REPL-9")
    def test_a_leader_that_starts_later_makes_the_log_start_anew(self):
        follower = self.out_of_range()
        self.ask(follower, error=0, offset=20)
        question, effects = self.ask(follower, error=0, offset=10)
        assert question == (EARLIEST, {A: 5})
        assert effects.truncations == [Truncation(A, 5, 10, is_total=True)]
        effects.truncations[0].carry_out(follower.logs[A], T0)
        follower.fetcher.on_truncated(effects.truncations[0])
        assert follower.plan().partitions[A].position == FetchPosition(10, 5, -1)

    @pytest.mark.rule("REPL-9")
    def test_otherwise_fetching_goes_on_where_it_was(self):
        follower = self.out_of_range()
        self.ask(follower, error=0, offset=20)
        _, effects = self.ask(follower, error=0, offset=2)
        assert not effects.truncations
        assert follower.plan().partitions[A].position.offset == 2

    @pytest.mark.rule("REPL-9", "REPL-7")
    def test_an_error_delays_or_stops_as_in_a_fetch(self):
        follower = self.out_of_range()
        self.ask(follower, error=E.UNKNOWN_LEADER_EPOCH)
        assert follower.fetcher.next_list_offsets() is None
        assert follower.plan() is None
        follower.now_ms += BACKOFF_MS
        assert follower.plan()
        follower = self.out_of_range()
        _, effects = self.ask(follower, error=E.FENCED_LEADER_EPOCH)
        assert effects.stopped == [A]

    @pytest.mark.rule("REPL-9")
    def test_a_reply_for_a_former_leader_is_not_used(self):
        follower = self.out_of_range()
        question = follower.fetcher.next_list_offsets()
        follower.add(A, follower.logs[A], epoch=6)
        effects = follower.fetcher.on_list_offsets(question, {A: ListOffsetsResult(0, 0)}, T0)
        assert not effects.truncations
        assert follower.plan()


class TestThrottle:
    def test_replicas_that_are_behind_wait_until_the_debt_is_paid(self):
        throttle = ReplicationThrottle()
        throttle.set_rate(100, T0)
        throttle.set_partitions("t", frozenset({0}))
        follower = Follower(A, B, throttle=throttle)
        records = batch(2, 5) + batch(3, 5)
        follower.exchange(entry(A, records=records, hw=50), entry(B, hw=50), session_id=9)
        assert throttle.is_exceeded(T0)
        assert follower.plan().forgotten == ((A, ID),)
        open_again_ms = follower.fetcher.next_attempt_ms(T0)
        assert open_again_ms > T0
        follower.respond(session_id=9)
        follower.now_ms = open_again_ms
        assert list(follower.plan().partitions) == [A]

    def test_a_replica_that_is_up_to_date_is_not_held_back(self):
        throttle = ReplicationThrottle()
        throttle.set_rate(100, T0)
        throttle.set_partitions("t", None)
        follower = Follower(A, throttle=throttle)
        follower.exchange(entry(A, hw=2), session_id=9)
        throttle.record(1000, T0)
        assert follower.plan().forgotten == ()
