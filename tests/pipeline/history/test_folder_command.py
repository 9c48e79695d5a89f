"""The command line of `klamm history`."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from klamm.pipeline.history.definitions import TABLES
from tests.pipeline.history.night import Cluster
from tests.support.command_line import run_here


def test_a_spool_that_is_not_there_ends_it_before_spark_begins(tmp_path: Path):
    nowhere, out = str(tmp_path / "nowhere"), tmp_path / "out"
    run_here("history", "--spool", nowhere, "--out", str(out)).failed("There is no spool")
    assert not out.exists()


def test_a_cluster_that_is_not_there_ends_it_too(tmp_path: Path):
    done = run_here("history", "-b", "127.0.0.1:1", "--out", str(tmp_path / "out"))
    done.failed("127.0.0.1:1")


def test_folders_are_spools_only_after_the_option(tmp_path: Path):
    assert run_here("history", str(tmp_path), "--out", str(tmp_path / "out")).code == 2


@pytest.mark.spark_heavy
@pytest.mark.timeout(600)
def test_spools_become_tables_and_a_report(
    spark: SparkSession, night_cluster: Cluster, tmp_path: Path
):
    spools = [str(each) for each in night_cluster.spools]
    done = run_here("history", "--spool", *spools, "--out", str(tmp_path / "out"), "--json")
    summary = done.json()
    assert set(summary["tables"]) == {table.name for table in TABLES} | {"records", "quarantine"}
    assert summary["tables"]["events"] == 29
    assert (summary["elections"], summary["unclean"], summary["gaps"]) == (4, 0, [])
    assert Path(summary["report"]).read_text(encoding="utf-8").startswith("<!doctype html>")
