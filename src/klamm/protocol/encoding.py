"""Writing messages from plain mappings, for every schema that kio or klamm has.

A handler says what it knows in Kafka's terms, once for all versions: a mapping from kio's field
names to values, with mappings for structs and sequences for arrays. The encoder takes from it what
the version at hand carries. Times are whole milliseconds; a topic id is a UUID or None.

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
from typing import Any, Final, NamedTuple, TypeAlias

from klamm.errors import LocalProtocolError
from klamm.protocol.fields import FIXED_FORMATS, REQUIRED, WireField, wire_fields
from klamm.protocol.primitives import encode_count, encode_string, encode_tagged

Values: TypeAlias = Mapping[str, Any]
Append: TypeAlias = Callable[[Any], None]
Writer: TypeAlias = Callable[[Any, Append], None]

_NO_UUID: Final = bytes(16)
_NO_TAGS: Final = b"\0"


class EncodedArray(NamedTuple):
    """The items of an array that someone else has already encoded for the version at hand."""

    size: int
    parts: Sequence[bytes | memoryview]


def encode_parts(schema: Any, values: Values, append: Append) -> None:
    """Hand the bytes of one message to `append`, piece by piece."""
    try:
        struct_writer(schema)(values, append)
    except (struct.error, TypeError, ValueError, AttributeError) as error:
        message = f"{schema.__name__} version {schema.__version__}: {error}"
        raise LocalProtocolError(message) from error


def encode_struct(schema: Any, values: Values) -> bytes:
    """The bytes of one message."""
    parts: list[bytes] = []
    encode_parts(schema, values, parts.append)
    return b"".join(parts)


@cache
def struct_writer(schema: Any) -> Writer:
    """A function that writes values as the struct `schema`.

    Neighbouring fields of fixed width are packed in one call: that is where the time goes.
    """
    declared = wire_fields(schema)
    is_flexible: bool = schema.__flexible__
    tagged = sorted((each for each in declared if each.is_tagged), key=lambda each: each.tag)
    steps: list[Writer] = []
    run: list[WireField] = []
    for each in declared:
        if each.is_tagged:
            continue
        if each.kafka_type in FIXED_FORMATS and not each.is_array:
            run.append(each)
            continue
        if run:
            steps.append(_run_writer(run))
            run = []
        steps.append(_field_writer(each, is_flexible))
    ends_empty = is_flexible and not tagged
    if run:
        steps.append(_run_writer(run, suffix="x" if ends_empty else ""))
    elif ends_empty:
        steps.append(lambda _values, append: append(_NO_TAGS))
    if tagged:
        steps.append(_tagged_writer(tagged))
    if len(steps) == 1:
        return steps[0]

    def write(values: Values, append: Append) -> None:
        for step in steps:
            step(values, append)

    return write


def _get(values: Values, each: WireField) -> Any:
    value = values.get(each.name, each.default)
    if value is REQUIRED:
        raise LocalProtocolError(f"{each.name} is missing from {sorted(values)}")
    return value


def _run_writer(run: Sequence[WireField], suffix: str = "") -> Writer:
    formats = "".join(FIXED_FORMATS[each.kafka_type] for each in run)
    pack = struct.Struct(f">{formats}{suffix}").pack
    names = [each.name for each in run]
    if len(run) == 1:
        (only,) = run

        def write_one(values: Values, append: Append) -> None:
            append(pack(_fixed_value(values, only)))

        return write_one

    get_all = operator.itemgetter(*names)

    def write_run(values: Values, append: Append) -> None:
        try:
            append(pack(*get_all(values)))
        except (KeyError, struct.error):  # some are left out or null: fill in, or fail saying which
            append(pack(*[_fixed_value(values, each) for each in run]))

    return write_run


def _fixed_value(values: Values, each: WireField) -> Any:
    value = _get(values, each)
    # The one null that a fixed width can hold: no time.
    return -1 if value is None and each.kafka_type == "datetime_i64" else value


def _field_writer(each: WireField, is_flexible: bool) -> Writer:
    write_value = _value_writer(each, is_flexible)

    def write_field(values: Values, append: Append) -> None:
        write_value(_get(values, each), append)

    return write_field


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
        return lambda value, append: append(pack(value))
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
        # A tagged field says null by not being there.
        (each, _value_writer(each._replace(is_nullable=False), is_flexible=True))
        for each in tagged
    ]

    def write_tagged(values: Values, append: Append) -> None:
        if names.isdisjoint(values):
            append(_NO_TAGS)
            return
        present = []
        for each, write_value in writers:
            value = values.get(each.name)
            if value is None or value == each.default or (each.is_array and not value):
                continue
            parts: list[bytes] = []
            write_value(value, parts.append)
            present.append((each.tag, b"".join(parts)))
        append(encode_tagged(present))

    return write_tagged
