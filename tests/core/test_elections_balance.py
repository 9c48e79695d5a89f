from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.columns import NO_BROKER, padded
from klamm.core.elections import is_imbalanced, needs_preferred_election
from tests.support.strategies import broker_lists, clusters, columns_of

# The scalar twins.


def is_imbalanced_twin(replicas, adding, leader, isr, is_known):
    if not is_known:
        return False
    return replicas[0] in isr if replicas[0] in adding else leader != replicas[0]


def needs_preferred_election_twin(partitions, is_known, percentage):
    group = defaultdict(list)
    for row, partition in enumerate(partitions):
        group[partition.replicas[0]].append(row)
    chosen = set()
    for broker, rows in group.items():
        misplaced = [row for row in rows if is_known[row] and partitions[row].leader != broker]
        if Fraction(len(misplaced), len(rows)) > Fraction(percentage, 100):
            able = [row for row in misplaced if broker in partitions[row].online]
            chosen |= {row for row in able if broker in partitions[row].isr}
    return [row in chosen for row in range(len(partitions))]


@pytest.mark.rule("MET-3")
@given(clusters, st.data())
def test_the_gauge_agrees_with_its_twin(cluster, data):
    adding = [data.draw(broker_lists(max_size=3)) for _ in cluster]
    known = [data.draw(st.booleans()) for _ in cluster]
    c = columns_of(cluster)
    mask = is_imbalanced(c.replicas, padded(adding), c.leader, c.isr, np.array(known, np.bool_))
    assert mask.tolist() == [
        is_imbalanced_twin(row.replicas, added, row.leader, row.isr, is_known)
        for row, added, is_known in zip(cluster, adding, known, strict=True)
    ]


@pytest.mark.rule("REBAL-3", "REBAL-4")
@given(clusters, st.integers(0, 100), st.data())
def test_rebalancing_agrees_with_its_twin(cluster, percentage, data):
    known = [data.draw(st.booleans()) for _ in cluster]
    c = columns_of(cluster)
    mask = needs_preferred_election(
        c.replicas, c.leader, c.isr, np.array(known, np.bool_), c.online[:, 0], percentage
    )
    assert mask.tolist() == needs_preferred_election_twin(cluster, known, percentage)


def imbalanced(replicas, leader, isr, adding=(), is_known=True):
    leaders = np.array([leader], np.int32)
    mask = is_imbalanced(
        padded([replicas]), padded([adding]), leaders, padded([isr]), np.array([is_known])
    )
    return bool(mask[0])


@pytest.mark.rule("MET-3")
def test_a_partition_is_imbalanced_when_another_than_its_first_replica_leads():
    assert not imbalanced([1, 2], leader=1, isr=[1, 2])
    assert imbalanced([1, 2], leader=2, isr=[1, 2])
    assert imbalanced([1, 2], leader=NO_BROKER, isr=[2])
    assert not imbalanced([1, 2], leader=NO_BROKER, isr=[], is_known=False)


@pytest.mark.rule("MET-3")
def test_a_preferred_replica_that_is_being_added_counts_once_it_is_in_sync():
    assert not imbalanced([4, 1], leader=1, isr=[1], adding=[4])
    assert imbalanced([4, 1], leader=1, isr=[1, 4], adding=[4])
    assert imbalanced([4, 1], leader=4, isr=[1, 4], adding=[4])


def rebalanced(partitions, percentage, *, unknown=(), offline=()):
    """The rows to elect, of partitions given as (replicas, leader), everybody being in sync."""
    replicas = padded(replicas for replicas, _ in partitions)
    mask = needs_preferred_election(
        replicas,
        np.array([leader for _, leader in partitions], np.int32),
        replicas,
        ~np.isin(np.arange(len(partitions)), unknown),
        ~np.isin(replicas[:, 0], offline),
        percentage,
    )
    return np.flatnonzero(mask).tolist()


IN_PLACE, MISPLACED = ([1, 2], 1), ([1, 2], 2)


@pytest.mark.rule("REBAL-5", "REBAL-4")
@pytest.mark.parametrize(
    ("misplaced", "of", "percentage", "is_moved"),
    [(1, 10, 10, False), (2, 10, 10, True), (1, 9, 10, True), (1, 1000, 0, True), (0, 5, 0, False)],
)
def test_leaders_move_when_the_share_of_misplaced_ones_exceeds_the_limit(
    misplaced, of, percentage, is_moved
):
    partitions = [MISPLACED] * misplaced + [IN_PLACE] * (of - misplaced)
    assert rebalanced(partitions, percentage) == (list(range(misplaced)) if is_moved else [])


@pytest.mark.rule("REBAL-2", "REBAL-6")
def test_brokers_are_judged_one_by_one():
    # All of broker 2's partitions are misplaced, and one in ten of broker 1's.
    partitions = [([2, 1], 1), MISPLACED] + [IN_PLACE] * 9
    assert rebalanced(partitions, percentage=10) == [0]


@pytest.mark.rule("REBAL-3")
def test_a_missing_leader_is_misplaced_and_missing_leadership_info_only_counts_in_the_total():
    nobody = ([1, 2], NO_BROKER)
    assert rebalanced([nobody, IN_PLACE], percentage=49) == [0]
    assert rebalanced([MISPLACED, nobody], percentage=49, unknown=[1]) == [0]
    assert rebalanced([MISPLACED, nobody], percentage=50, unknown=[1]) == []


@pytest.mark.rule("REBAL-4", "REBAL-6", "VER-22")
def test_only_a_preferred_replica_that_is_able_to_lead_is_given_the_lead():
    assert rebalanced([MISPLACED, ([3, 2], 2)], percentage=10, offline=[1]) == [1]
    row = padded([[1, 2]])
    leader, always = np.array([2], np.int32), np.array([True])
    assert not needs_preferred_election(row, leader, padded([[2]]), always, always, 10).any()


@pytest.mark.rule("REBAL-7", "VER-21")
def test_a_partition_that_is_being_reassigned_is_measured_by_the_first_replica_of_its_target():
    moving_from_1_to_4 = ([4, 1], 1)
    assert rebalanced([moving_from_1_to_4], percentage=10) == [0]
