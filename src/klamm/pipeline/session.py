"""The Spark session that the commands run in.

The functions of `klamm.pipeline` take the session from their caller or from their data frames;
only the commands start one.
"""

import contextlib
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from pyspark import SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.sql import SparkSession

from klamm.errors import ConfigError, KlammError, UnavailableError
from klamm.pipeline.jvm import ClassArchive, log_options, run_last, without_chatter

_T = TypeVar("_T")

DEFAULT_MASTER: Final = "local[*]"
#: What the address of a Spark Connect server begins with.
CONNECT: Final = "sc://"
_CONNECT_PORT: Final = 15002
_REACH_S: Final = 10.0
#: More rows than any cluster has cores.
_MANY: Final = 1_000_000
#: The condition of PySpark's error when Java is missing or too old.
_NO_JAVA: Final = "JAVA_GATEWAY_EXITED"

#: Set by `spark-submit`, which has already chosen the master and all settings.
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
_SETTINGS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Readers other than Spark then see times in UTC.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Otherwise every column expression costs five more calls of the JVM and a walk of the stack,
    # only so that Spark's errors name the Python line.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.dataFrameQueryContext.enabled": "false",
}
#: Settings for a local master.
_LOCAL_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "8",
}
#: Input up to this size is processed faster without the optimisations for large data.
LITTLE_BYTES: Final = 1 << 20
#: Without generated code and without adaptive plans.
_LITTLE_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
#: Spark's own defaults for the same.
_MUCH_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.enabled": "true",
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}
#: Without the second compiler of the JVM; settings of the user take precedence.
_ONE_COMPILER: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_DRIVER_JVM: Final = "spark.driver.defaultJavaOptions"
_EXECUTOR_JVM: Final = "spark.executor.defaultJavaOptions"
#: How Python shows an error of a task.
_RAISED: Final = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception|Invalid)): (.*)$", re.MULTILINE)


class TaskFailedError(KlammError):
    """A Spark job failed; the message is the task's."""


class StartingSession:
    """A session that starts while the caller does something else."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start
        self._session: SparkSession | None = None
        self._error: BaseException | None = None
        # At the end of the program nobody waits for it, and the JVM ends with the program.
        self._thread = threading.Thread(target=self._run, daemon=True, name="spark")
        self._thread.start()

    def _run(self) -> None:
        try:
            self._session = self._start()
        except BaseException as error:
            self._error = error

    def abandon(self) -> None:
        """Stop the session if it has started, and do not wait for it otherwise."""
        if self._session is not None:
            self._session.stop()

    def wait(self) -> SparkSession:
        """The session, as soon as it is there."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._session is not None
        return self._session


@contextlib.contextmanager
def starting_session(
    master: str | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    little: bool = False,
) -> Iterator[Callable[[], SparkSession]]:
    """Start a session, and yield the function that waits for it; it is stopped at the end.

    The default master is that of `spark-submit`, or else all cores of this machine. An active
    session is used and kept. `little` chooses settings for little data.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield lambda: active
        return
    archive = ClassArchive.find() if _starts_a_jvm(master) else None
    starting = StartingSession(
        lambda: open_session(
            master, settings=settings, progress=False, little=little, archive=archive
        )
    )
    try:
        yield starting.wait
    except BaseException:
        starting.abandon()
        raise
    session = starting.wait()
    process = getattr(session.sparkContext._gateway, "proc", None)
    session.stop()
    if archive is not None and archive.is_new and process is not None:
        run_last(process.pid)


@contextlib.contextmanager
def spark_session(
    master: str | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    progress: bool = True,
    little: bool = False,
) -> Iterator[SparkSession]:
    """A session on `master`, stopped at the end; an active session is used and kept.

    The default master is that of `spark-submit`, or else all cores of this machine. `sc://HOST` is
    a Spark Connect server, whose Python has to have klamm. `progress` shows Spark's progress bars
    on stderr. `little` chooses settings for little data.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    session = open_session(master, settings=settings, progress=progress, little=little)
    try:
        yield session
    finally:
        session.stop()


def _starts_a_jvm(master: str | None) -> bool:
    """Whether a session here starts a JVM, rather than using that of `spark-submit` or another."""
    is_local = master is None or master.startswith("local")
    return is_local and _SUBMITTED not in os.environ and SparkContext._gateway is None


@contextlib.contextmanager
def planned_for_much(spark: SparkSession) -> Iterator[None]:
    """Plan queries for much data in this block, if the session was started for little."""
    if not is_for_little(spark):
        yield
        return
    try:
        for name, value in _MUCH_SETTINGS.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in _LITTLE_SETTINGS.items():
            spark.conf.set(name, value)


def is_for_little(spark: SparkSession) -> bool:
    """Whether the session plans its queries for little data now."""
    return all(spark.conf.get(name) == value for name, value in _LITTLE_SETTINGS.items())


