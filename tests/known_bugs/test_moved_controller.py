"""The controller moves between two steps of what it does: KAFKA-6082.

Somebody else is elected before any single effect of an operation. What the old one writes from then
on has to be refused, and the new one has to end in the right state.
"""

import contextlib

import pytest

from klamm.core import effects
from klamm.core.effects import Effect
from klamm.core.events import ApiReassignment
from klamm.errors import FencedError
from tests.core.procedures.test_dispatch_crashes import SCENARIOS, Scenario, catch_up
from tests.support.procedure_world import World

READS = (
    effects.ReadBrokers,
    effects.ReadDeletions,
    effects.ReadReassignRequest,
    effects.ReadStates,
    effects.ReadTopicNames,
    effects.ReadTopics,
)


class Deposed:
    """Elects another controller before the effect of a number; keeps what was written by then."""

    def __init__(self, world: World, step: int) -> None:
        self._world = world
        self._left = step
        self.written: int | None = None
        world.faults.before = self._before

    def _before(self, effect: Effect) -> None:
        # Before a read or before the write that follows it is all the same.
        if isinstance(effect, READS):
            return
        self._left -= 1
        if self._left == 0:
            self._world.controller_epoch += 1
            self.written = len(self._world.writes)


def play(scenario: Scenario, step: int) -> tuple[World, bool]:
    """Let it happen with another controller from some step on; says whether there was that step."""
    world = scenario.begin()
    requests = [event for event in world.queue if isinstance(event, ApiReassignment)]
    deposed = Deposed(world, step)
    with contextlib.suppress(FencedError):
        scenario.act(world)
    assert deposed.written in (None, len(world.writes)), "a fenced controller has written"
    world.faults = type(world.faults)()
    world.fail_over(3)
    # Who got an error asks again, and asking twice does no harm.
    world.queue.extend(requests)
    world.settle()
    catch_up(world)
    return world, deposed.written is not None


@pytest.mark.rule("FENCE-1", "FENCE-4", "PSM-22", "RSM-24", "CHAN-14", "FAILOVER-18", "FAILOVER-19")
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_controller_replaced_at_any_step_writes_nothing_more_and_its_successor_completes(
    name: str,
) -> None:
    scenario = SCENARIOS[name]
    step, there_is_more = 0, True
    while there_is_more:
        step += 1
        world, there_is_more = play(scenario, step)
        assert scenario.is_right(world), f"replaced before step {step}"
        wrong = world.disagreements()
        if scenario.may_leave_replicas:
            # What ZooKeeper has forgotten a successor cannot know; the old one was about to say it.
            wrong = [what for what in wrong if "still has a replica" not in what]
        assert wrong == [], f"replaced before step {step}"
    assert step > 2
