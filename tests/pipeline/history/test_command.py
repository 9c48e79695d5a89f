"""The command line of `klamm history`."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from klamm.cli.main import main
from klamm.pipeline.history import TABLES
from tests.pipeline.history.night import Cluster


def test_a_spool_that_is_not_there_ends_it_before_spark_begins(capsys, tmp_path: Path):
    code = main(["history", "--spool", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")])
    assert code == 1
    assert "There is no spool" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_cluster_that_is_not_there_ends_it_too(capsys, tmp_path: Path):
    code = main(["history", "-b", "127.0.0.1:1", "--out", str(tmp_path / "out")])
    assert code == 1
    assert "127.0.0.1:1" in capsys.readouterr().err


def test_folders_are_spools_only_after_the_option(tmp_path: Path):
    with pytest.raises(SystemExit) as stopped:
        main(["history", str(tmp_path), "--out", str(tmp_path / "out")])
    assert stopped.value.code == 2


@pytest.mark.spark_heavy
def test_spools_become_tables_and_a_report(
    spark: SparkSession, night_cluster: Cluster, capsys, tmp_path: Path
):
    out = tmp_path / "out"
    spools = [str(each) for each in night_cluster.spools]
    assert main(["history", "--spool", *spools, "--out", str(out), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert set(summary["tables"]) == {table.name for table in TABLES}
    assert summary["tables"]["events"] == 29
    assert (summary["elections"], summary["unclean"], summary["gaps"]) == (4, 0, [])
    assert Path(summary["report"]).read_text(encoding="utf-8").startswith("<!doctype html>")
