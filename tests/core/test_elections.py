from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.columns import NO_BROKER, padded, unpad
from klamm.core.elections import (
    CLEAN,
    NO_CANDIDATE,
    RECOVERED,
    RECOVERING,
    UNCLEAN,
    Elections,
    elect_controlled_shutdown,
    elect_offline,
    elect_preferred,
    elect_reassign,
    initialise,
    shrink_isr,
)
from tests.support.strategies import BROKERS, broker_ids, broker_lists, clusters, columns_of


@dataclass(frozen=True)
class Result:
    """One row of `Elections`, in lists."""

    leader: int
    isr: list[int]
    outcome: int
    recovery: int
    recipients: list[int]


def results(elections: Elections, candidates) -> list[Result]:
    return [
        Result(
            int(elections.leader[row]),
            unpad(elections.isr[row]),
            int(elections.outcome[row]),
            int(elections.recovery[row]),
            candidates[row][elections.recipients[row]].tolist(),
        )
        for row in range(len(candidates))
    ]


def failure(isr, recovery) -> Result:
    return Result(NO_BROKER, isr, NO_CANDIDATE, recovery, [])


# The scalar twins: what each kernel does, said for one partition.


def initialise_twin(replicas, online):
    live = [replica for replica in replicas if replica in online]
    if not live:
        return failure([], RECOVERED)
    return Result(live[0], live, CLEAN, RECOVERED, live)


def elect_offline_twin(replicas, isr, online, unclean, recovery, marks_recovering=True):
    live = [replica for replica in replicas if replica in online]
    for replica in live:
        if replica in isr:
            live_isr = [member for member in isr if member in live]
            return Result(replica, live_isr, CLEAN, recovery, live)
    if unclean and live:
        recovery = RECOVERING if marks_recovering else recovery
        return Result(live[0], live[:1], UNCLEAN, recovery, live)
    return failure(isr, recovery)


def elect_preferred_twin(replicas, isr, online, recovery):
    if replicas[0] in online and replicas[0] in isr:
        return Result(replicas[0], isr, CLEAN, recovery, replicas)
    return failure(isr, recovery)


def elect_reassign_twin(target, isr, online, recovery):
    for replica in target:
        if replica in online and replica in isr:
            return Result(replica, isr, CLEAN, recovery, target)
    return failure(isr, recovery)


def elect_controlled_shutdown_twin(replicas, isr, online, shutting_down, recovery):
    for replica in replicas:
        if replica in online and replica in isr and replica not in shutting_down:
            staying = [member for member in isr if member not in shutting_down]
            recipients = [replica for replica in replicas if replica in online]
            return Result(replica, staying, CLEAN, recovery, recipients)
    return failure(isr, recovery)


def shrink_isr_twin(leader, isr, broker):
    if broker not in isr:
        return leader, isr, False
    remaining = [member for member in isr if member != broker] or isr
    return NO_BROKER if leader == broker else leader, remaining, True


# Each kernel agrees with its twin.


@given(clusters)
def test_initialising_agrees_with_its_twin(cluster):
    columns = columns_of(cluster)
    got = results(initialise(columns.replicas, columns.online), columns.replicas)
    assert got == [initialise_twin(row.replicas, row.online) for row in cluster]


@given(clusters, st.booleans())
def test_offline_election_agrees_with_its_twin(cluster, marks):
    c = columns_of(cluster)
    elections = elect_offline(
        c.replicas, c.isr, c.online, c.unclean, c.recovery, marks_recovering=marks
    )
    assert results(elections, c.replicas) == [
        elect_offline_twin(row.replicas, row.isr, row.online, row.unclean, row.recovery, marks)
        for row in cluster
    ]


@given(clusters)
def test_preferred_election_agrees_with_its_twin(cluster):
    c = columns_of(cluster)
    elections = elect_preferred(c.replicas, c.isr, c.online, c.recovery)
    assert results(elections, c.replicas) == [
        elect_preferred_twin(row.replicas, row.isr, row.online, row.recovery) for row in cluster
    ]


@given(clusters)
def test_reassignment_election_agrees_with_its_twin(cluster):
    c = columns_of(cluster)
    elections = elect_reassign(c.replicas, c.isr, c.online, c.recovery)
    assert results(elections, c.replicas) == [
        elect_reassign_twin(row.replicas, row.isr, row.online, row.recovery) for row in cluster
    ]


