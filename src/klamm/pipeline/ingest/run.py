"""The driver of an ingestion: plan batches, run them as Spark jobs, commit what they made."""

import functools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadMaxRows

from klamm.errors import ConfigError, KlammError
from klamm.names import counted
from klamm.pipeline.ingest.checkpoint import BatchPlan, Checkpoint
from klamm.pipeline.ingest.evolution import merged_schema
from klamm.pipeline.ingest.expectations import check_expectations
from klamm.pipeline.ingest.files import DataFile, groups_to_compact
from klamm.pipeline.ingest.formats.choice import FormatChoice, choose_format
from klamm.pipeline.ingest.formats.parsing import DEAD_LETTER_SCHEMA
from klamm.pipeline.ingest.keys import ChangeMaker, change_layout
from klamm.pipeline.ingest.location import Location, locate
from klamm.pipeline.ingest.merging import (
    MergeWork,
    merge_units,
    run_compactions,
    run_merges,
    wanted_bits,
)
from klamm.pipeline.ingest.options import IngestOptions, TableTarget
from klamm.pipeline.ingest.tables.table import (
    Commit,
    CommitConflictError,
    Table,
    checkpoint_beside,
    create_table,
    open_table,
)
from klamm.pipeline.ingest.task import RESULT_DDL, Outcome, Work, run_tasks
from klamm.pipeline.session import default_tasks, told_by_task
from klamm.pipeline.source.offsets import Position
from klamm.pipeline.source.options import read_options
from klamm.pipeline.source.ranges import OffsetRange, RangeBundle, behind
from klamm.pipeline.source.reader import TopicStreamReader

#: A schema is inferred from this many records at each end of each partition.
_SAMPLE: Final = 1000
#: Between batches, files are compacted when at least this many can be merged.
_SMALL_FILES: Final = 16
#: Old versions are deleted once per this many batches, and at the end.
_EXPIRE_EVERY: Final = 50
_CONFLICTS_MAX: Final = 5
#: Fewer records than this are not worth a second task, and a second file.
_TASK_RECORDS: Final = 50_000
_CHANGES: Final = "changes"


class TooManyBadError(KlammError):
    """More records fail to parse than the user allows; the batch is not committed."""


@dataclass
class Summary:
    """What a run has done so far."""

    query: str = ""
    batches: int = 0
    records: int = 0
    bytes: int = 0
    rows: int = 0
    bad: int = 0
    broken: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    #: Offsets that are in the topics and not yet in the table.
    lag: int = 0
    #: The files of the table.
    files: int = 0
    compactions: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


Progress = Callable[[Summary], None]


def ingest_topics(
    spark: SparkSession,
    options: IngestOptions,
    *,
    continuous: bool = False,
    every_s: float = 5.0,
    stop: threading.Event | None = None,
    on_progress: Progress | None = None,
) -> Summary:
    """Bring a table up to date with its topics; each offset is in it once.

    What is there when the run begins is read and committed. A continuous run goes on with what
    comes, at most a batch every `every_s` seconds, until `stop` is set.
    """
    stop = stop or threading.Event()
    run = Ingestion(spark, options, on_progress or (lambda _: None))
    run.finish_last_batch()
    run.take_aim(continuous=continuous)
    while not stop.is_set():
        began = time.monotonic()
        if run.ingest_next_batch():
            if continuous:
                stop.wait(max(every_s - (time.monotonic() - began), 0))
        elif not continuous:
            break
        else:
            stop.wait(every_s)
    return run.finish()


