"""Writing messages from plain mappings, for every schema that kio or klamm has.

A handler returns its values once for all versions: a mapping from kio's field names to values, with
mappings for structs and sequences for arrays. The encoder writes the fields that the version has.
Times are whole milliseconds; a topic id is a UUID or None.

A field may be left out if its schema has a default, if it is nullable (then null), an array (then
empty), an error code (then NONE) or a throttle time (then 0). Anything else missing is a bug and
raises LocalProtocolError, as does a value that does not fit its field. Tagged fields are written
when they differ from their default; a tagged struct, when there is one.

kio can write too, but walks its dataclasses field by field: `bench/protocol.py` compares the two.
"""

import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any, Final, NamedTuple, TypeAlias

from klamm.errors import LocalProtocolError
from klamm.protocol.codec.primitives import encode_count, encode_string, encode_tagged
from klamm.protocol.schema.fields import FIXED_FORMATS, REQUIRED, WireField, wire_fields

Values: TypeAlias = Mapping[str, Any]
Append: TypeAlias = Callable[[Any], None]
Writer: TypeAlias = Callable[[Any, Append], None]

_NO_UUID: Final = bytes(16)
_NO_TIME: Final = -1
_NO_TAGS: Final = b"\0"


class EncodedArray(NamedTuple):
    """The items of an array that someone else has already encoded for the version at hand."""

    size: int
    parts: Sequence[bytes | memoryview]


def encode_parts(schema: Any, values: Values, append: Append) -> None:
    """Hand the bytes of one message to `append`, piece by piece."""
    try:
        struct_writer(schema)(values, append)
    except KeyError as error:
        complaint = f"{error.args[0]} is missing"
    except (struct.error, TypeError, ValueError, AttributeError) as error:
        complaint = str(error)
    else:
        return
    raise LocalProtocolError(f"{schema.__name__} version {schema.__version__}: {complaint}")


@cache
def struct_writer(schema: Any) -> Writer:
    """A function that writes values as the struct `schema`.

    Neighbouring fields of fixed width are packed in one call, which saves most of the time.
    """
    declared = wire_fields(schema)
    is_flexible: bool = schema.__flexible__
    in_place = [each for each in declared if not each.is_tagged]
    tagged = sorted((each for each in declared if each.is_tagged), key=lambda each: each.tag)
    defaults = {each.name: each.default for each in in_place if each.default is not REQUIRED}
    steps: list[Writer] = []
    for is_fixed, group in groupby(in_place, _is_fixed):
        if is_fixed:
            steps.append(_run_writer(list(group)))
        else:
            steps += [_field_writer(each, is_flexible) for each in group]
    if is_flexible:
        steps.append(_tagged_writer(tagged))

    def write(values: Values, append: Append) -> None:
        complete = {**defaults, **values}
        for step in steps:
            step(complete, append)

    return write


def _is_fixed(each: WireField) -> bool:
    # A time may be null; its fixed width has a special value for that.
    return each.kafka_type in FIXED_FORMATS and not each.is_array and not each.is_nullable


def _run_writer(run: Sequence[WireField]) -> Writer:
    pack = struct.Struct(">" + "".join(FIXED_FORMATS[each.kafka_type] for each in run)).pack
    names = [each.name for each in run]
    if len(names) == 1:
        (name,) = names
        return lambda values, append: append(pack(values[name]))
    get_all = operator.itemgetter(*names)
    return lambda values, append: append(pack(*get_all(values)))


def _field_writer(each: WireField, is_flexible: bool) -> Writer:
    name, write_value = each.name, _value_writer(each, is_flexible)
    return lambda values, append: write_value(values[name], append)


def _value_writer(each: WireField, is_flexible: bool) -> Writer:
    if each.is_array:
        return _array_writer(each, is_flexible)
    if each.struct_type is not None:
        return _struct_field_writer(each)
    return _one_writer(each, is_flexible)


