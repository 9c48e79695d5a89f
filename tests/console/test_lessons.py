"""The steps of the lessons, judged on situations that are made up."""

import pytest

from klamm.console.lessons import LESSONS, Situation
from tests.console.clusters import make_columns

REPLICAS = [2, 1, 3]
BEFORE = {("lesson", number): (2, REPLICAS, REPLICAS) for number in range(3)}
AFTER = {("lesson", number): (1, REPLICAS, [1, 3]) for number in range(3)}
ALL = {1: "a", 2: "b", 3: "c"}
OTHERS = {1: "a", 3: "c"}


def situation(process: str, live: dict[int, str]) -> Situation:
    """After the death of broker 2, which led."""
    brokers = {1: "running", 2: process, 3: "running"}
    before, now = make_columns(BEFORE, ALL), make_columns(AFTER, live)
    return Situation(before, now, brokers, frozenset(), [], chosen=2)


@pytest.mark.parametrize(
    ("process", "live", "is_back"),
    [
        ("dead", OTHERS, False),
        ("dead", ALL, False),  # the live brokers were read before the broker died
        ("running", OTHERS, False),
        ("running", ALL, True),
    ],
)
@pytest.mark.parametrize("lesson", ["leader", "controller", "sleep", "order"])
def test_a_broker_is_back_once_it_runs_and_is_registered(lesson, process, live, is_back):
    steps = next(each.steps for each in LESSONS if each.id == lesson)
    step = next(each for each in steps if each.verb in ("start", "resume"))
    assert step.holds(situation(process, live)) is is_back


def test_a_partition_without_another_replica_does_not_hold_up_the_lesson():
    """Topics of the user may have one replica; when that is gone, nobody can lead."""
    lone = {("audit", 0): (-1, [2], [2])}
    now = make_columns(AFTER | lone, OTHERS)
    lesson = next(each for each in LESSONS if each.id == "controller")
    elected = next(each for each in lesson.steps if "elects leaders" in each.text)
    made = Situation(make_columns(BEFORE, ALL), now, {2: "dead"}, frozenset(), [], chosen=2)
    assert elected.holds(made)
