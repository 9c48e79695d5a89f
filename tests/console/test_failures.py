import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.console.failures import find_worst, partitions_of, play_failure
from klamm.errors import ConfigError
from klamm.pipeline.whatif.whatif import SUMS, broker_failures, scenario_sums, sum_terms
from tests.console.clusters import make_columns

LIVE = {1: "a", 2: "b", 3: "c"}
SETTINGS = {"a": (2, False), "b": (1, True)}
SMALL = st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True).flatmap(
    lambda replicas: st.tuples(
        st.sampled_from([-1, *replicas]),
        st.just(replicas),
        st.lists(st.sampled_from(replicas), min_size=1, unique=True),
    )
)
ROWS = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.integers(0, 5)), SMALL, min_size=1, max_size=12
)


@given(ROWS)
def test_one_failure_is_what_the_pipeline_says_of_it(partitions):
    columns = make_columns(partitions, LIVE)
    failures = broker_failures(columns.racks(), 2)
    sets = failures.sets()
    kernel = partitions_of(columns, SETTINGS)
    sums = scenario_sums(failures, sets, sum_terms(failures, kernel))
    for units, row in zip(sets.tolist(), sums.tolist(), strict=True):
        failed = failures.failed(units)
        answer = play_failure(columns, SETTINGS, "brokers", list(map(str, failed)))
        assert [answer[name] for name in SUMS] == row[: len(SUMS)]
        assert answer["scenario"] == failures.name(units)
        left = {each["broker"]: each["leaders"] for each in answer["brokers"]}
        by_place = dict(zip(failures.brokers, row[len(SUMS) :], strict=True))
        assert left == {broker: by_place[broker] for broker in left}


def test_the_worst_are_named_unasked():
    partitions = {
        ("a", 0): (1, [1, 2], [1, 2]),
        ("a", 1): (1, [1, 2], [1, 2]),
        ("a", 2): (3, [3, 1], [3, 1]),
    }
    worst = find_worst(make_columns(partitions, LIVE), {})
    assert worst["pair"][0]["scenario"] == "brokers:1,2"
    assert worst["pair"][0]["leaderless"] == 2
    assert worst["broker"][0]["failed"] == [1]
    assert worst["rack"][0]["scenario"] == "racks:a"


@pytest.mark.parametrize("names", [[], ["9"], ["x"]])
def test_a_failure_of_nobody_is_refused(names):
    with pytest.raises(ConfigError):
        play_failure(make_columns({("a", 0): (1, [1], [1])}, LIVE), {}, "brokers", names)
