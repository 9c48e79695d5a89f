"""Failover: a node becomes controller."""

import pytest

from klamm.core import effects, events
from klamm.core.context import Settings
from klamm.core.effects import (
    ChangeChannels,
    DropIsrNotifications,
    DropLogDirNotifications,
    ReadBrokers,
    ReadDeletions,
    ReadPreferredRequest,
    ReadReassignRequest,
    ReadStates,
    ReadStatesAhead,
    ReadTopicNames,
    ReadTopics,
    Schedule,
    SendRequestBatch,
    SetUpFeatures,
    WatchBrokers,
)
from klamm.core.transitions import PartitionState
from klamm.errors import FencedError, KlammError
from tests.support.procedure_store import ISR_CHANGES, LOG_DIRS, PREFERRED, TOPICS, Node
from tests.support.procedure_world import World, steady


def abandoned() -> World:
    """A cluster at rest whose controller has gone."""
    world = steady([1, 2, 3], {"t": {0: [1, 2], 1: [2, 3]}})
    world.forget_what_happened()
    return world


@pytest.mark.rule(
    *("FAILOVER-1", "FAILOVER-2", "FAILOVER-3", "FAILOVER-4", "FAILOVER-5", "FAILOVER-6"),
    *("FAILOVER-10", "FAILOVER-11", "FAILOVER-12", "FAILOVER-13", "FAILOVER-15", "FAILOVER-16"),
    *("FAILOVER-18", "FAILOVER-20", "FAILOVER-21", "ELEC-8", "ZK-24"),
)
def test_the_steps_come_in_their_order() -> None:
    world = abandoned()
    world.fail_over()
    assert [type(effect) for effect in world.performed] == [
        SetUpFeatures,
        DropLogDirNotifications,
        DropIsrNotifications,
        ReadBrokers,
        ReadTopicNames,
        ReadTopics,
        ReadStatesAhead,
        WatchBrokers,
        ReadStates,
        ChangeChannels,
        ReadDeletions,
        SendRequestBatch,  # the brokers, without partitions
        SendRequestBatch,  # all partitions
        ReadReassignRequest,
        ReadPreferredRequest,
        Schedule,
    ]


@pytest.mark.rule("FAILOVER-4")
def test_old_notifications_are_thrown_away_unseen() -> None:
    world = abandoned()
    world.put_state("t", 0, leader=1, isr=[1], version=7)
    world.notify_isr_change(("t", 0))
    world.notify_log_dir(1)
    world.fail_over()
    assert world.children(ISR_CHANGES) == world.children(LOG_DIRS) == []
    # What they told of is read anyway.
    assert world.cluster.isr[world.cluster.row("t", 0)].tolist() == [1, -1, -1]


@pytest.mark.rule("FAILOVER-7", "VER-15")
def test_topics_without_an_id_get_one() -> None:
    world = World([1])
    world.create_topic("t", {0: [1]}, with_id=False)
    world.create_topic("u", {0: [1]})
    world.fail_over()
    given = world.topic("t")["topic_id"]
    assert world.cluster.topic_names == {given: "t", "id-of-u": "u"}


@pytest.mark.rule("FAILOVER-7", "ELEC-9")
def test_an_id_that_two_topics_share_ends_the_takeover() -> None:
    world = World([1])
    world.create_topic("t", {0: [1]})
    world.create(f"{TOPICS}/copy", world.topic("t"))
    with pytest.raises(KlammError, match="id of another topic"):
        world.fail_over()


@pytest.mark.rule("FAILOVER-8", "FAILOVER-18", "REASG-29")
def test_moves_under_way_are_known_and_resumed() -> None:
    world = abandoned()
    data = world.topic("t")
    data["partitions"]["0"] = [1, 3, 2]
    data["adding_replicas"], data["removing_replicas"] = {"0": [3]}, {"0": [2]}
    world.nodes[f"{TOPICS}/t"] = Node(data)
    world.fail_over()
    world.settle()
    assert world.cluster.being_reassigned == {world.cluster.row("t", 0)}
    assert world.state("t") == (1, 1, [1, 2])
    assert world.state("t", 1) == (2, 0, [2, 3])


