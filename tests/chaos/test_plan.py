"""A seed says everything about a plan, and plans have everything in them."""

import sys

import pytest

from tests.chaos.actions import Actions
from tests.chaos.faults import Faults
from tests.chaos.plan import KINDS, SESSION_S, make_plan


def test_a_seed_makes_the_same_plan_each_time():
    assert make_plan(7, 120) == make_plan(7, 120)
    assert str(make_plan(7, 120)) == str(make_plan(7, 120))


def test_a_longer_run_begins_like_the_shorter_one():
    short, long = make_plan(7, 60), make_plan(7, 240)
    assert long.faults[: len(short.faults)] == short.faults
    assert long.actions[: len(short.actions)] == short.actions


def test_other_seeds_make_other_plans():
    assert len({str(make_plan(seed, 120)) for seed in range(20)}) == 20


@pytest.mark.skipif(sys.platform != "linux", reason="some of it takes Linux")
def test_a_few_seeds_have_faults_of_every_kind():
    seen = {step.what for seed in range(10) for step in make_plan(seed, 180).faults}
    assert seen == set(KINDS)


@pytest.mark.parametrize(("brokers", "zookeepers"), [(1, 1), (3, 1), (3, 3)])
def test_steps_fit_into_the_time_and_the_cluster(brokers: int, zookeepers: int):
    for seed in range(50):
        plan = make_plan(seed, 120, brokers, zookeepers)
        for steps in (plan.faults, plan.actions):
            assert steps
            assert sum(step.after_s + step.seconds for step in steps) <= 120
        for step in plan.faults:
            assert step.seconds <= 2 * SESSION_S
            if step.what == "part brokers":
                assert step.target != step.other
            if "broker " in step.target:
                assert 1 <= int(step.target.split()[-1]) <= brokers
            if step.target.startswith("number"):
                assert 1 <= int(step.target.split()[-1]) <= zookeepers


def test_somebody_carries_out_every_step():
    plans = [make_plan(seed, 180) for seed in range(10)]
    assert {step.what for plan in plans for step in plan.faults} <= set(Faults.KINDS)
    assert {step.what for plan in plans for step in plan.actions} <= set(Actions.KINDS)
