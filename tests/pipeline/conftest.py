"""One Spark session for all tests of the pipeline that need one."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from klamm.pipeline.session import open_session
from tests.pipeline.sessions import FOR_LITTLE_DATA


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A real session with two workers."""
    session = open_session("local[2]", settings=FOR_LITTLE_DATA, progress=False)
    yield session
    session.stop()
