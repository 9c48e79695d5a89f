"""Parquet files of a table: how rows become files, and what a commit has to know about a file.

A file's name says which keys it may hold, for tables that are upserted:
`part-BITS-BUCKET-ID.parquet` has the keys whose hash ends in the BITS bits of BUCKET. A name
without these may hold any key.
"""

import contextlib
import datetime
import math
import re
import urllib.parse
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from klamm.pipeline.ingest.location import Location
from klamm.pipeline.ingest.options import PartitionBy

#: Files of Parquet folders wait here, under names that no reader takes for data, for their commit.
PENDING: Final = "_pending"
_PENDING_SUFFIX: Final = ".pending"
_NULL_FOLDER: Final = "__HIVE_DEFAULT_PARTITION__"
_COMPRESSION: Final = "zstd"
#: Rows are buffered to this size before they become a row group.
_ROW_GROUP_BYTES: Final = 64 << 20
#: What all partitions of one task may buffer together.
_BUFFER_BYTES: Final = 256 << 20
_BUCKET_NAME: Final = re.compile(r"part-(\d+)-(\d+)-[^/]*\.parquet$")


@dataclass(frozen=True, slots=True)
class Bucket:
    """The keys whose hash ends in the lowest `bits` bits of `number`."""

    bits: int = 0
    number: int = 0

    def contains(self, other: "Bucket") -> bool:
        """Whether every key of the other is one of this."""
        return self.bits <= other.bits and other.number & ((1 << self.bits) - 1) == self.number


ANY_KEY: Final = Bucket()


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file, as a commit names it."""

    #: Below the table's folder.
    path: str
    size: int
    rows: int
    #: Partition column: value as text, or None for null.
    partition: Mapping[str, str | None] = field(default_factory=dict)
    #: As Delta writes them: numRecords, minValues, maxValues, nullCount.
    stats: Mapping[str, Any] = field(default_factory=dict)

    @property
    def bucket(self) -> Bucket:
        found = _BUCKET_NAME.search(self.path)
        return Bucket(int(found[1]), int(found[2])) if found else ANY_KEY

    @property
    def pending_path(self) -> str:
        """Where the file of a Parquet folder is before its commit."""
        return f"{PENDING}/{self.path.replace('/', '.')}{_PENDING_SUFFIX}"

    def to_json(self) -> dict[str, Any]:
        """As it is kept in a checkpoint or a manifest."""
        return {
            "path": self.path,
            "size": self.size,
            "rows": self.rows,
            "partition": dict(self.partition),
            "stats": dict(self.stats),
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "DataFile":
        return cls(
            content["path"],
            content["size"],
            content["rows"],
            content.get("partition", {}),
            content.get("stats", {}),
        )


@dataclass(frozen=True, slots=True)
class Layout:
    """How the files of a table are laid out; travels to tasks."""

    folder: Location
    #: The columns of the rows, without partition columns that are made from them.
    schema: pa.Schema
    partition_by: tuple[PartitionBy, ...] = ()
    #: Whether files keep the columns that they are partitioned by (Iceberg), or the folder's name
    #: has them (Delta, Parquet).
    keeps_partition_columns: bool = False
    #: Whether files wait for their commit under another name (Parquet folders).
    is_pending: bool = False

    @property
    def table_schema(self) -> pa.Schema:
        """The columns of the table: days that are partitioned by are columns of their own."""
        schema = self.schema
        if not self.keeps_partition_columns:
            for each in self.partition_by:
                if each.by_day:
                    schema = schema.append(pa.field(each.name, pa.date32()))
        return schema

    def path_of(self, file: DataFile) -> str:
        """Where a file is to be written."""
        return file.pending_path if self.is_pending else file.path


class FileWriter:
    """Writes rows as Parquet files, one for each partition of the table and each rollover."""

    def __init__(
        self,
        layout: Layout,
        *,
        bucket: Bucket | None = None,
        file_bytes: int | None = None,
    ) -> None:
        self._layout = layout
        self._store, self._root = layout.folder.open()
        self._prefix = "part" if bucket is None else f"part-{bucket.bits}-{bucket.number}"
        self._file_bytes = file_bytes
        self._open: dict[tuple[str | None, ...], _OpenFile] = {}
        self._finished: list[DataFile] = []

    def write(self, rows: pa.Table) -> None:
        """Add rows, in the columns of the layout's schema."""
        for values, part in self._by_partition(rows):
            file = self._open.get(values)
            if file is None:
                file = self._open[values] = self._start(values)
            file.add(part)
            if self._file_bytes is not None and file.written >= self._file_bytes:
                self._finished.append(self._open.pop(values).close())
        if sum(each.buffered for each in self._open.values()) > _BUFFER_BYTES:
            for file in self._open.values():
                file.flush()

    def finish(self) -> list[DataFile]:
        """Close the files, and tell which there are."""
        self._finished += [each.close() for each in self._open.values()]
        self._open.clear()
        return self._finished

    def give_up(self) -> None:
        """Delete what was written, as far as that is possible."""
        for file in self._open.values():
            file.discard()
        for each in self._finished:
            self._layout.folder.delete(self._layout.path_of(each))

    def _start(self, values: tuple[str | None, ...]) -> "_OpenFile":
        names = [each.name for each in self._layout.partition_by]
        folders = [
            f"{name}={_NULL_FOLDER if value is None else urllib.parse.quote(value, safe=' ')}/"
            for name, value in zip(names, values, strict=True)
        ]
        path = f"{''.join(folders)}{self._prefix}-{uuid.uuid4().hex}.parquet"
        file = DataFile(path, 0, 0, dict(zip(names, values, strict=True)))
        return _OpenFile(self._store, f"{self._root}/{self._layout.path_of(file)}", file)

    def _by_partition(self, rows: pa.Table) -> Iterator[tuple[tuple[str | None, ...], pa.Table]]:
        by = self._layout.partition_by
        if not by:
            yield (), rows
            return
        keys = pa.table(
            {
                each.name: rows[each.column].cast(pa.date32()) if each.by_day else rows[each.column]
                for each in by
            }
        )
        if not self._layout.keeps_partition_columns:
            rows = rows.drop_columns([each.column for each in by if not each.by_day])
        names = keys.schema.names
        for found in keys.group_by(names).aggregate([]).to_pylist():
            mask = None
            for name in names:
                value = pa.scalar(found[name], keys.schema.field(name).type)
                hit = pc.equal(keys[name], value) if value.is_valid else pc.is_null(keys[name])
                mask = hit if mask is None else pc.and_(mask, hit)
            yield tuple(partition_text(found[name]) for name in names), rows.filter(mask)


