import pytest

from klamm.console.samples import Sampler, time_left
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
    ],
)
def test_the_time_left_follows_from_the_pace(at, lag, left):
    assert time_left({"at": at, "lag": lag}) == left


def test_what_is_asked_for_is_sampled_from_then_on():
    taken = []

    def sample(key):
        taken.append(key)
        if key == "gone":
            raise UnavailableError("nobody is there")
        return {"lag": float(len(taken))}

    sampler = Sampler(sample, interval_s=0.01)
    try:
        assert sampler.series("billing")["lag"] == [1.0]
        wait_until(lambda: len(sampler.series("billing")["at"]) > 2, "more samples")
        assert sampler.series("gone") == {"at": []}
        assert set(taken) == {"billing", "gone"}
    finally:
        sampler.close()
