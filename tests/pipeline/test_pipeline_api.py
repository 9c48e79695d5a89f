"""`klamm.pipeline` from Python: what is exported is there, documented, and makes no session."""

import ast
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from klamm import pipeline
from tests.support.snapshots import make_snapshot

PAGES = Path(__file__).resolve().parents[2] / "docs"


def public() -> list[str]:
    return sorted(pipeline._PUBLIC)


@pytest.mark.parametrize("name", public())
def test_what_is_exported_is_there_and_says_what_it_does(name: str):
    assert name in dir(pipeline)
    assert getattr(pipeline, name).__doc__


def test_what_is_exported_is_in_the_documents():
    pages = ("pipeline.md", "history.md", "lakehouse.md")
    text = "".join((PAGES / page).read_text("utf-8") for page in pages)
    words = set(re.findall(r"\w+", text))
    assert [name for name in public() if name not in words] == []


def test_editors_and_type_checkers_see_what_is_exported():
    """They read imports that are made for them alone, which have to be the same."""
    assert pipeline.__file__ is not None
    tree = ast.parse(Path(pipeline.__file__).read_text("utf-8"))
    seen = {
        each.asname: node.module
        for guarded in ast.walk(tree)
        if isinstance(guarded, ast.If)
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for each in node.names
    }
    assert seen == dict(pipeline._PUBLIC)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'magic'"):
        _ = pipeline.magic


def test_a_plan_is_a_data_frame_too(spark: SparkSession, tmp_path: Path):
    pipeline.write_snapshot(spark, make_snapshot(partitions=60), str(tmp_path))
    snapshot = pipeline.read_snapshot(spark, str(tmp_path))
    moves = pipeline.plan_moves(snapshot, pipeline.Demands(remove=(5,)), wave_moves=5)
    assert moves.schema.simpleString() == (
        "struct<topic:string,partition:int,before:array<int>,after:array<int>,wave:int>"
    )
    rows = moves.collect()
    assert {row["partition"] for row in rows if 5 in row["before"]} == {
        row["partition"] for row in snapshot.partitions.collect() if 5 in row["replicas"]
    }
    assert not [row for row in rows if 5 in row["after"]]
    assert {row["wave"] for row in rows} == set(range(1, max(row["wave"] for row in rows) + 1))