@pytest.mark.rule("FAILOVER-15", "CHAN-26")
def test_brokers_hear_of_each_other_before_they_hear_of_partitions() -> None:
    world = abandoned()
    world.fail_over()
    for broker in (1, 2, 3):
        first, second, third = [r for r in world.requests if r.to == broker]
        assert (first.api, first.partitions, list(first.brokers)) == (
            "UpdateMetadata",
            {},
            [1, 2, 3],
        )
        assert (second.api, third.api) == ("LeaderAndIsr", "UpdateMetadata")


@pytest.mark.rule("FAILOVER-24", "ZK-17")
def test_healthy_partitions_are_told_again_and_not_rewritten() -> None:
    world = abandoned()
    world.fail_over()
    assert world.writes == []
    entry = world.sent("LeaderAndIsr", to=1)[0].partitions["t", 0]
    assert (entry["leader_epoch"], entry["controller_epoch"], entry["is_new"]) == (0, 5, False)


@pytest.mark.rule("FAILOVER-19", "FAILOVER-14")
def test_deletions_go_on() -> None:
    world = abandoned()
    world.request_deletion("t")
    world.fail_over()
    world.settle()
    assert world.cluster.topics == {}
    assert not [path for path in world.nodes if path.startswith(TOPICS)]


@pytest.mark.rule("FAILOVER-20", "PREF-9")
def test_a_preferred_election_is_run_as_far_as_it_makes_sense() -> None:
    world = abandoned()
    world.create_topic("new", {0: [9]})
    world.create_topic("going", {0: [9, 1]})
    world.request_deletion("going")
    world.put_state("t", 0, leader=2, isr=[2, 1], leader_epoch=4, version=4)
    asked = [("t", 0), ("t", 1), ("new", 0), ("going", 0), ("nope", 0)]
    world.request_preferred_election(*asked)
    world.fail_over()
    world.settle()
    assert world.state("t", 0) == (1, 5, [2, 1])
    assert world.state("t", 1) == (2, 0, [2, 3])
    assert PREFERRED not in world.nodes
    assert world.cluster.state[world.cluster.row("new", 0)] == PartitionState.NEW


@pytest.mark.rule("FAILOVER-21", "REBAL-1")
def test_the_first_rebalance_is_due_in_five_seconds() -> None:
    world = abandoned()
    world.scheduled.clear()
    world.fail_over()
    assert world.scheduled == [(events.AutoRebalance(), 5.0)]


@pytest.mark.rule("FAILOVER-23")
def test_a_partition_whose_leader_died_is_written_twice() -> None:
    world = abandoned()
    world.lose(1)
    world.forget_what_happened()
    world.fail_over()
    written = [(w.data["leader"], w.data["isr"]) for w in world.state_writes()]
    assert written == [(-1, [2]), (2, [2])]


@pytest.mark.rule("FAILOVER-11", "PSM-2")
def test_an_unreadable_state_counts_as_none() -> None:
    world = abandoned()
    world.nodes[f"{TOPICS}/t/partitions/0/state"] = Node("garbage", 3)
    world.fail_over()
    row = world.cluster.row("t", 0)
    assert not world.cluster.has_leadership[row]
    assert world.cluster.state[row] == PartitionState.NEW


@pytest.mark.rule("FENCE-4", "FAILOVER-4")
def test_a_controller_that_is_already_replaced_writes_nothing() -> None:
    world = abandoned()
    world.notify_log_dir(1)
    world.lose(1)
    world.forget_what_happened()

    def replaced(effect: effects.Effect) -> None:
        world.controller_epoch = 99

    world.faults.before = replaced
    with pytest.raises(FencedError):
        world.fail_over()
    assert world.writes == []


@pytest.mark.rule("FAILOVER-6")
def test_an_empty_cluster_is_taken_over_too() -> None:
    world = World([], Settings(auto_rebalance=False))
    world.fail_over()
    world.settle()
    assert world.requests == world.writes == []


@pytest.mark.rule("FAILOVER-6")
def test_topics_are_read_in_portions() -> None:
    world = World([1])
    for n in range(1100):
        world.nodes[f"{TOPICS}/t{n}"] = Node(World._topic_json(f"id-{n}", {0: [1]}, True))
    world.fail_over()
    reads = [e for e in world.performed if isinstance(e, ReadTopics)]
    assert [len(read.names) for read in reads] == [500, 500, 100]
    # Each names the next portion, so that it can be read in the meantime.
    assert [read.then for read in reads] == [reads[1].names, reads[2].names, ()]
    assert len(world.cluster.topics) == 1100
