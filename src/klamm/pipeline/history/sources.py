"""Where the records of a folder come from: the history topic, or the spools of nodes.

Both go on where they were: the topic from the checkpoint of its stream, spools from the positions
that the folder's manifest has. What is no history is put in the table `quarantine`.
"""

import contextlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from klamm.client.admin import Admin
from klamm.config.client_properties import ClientSecurity
from klamm.errors import ConfigError, KlammError
from klamm.history.arrow import SCHEMA, decode_stream
from klamm.history.spool import read_file
from klamm.pipeline.history.fold.manifest import EventKey
from klamm.pipeline.history.fold.schemas import QUARANTINE
from klamm.pipeline.history.fold.task import STATE, write_records, write_rows
from klamm.pipeline.history.folder import KEYS, HistoryFolder, keys_of
from klamm.pipeline.history.input import check_spools, messages_of_topic, wrong_with
from klamm.pipeline.history.report_facts import Origin, ReportFacts
from klamm.pipeline.ingest.location import Location, locate
from klamm.pipeline.output import object_store_settings, output_folder
from klamm.pipeline.session import are_little
from klamm.protocol.codes import ErrorCode

OnFacts: TypeAlias = Callable[[ReportFacts], Any]

_CHECKPOINT: Final = "_checkpoint"
#: Shards of topics; a little history needs no more than one.
SHARDS: Final = 4
#: Messages in one micro-batch, and bytes of spools in one refresh.
_MESSAGES_MAX: Final = 20_000
_PORTION_BYTES: Final = 64 << 20
#: The bytes that are kept of a spool file that is not a history.
_FILE_KEPT_BYTES: Final = 64 << 10
#: The output of a task that reads messages: the keys of records, their file, and the number of
#: messages that are not of a history.
_TAKEN_IN: Final = pa.schema(
    [
        *KEYS,
        ("file", pa.string()),
        ("quarantined", pa.int64()),
        ("path", pa.string()),
        ("position", pa.int64()),
    ]
)
_TAKEN_IN_DDL: Final = (
    "controller_epoch int, seq bigint, part int, parts int, decision_count int, at bigint, "
    "cluster_id string, "
    "file string, quarantined bigint, path string, position bigint"
)


def open_folder(
    spark: SparkSession,
    out: str | Path,
    origin: Origin,
    *,
    shards: int = SHARDS,
    min_isr: Mapping[str, int] | None = None,
) -> HistoryFolder:
    """The folder that a user named, in the file system that Spark would write it to."""
    place = locate(str(output_folder(spark, str(out))).replace("file:/", "/", 1))
    place = replace(place, store=object_store_settings(spark, place.uri))
    return HistoryFolder(spark, place, origin, shards=shards, min_isr=min_isr)


