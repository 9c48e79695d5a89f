from datetime import datetime

import pytest

from klamm.console.health import judge_health
from tests.console.clusters import make_columns

LIVE = {1: "a", 2: "b", 3: "c"}
WELL = (1, [1, 2, 3], [1, 2, 3])
TWO_OCLOCK = datetime(2030, 1, 31, 14, 2)


@pytest.mark.parametrize(
    ("partitions", "live", "level", "text"),
    [
        ({("a", 0): WELL, ("a", 1): WELL}, LIVE, "good", "All 2 partitions have a leader."),
        ({("a", 0): WELL}, LIVE, "good", "The only partition has a leader."),
        ({}, LIVE, "good", "The cluster of 3 brokers has no partitions yet."),
        (
            {("a", 0): WELL, ("a", 1): (1, [1, 2], [1])},
            {1: "a", 3: "c"},
            "warn",
            "All 2 partitions have a leader; 1 is under-replicated since 14:02 because broker 2 is "
            "down.",
        ),
        (
            {("a", 0): WELL, ("a", 1): (1, [1, 3], [1])},
            LIVE,
            "warn",
            "All 2 partitions have a leader; 1 is under-replicated because replicas are catching "
            "up.",
        ),
        (
            {("a", 0): (-1, [2], [2]), ("a", 1): WELL},
            {1: "a", 3: "c"},
            "bad",
            "1 of 2 partitions has no leader; broker 2 is down since 14:02.",
        ),
    ],
)
def test_the_sentence_says_how_much_is_wrong_and_why(partitions, live, level, text):
    health = judge_health(make_columns(partitions, live), {2: TWO_OCLOCK})
    assert (health.level, health.text) == (level, text)


def test_no_live_broker_is_said_first():
    assert judge_health(make_columns({("a", 0): WELL}, {}), {}).text == "No broker answers."


def test_a_cluster_without_controller_is_not_well():
    health = judge_health(make_columns({("a", 0): WELL}, LIVE, controller=-1), {})
    assert health.level == "bad"
    assert health.text == "The only partition has a leader; nobody is controller."
