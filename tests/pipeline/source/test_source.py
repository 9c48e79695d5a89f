"""The data source as Spark finds it."""

import runpy

import pyspark
import pytest
from pyspark.sql.types import StructType

import pyspark_klamm
from klamm.errors import ConfigError
from klamm.pipeline.source.source import KlammDataSource

GIVEN = {"kafka.bootstrap.servers": "127.0.0.1:9092", "topic": "orders"}


def test_spark_finds_it_by_the_name_of_a_module():
    assert pyspark_klamm.DefaultSource is KlammDataSource
    assert KlammDataSource.name() == "klamm"


def test_an_older_pyspark_gets_one_sentence(monkeypatch):
    monkeypatch.setattr(pyspark, "__version__", "3.5.6")
    source = runpy.run_path(pyspark_klamm.__file__)["DefaultSource"]
    assert source.name() == "klamm"
    with pytest.raises(RuntimeError, match=r"needs pyspark 4\.0 or a newer 4\.x; this is 3\.5\.6"):
        source({})


def test_topics_are_appended_to_and_not_overwritten():
    source, rows = KlammDataSource(GIVEN), StructType().add("value", "binary")
    source.writer(rows, overwrite=False)
    with pytest.raises(ConfigError, match="overwrite not allowed"):
        source.writer(rows, overwrite=True)