class Ingestion:
    """One query, from its checkpoint on."""

    def __init__(self, spark: SparkSession, options: IngestOptions, on_progress: Progress) -> None:
        self._spark = spark
        self._options = options
        self._on_progress = on_progress
        self._began = time.monotonic()
        self._slots = default_tasks(spark)
        self._read = read_options(
            {
                **{f"kafka.{name}": value for name, value in options.kafka.items()},
                "kafka.bootstrap.servers": options.bootstrap_servers,
                "kafka.isolation.level": options.kafka.get("isolation.level", "read_committed"),
                "subscribe": ",".join(options.topics),
                "startingOffsets": options.starting,
                "failOnDataLoss": str(not options.allow_data_loss).lower(),
                "minPartitions": str(self._slots),
                "includeHeaders": str(options.include_headers).lower(),
            },
            streaming=True,
        )
        self._reader = TopicStreamReader(self._read)
        folder = locate(options.checkpoint or checkpoint_beside(options.to, options.catalog))
        # Before anything is written: the cluster can be reached, and there are such topics.
        self._initial = self._reader.initialOffset()
        self._table = open_table(options.to, options.catalog)
        self._dead_letters = open_table(options.to.dead_letters, options.catalog)
        if self._table is not None and (folder / "query.json").read() is None:
            raise _another_owner(options.to, self._table.owner)
        has_table = self._table is not None or self._dead_letters is not None
        self._checkpoint = Checkpoint(folder, _identity(options), has_table=has_table)
        query = self._checkpoint.query
        for table, target in (
            (self._table, options.to),
            (self._dead_letters, options.to.dead_letters),
        ):
            if table is not None and table.owner != query:
                raise _another_owner(target, table.owner)
        self._format: FormatChoice | None = None
        self.summary = Summary(query=query)

    def finish_last_batch(self) -> None:
        """Finish what a run before this one began and did not commit."""
        plan = self._checkpoint.last
        done = None if self._table is None else self._table.last_batch
        done = -1 if done is None else done
        planned = -1 if plan is None else plan.number
        if plan is not None and planned == done + 1:
            if planned > 0 and self._table is None:
                raise ConfigError(
                    f"{self._options.to} is gone, and the checkpoint {self._checkpoint.folder} "
                    f"says that it had {planned} batches. Delete the checkpoint to begin anew."
                )
            self._run_batch(plan)
        elif planned == done:
            # Change files of a batch that was committed by a driver that was killed right after.
            for name in self._change_folder.names():
                self._change_folder.delete(name)
        else:
            raise ConfigError(
                f"{self._options.to} has batches up to {done}, and the checkpoint "
                f"{self._checkpoint.folder} has batches up to {planned}: they do not belong "
                "together. Restore the one that is older, or begin anew with neither."
            )

    def take_aim(self, *, continuous: bool) -> None:
        """Unless the run is continuous, it reads what is there now and no further."""
        if not continuous:
            self._reader.prepareForTriggerAvailableNow()

    def ingest_next_batch(self) -> bool:
        """Plan, run and commit one batch; False if there is nothing to read."""
        last = self._checkpoint.last
        start = self._initial if last is None else last.end
        end = self._reader.latestOffset(dict(start), ReadMaxRows(self._options.batch_records))
        self._measure_lag(end)
        if end == start:
            return False
        number = 0 if last is None else last.number + 1
        self._run_batch(self._checkpoint.add_plan(BatchPlan(number, start, end)))
        self._measure_lag(end)
        self._tidy()
        self._report()
        return True

    def finish(self) -> Summary:
        """Compact what is left to compact, and sum up."""
        if self._options.format == "raw" or self._options.schema is not None:
            self._open_tables([])  # of empty topics too, for readers that do not wait for records
        self._tidy(is_last=True)
        if self._table is not None:
            self.summary.files = len(self._table.files())
        self._report()
        return self.summary

    def _run_batch(self, plan: BatchPlan) -> None:
        made = self._checkpoint.prepared(plan.number)
        if made is None:
            ranges = self._ranges(plan)
            table, dead_letters = self._open_tables(ranges)
            outcome = self._run_until_known(ranges, table, dead_letters)
            self._check_bad(outcome, table, dead_letters)
            made = self._checkpoint.prepare(plan.number, outcome.to_json())
        outcome = Outcome.from_json(made)
        table, dead_letters = self._open_tables([])
        notes = {"start": plan.start, "end": plan.end, "records": outcome.records}
        letters = Commit(outcome.dead_letters, batch=plan.number, notes=notes)
        if outcome.dead_letters:
            _commit_once(dead_letters, plan.number, lambda: letters)
        _commit_once(table, plan.number, lambda: self._change(plan.number, outcome, table, notes))
        self._drop_changes(outcome)
        self._count(outcome)

    def _change(
        self, number: int, outcome: Outcome, table: Table, notes: Mapping[str, Any]
    ) -> Commit:
        """What a batch changes in the table as it is now."""
        if self._options.mode == "append":
            return Commit(outcome.files, batch=number, notes=notes)
        assert self._format is not None
        files = table.files()
        units = merge_units(files, outcome.files)
        work = MergeWork(
            layout=table.layout(self._whole_schema(table), self._options.partition_by),
            change_folder=self._change_folder,
            key=self._options.key_columns,
            bits=max([0, *(each.bucket.bits for each in (*files, *outcome.files))]),
            offset_column="offset" if self._options.format == "raw" else "_offset",
        )
        merged = self._run_job(functools.partial(run_merges, units=units, work=work), len(units))
        written = [DataFile.from_json(each) for result in merged for each in result["files"]]
        replaced = [each for unit in units for each in unit.files]
        return Commit(written, replaced, batch=number, notes=notes)

    def _run_until_known(
        self, ranges: Sequence[OffsetRange], table: Table, dead_letters: Table
    ) -> Outcome:
        """Run a batch; if it has schemas that the query does not know, learn them and run again."""
        assert self._format is not None
        while True:
            outcome = self._run_tasks(ranges, table, dead_letters)
            if not outcome.unknown_schemas:
                return outcome
            self._discard(outcome, table, dead_letters)
            self._format.learn(outcome.unknown_schemas)
            kept = self._format.to_json()
            assert kept is not None
            self._checkpoint.keep_schema(kept)
            table.evolve(self._format.schema)

    def _run_tasks(
        self, ranges: Sequence[OffsetRange], table: Table, dead_letters: Table
    ) -> Outcome:
        assert self._format is not None
        groups = _grouped(ranges, self._slots)
        changes = None
        if self._options.mode == "upsert":
            changes = ChangeMaker(
                key=self._options.key_columns,
                folder=self._change_folder,
                bits=wanted_bits(table.files(), self._options.file_bytes),
                is_raw=self._options.format == "raw",
                key_parser=self._format.key_parser,
            )
        work = Work(
            read=self._read,
            parser=self._format.parser,
            layout=table.layout(self._format.schema, self._options.partition_by),
            dead_letter_layout=dead_letters.layout(DEAD_LETTER_SCHEMA, ()),
            expectations=self._options.expectations,
            changes=changes,
        )
        outcome = Outcome()
        job = functools.partial(run_tasks, groups=groups, work=work)
        for result in self._run_job(job, len(groups)):
            outcome.add(Outcome.from_json(result))
        return outcome

    def _run_job(
        self, job: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], count: int
    ) -> list[dict[str, Any]]:
        """Run a function as `count` tasks, each of which gets one number."""
        if not count:
            return []
        ids = self._spark.range(0, count, 1, count)
        try:
            rows = ids.mapInArrow(job, RESULT_DDL).collect()
        except PySparkException as error:
            raise told_by_task(error) from error
        return [json.loads(row[0]) for row in rows]

    def _open_tables(self, ranges: Sequence[OffsetRange]) -> tuple[Table, Table]:
        """Both tables, created if this is the query's first batch."""
        options = self._options
        if self._format is None:
            kept = self._checkpoint.schema()
            self._format = choose_format(options, kept, lambda: self._sample(ranges))
            self._check_columns(self._format.schema)
            content = self._format.to_json()
            if kept is None and content is not None:
                kept = self._checkpoint.keep_schema(content)
                self._format = choose_format(options, kept, lambda: self._sample(ranges))
            if self._table is not None:
                merged_schema(self._table.schema(), self._format.schema)
                self._table.evolve(self._format.schema)
        query = self._checkpoint.query
        if self._table is None:
            self._table = create_table(
                options.to, options.catalog, self._format.schema, options.partition_by, query
            )
        if self._dead_letters is None:
            self._dead_letters = create_table(
                options.to.dead_letters, options.catalog, DEAD_LETTER_SCHEMA, (), query
            )
        return self._table, self._dead_letters

    def _check_columns(self, schema: pa.Schema) -> None:
        for name in self._options.key_columns if self._options.mode == "upsert" else ():
            if name not in schema.names:
                raise ConfigError(
                    f"There is no column {name} to upsert by; the columns are "
                    f"{', '.join(schema.names)}."
                )
        check_expectations(self._options.expectations, schema)

    def _sample(self, ranges: Sequence[OffsetRange]) -> pa.BinaryArray:
        """Some values of the beginning and of the end of each range."""
        from klamm.pipeline.source.tasks import read_partition

        values = []
        for each in ranges:
            first = OffsetRange(
                each.topic,
                each.partition,
                each.start,
                min(each.start + _SAMPLE, each.until),
                each.topic_id,
            )
            last = OffsetRange(
                each.topic,
                each.partition,
                max(each.until - _SAMPLE, first.until),
                each.until,
                each.topic_id,
            )
            for part in (first, last):
                if part.size > 0:
                    values += [
                        b.column("value").drop_null() for b in read_partition(part, self._read)
                    ]
        return pa.concat_arrays(values) if values else pa.array([], pa.binary())

    def _ranges(self, plan: BatchPlan) -> list[OffsetRange]:
        found = self._reader.partitions(dict(plan.start), dict(plan.end))
        return [
            each
            for task in found
            for each in (task.ranges if isinstance(task, RangeBundle) else [task])
            if isinstance(each, OffsetRange)
        ]

    def _check_bad(self, outcome: Outcome, table: Table, dead_letters: Table) -> None:
        most = self._options.max_bad
        bad, records = self.summary.bad + outcome.bad, self.summary.records + outcome.records
        if most is not None and records and bad / records > most:
            self._discard(outcome, table, dead_letters)
            raise TooManyBadError(
                f"{bad:,} of {counted(records, 'record')} ({bad / records:.2%}) cannot be parsed, "
                f"and at most {most:.2%} may be bad (--max-bad). The batch is not committed; "
                "nothing is lost."
            )

    def _discard(self, outcome: Outcome, table: Table, dead_letters: Table) -> None:
        """Delete files that are not going to be committed."""
        assert self._format is not None
        layout = table.layout(self._format.schema, self._options.partition_by)
        if self._options.mode == "upsert":
            layout = change_layout(self._change_folder, self._format.schema)
        dead_layout = dead_letters.layout(DEAD_LETTER_SCHEMA, ())
        for where, files in ((layout, outcome.files), (dead_layout, outcome.dead_letters)):
            for each in files:
                where.folder.delete(where.path_of(each))

    @property
    def _change_folder(self) -> Location:
        return self._checkpoint.folder / _CHANGES

    def _drop_changes(self, outcome: Outcome) -> None:
        if self._options.mode == "upsert":
            for each in outcome.files:
                self._change_folder.delete(each.path)

    def _tidy(self, *, is_last: bool = False) -> None:
        """Merge small files, of tables that are appended to, and drop old versions."""
        for table, partition_by in (
            (self._table, self._options.partition_by),
            (self._dead_letters, ()),
        ):
            if table is None:
                continue
            if table is self._dead_letters or self._options.mode == "append":
                groups = groups_to_compact(table.files(), self._options.file_bytes)
                if groups and (is_last or sum(map(len, groups)) >= _SMALL_FILES):
                    layout = table.layout(self._whole_schema(table), partition_by)
                    self._compact(table, groups, layout)
            is_due = is_last or self.summary.batches % _EXPIRE_EVERY == 0
            if self._options.retain_s is not None and is_due and self.summary.batches:
                table.expire(self._options.retain_s)

    def _whole_schema(self, table: Table) -> pa.Schema:
        """The columns of the table's rows: also those that the schema of today does not have."""
        days = {each.name for each in self._options.partition_by if each.by_day}
        return pa.schema([each for each in table.schema() if each.name not in days])

    def _compact(self, table: Table, groups: Sequence[Sequence[DataFile]], layout: Any) -> None:
        job = functools.partial(run_compactions, groups=groups, layout=layout)
        results = self._run_job(job, len(groups))
        written = [DataFile.from_json(each) for result in results for each in result["files"]]
        try:
            table.commit(Commit(written, [each for group in groups for each in group]))
            self.summary.compactions += 1
        except CommitConflictError:
            return  # another writer was faster; the next time will do

    def _count(self, outcome: Outcome) -> None:
        self.summary.batches += 1
        for name in ("records", "bytes", "rows", "bad"):
            setattr(self.summary, name, getattr(self.summary, name) + getattr(outcome, name))
        for sql, count in outcome.broken.items():
            self.summary.broken[sql] = self.summary.broken.get(sql, 0) + count

    def _measure_lag(self, end: Mapping[str, Any]) -> None:
        latest = self._reader.reportLatestOffset()
        if latest is not None:
            position = Position.from_json(end)
            self.summary.lag = sum(behind(position.offsets, Position.from_json(latest).offsets))

    def _report(self) -> None:
        self.summary.seconds = time.monotonic() - self._began
        self._on_progress(self.summary)


