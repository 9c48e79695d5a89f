"""A cluster's metadata at one moment, as tables.

A snapshot is a folder with the Parquet tables `brokers`, `topics`, `partitions` and `meta`. The
last one says which version of this form it is; a folder without it was made by hand, to this one.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import parquet
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    StringType,
)

from klamm.errors import ConfigError
from klamm.pipeline import arrow
from klamm.pipeline.session import (
    are_little,
    is_connected,
    is_for_little,
    planned_for_much,
    side_by_side,
    told_by_task,
)

_INTS: Final = ArrayType(IntegerType())
#: The columns that other commands read. Further columns are ignored.
_WANTED: Final[dict[str, dict[str, DataType]]] = {
    "brokers": {"id": IntegerType(), "rack": StringType()},
    "topics": {"topic": StringType(), "partitions": IntegerType()},
    "partitions": {
        "topic": StringType(),
        "partition": IntegerType(),
        "replicas": _INTS,
        "isr": _INTS,
        "leader": IntegerType(),
        "leader_epoch": IntegerType(),
        "min_isr": IntegerType(),
        "unclean": BooleanType(),
        "bytes": LongType(),
    },
}
#: The same columns in Arrow, and those of `meta`.
_AS_WRITTEN: Final = {
    name: pa.schema([schema.field(column) for column in _WANTED.get(name, schema.names)])
    for name, schema in (
        ("brokers", arrow.BROKERS),
        ("topics", arrow.TOPICS),
        ("partitions", arrow.PARTITIONS),
        ("meta", arrow.META),
    )
}
_META: Final = "version int, cluster_id string, source string, taken_at timestamp"
ROWS_PER_FILE: Final = 250_000
_NOT_FOUND: Final = frozenset({"PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"})


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What was read from a cluster, with the schemas of `klamm.pipeline.arrow`.

    Tables are of Arrow; topics and partitions may be data frames, which are read when they are
    used.
    """

    cluster_id: str | None
    source: str
    taken_at: datetime
    brokers: pa.Table
    topics: pa.Table | DataFrame
    partitions: pa.Table | DataFrame
    #: Whether there is so much that queries are to be planned for it.
    is_large: bool = False

    @property
    def meta(self) -> pa.Table:
        row = {
            "version": arrow.SNAPSHOT_VERSION,
            "cluster_id": self.cluster_id,
            "source": self.source,
            "taken_at": self.taken_at,
        }
        return pa.Table.from_pylist([row], arrow.META)

    def summary(self, rows: Mapping[str, int]) -> dict[str, Any]:
        """The numbers of brokers, topics and partitions, for JSON output."""
        return {
            "cluster_id": self.cluster_id,
            "source": self.source,
            "taken_at": self.taken_at.isoformat(),
            **{name: rows[name] for name in _WANTED},
        }


@dataclass(frozen=True, slots=True, eq=False)
class SnapshotFrames:
    """A snapshot as data frames."""

    brokers: DataFrame
    topics: DataFrame
    partitions: DataFrame
    alive: Mapping[int, str | None]  # brokers with their racks
    facts: Mapping[str, str]  # for reports: which cluster, and when
    #: The partitions once more, if they are so little that the driver has read them itself.
    partitions_here: pa.Table | None = None

    def racks(self) -> dict[int, str | None]:
        """The brokers that were alive, with their racks."""
        return dict(self.alive)


def now() -> datetime:
    """The present time, as the time of a snapshot."""
    return datetime.now(UTC)


def write_snapshot(spark: SparkSession, snapshot: Snapshot, path: str) -> dict[str, int]:
    """Write the tables of a snapshot below `path`, in place of existing ones; count their rows."""
    names = ("brokers", "topics", "partitions", "meta")

    def write(name: str) -> int:
        return write_table(spark, getattr(snapshot, name), f"{path}/{name}")

    with planned_for_much(spark) if snapshot.is_large else nullcontext():
        counts = side_by_side(*(partial(write, name) for name in names))
    return dict(zip(names, counts, strict=True))


def write_table(spark: SparkSession, table: pa.Table | DataFrame, path: str) -> int:
    """Write a table as Parquet; returns the number of its rows."""
    if isinstance(table, DataFrame):
        try:
            table.write.mode("overwrite").parquet(path)
        except PySparkException as error:
            raise told_by_task(error) from error
        return spark.read.schema(table.schema).parquet(path).count()
    # Spark makes a partition of every ten thousand rows, or of every chunk that is smaller.
    frame = spark.createDataFrame(table.combine_chunks())
    files = 1 + table.num_rows // ROWS_PER_FILE
    frame.coalesce(files).write.mode("overwrite").parquet(path)
    return int(table.num_rows)