@given(clusters, broker_lists())
def test_controlled_shutdown_election_agrees_with_its_twin(cluster, shutting_down):
    c = columns_of(cluster)
    elections = elect_controlled_shutdown(c.replicas, c.isr, c.online, shutting_down, c.recovery)
    assert results(elections, c.replicas) == [
        elect_controlled_shutdown_twin(
            row.replicas, row.isr, row.online, shutting_down, row.recovery
        )
        for row in cluster
    ]


@given(clusters, broker_ids)
def test_leaving_an_isr_agrees_with_its_twin(cluster, broker):
    c = columns_of(cluster)
    removed = shrink_isr(c.leader, c.isr, broker)
    isr = [unpad(row) for row in removed.isr]
    got = list(zip(removed.leader.tolist(), isr, removed.was_member.tolist(), strict=True))
    assert got == [shrink_isr_twin(row.leader, row.isr, broker) for row in cluster]


@given(clusters, broker_lists())
def test_results_are_columns_of_the_same_types_as_the_state(cluster, shutting_down):
    c = columns_of(cluster)
    for elections in (
        initialise(c.replicas, c.online),
        elect_offline(c.replicas, c.isr, c.online, c.unclean, c.recovery),
        elect_preferred(c.replicas, c.isr, c.online, c.recovery),
        elect_reassign(c.replicas, c.isr, c.online, c.recovery),
        elect_controlled_shutdown(c.replicas, c.isr, c.online, shutting_down, c.recovery),
    ):
        assert elections.leader.dtype == elections.isr.dtype == np.int32
        assert elections.outcome.dtype == elections.recovery.dtype == np.int8
        assert elections.recipients.shape == c.replicas.shape
        assert elections.won.tolist() == (elections.leader != NO_BROKER).tolist()


# The kernels for one partition, in lists, for the cases that the specification spells out.

RECOVERY_STATES = (RECOVERED, RECOVERING)


def online_slots(replicas, online):
    return np.array([[replica in online for replica in replicas]])


def first_leader(replicas, online):
    rows = padded([replicas])
    return results(initialise(rows, online_slots(replicas, online)), rows)[0]


def offline(replicas, isr, online, *, unclean=False, recovery=RECOVERED, marks_recovering=True):
    rows = padded([replicas])
    elections = elect_offline(
        rows,
        padded([isr]),
        online_slots(replicas, online),
        np.array([unclean]),
        np.array([recovery], np.int8),
        marks_recovering=marks_recovering,
    )
    return results(elections, rows)[0]


def preferred(replicas, isr, online, recovery=RECOVERED):
    rows = padded([replicas])
    column = np.array([recovery], np.int8)
    elections = elect_preferred(rows, padded([isr]), online_slots(replicas, online), column)
    return results(elections, rows)[0]


def reassign(target, isr, online, recovery=RECOVERED):
    rows = padded([target])
    column = np.array([recovery], np.int8)
    elections = elect_reassign(rows, padded([isr]), online_slots(target, online), column)
    return results(elections, rows)[0]


def shutdown(replicas, isr, online, shutting_down, recovery=RECOVERED):
    rows = padded([replicas])
    elections = elect_controlled_shutdown(
        rows,
        padded([isr]),
        online_slots(replicas, online),
        shutting_down,
        np.array([recovery], np.int8),
    )
    return results(elections, rows)[0]


def leave_isr(leader, isr, broker):
    removed = shrink_isr(np.array([leader], np.int32), padded([isr]), broker)
    return int(removed.leader[0]), unpad(removed.isr[0]), bool(removed.was_member[0])


@pytest.mark.rule("PSM-10")
def test_a_new_partition_without_an_online_replica_gets_no_leader():
    assert first_leader([1, 2, 3], online={4}) == failure([], RECOVERED)


@pytest.mark.rule("PSM-11")
def test_a_new_partition_is_led_by_its_first_online_replica_with_all_online_ones_in_sync():
    assert first_leader([3, 1, 2], online={1, 2}) == Result(1, [1, 2], CLEAN, RECOVERED, [1, 2])


A = [1, 2, 3]


