"""JSON by Arrow's reader, without a Python object for each record.

Arrow reads a text of many objects, so each value is put into an object of its own, as the only item
of an array, which is one row: a value that is not JSON cannot swallow its neighbours, and text
behind a value is not taken for a field beside it. Where Arrow refuses a row by number,
the rows before it are read again, the row is set aside, and reading goes on behind it: each row is
read at most twice, however many are bad. Where it refuses without a number, the rows are halved.
"""

import datetime
import itertools
import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from klamm.errors import ConfigError
from klamm.pipeline.ingest.formats.parsing import I64, Parsed, all_positions, without

_ROW: Final = "_"
#: The text around a value: an array, or an object alone.
_IN_ARRAY: Final = (pa.scalar(b'{"_":[', pa.binary()), pa.scalar(b"]}\n", pa.binary()))
_IN_OBJECT: Final = (pa.scalar(b'{"_":', pa.binary()), pa.scalar(b"}\n", pa.binary()))
#: What a value has that leaves its array and opens another; so may one with two arrays inside.
_LEAVES_ARRAY: Final = r"(?s)\}\s*\]\s*,.*:\s*\["
_CLOSING: Final = ord("]")
_NOTHING: Final = pa.scalar(b"", pa.binary())
_ROW_NUMBER: Final = re.compile(r" in row (\d+)$")
_PATH: Final = re.compile(r"Column\(/_/\[\]/?(.*?)\)")
#: Rows that are searched by halving are cut into portions of this size first.
_PORTION: Final = 256
#: After a bad row, rows are read in stretches of this size, so that the next one costs little.
_STRETCH: Final = 512
_KINDS: Final = {type(None): "null", bool: "a boolean", str: "text", list: "an array"}


@dataclass(frozen=True)
class JsonParser:
    """Reads objects with these fields; other fields are left out, missing ones are null."""

    fields: pa.StructType

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """Parse values, none of which is null."""
        bad = _no_objects(values)
        positions = without(len(values), bad)
        if bad:
            values = values.take(pa.array(positions))
        pieces: list[pa.StructArray] = []
        kept: list[I64] = []
        for start, rows in _read_around(values, self._read_portion, positions, bad):
            pieces.append(rows)
            kept.append(positions[start : start + len(rows)])
        if not pieces:
            return Parsed(pa.array([], self.fields), positions[:0], bad)
        rows = pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)
        where = kept[0] if len(kept) == 1 else np.concatenate(kept)
        return Parsed(rows, where, bad)

    def _read_portion(self, values: pa.BinaryArray) -> pa.StructArray:
        if _needs_objects(self.fields):
            return _read_objects(values, self.fields)
        return _from_arrow(read_text(values, _for_arrow(self.fields)), self.fields)


class _UnnumberedError(ValueError):
    """Some row is bad."""


def read_text(values: pa.BinaryArray, fields: pa.StructType | None) -> pa.Array:
    """The objects of values in these fields, or in those that they turn out to have."""
    found = _read_rows(values, _IN_ARRAY, None if fields is None else pa.list_(fields))
    if not pa.types.is_list(found.type) or not len(found) == len(found.values) == len(values):
        # A value that closes its array and opens another, or has several items; none has no item.
        raise _UnnumberedError("JSON: there is text behind the value")
    if not (_bytes(values) == _CLOSING).any():
        return found.values
    may_leave = pc.match_substring_regex(values, _LEAVES_ARRAY)
    if may_leave.true_count:
        # `{}],"b":[{}` leaves an array for a field beside it, and no value leaves both an array and
        # an object: behind a comma, one wants a value and the other a name with its colon.
        try:
            _read_rows(values.filter(may_leave), _IN_OBJECT, pa.struct([]))
        except pa.ArrowInvalid:
            raise _UnnumberedError("JSON: there is text behind the value") from None
    return found.values


