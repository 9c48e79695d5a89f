"""Rows by key: which file may hold a key, and how the key of a tombstone is read."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from klamm.errors import ConfigError
from klamm.pipeline.ingest.files import Bucket, DataFile, FileWriter, Layout
from klamm.pipeline.ingest.formats.parsing import I64, Parser
from klamm.pipeline.ingest.location import Location

#: A change that deletes its row; a column of change files only.
DELETED: Final = "_klamm_deleted"
_NO_KEY: Final = "The record has no key to upsert by: column {} is null."
_BAD_KEY: Final = "The key of the tombstone does not give the columns {}: {}."
_U64: Final = np.uint64


def hash_keys(rows: pa.Table, key: tuple[str, ...]) -> npt.NDArray[np.uint64]:
    """A number for each row that follows from its key alone, the same on every machine."""
    from pandas.util import hash_array  # type: ignore[import-untyped]

    total = np.zeros(rows.num_rows, _U64)
    for name in key:
        column = rows[name]
        if pa.types.is_floating(column.type) or pa.types.is_nested(column.type):
            raise ConfigError(f"Column {name} is {column.type}, which cannot be a key.")
        if pa.types.is_integer(column.type):
            values = pc.fill_null(column, 0).cast(pa.int64()).to_numpy()
        else:
            text = column if _is_bytes(column.type) else column.cast(pa.string())
            values = np.asarray(text.to_pylist(), dtype=object)
        total = total * _U64(31) + hash_array(values, categorize=False)
    # The lowest bits of hash_array are as good as the others, those of a sum of them are not.
    total ^= total >> _U64(33)
    total *= _U64(0xFF51AFD7ED558CCD)
    total ^= total >> _U64(33)
    return total


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_string(kind))


@dataclass(frozen=True)
class ChangeMaker:
    """How records become changes of rows; travels to tasks."""

    key: tuple[str, ...]
    #: Where change files wait for being merged.
    folder: Location
    #: The number of bits of the keys' hashes by which change files are divided.
    bits: int
    #: Whether rows are the records themselves, with their key as a column.
    is_raw: bool = False
    #: Reads keys that are framed for a registry, as values are.
    key_parser: Parser | None = None

    def writer(self, layout: Layout) -> "ChangeWriter":
        """A writer for the changes of one task."""
        return ChangeWriter(self, layout)


def change_layout(folder: Location, schema: pa.Schema) -> Layout:
    """Change files have the table's columns and whether the row is deleted."""
    return Layout(folder, schema.append(pa.field(DELETED, pa.bool_())))


