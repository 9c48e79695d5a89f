"""Deleting topics: intake, retries, failures, the end."""

import pytest

from klamm.controller.metrics import gauges
from klamm.core import events
from klamm.core.context import Settings
from klamm.core.effects import WriteOutcome
from klamm.core.transitions import PartitionState, ReplicaState
from tests.support.procedure_store import DELETIONS, TOPICS, Node, state_path
from tests.support.procedure_world import World, steady

R = ReplicaState
TWO = {"t": {0: [1, 2]}}


def states(world: World, topic: str = "t", partition: int = 0) -> list[ReplicaState]:
    row = world.cluster.row(topic, partition)
    return [R(code) for code in world.cluster.replica_state[row, :2].tolist()]


def begun(world: World) -> World:
    """The deletion of `t` has been asked of brokers that do not answer."""
    world.silent.update(world.registrations)
    world.request_deletion("t")
    world.settle()
    return world


def respond(world: World, broker: int, error: int = 0, *, top: int = 0) -> None:
    world.queue.append(events.StopReplicaResponseReceived(broker, top, {("t", 0): error}))
    world.settle()


@pytest.mark.rule("DEL-1", "DEL-2", "ZK-28")
def test_requests_for_unknown_topics_are_dropped() -> None:
    world = steady([1, 2], TWO)
    world.request_deletion("nope")
    world.settle()
    assert f"{DELETIONS}/nope" not in world.nodes
    assert world.cluster.queued_for_deletion == set()
    assert any("nope" in remark.text for remark in world.ctx.remarks)


@pytest.mark.rule("DEL-3")
def test_where_deletion_is_disabled_requests_are_dropped() -> None:
    world = steady([1, 2], TWO, Settings(delete_topics=False))
    world.request_deletion("t")
    world.settle()
    assert f"{DELETIONS}/t" not in world.nodes
    assert world.cluster.queued_for_deletion == set()
    assert world.requests == []


@pytest.mark.rule("DEL-4", "DEL-5", "DEL-28", "REASG-B9")
def test_a_topic_being_reassigned_waits_and_goes_on_afterwards() -> None:
    world = steady([1, 2, 3], TWO)
    world.ask(events.ApiReassignment({("t", 0): [1, 3]}))
    world.request_deletion("t")
    world.settle()
    assert world.cluster.ineligible_for_deletion == {"t"}
    assert world.cluster.deletion_started == set()
    assert world.sent("StopReplica") == []
    world.report_isr("t", [1, 2, 3])
    assert "t" not in world.cluster.topics
    assert not [path for path in world.nodes if path.startswith(f"{TOPICS}/t")]


@pytest.mark.rule("DEL-6", "MET-4")
def test_a_queued_topic_no_longer_counts_as_imbalanced() -> None:
    world = steady([1, 2], TWO)
    world.bounce(1)
    world.settle()
    assert gauges(world.cluster).preferred_replica_imbalance_count == 1
    begun(world)
    assert gauges(world.cluster).preferred_replica_imbalance_count == 0
    world.queue.append(events.TopicDeletion())
    world.settle()
    assert world.cluster.queued_for_deletion == {"t"}


@pytest.mark.rule("DEL-8", "DEL-10", "DEL-11", "VER-11")
def test_a_deletion_starts_by_taking_the_partitions_out_of_service() -> None:
    world = begun(steady([1, 2], TWO))
    assert world.cluster.state[world.cluster.row("t", 0)] == PartitionState.NON_EXISTENT
    assert world.cluster.deletion_started == {"t"}
    assert states(world) == [R.DELETION_STARTED] * 2
    assert gauges(world.cluster).offline_partitions_count == 0


@pytest.mark.rule("DEL-12", "CHAN-25", "CHAN-26")
def test_brokers_drop_a_topic_from_their_metadata_first() -> None:
    world = begun(steady([1, 2, 3], TWO))
    heard = [r.api for r in world.requests if r.to == 1]
    assert heard == ["UpdateMetadata", "StopReplica", "StopReplica"]
    entry = world.sent("UpdateMetadata", to=3)[0].partitions["t", 0]
    assert (entry["leader"], entry["leader_epoch"], entry["partition_epoch"]) == (-2, 0, 0)
    assert entry["isr"] == entry["replicas"] == [1, 2]


