"""Log directories that brokers have lost."""

import pytest

from klamm.core import effects, events
from klamm.core.transitions import ReplicaState
from klamm.errors import UnavailableError
from tests.support.procedure_store import LOG_DIRS
from tests.support.procedure_world import World, steady

T0, T1 = ("t", 0), ("t", 1)
LOST = 56


def two() -> World:
    return steady([1, 2, 3], {"t": {0: [1, 2], 1: [1, 2]}})


def respond(world: World, broker: int, *lost: tuple[str, int], top: int = 0, **other: int) -> None:
    errors = dict.fromkeys(lost, LOST) | {("t", int(n[1:])): code for n, code in other.items()}
    world.queue.append(events.LeaderAndIsrResponseReceived(broker, top, errors, [T0, T1]))
    world.settle()


@pytest.mark.rule("LOGDIR-2", "LOGDIR-3")
def test_a_broker_that_lost_a_directory_is_asked_about_all_its_partitions() -> None:
    world = two()
    world.notify_log_dir(1)
    world.settle()
    (asked,) = world.sent("LeaderAndIsr")
    assert asked.to == 1
    assert set(asked.partitions) == {T0, T1}
    entry = asked.partitions[T0]
    assert (entry["leader_epoch"], entry["is_new"]) == (0, False)
    assert world.children(LOG_DIRS) == []
    assert world.state_writes() == []


@pytest.mark.rule("LOGDIR-3")
def test_notifications_go_even_if_handling_them_failed() -> None:
    world = two()

    def fail(effect: effects.Effect) -> None:
        if isinstance(effect, effects.SendRequestBatch):
            raise UnavailableError("no")

    world.faults.before = fail
    world.notify_log_dir(1)
    with pytest.raises(UnavailableError):
        world.settle()
    assert world.children(LOG_DIRS) == []


@pytest.mark.rule("LOGDIR-2")
def test_the_removal_of_notifications_is_no_news() -> None:
    world = two()
    world.queue.append(events.LogDirEventNotification())
    world.settle()
    assert len(world.performed) == 1


@pytest.mark.rule("LOGDIR-4")
def test_an_error_as_a_whole_is_only_logged() -> None:
    world = two()
    respond(world, 1, T0, top=11)
    assert world.cluster.offline_dirs == {}
    assert any("11" in text for text in world.errors())


@pytest.mark.rule("LOGDIR-5", "LOGDIR-6", "LOGDIR-8", "LOGDIR-9", "CHAN-34")
def test_a_lost_partition_finds_another_leader() -> None:
    world = two()
    respond(world, 1, T0)
    assert world.state("t", 0) == (2, 1, [2])
    assert world.state("t", 1) == (1, 0, [1, 2])
    row = world.cluster.row("t", 0)
    assert world.cluster.offline_dirs == {1: {row}}
    assert world.cluster.replica_state[row, 0] == ReplicaState.OFFLINE
    told = world.sent("UpdateMetadata")[-1].partitions[T0]
    assert told["offline"] == [1]
    (stop,) = world.sent("StopReplica")
    assert (stop.to, stop.partitions[T0]["delete"]) == (1, False)


@pytest.mark.rule("LOGDIR-6")
def test_what_is_known_to_be_lost_is_not_lost_again() -> None:
    world = two()
    respond(world, 1, T0)
    world.forget_what_happened()
    respond(world, 1, T0)
    assert world.performed == []


@pytest.mark.rule("LOGDIR-5", "LOGDIR-7")
def test_a_partition_that_is_well_again_counts_at_the_next_election() -> None:
    world = two()
    respond(world, 1, T0)
    respond(world, 2, T0)
    assert (world.state("t") or ())[0] == -1
    world.forget_what_happened()
    respond(world, 2)
    assert world.cluster.offline_dirs[2] == set()
    assert world.state_writes() == []
    world.bounce(3)
    world.settle()
    assert (world.state("t") or ())[0] == 2


@pytest.mark.rule("LOGDIR-5")
def test_other_errors_leave_things_as_they_were() -> None:
    world = two()
    respond(world, 1, T0)
    respond(world, 1, p0=3)
    assert world.cluster.offline_dirs == {1: {world.cluster.row("t", 0)}}
    respond(world, 1, p1=74)
    assert world.cluster.offline_dirs == {1: set()}


@pytest.mark.rule("LOGDIR-5")
def test_a_partition_that_was_not_in_the_response_stays_lost() -> None:
    world = two()
    respond(world, 1, T0)
    world.queue.append(events.LeaderAndIsrResponseReceived(1, 0, {}, [T1]))
    world.settle()
    assert world.cluster.offline_dirs == {1: {world.cluster.row("t", 0)}}


@pytest.mark.rule("LOGDIR-5")
def test_unknown_partitions_and_brokers_that_are_gone_are_skipped() -> None:
    world = two()
    respond(world, 1, ("nope", 0))
    world.lose(2)
    world.settle()
    world.forget_what_happened()
    respond(world, 2, T0)
    assert world.cluster.offline_dirs == {}
    assert world.state_writes() == []


@pytest.mark.rule("LOGDIR-7", "BRK-7", "BRK-13", "FAILOVER-25")
def test_a_restart_forgets_what_was_lost() -> None:
    world = two()
    respond(world, 1, T0)
    world.bounce(1)
    world.settle()
    assert world.cluster.offline_dirs == {}
    respond(world, 1, T0)
    world.fail_over()
    assert world.cluster.offline_dirs == {}


@pytest.mark.rule("CHAN-33")
def test_an_error_to_metadata_is_only_logged() -> None:
    world = two()
    world.queue.append(events.UpdateMetadataResponseReceived(1, 11))
    world.queue.append(events.UpdateMetadataResponseReceived(1, 0))
    world.settle()
    assert world.performed == []
    assert len(world.errors()) == 1
