"""One segment: a file of batches, its indexes, and how to find something in it.

One thread at a time may append or cut; any thread may read meanwhile.
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from klamm.broker.log.aborted import TransactionIndex
from klamm.broker.log.errors import CorruptLogError
from klamm.broker.log.files import AnyPath, Buffer, Files, LogFile, OpenFile, size_of
from klamm.broker.log.indexes import OffsetIndex, TimeIndex
from klamm.broker.log.names import ABORTED_INDEX, LOG, OFFSET_INDEX, TIME_INDEX, segment_name
from klamm.broker.log.settings import LogConfig
from klamm.protocol.records import HEADER_SIZE, LENGTH_END, Batch, BatchHeader, decode_batch_header

NO_TIMESTAMP: Final = -1
_MAX_RELATIVE_OFFSET: Final = 2**31 - 1
#: The files of a segment.
_KINDS: Final = (LOG, OFFSET_INDEX, TIME_INDEX, ABORTED_INDEX)

#: Base offset, length and last offset delta: enough to step from batch to batch.
_SPAN: Final = struct.Struct(">qi11xi")
#: How much is read at once to step through batches, to read headers, and to read whole batches.
#: From 128 KB on glibc may map new memory for each read, which takes ten times as long as the read.
_STEP_BYTES: Final = 4096
_HEADERS_BYTES: Final = 65_536
_BATCHES_BYTES: Final = 122_880


class Found(NamedTuple):
    """The position of a batch in the file."""

    position: int
    size: int
    base_offset: int


class Segment:
    """The batches from `base_offset` up to the next segment's."""

    __slots__ = (
        "_files",
        "_first_timestamp",
        "_is_preallocated",
        "_log",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_since_index_entry",
        "_takes_batches",
        "aborted_index",
        "base_offset",
        "created_ms",
        "offset_index",
        "size",
        "time_index",
    )

    def __init__(
        self,
        replica: AnyPath,
        base_offset: int,
        files: Files,
        *,
        created_ms: int,
        suffix: str = "",
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        """`sizes` has the files of the replica's directory by name, if they are known already."""
        stem = segment_name(base_offset)
        names = [stem + kind + suffix for kind in _KINDS]
        paths = [f"{replica}/{name}" for name in names]
        log_size, offsets_size, times_size, aborted_size = (
            map(size_of, paths) if sizes is None else map(sizes.get, names)
        )
        self.base_offset: Final = base_offset
        self._log = LogFile(paths[0], files)
        self.offset_index = OffsetIndex(paths[1], base_offset, files, offsets_size)
        self.time_index = TimeIndex(paths[2], base_offset, files, times_size)
        self.aborted_index = TransactionIndex(paths[3], files, aborted_size)
        self.size = log_size or 0
        self.created_ms = created_ms
        self._files = files
        self._takes_batches = False
        self._is_preallocated = False
        self._since_index_entry = 0
        self._first_timestamp: int | None = None
        self._max_timestamp: int | None = None
        self._max_timestamp_offset = base_offset

    # -- writing

    def create(self, preallocated_bytes: int = 0) -> None:
        """Create the file of batches, unless it exists; its indexes come with the first batch.

        A file that is still empty gets `preallocated_bytes` at once, and `seal` cuts off what was
        not used. After a crash the recovery of the segment does that.
        """
        if not self.size:
            self._log.create()
            if preallocated_bytes:
                self._resize(preallocated_bytes)
                self._is_preallocated = True

    def open_for_append(self) -> None:
        """Create the files that are missing."""
        self.create()
        self.offset_index.open_for_append()
        self.time_index.open_for_append()
        self._takes_batches = True

    def append(self, buffers: Sequence[Buffer], size: int) -> int:
        """Write `buffers`, `size` bytes in all, at the end, and say where they begin.

        They count only once `extend` has been told what they are.
        """
        if not self._takes_batches:
            self.open_for_append()
        file, position = self.file, self.size
        if self._files.pwritev(file.fd, buffers, position) != size:
            self._files.write_all(file.fd, buffers, position)
        return position

    def extend(
        self, size: int, last_offset: int, max_timestamp: int, index_interval_bytes: int
    ) -> None:
        """Let the next batch of what `append` wrote be part of the segment."""
        if max_timestamp > self.max_timestamp:
            self._max_timestamp = max_timestamp
            self._max_timestamp_offset = last_offset
        if self._first_timestamp is None and not self.size:
            self._first_timestamp = max_timestamp
        if self._since_index_entry > index_interval_bytes:
            self.offset_index.append(last_offset, self.size)
            self.time_index.append_if_larger(self.max_timestamp, self._max_timestamp_offset)
            self._since_index_entry = 0
        self._since_index_entry += size
        self.size += size

    def has_room(
        self,
        size: int,
        last_offset: int,
        *,
        segment_bytes: int,
        index_bytes: int,
    ) -> bool:
        """Whether the segment has room for these bytes and offsets."""
        return (
            self.size + size <= segment_bytes
            and last_offset - self.base_offset <= _MAX_RELATIVE_OFFSET
            and not self.offset_index.is_full(index_bytes)
            and not self.time_index.is_full(index_bytes)
        )

    def may_hold(self, header: BatchHeader, expected: int) -> bool:
        """Whether a batch can stand here, where the one before it ended at `expected`."""
        return (
            expected <= header.base_offset <= header.last_offset
            and header.last_offset - self.base_offset <= _MAX_RELATIVE_OFFSET
        )

    def age_ms(self, max_timestamp: int, now_ms: int) -> int:
        """How long the segment has been filled, by its records' clock if they have one."""
        if not self.size:
            return 0
        first = self.first_timestamp
        if first != NO_TIMESTAMP:
            return max_timestamp - first
        return now_ms - self.created_ms

    def seal(self) -> None:
        """Complete the indexes and free what only a writer needs."""
        if self.size and self._takes_batches:
            self.time_index.append_if_larger(self.max_timestamp, self._max_timestamp_offset)
        self._takes_batches = False
        if self._is_preallocated:
            self._resize(self.size)
            self._is_preallocated = False
        self.offset_index.seal()
        self.time_index.seal()
        self.aborted_index.seal()

    def truncate_to(self, offset: int) -> int:
        """Drop every batch that holds `offset` or a later one; say where the segment now ends.

        A batch that begins before `offset` and ends after it goes as a whole, and then the end
        is its base offset.
        """
        found = self.locate(offset)
        if found is None:
            return offset
        self.cut(found.position, offset)
        return min(offset, found.base_offset)

    def cut(self, size: int, offset: int) -> None:
        """Shorten the file to `size`, where `offset` is the first that is no longer in it."""
        self._resize(size)
        self.size = size
        self.offset_index.cut_where(lambda entry: entry.value >= size)
        self.time_index.cut_where(lambda entry: entry.value >= offset)
        self.aborted_index.cut_from(offset)
        self._since_index_entry = 0
        self._first_timestamp = None
        self._rescan_max_timestamp()

    def _resize(self, size: int) -> None:
        file = self.file
        self._files.ftruncate(file.fd, size)

    def has_sane_indexes(self) -> bool:
        """Whether both indexes exist and can belong to this file."""
        if not self.size:
            return True
        return (
            not self.offset_index.is_missing
            and not self.time_index.is_missing
            and self.offset_index.is_sane(self.size)
            and self.time_index.is_sane()
        )

    def rebuild(self, index_interval_bytes: int, is_valid: Callable[[Batch], bool]) -> int:
        """Index the batches anew, cut the file before the first that is not valid, and seal it.

        The response is the number of bytes that were cut off. Slow: it reads the whole file.
        """
        file_size = self.size
        if not file_size and self.offset_index.is_empty and self.time_index.is_empty:
            return 0
        batches = self._batches(0, file_size)
        self.create()
        self.offset_index.build_anew()
        self.time_index.build_anew()
        self._takes_batches = True
        self.size = self._since_index_entry = 0
        self._max_timestamp, self._first_timestamp = NO_TIMESTAMP, None
        for batch in batches:
            if not is_valid(batch):
                break
            header = batch.header
            self.extend(header.size, header.last_offset, header.max_timestamp, index_interval_bytes)
        if self.size < file_size:
            self._resize(self.size)
        self.seal()
        return file_size - self.size

    def write_indexes(self) -> None:
        """Bring the newest entries of the indexes into their files; `sync` makes them durable."""
        self.offset_index.write()
        self.time_index.write()

    def sync(self) -> None:
        """Make what has been written durable. Slow: it waits for the disk."""
        file = self.file
        self._files.fsync(file.fd)
        self.offset_index.sync()
        self.time_index.sync()
        self.aborted_index.sync()

    def change_suffix(self, old: str, new: str) -> None:
        """Rename all files. The log goes first: by its name a crash is told how far it got."""
        self._log.rename(self._log.name.removesuffix(old) + new)
        for index in (self.offset_index, self.time_index, self.aborted_index):
            index.rename(index.file.name.removesuffix(old) + new)

    def close_files(self) -> None:
        """Close the files; reads that have them open can continue."""
        for file in (self._log, self.offset_index.file, self.time_index.file):
            file.close()
        self.aborted_index.file.close()

    def delete(self) -> None:
        """Remove the files; reads that have them open can continue."""
        self._log.delete()
        self.offset_index.delete()
        self.time_index.delete()
        self.aborted_index.delete()

    # -- reading

    @property
    def path(self) -> Path:
        return self._log.path

    @property
    def file(self) -> OpenFile:
        """The open file of batches. Hold on to it while its descriptor is in use."""
        return self._log.opened()

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of any batch, -1 if none has one."""
        if self._max_timestamp is None:
            # Sealing made the last entry of the time index the largest of all.
            entry = self.time_index.last()
            self._max_timestamp = entry.key if entry else NO_TIMESTAMP
            self._max_timestamp_offset = entry.value if entry else self.base_offset
        return self._max_timestamp

    @property
    def first_timestamp(self) -> int:
        """The largest timestamp of the first batch, -1 if there is none."""
        if self._first_timestamp is None:
            first = next(self.headers(), None)
            if first is None:
                return NO_TIMESTAMP
            self._first_timestamp = first[1].max_timestamp
        return self._first_timestamp

    @property
    def newest_ms(self) -> int:
        """The time that retention compares: the largest timestamp, or else the file's."""
        if self.max_timestamp >= 0:
            return self.max_timestamp
        return int(self.path.stat().st_mtime * 1000)

    def locate(self, offset: int) -> Found | None:
        """The first batch that ends at or after `offset`; None if all end before it."""
        entry = self.offset_index.floor(offset)
        position = entry.value if entry else 0
        file, end = self.file, self.size
        while position < end:
            chunk = os.pread(file.fd, _STEP_BYTES, position)
            at, stop = 0, len(chunk) - _SPAN.size
            while at <= stop:
                base, length, delta = _SPAN.unpack_from(chunk, at)
                size = length + LENGTH_END
                if size < HEADER_SIZE:
                    raise CorruptLogError(f"{self.path}: no batch at {position + at}")
                if base + delta >= offset:
                    return Found(position + at, size, base)
                at += size
            if not at:
                return None  # The file was cut while we looked.
            position += at
        return None

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Position and header of each batch from `position` on."""
        end = self.size
        if position >= end:
            return
        file = self.file
        while position < end:
            chunk = os.pread(file.fd, min(_HEADERS_BYTES, end - position), position)
            at = 0
            while at + HEADER_SIZE <= len(chunk):
                header = decode_batch_header(chunk, at)
                if header.size < HEADER_SIZE:
                    raise CorruptLogError(f"{self.path}: no batch at {position + at}")
                yield position + at, header
                at += header.size
            if not at:
                return
            position += at

    def batches(self, position: int = 0) -> Iterator[Batch]:
        """Each whole batch from `position` on, checked for its length only.

        A last batch that the file does not hold completely is not among them.
        """
        return self._batches(position, self.size)

    def _batches(self, position: int, end: int) -> Iterator[Batch]:
        file = self.file
        chunk, at = memoryview(b""), 0
        while position + HEADER_SIZE <= end:
            if len(chunk) - at < HEADER_SIZE:
                chunk, at = memoryview(os.pread(file.fd, _BATCHES_BYTES, position)), 0
            header = decode_batch_header(chunk, at)
            size = header.size
            if size < HEADER_SIZE or position + size > end:
                return
            if len(chunk) - at < size:
                chunk, at = memoryview(os.pread(file.fd, max(size, _BATCHES_BYTES), position)), 0
            yield Batch(header, chunk[at : at + size])
            position += size
            at += size

    def content(self, position: int, size: int) -> memoryview:
        """A copy of some bytes of the file."""
        file = self.file
        return memoryview(os.pread(file.fd, size, position))

    def end_offset(self) -> int:
        """The offset after the last batch; found from the last index entry on."""
        entry = self.offset_index.last()
        end = self.base_offset
        for _, header in self.headers(entry.value if entry else 0):
            end = header.last_offset + 1
        return end

    def batches_since(self, timestamp: int, offset: int) -> Iterator[Batch]:
        """The batches that reach `timestamp` and end at or after `offset`, in order."""
        # An entry's offset is where its timestamp was first reached: all before it are older.
        entry = self.time_index.floor(timestamp)
        near = self.offset_index.floor(entry.value) if entry else None
        for position, header in self.headers(near.value if near else 0):
            if header.max_timestamp >= timestamp and header.last_offset >= offset:
                yield Batch(header, self.content(position, header.size))

    def _rescan_max_timestamp(self) -> None:
        """Take it from the time index and from the batches that came after its last entry."""
        entry = self.time_index.last()
        largest, at = (entry.key, entry.value) if entry else (NO_TIMESTAMP, self.base_offset)
        near = self.offset_index.floor(at)
        for _, header in self.headers(near.value if near else 0):
            if header.max_timestamp > largest:
                largest, at = header.max_timestamp, header.last_offset
        self._max_timestamp, self._max_timestamp_offset = largest, at


class Located(NamedTuple):
    """A batch with its segment, and where the next segment begins."""

    segment: Segment
    found: Found
    next_base: int | None


class Segments:
    """Segments in offset order, never changed in place, so that a reader sees one state."""

    __slots__ = ("bases", "items")

    def __init__(self, items: Iterable[Segment]) -> None:
        self.items = tuple(items)
        self.bases = [segment.base_offset for segment in self.items]

    def floor(self, offset: int) -> int:
        """The row of the segment that `offset` falls into."""
        return max(0, bisect_right(self.bases, offset) - 1)

    def locate(self, offset: int) -> Located | None:
        """The first batch that ends at or after `offset`, its segment, and where the next begins.

        Compaction may have left nothing from `offset` to the end of its segment.
        """
        row = self.floor(offset)
        while row < len(self.items):
            found = self.items[row].locate(offset)
            row += 1
            if found is not None:
                next_base = self.bases[row] if row < len(self.bases) else None
                return Located(self.items[row - 1], found, next_base)
        return None

    def from_offset(self, offset: int) -> tuple[Segment, ...]:
        return self.items[self.floor(offset) :]


def expired_segments(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    start_offset: int,
    high_watermark: int,
    end_offset: int,
    now_ms: int,
) -> list[Segment]:
    """The oldest segments that may be deleted: before the log start, too old, or too large in sum.

    A topic that is only compacted loses nothing to age or size. Uncommitted records are never
    deleted, because a returning replica would not find its fetch offset.
    """
    expired: list[Segment] = []
    size = sum(segment.size for segment in segments)
    for segment, following in zip_longest(segments, segments[1:]):
        end = following.base_offset if following else end_offset
        if high_watermark < end or (following is None and not segment.size):
            break
        is_hidden = following is not None and end <= start_offset
        is_surplus = 0 <= config.retention_bytes <= size - segment.size
        is_old = 0 <= config.retention_ms < now_ms - segment.newest_ms
        if not (is_hidden or (config.deletes and (is_surplus or is_old))):
            break
        expired.append(segment)
        size -= segment.size
    return expired