class SpoolInput:
    """Spools as the source of a history."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = [each.absolute() for each in directories]

    def check(self) -> None:
        """Raise before Spark starts if there is nothing to read."""
        check_spools(self._directories)

    def update(
        self,
        spark: SparkSession,
        out: str | Path,
        *,
        min_isr: Mapping[str, int] | None = None,
        follow_s: float | None = None,
        on_facts: OnFacts = lambda facts: None,
    ) -> ReportFacts | None:
        """Bring the folder up to date, once or (`follow_s`) again and again.

        Returns the last facts, None if there are no events at all.
        """
        is_little = are_little(self._directories)
        origin = Origin(
            {"spools": [str(each) for each in self._directories]},
            f"spools {', '.join(str(each) for each in self._directories)}",
        )
        shards = 1 if is_little and follow_s is None else SHARDS
        folder = open_folder(spark, out, origin, shards=shards, min_isr=min_isr or {})
        facts = self._take_in(spark, folder, is_forced=True)
        while True:
            if facts is not None and facts.counts["events"]:
                on_facts(facts)
            if follow_s is None:
                return facts
            sleep(follow_s)
            facts = self._take_in(spark, folder)

    def _take_in(
        self, spark: SparkSession, folder: HistoryFolder, *, is_forced: bool = False
    ) -> ReportFacts | None:
        portions = list(_portions(_unread(self._directories, folder.manifest.positions)))
        facts: ReportFacts | None = None
        # Portions are in order: what is before the next one may be sealed.
        for number, portion in enumerate(portions):
            is_last = number + 1 == len(portions)
            later = None if is_last else portions[number + 1][0][0]
            files = [(str(path), offset) for _, path, offset in portion]
            taken = _read_portion(spark, folder, files)
            folder.manifest.positions.update(taken.positions)
            folder.manifest.quarantined += taken.quarantined
            facts = (
                folder.refresh(
                    taken.files,
                    taken.keys,
                    seal_before=later,
                    is_forced=bool(taken.quarantined),
                )
                or facts
            )
        if facts is None and is_forced:
            facts = folder.refresh([], KEYS.empty_table(), is_forced=True)
        return facts


class TopicInput:
    """The history topic as the source."""

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
        self._cluster_id: str | None = None

    def check(self) -> None:
        """Raise before Spark starts if there is no such topic."""
        security = ClientSecurity.from_properties(self._client_properties)
        with Admin(self._bootstrap_servers, security=security) as admin:
            metadata = admin.metadata([self._topic])
        (found,) = metadata.topics
        self._cluster_id = metadata.cluster_id
        if ErrorCode.of(found.error_code) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise ConfigError(
                f"There is no history topic {self._topic} at {self._bootstrap_servers}: set "
                f"klamm.history.topic={self._topic} on the brokers, or name the nodes' spools "
                "(klamm.history.dir) with --spool"
            )

    def update(
        self,
        spark: SparkSession,
        out: str | Path,
        *,
        min_isr: Mapping[str, int] | None = None,
        follow_s: float | None = None,
        on_facts: OnFacts = lambda facts: None,
    ) -> ReportFacts | None:
        """Bring the folder up to date, once or (`follow_s`) with one stream that goes on.

        Returns the last facts, None if there are no events at all.
        """
        origin = Origin(
            {"topic": self._topic},
            f"{self._bootstrap_servers}, topic {self._topic}",
            self._cluster_id,
        )
        folder = open_folder(spark, out, origin, min_isr=min_isr or {})
        last: list[ReportFacts] = []

        def show(facts: ReportFacts | None) -> None:
            if facts is not None and facts.counts["events"]:
                last[:] = [facts]
                on_facts(facts)

        def on_batch(messages: DataFrame, batch: int) -> None:
            show(_take_in_messages(folder, messages, batch))

        if follow_s is not None and folder.manifest.serial:
            show(folder.refresh([], KEYS.empty_table(), is_forced=True))
        writer = (
            messages_of_topic(
                spark,
                self._bootstrap_servers,
                self._topic,
                self._client_properties,
                maxOffsetsPerTrigger=str(_MESSAGES_MAX),
            )
            .select("topic", "partition", "offset", "timestamp", "value")
            .writeStream.foreachBatch(on_batch)
            .option("checkpointLocation", folder.path(_CHECKPOINT))
        )
        if follow_s is None:
            writer = writer.trigger(availableNow=True)
        else:
            writer = writer.trigger(processingTime=f"{follow_s} seconds")
        query = writer.start()
        try:
            # In short waits, so that Ctrl-C is noticed.
            while not query.awaitTermination(1):
                pass
        except StreamingQueryException as error:
            raise KlammError(
                f"The history cannot be read from {self._topic}: {_reason(error)}"
            ) from error
        finally:
            query.stop()
        if not last:
            show(folder.refresh([], KEYS.empty_table(), is_forced=True))
        return last[0] if last else None


@dataclass(frozen=True, slots=True)
class TakenIn:
    """What tasks have put aside for a refresh."""

    files: list[str]
    keys: pa.Table
    positions: dict[str, int]
    quarantined: int

    @classmethod
    def of(cls, rows: pa.Table) -> "TakenIn":
        """From what the tasks said: keys of records, and a row without a key for each input."""
        is_key = pc.is_valid(rows.column("seq"))
        keys, inputs = rows.filter(is_key), rows.filter(pc.invert(is_key)).to_pylist()
        return cls(
            files=sorted(set(keys.column("file").to_pylist())),
            keys=keys.select(KEYS.names),
            positions={each["path"]: each["position"] for each in inputs if each["path"]},
            quarantined=sum(each["quarantined"] for each in inputs),
        )


# Messages


def _take_in_messages(folder: HistoryFolder, messages: DataFrame, batch: int) -> ReportFacts | None:
    serial = folder.next_serial
    task = partial(_put_aside_messages, folder.place, folder.manifest.cluster_id, serial, batch)
    rows = messages.mapInArrow(task, _TAKEN_IN_DDL).toArrow().cast(_TAKEN_IN)
    taken = TakenIn.of(rows)
    folder.manifest.quarantined += taken.quarantined
    return folder.refresh(taken.files, taken.keys, is_forced=bool(taken.quarantined))


def _put_aside_messages(
    folder: Location,
    cluster_id: str | None,
    serial: int,
    batch: int,
    messages: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """In a task: write records and what is none to files, and say which."""
    context = TaskContext.get()
    number = 0 if context is None else context.partitionId()
    records: list[pa.RecordBatch] = []
    foreign: list[dict[str, Any]] = []
    for some in messages:
        values = some.column("value")
        for at, row in enumerate(some.drop_columns(["value"]).to_pylist()):
            source = f"{row['topic']}-{row['partition']} at {row['offset']}"
            value = values[at].as_buffer() if values[at].is_valid else None
            try:
                records += decode_stream(value, source)
            except KlammError as error:
                content = None if value is None else value.to_pybytes()
                foreign.append(
                    row | {"reason": str(error), "bytes": content, "cluster_id": cluster_id}
                )
    if foreign:
        name = f"part-{batch:010d}-{number:05d}.parquet"
        write_rows(folder, f"quarantine/{name}", QUARANTINE, foreign)
    if records:
        name = f"incoming-{serial:08d}-{number:05d}.arrows"
        yield put_aside(folder, name, records)
    yield _input_row(quarantined=len(foreign))


# Spools


def _unread(
    directories: Sequence[Path], positions: Mapping[str, int]
) -> list[tuple[EventKey, Path, int]]:
    """Files that have grown, with the first event that was not read, in the order of events."""
    found: list[tuple[EventKey, Path, int]] = []
    for path in check_spools(directories):
        offset = positions.get(str(path), 0)
        if path.stat().st_size > offset:
            first: EventKey = (0, 0)
            if wrong_with(path) is None:
                read = next(iter(read_file(path, offset)), None)
                if read is None:
                    continue
                names = ("controller_epoch", "seq")
                epoch, seq = (read.batch.column(name)[0].as_py() for name in names)
                first = (epoch, seq)
            found.append((first, path, offset))
    return sorted(found)


def _portions(
    unread: Iterable[tuple[EventKey, Path, int]],
) -> Iterator[list[tuple[EventKey, Path, int]]]:
    portion: list[tuple[EventKey, Path, int]] = []
    size = 0
    for each in unread:
        portion.append(each)
        size += each[1].stat().st_size - each[2]
        if size >= _PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


def _read_portion(
    spark: SparkSession, folder: HistoryFolder, files: Sequence[tuple[str, int]]
) -> TakenIn:
    task = partial(_put_aside_files, folder.place, folder.manifest.cluster_id, folder.next_serial)
    numbered = [(number, *each) for number, each in enumerate(files)]
    if are_little([Path(path) for path, _ in files]):
        # Small spools are read here: starting a worker would take longer.
        columns = dict(zip(("number", "path", "offset"), zip(*numbered, strict=True), strict=True))
        batches = task([pa.RecordBatch.from_pydict({n: list(v) for n, v in columns.items()})])
        return TakenIn.of(pa.Table.from_batches(batches, _TAKEN_IN))
    frame = spark.createDataFrame(numbered, "number int, path string, offset bigint")
    spread = frame.repartition(len(files), "number")
    return TakenIn.of(spread.mapInArrow(task, _TAKEN_IN_DDL).toArrow().cast(_TAKEN_IN))


def _put_aside_files(
    folder: Location, cluster_id: str | None, serial: int, files: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Write the records of spool files to files of the folder, and say which."""
    for some in files:
        for file in some.to_pylist():
            path, position = Path(file["path"]), file["offset"]
            reason = wrong_with(path)
            if reason is not None:
                position = path.stat().st_size
                _quarantine_file(folder, path, reason, cluster_id)
            else:
                records = []
                for read in read_file(path, position):
                    records.append(read.batch)
                    position = read.end
                if records:
                    name = f"incoming-{serial:08d}-{file['number']:05d}.arrows"
                    yield put_aside(folder, name, records)
            yield _input_row(
                quarantined=int(reason is not None), path=file["path"], position=position
            )


