"""The transaction index of a segment: its aborted transactions, for read_committed consumers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from klamm.broker.log.files import Files, OpenFile, size_of

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

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files = files
        self._file: OpenFile | None = None
        self._entries: list[AbortedTxn] | None = [] if size_of(path) is None else None

    def append(self, entry: AbortedTxn) -> None:
        entries = self._loaded()
        if self._file is None:
            self._file = self._files.open_file(self.path, create=True)
        packed = _ENTRY.pack(_VERSION, *entry)
        self._files.write_all(self._file.fd, [packed], len(entries) * _ENTRY.size)
        entries.append(entry)

    def __iter__(self) -> Iterator[AbortedTxn]:
        return iter(tuple(self._loaded()))

    def cut_from(self, offset: int) -> None:
        """Forget the transactions whose marker is at or after `offset`."""
        kept = [entry for entry in self._loaded() if entry.last_offset < offset]
        if len(kept) != len(self._loaded()):
            file = self._file or self._files.open_file(self.path, create=True)
            self._files.ftruncate(file.fd, len(kept) * _ENTRY.size)
            self._entries = kept

    def seal(self) -> None:
        self._file = None

    def sync(self) -> None:
        self._files.sync_path(self.path)

    def rename(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            self._files.replace(self.path, path)
        self.path = path

    def delete(self) -> None:
        self.seal()
        self._files.delete(self.path)
        self._entries = []

    def _loaded(self) -> list[AbortedTxn]:
        if self._entries is None:
            content = self.path.read_bytes()
            whole = len(content) // _ENTRY.size * _ENTRY.size
            self._entries = [
                AbortedTxn(*fields)
                for version, *fields in _ENTRY.iter_unpack(content[:whole])
                if version == _VERSION
            ]
        return self._entries
