"""The replica state machine, on a small world."""

import numpy as np
import pytest

from klamm.core import effects
from klamm.core.columns import I32
from klamm.core.context import Settings
from klamm.core.effects import WriteOutcome
from klamm.core.procedures.replicas import change_replica_states
from klamm.core.reassignment import Assignment
from klamm.core.transitions import ReplicaState
from klamm.errors import FencedError, KlammError
from tests.support.procedure_store import do_nothing, state_path
from tests.support.procedure_world import World, steady

R = ReplicaState


def columns(world: World, *replicas: tuple[str, int, int]) -> tuple[I32, I32]:
    rows = [world.cluster.row(topic, partition) for topic, partition, _ in replicas]
    return np.array(rows, np.int32), np.array([b for _, _, b in replicas], np.int32)


def move(world: World, target: ReplicaState, *replicas: tuple[str, int, int]) -> None:
    world.run(change_replica_states(world.ctx, *columns(world, *replicas), target))


def state(world: World, *replica: object) -> ReplicaState:
    return R(world.cluster.states_of(*columns(world, replica))[0])


def put(world: World, state: ReplicaState, *replicas: tuple[str, int, int]) -> None:
    world.cluster.set_replica_state(*columns(world, *replicas), state)


@pytest.mark.rule("RSM-1", "RSM-2", "RSM-3", "FAILOVER-16", "CHAN-35")
def test_the_machine_starts_with_all_replicas_and_tells_those_online() -> None:
    world = World([1, 2])
    world.create_topic("t", {0: [1, 2, 3]})
    world.put_state("t", 0, leader=1, isr=[1, 2])
    world.fail_over()
    assert [state(world, "t", 0, b) for b in (1, 2, 3)] == [R.ONLINE, R.ONLINE, R.OFFLINE]
    assert state(world, "t", 0, 9) == R.NON_EXISTENT
    assert [r.to for r in world.sent("LeaderAndIsr")[:2]] == [1, 2]
    # The second batch only repeats what is true already.
    assert world.state_writes() == []


@pytest.mark.rule("RSM-4")
def test_moving_nothing_does_nothing() -> None:
    world = steady([1], {"t": {0: [1]}})
    move(world, R.OFFLINE)
    assert world.performed == []


@pytest.mark.rule("RSM-4", "CHAN-15", "RSM-25")
def test_one_call_is_announced_once_with_its_final_state() -> None:
    world = steady([1, 2, 3, 4], {"t": {0: [1, 2, 3, 4]}})
    move(world, R.OFFLINE, ("t", 0, 2), ("t", 0, 3))
    assert [w.data["leader_epoch"] for w in world.state_writes()] == [1, 2]
    assert world.state("t") == (1, 2, [1, 4])
    assert len([e for e in world.performed if isinstance(e, effects.SendRequestBatch)]) == 1
    (told,) = world.sent("LeaderAndIsr", to=1)
    assert told.partitions["t", 0]["leader_epoch"] == 2


@pytest.mark.rule("RSM-5")
def test_an_illegal_move_is_named_and_left_alone() -> None:
    world = steady([1, 2], {"t": {0: [1, 2], 1: [1, 2]}})
    put(world, R.OFFLINE, ("t", 0, 1))
    move(world, R.DELETION_STARTED, ("t", 0, 1), ("t", 1, 1))
    assert state(world, "t", 0, 1) == R.DELETION_STARTED
    assert state(world, "t", 1, 1) == R.ONLINE
    assert len(world.errors()) == 1
    assert "t-1" in world.errors()[0]


@pytest.mark.rule("RSM-6")
def test_a_replica_of_a_new_partition_is_only_recorded() -> None:
    world = steady([2], {"t": {0: [1]}})
    put(world, R.NON_EXISTENT, ("t", 0, 1))
    move(world, R.NEW, ("t", 0, 1))
    assert state(world, "t", 0, 1) == R.NEW
    assert world.requests == []


@pytest.mark.rule("RSM-7")
def test_a_new_replica_of_a_known_partition_is_told_alone() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2]}})
    row = world.cluster.row("t", 0)
    world.cluster.set_assignment(row, Assignment((1, 2, 3)))
    move(world, R.NEW, ("t", 0, 3))
    assert state(world, "t", 0, 3) == R.NEW
    (told,) = world.sent("LeaderAndIsr")
    assert (told.to, told.partitions["t", 0]["is_new"]) == (3, True)
    assert {r.to for r in world.sent("UpdateMetadata")} == {1, 2, 3}


