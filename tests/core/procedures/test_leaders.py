"""Elections on request, by znode, and by the clock."""

import pytest

from klamm.core import effects, events
from klamm.core.context import Settings
from klamm.core.effects import WriteOutcome
from klamm.core.events import ControllerError, RequestedElection
from klamm.errors import FencedError, UnavailableError
from tests.support.procedure_store import PREFERRED, state_path
from tests.support.procedure_world import World, steady

T0, T1 = ("t", 0), ("t", 1)


def strayed(settings: Settings | None = None, partitions: int = 1) -> World:
    """All partitions prefer 1, and 2 leads them because 1 was away for a moment."""
    world = steady([1, 2, 3], {"t": {n: [1, 2] for n in range(partitions)}}, settings)
    world.bounce(1)
    world.settle()
    for n in range(partitions):
        world.report_isr("t", [2, 1], partition=n)
    world.forget_what_happened()
    return world


def elect(world: World, kind: RequestedElection, *partitions: tuple[str, int]) -> dict[object, int]:
    response = world.ask(events.ElectLeaders(kind, list(partitions)))
    return {tp: code for tp, (code, _, _) in response.items()}


@pytest.mark.rule("PREF-1", "PREF-6", "LEAD-10", "VER-23")
def test_a_preferred_election_hands_leadership_back() -> None:
    world = strayed()
    response = world.ask(events.ElectLeaders(RequestedElection.PREFERRED, [T0]))
    assert response == {T0: (ControllerError.NONE, None, 1)}
    assert world.state("t") == (1, 2, [2, 1])


@pytest.mark.rule("PREF-4")
def test_partitions_that_are_unknown_or_going_are_refused() -> None:
    world = strayed()
    world.silent.update((1, 2))
    world.create_topic("going", {0: [1, 2]})
    world.settle()
    world.request_deletion("going")
    world.settle()
    assert elect(world, RequestedElection.PREFERRED, ("nope", 0), ("t", 9), ("going", 0)) == {
        ("nope", 0): ControllerError.UNKNOWN_TOPIC_OR_PARTITION,
        ("t", 9): ControllerError.UNKNOWN_TOPIC_OR_PARTITION,
        ("going", 0): ControllerError.INVALID_TOPIC_EXCEPTION,
    }


@pytest.mark.rule("PREF-5", "LEAD-10")
@pytest.mark.parametrize("kind", list(RequestedElection))
def test_what_is_right_needs_no_election(kind: RequestedElection) -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    assert elect(world, kind, T0) == {T0: ControllerError.ELECTION_NOT_NEEDED}
    assert world.writes == []


@pytest.mark.rule("PREF-5")
@pytest.mark.parametrize("how", ["dead", "shutting down", "none"])
def test_an_unclean_election_is_for_leaders_that_are_not_live(how: str) -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2]}})
    world.report_isr("t", [1])
    if how == "dead":
        world.lose(1)
        world.settle()
    elif how == "shutting down":
        world.ask(events.ControlledShutdown(1, world.registrations[1].epoch))
    else:
        world.lose(1)
        world.settle()
        assert (world.state("t") or ())[0] == -1
    assert elect(world, RequestedElection.UNCLEAN, T0) == {T0: ControllerError.NONE}
    leader, _, isr = world.state("t") or (0, 0, [])
    assert (leader, isr) == (2, [2])
    assert world.nodes[state_path("t", 0)].data["leader_recovery_state"] == 1
    assert world.ctx.unclean_elections == 1


@pytest.mark.rule("PREF-5")
def test_a_leader_on_a_lost_directory_of_a_live_broker_counts_as_fine() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.cluster.offline_dirs[1] = {world.cluster.row("t", 0)}
    assert elect(world, RequestedElection.UNCLEAN, T0) == {T0: ControllerError.ELECTION_NOT_NEEDED}


@pytest.mark.rule("PREF-7", "LEAD-6", "LEAD-7")
def test_an_unclean_election_prefers_a_clean_choice() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}})
    world.report_isr("t", [1, 3])
    world.cluster.shutting_down.add(1)
    assert elect(world, RequestedElection.UNCLEAN, T0) == {T0: ControllerError.NONE}
    assert world.state("t") == (3, 1, [3])
    assert "leader_recovery_state" not in world.nodes[state_path("t", 0)].data
    assert world.ctx.unclean_elections == 0


@pytest.mark.rule("PREF-8", "LEAD-E9")
def test_a_preferred_replica_that_cannot_lead_is_an_error() -> None:
    world = strayed()
    world.report_isr("t", [2])
    response = world.ask(events.ElectLeaders(RequestedElection.PREFERRED, [T0]))
    code, message, leader = response[T0]
    assert (code, leader) == (ControllerError.PREFERRED_LEADER_NOT_AVAILABLE, -1)
    assert message == (
        "Failed to elect leader for partition t-0 "
        "under strategy PreferredReplicaPartitionLeaderElectionStrategy"
    )


@pytest.mark.rule("PREF-8", "LEAD-8")
def test_an_unclean_election_without_any_replica_is_an_error() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2]}})
    world.lose(1, 2)
    world.settle()
    assert elect(world, RequestedElection.UNCLEAN, T0) == {
        T0: ControllerError.ELIGIBLE_LEADERS_NOT_AVAILABLE
    }


@pytest.mark.rule("PREF-8")
def test_other_errors_keep_their_own_code() -> None:
    world = strayed()
    world.faults.refuse[state_path("t", 0)] = [WriteOutcome.FAILED]
    assert elect(world, RequestedElection.PREFERRED, T0) == {
        T0: ControllerError.UNKNOWN_SERVER_ERROR
    }


