"""The transaction index of a segment: its aborted transactions, for read_committed consumers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from klamm.broker.log.files import Files, LogFile

_ENTRY: Final = struct.Struct(">hqqqq")
_VERSION: Final = 0


class AbortedTxn(NamedTuple):
    """An aborted transaction: its records and its marker are in [first_offset, last_offset]."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """Entries in the order of their markers. A segment without entries has no file."""

    __slots__ = ("_entries", "_files", "file")

    def __init__(self, name: str, files: Files, size: int | None) -> None:
        """`size` is the file's, None if there is none."""
        self.file = LogFile(name, files)
        self._files = files
        self._entries: list[AbortedTxn] | None = [] if size is None else None

    def append(self, entry: AbortedTxn) -> None:
        entries = self._loaded()
        file = self.file.opened(create=True)
        packed = _ENTRY.pack(_VERSION, *entry)
        self._files.write_all(file.fd, [packed], len(entries) * _ENTRY.size)
        entries.append(entry)

    def __iter__(self) -> Iterator[AbortedTxn]:
        return iter(tuple(self._loaded()))

    def cut_from(self, offset: int) -> None:
        """Forget the transactions whose marker is at or after `offset`."""
        kept = [entry for entry in self._loaded() if entry.last_offset < offset]
        if len(kept) != len(self._loaded()):
            file = self.file.opened(create=True)
            self._files.ftruncate(file.fd, len(kept) * _ENTRY.size)
            self._entries = kept

    def seal(self) -> None:
        self.file.close()

    def sync(self) -> None:
        self.file.sync()

    def rename(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.file.rename(name)
        self.file.name = name

    def delete(self) -> None:
        self.file.delete()
        self._entries = []

    def _loaded(self) -> list[AbortedTxn]:
        if self._entries is None:
            content = self.file.path.read_bytes()
            whole = len(content) // _ENTRY.size * _ENTRY.size
            self._entries = [
                AbortedTxn(*fields)
                for version, *fields in _ENTRY.iter_unpack(content[:whole])
                if version == _VERSION
            ]
        return self._entries