@pytest.mark.rule("DEL-13", "DEL-14", "DEL-9", "DEL-30")
def test_with_a_broker_away_the_others_delete_and_the_topic_waits() -> None:
    world = steady([1, 2], TWO)
    world.lose(2)
    world.settle()
    world.request_deletion("t")
    world.settle()
    # 1 has answered; 2's replica is ready for another try, for which the topic has to wait.
    assert states(world) == [R.DELETION_SUCCESSFUL, R.OFFLINE]
    assert world.cluster.ineligible_for_deletion == {"t"}
    assert f"{TOPICS}/t" in world.nodes


@pytest.mark.rule("DEL-15", "DEL-16", "DEL-17", "DEL-18", "DEL-19")
def test_the_end_of_a_topic_leaves_nothing_and_the_name_free() -> None:
    world = steady([1, 2], TWO)
    world.nodes["/config/topics/t"] = Node({"config": {}})
    world.request_deletion("t")
    world.settle()
    deleted = [write.path for write in world.writes if write.op == "delete"]
    assert deleted[-3:] == [f"{TOPICS}/t", "/config/topics/t", f"{DELETIONS}/t"]
    assert not any(path.startswith("/config/changes") for path in world.nodes)
    world.create_topic("t", {0: [2, 1]})
    world.settle()
    assert world.state("t") == (2, 0, [2, 1])


@pytest.mark.rule("DEL-20", "CHAN-31")
def test_responses_about_topics_that_are_not_being_deleted_mean_nothing() -> None:
    world = steady([1, 2], TWO)
    respond(world, 1)
    respond(world, 1, error=56)
    assert states(world) == [R.ONLINE] * 2
    assert world.performed == []


@pytest.mark.rule("DEL-21", "DEL-22", "DEL-29")
@pytest.mark.parametrize(("top", "error"), [(0, 56), (31, 0)])
def test_a_failed_replica_pauses_the_topic_until_the_others_have_answered(
    top: int, error: int
) -> None:
    world = begun(steady([1, 2], TWO))
    respond(world, 1, error, top=top)
    assert states(world) == [R.DELETION_INELIGIBLE, R.DELETION_STARTED]
    assert world.cluster.ineligible_for_deletion == {"t"}


@pytest.mark.rule("DEL-9", "DEL-30", "DEL-31")
def test_after_all_responses_the_failed_replica_is_ready_and_waits() -> None:
    world = begun(steady([1, 2], TWO))
    respond(world, 1, 56)
    respond(world, 2)
    assert states(world) == [R.OFFLINE, R.DELETION_SUCCESSFUL]
    assert world.cluster.ineligible_for_deletion == {"t"}
    stopped = len(world.sent("StopReplica"))
    world.queue.append(events.TopicDeletion())
    world.settle()
    # Nothing is retried by itself.
    assert len(world.sent("StopReplica")) == stopped


@pytest.mark.rule("DEL-23", "DEL-27")
def test_a_bounce_of_the_failed_broker_retries_it_alone() -> None:
    world = begun(steady([1, 2], TWO))
    respond(world, 1, 56)
    respond(world, 2)
    world.silent.clear()
    world.forget_what_happened()
    world.bounce(1)
    world.settle()
    assert {r.to for r in world.sent("StopReplica")} == {1}
    assert "t" not in world.cluster.topics


@pytest.mark.rule("DEL-24")
def test_a_response_without_partitions_changes_nothing() -> None:
    world = begun(steady([1, 2], TWO))
    world.queue.append(events.StopReplicaResponseReceived(1, 11, {}))
    world.settle()
    assert states(world) == [R.DELETION_STARTED] * 2
    assert world.cluster.ineligible_for_deletion == set()


@pytest.mark.rule("DEL-25")
def test_a_deleted_replica_stays_deleted_when_its_broker_dies() -> None:
    world = begun(steady([1, 2], TWO))
    respond(world, 1)
    world.lose(1)
    world.settle()
    assert states(world) == [R.DELETION_SUCCESSFUL, R.DELETION_STARTED]
    assert world.cluster.ineligible_for_deletion == {"t"}
    respond(world, 2)
    assert "t" not in world.cluster.topics


