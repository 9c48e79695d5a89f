"""In-sync replicas: changes that race with elections, and lists that no one should have written."""

import pytest

from klamm.core import effects, events
from klamm.core.context import Settings
from klamm.core.effects import WriteOutcome
from klamm.core.events import ControllerError
from klamm.core.invariants import violations
from klamm.core.procedures.dispatch import handle
from tests.support.procedure_store import state_path
from tests.support.procedure_world import World, steady

T0 = ("t", 0)
STATE = state_path("t", 0)


def leader_writes(world: World, isr: list[int]) -> None:
    """The leader changes its state itself, as those of older versions do."""
    world.set(STATE, world.nodes[STATE].data | {"isr": isr})


# Races with a change of the leader


@pytest.mark.rule("FENCE-7", "PSM-20", "LEAD-1")
def test_an_isr_that_shrinks_under_an_election_is_not_undone_by_it() -> None:
    """KAFKA-2729 is the kind: a version in a cache that is not the one in ZooKeeper."""
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}})
    world.lose(1)

    def shrink_first(effect: effects.Effect) -> None:
        if isinstance(effect, effects.WriteStates):
            world.faults.before = lambda _: None
            leader_writes(world, [1, 3])

    world.faults.before = shrink_first
    world.settle()
    # 2 was not in sync any more when the decision was taken for good.
    assert world.state("t") == (3, 1, [3])


@pytest.mark.rule("ISR-13", "ISR-17")
def test_the_proposal_of_a_leader_that_was_replaced_meanwhile_is_fenced() -> None:
    """KAFKA-12686 and KAFKA-14154 are about what becomes of such a response."""
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}})
    version = world.version("t")
    world.bounce(1)
    world.settle()
    assert world.state("t") == (2, 1, [2, 3])
    late = world.report_isr("t", [1, 2], broker=1, leader_epoch=0, partition_epoch=version)
    assert late.error == ControllerError.FENCED_LEADER_EPOCH
    assert world.state("t") == (2, 1, [2, 3])
    assert world.disagreements() == []


@pytest.mark.rule("ISR-8", "ISR-16")
def test_a_follower_that_dies_before_it_is_added_does_not_come_back_into_the_isr() -> None:
    """KAFKA-13916: an ISR must not get a member that has lost what it had."""
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}})
    world.report_isr("t", [1, 2])
    # The leader has seen 3 catch up; 3 dies before the proposal is handled.
    world.lose(3)
    proposal = world.report_isr("t", [1, 2, 3])
    assert proposal.error == ControllerError.OPERATION_NOT_ATTEMPTED
    world.settle()
    assert (world.state("t") or (0, 0, []))[2] == [1, 2]


@pytest.mark.rule("ISR-14")
@pytest.mark.parametrize("behind", [0, 1])
def test_a_leader_that_missed_the_response_may_ask_again(behind: int) -> None:
    """KAFKA-14144: with the version from before its success it was refused for good."""
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}})
    first = world.report_isr("t", [1, 2])
    again = world.report_isr("t", [1, 2], partition_epoch=first.partition_epoch - behind)
    assert (again.error, again.partition_epoch) == (ControllerError.NONE, first.partition_epoch)
    assert len(world.state_writes()) == 1


@pytest.mark.rule("ISR-13")
def test_a_leader_that_is_ahead_of_a_stale_controller_is_told_to_look_for_another() -> None:
    """KAFKA-14154: fenced by the stale one, it gave up leading for good."""
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}})
    for ahead in ({"leader_epoch": 1}, {"partition_epoch": 1}):
        assert world.report_isr("t", [1, 2], **ahead).error == ControllerError.NOT_CONTROLLER
    assert world.writes == []


# Lists that no one should have written


def settle_with_an_empty_isr(world: World) -> None:
    """Handle events until there are none; that the ISR is empty is not their doing."""
    while world.queue:
        world.run(handle(world.ctx, world.queue.popleft()))
        assert [what for what in violations(world.cluster) if "has an empty ISR" not in what] == []


