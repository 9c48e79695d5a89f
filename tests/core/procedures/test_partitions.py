"""The partition state machine, on a small world."""

import numpy as np
import pytest

from klamm.core import effects, events
from klamm.core.columns import I32
from klamm.core.context import Settings
from klamm.core.effects import WriteOutcome
from klamm.core.procedures.partitions import (
    ElectionResults,
    Failure,
    Strategy,
    change_partition_states,
    trigger_elections,
)
from klamm.core.transitions import PartitionState
from klamm.errors import FencedError, UnavailableError
from tests.support.procedure_store import Node, state_path
from tests.support.procedure_world import World, steady

P = PartitionState


def rows(world: World, *partitions: tuple[str, int]) -> I32:
    return np.array([world.cluster.row(*tp) for tp in partitions], np.int32)


def elect(world: World, strategy: Strategy, *partitions: tuple[str, int]) -> ElectionResults:
    return world.run(
        change_partition_states(world.ctx, rows(world, *partitions), P.ONLINE, strategy)
    )


def states(world: World, topic: str = "t") -> list[PartitionState]:
    return [P(state) for state in world.cluster.state[world.cluster.topics[topic].rows].tolist()]


@pytest.mark.rule("PSM-1", "PSM-2", "PSM-3", "FAILOVER-17")
def test_the_machine_starts_from_leadership_and_live_brokers() -> None:
    world = World([1, 2])
    world.create_topic("t", {0: [1, 2], 1: [1, 2], 2: [3], 3: [3, 1]})
    world.put_state("t", 0, leader=1, isr=[1, 2])
    world.put_state("t", 2, leader=3, isr=[3])
    world.put_state("t", 3, leader=3, isr=[3, 1])
    world.fail_over()
    # Partition 1 was never seen, 2 waits for its broker, 3 finds another leader.
    assert states(world) == [P.ONLINE, P.ONLINE, P.OFFLINE, P.ONLINE]
    assert world.state("t", 1) == (1, 0, [1, 2])
    assert world.state("t", 3) == (1, 2, [1])


@pytest.mark.rule("PSM-4", "DEL-7")
def test_no_leader_is_elected_for_topics_on_their_way_out() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2]}, "u": {0: [1, 2]}})
    world.cluster.set_state(rows(world, ("t", 0), ("u", 0)), P.OFFLINE)
    world.cluster.queue_for_deletion(["t"])
    results = world.run(trigger_elections(world.ctx))
    assert results.elected.tolist() == rows(world, ("u", 0)).tolist()
    assert states(world, "t") == [P.OFFLINE]


@pytest.mark.rule("PSM-5")
def test_moving_nothing_does_nothing() -> None:
    world = steady([1], {"t": {0: [1]}})
    world.run(change_partition_states(world.ctx, rows(world), P.ONLINE, Strategy.OFFLINE))
    assert world.performed == []


@pytest.mark.rule("PSM-5", "CHAN-12", "CHAN-13")
def test_one_call_is_announced_once() -> None:
    world = steady([1, 2, 3], {"t": {n: [1, 2, 3] for n in range(5)}})
    world.lose(1)
    world.settle()
    announced = [e for e in world.performed if isinstance(e, effects.SendRequestBatch)]
    assert len(announced) == 2  # the elections, then the replicas
    assert len(world.sent("LeaderAndIsr", to=2)) == 2


@pytest.mark.rule("PSM-6")
def test_an_illegal_move_is_named_and_left_alone() -> None:
    world = steady([1], {"t": {0: [1], 1: [1]}})
    world.cluster.set_state(rows(world, ("t", 0)), P.OFFLINE)
    moved = rows(world, ("t", 0), ("t", 1))
    world.run(change_partition_states(world.ctx, moved, P.NON_EXISTENT))
    assert states(world) == [P.NON_EXISTENT, P.ONLINE]
    assert len(world.errors()) == 1
    assert "t-1" in world.errors()[0]


@pytest.mark.rule("PSM-7", "PSM-9")
def test_a_new_partition_is_initialised_whatever_the_strategy() -> None:
    world = World([1, 2])
    world.fail_over()
    world.faults.refuse[state_path("u", 0)] = [WriteOutcome.FAILED]
    world.create_topic("u", {0: [2, 1]})
    world.settle()
    assert states(world, "u") == [P.NEW]
    results = elect(world, Strategy.PREFERRED, ("u", 0))
    assert world.state("u") == (2, 0, [2, 1])
    # Only elections are reported.
    assert len(results.row) == 0


@pytest.mark.rule("PSM-8")
def test_an_election_needs_a_strategy() -> None:
    world = steady([1], {"t": {0: [1]}})
    with pytest.raises(ValueError, match="strategy"):
        world.run(change_partition_states(world.ctx, rows(world, ("t", 0)), P.ONLINE))