@pytest.mark.rule("DEL-26", "FAILOVER-14", "DEL-16")
def test_a_successor_finishes_what_a_crash_left_of_a_deletion() -> None:
    world = steady([1, 2], TWO)
    for path in [path for path in world.nodes if path.startswith(f"{TOPICS}/t")]:
        del world.nodes[path]
    world.nodes["/config/topics/t"] = Node({"config": {}})
    world.request_deletion("t")
    world.fail_over()
    world.settle()
    assert "/config/topics/t" not in world.nodes
    assert f"{DELETIONS}/t" not in world.nodes
    assert world.cluster.queued_for_deletion == set()


@pytest.mark.rule("DEL-33", "DEL-8")
def test_a_topic_that_never_came_online_is_deleted_too() -> None:
    world = World([1])
    world.create_topic("t", {0: [1, 9]})
    world.create_topic("empty", {})
    world.request_deletion("t")
    world.request_deletion("empty")
    world.fail_over()
    world.settle()
    assert "empty" not in world.cluster.topics
    assert world.cluster.ineligible_for_deletion == {"t"}
    world.register(9)
    world.settle()
    assert world.cluster.topics == {}
    assert not [path for path in world.nodes if path.startswith(TOPICS)]


@pytest.mark.rule("REASG-A5", "DEL-15")
@pytest.mark.parametrize("is_lost", [False, True], ids=["alive", "lost meanwhile"])
def test_a_topic_that_never_came_online_and_was_to_be_moved_is_deleted_too(is_lost: bool) -> None:
    world = steady([1, 2, 3], {"t": {0: [8]}})
    world.ask(events.ApiReassignment({("t", 0): [1, 8]}))
    world.request_deletion("t")
    world.settle()
    if is_lost:
        world.lose(1)
        world.settle()
    world.register(8)
    world.settle()
    assert ("t" in world.cluster.topics) is is_lost
    world.register(1)
    world.settle()
    assert "t" not in world.cluster.topics


@pytest.mark.rule("REASG-A1", "DEL-15")
def test_a_replica_of_a_reassignment_that_failed_as_it_began_is_deleted_too() -> None:
    world = steady([1, 2, 3], {"t": {0: [1]}})
    world.faults.refuse[state_path("t", 0)] = [WriteOutcome.FAILED]
    world.ask(events.ApiReassignment({("t", 0): [3]}))
    world.request_deletion("t")
    world.settle()
    world.bounce(1)
    world.settle()
    assert "t" not in world.cluster.topics
    assert world.sent("StopReplica", to=3)


@pytest.mark.rule("FAILOVER-13", "FAILOVER-14", "DEL-28", "VER-12")
def test_at_failover_topics_that_move_or_miss_a_replica_wait() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2]}, "u": {0: [1, 9]}, "v": {0: [2, 3]}})
    world.ask(events.ApiReassignment({("t", 0): [1, 3]}))
    for topic in ("t", "u", "v"):
        world.request_deletion(topic)
    world.fail_over()
    world.settle()
    assert world.cluster.ineligible_for_deletion == {"t", "u"}
    assert sorted(world.cluster.topics) == ["t", "u"]


@pytest.mark.rule("FAILOVER-14", "DEL-3")
def test_at_failover_requests_are_dropped_where_deletion_is_disabled() -> None:
    world = World([1], Settings(delete_topics=False))
    world.create_topic("t", {0: [1]})
    world.request_deletion("t")
    world.fail_over()
    world.settle()
    assert f"{DELETIONS}/t" not in world.nodes
    assert world.state("t") == (1, 0, [1])


@pytest.mark.rule("LOGDIR-8", "DEL-14")
def test_a_replica_on_a_lost_directory_keeps_its_topic() -> None:
    world = steady([1, 2], TWO)
    row = world.cluster.row("t", 0)
    world.cluster.offline_dirs[2] = {row}
    world.request_deletion("t")
    world.settle()
    assert states(world)[0] == R.DELETION_SUCCESSFUL
    assert world.cluster.ineligible_for_deletion == {"t"}


@pytest.mark.rule("REASG-3", "DEL-7")
def test_a_topic_on_its_way_out_is_not_reassigned() -> None:
    world = begun(steady([1, 2, 3], TWO))
    _, verdicts = world.ask(events.ApiReassignment({("t", 0): [1, 3]}))
    assert verdicts["t", 0][0] == 3
