"""Avro records as columns: every field is read for all records at once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from klamm.pipeline.ingest.formats.avro_schema import AvroType
from klamm.pipeline.ingest.formats.cursor import (
    ColumnCursor,
    decimals,
    gather,
    lists,
    numbers,
    scatter,
)
from klamm.pipeline.ingest.formats.parsing import I64, Parsed

_I32: Final = np.iinfo(np.int32)
#: Arrays beyond this are not believed: items without bytes could ask for any amount of memory.
_ITEMS_MAX: Final = 1 << 24


@dataclass(frozen=True)
class AvroParser:
    """Parses values that were written with one schema, without a frame."""

    schema: AvroType

    @cached_property
    def fields(self) -> pa.StructType:
        return self.schema.arrow

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """Parse values, none of which is null."""
        return parse_at(ColumnCursor.of(values), self.schema)


def parse_at(cursor: ColumnCursor, schema: AvroType) -> Parsed:
    """Parse records from where a cursor stands to their ends."""
    rows = read_column(cursor, schema)
    cursor.fail(cursor.position != cursor.end, "there are bytes behind the record")
    bad = {row: f"Avro: {reason}" for row, reason in cursor.reasons.items()}
    good = ~cursor.is_bad
    if not good.all():
        rows = rows.filter(pa.array(good))
    return Parsed(rows, cursor.rows[good], bad)


def read_column(cursor: ColumnCursor, kind: AvroType) -> pa.Array:
    """One value of a type from each row."""
    match kind.kind:
        case "null":
            return pa.nulls(len(cursor))
        case "boolean":
            byte = cursor.byte()
            cursor.fail(byte > 1, "a boolean is neither 0 nor 1")
            return pa.array(byte == 1)
        case "int" | "long":
            return _whole_numbers(cursor, kind)
        case "float":
            return numbers(cursor.fixed(4).view("<f4").reshape(-1), pa.float32())
        case "double":
            return numbers(cursor.fixed(8).view("<f8").reshape(-1), pa.float64())
        case "bytes":
            found = cursor.sized(cursor.zigzag())
            if kind.logical != "decimal":
                return found
            _check_decimals(cursor, found)
            return decimals(_cut(found), kind.arrow)
        case "string":
            return cursor.text(cursor.sized(cursor.zigzag()))
        case "fixed":
            return _fixed(cursor, kind)
        case "enum":
            index = cursor.zigzag()
            cursor.fail((index < 0) | (index >= len(kind.symbols)), "an enum has no such symbol")
            symbols = pa.array(kind.symbols, pa.string())
            return symbols.take(pa.array(np.where(cursor.is_bad, 0, index)))
        case "record":
            columns = [read_column(cursor, each.type) for each in kind.fields]
            if not columns:
                return pa.array([{}] * len(cursor), pa.struct([]))
            return pa.StructArray.from_arrays(columns, fields=list(kind.arrow))
        case "union":
            return _union(cursor, kind)
        case "array":
            return _items(cursor, kind.parts[0])
        case _:
            return _map(cursor, kind)


def _whole_numbers(cursor: ColumnCursor, kind: AvroType) -> pa.Array:
    value = cursor.zigzag()
    if kind.kind == "int":
        cursor.fail((value < _I32.min) | (value > _I32.max), "an int has more than 32 bits")
        return numbers(value.astype(np.int32), kind.arrow)
    if kind.logical.endswith("-millis"):
        value = value * 1000
    return numbers(value, kind.arrow)


def _fixed(cursor: ColumnCursor, kind: AvroType) -> pa.Array:
    size = np.full(len(cursor), kind.size, np.int64)
    found = cursor.sized(size)
    if kind.logical == "decimal":
        _check_decimals(cursor, found)
        return decimals(_cut(found), kind.arrow)
    return found


def _check_decimals(cursor: ColumnCursor, found: pa.BinaryArray) -> None:
    lengths = np.diff(np.frombuffer(found.buffers()[1], np.int32)[: len(found) + 1])
    cursor.fail(lengths > 16, "a decimal is longer than 16 bytes")


def _cut(found: pa.BinaryArray) -> pa.BinaryArray:
    """Without what is longer than any decimal; such rows are bad already."""
    bounds = np.frombuffer(found.buffers()[1], np.int32)[: len(found) + 1].astype(np.int64)
    data = found.buffers()[2]
    if data is None or not data.size:
        return found
    lengths = np.diff(bounds)
    if (lengths <= 16).all():
        return found
    return gather(np.frombuffer(data, np.uint8), bounds[:-1], np.where(lengths > 16, 0, lengths))


def _union(cursor: ColumnCursor, kind: AvroType) -> pa.Array:
    branch = cursor.zigzag()
    cursor.fail((branch < 0) | (branch >= len(kind.parts)), "a union has no such branch")
    branch = np.where(cursor.is_bad, -1, branch)
    count = len(cursor)
    columns = []
    for number, part in enumerate(kind.parts):
        if part.kind == "null":
            continue
        index = np.flatnonzero(branch == number)
        taken = cursor.take(index)
        column = read_column(taken, part)
        cursor.put(index, taken)
        columns.append(scatter(column, index, count))
    if not columns:
        return pa.nulls(count)
    if len(columns) == 1:
        return columns[0]
    is_null = ~np.isin(branch, [at for at, each in enumerate(kind.parts) if each.kind != "null"])
    return pa.StructArray.from_arrays(columns, fields=list(kind.arrow), mask=pa.array(is_null))


def _items(cursor: ColumnCursor, item: AvroType) -> pa.ListArray:
    owners: list[I64] = []
    portions: list[pa.Array] = []

    def read(index: I64, taken: ColumnCursor) -> None:
        owners.append(index)
        portions.append(read_column(taken, item))

    _each_item(cursor, read)
    return lists(owners, portions, len(cursor), item.arrow)


def _map(cursor: ColumnCursor, kind: AvroType) -> pa.MapArray:
    owners: list[I64] = []
    portions: list[pa.Array] = []
    entry = pa.struct([pa.field("key", pa.string(), False), pa.field("value", kind.parts[0].arrow)])

    def read(index: I64, taken: ColumnCursor) -> None:
        keys = taken.text(taken.sized(taken.zigzag()))
        values = read_column(taken, kind.parts[0])
        owners.append(index)
        portions.append(pa.StructArray.from_arrays([keys, values], fields=list(entry)))

    _each_item(cursor, read)
    found = lists(owners, portions, len(cursor), entry)
    items = found.values
    return pa.MapArray.from_arrays(found.offsets, items.field(0), items.field(1)).cast(kind.arrow)


def _each_item(cursor: ColumnCursor, read: Callable[[I64, ColumnCursor], None]) -> None:
    """Read the blocks of arrays: the first items of all rows, then the second ones, and so on."""
    open_rows = np.arange(len(cursor))
    total = np.zeros(len(cursor), np.int64)
    while len(open_rows):
        taken = cursor.take(open_rows)
        count = taken.zigzag()
        with_size = np.flatnonzero(count < 0)
        if len(with_size):  # the size of the block in bytes, for those who skip it
            sized = taken.take(with_size)
            sized.zigzag()
            taken.put(with_size, sized)
        count = np.where(taken.is_bad, 0, np.abs(count))
        total[open_rows] += count
        taken.fail(total[open_rows] > _ITEMS_MAX, "an array has too many items")
        count = np.where(taken.is_bad, 0, count)
        cursor.put(open_rows, taken)
        open_rows, count = open_rows[count > 0], count[count > 0]
        left, rows = count.copy(), open_rows
        while len(rows):
            one = cursor.take(rows)
            read(rows, one)
            cursor.put(rows, one)
            left = np.where(one.is_bad, 0, left - 1)
            rows, left = rows[left > 0], left[left > 0]
