"""A query's memory: each file is written once, and another query is refused."""

import pytest

from klamm.errors import ConfigError
from klamm.pipeline.ingest.checkpoint import BatchPlan, Checkpoint
from klamm.pipeline.ingest.location import locate

IDENTITY = {"topics": ["orders"], "to": "delta:lake/orders"}


@pytest.fixture
def folder(tmp_path):
    return locate(str(tmp_path / "checkpoint"))


def test_a_query_keeps_its_id(folder):
    assert Checkpoint(folder, IDENTITY).query == Checkpoint(folder, IDENTITY).query


def test_another_query_is_refused_by_what_differs(folder):
    Checkpoint(folder, IDENTITY)
    with pytest.raises(ConfigError, match="another query: its to is 'delta:lake/orders'"):
        Checkpoint(folder, {**IDENTITY, "to": "delta:lake/other"})


def test_a_query_whose_first_run_failed_gives_way_to_one_for_the_same_table(folder):
    failed = Checkpoint(folder, {**IDENTITY, "format": "json"}, has_table=False)
    failed.keep_schema({"fields": 1})
    failed.add_plan(BatchPlan(0, {}, {}))
    avro = {**IDENTITY, "format": "avro"}
    with pytest.raises(ConfigError, match="its to is"):
        Checkpoint(folder, {**avro, "to": "delta:lake/other"}, has_table=False)
    with pytest.raises(ConfigError, match="its format is 'json'"):
        Checkpoint(folder, avro)
    mended = Checkpoint(folder, avro, has_table=False)
    assert (mended.schema(), mended.last) == (None, None)
    assert mended.query != failed.query
    mended.prepare(0, {"files": []})
    with pytest.raises(ConfigError, match="its format is 'avro'"):
        Checkpoint(folder, {**IDENTITY, "format": "raw"}, has_table=False)


def test_a_folder_with_something_else_in_it_is_refused(folder, tmp_path):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="not empty and not a checkpoint"):
        Checkpoint(folder, IDENTITY)


def test_the_plan_of_the_faster_driver_counts(folder):
    one, two = Checkpoint(folder, IDENTITY), Checkpoint(folder, IDENTITY)
    first = one.add_plan(BatchPlan(0, {"orders": {"0": 0}}, {"orders": {"0": 5}}))
    assert two.add_plan(BatchPlan(0, {"orders": {"0": 0}}, {"orders": {"0": 9}})) == first
    assert one.prepare(0, {"files": ["a"]}) == two.prepare(0, {"files": ["b"]}) == {"files": ["a"]}
    assert Checkpoint(folder, IDENTITY).last == first


def test_old_batches_are_forgotten_and_the_last_ones_are_kept(folder):
    checkpoint = Checkpoint(folder, IDENTITY)
    for number in range(105):
        checkpoint.add_plan(BatchPlan(number, {}, {}))
        checkpoint.prepare(number, {})
    names = (folder / "batches").names()
    assert "4.json" not in names
    assert "5.json" in names
    assert Checkpoint(folder, IDENTITY).last.number == 104


def test_the_newest_schema_counts(folder):
    checkpoint = Checkpoint(folder, IDENTITY)
    assert checkpoint.schema() is None
    checkpoint.keep_schema({"fields": 1})
    checkpoint.keep_schema({"fields": 2})
    assert Checkpoint(folder, IDENTITY).schema() == {"fields": 2}
