"""What a task does: read offsets, parse records, check expectations, write files.

A task returns the files that it wrote and its counts. The files mean nothing until the driver has
committed them, so a task may be killed or run twice.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from klamm.names import counted
from klamm.pipeline.ingest.expectations import Checker, ExpectationError
from klamm.pipeline.ingest.files import DataFile, FileWriter, Layout
from klamm.pipeline.ingest.formats.parsing import (
    NO_VALUE,
    Parser,
    all_positions,
    dead_letters,
    source_columns,
)
from klamm.pipeline.ingest.keys import ChangeMaker
from klamm.pipeline.ingest.options import Expectation
from klamm.pipeline.source.options import ReadOptions
from klamm.pipeline.source.ranges import OffsetRange, RangeBundle

#: The column of results that tasks return, for Spark.
RESULT: pa.Schema = pa.schema([("result", pa.string())])
RESULT_DDL = "result string"


@dataclass(frozen=True)
class Work:
    """What every task of a batch does with its offsets; travels to the tasks."""

    read: ReadOptions
    #: None for raw records.
    parser: Parser | None
    layout: Layout
    dead_letter_layout: Layout
    expectations: tuple[Expectation, ...] = ()
    #: For upserts: how records become changes of rows.
    changes: ChangeMaker | None = None


@dataclass
class Outcome:
    """What came of one task, or of all tasks of a batch."""

    records: int = 0
    bytes: int = 0
    rows: int = 0
    bad: int = 0
    #: Condition: rows that broke it.
    broken: dict[str, int] = field(default_factory=dict)
    files: list[DataFile] = field(default_factory=list)
    dead_letters: list[DataFile] = field(default_factory=list)
    unknown_schemas: set[int] = field(default_factory=set)

    def to_json(self) -> dict[str, Any]:
        """As it travels to the driver and into the checkpoint."""
        return {
            "records": self.records,
            "bytes": self.bytes,
            "rows": self.rows,
            "bad": self.bad,
            "broken": self.broken,
            "files": [each.to_json() for each in self.files],
            "dead_letters": [each.to_json() for each in self.dead_letters],
            "unknown_schemas": sorted(self.unknown_schemas),
        }

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Outcome":
        files = {
            name: [DataFile.from_json(each) for each in content[name]]
            for name in ("files", "dead_letters")
        }
        unknown = set(content["unknown_schemas"])
        return cls(**{**content, **files, "unknown_schemas": unknown})

    def add(self, other: "Outcome") -> None:
        """Count another task's."""
        self.records += other.records
        self.bytes += other.bytes
        self.rows += other.rows
        self.bad += other.bad
        for sql, count in other.broken.items():
            self.broken[sql] = self.broken.get(sql, 0) + count
        self.files += other.files
        self.dead_letters += other.dead_letters
        self.unknown_schemas |= other.unknown_schemas