@pytest.mark.rule("LEAD-9", "RSM-23", "PSM-18")
def test_an_empty_isr_gives_no_leader_and_stops_no_other_partition() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2], 1: [1, 2]}})
    world.put_state("t", 0, leader=-1, isr=[], leader_epoch=4, version=7)
    world.lose(1)
    world.fail_over()
    settle_with_an_empty_isr(world)
    leader, _, isr = world.state("t") or (0, 0, [1])
    assert (leader, isr) == (-1, [])
    assert (world.state("t", 1) or (0,))[0] == 2
    # Nor does it stop the broker that might lead, nor the end of the topic.
    world.register(1)
    settle_with_an_empty_isr(world)
    world.request_deletion("t")
    settle_with_an_empty_isr(world)
    assert "t" not in world.cluster.topics


@pytest.mark.rule("LEAD-9", "LEAD-E6", "LEAD-3")
def test_an_empty_isr_is_ended_by_an_unclean_election_only() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}}, Settings(unclean_default=True))
    world.put_state("t", 0, leader=-1, isr=[], leader_epoch=4, version=7)
    world.fail_over()
    world.settle()
    assert world.state("t") == (1, 5, [1])
    assert world.nodes[STATE].data["leader_recovery_state"] == 1


@pytest.mark.rule("RSM-23", "ISR-21")
def test_no_leader_can_empty_its_isr_and_no_failure_does() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.report_isr("t", [])
    assert (world.state("t") or (0, 0, []))[2] == [1, 2]
    world.lose(1, 2)
    world.settle()
    assert (world.state("t") or (0, 0, []))[2] != []


@pytest.mark.rule("LEAD-1", "LEAD-3")
def test_an_in_sync_broker_that_holds_no_replica_is_nobodys_leader() -> None:
    """KAFKA-1833, KAFKA-6638, KAFKA-9672: members of an ISR that are not in the assignment."""
    world = steady([1, 2, 3], {"t": {0: [1, 2]}})
    leader_writes(world, [3, 1, 2])
    world.notify_isr_change(T0)
    world.settle()
    world.lose(1)
    world.settle()
    leader, _, isr = world.state("t") or (0, 0, [])
    assert (leader, isr) == (2, [2])


# Notifications


@pytest.mark.rule("FAILOVER-4", "FAILOVER-11", "ISR-7")
def test_notifications_that_nobody_read_are_not_needed_by_a_successor() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}})
    leader_writes(world, [1])
    for _ in range(50):
        world.notify_isr_change(T0)
        world.notify_log_dir(2)
    world.forget_what_happened()
    world.fail_over()
    world.settle()
    assert [path for path in world.nodes if "notification/" in path] == []
    assert world.views[2].metadata[T0]["isr"] == [1]
    assert world.disagreements() == []


@pytest.mark.rule("ISR-6", "PSM-16")
def test_an_election_that_loses_every_race_but_the_last_still_ends() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}})
    world.faults.refuse[STATE] = [WriteOutcome.BAD_VERSION] * 20
    world.lose(1)
    world.settle()
    assert world.state("t") == (2, 1, [2, 3])


@pytest.mark.rule("LOGDIR-6", "FAILOVER-25")
def test_a_lost_directory_is_asked_about_again_by_a_successor() -> None:
    """What a controller knew of lost directories goes with it."""
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.storage_errors.add((1, T0))
    world.notify_log_dir(1)
    world.settle()
    assert (world.state("t") or (0,))[0] == 2
    world.fail_over()
    world.settle()
    row = world.cluster.row("t", 0)
    assert world.cluster.offline_dirs == {1: {row}}
    response = world.ask(events.ElectLeaders(events.RequestedElection.PREFERRED, [T0]))
    assert response[T0][0] == ControllerError.PREFERRED_LEADER_NOT_AVAILABLE