@pytest.mark.rule("PSM-10", "TOPIC-10", "ADM-11")
def test_without_a_live_replica_nothing_is_written() -> None:
    world = steady([1], {"t": {0: [7, 8]}})
    assert world.state("t") is None
    assert states(world) == [P.NEW]
    assert any("t-0" in text for text in world.errors())


@pytest.mark.rule("PSM-11", "PSM-12", "PSM-14", "LEAD-1")
def test_the_first_live_replica_leads_and_all_live_ones_are_in_sync() -> None:
    world = World([2, 3, 4])
    world.fail_over(epoch=7)
    world.create_topic("t", {0: [9, 3, 2]})
    world.settle()
    assert world.state("t") == (3, 0, [3, 2])
    node = world.nodes[state_path("t", 0)]
    assert (node.version, node.data["controller_epoch"]) == (0, 7)
    assert "leader_recovery_state" not in node.data
    created = [write.path for write in world.writes if write.op == "create"][1:]
    stem = "/brokers/topics/t/partitions"
    assert created == [stem, f"{stem}/0", f"{stem}/0/state"]
    assert {r.to for r in world.sent("LeaderAndIsr")} == {2, 3}
    assert all(r.partitions["t", 0]["is_new"] for r in world.sent("LeaderAndIsr"))
    last = world.sent("UpdateMetadata")[-1].partitions["t", 0]
    assert (last["offline"], last["partition_epoch"]) == ([9], 0)


@pytest.mark.rule("PSM-13")
def test_a_state_that_exists_already_keeps_the_partition_new() -> None:
    world = World([1])
    world.fail_over()
    world.create_topic("t", {0: [1], 1: [1]})
    world.put_state("t", 0, leader=9, isr=[9], leader_epoch=4)
    world.settle()
    assert states(world) == [P.NEW, P.ONLINE]
    assert world.state("t", 0) == (9, 4, [9])
    assert not any(("t", 0) in r.partitions for r in world.requests)


@pytest.mark.rule("PSM-15", "PSM-22")
def test_an_error_while_creating_leaves_all_of_the_call_new() -> None:
    world = World([1])
    world.fail_over()
    world.create_topic("t", {0: [1], 1: [1]})

    def fail(effect: effects.Effect) -> None:
        if isinstance(effect, effects.CreateStates):
            raise UnavailableError("no answer")

    world.faults.before = fail
    world.settle()
    assert states(world) == [P.NEW, P.NEW]
    assert any("no answer" in text for text in world.errors())


@pytest.mark.rule("PSM-16", "PSM-20", "FENCE-7")
def test_a_state_that_moved_on_is_read_and_decided_again() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}})
    world.lose(1)
    # A leader of the old kind has put 2 out of the ISR, and the cache has not heard of it.
    world.put_state("t", 0, leader=1, isr=[1, 3], version=4, controller_epoch=5)
    world.settle()
    assert world.state("t") == (3, 1, [3])
    assert world.version("t") == 5


@pytest.mark.rule("PSM-16", "LEAD-3")
def test_nobody_stays_leaderless_on_the_word_of_the_cache() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2, 3]}})
    world.report_isr("t", [1])
    world.put_state("t", 0, leader=1, isr=[1, 3], version=9, controller_epoch=5)
    world.lose(1)
    world.settle()
    assert world.state("t") == (3, 1, [3])


@pytest.mark.rule("PSM-17", "PSM-18", "PSM-21")
@pytest.mark.parametrize("stored", [None, "not a state"])
def test_without_a_readable_state_the_election_fails(stored: object) -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.cluster.has_leadership[:] = False
    if stored is None:
        del world.nodes[state_path("t", 0)]
    else:
        world.nodes[state_path("t", 0)] = Node(stored)
    results = elect(world, Strategy.OFFLINE, ("t", 0))
    assert results.failure.tolist() == [Failure.STATE_CHANGE_FAILED]
    assert states(world) == [P.ONLINE]
    assert world.state_writes() == []


@pytest.mark.rule("FENCE-8", "PSM-17")
def test_what_a_newer_controller_decided_is_not_touched() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.put_state("t", 0, leader=1, isr=[1, 2], version=3, controller_epoch=99)
    results = elect(world, Strategy.OFFLINE, ("t", 0))
    assert results.failure.tolist() == [Failure.STATE_CHANGE_FAILED]
    assert world.version("t") == 3


@pytest.mark.rule("PSM-19", "PSM-23")
def test_an_election_raises_the_epoch_by_one_even_if_nothing_else_changes() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    results = elect(world, Strategy.OFFLINE, ("t", 0))
    assert results.elected.tolist() == rows(world, ("t", 0)).tolist()
    assert world.state("t") == (1, 1, [1, 2])
    assert world.version("t") == 1
    entry = world.sent("LeaderAndIsr")[0].partitions["t", 0]
    assert (entry["leader_epoch"], entry["partition_epoch"], entry["is_new"]) == (1, 1, False)