def run_tasks(
    batches: Iterator[pa.RecordBatch], groups: Sequence[Sequence[OffsetRange]], work: Work
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow` on a data frame of ids: run the groups of offsets with these ids."""
    for batch in batches:
        for group in batch.column(0).to_pylist():
            outcome = ingest_records(_records(groups[group], work.read), work)
            yield result_batch(outcome.to_json())


def result_batch(content: dict[str, Any]) -> pa.RecordBatch:
    """A result as a row."""
    return pa.RecordBatch.from_arrays([pa.array([json.dumps(content)])], schema=RESULT)


def _records(ranges: Sequence[OffsetRange], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    from klamm.pipeline.source.tasks import read_partition

    yield from read_partition(RangeBundle(tuple(ranges)), options)


def ingest_records(records: Iterable[pa.RecordBatch], work: Work) -> Outcome:
    """Parse records, and write rows and dead letters."""
    task = _Task(work)
    try:
        for batch in records:
            task.take(batch)
        return task.finish()
    except BaseException:
        task.give_up()
        raise


class _Task:
    def __init__(self, work: Work) -> None:
        self._work = work
        self._outcome = Outcome()
        self._checker = Checker(work.expectations)
        self._dead = FileWriter(work.dead_letter_layout)
        self._rows = FileWriter(work.layout) if work.changes is None else None
        self._changes = None if work.changes is None else work.changes.writer(work.layout)

    def take(self, batch: pa.RecordBatch) -> None:
        """Parse one batch of records and pass its rows on."""
        self._outcome.records += batch.num_rows
        self._outcome.bytes += _payload_bytes(batch)
        rows, origins, bad, tombstones = self._parse(batch)
        self._outcome.bad += len(bad)
        rows, origins = self._check(rows, origins, bad)
        if self._changes is not None:
            bad_keys = self._changes.add(rows, batch, tombstones)
            self._outcome.bad += len(bad_keys)
            bad |= bad_keys
        elif self._rows is not None and rows.num_rows:
            self._rows.write(rows)
        self._outcome.rows += rows.num_rows
        if bad:
            self._dead.write(dead_letters(batch, bad))

    def finish(self) -> Outcome:
        """Close the files."""
        writer = self._rows or self._changes
        assert writer is not None
        self._outcome.files = writer.finish()
        self._outcome.dead_letters = self._dead.finish()
        return self._outcome

    def give_up(self) -> None:
        """Delete what was written."""
        for writer in (self._rows, self._changes, self._dead):
            if writer is not None:
                writer.give_up()

    def _parse(self, batch: pa.RecordBatch) -> tuple[pa.Table, Any, dict[int, str], Any]:
        """Rows, the positions of their records, bad records, and positions of tombstones."""
        values = batch.column("value")
        positions = all_positions(batch.num_rows)
        parser, is_upsert = self._work.parser, self._changes is not None
        has_value = values.is_valid().to_numpy(zero_copy_only=False)
        nothing = positions[~has_value]
        if parser is None:
            raw = pa.Table.from_batches([batch])
            if not is_upsert or not len(nothing):
                return raw, positions, {}, nothing[:0]
            return raw.filter(pa.array(has_value)), positions[has_value], {}, nothing
        if len(nothing):
            positions = positions[has_value]
            values = values.filter(pa.array(has_value))
        parsed = parser.parse(values)
        self._outcome.unknown_schemas |= parsed.unknown_schemas
        bad = {int(positions[at]): reason for at, reason in parsed.bad.items()}
        if not is_upsert:
            bad |= dict.fromkeys(nothing.tolist(), NO_VALUE)
        origins = positions[parsed.kept]
        origin = batch if len(origins) == batch.num_rows else batch.take(pa.array(origins))
        columns = [*parsed.rows.flatten(), *source_columns(origin)]
        rows = pa.Table.from_arrays(columns, schema=self._work.layout.schema)
        return rows, origins, bad, nothing

    def _check(self, rows: pa.Table, origins: Any, bad: dict[int, str]) -> tuple[pa.Table, Any]:
        """Take out the rows that break expectations, and count them."""
        if not rows.num_rows:
            return rows, origins
        keep = np.ones(rows.num_rows, np.bool_)
        for each, breaks in zip(self._work.expectations, self._checker.broken(rows), strict=False):
            count = int(breaks.sum())
            if not count:
                continue
            self._outcome.broken[each.sql] = self._outcome.broken.get(each.sql, 0) + count
            if each.action == "fail":
                first = rows.slice(int(breaks.argmax()), 1).to_pylist()[0]
                raise ExpectationError(
                    f"{counted(count, 'row of a batch breaks', 'rows of a batch break')} the "
                    f"expectation {each.sql!r}; the first is "
                    f"{first}"
                )
            if each.action == "aside":
                for at in origins[breaks].tolist():
                    bad.setdefault(at, f"expectation: {each.sql}")
            keep &= ~breaks
        if keep.all():
            return rows, origins
        return rows.filter(pa.array(keep)), origins[keep]


def _payload_bytes(batch: pa.RecordBatch) -> int:
    return sum(_data_bytes(batch.column(name)) for name in ("key", "value"))


def _data_bytes(column: pa.BinaryArray) -> int:
    if not len(column):
        return 0
    ends = np.frombuffer(column.buffers()[1], np.int32)[column.offset :]
    return int(ends[len(column)]) - int(ends[0])