@pytest.mark.rule("RSM-8")
def test_a_leader_cannot_be_a_new_replica() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    put(world, R.NON_EXISTENT, ("t", 0, 1))
    move(world, R.NEW, ("t", 0, 1))
    assert state(world, "t", 0, 1) == R.NON_EXISTENT
    assert world.requests == []


@pytest.mark.rule("RSM-9")
def test_a_new_replica_comes_online_silently() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    put(world, R.NEW, ("t", 0, 2))
    move(world, R.ONLINE, ("t", 0, 2))
    assert state(world, "t", 0, 2) == R.ONLINE
    assert world.requests == []


@pytest.mark.rule("RSM-10", "VER-33")
@pytest.mark.parametrize("before", [R.ONLINE, R.OFFLINE, R.DELETION_INELIGIBLE])
def test_any_other_replica_that_comes_online_is_told(before: ReplicaState) -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    put(world, before, ("t", 0, 2))
    move(world, R.ONLINE, ("t", 0, 2))
    assert state(world, "t", 0, 2) == R.ONLINE
    (told,) = world.sent("LeaderAndIsr")
    assert (told.to, told.partitions["t", 0]["is_new"]) == (2, False)


@pytest.mark.rule("RSM-10")
def test_without_leadership_there_is_nothing_to_tell() -> None:
    world = steady([2], {"t": {0: [1]}})
    put(world, R.OFFLINE, ("t", 0, 1))
    move(world, R.ONLINE, ("t", 0, 1))
    assert world.requests == []


@pytest.mark.rule("RSM-11", "CHAN-28", "CHAN-30")
def test_a_replica_is_stopped_with_the_epoch_from_before_it_leaves() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    move(world, R.OFFLINE, ("t", 0, 2))
    (stop,) = world.sent("StopReplica")
    assert stop.partitions["t", 0] == {"leader_epoch": 0, "delete": False}
    assert world.state("t") == (1, 1, [1])


@pytest.mark.rule("RSM-11", "CHAN-28", "RSM-18", "DEL-32")
def test_replicas_of_topics_on_their_way_out_are_stopped_and_nobody_is_told() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.cluster.queue_for_deletion(["t"])
    move(world, R.OFFLINE, ("t", 0, 2))
    (stop,) = world.sent("StopReplica")
    assert stop.partitions["t", 0]["leader_epoch"] == -2
    assert world.sent("LeaderAndIsr") == world.sent("UpdateMetadata") == []
    assert world.state("t") == (1, 1, [1])


@pytest.mark.rule("RSM-12", "CHAN-23", "CHAN-28")
def test_a_replica_without_leadership_goes_offline_by_itself() -> None:
    world = steady([2], {"t": {0: [1]}})
    move(world, R.OFFLINE, ("t", 0, 1))
    assert state(world, "t", 0, 1) == R.OFFLINE
    (told,) = world.sent("UpdateMetadata")
    assert told.partitions == {}
    assert world.state_writes() == []


@pytest.mark.rule("RSM-13", "RSM-14", "RSM-18")
def test_a_replica_that_is_not_in_sync_leaves_without_a_write() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}})
    world.report_isr("t", [1, 2])
    world.forget_what_happened()
    world.cluster.controller_epoch = world.controller_epoch = 8
    move(world, R.OFFLINE, ("t", 0, 3))
    assert world.state_writes() == []
    assert {r.to for r in world.sent("LeaderAndIsr")} == {1, 2}
    # In memory, and so in what is told, the decision is this controller's.
    entry = world.sent("LeaderAndIsr")[0].partitions["t", 0]
    assert (entry["leader_epoch"], entry["controller_epoch"]) == (0, 8)
    assert world.nodes[state_path("t", 0)].data["controller_epoch"] == 5


@pytest.mark.rule("RSM-15")
def test_a_leader_that_leaves_leaves_no_leader() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}})
    move(world, R.OFFLINE, ("t", 0, 1))
    assert world.state("t") == (-1, 1, [2, 3])


@pytest.mark.rule("RSM-15", "RSM-23")
def test_the_last_one_stays_in_the_isr_and_the_epoch_still_rises() -> None:
    world = steady([1], {"t": {0: [1]}})
    move(world, R.OFFLINE, ("t", 0, 1))
    assert world.state("t") == (-1, 1, [1])
    move(world, R.OFFLINE, ("t", 0, 1))
    assert world.state("t") == (-1, 2, [1])


