"""One Spark session for all tests of the pipeline that need one."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from klamm.pipeline.session import is_for_little, open_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A real session with two workers."""
    two = {"spark.sql.shuffle.partitions": "2"}
    session = open_session("local[2]", settings=two, progress=False, little=True)
    yield session
    session.stop()


@pytest.fixture
def little(spark: SparkSession) -> Iterator[SparkSession]:
    """The same session, which plans for little data while the test runs."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    assert is_for_little(spark)
    yield spark
    spark.conf.set("spark.sql.shuffle.partitions", str(before))