def are_little(paths: Iterable[Path]) -> bool:
    """Whether these files and folders hold at most `LITTLE_BYTES` together.

    A path that does not exist here, such as that of an object store, may be large.
    """
    size = 0
    for path in paths:
        if not path.exists():
            return False
        size += sum(each.stat().st_size for each in (path, *path.rglob("*")) if each.is_file())
    return size <= LITTLE_BYTES


def open_session(
    master: str | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    progress: bool = True,
    little: bool = False,
    archive: ClassArchive | None = None,
) -> SparkSession:
    """Start a session that the caller stops; the arguments are those of `spark_session`.

    `archive` has the classes that the JVM loads.
    """
    # By default Spark starts the python3 of the PATH, which may not have klamm.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    chosen: dict[str, bool | float | int | str | None] = dict(_SETTINGS)
    if master is None and _SUBMITTED not in os.environ:
        master = DEFAULT_MASTER
    if master is not None and master.startswith("local"):
        chosen |= _LOCAL_SETTINGS
    if little:
        chosen |= _LITTLE_SETTINGS | {_EXECUTOR_JVM: _ONE_COMPILER}
    if master is not None and master.startswith(CONNECT):
        return _connect(master, chosen | {**(settings or {})})
    if _SUBMITTED in os.environ:
        chosen["spark.log.level"] = "ERROR"  # the JVM runs already, with a log of its own
    else:
        of_driver = (
            _ONE_COMPILER if little else "",
            log_options(),
            "" if archive is None else archive.options(),
        )
        chosen[_DRIVER_JVM] = " ".join(filter(None, of_driver))
    chosen["spark.ui.showConsoleProgress"] = str(progress).lower()
    builder = SparkSession.builder.appName("klamm").config(map=chosen | {**(settings or {})})
    if master is not None:
        builder = builder.master(master)
    try:
        with without_chatter():
            return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != _NO_JAVA:
            raise
        raise ConfigError(
            "Spark needs Java 17 or newer and could not start it: install Java 17 or newer (on "
            "Debian and Ubuntu: apt install openjdk-17-jre-headless), or set JAVA_HOME."
        ) from None


def _connect(url: str, settings: Mapping[str, bool | float | int | str | None]) -> SparkSession:
    """A session of a server, which has its own settings for everything but queries."""
    # PySpark itself tries for ten minutes to reach a server that is not there.
    server = urlsplit(url)
    address = (server.hostname or "", server.port or _CONNECT_PORT)
    try:
        socket.create_connection(address, _REACH_S).close()
        session: SparkSession = SparkSession.builder.remote(url).create()
        for name, value in settings.items():
            if name.startswith("spark.sql."):
                session.conf.set(name, str(value))
    except ImportError as error:
        raise ConfigError(
            f"{url} needs what Spark Connect needs: pip install 'pyspark[connect]' ({error})"
        ) from None
    except (PySparkException, OSError) as error:
        told = str(error).strip().partition("\n")[0]
        raise UnavailableError(f"The Spark Connect server {url} cannot be used: {told}") from None
    return session


def side_by_side(*calls: Callable[[], _T]) -> list[_T]:
    """What these calls return; Spark plans and runs their queries at the same time.

    Little data does not keep more than one core busy, and most of a small query is its planning.
    """
    with ThreadPoolExecutor(max(1, len(calls))) as pool:
        return [call.result() for call in [pool.submit(call) for call in calls]]


def default_tasks(spark: SparkSession) -> int:
    """How many tasks the session runs at the same time, as far as Spark knows."""
    if not is_connected(spark):
        return max(spark.sparkContext.defaultParallelism, 1)
    # There is no context to ask, but a range is divided by the same number.
    ids = spark.range(0, _MANY).selectExpr("spark_partition_id() id")
    return max(ids.distinct().count(), 1)


def release_memory(spark: SparkSession) -> None:
    """Let the driver's JVM give back what a large result took, before Python needs memory."""
    if not is_connected(spark) and not is_for_little(spark):
        gateway: Any = spark.sparkContext._gateway
        gateway.jvm.java.lang.System.gc()


def cancel_jobs(spark: SparkSession) -> None:
    """Cancel all running jobs of the session."""
    if is_connected(spark):
        spark.interruptAll()
    else:
        spark.sparkContext.cancelAllJobs()


def is_connected(spark: SparkSession) -> bool:
    """Whether the session is one of Spark Connect."""
    return type(spark).__module__.startswith("pyspark.sql.connect")


def told_by_task(error: PySparkException) -> KlammError:
    """The error that a task raised, without the tracebacks of Spark and Python around it."""
    raised = _RAISED.findall(str(error).partition("\n\tat ")[0])
    if not raised:
        return TaskFailedError(str(error).strip().splitlines()[0])
    name, text = raised[-1]
    is_ours = name in ("ConfigError", "ExpectationError", "UnavailableError", "DataLossError")
    return TaskFailedError(text if is_ours else f"{name}: {text}")
