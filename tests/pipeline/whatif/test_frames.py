"""Failures played through on real Spark."""

from dataclasses import replace

import pyarrow as pa
import pytest

from klamm.pipeline.arrow import partitions_from_arrow
from klamm.pipeline.snapshot.snapshot import read_snapshot, write_snapshot
from klamm.pipeline.whatif import frames
from klamm.pipeline.whatif.frames import play_through, write_answer
from klamm.pipeline.whatif.report import render_report
from klamm.pipeline.whatif.whatif import (
    SUMS,
    broker_failures,
    named_failure,
    scenario_sums,
    sum_terms,
)
from tests.pipeline.pages import network_references
from tests.support.snapshots import PARTITIONS, RACKS, make_snapshot


@pytest.fixture(scope="module")
def answer(spark, tmp_path_factory):
    path = str(tmp_path_factory.mktemp("snapshot"))
    write_snapshot(spark, make_snapshot(), path)
    return play_through(read_snapshot(spark, path), broker_failures(RACKS, 2))


def test_the_tables_have_the_columns_of_the_contract(answer):
    assert answer.scenarios.schema.simpleString().startswith(
        "struct<scenario:string,failed:array<int>,leaderless:bigint,unclean:bigint,"
        "below_min_isr:bigint,leaders_moved:bigint"
    )
    assert answer.partitions.schema.simpleString().startswith(
        "struct<scenario:string,topic:string,partition:int,outcome:string,leader:int,isr:array<int>"
    )
    assert answer.brokers.schema.simpleString() == (
        "struct<scenario:string,broker:int,leaders:bigint>"
    )


def test_spark_finds_what_the_kernels_find_in_one_piece(answer):
    failures = broker_failures(RACKS, 2)
    sets = failures.sets()
    terms = sum_terms(failures, partitions_from_arrow(make_snapshot().partitions))
    expected = scenario_sums(failures, sets, terms)
    names = [failures.name(units) for units in sets.tolist()]
    found = {row["scenario"]: row for row in answer.scenarios.collect()}
    assert {name: [found[name][each] for each in SUMS] for name in names} == {
        name: row[: len(SUMS)] for name, row in zip(names, expected.tolist(), strict=True)
    }
    counted = answer.partitions.groupBy("scenario", "outcome").count().collect()
    assert {(row["scenario"], row["outcome"]): row["count"] for row in counted} == {
        (name, outcome): found[name][outcome]
        for name in names
        for outcome in ("leaderless", "unclean", "below_min_isr")
        if found[name][outcome]
    }
    leaders = answer.brokers.groupBy("scenario").sum("leaders").collect()
    assert {row["scenario"]: row[1] for row in leaders} == {
        name: PARTITIONS - found[name]["leaderless"] for name in names
    }


def test_the_report_names_the_partitions_and_needs_no_network(answer):
    page = render_report(answer, ["A warning & more."])
    assert "A warning &amp; more." in page
    assert "partitions do not survive" in page
    assert "failures of 2 brokers at once cost leaders or records" in page
    assert "have live replicas, but none that was in sync" in page
    assert '<table class="heat">' in page
    assert "Cluster" in page
    assert network_references(page) == []


def test_a_cluster_without_partitions_survives_everything(spark, tmp_path):
    full = make_snapshot()
    write_snapshot(spark, replace(full, partitions=full.partitions.slice(0, 0)), str(tmp_path))
    answer = play_through(read_snapshot(spark, str(tmp_path)), broker_failures(RACKS, 2))
    assert {(row["leaderless"], row["leaders_moved"]) for row in answer.scenarios.collect()} == {
        (0, 0)
    }
    assert answer.partitions.isEmpty()
    assert "Any 2 brokers at once can fail and leave every partition with" in render_report(
        answer, []
    )


def test_blocks_of_scenarios_give_the_same_tables(spark, answer, tmp_path, monkeypatch):
    monkeypatch.setattr(frames, "_CELLS_PER_BLOCK", 20)
    write_snapshot(spark, make_snapshot(), str(tmp_path))
    snapshot = read_snapshot(spark, str(tmp_path))
    in_blocks = play_through(snapshot, broker_failures(RACKS, 2))

    assert rows(in_blocks.brokers) == rows(answer.brokers)
    assert in_blocks.ranked.equals(answer.ranked)
    assert in_blocks.worst.equals(answer.worst)


def test_little_is_played_through_by_the_driver_with_the_same_tables(little, answer, tmp_path):
    write_snapshot(little, make_snapshot(), str(tmp_path))
    here = play_through(read_snapshot(little, str(tmp_path)), broker_failures(RACKS, 2))
    for name in ("scenarios", "partitions", "brokers"):
        found, expected = getattr(here, name), getattr(answer, name)
        assert found.schema.simpleString() == expected.schema.simpleString()
        assert rows(found) == rows(expected)
    assert here.ranked.equals(answer.ranked)
    assert here.worst.equals(answer.worst)


def test_a_little_cluster_in_which_nothing_is_lost_has_no_casualties(little, tmp_path):
    full = make_snapshot(2)
    write_snapshot(little, replace(full, partitions=full.partitions.slice(1)), str(tmp_path))
    here = play_through(
        read_snapshot(little, str(tmp_path)), named_failure(RACKS, "brokers", ["5"])
    )
    assert write_answer(here, str(tmp_path / "out")).partitions.isEmpty()


def rows(frame):
    return sorted(map(tuple, frame.toPandas().astype(str).to_numpy().tolist()))


def test_a_partition_says_why_it_is_lost(spark, tmp_path):
    full = make_snapshot(4)
    replicas = pa.array([[0], [0, 1], [0, 1, 2], [0, 1, 2]], pa.list_(pa.int32()))
    isr = pa.array([[0], [0, 1], [0, 1], [0, 1, 2]], pa.list_(pa.int32()))
    table = full.partitions.set_column(2, "replicas", replicas).set_column(3, "isr", isr)
    table = table.set_column(4, "leader", pa.array([0, 0, 0, 0], pa.int32()))
    table = table.set_column(7, "unclean", pa.array([False, False, False, False]))
    write_snapshot(spark, replace(full, partitions=table), str(tmp_path))
    lost = play_through(
        read_snapshot(spark, str(tmp_path)), named_failure(RACKS, "brokers", ["0", "1"])
    ).partitions
    assert {row["partition"]: (row["outcome"], row["reason"]) for row in lost.collect()} == {
        0: ("leaderless", "one_replica"),
        1: ("leaderless", "replicas_failed"),
        2: ("leaderless", "not_in_sync"),
        3: ("below_min_isr", "replicas_failed"),
    }