@pytest.mark.rule("LEAD-E1", "LEAD-1", "VER-34", "VER-26")
@pytest.mark.parametrize("r", RECOVERY_STATES)
def test_the_first_in_assignment_order_wins_and_the_isr_keeps_its_own_order(r):
    assert offline(A, [3, 2, 1], {2, 3}, recovery=r) == Result(2, [3, 2], CLEAN, r, [2, 3])


@pytest.mark.rule("LEAD-E2", "RSM-15", "RSM-23")
def test_the_last_in_sync_replica_stops_leading_and_stays_in_the_isr():
    assert offline(A, [1], {2, 3}) == failure([1], RECOVERED)
    assert leave_isr(1, [1], 1) == (NO_BROKER, [1], True)


@pytest.mark.rule("LEAD-E3")
def test_an_unclean_winner_is_alone_in_its_isr_and_recovers():
    result = offline(A, [1], {2, 3}, unclean=True)
    assert result == Result(2, [2], UNCLEAN, RECOVERING, [2, 3])


@pytest.mark.rule("LEAD-E4")
@pytest.mark.parametrize("r", RECOVERY_STATES)
def test_the_last_in_sync_replica_leads_again_when_it_is_back(r):
    assert offline(A, [1], {1, 2, 3}, recovery=r) == Result(1, [1], CLEAN, r, [1, 2, 3])


@pytest.mark.rule("LEAD-E5")
def test_a_partition_whose_only_in_sync_replica_is_shutting_down_finds_no_leader():
    assert offline(A, [2], online={1, 3}) == failure([2], RECOVERED)


@pytest.mark.rule("LEAD-E6", "LEAD-9")
def test_an_empty_isr_has_no_online_member():
    assert offline(A, [], {2}) == failure([], RECOVERED)
    assert offline(A, [], {2}, unclean=True) == Result(2, [2], UNCLEAN, RECOVERING, [2])


@pytest.mark.rule("LEAD-E7")
def test_a_recovering_partition_goes_on_recovering_under_a_clean_leader():
    result = offline(A, [2, 3], {1, 3}, recovery=RECOVERING)
    assert result == Result(3, [3], CLEAN, RECOVERING, [1, 3])


@pytest.mark.rule("LEAD-E8")
def test_the_preferred_replica_takes_over_and_everybody_hears_of_it():
    assert preferred(A, [2, 3, 1], {1, 2, 3}) == Result(1, [2, 3, 1], CLEAN, RECOVERED, A)


@pytest.mark.rule("LEAD-E9", "LEAD-10")
def test_a_preferred_replica_that_is_not_in_sync_does_not_take_over():
    assert preferred(A, [2, 3], {1, 2, 3}) == failure([2, 3], RECOVERED)


@pytest.mark.rule("LEAD-E10")
def test_a_broker_that_shuts_down_hands_over_and_leaves_the_isr():
    assert shutdown(A, A, {1, 2, 3}, [1]) == Result(2, [2, 3], CLEAN, RECOVERED, A)


@pytest.mark.rule("LEAD-E11", "LEAD-12", "VER-36")
def test_every_broker_that_shuts_down_leaves_the_isr():
    assert shutdown(A, A, {1, 2, 3}, [1, 2]) == Result(3, [3], CLEAN, RECOVERED, A)


@pytest.mark.rule("LEAD-E12")
def test_the_only_in_sync_replica_cannot_hand_over():
    assert shutdown(A, [1], {1, 2, 3}, [1]) == failure([1], RECOVERED)


@pytest.mark.rule("LEAD-E13", "LEAD-13")
def test_a_controlled_shutdown_leaves_dead_brokers_in_the_isr():
    assert shutdown(A, A, {1, 3}, [1]) == Result(3, [2, 3], CLEAN, RECOVERED, [1, 3])


@pytest.mark.rule("LEAD-E14")
def test_a_reassignment_takes_the_first_target_that_is_online_and_in_sync():
    result = reassign([4, 5], [1, 4, 5], {1, 5})
    assert result == Result(5, [1, 4, 5], CLEAN, RECOVERED, [4, 5])


@pytest.mark.rule("LEAD-E15", "VER-44")
def test_a_reassignment_takes_no_target_that_is_not_in_sync():
    assert reassign([4, 5], [1, 2], {1, 2, 4, 5}) == failure([1, 2], RECOVERED)


