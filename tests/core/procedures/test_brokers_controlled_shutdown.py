"""Controlled shutdown."""

import pytest

from klamm.core import events
from klamm.core.events import ControllerError, RequestedElection
from tests.support.procedure_world import World, steady


def shut_down(world: World, broker: int) -> object:
    return world.ask(events.ControlledShutdown(broker, world.registrations[broker].epoch))


@pytest.mark.rule("SHUT-3", "FENCE-14")
@pytest.mark.parametrize(
    ("difference", "error"),
    [
        (-1, ControllerError.STALE_BROKER_EPOCH),
        (0, ControllerError.NONE),
        (1, ControllerError.NONE),
    ],
)
def test_only_a_smaller_epoch_is_stale(difference: int, error: ControllerError) -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    epoch = world.registrations[1].epoch + difference
    assert world.ask(events.ControlledShutdown(1, epoch)) == (error, [])
    assert (1 in world.cluster.shutting_down) == (error == ControllerError.NONE)


@pytest.mark.rule("SHUT-3", "SHUT-4")
@pytest.mark.parametrize(
    ("epoch", "error"),
    [(-1, ControllerError.BROKER_NOT_AVAILABLE), (7, ControllerError.UNKNOWN_SERVER_ERROR)],
)
def test_an_unknown_broker_cannot_shut_down(epoch: int, error: ControllerError) -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    assert world.ask(events.ControlledShutdown(9, epoch)) == (error, [])
    assert world.cluster.shutting_down == set()


@pytest.mark.rule("SHUT-4")
def test_a_broker_too_old_for_epochs_may_shut_down() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    assert world.ask(events.ControlledShutdown(1, -1)) == (ControllerError.NONE, [])
    assert world.state("t") == (2, 1, [2])


@pytest.mark.rule("SHUT-6", "DEL-7")
def test_what_cannot_or_need_not_move_is_neither_moved_nor_reported() -> None:
    world = steady([1, 2], {"single": {0: [1]}, "going": {0: [1, 2]}, "new": {0: [8, 9]}})
    world.silent.update((1, 2))
    world.request_deletion("going")
    world.settle()
    world.forget_what_happened()
    assert shut_down(world, 1) == (ControllerError.NONE, [])
    assert world.state_writes() == world.requests == []


@pytest.mark.rule("SHUT-7", "LEAD-12", "LEAD-E11", "VER-35", "VER-36")
def test_all_brokers_that_shut_down_leave_the_isr() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}})
    world.cluster.shutting_down.add(2)
    assert shut_down(world, 1) == (ControllerError.NONE, [])
    assert world.state("t") == (3, 1, [3])
    assert {r.to for r in world.sent("LeaderAndIsr")} == {1, 2, 3}


@pytest.mark.rule("LEAD-13", "LEAD-E13")
def test_a_dead_member_stays_in_the_isr() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}})
    del world.cluster.brokers[2]  # gone, and the event that says so still waits
    assert shut_down(world, 1) == (ControllerError.NONE, [])
    assert world.state("t") == (3, 1, [2, 3])


@pytest.mark.rule("SHUT-8", "SHUT-11")
def test_a_follower_leaves_the_isr_and_still_hears_everything() -> None:
    world = steady([1, 2, 3], {"t": {0: [2, 1, 3]}})
    assert shut_down(world, 1) == (ControllerError.NONE, [])
    assert world.state("t") == (2, 1, [2, 3])
    heard = [r for r in world.requests if r.to == 1]
    assert [r.api for r in heard] == ["StopReplica", "UpdateMetadata", "StopReplica"]
    assert 1 in heard[1].brokers
    assert heard[1].partitions["t", 0]["offline"] == [1]


@pytest.mark.rule("SHUT-9", "SHUT-10", "LEAD-E12")
def test_what_is_still_led_is_reported_and_untouched_until_it_can_move() -> None:
    world = steady([1, 2], {"t": {0: [1, 2], 1: [1, 2]}})
    world.report_isr("t", [1], partition=0)
    assert shut_down(world, 1) == (ControllerError.NONE, [("t", 0)])
    assert world.state("t", 0) == (1, 0, [1])
    assert world.state("t", 1) == (2, 1, [2])
    world.forget_what_happened()
    assert shut_down(world, 1) == (ControllerError.NONE, [("t", 0)])
    # The retry changes nothing about what has moved, except that followers are stopped again.
    assert world.state_writes() == []
    world.report_isr("t", [1, 2], partition=0, broker=1)
    assert world.state("t", 0) == (1, 0, [1])


@pytest.mark.rule("SHUT-11", "ISR-16", "REASG-6", "LEAD-11")
def test_a_broker_on_its_way_out_takes_on_nothing_new() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2]}, "u": {0: [2]}})
    shut_down(world, 1)
    assert world.report_isr("t", [2, 1], version=2).error == ControllerError.INELIGIBLE_REPLICA
    _, verdicts = world.ask(events.ApiReassignment({("u", 0): [1]}))
    assert verdicts["u", 0][0] == ControllerError.INVALID_REPLICA_ASSIGNMENT
    response = world.ask(events.ElectLeaders(RequestedElection.PREFERRED, [("t", 0)]))
    assert response["t", 0][0] == ControllerError.PREFERRED_LEADER_NOT_AVAILABLE


@pytest.mark.rule("SHUT-12")
def test_the_controller_itself_may_shut_down() -> None:
    world = World([1, 2])
    world.fail_over(1)
    world.create_topic("t", {0: [1, 2]})
    world.settle()
    assert shut_down(world, 1) == (ControllerError.NONE, [])
    assert world.state("t") == (2, 1, [2])


@pytest.mark.rule("SHUT-5", "FAILOVER-9")
def test_a_new_controller_takes_it_for_live_again() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    shut_down(world, 1)
    world.fail_over()
    assert world.cluster.shutting_down == set()
    assert world.cluster.live == {1, 2}