def _one_writer(each: WireField, is_flexible: bool) -> Writer:
    kafka_type = each.kafka_type
    if kafka_type in FIXED_FORMATS:
        pack = struct.Struct(f">{FIXED_FORMATS[kafka_type]}").pack
        return lambda value, append: append(pack(_NO_TIME if value is None else value))
    if kafka_type == "uuid":
        return lambda value, append: append(_NO_UUID if value is None else value.bytes)
    null = _null(each, is_flexible)

    def write_string(value: str | None, append: Append) -> None:
        if value is None:
            append(_checked_null(null, each.name))
            return
        append(encode_string(value, is_flexible))

    def write_bytes(value: Any, append: Append) -> None:
        if value is None:
            append(_checked_null(null, each.name))
            return
        append(encode_count(len(value), is_flexible))
        append(value)

    return write_string if kafka_type == "string" else write_bytes


def _null(each: WireField, is_flexible: bool) -> bytes | None:
    if not each.is_nullable:
        return None
    if each.kafka_type == "string" and not each.is_array:
        return encode_string(None, is_flexible)
    return encode_count(-1, is_flexible)


def _checked_null(null: bytes | None, name: str) -> bytes:
    if null is None:
        raise LocalProtocolError(f"{name} must not be null")
    return null


def _array_writer(each: WireField, is_flexible: bool) -> Writer:
    null = _null(each, is_flexible)
    fixed_format = FIXED_FORMATS.get(each.kafka_type)

    if fixed_format:
        pack_items = _fixed_array_packer(fixed_format, is_flexible)

        def write_fixed(items: Sequence[Any] | None, append: Append) -> None:
            append(_checked_null(null, each.name) if items is None else pack_items(items))

        return write_fixed

    write_item = (
        struct_writer(each.struct_type)
        if each.struct_type is not None
        else _one_writer(each._replace(is_nullable=False), is_flexible)
    )

    def write_items(items: Sequence[Any] | EncodedArray | None, append: Append) -> None:
        if items is None:
            append(_checked_null(null, each.name))
            return
        if isinstance(items, EncodedArray):
            append(encode_count(items.size, is_flexible))
            for part in items.parts:
                append(part)
            return
        append(encode_count(len(items), is_flexible))
        for item in items:
            write_item(item, append)

    return write_items


def _fixed_array_packer(fixed_format: str, is_flexible: bool) -> Callable[[Sequence[Any]], bytes]:
    """Packs count and items in one call; most arrays are lists of a few replicas."""

    @cache
    def packer(count: int) -> Callable[..., bytes]:
        return struct.Struct(f">{'B' if is_flexible else 'i'}{count}{fixed_format}").pack

    def pack(items: Sequence[Any]) -> bytes:
        count = len(items)
        if count < 0x7F:
            return packer(count)(count + is_flexible, *items)
        return encode_count(count, is_flexible) + struct.pack(f">{count}{fixed_format}", *items)

    return pack


def _struct_field_writer(each: WireField) -> Writer:
    write_struct = struct_writer(each.struct_type)
    if not each.is_nullable:
        return write_struct

    def write_nullable(value: Values | None, append: Append) -> None:
        if value is None:
            append(b"\xff")
            return
        append(b"\x01")
        write_struct(value, append)

    return write_nullable


def _tagged_writer(tagged: Sequence[WireField]) -> Writer:
    names = frozenset(each.name for each in tagged)
    writers = [
        # A tagged field that is null is left out.
        # So is an empty array, unless that differs from null.
        (
            each,
            each.is_array and each.default is not None,
            _value_writer(each._replace(is_nullable=False), is_flexible=True),
        )
        for each in tagged
    ]

    def write_tagged(values: Values, append: Append) -> None:
        if names.isdisjoint(values):
            append(_NO_TAGS)
            return
        present = []
        for each, is_left_out_empty, write_value in writers:
            value = values.get(each.name)
            if value is None or value == each.default or (is_left_out_empty and not value):
                continue
            parts: list[bytes] = []
            write_value(value, parts.append)
            present.append((each.tag, b"".join(parts)))
        append(encode_tagged(present))

    return write_tagged
