import pytest

from klamm.console.samples import Sampler, Series, time_left
from klamm.errors import UnavailableError
from tests.support.waiting import wait_until


@pytest.mark.parametrize(
    ("at", "lag", "left"),
    [
        ([0.0], [5.0], None),
        ([0.0, 10.0], [100.0, 50.0], 10.0),
        ([0.0, 10.0], [50.0, 100.0], None),
        ([0.0, 10.0], [50.0, 0.0], 0.0),
        ([0.0, 10.0], [None, 10.0], None),
        ([0.0, 5.0, 10.0], [100.0, None, 50.0], 10.0),
    ],
)
def test_the_time_left_follows_from_the_pace(at, lag, left):
    assert time_left({"at": at, "lag": lag}) == left


def test_a_series_has_holes_and_an_hour_at_most():
    series = Series()
    series.add(1.0, {"lag": 5.0})
    series.add(2.0, {"read": 7.0})
    assert series.describe() == {"at": [1.0, 2.0], "lag": [5.0, None], "read": [None, 7.0]}
    for number in range(2000):
        series.add(float(number), {"lag": float(number)})
    kept = series.describe()
    assert 720 <= len(kept["at"]) == len(kept["read"]) < 900
    assert kept["lag"][-1] == 1999.0


def test_everything_is_sampled_from_the_start():
    sampler = Sampler(
        lambda keys: {key: {"lag": 1.0} for key in keys},
        lambda: ["billing", "audit"],
        keys_max=10,
        interval_s=0.01,
    )
    sampler.start()
    try:
        wait_until(lambda: len(sampler.all().get("audit", {"at": []})["at"]) > 2, "samples")
        assert set(sampler.all()) == {"billing", "audit"}
    finally:
        sampler.close()


def test_of_too_many_keys_those_are_sampled_that_somebody_asks_about():
    rounds: list[list[int]] = []

    def sample(keys):
        rounds.append(keys)
        return {key: {"lag": 0.0} for key in keys}

    sampler = Sampler(sample, lambda: range(100), keys_max=3, interval_s=0.01)
    assert sampler.series(77)["lag"] == [0.0]
    sampler.start()
    try:
        wait_until(lambda: len(rounds) > 2, "rounds")
        assert rounds[-1] == [77, 0, 1]
        assert sampler.left_out == 97
    finally:
        sampler.close()


def test_a_round_that_fails_leaves_a_hole_and_the_next_is_taken():
    calls = []

    def sample(keys):
        calls.append(keys)
        if len(calls) < 3:
            raise UnavailableError("nobody is there")
        return {key: {"lag": 2.0} for key in keys}

    sampler = Sampler(sample, lambda: ["billing"], keys_max=3, interval_s=0.01)
    sampler.start()
    try:
        wait_until(lambda: sampler.all(), "a sample")
        assert sampler.all()["billing"]["lag"][0] == 2.0
    finally:
        sampler.close()
