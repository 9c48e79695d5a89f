"""One Spark session for all tests of the pipeline that need one."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from klamm.pipeline.session import open_session

#: Tables of some rows are done before anything that makes large ones fast has paid for itself: the
#: JVM's second compiler, code generated for each query, and plans that are made anew on the way.
_FOR_LITTLE_DATA = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A real session with two workers."""
    session = open_session("local[2]", settings=_FOR_LITTLE_DATA, progress=False)
    yield session
    session.stop()
