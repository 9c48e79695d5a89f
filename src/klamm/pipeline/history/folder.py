"""The history as tables in a folder: which there are, and what each is made from.

Records are written first, to `records/`; every table is then made from them, each from
those before it. A stream continues where its checkpoint says, so records are neither lost nor
doubled when it is stopped at any moment; the tables are made from the records so far.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from klamm.client.admin import Admin
from klamm.config.client_properties import ClientSecurity
from klamm.errors import ConfigError, KlammError
from klamm.history.spool import spool_files
from klamm.pipeline.history import measures as measures
from klamm.pipeline.history import tables as tables
from klamm.pipeline.history import timeline as timelines
from klamm.pipeline.history.input import (
    check_spools,
    distinct,
    read_spools,
    record_schema,
    stream_topic,
)
from klamm.protocol.codes import ErrorCode

RECORDS: Final = "records"
_CHECKPOINT: Final = "_checkpoint"
_SOURCE: Final = "_source.json"
#: Tables made in parallel. For little data, planning a query takes most of the time, on one core.
_SIDE_BY_SIDE: Final = 3


@dataclass(frozen=True, slots=True)
class HistoryTable:
    """A table, the function that makes it, and the tables that the function takes."""

    name: str
    make: Callable[..., DataFrame]
    inputs: tuple[str, ...]


#: In an order in which each comes after its inputs. `min_isr` and `distinct` are not written.
TABLES: Final = (
    HistoryTable("events", tables.events, ("distinct",)),
    HistoryTable("gaps", tables.gaps, ("events",)),
    HistoryTable("controller_terms", tables.controller_terms, ("events",)),
    HistoryTable("decisions", tables.decisions, ("distinct",)),
    HistoryTable("elections", tables.elections, ("decisions",)),
    HistoryTable("isr_changes", tables.isr_changes, ("decisions",)),
    HistoryTable("broker_sessions", tables.broker_sessions, ("distinct", "controller_terms")),
    HistoryTable("topic_life_cycles", tables.topic_life_cycles, ("distinct",)),
    HistoryTable(
        "reassignments", tables.reassignments, ("distinct", "decisions", "controller_terms")
    ),
    HistoryTable("timeline", timelines.timeline, ("distinct", "decisions")),
    HistoryTable("unavailability", timelines.unavailability, ("timeline", "controller_terms")),
    HistoryTable("under_min_isr", timelines.under_min_isr, ("timeline", "min_isr")),
    HistoryTable(
        "availability_by_topic",
        timelines.availability_by_topic,
        ("unavailability", "timeline", "events"),
    ),
    HistoryTable(
        "unavailability_by_broker",
        timelines.unavailability_by_broker,
        ("unavailability", "events"),
    ),
    HistoryTable("latencies", measures.latencies, ("events", "unavailability", "controller_terms")),
    HistoryTable("leadership_churn", measures.leadership_churn, ("elections",)),
    HistoryTable("flapping_brokers", measures.flapping_brokers, ("broker_sessions",)),
    HistoryTable("leader_balance", measures.leader_balance, ("timeline",)),
)


def make_tables(records: DataFrame, min_isr: DataFrame | None = None) -> dict[str, DataFrame]:
    """All tables of a history, as data frames that are not computed yet.

    `min_isr` has `topic` and `min_isr`; topics that it does not name have Kafka's default.
    """
    made = _given(distinct(records), min_isr)
    for table in TABLES:
        made[table.name] = table.make(*(made[name] for name in table.inputs))
    return {table.name: made[table.name] for table in TABLES}


def write_tables(
    records: DataFrame,
    out: Path,
    *,
    min_isr: DataFrame | None = None,
    on_table: Callable[[str], Any] = lambda name: None,
) -> dict[str, DataFrame]:
    """Write every table as Parquet below `out`, and return them as they were written.

    Tables that do not depend on each other are made in parallel; `on_table` gets the name of each.
    """
    spark = records.sparkSession
    once = distinct(records).persist()
    given = _given(once, min_isr)
    made: dict[str, Future[DataFrame]] = {}

    def make(table: HistoryTable) -> DataFrame:
        # Inputs are earlier in the queue, so each has been started.
        inputs = [given[name] if name in given else made[name].result() for name in table.inputs]
        on_table(table.name)
        path = str(out / table.name)
        frame = table.make(*inputs)
        frame.write.mode("overwrite").parquet(path)
        # Without the schema, Spark would start a job to infer it.
        return spark.read.schema(frame.schema).parquet(path)

    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        for table in TABLES:
            made[table.name] = pool.submit(make, table)
        try:
            return {name: written.result() for name, written in made.items()}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            once.unpersist()


class SpoolInput:
    """Spools as the source of a history: `records/` becomes a copy of them."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._bytes_seen = -1

    def check(self) -> None:
        """Raise before Spark starts if there is nothing to read."""
        check_spools(self._directories)

    def lay_down(self, spark: SparkSession, out: Path) -> DataFrame | None:
        """Write the records to `out` and return them; None if nothing is new."""
        files = [path for each in self._directories for path in spool_files(each)]
        size = sum(path.stat().st_size for path in files)
        if size == self._bytes_seen:
            return None
        found = read_spools(spark, self._directories)
        _claim(out, {"spools": [str(each.absolute()) for each in self._directories]})
        found.write.mode("overwrite").parquet(str(out / RECORDS))
        self._bytes_seen = size
        return read_records(spark, out)


