"""Fetch sessions at the leader."""

import itertools
import uuid
from dataclasses import replace

import pytest

from klamm.broker.fetch.sessions import (
    EVICTION_MS,
    FetchContext,
    FetchSessions,
    RequestedPartition,
    SessionRequest,
    SessionResponse,
)
from klamm.broker.replication.isr import FollowerState
from klamm.broker.replication.replica_log import FetchPosition
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode as E
from klamm.protocol.fast.fetch import EpochEndOffset, FetchPartitionResponse

T0 = 1_000_000
OK = SessionResponse(E.NONE, 0)


def want(partition, offset=0, topic="t"):
    return RequestedPartition(
        TopicPartition(topic, partition), None, partition, FetchPosition(offset), 1024
    )


def result(requested, **fields):
    values = {"high_watermark": 5, "log_start_offset": 0} | fields
    return requested, FetchPartitionResponse(requested.partition, values.pop("error", 0), **values)


class Server:
    def __init__(self, slots=10, ids=None):
        self.sessions = FetchSessions(slots, iter(ids or itertools.count(100)).__next__)
        self.now_ms = T0
        self.followers = {}

    def open(self, session_id, epoch, *partitions, **fields):
        return self.sessions.open(
            SessionRequest(session_id, epoch, list(partitions), **fields), self.now_ms
        )

    def fetch(self, session_id, epoch, *partitions, results=None, **fields):
        """A whole fetch: what begins the response, and which partitions it has."""
        context = self.open(session_id, epoch, *partitions, **fields)
        if not isinstance(context, FetchContext):
            return SessionResponse(context, 0), []
        changed = results or {}
        fetched = [
            result(requested, **changed.get(requested.partition, {}))
            for requested in context.partitions
        ]
        response, included = context.response(fetched, self.now_ms)
        return response, [requested.partition for requested, _ in included]


@pytest.mark.rule("SESS-1", "SESS-8")
def test_a_full_request_without_session_is_answered_in_full_each_time():
    server = Server()
    for _ in range(2):
        assert server.fetch(0, -1, want(0), want(1)) == (OK, [0, 1])
    assert len(server.sessions) == 0


@pytest.mark.rule("SESS-1", "SESS-3", "SESS-8")
def test_a_full_request_creates_a_session_and_is_answered_in_full():
    server = Server()
    response, included = server.fetch(0, 0, want(0), want(1))
    assert response == SessionResponse(E.NONE, 100)
    assert included == [0, 1]
    assert server.fetch(100, 1)[0] == SessionResponse(E.NONE, 100)
    assert server.fetch(100, 2)[0] == SessionResponse(E.NONE, 100)


@pytest.mark.rule("SESS-3")
def test_an_id_that_is_taken_is_drawn_again():
    server = Server(ids=[7, 7, 8])
    assert server.fetch(0, 0, want(0))[0].session_id == 7
    assert server.fetch(0, 0, want(0))[0].session_id == 8


@pytest.mark.rule("SESS-1")
def test_a_full_request_closes_the_session_that_it_names():
    server = Server()
    server.fetch(0, 0, want(0))
    assert server.fetch(100, -1, want(0))[0] == OK
    assert len(server.sessions) == 0
    server.fetch(0, 0, want(0))
    assert server.fetch(101, 0, want(0))[0].session_id == 102
    assert len(server.sessions) == 1


@pytest.mark.rule("SESS-4")
def test_what_does_not_fit_the_session_is_an_error_without_partitions():
    server = Server()
    server.fetch(0, 0, want(0))
    assert server.fetch(99, 1) == (SessionResponse(E.FETCH_SESSION_ID_NOT_FOUND, 0), [])
    assert server.fetch(100, 2) == (SessionResponse(E.INVALID_FETCH_SESSION_EPOCH, 0), [])
    assert server.fetch(100, 1, by_id=True) == (
        SessionResponse(E.FETCH_SESSION_TOPIC_ID_ERROR, 0),
        [],
    )
    assert server.fetch(100, 1)[0].error is E.NONE


@pytest.mark.rule("SESS-3")
def test_epochs_wrap_to_one():
    server = Server()
    server.fetch(0, 0, want(0))
    session = server.sessions._sessions[100]
    session.epoch = 2**31 - 1
    assert server.fetch(100, 2**31 - 1)[0].error is E.NONE
    assert server.fetch(100, 1)[0].error is E.NONE


@pytest.mark.rule("SESS-5")
def test_partitions_are_added_changed_and_forgotten():
    server = Server()
    server.fetch(0, 0, want(0), want(1))
    context = server.open(100, 1, want(1, offset=9), want(2), forgotten=[("t", 0)])
    asked = [(requested.partition, requested.position.offset) for requested in context.partitions]
    assert asked == [(1, 9), (2, 0)]


@pytest.mark.rule("SESS-5")
def test_a_session_without_partitions_is_closed():
    server = Server()
    server.fetch(0, 0, want(0))
    assert server.fetch(100, 1, forgotten=[("t", 0)]) == (OK, [])
    assert server.fetch(100, 2)[0].error is E.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.rule("SESS-6")
