"""Strings, counts and variable-length integers as bytes, for the encoders written by hand."""

import struct
from typing import Final, TypeAlias

from klamm.errors import RemoteProtocolError

_pack_int16: Final = struct.Struct(">h").pack
_pack_int32: Final = struct.Struct(">i").pack


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
