"""Checking that a message holds as much as it announces, before kio reads it.

kio reserves memory for as many items as an array announces before it looks for them, so a count
of billions in a frame of bytes ends the process; and it accepts null in fields that are not
nullable. Here messages are walked without creating objects: every announced item must be there, and
arrays that are not nullable must not be null. Items of equal size are skipped all at once.
"""

import struct
from collections.abc import Callable
from functools import cache
from typing import Any, Final, TypeAlias

from klamm.errors import RemoteProtocolError
from klamm.protocol.codec.primitives import decode_uvarint
from klamm.protocol.schema.fields import FIXED_FORMATS, WireField, wire_fields

#: From the position of something to the position after it.
Walk: TypeAlias = Callable[[memoryview, int], int]

#: Skips a number of items of equal size; returns None if their sizes differ.
Skip: TypeAlias = Callable[[memoryview, int, int], int | None]

_UUID_SIZE: Final = 16


def check_sound(schema: Any, view: memoryview, at: int) -> int:
    """The position after the message at `at`; raises RemoteProtocolError if it is not all there."""
    try:
        end = struct_walker(schema)(view, at)
    except IndexError:
        raise RemoteProtocolError("the message is cut short") from None
    if end > len(view):
        raise RemoteProtocolError("the message is cut short")
    return end


@cache
def struct_walker(schema: Any) -> Walk:
    """A walk over one struct. It may end, or raise IndexError, beyond the end of the data."""
    fields = wire_fields(schema)
    is_flexible: bool = schema.__flexible__
    # Each step is preceded by as many bytes of fixed width as there are before it.
    steps: list[tuple[int, Walk]] = []
    fixed = 0
    for each in fields:
        if each.is_tagged:
            continue
        size = None if each.is_array or each.struct_type else _fixed_size(each.kafka_type)
        if size is not None:
            fixed += size
        else:
            steps.append((fixed, _field_walker(each, is_flexible)))
            fixed = 0
    if is_flexible:
        tagged = {each.tag: _field_walker(each, True) for each in fields if each.is_tagged}
        steps.append((fixed, _tags_walker(tagged)))
        fixed = 0

    def walk(view: memoryview, at: int) -> int:
        for before, step in steps:
            at = step(view, at + before)
        return at + fixed

    return walk


def _fixed_size(kafka_type: str) -> int | None:
    if kafka_type == "uuid":
        return _UUID_SIZE
    fixed_format = FIXED_FORMATS.get(kafka_type)
    return struct.calcsize(f">{fixed_format}") if fixed_format else None


@cache
def _fixed_struct_size(schema: Any) -> int | None:
    """The size of a struct whose fields are all of fixed width, without its tags."""
    sizes = [
        None if each.is_array or each.struct_type else _fixed_size(each.kafka_type)
        for each in wire_fields(schema)
        if not each.is_tagged
    ]
    return None if None in sizes else sum(size for size in sizes if size is not None)


def _field_walker(each: WireField, is_flexible: bool) -> Walk:
    if each.is_array:
        return _array_walker(each, is_flexible)
    if each.struct_type is not None:
        return _nullable_struct_walker(each)
    size = _fixed_size(each.kafka_type)
    if size is not None:
        return lambda _view, at: at + size
    return _sized_walker("h" if each.kafka_type == "string" else "i", is_flexible)


def _nullable_struct_walker(each: WireField) -> Walk:
    walk_struct = struct_walker(each.struct_type)
    if not each.is_nullable or each.is_tagged:
        return walk_struct
    return lambda view, at: walk_struct(view, at + 1) if view[at] == 1 else at + 1


def _sized_walker(legacy_format: str, is_flexible: bool) -> Walk:
    """Over a string or bytes; a negative length is null, or for kio to refuse."""
    if is_flexible:

        def walk_compact(view: memoryview, at: int) -> int:
            length = view[at]
            if length < 0x80:
                return at + (length or 1)
            length, at = decode_uvarint(view, at)
            return at + length - 1

        return walk_compact

    unpack = struct.Struct(f">{legacy_format}")

    def walk_legacy(view: memoryview, at: int) -> int:
        if at + unpack.size > len(view):
            raise IndexError
        (length,) = unpack.unpack_from(view, at)
        return at + unpack.size + max(int(length), 0)

    return walk_legacy


def _array_walker(each: WireField, is_flexible: bool) -> Walk:
    read_count = _read_compact_count if is_flexible else _read_legacy_count
    if each.struct_type is not None:
        skip_all = _fixed_structs_skipper(each.struct_type, is_flexible)
        walk_item = struct_walker(each.struct_type)
    else:
        skip_all = _fixed_values_skipper(each.kafka_type)
        walk_item = _field_walker(each._replace(is_array=False), is_flexible)

    def walk(view: memoryview, at: int) -> int:
        count, at = read_count(view, at)
        if count <= 0:
            if count < 0 and not each.is_nullable:
                raise RemoteProtocolError(f"{each.name} is null")
            return at
        if count > len(view) - at:
            raise RemoteProtocolError(f"{count} items are announced where fewer fit")
        if skip_all is not None:
            after = skip_all(view, at, count)
            if after is not None:
                return after
        for _ in range(count):
            at = walk_item(view, at)
        return at

    return walk


def _read_compact_count(view: memoryview, at: int) -> tuple[int, int]:
    count = view[at]
    if count < 0x80:
        return count - 1, at + 1
    count, at = decode_uvarint(view, at)
    return count - 1, at


def _read_legacy_count(view: memoryview, at: int) -> tuple[int, int]:
    if at + 4 > len(view):
        raise IndexError
    return int.from_bytes(view[at : at + 4], "big", signed=True), at + 4


def _fixed_values_skipper(kafka_type: str) -> Skip | None:
    size = _fixed_size(kafka_type)
    return None if size is None else lambda _view, at, count: at + count * size


def _fixed_structs_skipper(schema: Any, is_flexible: bool) -> Skip | None:
    size = _fixed_struct_size(schema)
    if size is None:
        return None
    if not is_flexible:
        return lambda _view, at, count: at + count * size
    stride = size + 1

    def skip_untagged(view: memoryview, at: int, count: int) -> int | None:
        end = at + count * stride
        if end > len(view):
            raise IndexError
        tag_counts = bytes(view[at + size : end : stride])
        return end if tag_counts.count(0) == count else None

    return skip_untagged


def _tags_walker(tagged: dict[int, Walk]) -> Walk:
    def walk(view: memoryview, at: int) -> int:
        count = view[at]
        if count == 0:
            return at + 1
        count, at = decode_uvarint(view, at)
        for _ in range(count):
            tag, at = decode_uvarint(view, at)
            size, at = decode_uvarint(view, at)
            end = at + size
            if end > len(view):
                raise IndexError
            if tag in tagged and tagged[tag](view[:end], at) > end:
                raise IndexError
            at = end
        return at

    return walk
