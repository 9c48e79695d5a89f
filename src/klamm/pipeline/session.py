"""The Spark session that the commands run in.

The functions of `klamm.pipeline` take the session from their caller, or from the data frames that
they are given; none of them makes one.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from pyspark.sql import SparkSession

DEFAULT_MASTER: Final = "local[*]"

#: Set by `spark-submit`, which has chosen the master and everything else already.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Other readers of the tables see moments in UTC then, not numbers that they have to know.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.log.level": "ERROR",
    # Otherwise every call for a column asks the JVM five times more and walks the stack, so that
    # Spark's errors can name the line; ours have sentences of their own.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
}
#: What is of use on a machine of one's own only.
_LOCAL_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "8",
}


@contextlib.contextmanager
def spark_session(
    master: str | None = None, *, settings: Mapping[str, str] | None = None, progress: bool = True
) -> Iterator[SparkSession]:
    """A session on `master`, stopped at the end; one that is active already is used and kept.

    Without a master it is that of `spark-submit`, or else all cores of this machine. `progress`
    draws Spark's progress bars on stderr.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    session = open_session(master, settings=settings, progress=progress)
    try:
        yield session
    finally:
        session.stop()


def open_session(
    master: str | None = None, *, settings: Mapping[str, str] | None = None, progress: bool = True
) -> SparkSession:
    """A new session on `master`, for the caller to stop."""
    # Spark starts the python3 of the PATH unless it is told which one knows klamm.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    chosen: dict[str, bool | float | int | str | None] = dict(_SETTINGS)
    if master is None and _SUBMITTED not in os.environ:
        master = DEFAULT_MASTER
    if master is not None and master.startswith("local"):
        chosen |= _LOCAL_SETTINGS
    chosen["spark.ui.showConsoleProgress"] = str(progress).lower()
    builder = SparkSession.builder.appName("klamm").config(map=chosen | {**(settings or {})})
    if master is not None:
        builder = builder.master(master)
    return builder.getOrCreate()