@pytest.mark.rule("PREF-11")
def test_all_partitions_can_be_meant_and_only_those_with_news_are_answered() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2], 1: [2, 1]}, "new": {0: [9]}})
    world.bounce(1)
    world.settle()
    world.report_isr("t", [2, 1], partition=0)
    response = world.ask(events.ElectLeaders(RequestedElection.PREFERRED, None))
    assert response == {T0: (ControllerError.NONE, None, 1)}


@pytest.mark.rule("PREF-12")
@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (RequestedElection.PREFERRED, ControllerError.PREFERRED_LEADER_NOT_AVAILABLE),
        (RequestedElection.UNCLEAN, ControllerError.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ],
)
def test_a_partition_that_never_had_a_leader_gets_a_response(
    kind: RequestedElection, error: int
) -> None:
    world = steady([1], {"t": {0: [9]}})
    assert elect(world, kind, T0) == {T0: error}


@pytest.mark.rule("PREF-3")
def test_without_the_znode_nothing_happens() -> None:
    world = strayed()
    world.queue.append(events.ZkPreferredElection())
    world.settle()
    assert len(world.performed) == 1


@pytest.mark.rule("PREF-9", "ZK-27", "PREF-1")
def test_the_znode_goes_whatever_came_of_it_and_is_looked_for_again() -> None:
    world = strayed()
    world.request_preferred_election(T0, ("nope", 3))
    world.settle()
    assert world.state("t") == (1, 2, [2, 1])
    assert PREFERRED not in world.nodes
    assert effects.Enqueue(events.ZkPreferredElection()) in world.performed


@pytest.mark.rule("PREF-9")
def test_requests_and_the_clock_leave_the_znode_alone() -> None:
    world = strayed()
    elect(world, RequestedElection.PREFERRED, T0)
    world.queue.append(events.AutoRebalance())
    world.settle()
    assert not any(isinstance(e, effects.DropPreferredRequest) for e in world.performed)


# Automatic rebalance


def rebalance(world: World) -> None:
    world.queue.append(events.AutoRebalance())
    world.settle()


@pytest.mark.rule("REBAL-2", "REBAL-3", "REBAL-4", "REBAL-5", "MET-3")
@pytest.mark.parametrize(
    ("all_partitions", "strayed_ones", "percentage", "moves"),
    [(10, 1, 10, False), (10, 2, 10, True), (9, 1, 10, True), (10, 1, 0, True), (10, 0, 0, False)],
)
def test_leaders_are_moved_when_too_many_have_strayed(
    all_partitions: int, strayed_ones: int, percentage: int, moves: bool
) -> None:
    settings = Settings(imbalance_percentage=percentage)
    world = steady([1, 2, 3], {"t": {n: [1, 2] for n in range(all_partitions)}}, settings)
    for n in range(strayed_ones):
        world.put_state("t", n, leader=2, isr=[2, 1], leader_epoch=1, version=1)
        world.notify_isr_change(("t", n))
    world.settle()
    assert world.cluster.imbalanced_count == strayed_ones
    world.forget_what_happened()
    rebalance(world)
    assert len(world.state_writes()) == (strayed_ones if moves else 0)
    assert world.cluster.imbalanced_count == (0 if moves else strayed_ones)


@pytest.mark.rule("REBAL-1", "FAILOVER-21")
def test_the_next_check_is_due_after_the_end_of_this_one() -> None:
    world = strayed(Settings(imbalance_check_interval_s=77.0))
    assert world.scheduled == [(events.AutoRebalance(), 5.0)]
    rebalance(world)
    assert world.scheduled[1:] == [(events.AutoRebalance(), 77.0)]
    assert world.state("t") == (1, 2, [2, 1])


@pytest.mark.rule("REBAL-1")
def test_a_failed_check_is_followed_by_another() -> None:
    world = strayed()

    def fail(effect: effects.Effect) -> None:
        if isinstance(effect, effects.SendRequestBatch):
            raise UnavailableError("no")

    world.faults.before = fail
    with pytest.raises(UnavailableError):
        rebalance(world)
    assert len(world.scheduled) == 2


@pytest.mark.rule("REBAL-8")
def test_a_fence_that_does_not_hold_ends_rebalancing() -> None:
    world = strayed()
    world.controller_epoch += 1
    with pytest.raises(FencedError):
        rebalance(world)
    assert len(world.scheduled) == 1


@pytest.mark.rule("REBAL-1", "VER-3")
def test_where_rebalancing_is_off_no_check_is_due() -> None:
    world = steady([1], {"t": {0: [1]}}, Settings(auto_rebalance=False))
    assert world.scheduled == []


@pytest.mark.rule("REBAL-4", "REBAL-6", "REBAL-8", "VER-22")
def test_only_what_can_go_back_is_moved() -> None:
    world = strayed(partitions=3)
    world.report_isr("t", [2], partition=0)
    world.faults.refuse[state_path("t", 1)] = [WriteOutcome.FAILED]
    rebalance(world)
    leaders = [(world.state("t", n) or (0,))[0] for n in range(3)]
    assert leaders == [2, 2, 1]
    world.lose(1)
    world.settle()
    world.forget_what_happened()
    rebalance(world)
    assert world.state_writes() == []


@pytest.mark.rule("REBAL-2", "DEL-7")
def test_topics_on_their_way_out_are_not_rebalanced() -> None:
    world = strayed()
    world.silent.update((1, 2))
    world.request_deletion("t")
    world.settle()
    world.forget_what_happened()
    rebalance(world)
    assert world.state_writes() == []


@pytest.mark.rule("REBAL-7", "VER-21", "LEAD-15")
def test_moves_take_part_with_the_first_of_their_target() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2], 1: [3, 2]}})
    world.ask(events.ApiReassignment({T0: [2, 3]}))
    rebalance(world)
    assert (world.state("t") or ())[0] == 2
