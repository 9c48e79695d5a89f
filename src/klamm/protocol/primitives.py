"""Lengths and strings as they are written, for the encoders that go by hand."""

import struct
from typing import Final

from klamm.protocol.varints import encode_uvarint

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
