"""Topics that appear, grow and vanish."""

import pytest

from klamm.core import effects, events
from klamm.core.context import Settings
from klamm.core.effects import WriteOutcome
from klamm.core.transitions import PartitionState, ReplicaState
from tests.support.procedure_store import TOPICS
from tests.support.procedure_world import World, steady


@pytest.mark.rule("TOPIC-1", "TOPIC-2", "TOPIC-5")
def test_new_topics_are_read_with_a_watch_and_created_together() -> None:
    world = steady([1, 2], {"old": {0: [1]}})
    world.create_topic("a", {0: [1, 2]})
    world.create_topic("b", {0: [2, 1], 1: [1, 2]})
    world.settle()
    (read,) = (e for e in world.performed if isinstance(e, effects.ReadTopics))
    assert list(read.names) == ["a", "b"]
    assert len([e for e in world.performed if isinstance(e, effects.CreateStates)]) == 1
    assert world.state("b", 1) == (1, 0, [1, 2])


@pytest.mark.rule("TOPIC-3")
def test_a_topic_that_vanished_may_come_back_anew() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.lose(2)
    world.settle()
    for path in [path for path in world.nodes if path.startswith(f"{TOPICS}/t")]:
        world.delete(path)
    world.forget_what_happened()
    world.settle()
    assert world.cluster.topics == {}
    assert world.requests == []
    world.ctx.remarks.clear()
    world.create_topic("t", {0: [2, 1]})
    world.settle()
    assert world.state("t") == (1, 0, [1])
    assert world.errors() == []


@pytest.mark.rule("TOPIC-4", "FAILOVER-7", "CONF-3")
def test_a_topic_without_an_id_gets_one() -> None:
    world = steady([1], {})
    world.create_topic("t", {0: [1]}, with_id=False)
    world.settle()
    given = world.topic("t")["topic_id"]
    assert world.cluster.topic_names == {given: "t"}
    assert world.topic("t")["partitions"] == {"0": [1]}


@pytest.mark.rule("TOPIC-4", "CONF-3")
def test_older_protocols_know_no_topic_ids() -> None:
    world = steady([1], {}, Settings(topic_ids=False))
    world.create_topic("t", {0: [1]}, with_id=False)
    world.settle()
    assert "topic_id" not in world.topic("t")
    assert world.state("t") == (1, 0, [1])


@pytest.mark.rule("TOPIC-4")
def test_a_topic_that_cannot_get_an_id_goes_on_without() -> None:
    world = steady([1], {})
    world.faults.refuse[f"{TOPICS}/t"] = [WriteOutcome.FAILED]
    world.create_topic("t", {0: [1]}, with_id=False)
    world.settle()
    assert world.state("t") == (1, 0, [1])
    assert world.cluster.topics["t"].id is None


@pytest.mark.rule("TOPIC-4")
def test_a_topic_with_the_id_of_another_is_ignored() -> None:
    world = steady([1], {"t": {0: [1]}})
    world.create(f"{TOPICS}/copy", world.topic("t"))
    world.settle()
    assert list(world.cluster.topics) == ["t"]
    assert any("copy" in text for text in world.errors())


@pytest.mark.rule("TOPIC-9", "TOPIC-10")
def test_replicas_on_dead_brokers_are_online_as_far_as_states_go() -> None:
    world = steady([1], {"t": {0: [1, 9]}})
    row = world.cluster.row("t", 0)
    assert world.cluster.replica_state[row, :2].tolist() == [ReplicaState.ONLINE] * 2


@pytest.mark.rule("TOPIC-11", "TOPIC-12", "TOPIC-13")
def test_added_partitions_are_created_and_other_changes_ignored() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2], 1: [2, 3]}})
    data = world.topic("t")
    world.set(f"{TOPICS}/t", data | {"partitions": {"0": [3, 1], "2": [3, 2]}})
    world.settle()
    assert world.state("t", 2) == (3, 0, [3, 2])
    assert len(world.state_writes()) == 1
    assert world.cluster.assignment(world.cluster.row("t", 0)).replicas == (1, 2)
    assert world.cluster.row("t", 1) is not None
    assert {tp for r in world.requests for tp in r.partitions} == {("t", 2)}