@pytest.mark.rule("LEAD-3")
def test_a_row_that_may_be_unclean_is_clean_while_it_can_be():
    assert offline(A, [3], {1, 3}, unclean=True) == Result(3, [3], CLEAN, RECOVERED, [1, 3])


@pytest.mark.rule("LEAD-6")
def test_a_protocol_without_recovery_states_keeps_the_one_that_was_stored():
    result = offline(A, [1], {2}, unclean=True, marks_recovering=False)
    assert result == Result(2, [2], UNCLEAN, RECOVERED, [2])


@pytest.mark.rule("LEAD-6")
@pytest.mark.parametrize("r", RECOVERY_STATES)
def test_a_leader_from_the_isr_never_changes_the_recovery_state(r):
    everyone = {1, 2, 3}
    for result in (
        offline(A, A, everyone, unclean=True, recovery=r),
        preferred(A, A, everyone, r),
        reassign(A, A, everyone, r),
        shutdown(A, A, everyone, [1], r),
    ):
        assert (result.outcome, result.recovery) == (CLEAN, r)


@pytest.mark.rule("LEAD-8")
def test_without_an_online_replica_an_unclean_election_fails_and_changes_nothing():
    assert offline(A, [1], set(), unclean=True) == failure([1], RECOVERED)


@pytest.mark.rule("LEAD-10")
def test_no_other_replica_stands_in_for_a_preferred_one_that_is_offline():
    assert preferred(A, A, {2, 3}) == failure(A, RECOVERED)


@pytest.mark.rule("LEAD-11")
def test_a_broker_that_is_shutting_down_is_not_online_and_so_drops_out_of_the_isr():
    assert offline(A, A, online={2, 3}) == Result(2, [2, 3], CLEAN, RECOVERED, [2, 3])
    assert reassign(A, A, online={2, 3}).leader == 2
    assert preferred(A, A, online={2, 3}) == failure(A, RECOVERED)


@pytest.mark.rule("LEAD-14")
@given(clusters)
def test_preferred_and_reassignment_elections_never_change_an_isr(cluster):
    c = columns_of(cluster)
    for elect in (elect_preferred, elect_reassign):
        assert (elect(c.replicas, c.isr, c.online, c.recovery).isr == c.isr).all()


@pytest.mark.rule("LEAD-15")
def test_an_adding_replica_that_is_in_sync_may_lead():
    union = [4, 1, 2]  # 4 is replacing 1 or 2
    assert offline(union, [1, 2, 4], {2, 4}).leader == 4
    assert preferred(union, [1, 2, 4], {1, 2, 4}).leader == 4


def test_an_isr_member_outside_the_assignment_does_not_outlive_an_election():
    assert offline([1, 2], [9, 1, 2], {2, 9}) == Result(2, [2], CLEAN, RECOVERED, [2])


@pytest.mark.rule("RSM-14")
def test_a_broker_outside_the_isr_has_nothing_to_leave_not_even_the_lead():
    assert leave_isr(1, [2, 3], 1) == (1, [2, 3], False)


@pytest.mark.rule("RSM-15")
def test_a_follower_leaves_the_isr_and_the_leader_goes_on():
    assert leave_isr(1, [3, 1, 2], 3) == (1, [1, 2], True)


@pytest.mark.rule("RSM-15")
def test_a_leader_that_leaves_the_isr_leaves_the_lead():
    assert leave_isr(3, [3, 1, 2], 3) == (NO_BROKER, [1, 2], True)


@pytest.mark.rule("RSM-23")
@given(clusters, broker_ids)
def test_no_isr_that_had_members_is_ever_emptied(cluster, broker):
    c = columns_of(cluster)
    was_empty = np.array([not row.isr for row in cluster], np.bool_)
    online_or_leaving = np.ones(c.replicas.shape, np.bool_)
    for isr in (
        shrink_isr(c.leader, c.isr, broker).isr,
        elect_offline(c.replicas, c.isr, c.online, c.unclean, c.recovery).isr,
        elect_controlled_shutdown(
            c.replicas, c.isr, online_or_leaving, BROKERS[:4], c.recovery
        ).isr,
    ):
        assert (was_empty | (isr != NO_BROKER).any(axis=1)).all()
