"""Plans in the JSON of kafka-reassign-partitions."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.client import reassignments
from klamm.errors import ConfigError

NAMES = st.tuples(st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True), st.integers(0, 10_000))
REPLICAS = st.lists(st.integers(0, 1_000), min_size=1, max_size=5, unique=True).map(tuple)


@given(st.dictionaries(NAMES, REPLICAS, min_size=1, max_size=20))
def test_a_plan_comes_back_from_its_json(plan: dict):
    text = json.dumps(reassignments.encode_plan(plan))
    assert reassignments.decode_plan(text, "plan") == plan


def test_what_kafkas_own_tool_has_written_is_understood():
    text = (
        '{"version":1,"partitions":[{"topic":"a","partition":0,"replicas":[1,2],'
        '"log_dirs":["any","any"]}]}'
    )
    assert reassignments.decode_plan(text, "plan") == {("a", 0): (1, 2)}
    assert reassignments.decode_topics('{"topics": [{"topic": "a"}], "version": 1}', "t") == ["a"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            '{"partitions": [{"topic": "a", "partition": 0, "replicas": []}]}',
            "cannot have replicas",
        ),
        (
            '{"partitions": [{"topic": "a", "partition": 0, "replicas": [1], "log_dirs": ["/x"]}]}',
            "log_dirs",
        ),
        (
            '{"partitions": [{"topic": "a", "partition": 0, "replicas": [1]},'
            '{"topic": "a", "partition": 0, "replicas": [2]}]}',
            "twice",
        ),
        ("[]", "is not a reassignment"),
    ],
)
def test_a_plan_that_could_mean_anything_is_refused(text: str, said: str):
    with pytest.raises(ConfigError, match=said):
        reassignments.decode_plan(text, "plan.json")


def test_waves_come_in_the_order_of_their_names(tmp_path: Path):
    for number in (10, 2, 1):
        plan = {("a", number): (1,)}
        file = tmp_path / f"{number:03d}.json"
        file.write_text(json.dumps(reassignments.encode_plan(plan)))
    waves = reassignments.read_waves(tmp_path)
    assert [name for name, _ in waves] == ["001.json", "002.json", "010.json"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"like 001\.json"):
        reassignments.read_waves(tmp_path / "empty")