@pytest.mark.parametrize(
    "news",
    [
        {"records": b"x"},
        {"error": 6},
        {"high_watermark": 6},
        {"log_start_offset": 1},
        {"diverging_epoch": EpochEndOffset(1, 2)},
        {"preferred_read_replica": 3},
    ],
)
def test_an_incremental_response_holds_only_news(news):
    server = Server()
    server.fetch(0, 0, want(0), want(1))
    assert server.fetch(100, 1) == (SessionResponse(E.NONE, 100), [])
    assert server.fetch(100, 2, results={1: news})[1] == [1]


@pytest.mark.rule("SESS-6", "TRUNC-5")
@pytest.mark.parametrize(
    "trouble",
    [{"error": 6, "high_watermark": -1}, {"diverging_epoch": EpochEndOffset(1, 2)}],
)
def test_after_an_error_or_divergence_the_partition_is_in_the_next_response_too(trouble):
    server = Server()
    server.fetch(0, 0, want(0))
    assert server.fetch(100, 1, results={0: trouble})[1] == [0]
    assert server.fetch(100, 2)[1] == [0]
    assert server.fetch(100, 3)[1] == []


def test_a_partition_asked_for_under_another_epoch_is_in_the_response_once_more():
    # Its last response met a follower that had been told of another leadership meanwhile.
    server = Server()
    server.fetch(0, 0, want(0), want(1))
    again = replace(want(0), position=FetchPosition(0, current_leader_epoch=7))
    assert server.fetch(100, 1, again)[1] == [0]
    assert server.fetch(100, 2)[1] == []


@pytest.mark.rule("SESS-6")
def test_a_partition_that_had_data_goes_to_the_end_of_the_line():
    server = Server()
    server.fetch(0, 0, want(0), want(1), want(2))
    server.fetch(100, 1, results={0: {"records": b"x"}})
    assert [requested.partition for requested in server.open(100, 2).partitions] == [1, 2, 0]


@pytest.mark.rule("SESS-4")
def test_a_response_that_the_client_did_not_wait_for_is_an_error():
    server = Server()
    server.fetch(0, 0, want(0))
    waiting = server.open(100, 1)
    server.open(100, 2)
    response, included = waiting.response([result(want(0))], T0)
    assert (response, included) == (SessionResponse(E.INVALID_FETCH_SESSION_EPOCH, 0), [])


@pytest.mark.rule("SESS-4", "FETCH-12")
def test_topics_known_by_id_are_told_apart_by_it():
    server = Server()
    one, two = uuid.UUID(int=1), uuid.UUID(int=2)
    first = RequestedPartition(TopicPartition("t", 0), one, 0, FetchPosition(0), 1)
    second = RequestedPartition(None, two, 0, FetchPosition(0), 1)
    server.fetch(0, 0, first, by_id=True)
    context = server.open(100, 1, second, by_id=True)
    assert [requested.topic_id for requested in context.partitions] == [one, two]