class TopicInput:
    """The history topic as the source: `records/` grows by what is new in it since its checkpoint.

    A message that was written in part before a crash is written again; `distinct` removes the copy.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str,
        client_properties: Mapping[str, str] | None = None,
    ) -> None:
        """`client_properties` are Kafka's own, for a secured cluster."""
        self._client_properties = client_properties or {}
        self._bootstrap_servers = bootstrap_servers
        self._topic = topic
        self._is_first = True

    def check(self) -> None:
        """Raise before Spark starts if there is no such topic."""
        security = ClientSecurity.from_properties(self._client_properties)
        with Admin(self._bootstrap_servers, security=security) as admin:
            (found,) = admin.metadata([self._topic]).topics
        if ErrorCode.of(found.error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise ConfigError(
                f"There is no history topic {self._topic} at {self._bootstrap_servers}: set "
                f"klamm.history.topic={self._topic} on the brokers, or name the nodes' spools "
                "(klamm.history.dir) with --spool"
            )

    def lay_down(self, spark: SparkSession, out: Path) -> DataFrame | None:
        """Add new records to `out` and return all; None if nothing is new."""
        _claim(out, {"topic": self._topic})
        query = (
            stream_topic(spark, self._bootstrap_servers, self._topic, self._client_properties)
            .writeStream.format("parquet")
            .option("path", str(out / RECORDS))
            .option("checkpointLocation", str(out / _CHECKPOINT))
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            raise KlammError(f"The history cannot be read from {self._topic}: {error}") from error
        finally:
            query.stop()
        has_news = any(progress.numInputRows for progress in query.recentProgress)
        if not has_news and not self._is_first:
            return None
        self._is_first = False
        return read_records(spark, out)


def read_records(spark: SparkSession, out: Path) -> DataFrame:
    """The records in a folder; no rows if the topic was empty so far."""
    path = out / RECORDS
    if not path.exists():
        return spark.createDataFrame([], record_schema())
    return spark.read.schema(record_schema()).parquet(str(path))


def _given(once: DataFrame, min_isr: DataFrame | None) -> dict[str, DataFrame]:
    if min_isr is None:
        min_isr = once.sparkSession.createDataFrame([], "topic string, min_isr int")
    return {"distinct": once, "min_isr": min_isr}


def _claim(out: Path, source: Mapping[str, Any]) -> None:
    """Store the source of a folder's records, since a checkpoint belongs to one topic."""
    path = out / _SOURCE
    if path.exists():
        before = orjson.loads(path.read_bytes())
        if before.keys() != source.keys() or ("topic" in source and before != source):
            raise ConfigError(
                f"{out} holds a history made from {_named(before)}, not from {_named(source)}: "
                "name another folder with --out, or remove it"
            )
    elif out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty and holds no history: name another folder")
    out.mkdir(parents=True, exist_ok=True)
    path.write_bytes(orjson.dumps(source))


def _named(source: Mapping[str, Any]) -> str:
    return f"topic {source['topic']}" if "topic" in source else "spools"