def _bytes(values: pa.BinaryArray) -> npt.NDArray[np.uint8]:
    bounds = np.frombuffer(values.buffers()[1], np.int32)[values.offset :]
    return np.frombuffer(values.buffers()[2], np.uint8)[bounds[0] : bounds[len(values)]]


def _read_rows(
    values: pa.BinaryArray, wrapping: tuple[pa.Scalar, pa.Scalar], kind: pa.DataType | None
) -> pa.Array:
    before, after = wrapping
    text = pc.binary_join_element_wise(before, values, after, _NOTHING)
    data = text.buffers()[2]
    options = pj.ParseOptions(
        explicit_schema=None if kind is None else pa.schema([(_ROW, kind)]),
        unexpected_field_behavior="infer" if kind is None else "ignore",
    )
    table = pj.read_json(
        pa.BufferReader(data),
        pj.ReadOptions(use_threads=False, block_size=data.size + 1),
        options,
    )
    return table.column(_ROW).combine_chunks()


def _read_around(values: pa.BinaryArray, read: Any, positions: I64, bad: dict[int, str]) -> Any:
    """Pieces of rows with where they begin; what is bad is noted and left out."""
    pending = [(0, len(values))] if len(values) else []
    while pending:
        start, end = pending.pop()
        reason = ""
        try:
            yield start, read(values.slice(start, end - start))
            continue
        except (pa.ArrowInvalid, _UnnumberedError) as error:
            reason = str(error).splitlines()[0]
        if end - start == 1:
            bad[int(positions[start])] = _told(reason)
            continue
        numbered = _ROW_NUMBER.search(reason)
        row = end if numbered is None else start + int(numbered[1])
        # A value may pretend to be several rows, and then the number is that of a later one.
        if row < end and not _is_read(read, values.slice(row, 1)):
            bad[int(positions[row])] = _told(reason)
            pending += [*_stretches(row + 1, end), *_stretches(start, row)]
        else:
            middle = start + (_PORTION if end - start > _PORTION else (end - start) // 2)
            pending += [(middle, end), (start, middle)]


def _is_read(read: Any, value: pa.BinaryArray) -> bool:
    try:
        read(value)
    except (pa.ArrowInvalid, _UnnumberedError):
        return False
    return True


def _stretches(start: int, end: int) -> list[tuple[int, int]]:
    """Rows in stretches, the last one first: where one is bad, others may be."""
    bounds = [*range(start, end, _STRETCH), end]
    return list(itertools.pairwise(bounds))[::-1]


def _told(reason: str) -> str:
    """Arrow's reason for people: no number of a row that they never see, no wrapper."""
    text = _ROW_NUMBER.sub("", reason).removeprefix("JSON parse error: ")
    text = _PATH.sub(lambda found: f"field {found[1]}" if found[1] else "the value", text)
    return text if text.startswith("JSON") else f"JSON: {text}"


def _no_objects(values: pa.BinaryArray) -> dict[int, str]:
    """Values that are no objects at first sight, so that they do not disturb the reading of others.

    Whatever does not begin and end with a brace, or has neighbours that are not UTF-8, is looked at
    alone.
    """
    bad = {}
    for at in _suspects(values, 0).tolist():
        try:
            value = orjson.loads(values[at].as_py())
        except orjson.JSONDecodeError as error:
            bad[at] = f"JSON: {error}"
            continue
        if not isinstance(value, dict):
            bad[at] = f"JSON: the value is {_KINDS.get(type(value), 'a number')}, not an object"
    return bad


def _suspects(values: pa.BinaryArray, start: int) -> I64:
    try:
        text = values.cast(pa.string())
    except pa.ArrowInvalid:  # some value is not UTF-8
        if len(values) <= _PORTION:
            return start + all_positions(len(values))
        half = len(values) // 2
        parts = (_suspects(values[:half], start), _suspects(values[half:], start + half))
        return np.concatenate(parts)
    looks_good = pc.and_(pc.starts_with(text, "{"), pc.ends_with(text, "}"))
    return start + np.flatnonzero(~looks_good.to_numpy(zero_copy_only=False))


def _for_arrow(fields: pa.StructType) -> pa.StructType:
    """Days are read as text, because Arrow's reader expects numbers for them."""
    return pa.struct(
        [
            pa.field(each.name, pa.string() if pa.types.is_date(each.type) else each.type)
            for each in fields
        ]
    )


def _from_arrow(rows: pa.StructArray, fields: pa.StructType) -> pa.StructArray:
    if rows.type.equals(fields):
        return rows
    mask = rows.is_null() if rows.null_count else None
    columns = [rows.field(at).cast(each.type) for at, each in enumerate(fields)]
    return pa.StructArray.from_arrays(columns, fields=list(fields), mask=mask)


def _needs_objects(fields: pa.StructType) -> bool:
    """Whether there are types that Arrow's reader does not read: maps, and days inside others."""
    return any(_is_unread(each.type) for each in fields if not pa.types.is_date(each.type))


def _is_unread(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(_is_unread(each.type) for each in kind)
    if pa.types.is_list(kind):
        return _is_unread(kind.value_type)
    return bool(pa.types.is_map(kind) or pa.types.is_date(kind))


def _read_objects(values: pa.BinaryArray, fields: pa.StructType) -> pa.StructArray:
    """The slow way, with a Python object for each record."""
    try:
        return pa.array(
            [_object(orjson.loads(each), fields) for each in values.to_pylist()], fields
        )
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError, TypeError, AttributeError) as error:
        raise _UnnumberedError(f"JSON: {error}") from None


def _object(value: Any, kind: pa.DataType) -> Any:
    """A value of JSON as `pa.array` takes it."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return {each.name: _object(value.get(each.name), each.type) for each in kind}
    if pa.types.is_map(kind):
        return [(key, _object(item, kind.item_type)) for key, item in value.items()]
    if pa.types.is_list(kind):
        return [_object(item, kind.value_type) for item in value]
    if pa.types.is_date(kind):
        return datetime.date.fromisoformat(value)
    if pa.types.is_timestamp(kind):
        return datetime.datetime.fromisoformat(value)
    return value


def infer_fields(values: pa.BinaryArray) -> pa.StructType:
    """The fields of a sample; what cannot be read at all is left to the dead letters.

    Text stays text, even where it looks like a time. A field that is always null is text.
    """
    bad = _no_objects(values)
    positions = without(len(values), bad)
    values = values.take(pa.array(positions))
    pieces = [
        rows.type
        for _, rows in _read_around(
            values, lambda portion: read_text(portion, None), positions, bad
        )
        if pa.types.is_struct(rows.type)
    ]
    fields: dict[str, pa.DataType] = {}
    for piece in pieces:
        for each in piece:
            fields[each.name] = _either(fields.get(each.name), each.type)
    if not fields:
        raise ConfigError(
            "No schema can be inferred: none of the first records is a JSON object. Name one with "
            "--schema FILE."
        )
    return pa.struct([pa.field(name, _settled(kind)) for name, kind in fields.items()])


def _either(first: pa.DataType | None, second: pa.DataType) -> pa.DataType:
    if first is None or pa.types.is_null(first) or first.equals(second):
        return second
    if pa.types.is_null(second):
        return first
    if {first, second} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_struct(first) and pa.types.is_struct(second):
        fields = {each.name: each.type for each in first}
        for each in second:
            fields[each.name] = _either(fields.get(each.name), each.type)
        return pa.struct(list(fields.items()))
    if pa.types.is_list(first) and pa.types.is_list(second):
        return pa.list_(_either(first.value_type, second.value_type))
    return first


def _settled(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_null(kind) or pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_struct(kind):
        # Parquet has no groups without fields.
        fields = [pa.field(each.name, _settled(each.type)) for each in kind]
        return pa.struct(fields) if fields else pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_settled(kind.value_type))
    return kind