def _commit_once(table: Table, number: int, make: Callable[[], Commit]) -> None:
    """Commit a batch unless the table has it; after a conflict, look again."""
    for attempt in range(_CONFLICTS_MAX + 1):
        last = table.last_batch
        if last is not None and last >= number:
            return
        try:
            table.commit(make())
            return
        except CommitConflictError:
            if attempt == _CONFLICTS_MAX:
                raise


def _identity(options: IngestOptions) -> dict[str, Any]:
    """What stays the same while a query lives."""
    return {
        "topics": sorted(options.topics),
        "to": str(options.to),
        "format": options.format,
        "mode": options.mode,
        "key": list(options.key_columns) if options.mode == "upsert" else [],
        "partition_by": [each.name for each in options.partition_by],
    }


def _another_owner(target: TableTarget, owner: str | None) -> ConfigError:
    if owner is None:
        return ConfigError(
            f"{target} is another's: klamm ingest did not create it. Name a table that does not "
            "exist yet."
        )
    return ConfigError(
        f"{target} belongs to the query {owner}, which has another checkpoint. Name that with "
        "--checkpoint, or name another table: what is in it would be in it twice."
    )


def _grouped(ranges: Sequence[OffsetRange], slots: int) -> list[list[OffsetRange]]:
    """Share ranges among tasks, the largest first, so that each task makes few files."""
    worth = -(-sum(each.size for each in ranges) // _TASK_RECORDS)
    groups: list[list[OffsetRange]] = [[] for _ in range(min(slots, worth, len(ranges)))]
    for each in sorted(ranges, key=lambda one: -one.size):
        min(groups, key=lambda group: sum(member.size for member in group)).append(each)
    return groups
