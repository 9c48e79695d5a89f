"""Making messages readable for kio that Kafka reads: unknown tags, strings that are no UTF-8.

Kafka lets newer peers add tagged fields, which older ones skip (FRM-5), and Java replaces bytes
that are no UTF-8. kio refuses both. They are too rare to give up kio's native reader for, so a
message that kio cannot read is cleaned of them and given to it once more.
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeAlias

from klamm.protocol.codec.primitives import Cursor, encode_string, encode_tagged
from klamm.protocol.schema.fields import FIXED_FORMATS, WireField, wire_fields

Skip: TypeAlias = Callable[[Cursor], bytes]

_UUID_SIZE: Final = 16


def cleaned(schema: Any, view: memoryview, at: int) -> bytes:
    """The message at `at`, with nothing in it that kio cannot read.

    Tagged fields that `schema` does not know are left out; bytes of a string that are no UTF-8
    become U+FFFD, as in Java.
    """
    return _struct_copier(schema)(Cursor(view, at, is_flexible=schema.__flexible__))


@cache
def _struct_copier(schema: Any) -> Skip:
    declared = wire_fields(schema)
    in_place = [_field_copier(each) for each in declared if not each.is_tagged]
    tagged = {each.tag: _field_copier(each) for each in declared if each.is_tagged}

    def copy(cursor: Cursor) -> bytes:
        parts = [copy_field(cursor) for copy_field in in_place]
        known = [
            (tag, tagged[tag](Cursor(value, 0, is_flexible=True)))
            for tag, value in sorted(cursor.tags().items())
            if tag in tagged
        ]
        return b"".join(parts) + (encode_tagged(known) if cursor.is_flexible else b"")

    return copy


def _field_copier(each: WireField) -> Skip:
    if each.is_array:
        return _array_copier(each)
    if each.struct_type is None:
        return _value_copier(each)
    copy_struct = _struct_copier(each.struct_type)
    if not each.is_nullable or each.is_tagged:
        return copy_struct

    def copy_nullable(cursor: Cursor) -> bytes:
        marker = bytes(cursor.take(1))
        return marker + copy_struct(cursor) if marker == b"\x01" else marker

    return copy_nullable


def _value_copier(each: WireField) -> Skip:
    fixed_format = FIXED_FORMATS.get(each.kafka_type)
    size = struct.calcsize(f">{fixed_format}") if fixed_format else _UUID_SIZE
    if fixed_format or each.kafka_type == "uuid":
        return lambda cursor: bytes(cursor.take(size))
    if each.kafka_type == "string":
        return lambda cursor: encode_string(cursor.nullable_string(), cursor.is_flexible)

    def copy_sized(cursor: Cursor) -> bytes:
        start = cursor.at
        cursor.nullable_bytes()
        return bytes(cursor.view[start : cursor.at])

    return copy_sized


def _array_copier(each: WireField) -> Skip:
    copy_item = _struct_copier(each.struct_type) if each.struct_type else _value_copier(each)

    def copy(cursor: Cursor) -> bytes:
        start = cursor.at
        count = cursor.length()
        parts = [bytes(cursor.view[start : cursor.at])]
        # An item takes at least one byte, so a forged count ends with the message.
        parts += [copy_item(cursor) for _ in range(count)]
        return b"".join(parts)

    return copy
