"""Markers reach the leaders of their partitions, in one request for each broker."""

import pytest

from klamm.broker.transactions.effects import SendMarkers
from klamm.broker.transactions.markers import NO_BROKER, RETRY_MS, MarkerChannels
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode

pytestmark = pytest.mark.rule("TXN-16")

A, B, C = (TopicPartition("t", number) for number in range(3))


def markers(id: str = "x", *partitions: TopicPartition, state_partition: int = 0) -> SendMarkers:
    return SendMarkers(state_partition, 5, id, ord(id), 0, True, partitions)


class World:
    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, int] = {A: 1, B: 1, C: 2}
        self.channels = MarkerChannels(self.leaders.get)

    def poll(self, now_ms: int = 0):
        requests, written = self.channels.poll(now_ms)
        sent = {
            each.broker: {m.transactional_id: m.partitions for m in each.markers}
            for each in requests
        }
        return sent, [(each.transactional_id, tuple(each.partitions)) for each in written]


@pytest.fixture
def world() -> World:
    return World()


def test_one_request_for_each_broker_and_many_transactions(world):
    world.channels.add(markers("x", A, B, C), 0)
    world.channels.add(markers("y", A), 0)
    assert world.poll() == ({1: {"x": (A, B), "y": (A,)}, 2: {"x": (C,)}}, [])


def test_one_request_in_flight(world):
    world.channels.add(markers("x", A), 0)
    world.poll()
    world.channels.add(markers("y", A), 0)
    assert world.poll() == ({}, [])
    world.channels.on_response(1, {ord("x"): {A: ErrorCode.NONE}}, 0)
    assert world.poll() == ({1: {"y": (A,)}}, [("x", (A,))])


@pytest.mark.parametrize("code", [3, 6, 7, 19, 20, 56, -1])
def test_what_may_come_right_is_sent_again_after_a_pause(world, code):
    world.channels.add(markers("x", A, B), 0)
    world.poll()
    responses = {A: ErrorCode.of(code), B: ErrorCode.NONE}
    world.channels.on_response(1, {ord("x"): responses}, 0)
    assert world.poll() == ({}, [("x", (B,))])
    assert world.channels.next_deadline_ms() == RETRY_MS
    world.leaders[A] = 2
    assert world.poll(RETRY_MS) == ({2: {"x": (A,)}}, [])


@pytest.mark.parametrize("code", [47, 52])
def test_a_newer_coordinator_or_producer_ends_it(world, code):
    world.channels.add(markers("x", A, C), 0)
    world.poll()
    world.channels.on_response(1, {ord("x"): {A: ErrorCode.of(code)}}, 0)
    world.channels.on_response(2, {ord("x"): {C: ErrorCode.NONE}}, 0)
    assert world.poll(10_000) == ({}, [])


@pytest.mark.parametrize("code", [35, 43])
def test_a_partition_without_transactions_needs_no_marker(world, code):
    world.channels.add(markers("x", A), 0)
    world.poll()
    world.channels.on_response(1, {ord("x"): {A: ErrorCode.of(code)}}, 0)
    assert world.poll() == ({}, [("x", (A,))])


def test_a_partition_that_does_not_exist_is_done(world):
    del world.leaders[A]
    world.channels.add(markers("x", A, C), 0)
    assert world.poll() == ({2: {"x": (C,)}}, [("x", (A,))])


def test_a_leader_that_is_not_alive_is_tried_again(world):
    world.leaders[A] = NO_BROKER
    world.channels.add(markers("x", A), 0)
    assert world.poll() == ({}, [])
    assert world.channels.unknown_destinations == 1
    world.leaders[A] = 3
    world.channels.on_metadata()
    assert world.poll() == ({3: {"x": (A,)}}, [])


def test_a_broker_that_does_not_respond_is_asked_again(world):
    world.channels.add(markers("x", A), 0)
    world.channels.add(markers("y", B), 0)
    world.poll()
    world.channels.on_response(1, None, 0)
    assert world.poll(RETRY_MS) == ({1: {"x": (A,), "y": (B,)}}, [])


def test_a_retry_joins_what_is_queued(world):
    world.channels.add(markers("x", A, C), 0)
    world.poll()
    world.channels.on_response(2, {ord("x"): {C: ErrorCode.NOT_LEADER_OR_FOLLOWER}}, 0)
    world.leaders[C] = 1
    assert world.poll(RETRY_MS)[0] == {}
    world.channels.on_response(1, {ord("x"): {A: ErrorCode.NOT_ENOUGH_REPLICAS}}, RETRY_MS)
    assert world.poll(RETRY_MS)[0] == {1: {"x": (C,)}}
    world.channels.on_response(1, {ord("x"): {C: ErrorCode.NONE}}, RETRY_MS)
    assert world.poll(2 * RETRY_MS) == ({1: {"x": (A,)}}, [("x", (C,))])


@pytest.mark.rule("TXN-14")
def test_a_lost_state_partition_takes_its_markers_with_it(world):
    world.channels.add(markers("x", A, state_partition=1), 0)
    world.channels.add(markers("y", A, state_partition=2), 0)
    world.channels.drop(1)
    assert world.poll() == ({1: {"y": (A,)}}, [])
    world.channels.drop(2)
    world.channels.on_response(1, None, 0)
    assert world.poll(10_000) == ({}, [])
