"""Reading by hand, for the few messages where that pays."""

import struct
from typing import Any, Final

from klamm.errors import RemoteProtocolError
from klamm.protocol.codec.primitives import decode_uvarint

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


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