class ChangeWriter:
    """Writes changes, a file for each bucket of keys."""

    def __init__(self, maker: ChangeMaker, table: Layout) -> None:
        self._maker = maker
        self._schema = table.schema
        self._layout = change_layout(maker.folder, table.schema)
        self._writers: dict[int, FileWriter] = {}

    def add(self, rows: pa.Table, batch: pa.RecordBatch, tombstones: I64) -> dict[int, str]:
        """Add rows and deletions; returns the records that have no usable key, with the reason.

        Rows without a key come from records of the batch, which are found by their offsets.
        """
        bad: dict[int, str] = {}
        rows = self._with_keys(rows, batch, bad)
        changes = [rows.append_column(DELETED, pa.array(np.zeros(rows.num_rows, np.bool_)))]
        if len(tombstones):
            changes.append(self._deletions(batch, tombstones, bad))
        changed = pa.concat_tables(changes)
        buckets = hash_keys(changed, self._maker.key) & _U64((1 << self._maker.bits) - 1)
        for number in np.unique(buckets).tolist():
            writer = self._writers.get(number)
            if writer is None:
                bucket = Bucket(self._maker.bits, number)
                writer = self._writers[number] = FileWriter(self._layout, bucket=bucket)
            writer.write(changed.filter(pa.array(buckets == number)))
        return bad

    def finish(self) -> list[DataFile]:
        """Close the files."""
        return [file for writer in self._writers.values() for file in writer.finish()]

    def give_up(self) -> None:
        """Delete what was written."""
        for writer in self._writers.values():
            writer.give_up()

    def _with_keys(self, rows: pa.Table, batch: pa.RecordBatch, bad: dict[int, str]) -> pa.Table:
        for name in self._maker.key:
            if not rows[name].null_count:
                continue
            lacking = rows.filter(pc.is_null(rows[name]))
            offsets = lacking["offset" if self._maker.is_raw else "_offset"]
            for at in pc.index_in(offsets, batch.column("offset")).to_pylist():
                bad[at] = _NO_KEY.format(name)
            rows = rows.filter(pc.is_valid(rows[name]))
        return rows

    def _deletions(self, batch: pa.RecordBatch, tombstones: I64, bad: dict[int, str]) -> pa.Table:
        """Changes that have only their key and where they come from."""
        taken = batch.take(pa.array(tombstones))
        found = self._keys(taken.column("key"), tombstones, bad)
        good = pc.is_valid(found)
        taken, found = taken.filter(good), found.filter(good)
        columns = []
        for field in self._schema:
            if field.name in self._maker.key:
                columns.append(found.field(self._maker.key.index(field.name)))
            elif field.name.lstrip("_") in taken.schema.names and (
                self._maker.is_raw or field.name.startswith("_")
            ):
                columns.append(taken.column(field.name.lstrip("_")))
            else:
                columns.append(pa.nulls(len(found), field.type))
        columns.append(pa.array(np.ones(len(found), np.bool_)))
        return pa.Table.from_arrays(columns, schema=self._layout.schema)

    def _keys(self, keys: pa.BinaryArray, tombstones: I64, bad: dict[int, str]) -> pa.StructArray:
        """The key columns of records without a value; null where they cannot be read."""
        fields = [self._schema.field(name) for name in self._maker.key]
        kind = pa.struct([pa.field(each.name, each.type) for each in fields])
        if self._maker.is_raw and self._maker.key == ("key",):
            mask = keys.is_null() if keys.null_count else None
            for at in tombstones[keys.is_null().to_numpy(zero_copy_only=False)].tolist():
                bad[at] = _NO_KEY.format("key")
            return pa.StructArray.from_arrays([keys], fields=list(kind), mask=mask)
        parsed = self._framed(keys)
        found: list[Any] = []
        for at, (key, known) in enumerate(zip(keys.to_pylist(), parsed, strict=True)):
            try:
                row = known or read_key(key, kind)
                pa.array([row], kind)
                found.append(row)
            except (ValueError, TypeError, pa.ArrowException) as error:
                names = ", ".join(self._maker.key)
                bad[int(tombstones[at])] = _BAD_KEY.format(names, error)
                found.append(None)
        return pa.array(found, kind)

    def _framed(self, keys: pa.BinaryArray) -> list[Any]:
        found: list[Any] = [None] * len(keys)
        if self._maker.key_parser is None or keys.null_count:
            return found
        parsed = self._maker.key_parser.parse(keys)
        for at, row in zip(parsed.kept.tolist(), parsed.rows.to_pylist(), strict=True):
            if all(row.get(name) is not None for name in self._maker.key):
                found[at] = {name: row[name] for name in self._maker.key}
        return found


def read_key(key: bytes | None, kind: pa.StructType) -> dict[str, Any]:
    """The key columns from a JSON object, or one column from a JSON value or plain text."""
    if key is None:
        raise ValueError("it is null")
    text = key.decode()
    try:
        value = orjson.loads(key)
    except orjson.JSONDecodeError:
        value = text
    names = [each.name for each in kind]
    if isinstance(value, dict):
        if missing := [name for name in names if value.get(name) is None]:
            raise ValueError(f"{missing[0]} is not in it")
        return {name: value[name] for name in names}
    if len(names) > 1:
        raise ValueError("it is not a JSON object")
    column = kind.field(0)
    if pa.types.is_string(column.type):
        return {column.name: value if isinstance(value, str) else text}
    if pa.types.is_binary(column.type):
        return {column.name: key}
    converted = pa.array([text.strip('"')]).cast(column.type)
    return {column.name: converted[0].as_py()}
