"""Where the controller's node puts the replicas of new topics (ASSIGN-4)."""

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from klamm.controller.requests.topic_checks import TopicRefusedError
from klamm.controller.requests.topics import TopicAdmin
from klamm.core.assignment import assign_replicas
from klamm.protocol.codes import ErrorCode
from tests.support.recorded_controller import history_config

BROKERS: dict[int, str | None] = {1: None, 2: None, 3: None, 4: None}


class Draws(Random):
    """Random numbers that are remembered."""

    def __init__(self) -> None:
        super().__init__(7)
        self.bounds: list[int] = []
        self.drawn: list[int] = []

    def randrange(self, stop: Any) -> int:  # type: ignore[override]
        self.bounds.append(stop)
        self.drawn.append(super().randrange(stop))
        return self.drawn[-1]


class Unused:
    def after_each_event(self, callback: Any) -> None:
        pass


def admin(random: Random, directory: Path) -> TopicAdmin:
    unused: Any = Unused()
    return TopicAdmin(history_config(directory), unused, unused, unused, unused, random)


@pytest.mark.rule("ASSIGN-4")
def test_start_and_shift_are_two_draws_among_the_brokers(tmp_path: Path):
    draws = Draws()
    placed = admin(draws, tmp_path).place(BROKERS, 6, 3)
    assert draws.bounds == [4, 4]
    start, shift = draws.drawn
    expected = assign_replicas(BROKERS, 6, 3, start=start, shift=shift)
    assert list(placed.values()) == expected.tolist()


@pytest.mark.rule("ASSIGN-4")
def test_every_start_is_drawn_about_as_often_as_any_other(tmp_path: Path):
    topics = admin(Random(7), tmp_path)
    # The first replica of the first partition is where it starts.
    leaders = Counter(topics.place(BROKERS, 1, 2)[0][0] for _ in range(3200))
    assert leaders.keys() == set(BROKERS)
    assert all(650 < count < 950 for count in leaders.values())


@pytest.mark.rule("ASSIGN-2", "ASSIGN-3")
def test_what_cannot_be_placed_is_refused_with_the_code_for_it(tmp_path: Path):
    topics = admin(Random(7), tmp_path)
    for count, factor, racks, code in (
        (0, 1, BROKERS, ErrorCode.INVALID_PARTITIONS),
        (1, 5, BROKERS, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 1, BROKERS | {5: "r"}, ErrorCode.UNKNOWN_SERVER_ERROR),
    ):
        with pytest.raises(TopicRefusedError) as refused:
            topics.place(racks, count, factor)
        assert refused.value.code == code