class TestMarks:
    """Which partitions of a session a fetch reads."""

    def settle(self, server):
        """Open a session with two partitions, both settled by its first incremental fetch."""
        context = server.open(0, 0, want(0), want(1), is_follower=True)
        self.respond(server, context)
        assert self.read(server, 1) == [0, 1]

    def respond(self, server, context):
        fetched = [result(requested) for requested in context.partitions]
        for requested, _ in fetched:
            requested.is_settled = True
            requested.follower = server.followers.setdefault(requested.partition, FollowerState())
        context.response(fetched, server.now_ms)
        return [requested.partition for requested, _ in fetched]

    def read(self, server, epoch, *partitions, **fields):
        context = server.open(100, epoch, *partitions, is_follower=True, **fields)
        return self.respond(server, context)

    def test_what_is_settled_is_read_again_after_an_event_or_when_it_is_named(self):
        server = Server()
        self.settle(server)
        assert self.read(server, 2) == []
        server.sessions.partitions.mark(TopicPartition("t", 1))
        assert self.read(server, 3) == [1]
        assert self.read(server, 4, want(0, offset=2)) == [0]
        assert self.read(server, 5) == []

    def test_an_append_is_nothing_to_the_session_of_a_consumer(self):
        server = Server()
        self.settle(server)
        context = server.open(0, 0, want(1))
        self.respond(server, context)
        marked = server.sessions.partitions.mark(TopicPartition("t", 1), for_followers=True)
        assert [session.id for session in marked] == [100]

    def test_an_event_between_the_read_and_the_response_is_not_lost(self):
        server = Server()
        self.settle(server)
        context = server.open(100, 2, want(0, offset=1), is_follower=True)
        fetched = [result(requested) for requested in context.partitions]
        for requested, _ in fetched:
            requested.is_settled = True
        server.sessions.partitions.mark(TopicPartition("t", 0))
        context.response(fetched, server.now_ms)
        assert self.read(server, 3) == [0]

    def test_an_event_before_the_session_exists_is_not_lost(self):
        """Others are served while a full request reads thousands of partitions."""
        server = Server()
        context = server.open(0, 0, want(0), want(1), is_follower=True)
        fetched = [result(requested) for requested in context.partitions]
        for requested, _ in fetched:
            requested.is_settled = True
        server.sessions.partitions.mark(TopicPartition("t", 0))
        context.response(fetched, server.now_ms)
        assert self.read(server, 1) == [0, 1]
        assert self.read(server, 2) == []

    def test_on_other_terms_everything_is_read_again(self):
        server = Server()
        self.settle(server)
        assert self.read(server, 2, terms="other") == [0, 1]
        assert self.read(server, 3, terms="other") == []

    def test_a_topic_that_was_unknown_is_watched_when_its_name_is_found(self):
        server = Server()
        unknown = RequestedPartition(None, uuid.UUID(int=1), 0, FetchPosition(0), 1)
        context = server.open(0, 0, unknown, by_id=True, is_follower=True)
        self.respond(server, context)
        assert self.read(server, 1, by_id=True) == [0], "no event would find it"
        unknown.name = TopicPartition("t", 0)
        assert self.read(server, 2, by_id=True) == [0]
        assert self.read(server, 3, by_id=True) == [0], "it was not watched while it was read"
        assert self.read(server, 4, by_id=True) == []
        server.sessions.partitions.mark(TopicPartition("t", 0))
        assert self.read(server, 5, by_id=True) == [0]

    def test_followers_leave_the_session_with_its_end(self):
        server = Server()
        self.settle(server)
        server.now_ms += 5_000
        self.read(server, 2)
        assert server.followers[0].caught_up_ms == T0 + 5_000
        server.fetch(100, -1, want(0))
        assert [each.session for each in server.followers.values()] == [None, None]
        assert server.followers[0].caught_up_ms == T0 + 5_000
        assert server.sessions.partitions.mark(TopicPartition("t", 0)) == []

    def test_a_response_that_is_due_after_the_end_of_its_session_has_no_partitions(self):
        server = Server()
        self.settle(server)
        context = server.open(100, 2, want(0, offset=1), is_follower=True)
        server.fetch(100, -1, want(0))
        assert context.partitions == []
        assert context.response([], server.now_ms) == (SessionResponse(E.NONE, 100), [])

    def test_a_throttled_response_leaves_everything_to_the_next(self):
        server = Server()
        self.settle(server)
        context = server.open(100, 2, want(0, offset=1), is_follower=True)
        assert context.throttled_response() == SessionResponse(E.NONE, 100)
        assert self.read(server, 3) == [0]
        assert server.open(0, 0, want(0)).throttled_response() == OK


class TestRoom:
    @pytest.mark.rule("SESS-2", "SESS-7")
    def test_without_room_no_session_is_created(self):
        server = Server(slots=1)
        server.fetch(0, 0, want(0))
        assert server.fetch(0, 0, want(0), want(1)) == (OK, [0, 1])

    @pytest.mark.rule("SESS-7")
    def test_a_session_that_was_not_used_for_long_makes_room(self):
        server = Server(slots=2)
        server.fetch(0, 0, want(0))
        server.fetch(0, 0, want(0))
        server.now_ms += EVICTION_MS
        server.fetch(100, 1)
        server.now_ms += 1
        assert server.fetch(0, 0, want(0))[0].session_id == 102
        assert server.fetch(101, 1)[0].error is E.FETCH_SESSION_ID_NOT_FOUND
        assert server.fetch(100, 2)[0].error is E.NONE

    @pytest.mark.rule("SESS-7")
    def test_a_follower_that_starts_again_and_again_leaves_no_sessions_behind(self):
        server = Server(slots=1000)
        for _ in range(100):
            server.fetch(0, 0, want(0), want(1), is_follower=True)
            server.now_ms += EVICTION_MS // 3
        assert len(server.sessions) <= 4
        assert server.sessions.partition_count <= 8

    @pytest.mark.rule("SESS-7")
    def test_a_follower_takes_the_place_of_a_consumer_at_once(self):
        server = Server(slots=1)
        server.fetch(0, 0, want(0), want(1))
        assert server.fetch(0, 0, want(0), is_follower=True)[0].session_id == 101
        assert server.fetch(0, 0, want(0), want(1), is_follower=True)[0].session_id == 0

    @pytest.mark.rule("SESS-7")
    def test_an_old_session_gives_way_to_a_larger_one_but_not_to_a_smaller(self):
        server = Server(slots=1)
        server.fetch(0, 0, want(0), want(1))
        server.now_ms += EVICTION_MS // 2
        server.fetch(100, 1)
        server.now_ms += EVICTION_MS // 2 + 1
        assert server.fetch(0, 0, want(0))[0].session_id == 0
        assert server.fetch(0, 0, want(0), want(1), want(2))[0].session_id == 101
        assert server.sessions.partition_count == 3