@pytest.mark.rule("RSM-16", "FENCE-7")
def test_a_state_that_moved_on_is_read_and_decided_again() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}})
    world.put_state("t", 0, leader=1, isr=[1, 3], version=6, controller_epoch=5)
    move(world, R.OFFLINE, ("t", 0, 2))
    # Somebody else has removed it already, so there is nothing to write.
    assert world.state("t") == (1, 0, [1, 3])
    assert state(world, "t", 0, 2) == R.OFFLINE
    assert world.sent("LeaderAndIsr")[0].partitions["t", 0]["partition_epoch"] == 6


@pytest.mark.rule("RSM-16", "FENCE-8")
@pytest.mark.parametrize("outcome", [WriteOutcome.FAILED, "a newer controller"])
def test_a_replica_that_cannot_leave_keeps_its_state(outcome: object) -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    if isinstance(outcome, WriteOutcome):
        world.faults.refuse[state_path("t", 0)] = [outcome]
    else:
        world.put_state("t", 0, leader=1, isr=[1, 2], version=3, controller_epoch=99)
    move(world, R.OFFLINE, ("t", 0, 2))
    assert state(world, "t", 0, 2) == R.ONLINE
    assert world.errors() != []


@pytest.mark.rule("RSM-17")
@pytest.mark.parametrize("queued", [True, False])
def test_a_missing_state_is_an_error_unless_the_topic_goes(queued: bool) -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    del world.nodes[state_path("t", 0)]
    if queued:
        world.cluster.queue_for_deletion(["t"])
    move(world, R.OFFLINE, ("t", 0, 2))
    assert state(world, "t", 0, 2) == R.ONLINE
    assert (world.errors() == []) == queued


@pytest.mark.rule("RSM-19", "VER-6", "VER-32", "CHAN-30")
def test_deletion_is_asked_for_when_it_starts() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    put(world, R.OFFLINE, ("t", 0, 2))
    move(world, R.DELETION_STARTED, ("t", 0, 2))
    (stop,) = world.sent("StopReplica")
    assert (stop.to, stop.partitions["t", 0]["delete"]) == (2, True)


@pytest.mark.rule("RSM-20", "RSM-21")
@pytest.mark.parametrize("target", [R.DELETION_INELIGIBLE, R.DELETION_SUCCESSFUL])
def test_the_ends_of_a_deletion_are_only_recorded(target: ReplicaState) -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    put(world, R.DELETION_STARTED, ("t", 0, 2))
    move(world, target, ("t", 0, 2))
    assert state(world, "t", 0, 2) == target
    assert world.requests == world.writes == []


@pytest.mark.rule("RSM-22", "VER-32")
def test_a_forgotten_replica_is_out_of_the_assignment_in_memory() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}})
    row = world.cluster.row("t", 0)
    world.cluster.set_assignment(row, Assignment((1, 2, 3), adding=(2,), removing=(3,)))
    put(world, R.DELETION_SUCCESSFUL, ("t", 0, 2), ("t", 0, 3))
    move(world, R.NON_EXISTENT, ("t", 0, 2), ("t", 0, 3))
    assert world.cluster.assignment(row) == Assignment((1,))
    assert state(world, "t", 0, 2) == R.NON_EXISTENT
    assert world.requests == world.writes == []


@pytest.mark.rule("RSM-24")
def test_a_fence_that_does_not_hold_ends_the_call() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.controller_epoch += 1
    with pytest.raises(FencedError):
        move(world, R.OFFLINE, ("t", 0, 2))


@pytest.mark.rule("RSM-24", "CHAN-14")
def test_any_other_error_ends_the_call_and_not_the_event() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})

    def fail(effect: effects.Effect) -> None:
        if isinstance(effect, effects.WriteStates):
            raise KlammError("broken")

    world.faults.before = fail
    move(world, R.OFFLINE, ("t", 0, 2))
    assert state(world, "t", 0, 2) == R.ONLINE
    world.faults.before = do_nothing
    move(world, R.OFFLINE, ("t", 0, 2))
    assert state(world, "t", 0, 2) == R.OFFLINE


@pytest.mark.rule("PSM-16", "RSM-13")
def test_with_leaders_that_write_states_themselves_the_cache_is_not_believed() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}}, Settings(alter_partition=False))
    world.report_isr("t", [1])
    # The leader has let 2 in again; by the cache there is nothing to write.
    world.put_state("t", 0, leader=1, isr=[1, 2], version=2, controller_epoch=5)
    move(world, R.OFFLINE, ("t", 0, 2))
    assert world.state("t") == (1, 1, [1])
