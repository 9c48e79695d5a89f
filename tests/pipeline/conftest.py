"""One Spark session for all tests of the pipeline that need one."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from klamm.pipeline.session import open_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A real session with two workers."""
    two = {"spark.sql.shuffle.partitions": "2"}
    session = open_session("local[2]", settings=two, progress=False, little=True)
    yield session
    session.stop()
