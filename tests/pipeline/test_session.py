"""What is chosen for a session, and for how long."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from klamm.pipeline.session import LITTLE_BYTES, are_little, planned_for
from tests.support.command_line import run_process

CODEGEN = "spark.sql.codegen.wholeStage"
SHUFFLE = "spark.sql.shuffle.partitions"


def test_folders_are_little_together_or_not(tmp_path: Path):
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "b").write_bytes(bytes(LITTLE_BYTES // 2))
    (tmp_path / "a" / "deep" / "c").write_bytes(bytes(LITTLE_BYTES // 2))
    assert are_little([tmp_path / "a", tmp_path / "b"])
    (tmp_path / "a" / "d").write_bytes(b"x")
    assert not are_little([tmp_path / "a", tmp_path / "b"])


def test_what_is_not_here_may_be_large(tmp_path: Path):
    assert not are_little([tmp_path / "nowhere"])
    assert not are_little([Path("s3://bucket/snapshot")])


def test_little_data_is_planned_for_only_meanwhile(spark: SparkSession, tmp_path: Path):
    (tmp_path / "file").write_bytes(b"x")
    before = {name: spark.conf.get(name) for name in (CODEGEN, SHUFFLE)}
    spark.conf.set(CODEGEN, "true")
    spark.conf.set(SHUFFLE, "7")
    try:
        with planned_for(spark, [tmp_path]):
            assert (spark.conf.get(CODEGEN), spark.conf.get(SHUFFLE)) == ("false", "1")
        assert (spark.conf.get(CODEGEN), spark.conf.get(SHUFFLE)) == ("true", "7")
        with planned_for(spark, [tmp_path / "nowhere"]):
            assert spark.conf.get(SHUFFLE) == "7"
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


@pytest.mark.real
def test_without_java_it_says_so(tmp_path: Path):
    (tmp_path / "snapshot").mkdir()
    run_process(
        *("whatif", "--snapshot", str(tmp_path / "snapshot")),
        *("--fail", "brokers:1", "--out", str(tmp_path / "out")),
        environment={"JAVA_HOME": str(tmp_path)},
    ).failed("Spark needs Java 17 or newer")