@pytest.mark.rule("PSM-20", "PSM-21")
def test_a_refused_write_fails_that_partition_alone() -> None:
    world = steady([1, 2], {"t": {0: [1, 2], 1: [1, 2]}})
    world.faults.refuse[state_path("t", 0)] = [WriteOutcome.FAILED]
    results = elect(world, Strategy.OFFLINE, ("t", 0), ("t", 1))
    assert results.failure.tolist() == [Failure.STORE, Failure.NONE]
    assert world.state("t", 0) == (1, 0, [1, 2])
    assert world.state("t", 1) == (1, 1, [1, 2])


@pytest.mark.rule("PSM-20")
def test_a_version_may_move_on_again_and_again() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.faults.refuse[state_path("t", 0)] = [WriteOutcome.BAD_VERSION] * 5
    results = elect(world, Strategy.OFFLINE, ("t", 0))
    assert results.failure.tolist() == [Failure.NONE]


@pytest.mark.rule("PSM-22", "FENCE-4")
def test_a_fence_that_does_not_hold_ends_the_event() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}})
    world.lose(1)
    world.controller_epoch += 1
    with pytest.raises(FencedError):
        world.settle()
    assert world.state("t") == (1, 0, [1, 2])
    assert world.requests == []


@pytest.mark.rule("LEAD-4", "LEAD-8", "CONF-2", "VER-1")
@pytest.mark.parametrize(
    ("default", "override", "leader"),
    [(False, None, -1), (False, "true", 2), (True, None, 2), (True, "false", -1)],
)
def test_the_topic_decides_about_unclean_elections_and_else_the_broker(
    default: bool, override: str | None, leader: int
) -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}}, Settings(unclean_default=default))
    if override is not None:
        config = {"unclean.leader.election.enable": override}
        world.nodes["/config/topics/t"] = Node({"config": config})
    world.report_isr("t", [1])
    world.lose(1)
    world.settle()
    assert world.state("t") == (leader, 1, [2] if leader == 2 else [1])
    assert world.ctx.unclean_elections == (1 if leader == 2 else 0)


@pytest.mark.rule("LEAD-5")
def test_an_unreadable_configuration_fails_the_election() -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}}, Settings(unclean_default=True))
    world.nodes["/config/topics/t"] = Node("garbage")
    world.report_isr("t", [1])
    world.lose(1)
    world.settle()
    assert world.state("t") == (-1, 1, [1])
    assert world.ctx.unclean_elections == 0


@pytest.mark.rule("LEAD-6", "LEAD-7", "VER-18")
def test_older_protocols_have_no_recovery_state() -> None:
    settings = Settings(unclean_default=True, recovery_state=False)
    world = steady([1, 2], {"t": {0: [1, 2]}}, settings)
    world.report_isr("t", [1])
    world.lose(1)
    world.settle()
    assert world.state("t") == (2, 1, [2])
    assert "leader_recovery_state" not in world.nodes[state_path("t", 0)].data


@pytest.mark.rule("LEAD-8")
def test_an_unclean_election_needs_a_live_replica() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2]}}, Settings(unclean_default=True))
    world.lose(1, 2)
    world.settle()
    leader, _, isr = world.state("t") or (0, 0, [])
    assert (leader, len(isr)) == (-1, 1)
    assert world.ctx.unclean_elections == 0


@pytest.mark.rule("LEAD-16", "LEAD-17", "VER-25")
@pytest.mark.parametrize("where", ["broker", "topic"])
def test_switching_unclean_election_on_takes_effect_at_once(where: str) -> None:
    world = steady([1, 2], {"t": {0: [1, 2]}, "u": {0: [1, 2]}})
    world.report_isr("t", [1])
    world.report_isr("u", [1])
    world.lose(1)
    world.settle()
    if where == "broker":
        world.settings.unclean_default = True
        world.queue.append(events.UncleanElectionEnabled())
    else:
        config = {"unclean.leader.election.enable": "true"}
        world.nodes["/config/topics/t"] = Node({"config": config})
        world.queue.append(events.TopicUncleanElectionEnabled("t"))
    world.settle()
    assert world.state("t") == (2, 2, [2])
    assert world.state("u") == ((2, 2, [2]) if where == "broker" else (-1, 1, [1]))


@pytest.mark.rule("LEAD-15", "PSM-19")
def test_an_election_during_a_move_tells_of_the_whole_move() -> None:
    world = steady([1, 2, 3], {"t": {0: [1, 2]}})
    world.ask(events.ApiReassignment({("t", 0): [3, 2]}))
    world.forget_what_happened()
    world.lose(1)
    world.settle()
    entry = world.sent("LeaderAndIsr")[0].partitions["t", 0]
    assert (entry["replicas"], entry["adding"], entry["removing"]) == ([3, 2, 1], [3], [1])
    assert world.state("t") == (2, 2, [2])