def partition_text(value: Any) -> str | None:
    """A value of a partition column, as commits and folders have it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


class _OpenFile:
    def __init__(self, store: Any, path: str, file: DataFile) -> None:
        self._store, self._path, self._file = store, path, file
        self._rows: list[pa.Table] = []
        self._writer: pq.ParquetWriter | None = None
        self._metadata: list[pq.FileMetaData] = []
        self._sink: Any = None
        self.buffered = 0
        self._count = 0

    @property
    def written(self) -> int:
        return 0 if self._sink is None else int(self._sink.tell())

    def add(self, rows: pa.Table) -> None:
        self._rows.append(rows)
        self.buffered += rows.nbytes
        self._count += rows.num_rows
        if self.buffered > _ROW_GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self._rows:
            return
        rows = pa.concat_tables(self._rows)
        self._rows, self.buffered = [], 0
        if self._writer is None:
            self._store.create_dir(self._path.rpartition("/")[0], recursive=True)
            self._sink = self._store.open_output_stream(self._path)
            self._writer = pq.ParquetWriter(
                self._sink,
                rows.schema,
                compression=_COMPRESSION,
                coerce_timestamps="us",
                metadata_collector=self._metadata,
            )
        self._writer.write_table(rows, row_group_size=max(rows.num_rows, 1))

    def close(self) -> DataFile:
        self.flush()
        assert self._writer is not None
        self._writer.close()
        self._sink.close()
        size = int(self._store.get_file_info(self._path).size)
        stats = delta_stats(self._metadata[0])
        return DataFile(self._file.path, size, self._count, self._file.partition, stats)

    def discard(self) -> None:
        # On a disk that is full, closing fails as well, and what made the task fail counts.
        for step in (self._writer and self._writer.close, self._sink and self._sink.close):
            if step is not None:
                with contextlib.suppress(Exception):
                    step()
        with contextlib.suppress(OSError):
            self._store.delete_file(self._path)


def delta_stats(metadata: pq.FileMetaData) -> dict[str, Any]:
    """Counts, and the least and greatest numbers, days and times, as Delta writes them."""
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    unknown: set[str] = set()
    for group in range(metadata.num_row_groups):
        for position in range(metadata.num_columns):
            column = metadata.row_group(group).column(position)
            name, stats = column.path_in_schema, column.statistics
            if "." in name or name in unknown:
                continue
            if stats is None or not stats.has_null_count:
                unknown.add(name)
                continue
            nulls[name] = nulls.get(name, 0) + stats.null_count
            if stats.has_min_max and _is_comparable(stats.min) and _is_comparable(stats.max):
                least[name] = min(least.get(name, stats.min), stats.min)
                greatest[name] = max(greatest.get(name, stats.max), stats.max)
            elif stats.null_count != column.num_values:
                unknown.add(name)
    for values in (least, greatest, nulls):
        for name in unknown & values.keys():
            del values[name]
    return {
        "numRecords": metadata.num_rows,
        "minValues": {name: _json_value(value) for name, value in least.items()},
        "maxValues": {name: _json_value(value) for name, value in greatest.items()},
        "nullCount": nulls,
    }


def _is_comparable(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, bool):
        return False
    return isinstance(value, int | datetime.date)


def _json_value(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        zone = "" if value.tzinfo is None else "Z"
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + zone
    return value.isoformat() if isinstance(value, datetime.date) else value


def groups_to_compact(files: Iterable[DataFile], file_bytes: int) -> list[list[DataFile]]:
    """Files to merge so that a table has few more than it needs; none while it is near that.

    Ideal is one file for each `file_bytes` of a partition. More than 1.2 times that many, and the
    files below the size are merged, each group into one file of about the size.
    """
    by_partition: dict[tuple[tuple[str, str | None], ...], list[DataFile]] = {}
    for each in files:
        by_partition.setdefault(tuple(sorted(each.partition.items())), []).append(each)
    groups = []
    for members in by_partition.values():
        ideal = max(math.ceil(sum(each.size for each in members) / file_bytes), 1)
        if len(members) <= max(ideal * 1.2, 1):
            continue
        groups += _packed(members, file_bytes)
    return groups


def _packed(members: Sequence[DataFile], file_bytes: int) -> list[list[DataFile]]:
    """Groups of at least two files, filled in the order of size."""
    small = sorted((each for each in members if each.size < file_bytes), key=lambda file: file.size)
    groups: list[list[DataFile]] = []
    size = 0
    for each in small:
        if not groups or size >= file_bytes:
            groups.append([])
            size = 0
        groups[-1].append(each)
        size += each.size
    if len(groups) > 1 and len(groups[-1]) == 1:
        groups[-2] += groups.pop()
    return [group for group in groups if len(group) > 1]
