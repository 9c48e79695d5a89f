"""Deletions that cannot go straight on, and names that come back."""

import pytest

from klamm.core import events
from klamm.core.columns import NO_BROKER
from klamm.core.events import ControllerError
from tests.support.procedure_store import DELETIONS, TOPICS, state_path
from tests.support.procedure_world import World, steady

T0 = ("t", 0)


def is_gone(world: World, topic: str = "t") -> bool:
    left = [path for path in world.nodes if path.startswith((f"{TOPICS}/{topic}", DELETIONS))]
    return not left and topic not in world.cluster.topics


# Stuck behind an offline replica


@pytest.mark.rule("DEL-14", "DEL-27", "DEL-8", "FAILOVER-13")
@pytest.mark.parametrize("successor", [False, True])
def test_a_deletion_waits_for_an_offline_replica_and_holds_up_nothing_else(successor: bool) -> None:
    """KAFKA-2937 is the kind: topics that were marked for deletion and could not be deleted."""
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}, "u": {0: [1, 2]}})
    world.lose(3)
    world.request_deletion("t")
    world.settle()
    assert T0 not in world.views[1].replicas
    if successor:
        world.fail_over()
        world.settle()
    world.request_deletion("u")
    world.settle()
    assert "u" not in world.cluster.topics
    assert "t" in world.cluster.topics
    world.register(3)
    world.settle()
    assert is_gone(world)
    assert T0 not in world.views[3].replicas


@pytest.mark.rule("DEL-24", "DEL-25", "DEL-27")
def test_a_replica_whose_response_never_came_is_deleted_when_its_broker_bounces() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.silent.add(2)
    world.request_deletion("t")
    world.settle()
    assert not is_gone(world)
    world.silent.clear()
    world.bounce(2)
    world.settle()
    assert is_gone(world)


@pytest.mark.rule("DEL-22", "DEL-25")
def test_the_death_of_every_replica_in_the_middle_is_no_end() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2]}})
    world.silent.update((1, 2))
    world.request_deletion("t")
    world.settle()
    world.silent.clear()
    world.lose(1, 2)
    world.settle()
    assert not is_gone(world)
    world.register(1)
    world.register(2)
    world.settle()
    assert is_gone(world)


@pytest.mark.rule("DEL-33", "RSM-12", "RSM-17")
@pytest.mark.parametrize("left", [[0], [1], [0, 1], []])
def test_a_successor_finds_a_topic_of_which_a_part_is_deleted(left: list[int]) -> None:
    """KAFKA-6650: replicas of partitions whose state was gone already could not go offline."""
    world = steady([1, 2], {"t": {0: [1, 2], 1: [2, 1]}})
    world.request_deletion("t")
    for partition in {0, 1}.difference(left):
        del world.nodes[state_path("t", partition)]
    world.fail_over()
    world.settle()
    assert is_gone(world)


@pytest.mark.rule("FAILOVER-13", "FAILOVER-18", "DEL-7", "DEL-27", "DEL-33")
@pytest.mark.parametrize("silent", [1, 2, 3])
def test_a_successor_does_not_wait_for_the_move_of_a_topic_of_which_a_part_is_deleted(
    silent: int,
) -> None:
    """So it is left in 3.9.1: without a leader a move never ends, and its topic waits for it."""
    world = steady([1, 2, 3], {"t": {0: [1, 2]}})
    world.ask(events.ApiReassignment({T0: [1, 3]}))
    world.request_deletion("t")
    world.settle()
    world.silent.add(silent)
    world.bounce(3)
    world.settle()
    assert world.state("t")[0] == NO_BROKER
    assert not is_gone(world)
    world.silent.clear()
    world.fail_over()
    world.settle()
    assert is_gone(world)
    assert not any(T0 in view.replicas for view in world.views.values())
    assert world.disagreements() == []


@pytest.mark.rule("TOPIC-14", "TOPIC-15", "DEL-7")
def test_a_topic_that_grows_while_it_is_deleted_does_not_escape() -> None:
    """KAFKA-6612: partitions added during a deletion outlived it."""
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.silent.add(2)
    world.request_deletion("t")
    world.settle()
    world.expand_topic("t", {1: [1, 2]})
    world.settle()
    assert world.topic("t")["partitions"] == {"0": [1, 2]}
    assert world.state("t", 1) is None
    world.silent.clear()
    world.bounce(2)
    world.settle()
    assert is_gone(world)


# The same name again


@pytest.mark.rule("DEL-19", "DEL-20")
def test_a_late_response_about_the_deleted_topic_does_not_touch_its_namesake() -> None:
    """KAFKA-6098 is the kind: a deletion and a creation of one name that overlap."""
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.request_deletion("t")
    world.settle()
    world.create_topic("t", {0: [2, 1]})
    world.settle()
    world.forget_what_happened()
    for error in (ControllerError.NONE, ControllerError.KAFKA_STORAGE_ERROR):
        world.queue.append(events.StopReplicaResponseReceived(1, 0, {T0: error}))
    world.settle()
    assert world.writes == []
    assert world.state("t") == (2, 0, [2, 1])
    assert world.disagreements() == []


@pytest.mark.rule("ISR-10", "DEL-19")
def test_a_leader_of_the_deleted_topic_cannot_change_the_isr_of_its_namesake() -> None:
    """Both begin at epoch 0, so only the id tells them apart: KIP-516."""
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.request_deletion("t")
    world.settle()
    world.create_topic("t", {0: [1, 2]})
    world.nodes[f"{TOPICS}/t"].data["topic_id"] = "another-id"
    world.settle()
    late = world.report_isr("t", [1], topic=None, topic_id="id-of-t", version=2)
    assert late.error == ControllerError.UNKNOWN_TOPIC_ID
    assert world.state("t") == (1, 0, [1, 2])
    assert world.report_isr("t", [1], topic=None, topic_id="another-id", version=2).error == 0


@pytest.mark.rule("TOPIC-3")
def test_a_topic_that_was_removed_by_hand_and_made_again_is_a_new_one() -> None:
    """Seen on 3.9.1: states of the removed topic were kept, and the new one never came online."""
    world = steady([1, 2], {"t": {0: [1, 2]}})
    for path in [path for path in world.nodes if path.startswith(f"{TOPICS}/t")]:
        world.delete(path)
    world.settle()
    world.create_topic("t", {0: [2, 1]})
    world.settle()
    assert world.state("t") == (2, 0, [2, 1])


@pytest.mark.rule("FAILOVER-6", "FAILOVER-8")
def test_a_topic_that_was_replaced_while_nobody_was_controller_is_told_as_it_is_now() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2], 1: [2, 1]}})
    for path in [path for path in world.nodes if path.startswith(f"{TOPICS}/t")]:
        world.delete(path)
    world.create_topic("t", {0: [3, 1]})
    world.fail_over()
    world.settle()
    assert world.state("t") == (3, 0, [3, 1])
    assert world.state("t", 1) is None
    assert world.cluster.row("t", 1) is None
