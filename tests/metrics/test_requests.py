"""Requests are kept as rows, and summed up when there are many or when metrics are read."""

import tracemalloc

import pytest

from klamm.metrics.meters import RECENT_MAX
from klamm.metrics.requests import RequestMeter, RequestMeters, Unsent
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode

MS = 1_000_000


def unsent(version: int = 9, size: int = 100, codes: tuple[int, ...] = (0,)) -> Unsent:
    """A request that waited 1 ms, was worked at for 2, and waited 3 more."""
    return version, size, codes, 0, MS, 3 * MS, 6 * MS


@pytest.mark.rule("BMET-3")
def test_each_stage_has_its_time() -> None:
    meter = RequestMeter("Produce")
    for size in (100, 300):
        meter.note(unsent(size=size))
    meter.settle()
    found = dict(meter.measures())
    assert {histogram.count for histogram in found.values()} == {2}
    assert found["RequestQueueTimeMs"].sum == 2
    assert found["LocalTimeMs"].sum == 4
    assert found["RemoteTimeMs"].sum == 6
    assert found["ThrottleTimeMs"].sum == found["ResponseQueueTimeMs"].sum == 0
    assert found["ResponseSendTimeMs"].sum > 0, "that was just now, by the real clock"
    assert found["RequestBytes"].sum == 400
    assert found["RequestBytes"].quantiles()[0] == 200
    assert found["LocalTimeMs"].quantiles() == [2.0] * 6


@pytest.mark.rule("BMET-3")
def test_the_time_of_a_request_is_the_sum_of_its_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    sent_at = iter((10 * MS, 27 * MS))
    monkeypatch.setattr("klamm.metrics.requests.perf_counter_ns", lambda: next(sent_at))
    meter = RequestMeter("FetchConsumer")
    meter.note(unsent())
    meter.note(unsent())
    meter.settle()
    total = {name: round(histogram.sum) for name, histogram in meter.measures()}
    stages = ("RequestQueue", "Local", "Remote", "Throttle", "ResponseQueue", "ResponseSend")
    assert [total[f"{stage}TimeMs"] for stage in stages] == [2, 4, 6, 0, 0, 25]
    assert total["TotalTimeMs"] == 37


@pytest.mark.rule("BMET-3")
def test_sums_go_back_further_than_distributions() -> None:
    meter = RequestMeter("Produce")
    for _ in range(RECENT_MAX):
        meter.note(unsent(size=1))
    for _ in range(2 * RECENT_MAX):
        meter.note(unsent(version=8, size=5))
    meter.settle()
    sizes = dict(meter.measures())["RequestBytes"]
    assert (sizes.count, sizes.sum) == (3 * RECENT_MAX, 11 * RECENT_MAX)
    assert sizes.quantiles()[0] == 5
    assert meter.versions == {9: RECENT_MAX, 8: 2 * RECENT_MAX}


@pytest.mark.rule("BMET-3")
def test_a_fetch_counts_under_two_names_and_its_errors_under_one() -> None:
    meters = RequestMeters()
    refused = (ErrorCode.NONE, ErrorCode.OFFSET_OUT_OF_RANGE)
    meters.consumer_fetches.note(unsent(codes=refused))
    meters.follower_fetches.note(unsent(version=17))
    meters.of_api[ApiKey.HEARTBEAT].note(unsent(codes=(27,)))
    used = {meter.name: dict(meter.versions) for meter in meters.used()}
    assert used == {
        "Fetch": {9: 1, 17: 1},
        "FetchConsumer": {9: 1},
        "FetchFollower": {17: 1},
        "Heartbeat": {9: 1},
    }
    assert meters.errors() == {("Fetch", 0): 2, ("Fetch", 1): 1, ("Heartbeat", 27): 1}


def test_ten_thousand_requests_of_an_api_leave_less_than_a_hundred_kilobytes() -> None:
    meter = RequestMeter("Produce")
    tracemalloc.start()
    try:
        for number in range(10_000):
            began = number * MS
            times = (began, began + MS, began + 2 * MS, began + 3 * MS)
            meter.note((9, 1000 + number, [0], *times))
        assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
