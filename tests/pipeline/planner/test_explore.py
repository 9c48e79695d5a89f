"""Variants of a plan: which there are, how they are judged, and that tasks try them."""

from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from klamm.pipeline.output import output_folder
from klamm.pipeline.planner.explore import (
    AS_ASKED,
    explore,
    largest_topics,
    unbeaten,
    variants,
    write_explored,
)
from klamm.pipeline.planner.planner import Capacity, Demands
from tests.pipeline.pages import Page, network_references
from tests.support.snapshots import RACKS, make_snapshot


def test_variants_differ_in_brokers_pins_capacities_and_seeds():
    demands = Demands(add=(7, 8), capacities={1: Capacity(replicas=100)}, pin="audit")
    found = variants(demands, [f"t{number}" for number in range(20)], 12)
    assert [each.options for each in found[:5]] == [
        AS_ASKED,
        "--add-brokers 7",
        "--pin 'audit|t0'",
        "--capacities times 0.9",
        "--seed 1",
    ]
    assert found[2].demands.pin == "audit|t0"
    assert found[3].demands.capacities[1].replicas == 90
    assert len({each.options for each in found}) == 12
    assert [each.options for each in variants(Demands(), [], 3)] == [
        AS_ASKED,
        "--seed 1",
        "--seed 2",
    ]


def test_a_variant_that_is_worse_in_everything_is_beaten():
    found = pa.table(
        {
            "replicas_moved": [10, 10, 5, 10, None],
            "bytes_moved": pa.nulls(5, pa.int64()),
            "deviation_percent": [1.0, 2.0, 9.0, 1.0, None],
            "lost_at_worst": [0, 0, 0, 0, None],
            "refused": [None, None, None, None, "No room."],
        }
    )
    assert unbeaten(found) == [True, False, True, False, False]


def test_tasks_try_the_variants_and_the_page_shows_the_best(spark, tmp_path: Path):
    partitions = make_snapshot(60).partitions
    sizes = pa.array(np.arange(60) + 1, pa.int64())
    partitions = partitions.set_column(8, "bytes", sizes)
    assert largest_topics(partitions) == ["t"]
    demands = Demands(add=(6, 7), racks={6: "rack-0", 7: "rack-1"})
    found = explore(spark, partitions, RACKS, demands, 4)
    rows = found.to_pylist()
    assert [row["variant"] for row in rows] == [0, 1, 2, 3]
    without = next(row for row in rows if row["options"] == "without --add-brokers")
    assert without["replicas_moved"] < rows[0]["replicas_moved"]
    assert any(row["is_best"] for row in rows)
    assert {row["lost_at_worst"] for row in rows} == {0}
    folder = output_folder(spark, str(tmp_path))
    write_explored(folder, spark, found, {"Cluster": "c"})
    assert spark.read.parquet(str(folder / "explore")).count() == 4
    page = (tmp_path / "explore.html").read_text()
    assert network_references(page) == []
    assert "Beaten by no other" in Page(page).text
    assert list(islice(folder.names(), 2)) == ["explore", "explore.html"]
