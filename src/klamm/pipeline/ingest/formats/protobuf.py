"""Protobuf messages as columns: every step reads one field of all messages at once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from klamm.pipeline.ingest.formats.cursor import U64, ColumnCursor, lists, numbers
from klamm.pipeline.ingest.formats.parsing import I64, Parsed
from klamm.pipeline.ingest.formats.protobuf_schema import (
    TIMESTAMP,
    ProtobufField,
    ProtobufMessage,
)

_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_WIRE: Final = {
    **dict.fromkeys(("double", "fixed64", "sfixed64"), _FIXED64),
    **dict.fromkeys(("float", "fixed32", "sfixed32"), _FIXED32),
    **dict.fromkeys(("string", "bytes", "message"), _SIZED),
}
_DEFAULTS: Final = {"string": "", "bytes": b"", "bool": False}


@dataclass(frozen=True)
class ProtobufParser:
    """Parses values that are one message each, without a frame."""

    message: ProtobufMessage

    @cached_property
    def fields(self) -> pa.StructType:
        return self.message.arrow

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """Parse values, none of which is null."""
        return parse_at(ColumnCursor.of(values), self.message)


def parse_at(cursor: ColumnCursor, message: ProtobufMessage) -> Parsed:
    """Parse messages from where a cursor stands to their ends."""
    rows = read_message(cursor, message)
    bad = {row: f"Protobuf: {reason}" for row, reason in cursor.reasons.items()}
    good = ~cursor.is_bad
    if not good.all():
        rows = rows.filter(pa.array(good))
    return Parsed(rows, cursor.rows[good], bad)


class _Found:
    """The values of one field, in the order in which they were found."""

    def __init__(self) -> None:
        self.owners: list[I64] = []
        self.columns: list[pa.Array] = []

    def add(self, owners: I64, column: pa.Array) -> None:
        if len(owners):
            self.owners.append(owners)
            self.columns.append(column)


def read_message(cursor: ColumnCursor, message: ProtobufMessage) -> pa.StructArray:
    """All fields of a message from each row, up to the row's end."""
    found = {each.number: _Found() for each in message.fields}
    known = {each.number: each for each in message.fields}
    rows = np.flatnonzero(cursor.position < cursor.end)
    while len(rows):
        taken = cursor.take(rows)
        tags = taken.varint()
        for tag in np.unique(tags[~taken.is_bad]).tolist():
            index = np.flatnonzero((tags == tag) & ~taken.is_bad)
            one = taken.take(index)
            _read_tag(one, tag, known.get(tag >> 3), found, rows[index])
            taken.put(index, one)
        cursor.put(rows, taken)
        rows = rows[(cursor.position < cursor.end)[rows]]
    columns = [_column(each, found[each.number], len(cursor)) for each in message.fields]
    if not columns:
        return pa.array([{}] * len(cursor), pa.struct([]))
    return pa.StructArray.from_arrays(columns, fields=list(message.arrow))


def _read_tag(
    cursor: ColumnCursor,
    tag: int,
    field: ProtobufField | None,
    found: dict[int, _Found],
    rows: I64,
) -> None:
    wire = tag & 7
    if tag >> 3 == 0:
        cursor.fail(np.ones(len(cursor), np.bool_), "a field has number 0")
        return
    expected = None if field is None else _WIRE.get(field.kind, _VARINT)
    if field is not None and wire == expected:
        found[field.number].add(rows, _value(cursor, field))
    elif field is not None and wire == _SIZED and field.is_repeated and expected != _SIZED:
        _read_packed(cursor, field, found[field.number], rows)
    else:
        _skip(cursor, wire)


def _skip(cursor: ColumnCursor, wire: int) -> None:
    """A field that the schema does not have, or has otherwise, is unknown."""
    match wire:
        case 0:
            cursor.varint()
        case 1:
            cursor.fixed(8)
        case 2:
            _part(cursor)
        case 5:
            cursor.fixed(4)
        case _:
            cursor.fail(np.ones(len(cursor), np.bool_), f"wire type {wire} is not supported")


def _part(cursor: ColumnCursor) -> ColumnCursor:
    """A cursor over bytes with their length before them; the other one stands behind them."""
    length = cursor.varint().view(np.int64)
    room = cursor.end - cursor.position
    cursor.fail((length < 0) | (length > room), "the message ends inside of a field")
    length = np.where(cursor.is_bad, 0, length)
    part = ColumnCursor(
        cursor.data, cursor.position.copy(), cursor.position + length, cursor.reasons, cursor.rows
    )
    part.is_bad = cursor.is_bad.copy()
    cursor.position = cursor.position + length
    return part


def _read_packed(cursor: ColumnCursor, field: ProtobufField, found: _Found, rows: I64) -> None:
    part = _part(cursor)
    left = np.flatnonzero(part.position < part.end)
    while len(left):
        one = part.take(left)
        found.add(rows[left], _value(one, field))
        part.put(left, one)
        left = left[(part.position < part.end)[left]]
    _spoil(cursor, part)