def _quarantine_file(folder: Location, path: Path, reason: str, cluster_id: str | None) -> None:
    content = None
    with contextlib.suppress(OSError), path.open("rb") as file:
        content = file.read(_FILE_KEPT_BYTES)
    row = {
        "file": str(path),
        "offset": 0,
        "reason": reason,
        "bytes": content,
        "cluster_id": cluster_id,
    }
    name = f"part-{zlib.crc32(str(path).encode()):010d}-00000.parquet"
    write_rows(folder, f"quarantine/{name}", QUARANTINE, [row])


def put_aside(folder: Location, name: str, records: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Write records to a file of the folder's state; say which, with their keys (`_TAKEN_IN`)."""
    table = pa.Table.from_batches(records, SCHEMA)
    write_records(folder / STATE / name, table)
    keys = keys_of(table).combine_chunks()
    rows = {each: keys.column(each).combine_chunks() for each in KEYS.names}
    rows["file"] = pa.array([name] * len(keys), pa.string())
    for field in _TAKEN_IN:
        rows.setdefault(field.name, pa.nulls(len(keys), field.type))
    return pa.RecordBatch.from_arrays([rows[field.name] for field in _TAKEN_IN], schema=_TAKEN_IN)


def _input_row(
    quarantined: int, path: str | None = None, position: int | None = None
) -> pa.RecordBatch:
    row = {"quarantined": quarantined, "path": path, "position": position}
    return pa.RecordBatch.from_pylist([row], schema=_TAKEN_IN)


def _reason(error: Exception) -> str:
    """What went wrong, without the stack of Spark's calls."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = [line for line in lines if line.startswith(("klamm.errors.", "py4j.", "KlammError"))]
    return (said or lines or [type(error).__name__])[0]
