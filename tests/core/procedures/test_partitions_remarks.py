"""What procedures leave for the logs."""

import pytest

from klamm.core.context import Level, LoggerName
from klamm.core.procedures.partitions import Strategy, change_partition_states
from klamm.core.transitions import PartitionState
from tests.support.procedure_world import World, steady


def said(world: World, level: Level) -> list[str]:
    remarks = world.ctx.remarks
    return [r.text for r in remarks if (r.log, r.level) == (LoggerName.STATE_CHANGE, level)]


@pytest.mark.rule("MET-7")
def test_partitions_that_are_created_are_told_with_their_leaders() -> None:
    world = World([1, 2])
    world.fail_over()
    world.create_topic("t", {0: [1, 2]})
    world.settle()
    assert said(world, Level.INFO) == [
        "partitions become NEW: t-0",
        "partitions become ONLINE with their first leader: "
        "t-0 (leader 1, epoch 0, ISR [1, 2], replicas [1, 2])",
    ]


@pytest.mark.rule("MET-7")
def test_elections_and_replicas_that_leave_are_told_with_what_came_of_them() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3], 1: [2, 1]}})
    world.ctx.remarks.clear()
    world.lose(1)
    world.settle()
    assert said(world, Level.INFO) == [
        "partitions become ONLINE by OFFLINE election: "
        "t-0 (leader 2, epoch 1, ISR [2, 3], replicas [1, 2, 3])",
        "replica 1 is taken out of the ISR of partitions: "
        "t-1 (leader 2, epoch 1, ISR [2], replicas [2, 1])",
    ]


@pytest.mark.rule("MET-8")
def test_every_move_of_replicas_and_the_end_of_partitions_leave_a_trace() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.ctx.remarks.clear()
    world.lose(2)
    world.settle()
    assert said(world, Level.TRACE) == ["replicas become OFFLINE: t-0"]
    world.register(2)
    world.settle()
    world.ctx.remarks.clear()
    world.request_deletion("t")
    world.settle()
    # Each of the two replicas answers by itself.
    assert list(dict.fromkeys(said(world, Level.TRACE))) == [
        "partitions become OFFLINE: t-0",
        "partitions become NON_EXISTENT: t-0",
        "replicas become OFFLINE: t-0, t-0",
        "replicas become DELETION_STARTED: t-0, t-0",
        "replicas become DELETION_SUCCESSFUL: t-0",
        "replicas become NON_EXISTENT: t-0, t-0",
    ]


@pytest.mark.rule("MET-9")
def test_what_fails_is_told_as_an_error_with_its_cause() -> None:
    world = steady([1, 2], {"t": {0: [1]}})
    world.ctx.remarks.clear()
    world.lose(1)
    world.settle()
    assert said(world, Level.ERROR) == [
        "partitions stay as they are, no replica being able to lead: t-0"
    ]


def test_of_very_many_partitions_the_first_are_named() -> None:
    world = steady([1], {"t": {n: [1] for n in range(25)}})
    world.ctx.remarks.clear()
    rows = world.cluster.all_rows()
    world.run(change_partition_states(world.ctx, rows, PartitionState.NEW))
    (text,) = said(world, Level.ERROR)
    assert text.endswith("t-9 and 15 more")


@pytest.mark.rule("VER-7")
def test_there_are_four_ways_to_choose_a_leader_and_one_of_them_can_be_forced() -> None:
    assert {strategy.name for strategy in Strategy} == {
        "OFFLINE",
        "UNCLEAN",
        "REASSIGN",
        "PREFERRED",
        "CONTROLLED_SHUTDOWN",
    }