def read_snapshot(spark: SparkSession, path: str) -> SnapshotFrames:
    """Read a snapshot; ConfigError says what is wrong with it.

    A snapshot without a live broker is refused, since no question about it has an answer.
    """
    tables = _read_here(path) if _is_little_here(spark, path) else None
    if tables is None:
        facts = _read_meta(spark, path)
        brokers, topics, partitions = side_by_side(
            *(partial(_read_table, spark, path, name) for name in _WANTED)
        )
        rows = [row.asDict() for row in brokers.collect()]
    else:
        facts = _facts(path, tables["meta"].to_pylist())
        brokers, topics, partitions = (spark.createDataFrame(tables[name]) for name in _WANTED)
        rows = tables["brokers"].to_pylist()
    racks = {row["id"]: row["rack"] or None for row in sorted(rows, key=itemgetter("id"))}
    if not racks:
        raise ConfigError(f"The cluster in the snapshot {path} is empty: it has no broker.")
    here = None if tables is None else tables["partitions"]
    return SnapshotFrames(brokers, topics, partitions, racks, facts, here)


def _is_little_here(spark: SparkSession, path: str) -> bool:
    """Whether Spark would read little from this machine's own disk."""
    if is_connected(spark) or not is_for_little(spark) or not are_little([Path(path)]):
        return False
    jvm: Any = spark.sparkContext._jsc
    return str(jvm.hadoopConfiguration().get("fs.defaultFS")).startswith("file:")


def _read_here(path: str) -> dict[str, pa.Table] | None:
    """The tables of a snapshot, read without Spark, whose first queries take seconds.

    None if they are not as `write_snapshot` writes them: Spark then says what is wrong.
    """
    tables = {}
    try:
        for name, schema in _AS_WRITTEN.items():
            table = parquet.read_table(f"{path}/{name}", columns=schema.names)
            if table.schema.types != schema.types:
                return None
            # Spark does not take a table without a chunk.
            tables[name] = pa.concat_tables([schema.empty_table(), table.cast(schema)])
    except (pa.ArrowException, OSError, KeyError, ValueError):
        return None
    return tables


def _read_meta(spark: SparkSession, path: str) -> dict[str, str]:
    """What a snapshot says about itself; nothing if it was made by hand."""
    try:
        rows = spark.read.schema(_META).parquet(f"{path}/meta").collect()
    except AnalysisException as error:
        if error.getCondition() not in _NOT_FOUND:
            raise
        return {}
    return _facts(path, [row.asDict() for row in rows])


def _facts(path: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    versions = {row["version"] for row in rows}
    if versions != {arrow.SNAPSHOT_VERSION}:
        found = ", ".join(map(str, sorted(versions))) or "no version"
        raise ConfigError(
            f"The snapshot {path} is of version {found}, and this klamm reads version "
            f"{arrow.SNAPSHOT_VERSION}: take it again with `klamm snapshot`."
        )
    (meta,) = rows
    facts = {"Cluster": meta["cluster_id"], "Read from": meta["source"]}
    if meta["taken_at"] is not None:
        facts["Taken"] = f"{meta['taken_at']:%Y-%m-%d %H:%M:%S} UTC"
    return {name: value for name, value in facts.items() if value}


def _read_table(spark: SparkSession, path: str, name: str) -> DataFrame:
    try:
        frame = spark.read.parquet(f"{path}/{name}")
    except AnalysisException as error:
        if error.getCondition() not in _NOT_FOUND:
            raise
        raise ConfigError(
            f"{path} is not a snapshot: it has no table {name}/. Take one with `klamm snapshot`."
        ) from None
    wanted = _WANTED[name]
    found = {field.name: field.dataType for field in frame.schema.fields}
    if missing := [column for column in wanted if column not in found]:
        raise ConfigError(
            f"{path}/{name} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; "
            f"it has {', '.join(found) or 'none'}."
        )
    for column, kind in wanted.items():
        if found[column].simpleString() != kind.simpleString():
            raise ConfigError(
                f"{path}/{name}: {column} is {found[column].simpleString()}, "
                f"expected is {kind.simpleString()}."
            )
    return frame.select(*wanted)
