"""A controller that dies after any of its writes leaves a state that a successor completes."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from klamm.core import events
from tests.support.procedure_store import DELETIONS, PREFERRED, REASSIGN, TOPICS, Crash
from tests.support.procedure_world import World, steady

T = {"t": {0: [1, 2, 3], 1: [2, 3, 1], 2: [3, 1]}}
T0 = ("t", 0)


@dataclass(frozen=True)
class Scenario:
    """A world in which something has just happened, and what has to come of it."""

    begin: Callable[[], World]
    is_right: Callable[[World], bool]
    #: What the controller does that may crash.
    act: Callable[[World], None] = World.settle
    #: A crash right after ZooKeeper has forgotten replicas leaves them where they are, as it does
    #: with Kafka: nothing is left that a successor could know them from.
    may_leave_replicas: bool = False


# How they begin


def after(world: World, *happened: Callable[[World], object]) -> World:
    for happen in happened:
        happen(world)
    return world


def moving(by_znode: bool = False) -> World:
    """`t-0` moves from 1, 2, 3 to 3, 4, 5, which have not caught up."""
    world = steady([1, 2, 3, 4, 5], T)
    if by_znode:
        world.request_reassignment({T0: [3, 4, 5]})
        world.settle()
    else:
        world.ask(events.ApiReassignment({T0: [3, 4, 5]}))
    return world


def strayed() -> World:
    """Broker 1 was away for a moment and has not got its leadership back."""
    world = steady([1, 2, 3], T)
    world.bounce(1)
    world.settle()
    for partition, isr in ((0, [2, 3, 1]), (1, [2, 3, 1]), (2, [3, 1])):
        world.report_isr("t", isr, partition=partition)
    return world


# How they have to end


def created(world: World, partitions: int) -> bool:
    assigned = {int(n): replicas for n, replicas in world.topic("t")["partitions"].items()}
    return len(assigned) == partitions and all(
        world.state("t", n) == (replicas[0], 0, replicas) for n, replicas in assigned.items()
    )


def deleted(world: World) -> bool:
    left = [*world.children(TOPICS), *world.children(DELETIONS)]
    return not left and world.cluster.topics == {}


def moved(world: World, *targets: list[int]) -> bool:
    data = world.topic("t")
    leader, _, isr = world.state("t") or (-1, 0, [])
    target = data["partitions"]["0"]
    return (
        target in targets
        and data["adding_replicas"] == data["removing_replicas"] == {}
        and leader in target
        and set(isr) == set(target)
        and REASSIGN not in world.nodes
        and world.cluster.being_reassigned == set()
    )


def rid_of(world: World, broker: int) -> bool:
    states = [world.state("t", n) for n in range(3)]
    return all(s is not None and s[0] != -1 and broker not in s[2] for s in states)


def preferred(world: World) -> bool:
    leaders = [(world.state("t", n) or (0,))[0] for n in range(3)]
    return leaders == [1, 2, 3] and PREFERRED not in world.nodes


SCENARIOS = {
    "creation": Scenario(
        lambda: after(steady([1, 2, 3], {}), lambda w: w.create_topic("t", T["t"])),
        lambda world: created(world, 3),
    ),
    "creation without an id": Scenario(
        lambda: after(steady([1, 2, 3], {}), lambda w: w.create_topic("t", T["t"], with_id=False)),
        lambda world: created(world, 3) and "topic_id" in world.topic("t"),
    ),
    "expansion": Scenario(
        lambda: after(steady([1, 2, 3], T), lambda w: w.expand_topic("t", {3: [1, 2], 4: [2, 3]})),
        lambda world: created(world, 5),
    ),
    "deletion": Scenario(
        lambda: after(steady([1, 2, 3], T), lambda w: w.request_deletion("t")), deleted
    ),
    "reassignment by znode": Scenario(
        lambda: after(
            steady([1, 2, 3, 4, 5], T), lambda w: w.request_reassignment({T0: [3, 4, 5]})
        ),
        lambda world: moved(world, [3, 4, 5]),
    ),
    "reassignment by request": Scenario(
        lambda: after(
            steady([1, 2, 3, 4, 5], T),
            lambda w: w.queue.append(events.ApiReassignment({T0: [3, 4, 5]})),
        ),
        lambda world: moved(world, [3, 4, 5]),
    ),
    "completion of a reassignment": Scenario(
        moving,
        lambda world: moved(world, [3, 4, 5]),
        lambda world: catch_up(world),
    ),
    "completion of a reassignment by znode": Scenario(
        lambda: moving(by_znode=True),
        lambda world: moved(world, [3, 4, 5]),
        lambda world: catch_up(world),
    ),
    "reassignment replaced": Scenario(
        lambda: after(moving(), lambda w: w.queue.append(events.ApiReassignment({T0: [2, 4]}))),
        lambda world: moved(world, [2, 4]),
        may_leave_replicas=True,
    ),
    "reassignment cancelled": Scenario(
        lambda: after(moving(), lambda w: w.queue.append(events.ApiReassignment({T0: None}))),
        lambda world: moved(world, [3, 1, 2]),
        may_leave_replicas=True,
    ),
    "broker failure": Scenario(
        lambda: after(steady([1, 2, 3], T), lambda w: w.lose(1)), lambda world: rid_of(world, 1)
    ),
    "bounce": Scenario(
        lambda: after(steady([1, 2, 3], T), lambda w: w.bounce(1)),
        lambda world: all(world.state("t", n) is not None for n in range(3)),
    ),
    "failover after a failure": Scenario(
        lambda: after(steady([1, 2, 3], T), lambda w: w.lose(1)),
        lambda world: rid_of(world, 1),
        lambda world: world.fail_over(2),
    ),
    "preferred election": Scenario(
        lambda: after(
            strayed(), lambda w: w.request_preferred_election(*(("t", n) for n in range(3)))
        ),
        preferred,
    ),
}


def catch_up(world: World) -> None:
    """Followers catch up, so that what waits for them goes on."""
    for row in sorted(world.cluster.being_reassigned):
        topic, partition = world.cluster.name(row)
        _, _, isr = world.state(topic, partition) or (0, 0, [])
        target = world.cluster.assignment(row).target
        world.report_isr(topic, list(dict.fromkeys([*isr, *target])), partition=partition)


def play(scenario: Scenario, crash_after: int | None) -> tuple[World, int]:
    """Run the event with a crash after `crash_after` writes, and return the number of writes."""
    world = scenario.begin()
    world.writes.clear()
    world.faults.crash_after = crash_after
    try:
        scenario.act(world)
    except Crash:
        world.fail_over(3)
    writes = len(world.writes)
    world.settle()
    catch_up(world)
    return world, writes


@pytest.mark.rule(
    *("DEL-16", "DEL-26", "DEL-33", "REASG-31", "REASG-U2", "REASG-29", "REASG-B6", "FAILOVER-18"),
    *("FAILOVER-19", "FAILOVER-20", "FENCE-3", "ELEC-13", "PSM-13"),
)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_successor_completes_what_any_crash_left(name: str) -> None:
    scenario = SCENARIOS[name]
    _, writes = play(scenario, crash_after=None)
    assert writes > 0
    for crash_after in (None, *range(1, writes + 1)):
        world, _ = play(scenario, crash_after)
        assert scenario.is_right(world), f"after write {crash_after} of {writes}"
        wrong = world.disagreements()
        if scenario.may_leave_replicas and crash_after == 1:
            wrong = [what for what in wrong if "still has a replica" not in what]
        assert wrong == [], f"after write {crash_after} of {writes}"