def _spoil(cursor: ColumnCursor, part: ColumnCursor) -> None:
    """Rows with a bad part are bad; the reason is known already."""
    cursor.fail(part.is_bad, "a part of the message is bad")


def _value(cursor: ColumnCursor, field: ProtobufField) -> pa.Array:
    match field.kind:
        case "message":
            assert field.message is not None
            part = _part(cursor)
            value = read_message(part, field.message)
            _spoil(cursor, part)
            return _timestamps(value) if field.message.name == TIMESTAMP else value
        case "string":
            return cursor.text(_bytes(cursor))
        case "bytes":
            return _bytes(cursor)
        case "enum":
            return _names(cursor.varint().astype(np.int32), field)
        case kind:
            return _SCALARS[kind](cursor)


def _bytes(cursor: ColumnCursor) -> pa.BinaryArray:
    return cursor.sized(cursor.varint().view(np.int64))


def _names(values: npt.NDArray[np.int32], field: ProtobufField) -> pa.Array:
    """The names of an enum's values; one that the schema does not know is its number as text."""
    names = dict(reversed(field.values))
    distinct, place = np.unique(values, return_inverse=True)
    texts = [names.get(each, str(each)) for each in distinct.tolist()]
    return pa.array(texts, pa.string()).take(pa.array(place.reshape(-1)))


def _unsigned(values: U64) -> pa.Array:
    matrix = np.zeros((len(values), 2), np.uint64)
    matrix[:, 0] = values
    return pa.Array.from_buffers(pa.decimal128(20, 0), len(values), [None, pa.py_buffer(matrix)])


def _fixed(cursor: ColumnCursor, kind: str) -> npt.NDArray[Any]:
    return cursor.fixed(np.dtype(kind).itemsize).view(kind).reshape(-1)


_SCALARS: Final[dict[str, Callable[[ColumnCursor], pa.Array]]] = {
    "double": lambda cursor: numbers(_fixed(cursor, "<f8"), pa.float64()),
    "float": lambda cursor: numbers(_fixed(cursor, "<f4"), pa.float32()),
    "int64": lambda cursor: numbers(cursor.varint().view(np.int64), pa.int64()),
    "int32": lambda cursor: numbers(cursor.varint().astype(np.int32), pa.int32()),
    "uint64": lambda cursor: _unsigned(cursor.varint()),
    "uint32": lambda cursor: numbers(
        cursor.varint().astype(np.uint32).astype(np.int64), pa.int64()
    ),
    "sint64": lambda cursor: numbers(cursor.zigzag(), pa.int64()),
    "sint32": lambda cursor: numbers(cursor.zigzag().astype(np.int32), pa.int32()),
    "fixed64": lambda cursor: _unsigned(_fixed(cursor, "<u8")),
    "fixed32": lambda cursor: numbers(_fixed(cursor, "<u4").astype(np.int64), pa.int64()),
    "sfixed64": lambda cursor: numbers(_fixed(cursor, "<i8"), pa.int64()),
    "sfixed32": lambda cursor: numbers(_fixed(cursor, "<i4"), pa.int32()),
    "bool": lambda cursor: pa.array(cursor.varint() != 0),
}


def _column(field: ProtobufField, found: _Found, count: int) -> pa.Array:
    if field.is_repeated:
        column = lists(found.owners, found.columns, count, field.item)
        if field.is_map:
            items = column.values
            column = pa.MapArray.from_arrays(
                column.offsets, _or_default(items.field(0), field.message, 0), items.field(1)
            )
        return column.cast(field.arrow)
    # Of a field that is there several times, the last one counts.
    place = np.full(count, -1, np.int64)
    start = 0
    for owners in found.owners:
        place[owners] = start + np.arange(len(owners))
        start += len(owners)
    values = pa.concat_arrays(found.columns) if found.columns else pa.array([], field.item)
    column = values.take(pa.array(place, mask=place < 0))
    if field.has_presence or not column.null_count:
        return column
    return column.fill_null(_default(field))


def _or_default(column: pa.Array, message: ProtobufMessage | None, at: int) -> pa.Array:
    assert message is not None
    return column.fill_null(_default(message.fields[at])) if column.null_count else column


def _default(field: ProtobufField) -> pa.Scalar:
    if field.kind == "enum":
        return pa.scalar(field.values[0][1], pa.string())
    return pa.scalar(_DEFAULTS.get(field.kind, 0), field.item)


def _timestamps(value: pa.StructArray) -> pa.Array:
    seconds = value.field(0).to_numpy(zero_copy_only=False).astype(np.int64)
    nanos = value.field(1).to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers(seconds * 1_000_000 + nanos // 1000, pa.timestamp("us", tz="UTC"))
