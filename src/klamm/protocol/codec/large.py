"""Reading messages that name very much, in a thread beside the event loop's.

kio reads a message in one go and lets no other thread run meanwhile. Here arrays are read item by
item, so that the event loop gets its turn, and become lists, so that they can be given up piece by
piece: freeing a million objects at once would stop all threads as well.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, Final, TypeAlias

from klamm.errors import RemoteProtocolError
from klamm.protocol.codec.primitives import decode_uvarint
from klamm.protocol.schema._kio import entity_reader, get_field_reader, get_reader
from klamm.protocol.schema.fields import WireField, wire_fields

#: A request with more items than this is refused: their objects would not fit into memory.
ITEMS_MAX: Final = 1_000_000
#: How many objects are given up before another thread may run.
_PIECE: Final = 256


class _Left:
    """How many more items a message may have."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items = ITEMS_MAX

    def take(self, count: int) -> None:
        self.items -= count
        if self.items < 0:
            raise RemoteProtocolError(f"a message of more than {ITEMS_MAX} items")


Read: TypeAlias = Callable[[memoryview, int, _Left], tuple[Any, int]]


def read_large(schema: Any, view: memoryview, at: int) -> Any:
    """The message at `at`, with lists for its arrays."""
    message, _ = _struct_reader(schema)(view, at, _Left())
    return message


def dismantle(value: Any) -> None:
    """Give up what a message holds, a piece at a time; no caller may need it any more."""
    if isinstance(value, list):
        # All items of an array are of one kind.
        holds_lists = bool(value) and not isinstance(value[0], str | int | bytes)
        while value:
            if holds_lists:
                for each in value[-_PIECE:]:
                    dismantle(each)
            del value[-_PIECE:]
    elif isinstance(value, dict):
        for each in value.values():
            if isinstance(each, list):
                dismantle(each)
        while len(value) > _PIECE:
            value.popitem()
    elif isinstance(value, set):
        while len(value) > _PIECE:
            value.pop()
    elif isinstance(value, tuple):
        for each in value:
            if isinstance(each, list):
                dismantle(each)
    else:
        kind: Any = type(value)
        for name in _array_names(kind):
            dismantle(getattr(value, name))


@cache
def _array_names(kind: Any) -> Sequence[str]:
    if not hasattr(kind, "__flexible__"):
        return ()  # Not a message.
    return [each.name for each in wire_fields(kind) if each.is_array]


@cache
def _struct_reader(schema: Any) -> Read:
    described = wire_fields(schema)
    if not any(each.is_array for each in described):
        read_whole = entity_reader(schema)

        def read_natively(view: memoryview, at: int, _: _Left) -> tuple[Any, int]:
            message, size = read_whole(view, at)
            return message, at + size

        return read_natively
    is_flexible: bool = schema.__flexible__
    declared = dict(zip(described, fields(schema), strict=True))
    steps = [
        (each.name, _array_reader(each, is_flexible))
        if each.is_array
        else (each.name, _field_reader(schema, declared[each], is_tagged=False))
        for each in described
        if not each.is_tagged
    ]
    tagged = {
        each.tag: (each.name, _field_reader(schema, declared[each], is_tagged=True))
        for each in described
        if each.is_tagged
    }

    def read(view: memoryview, at: int, left: _Left) -> tuple[Any, int]:
        values = {}
        for name, read_field in steps:
            values[name], at = read_field(view, at, left)
        if is_flexible:
            count, at = decode_uvarint(view, at)
            for _ in range(count):
                tag, at = decode_uvarint(view, at)
                size, at = decode_uvarint(view, at)
                if tag in tagged:
                    name, read_tagged = tagged[tag]
                    values[name], _ = read_tagged(view, at, left)
                at += size
        return schema(**values), at

    return read


def _field_reader(schema: Any, declared: Any, *, is_tagged: bool) -> Read:
    read = get_field_reader(
        entity_type=schema, field=declared, is_request_header=False, is_tagged_field=is_tagged
    )

    def read_field(view: memoryview, at: int, _: _Left) -> tuple[Any, int]:
        value, size = read(view, at)
        return value, at + size

    return read_field


def _array_reader(each: WireField, is_flexible: bool) -> Read:
    read_item = (
        _struct_reader(each.struct_type)
        if each.struct_type is not None
        else _value_reader(each.kafka_type, is_flexible)
    )

    def read(view: memoryview, at: int, left: _Left) -> tuple[Any, int]:
        count, at = _count(view, at, is_flexible)
        if count < 0:
            if not each.is_nullable:
                raise RemoteProtocolError(f"{each.name} is null")
            return None, at
        if count > len(view) - at:
            raise RemoteProtocolError(f"{count} items are announced where fewer fit")
        left.take(count)
        items = []
        for _ in range(count):
            item, at = read_item(view, at, left)
            items.append(item)
        return items, at

    return read


def _value_reader(kafka_type: str, is_flexible: bool) -> Read:
    read = get_reader(kafka_type, is_flexible, False)

    def read_value(view: memoryview, at: int, _: _Left) -> tuple[Any, int]:
        value, size = read(view, at)
        return value, at + size

    return read_value


def _count(view: memoryview, at: int, is_flexible: bool) -> tuple[int, int]:
    """The number of items of an array, -1 for null, and where they begin."""
    if is_flexible:
        count, at = decode_uvarint(view, at)
        return count - 1, at
    if at + 4 > len(view):
        raise RemoteProtocolError("the message is cut short")
    return int.from_bytes(view[at : at + 4], "big", signed=True), at + 4
