"""Reassignments that something else happens to: cancellation, elections, failures, new targets."""

import pytest

from klamm.core import events
from klamm.core.events import ControllerError, RequestedElection
from tests.support.procedure_store import REASSIGN
from tests.support.procedure_world import World, steady

FIVE = [1, 2, 3, 4, 5]
T0 = ("t", 0)


def moving(target: list[int], *, isr: list[int] | None = None) -> World:
    """`t-0` moves from 1, 2 to the target; its leader has reported the ISR, if one is given."""
    world = steady(FIVE, {"t": {0: [1, 2]}})
    reassign(world, target)
    if isr is not None:
        world.report_isr("t", isr)
    world.forget_what_happened()
    return world


def reassign(world: World, target: list[int] | None) -> None:
    _, verdicts = world.ask(events.ApiReassignment({T0: target}))
    assert verdicts == {T0: (ControllerError.NONE, None)}


def elect_preferred(world: World) -> int:
    code: int = world.ask(events.ElectLeaders(RequestedElection.PREFERRED, [T0]))[T0][0]
    return code


def rests_on(world: World, *replicas: int) -> bool:
    """No reassignment is under way, every replica is in sync, and every broker knows it."""
    state = world.state("t")
    assert state is not None
    topic = world.topic("t")
    return (
        topic["partitions"] == {"0": list(replicas)}
        and topic["adding_replicas"] == topic["removing_replicas"] == {}
        and state[0] in replicas
        and set(state[2]) == set(replicas)
        and world.disagreements() == []
    )


# Cancelled while phase A waits


@pytest.mark.rule("REASG-33", "REASG-U3", "FENCE-13")
def test_replicas_of_a_cancelled_move_are_deleted_with_an_epoch_that_they_obey() -> None:
    """KAFKA-13972: an order in the epoch that a replica has already was ignored."""
    world = moving([3, 4])
    told = world.views[3].replicas[T0]["leader_epoch"]
    reassign(world, None)
    for broker in (3, 4):
        stops = [request.partitions[T0] for request in world.sent("StopReplica", broker)]
        assert [stop["delete"] for stop in stops] == [False, True]
        assert all(stop["leader_epoch"] >= told for stop in stops)
    assert rests_on(world, 1, 2)


@pytest.mark.rule("REASG-33", "ISR-13")
def test_a_leader_that_has_not_heard_of_the_cancellation_cannot_keep_the_replica_in_sync() -> None:
    world = moving([3, 4])
    _, epoch, _ = world.state("t") or (0, 0, [])
    version = world.version("t")
    reassign(world, None)
    late = world.report_isr("t", [1, 2, 3], leader_epoch=epoch, partition_epoch=version)
    assert late.error == ControllerError.FENCED_LEADER_EPOCH
    assert rests_on(world, 1, 2)


@pytest.mark.rule("REASG-33", "REASG-29")
def test_a_cancellation_survives_the_controller_that_made_it() -> None:
    world = moving([3, 4])
    reassign(world, None)
    world.fail_over()
    world.settle()
    assert world.cluster.being_reassigned == set()
    assert rests_on(world, 1, 2)


# Elections on the way


@pytest.mark.rule("PREF-8", "LEAD-15", "LEAD-10")
def test_a_replica_that_is_still_catching_up_is_preferred_and_cannot_lead() -> None:
    world = moving([3, 4])
    assert elect_preferred(world) == ControllerError.PREFERRED_LEADER_NOT_AVAILABLE
    assert world.state_writes() == []


@pytest.mark.rule("PREF-6", "LEAD-15", "REASG-B3")
def test_a_move_ends_well_after_its_new_replica_was_elected_on_the_way() -> None:
    world = moving([3, 4], isr=[1, 2, 3])
    assert elect_preferred(world) == ControllerError.NONE
    assert (world.state("t") or (0,))[0] == 3
    world.report_isr("t", [1, 2, 3, 4])
    assert rests_on(world, 3, 4)


@pytest.mark.rule("REBAL-7", "VER-21")
def test_a_long_move_does_not_keep_leaders_from_going_back() -> None:
    """KAFKA-10149: while anything moved anywhere, automatic rebalancing stood still."""
    world = steady(FIVE, {"t": {0: [1, 2]}, "u": {0: [1, 2]}})
    world.bounce(1)
    world.settle()
    for topic in ("t", "u"):
        world.report_isr(topic, [2, 1])
    reassign(world, [4, 5])
    world.queue.append(events.AutoRebalance())
    world.settle()
    assert (world.state("u") or (0,))[0] == 1
    assert world.topic("t")["adding_replicas"] == {"0": [4, 5]}


@pytest.mark.rule("REASG-U3", "REASG-A1")
def test_a_replaced_move_whose_replica_led_finds_another_leader_at_once() -> None:
    """KAFKA-14808: the partition was left without a leader until the next failure."""
    world = moving([3, 4], isr=[1, 2, 3])
    elect_preferred(world)
    reassign(world, [2, 5])
    assert world.state("t") == (2, 5, [1, 2])
    assert world.disagreements() == []
    world.report_isr("t", [1, 2, 5])
    assert rests_on(world, 2, 5)


# New targets, and who is there to see them


@pytest.mark.rule("REASG-29", "REASG-12", "FAILOVER-18")
@pytest.mark.parametrize("caught_up", [False, True])
def test_a_successor_that_finds_another_target_retires_what_that_does_not_need(
    caught_up: bool,
) -> None:
    world = moving([3, 4], isr=[1, 2, 3] if caught_up else None)
    # Nobody is controller while the tool writes.
    world.request_reassignment({T0: [1, 5]})
    world.forget_what_happened()
    world.fail_over()
    world.settle()
    assert world.topic("t")["adding_replicas"] == {"0": [5]}
    assert world.topic("t")["removing_replicas"] == {"0": [2]}
    assert {r.to for r in world.sent("StopReplica")} == {3, 4}
    world.report_isr("t", [1, 2, 5])
    assert rests_on(world, 1, 5)
    assert REASSIGN not in world.nodes


@pytest.mark.rule("REASG-28", "REASG-29")
def test_a_move_survives_that_its_target_and_the_controller_go_at_the_same_time() -> None:
    """KAFKA-4214: a target that was away when the controller changed ended the move."""
    world = moving([1, 3], isr=[1, 2])
    world.lose(3)
    world.fail_over()
    world.settle()
    assert world.topic("t")["adding_replicas"] == {"0": [3]}
    world.register(3)
    world.settle()
    world.report_isr("t", [1, 2, 3])
    assert rests_on(world, 1, 3)


@pytest.mark.rule("REASG-4", "REASG-B7", "ZK-27")
def test_a_request_that_is_written_over_does_not_stay_behind_and_block_the_next() -> None:
    """KAFKA-9478: an entry that nobody acted on kept the node, and the node its watch."""
    world = moving([1, 3])
    world.request_reassignment({T0: [1, 3]})
    world.settle()
    # Another tool replaces the content of the node, which nobody looks at until the move is over.
    world.nodes[REASSIGN].data["partitions"][0]["replicas"] = [1, 4]
    world.report_isr("t", [1, 2, 3])
    world.fail_over()
    world.settle()
    assert world.topic("t")["adding_replicas"] == {"0": [4]}
    world.report_isr("t", [1, 3, 4])
    assert rests_on(world, 1, 4)
    assert REASSIGN not in world.nodes
    world.request_reassignment({T0: [1, 2]})
    world.settle()
    assert world.topic("t")["adding_replicas"] == {"0": [2]}
