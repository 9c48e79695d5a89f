"""Strings, counts and variable-length integers, for messages encoded and read by hand."""

import struct
from typing import Any, Final, TypeAlias

from klamm.errors import RemoteProtocolError

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_pack_int16: Final = _INT16.pack
_pack_int32: Final = _INT32.pack


def encode_count(count: int, is_flexible: bool) -> bytes:
    """The length before items or bytes; -1 stands for null."""
    # Compact lengths are one more than the length, so that zero can mean null.
    return encode_uvarint(count + 1) if is_flexible else _pack_int32(count)


def encode_string(value: str | None, is_flexible: bool) -> bytes:
    """A string with its length, or null."""
    if value is None:
        return b"\0" if is_flexible else b"\xff\xff"
    encoded = value.encode()
    if is_flexible:
        return encode_uvarint(len(encoded) + 1) + encoded
    return _pack_int16(len(encoded)) + encoded


def encode_tagged(fields: list[tuple[int, bytes]]) -> bytes:
    """A section of tagged fields, which must ascend."""
    parts = [encode_uvarint(len(fields))]
    for tag, value in fields:
        parts += (encode_uvarint(tag), encode_uvarint(len(value)), value)
    return b"".join(parts)


Buffer: TypeAlias = bytes | memoryview

#: Nearly all lengths are short.
_ONE_BYTE: Final = tuple(bytes([value]) for value in range(0x80))


def encode_uvarint(value: int) -> bytes:
    """The bytes of a number that is not negative."""
    if 0 <= value < 0x80:
        return _ONE_BYTE[value]
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def decode_uvarint(buffer: Buffer, at: int) -> tuple[int, int]:
    """A number of at most 32 bits and the position after it."""
    value = shift = 0
    try:
        while True:
            byte = buffer[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 28:
                raise RemoteProtocolError("a variable-length integer is longer than five bytes")
    except IndexError:
        raise RemoteProtocolError("the data ends inside a variable-length integer") from None
    if value > 0xFFFFFFFF:
        raise RemoteProtocolError("a variable-length integer exceeds 32 bits")
    return value, at


def encode_varint(value: int) -> bytes:
    """The zig-zag bytes of a number of at most 64 bits."""
    return encode_uvarint(value << 1 if value >= 0 else (-value << 1) - 1)


def decode_varint(buffer: Buffer, at: int) -> tuple[int, int]:
    """A zig-zag number of at most 64 bits and the position after it."""
    value = shift = 0
    try:
        while True:
            byte = buffer[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1), at
            shift += 7
            if shift > 63:
                raise RemoteProtocolError("a variable-length integer is longer than ten bytes")
    except IndexError:
        raise RemoteProtocolError("the data ends inside a variable-length integer") from None


class Cursor:
    """A position in a message; reading past the end raises RemoteProtocolError."""

    __slots__ = ("at", "is_flexible", "view")

    def __init__(self, view: memoryview, at: int, is_flexible: bool) -> None:
        self.view = view
        self.at = at
        self.is_flexible = is_flexible

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The next fields of fixed width."""
        at = self.at
        try:
            values = layout.unpack_from(self.view, at)
        except struct.error:
            raise RemoteProtocolError("the message is cut short") from None
        self.at = at + layout.size
        return values

    def take(self, size: int) -> memoryview:
        """The next bytes, not copied."""
        end = self.at + size
        if size < 0 or end > len(self.view):
            raise RemoteProtocolError(f"{size} bytes are announced where fewer are left")
        taken = self.view[self.at : end]
        self.at = end
        return taken

    def length(self, legacy: struct.Struct = _INT32) -> int:
        """The length that stands before bytes or items, -1 for null."""
        if not self.is_flexible:
            (length,) = self.unpack(legacy)
            return int(length)
        view, at = self.view, self.at
        if at < len(view) and view[at] < 0x80:  # nearly always one byte
            self.at = at + 1
            return view[at] - 1
        value, self.at = decode_uvarint(view, at)
        return value - 1

    def count(self, item_size: int) -> int:
        """The length of an array that is not null, of items of at least `item_size` bytes.

        The length is compared with the remaining bytes, so that a forged count allocates nothing.
        """
        count = self.length()
        if count < 0 or count * item_size > len(self.view) - self.at:
            raise RemoteProtocolError(f"{count} items are announced where fewer fit")
        return count

    def nullable_bytes(self) -> memoryview | None:
        """Bytes or record data, not copied."""
        length = self.length()
        return None if length == -1 else self.take(length)

    def nullable_string(self) -> str | None:
        """A string, or None; bytes that are no UTF-8 become U+FFFD, as in Java."""
        length = self.length(_INT16)
        return None if length == -1 else str(self.take(length), "utf-8", "replace")

    def string(self) -> str:
        """A string that must not be null."""
        value = self.nullable_string()
        if value is None:
            raise RemoteProtocolError("a string is null where it must not be")
        return value

    def tags(self) -> dict[int, memoryview]:
        """The tagged fields that end a struct, undecoded."""
        view, at = self.view, self.at
        if not self.is_flexible:
            return {}
        if at < len(view) and view[at] == 0:  # nearly always none
            self.at = at + 1
            return {}
        count, self.at = decode_uvarint(view, at)
        found: dict[int, memoryview] = {}
        for _ in range(count):
            tag, self.at = decode_uvarint(view, self.at)
            size, self.at = decode_uvarint(view, self.at)
            found[tag] = self.take(size)
        return found
