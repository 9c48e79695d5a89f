"""The sparse indexes of a segment: offset to file position, and timestamp to offset.

Entries are appended with plain writes, so a full disk is an error of this call and not a signal
that ends the process, and a file is never longer than its entries. Kafka, which preallocates and
maps its indexes, opens such files as they are; the unused zeros at the end of a file that Kafka
left behind in a crash are cut off when it is opened here.

Only the newest entries of a segment that is being written stay in memory. Older ones are found by
binary search in the file, which the page cache makes cheap. A file is open from its first new entry
on until the segment is sealed, so that many segments cost neither memory nor file descriptors.

New entries are written some dozens at a time, and before the file is synced or sealed. A crash may
take those that were not written: a start after a crash builds the indexes of all segments anew that
have not been synced.

One thread at a time may append or cut; any thread may look something up meanwhile.
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final, NamedTuple

from klamm.broker.log.files import Files, LogFile, OpenFile

#: What a search reads in one piece, in entries.
_BLOCK: Final = 512
#: How many of the newest entries an index that is being written remembers, at least. They are
#: written when there are as many new ones.
_REMEMBERED: Final = 32


class IndexEntry(NamedTuple):
    """One entry: `key` is what is searched, `value` what is found."""

    key: int
    value: int


class _Recent:
    """The newest entries as two columns of numbers: a broker has them for every partition.

    A value is appended before its key, so that another thread finds a value for every key.
    """

    __slots__ = ("first", "keys", "values")

    def __init__(self, first: int = 0, entries: Iterable[IndexEntry] = ()) -> None:
        #: How many older entries there are. All of them are in the file.
        self.first = first
        self.keys = array("q")
        self.values = array("q")
        for entry in entries:
            self.append(*entry)

    def append(self, key: int, value: int) -> None:
        self.values.append(value)
        self.keys.append(key)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, row: int) -> IndexEntry:
        return IndexEntry(self.keys[row], self.values[row])

    def newest(self, count: int) -> _Recent:
        """A copy of the last entries."""
        copy = _Recent(self.first + len(self) - count)
        copy.keys, copy.values = self.keys[-count:], self.values[-count:]
        return copy


#: What every index that is not open for appends remembers.
_NO_ENTRIES: Final = _Recent()


class _Index:
    """Entries of one size whose keys increase; stored relative to two bases."""

    _form: ClassVar[struct.Struct]

    __slots__ = (
        "_collected",
        "_files",
        "_key_base",
        "_recent",
        "_takes_entries",
        "_value_base",
        "_written",
        "entries",
        "file",
        "is_aligned",
        "is_missing",
    )

    def __init__(
        self, name: str, files: Files, size: int | None, *, key_base: int, value_base: int
    ) -> None:
        """`size` is the file's, None if there is none."""
        self.file = LogFile(name, files)
        self._files = files
        self._key_base = key_base
        self._value_base = value_base
        self._takes_entries = False
        self._recent = _NO_ENTRIES
        #: All entries while the index is built anew, None at other times.
        self._collected: bytearray | None = None
        self.is_missing = size is None
        self.is_aligned = (size or 0) % self._form.size == 0
        self.entries = (size or 0) // self._form.size
        #: How many of them are in the file; the others are in memory.
        self._written = self.entries

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def size(self) -> int:
        return self.entries * self._form.size

    @property
    def is_empty(self) -> bool:
        """Whether the file has no bytes, or does not exist, and nothing is to be written."""
        return not self.entries and self.is_aligned

    def is_full(self, max_bytes: int) -> bool:
        """Whether there is no room for an entry and the last entry of a sealed time index."""
        return self.entries >= max_bytes // self._form.size - 1

    def open_for_append(self) -> None:
        """Create the file if it is missing, and keep its newest entries in memory."""
        if self.is_missing:
            self.file.create()
            self.is_missing = False
        self.write()
        start = max(0, self.entries - _REMEMBERED)
        self._recent = _Recent(
            start, self._read(self.file.opened(), start, self.entries) if self.entries else ()
        )
        self._takes_entries = True

    def build_anew(self) -> None:
        """Forget all entries and collect new ones in memory; `seal` brings them into the file."""
        self.entries = self._written = 0
        self.is_aligned = True
        self._recent, self._collected, self._takes_entries = _Recent(), bytearray(), True

    def _write_collected(self, collected: bytearray) -> None:
        """Bring entries that were built anew into the file, which has most of them already.

        After a crash the file often has them all, and is left alone: to cut a file and to fill it
        again takes a file system milliseconds, and a broker may have many thousand indexes.
        """
        file = self.file.opened(create=True)
        present = os.pread(file.fd, len(collected) + 1, 0)
        kept = len(present) if collected.startswith(present) else 0
        if kept < len(present):
            # First, so that a crash in between leaves no entry that does not belong here.
            self._files.ftruncate(file.fd, 0)
        if kept < len(collected):
            self._files.write_all(file.fd, [memoryview(collected)[kept:]], kept)
        self._written = self.entries
        self.is_missing = False

    def write(self) -> None:
        """Bring new entries into the file."""
        if self._collected is not None:
            self._write_collected(self._collected)
            self._collected = None
        elif self._written < self.entries:
            recent, form = self._recent, self._form
            new = range(self._written - recent.first, len(recent))
            key_base, value_base = self._key_base, self._value_base
            packed = b"".join(
                form.pack(recent.keys[row] - key_base, recent.values[row] - value_base)
                for row in new
            )
            file = self.file.opened()
            self._files.write_all(file.fd, [packed], self._written * form.size)
            self._written = self.entries

    def seal(self) -> None:
        """Write new entries, close the file and free the memory; entries can still be looked up."""
        self.write()
        self._close()

    def _close(self) -> None:
        self._recent, self._takes_entries = _NO_ENTRIES, False
        self.file.close()

    def last(self) -> IndexEntry | None:
        recent = self._recent
        if recent:
            return recent[-1]
        rows = self._rows_before(recent)
        return self._read(self._opened(), rows - 1, rows)[0] if rows else None

    def floor(self, key: int) -> IndexEntry | None:
        """The last entry whose key is not above `key`."""
        recent = self._recent
        if recent and recent.keys[0] <= key:
            return recent[bisect_right(recent.keys, key) - 1]
        rows = self._rows_before(recent)
        return self._search(key, rows) if rows else None

    def first_with_value(self, value: int) -> IndexEntry | None:
        """The first entry whose value is not below `value`."""
        recent = self._recent
        if recent and recent.values[0] < value:
            rows = len(recent)
            row = bisect_left(recent.values, value, hi=rows)
            return recent[row] if row < rows else None
        low = 0
        high = rows = self._rows_before(recent)
        if rows:
            file = self._opened()
            while low < high:
                middle = (low + high) // 2
                if self._read(file, middle, middle + 1)[0].value < value:
                    low = middle + 1
                else:
                    high = middle
            if low < rows:
                return self._read(file, low, low + 1)[0]
        return recent[0] if recent else None

    def cut(self, rows: int) -> None:
        """Keep the first `rows` entries only."""
        self.write()
        if rows != self.entries or not self.is_aligned:
            file = self._opened()
            self._files.ftruncate(file.fd, rows * self._form.size)
        self.entries = self._written = rows
        self.is_aligned = True
        if self._takes_entries:
            self.open_for_append()

    def cut_where(self, is_beyond: Callable[[IndexEntry], bool]) -> None:
        """Drop the entries at the end for which `is_beyond` holds."""
        self.write()
        low, high = 0, self.entries
        if low < high:
            file = self._opened()
            while low < high:
                middle = (low + high) // 2
                if is_beyond(self._read(file, middle, middle + 1)[0]):
                    high = middle
                else:
                    low = middle + 1
        if low != self.entries or not self.is_aligned:
            self.cut(low)

    def sync(self) -> None:
        """Make the file durable; `write` brings the newest entries into it."""
        self.file.sync()

    def rename(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self.file.rename(name)
        self.file.name = name

    def delete(self) -> None:
        self._collected = None
        self._close()
        self.file.delete()

    def __iter__(self) -> Iterator[IndexEntry]:
        recent = self._recent
        rows = self._rows_before(recent)
        older = self._read(self._opened(), 0, rows) if rows else ()
        return iter([*older, *map(IndexEntry, recent.keys, recent.values)])

    def _append(self, key: int, value: int) -> None:
        assert self._takes_entries, "a sealed index takes no entries"
        recent = self._recent
        recent.append(key, value)
        self.entries += 1
        if self._collected is not None:
            self._collected += self._form.pack(key - self._key_base, value - self._value_base)
        elif self.entries - self._written >= _REMEMBERED:
            self.write()
        if len(recent) >= 2 * _REMEMBERED:
            # New columns, because another thread may be searching the old ones.
            self._recent = recent.newest(_REMEMBERED)

    def _rows_before(self, recent: _Recent) -> int:
        """How many entries are to be looked for in the file.

        Of an open index they are those before the ones in memory, also while none is there: another
        thread may append the first one, which is not in the file, at any moment.
        """
        return self.entries if recent is _NO_ENTRIES else recent.first

    def _search(self, key: int, rows: int) -> IndexEntry | None:
        file, form = self._opened(), self._form
        relative = key - self._key_base
        low, high = 0, rows
        while high - low > _BLOCK:
            middle = (low + high) // 2
            if form.unpack(os.pread(file.fd, form.size, middle * form.size))[0] <= relative:
                low = middle
            else:
                high = middle
        block = os.pread(file.fd, (high - low) * form.size, low * form.size)
        # Rows below `low` have keys not above ours, rows from `high` on have larger ones.
        low, high = 0, len(block) // form.size
        while low < high:
            middle = (low + high) // 2
            if form.unpack_from(block, middle * form.size)[0] <= relative:
                low = middle + 1
            else:
                high = middle
        if not low:
            return None
        found, value = form.unpack_from(block, (low - 1) * form.size)
        return IndexEntry(found + self._key_base, value + self._value_base)

    def _opened(self) -> OpenFile:
        """The file for a lookup; that of a sealed index is not kept open."""
        return self.file.opened() if self._takes_entries else self.file.opened_briefly()

    def _read(self, file: OpenFile, start: int, end: int) -> list[IndexEntry]:
        size = self._form.size
        content = os.pread(file.fd, (end - start) * size, start * size)
        key_base, value_base = self._key_base, self._value_base
        return [
            IndexEntry(key + key_base, value + value_base)
            for key, value in self._form.iter_unpack(content)
        ]


class OffsetIndex(_Index):
    """The last offset of a batch, and the position in the file where that batch begins."""

    _form = struct.Struct(">ii")

    __slots__ = ()

    def __init__(self, name: str, base_offset: int, files: Files, size: int | None) -> None:
        super().__init__(name, files, size, key_base=base_offset, value_base=0)

    def append(self, last_offset: int, position: int) -> None:
        self._append(last_offset, position)

    def is_sane(self, log_size: int) -> bool:
        """Whether the entries can belong to a log of that size, after cutting unused zeros."""
        if not self.is_aligned:
            return False
        last = self.last()
        if last is not None and last.value == 0:
            self.cut_where(lambda entry: entry.value == 0)
            last = self.last()
        return last is None or (last.key >= self._key_base and 0 < last.value < log_size)


class TimeIndex(_Index):
    """The largest timestamp so far, and the last offset of the batch that brought it."""

    _form = struct.Struct(">qi")

    __slots__ = ()

    def __init__(self, name: str, base_offset: int, files: Files, size: int | None) -> None:
        super().__init__(name, files, size, key_base=0, value_base=base_offset)

    def append_if_larger(self, timestamp: int, offset: int) -> None:
        """Timestamps strictly increase, so one that was seen before adds nothing."""
        last = self.last()
        if timestamp > (last.key if last else -1):
            self._append(timestamp, offset)

    def is_sane(self) -> bool:
        """Whether the entries can be a time index at all, after cutting unused zeros."""
        if not self.is_aligned:
            return False
        unused = IndexEntry(0, self._value_base)
        last = self.last()
        if last == unused:
            self.cut_where(lambda entry: entry == unused)
            last = self.last()
        return last is None or (last.key >= 0 and last.value >= self._value_base)
