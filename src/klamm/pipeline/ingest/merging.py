"""Upserts: changes of rows are merged into the files that may hold their keys.

The files of a table that is upserted are divided by the hash of the key, into more of them as it
grows. Merging a batch rewrites only the files whose keys it changes. The last change of a key, by
offset, decides: its row takes the place of the old one, or the row is deleted.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from klamm.pipeline.ingest.evolution import conform
from klamm.pipeline.ingest.files import Bucket, DataFile, FileWriter, Layout
from klamm.pipeline.ingest.keys import DELETED, change_layout, hash_keys
from klamm.pipeline.ingest.location import Location
from klamm.pipeline.ingest.task import result_batch

_ROW: Final = "_klamm_row"
#: 65,536 files of 128 MB are 8 TB, and a batch makes a change file for each.
_BITS_MAX: Final = 16


@dataclass(frozen=True)
class MergeUnit:
    """Files and changes that belong together: no key of theirs is in another unit."""

    files: tuple[DataFile, ...]
    changes: tuple[DataFile, ...]


@dataclass(frozen=True)
class MergeWork:
    """What every task of a merge does; travels to tasks."""

    layout: Layout
    change_folder: Location
    key: tuple[str, ...]
    bits: int
    offset_column: str


def wanted_bits(files: Sequence[DataFile], file_bytes: int) -> int:
    """By how many bits of the hash keys are divided: about a file's size for each, never fewer."""
    total = sum(each.size for each in files)
    grown = int(math.log2(max(total / file_bytes, 1)))
    return min(max([grown, *(each.bucket.bits for each in files)]), _BITS_MAX)


def merge_units(files: Sequence[DataFile], changes: Sequence[DataFile]) -> list[MergeUnit]:
    """Divide a batch's changes, with the files that may hold their keys, into independent units."""
    # The coarsest bucket that a changed key is in names the unit.
    names: dict[Bucket, Bucket] = {}
    for bucket in {each.bucket for each in changes}:
        around = [each.bucket for each in files if each.bucket.contains(bucket)]
        names[bucket] = min(around, key=lambda one: one.bits) if around else bucket
    units: dict[Bucket, tuple[list[DataFile], list[DataFile]]] = {}
    for change in changes:
        units.setdefault(names[change.bucket], ([], []))[1].append(change)
    for file in files:
        for name, (members, _) in units.items():
            if name.contains(file.bucket):
                members.append(file)
    return [MergeUnit(tuple(members), tuple(found)) for members, found in units.values()]


def run_merges(
    batches: Iterator[pa.RecordBatch], units: Sequence[MergeUnit], work: MergeWork
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow` on a data frame of ids: merge the units with these ids."""
    for batch in batches:
        for unit in batch.column(0).to_pylist():
            files = merge(units[unit], work)
            yield result_batch({"files": [each.to_json() for each in files]})


def merge(unit: MergeUnit, work: MergeWork) -> list[DataFile]:
    """Write the rows of a unit after its changes; the files take the place of the unit's."""
    changes = _read_changes(unit, work)
    last = _last_of_each_key(changes, work.key, work.offset_column)
    upserted = last.filter(pc.invert(last[DELETED])).drop_columns([DELETED])
    parts = [upserted]
    if unit.files:
        rows = read_rows(work.layout, unit.files)
        parts.insert(0, rows.take(_without_keys(rows, last, work.key)))
    rows = pa.concat_tables(parts).combine_chunks()
    written: list[DataFile] = []
    buckets = hash_keys(rows, work.key) & np.uint64((1 << work.bits) - 1)
    for number in np.unique(buckets).tolist():
        writer = FileWriter(work.layout, bucket=Bucket(work.bits, number))
        writer.write(rows.filter(pa.array(buckets == number)))
        written += writer.finish()
    return written


def _read_changes(unit: MergeUnit, work: MergeWork) -> pa.Table:
    store, root = work.change_folder.open()
    schema = change_layout(work.change_folder, work.layout.schema).schema
    return pa.concat_tables(
        pq.read_table(f"{root}/{each.path}", filesystem=store, schema=schema, partitioning=None)
        for each in unit.changes
    )


def _last_of_each_key(changes: pa.Table, key: tuple[str, ...], offset_column: str) -> pa.Table:
    changes = changes.take(pc.sort_indices(changes, [(offset_column, "ascending")]))
    keys = changes.select(key).append_column(_ROW, pa.array(np.arange(changes.num_rows)))
    last = keys.group_by(list(key)).aggregate([(_ROW, "max")])
    return changes.take(last[f"{_ROW}_max"].sort())


def _without_keys(rows: pa.Table, changes: pa.Table, key: tuple[str, ...]) -> pa.ChunkedArray:
    """The positions of rows whose key is none of the changes'."""
    keys = rows.select(key).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    left = keys.join(changes.select(key), list(key), join_type="left anti")
    return left[_ROW].sort()


def read_rows(layout: Layout, files: Sequence[DataFile]) -> pa.Table:
    """The rows of files in the columns of the layout, with those that folders' names have."""
    store, root = layout.folder.open()
    parts = []
    for each in files:
        found = ds.dataset(f"{root}/{each.path}", filesystem=store, format="parquet").to_table()
        parts.append(_in_columns(found, layout, each.partition))
    return pa.concat_tables(parts)


def _in_columns(rows: pa.Table, layout: Layout, partition: Mapping[str, str | None]) -> pa.Table:
    columns: list[Any] = []
    for field in layout.schema:
        if field.name in rows.schema.names:
            chunks = [conform(each, field.type) for each in rows[field.name].chunks]
            columns.append(pa.chunked_array(chunks, field.type))
        elif partition.get(field.name) is not None:
            value = pa.scalar(partition[field.name], pa.string()).cast(field.type)
            columns.append(pa.repeat(value, rows.num_rows))
        else:
            columns.append(pa.nulls(rows.num_rows, field.type))
    return pa.Table.from_arrays(columns, schema=layout.schema)


def run_compactions(
    batches: Iterator[pa.RecordBatch], groups: Sequence[Sequence[DataFile]], layout: Layout
) -> Iterator[pa.RecordBatch]:
    """For `mapInArrow` on a data frame of ids: write the groups of files with these ids as one."""
    for batch in batches:
        for group in batch.column(0).to_pylist():
            files = compact(groups[group], layout)
            yield result_batch({"files": [each.to_json() for each in files]})


def compact(group: Sequence[DataFile], layout: Layout) -> list[DataFile]:
    """Write the rows of files as one file, in their order."""
    writer = FileWriter(layout)
    for each in group:
        writer.write(read_rows(layout, [each]))
    return writer.finish()
