"""One night, read once by Spark for all tests that look at it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.sql import DataFrame, SparkSession

from klamm.pipeline.history.definitions import TABLES
from klamm.pipeline.history.input import read_spools
from klamm.pipeline.history.report_facts import ReportFacts
from klamm.pipeline.history.sources import SpoolInput
from tests.pipeline.history.night import Cluster, night


@dataclass(frozen=True)
class Told:
    """What came of a history: the tables' rows, the facts of the report, and the folder."""

    rows: dict[str, list[dict[str, Any]]]
    facts: ReportFacts
    out: Path
    records: DataFrame

    def __getitem__(self, table: str) -> list[dict[str, Any]]:
        return self.rows[table]


@pytest.fixture(scope="session")
def night_cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    return night(tmp_path_factory.mktemp("night"))


@pytest.fixture(scope="session")
def told(
    spark: SparkSession, night_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Told:
    """The night, with the later term first and the earlier one twice."""
    first, second = night_cluster.spools
    out = tmp_path_factory.mktemp("history") / "out"
    spools = [second, first, first]
    facts = SpoolInput(spools).update(spark, out)
    assert facts is not None
    rows = {table.name: parquet.read_table(out / table.name).to_pylist() for table in TABLES}
    return Told(rows, facts, out, read_spools(spark, spools))
