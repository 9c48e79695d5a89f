"""The cluster as columns: loading, rows, assignments, leadership."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.cluster import ClusterState, LeaderAndIsrs, RegisteredBroker, TopicRead
from klamm.core.columns import I32, padded
from klamm.core.elections import is_imbalanced
from klamm.core.invariants import violations
from klamm.core.reassignment import Assignment
from klamm.core.transitions import ReplicaState
from tests.support.strategies import broker_lists


def cluster_of(**topics: dict[int, list[int]]) -> ClusterState:
    cluster = ClusterState()
    for name in topics:
        cluster.add_topic(name, f"id-of-{name}")
    cluster.add_partitions({name: TopicRead(None, lists) for name, lists in topics.items()})
    return cluster


def rows(*values: int) -> I32:
    return np.array(values, np.int32)


def test_a_million_partitions_fit_into_150_megabytes() -> None:
    cluster = ClusterState()
    layout = {number: [1, 2, 3] for number in range(1000)}
    for portion in range(10):
        names = [f"t{portion}-{n}" for n in range(100)]
        for name in names:
            cluster.add_topic(name, None)
        cluster.add_partitions({name: TopicRead(None, layout) for name in names})
    assert len(cluster.all_rows()) == 1_000_000
    assert cluster.nbytes < 150_000_000


def test_partitions_come_in_the_order_of_their_numbers() -> None:
    cluster = cluster_of(a={10: [1], 2: [2], 0: [3]}, b={1: [4], 0: [5]})
    assert cluster.topics["a"].numbers.tolist() == [0, 2, 10]
    assert [cluster.name(row) for row in range(5)] == [
        ("a", 0),
        ("a", 2),
        ("a", 10),
        ("b", 0),
        ("b", 1),
    ]
    assert cluster.replicas[cluster.topics["a"].rows, 0].tolist() == [3, 2, 1]
    assert cluster.row("a", 2) == 1
    assert cluster.row("a", 3) is None
    assert cluster.row("c", 0) is None


def test_more_partitions_find_their_place() -> None:
    cluster = cluster_of(a={0: [1], 5: [2]})
    cluster.add_partitions({"a": TopicRead(None, {3: [3, 4, 5, 6]})})
    assert cluster.topics["a"].numbers.tolist() == [0, 3, 5]
    assert cluster.assignments("a") == {
        0: Assignment((1,)),
        3: Assignment((3, 4, 5, 6)),
        5: Assignment((2,)),
    }


def test_rows_and_indexes_of_topics_are_used_again() -> None:
    cluster = cluster_of(a={0: [1], 1: [1]}, b={0: [2]})
    cluster.remove_topic("a")
    cluster.add_topic("c", None)
    taken = cluster.add_partitions({"c": TopicRead(None, {0: [3], 1: [4], 2: [5]})})
    assert taken.tolist() == [0, 1, 3]
    assert [cluster.name(row) for row in taken.tolist()] == [("c", 0), ("c", 1), ("c", 2)]
    assert violations(cluster) == []


def test_nothing_of_a_topic_is_left() -> None:
    cluster = cluster_of(a={0: [1, 2], 1: [1]})
    cluster.brokers = {1: RegisteredBroker(1, 1)}
    cluster.set_assignment(0, Assignment((3, 1, 2), (3,), (2,)))
    cluster.set_replica_state(rows(0), rows(1), ReplicaState.ONLINE)
    cluster.set_assignment(0, Assignment((2,)))
    cluster.being_reassigned = {0}
    cluster.offline_dirs = {1: {0}}
    cluster.queue_for_deletion(["a"])
    cluster.ineligible_for_deletion.add("a")
    cluster.remove_topic("a")
    assert violations(cluster) == []
    assert cluster.topic_names == {}
    assert len(cluster.all_rows()) == 0
    cluster.remove_topic("never known")


def test_a_topic_cannot_be_known_twice_nor_share_its_id() -> None:
    cluster = cluster_of(a={})
    with pytest.raises(ValueError, match="known already"):
        cluster.add_topic("a", None)
    with pytest.raises(ValueError, match="belongs to a"):
        cluster.add_topic("b", "id-of-a")


def test_moves_are_loaded_with_their_lists() -> None:
    cluster = ClusterState()
    cluster.add_topic("a", None)
    read = TopicRead(None, {0: [1], 1: [3, 1, 2]}, {1: [3]}, {1: [2], 7: [9]})
    cluster.add_partitions({"a": read})
    assert cluster.assignment(1) == Assignment((3, 1, 2), (3,), (2,))
    assert cluster.adding.keys() == {1}
    assert read.only([0]) == TopicRead(None, {0: [1]})


def test_a_replica_that_is_dropped_keeps_its_state_until_it_is_forgotten() -> None:
    cluster = cluster_of(a={0: [1, 2]})
    cluster.set_replica_state(rows(0, 0), rows(1, 2), ReplicaState.ONLINE)
    cluster.set_assignment(0, Assignment((2, 3)))
    states = cluster.states_of(rows(0, 0, 0, 0), rows(1, 2, 3, 4)).tolist()
    assert states == [
        ReplicaState.ONLINE,
        ReplicaState.ONLINE,
        ReplicaState.NON_EXISTENT,
        ReplicaState.NON_EXISTENT,
    ]
    cluster.set_replica_state(rows(0), rows(1), ReplicaState.OFFLINE)
    assert cluster.states_of(rows(0), rows(1)).tolist() == [ReplicaState.OFFLINE]
    # One that comes back in time has its state still.
    cluster.set_assignment(0, Assignment((1, 2)))
    assert cluster.states_of(rows(0), rows(1)).tolist() == [ReplicaState.OFFLINE]
    cluster.set_assignment(0, Assignment((2,)))
    cluster.forget_replicas(rows(0), rows(1))
    assert cluster.leaving == {}


@given(broker_lists(min_size=1), st.data())
def test_forgetting_replicas_leaves_the_others_in_order(
    replicas: list[int], data: st.DataObject
) -> None:
    gone = data.draw(st.lists(st.sampled_from(replicas), unique=True))
    cluster = cluster_of(a={0: replicas, 1: replicas})
    all_rows, brokers = cluster.replicas_of(rows(0, 1))
    cluster.set_replica_state(all_rows, brokers, ReplicaState.ONLINE)
    cluster.forget_replicas(rows(*[0] * len(gone)), rows(*gone))
    left = tuple(broker for broker in replicas if broker not in gone)
    assert cluster.assignment(0) == Assignment(left)
    assert cluster.assignment(1) == Assignment(tuple(replicas))
    assert violations(cluster) == []


def test_being_online_takes_a_live_broker_and_a_good_directory() -> None:
    cluster = cluster_of(a={0: [1, 2, 3], 1: [1, 2, 4]})
    cluster.brokers = {id: RegisteredBroker(id, id) for id in (1, 2, 3)}
    cluster.shutting_down = {3}
    cluster.offline_dirs = {2: {1}}
    assert cluster.online(rows(0, 1)).tolist() == [[True, True, False], [True, False, False]]
    with_leaving = cluster.online(rows(0, 1), count_shutting_down=True)
    assert with_leaving.tolist() == [[True, True, True], [True, False, False]]
    cluster.leader[:2] = 2
    assert cluster.leader_is_online(rows(0, 1)).tolist() == [True, False]


@st.composite
def leaderships(draw: st.DrawFn) -> tuple[list[list[int]], list[list[int]], list[int]]:
    replicas = draw(st.lists(broker_lists(min_size=1, max_size=4), min_size=1, max_size=6))
    isr = [draw(broker_lists(max_size=4)) for _ in replicas]
    leader = [draw(st.sampled_from([-1, *brokers])) for brokers in replicas]
    return replicas, isr, leader


@given(leaderships(), st.data())
@pytest.mark.rule("MET-3")
def test_the_count_of_imbalanced_partitions_is_always_up_to_date(
    drawn: tuple[list[list[int]], list[list[int]], list[int]], data: st.DataObject
) -> None:
    replicas, isr, leader = drawn
    cluster = cluster_of(a=dict(enumerate(replicas)))
    size = len(replicas)
    zeros = np.zeros(size, np.int32)
    states = LeaderAndIsrs(
        np.arange(size, dtype=np.int32),
        np.array(leader, np.int32),
        zeros,
        padded(isr),
        np.zeros(size, np.int8),
        zeros,
        zeros,
    )
    cluster.record_leadership(states)
    for row in data.draw(st.lists(st.integers(0, size - 1), unique=True)):
        target = data.draw(broker_lists(min_size=1, max_size=3))
        cluster.set_assignment(row, cluster.assignment(row).reassign_to(target))
    adding = padded([cluster.adding.get(row, ()) for row in range(size)])
    expected = is_imbalanced(
        cluster.replicas[:size],
        adding,
        cluster.leader[:size],
        cluster.isr[:size],
        cluster.has_leadership[:size],
    )
    assert cluster.imbalanced[:size].tolist() == expected.tolist()
    assert cluster.imbalanced_count == expected.sum()


def test_features_of_a_broker_have_to_include_the_clusters_levels() -> None:
    broker = RegisteredBroker(1, 1, features=(("f", 2, 4),))
    assert broker.supports({})
    assert broker.supports({"f": 2})
    assert not broker.supports({"f": 5})
    assert not broker.supports({"g": 1})


@given(st.lists(broker_lists(), min_size=1), st.data())
def test_replicas_in_marked_slots_are_those_of_a_loop(lists: list[list[int]], data: st.DataObject):
    cluster = cluster_of(t=dict(enumerate(lists)))
    every = cluster.all_rows()
    chosen = every[data.draw(st.sampled_from([slice(None), slice(None, None, 2)]))]
    # A mask may be narrower than columns that have been widened since.
    width = data.draw(st.integers(1, cluster.width))
    draw = st.lists(st.booleans(), min_size=width * len(chosen), max_size=width * len(chosen))
    mask = np.array(data.draw(draw), np.bool_).reshape(len(chosen), width)
    row, broker = cluster.replicas_at(chosen, mask)
    expected = [
        (row, int(cluster.replicas[row, slot]))
        for row, marks in zip(chosen.tolist(), mask.tolist(), strict=True)
        for slot, is_marked in enumerate(marks)
        if is_marked
    ]
    assert list(zip(row.tolist(), broker.tolist(), strict=True)) == expected
