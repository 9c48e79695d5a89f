"""The records of a history as a data frame: from spool files, or streamed from the topic.

The columns are those of docs/history.md. Whichever way they come, records may come twice and in any
order; `distinct` and the order of `(controller_epoch, seq)` put that right.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from klamm.errors import ConfigError, KlammError
from klamm.history.arrow import SCHEMA, check_schema, decode_stream
from klamm.history.broker_history import has_broker_records
from klamm.history.spool import SUFFIX, read_file, spool_files
from klamm.pipeline.session import are_little

#: An event is named by these; a part of it by `part` as well.
EVENT: Final = ("controller_epoch", "seq")
_RECORD: Final = (*EVENT, "part")
#: How every message of an Arrow stream begins.
_ARROW_MARK: Final = b"\xff\xff\xff\xff"
_PATH_COLUMN: Final = "path"


def record_schema() -> StructType:
    """The columns of docs/history.md, as Spark has them."""
    return from_arrow_schema(SCHEMA)


def micros(column: Column | str) -> Column:
    """A number of microseconds as an interval, to be added to a time."""
    return F.make_dt_interval(secs=F.col(column) / 1e6 if isinstance(column, str) else column / 1e6)


def distinct(records: DataFrame) -> DataFrame:
    """Remove duplicates: a record may be shipped more than once."""
    return records.dropDuplicates(list(_RECORD))


def read_spools(spark: SparkSession, directories: Sequence[Path]) -> DataFrame:
    """The records of spools; Spark's workers read large ones and must see their files.

    A file that a crash tore is read up to there. One that is no history is left out.
    """
    files = check_spools(directories)
    if are_little(files):
        # Small spools are read here: starting a worker would take longer.
        records = pa.Table.from_batches(_read_records(files), SCHEMA).combine_chunks()
        # Spark does not accept a table without chunks.
        return spark.createDataFrame(records if records.num_rows else [], record_schema())
    paths = spark.createDataFrame([(str(path),) for path in files], f"{_PATH_COLUMN} string")
    spread = paths.repartition(max(1, len(files)), _PATH_COLUMN)
    return spread.mapInArrow(_read_files, record_schema())


def messages_of_topic(
    spark: SparkSession,
    bootstrap_servers: str,
    topic: str,
    client_properties: Mapping[str, str] | None = None,
    **options: str,
) -> DataFrame:
    """The messages of a history topic as a stream, from its beginning unless a checkpoint says
    otherwise.
    """
    return (
        spark.readStream.format("klamm")
        .options(**{f"kafka.{key}": value for key, value in (client_properties or {}).items()})
        .options(**options)
        .option("kafka.bootstrap.servers", bootstrap_servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        # Events that retention removed show as gaps in the sequences.
        .option("failOnDataLoss", "false")
        .load()
    )


def stream_topic(
    spark: SparkSession,
    bootstrap_servers: str,
    topic: str,
    client_properties: Mapping[str, str] | None = None,
) -> DataFrame:
    """The records of a history topic as a stream; messages that are no history are left out."""
    return decode_messages(messages_of_topic(spark, bootstrap_servers, topic, client_properties))


def decode_messages(messages: DataFrame) -> DataFrame:
    """The records in messages of the history topic: a data frame with Kafka's `value` column.

    Messages that are no history are left out.
    """
    return messages.select("value").mapInArrow(_decode_values, record_schema())


def check_spools(directories: Sequence[Path]) -> list[Path]:
    """The files of these spools; ConfigError if a spool is missing, or there is no history at all.

    A node that was never controller has only its broker's records, which are not read here.
    """
    files = [path for directory in directories for path in _files_of(directory)]
    if directories and not files:
        raise ConfigError(_no_history(directories[0]))
    return files


def _files_of(directory: Path) -> list[Path]:
    if not directory.is_dir():
        raise ConfigError(
            f"There is no spool {directory}; klamm.history.dir says where each node has its own"
        )
    files = spool_files(directory)
    if not files and not has_broker_records(directory):
        raise ConfigError(_no_history(directory))
    return files


def _no_history(directory: Path) -> str:
    return (
        f"{directory} holds no history: there are no *{SUFFIX} files, which a node writes to "
        "klamm.history.dir once it is controller"
    )


def wrong_with(path: Path) -> str | None:
    """Why a spool file is no history; None if it is one, or was torn in its first message."""
    try:
        with path.open("rb") as file:
            mark = file.read(len(_ARROW_MARK))
            if not _ARROW_MARK.startswith(mark):
                return f"{path} is no history: it is not an Arrow stream"
            file.seek(0)
            try:
                schema = pa.ipc.read_schema(pa.ipc.read_message(file))
            except (EOFError, OSError, pa.ArrowInvalid):
                return None
        check_schema(schema, path)
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    except KlammError as error:
        return str(error)
    return None


def _read_files(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield from _read_records(map(Path, batch.column(_PATH_COLUMN).to_pylist()))


def _read_records(files: Iterable[Path]) -> Iterator[pa.RecordBatch]:
    for path in files:
        if wrong_with(path) is None:
            for read in read_file(path):
                yield read.batch


def _decode_values(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for value in batch.column("value"):
            with contextlib.suppress(KlammError):
                yield from decode_stream(value.as_buffer(), "a message")
