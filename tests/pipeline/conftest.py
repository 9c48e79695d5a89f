"""One Spark session for all tests of the pipeline that need one."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from klamm.pipeline.session import open_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A real session with two workers."""
    # Tests are over before the JVM's second compiler has paid for itself.
    settings = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    session = open_session("local[2]", settings=settings, progress=False)
    yield session
    session.stop()