@pytest.mark.rule("TOPIC-14", "TOPIC-15", "DEL-7")
def test_a_topic_on_its_way_out_does_not_grow() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.silent.update((1, 2))
    world.request_deletion("t")
    world.settle()
    world.expand_topic("t", {1: [2, 1]})
    world.settle()
    assert world.topic("t")["partitions"] == {"0": [1, 2]}
    assert world.topic("t")["topic_id"] == "id-of-t"
    assert world.state("t", 1) is None
    assert world.nodes[f"{TOPICS}/t"].version == 2


@pytest.mark.rule("TOPIC-16", "TOPIC-12")
def test_the_controllers_own_writes_are_no_news() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.queue.append(events.PartitionModifications("t"))
    world.queue.append(events.PartitionModifications("unknown"))
    world.settle()
    assert world.writes == world.requests == []


@pytest.mark.rule("ZK-13")
def test_an_unreadable_topic_has_no_partitions() -> None:
    world = steady([1], {})
    world.create(f"{TOPICS}/t", "garbage")
    world.settle()
    assert list(world.cluster.topics) == ["t"]
    assert len(world.cluster.all_rows()) == 0
    assert world.nodes[f"{TOPICS}/t"].data == "garbage"
    # Once somebody has mended it, it is a topic like any other.
    world.set(f"{TOPICS}/t", World._topic_json("mended", {0: [1]}, True))
    world.settle()
    assert world.state("t") == (1, 0, [1])
    assert world.cluster.topic_names == {"mended": "t"}


# Nodes that hold no data


def test_a_node_without_data_is_replaced_by_the_broker_with_the_fewest_replicas() -> None:
    world = steady([1, 2, 3], {"busy": {0: [1, 2], 1: [1, 2]}})
    world.register(9, controller_only=True)
    world.settle()
    world.create_topic("t", {0: [9, 1], 1: [1, 9]})
    world.settle()
    assert world.topic("t")["partitions"] == {"0": [3, 1], "1": [1, 3]}
    assert world.state("t", 0) == (3, 0, [3, 1])
    assert not any(r.partitions for r in world.sent("LeaderAndIsr", to=9))


def test_its_place_goes_to_another_rack_if_there_is_one() -> None:
    world = World()
    for broker, rack in ((1, "a"), (2, "a"), (3, "b")):
        world.register(broker, rack=rack)
    world.register(9, rack="c", controller_only=True)
    world.fail_over()
    world.create_topic("busy", {0: [3], 1: [3]})
    world.create_topic("t", {0: [1, 9]})
    world.settle()
    assert world.topic("t")["partitions"] == {"0": [1, 3]}


def test_without_another_broker_the_list_gets_shorter_but_never_empty() -> None:
    world = World([1])
    world.register(9, controller_only=True)
    world.fail_over()
    world.create_topic("t", {0: [1, 9]})
    world.settle()
    assert world.topic("t")["partitions"] == {"0": [1]}
    world.lose(1)
    world.settle()
    world.create_topic("u", {0: [9]})
    world.settle()
    assert world.topic("u")["partitions"] == {"0": [9]}


def test_partitions_that_were_created_while_there_was_no_controller_are_placed_too() -> None:
    world = World([1, 2])
    world.register(9, controller_only=True)
    world.create_topic("t", {0: [9, 1]})
    world.create_topic("old", {0: [9, 1]})
    world.put_state("old", 0, leader=1, isr=[1])
    world.fail_over()
    world.settle()
    assert world.topic("t")["partitions"] == {"0": [2, 1]}
    assert world.topic("old")["partitions"] == {"0": [9, 1]}
    assert world.state("t") == (2, 0, [2, 1])


def test_a_refused_replacement_leaves_the_assignment_as_it_is() -> None:
    world = World([1, 2])
    world.register(9, controller_only=True)
    world.fail_over()
    world.faults.refuse[f"{TOPICS}/t"] = [WriteOutcome.FAILED]
    world.create_topic("t", {0: [1, 9]})
    world.settle()
    row = world.cluster.row("t", 0)
    assert world.cluster.assignment(row).replicas == (1, 9)
    assert world.cluster.state[row] == PartitionState.ONLINE
