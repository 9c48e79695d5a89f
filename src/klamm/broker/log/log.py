"""The log of one partition on this broker.

What may run where: `append_*`, `read`, `advance_high_watermark`, `raise_start_offset` and the
properties touch the page cache only and are made for the event loop. `flush`, `truncate_*`,
`close`, `delete_old_segments`, `delete_expired_files` and the lookups by time may wait for the disk
or read a lot; they can run in another thread beside appends and reads. Changes of the log exclude
one another by a lock that is held for microseconds, except by a truncation; reads take no lock.

The log knows offsets, bytes and epochs. Who leads, who follows and what is committed is decided
elsewhere: the high watermark is a number that it keeps within its bounds.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from klamm.broker.log.aborted import AbortedTxn
from klamm.broker.log.checkpoints import write_topic_id
from klamm.broker.log.directory import LogDirectory
from klamm.broker.log.epochs import LeaderEpochCache
from klamm.broker.log.errors import AppendError, OffsetOutOfRangeError
from klamm.broker.log.files import Buffer, Files
from klamm.broker.log.names import CLEANED, DELETED, SWAP
from klamm.broker.log.producers import NO_PRODUCER, ProducerStateManager, VerificationStateEntry
from klamm.broker.log.replay import decode_marker, note_batch, rebuild_producers
from klamm.broker.log.results import EMPTY_SLICE, AppendResult, Slice, TimestampedOffset
from klamm.broker.log.segment import Found, Located, Segment, Segments, expired_segments
from klamm.broker.log.settings import LogConfig
from klamm.broker.log.validation import (
    AppendOrigin,
    ReplicatedBatch,
    validate_batch,
    validate_replicated,
)
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode
from klamm.protocol.records import (
    ASSIGNED_SIZE,
    Batch,
    BatchHeader,
    encode_assigned,
    iterate_records,
)

T = TypeVar("T")


class Log:
    """The segments of one replica, with its epochs, producers and high watermark."""

    def __init__(
        self,
        partition: TopicPartition,
        path: Path,
        directory: LogDirectory,
        config: LogConfig,
        files: Files,
        *,
        segments: Iterable[Segment],
        epochs: LeaderEpochCache,
        producers: ProducerStateManager,
        start_offset: int,
        end_offset: int,
        recovery_point: int,
        high_watermark: int,
        topic_id: uuid.UUID | None,
        on_roll: Callable[[Log], None],
    ) -> None:
        self.partition = partition
        self.path = path
        self.directory = directory
        self.config = config
        self.epochs = epochs
        self.producers = producers
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.recovery_point = recovery_point
        self.high_watermark = start_offset
        self.advance_high_watermark(high_watermark)
        self.topic_id = topic_id
        self._files = files
        self._segments = Segments(segments)
        self._active = self._segments.items[-1]
        #: Where the batch is that this log, as a leader's, has appended last.
        self._newest: Located | None = None
        self._on_roll = on_roll
        self._lock = threading.RLock()
        self._truncations = 0
        self._doomed: list[tuple[int, Segment]] = []
        self._last_flush_ms = 0

    def __repr__(self) -> str:
        return f"<Log {self.partition} [{self.start_offset}, {self.end_offset})>"

    # -- state

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self._segments.items

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments.items)

    @property
    def has_deleted_segments(self) -> bool:
        """Whether `delete_expired_files` may have something to do."""
        return bool(self._doomed)

    @property
    def last_stable_offset(self) -> int:
        """The first offset that a reader of committed transactions may not see."""
        unstable = self.producers.first_unstable_offset
        if unstable is None:
            return self.high_watermark
        return min(max(unstable, self.start_offset), self.high_watermark)

    def advance_high_watermark(self, offset: int) -> int:
        """Set the high watermark as near to `offset` as the log's bounds allow, and return it."""
        self.high_watermark = max(self.start_offset, min(offset, self.end_offset))
        if self.producers.first_unstable_offset is not None:
            self.producers.settle(self.high_watermark)
        return self.high_watermark

    def assign_topic_id(self, topic_id: uuid.UUID) -> None:
        """Store the topic id with the log. It is assigned once."""
        with self._storage():
            write_topic_id(self.path, topic_id, self._files)
        self.topic_id = topic_id

    # -- appending

    def append_as_leader(
        self,
        records: Buffer | Batch,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        must_be_verified: bool = False,
        verification: VerificationStateEntry | None = None,
    ) -> AppendResult:
        """Append one batch, with offsets and epoch of our own; AppendError if it is refused.

        A `Batch` has been through `validate_batch` already. With `must_be_verified`, a batch that
        begins a transaction needs the verification that was begun for it (TXN-12).
        """
        if not self.directory.is_online:
            raise self.directory.refusal()
        config = self.config
        batch = (
            records
            if isinstance(records, Batch)
            else validate_batch(records, config, now_ms, origin)
        )
        header = batch.header
        has_producer = header.producer_id != NO_PRODUCER
        with self._lock:
            if has_producer and not header.is_control:
                if origin is AppendOrigin.CLIENT:
                    duplicate = self.producers.find_duplicate(header)
                    if duplicate is not None:
                        return AppendResult(
                            duplicate.first_offset,
                            duplicate.last_offset,
                            duplicate.timestamp if config.stamps_on_append else -1,
                            self.start_offset,
                            is_duplicate=True,
                        )
                if must_be_verified and header.is_transactional:
                    self.producers.check_verified(header, verification)
                self.producers.check(header, sequence=origin is AppendOrigin.CLIENT)
            elif has_producer and (marker := decode_marker(batch)):
                self.producers.check_marker(header, marker.coordinator_epoch)
            first = self.end_offset
            last = first + header.last_offset_delta
            try:
                segment = self._roll_if_due(header, first, last, now_ms)
                placed = encode_assigned(header, first, leader_epoch)
                position = segment.append((placed, batch.data[ASSIGNED_SIZE:]), header.size)
                segment.extend(header.size, last, header.max_timestamp, config.index_interval_bytes)
                self.epochs.assign(leader_epoch, first)
                if has_producer:
                    note_batch(self.producers, segment, batch, first)
            except OSError as error:
                raise self.directory.fail(error) from error
            self._newest = Located(segment, Found(position, header.size, first), None)
            self.end_offset = last + 1
        return AppendResult(
            first, last, now_ms if config.stamps_on_append else -1, self.start_offset
        )

    def append_as_follower(self, records: Buffer, *, now_ms: int) -> int:
        """Append the leader's batches as they are and return the number of bytes taken.

        A last batch that is cut short is left out; it comes whole with the next fetch.
        """
        if not self.directory.is_online:
            raise self.directory.refusal()
        view = memoryview(records)
        batches = list(validate_replicated(view))
        if not batches:
            return 0
        with self._lock:
            try:
                self._meet(batches[0].batch.header, now_ms)
                for run in self._runs(batches, now_ms):
                    self._append_run(view, run)
            except OSError as error:
                raise self.directory.fail(error) from error
        last = batches[-1]
        return last.position + last.batch.header.size

    def _meet(self, first: BatchHeader, now_ms: int) -> None:
        """Check that the leader's first batch follows this log; an empty log may start there."""
        if first.base_offset >= self.end_offset:
            return
        if self.end_offset == self.start_offset and first.last_offset >= self.end_offset:
            # The leader's log starts inside of this batch, and so would an empty log of ours.
            self.truncate_fully_and_start_at(first.base_offset, now_ms=now_ms)
            return
        raise AppendError(
            ErrorCode.INVALID_RECORD,
            f"{self.partition} ends at {self.end_offset}, but the batch of the leader begins at "
            f"{first.base_offset}",
        )

    def _runs(self, batches: list[ReplicatedBatch], now_ms: int) -> Iterator[list[ReplicatedBatch]]:
        """Portions that each go into the segment that is active when they are taken."""
        run: list[ReplicatedBatch] = []
        size = 0
        for batch in batches:
            header = batch.batch.header
            if self._is_roll_due(header, header.last_offset, now_ms, pending=size):
                if run:
                    yield run
                self._roll(header.base_offset, now_ms)
                run, size = [], 0
            run.append(batch)
            size += header.size
        yield run

    def _append_run(self, view: memoryview, run: list[ReplicatedBatch]) -> None:
        start = run[0].position
        end = run[-1].position + run[-1].batch.header.size
        segment, interval = self._active, self.config.index_interval_bytes
        segment.append([view[start:end]], end - start)
        for _, batch in run:
            header = batch.header
            segment.extend(header.size, header.last_offset, header.max_timestamp, interval)
            self.epochs.assign(header.leader_epoch, header.base_offset)
            if header.producer_id != NO_PRODUCER:
                note_batch(self.producers, segment, batch, header.base_offset)
            self.end_offset = header.last_offset + 1

    def _roll_if_due(self, header: BatchHeader, first: int, last: int, now_ms: int) -> Segment:
        if self._is_roll_due(header, last, now_ms):
            self._roll(first, now_ms)
        return self._active

    def _is_roll_due(
        self, header: BatchHeader, last_offset: int, now_ms: int, pending: int = 0
    ) -> bool:
        segment, config = self._active, self.config
        if not segment.size + pending:
            return False
        if not segment.has_room(
            pending + header.size,
            last_offset,
            segment_bytes=config.segment_bytes,
            index_bytes=config.segment_index_bytes,
        ):
            return True
        age_ms = segment.age_ms(header.max_timestamp, now_ms)
        return age_ms > config.max_segment_ms - config.jitter_ms(
            self.partition, segment.base_offset
        )

    def _roll(self, base_offset: int, now_ms: int) -> None:
        self._active.seal()
        self.producers.take_snapshot(base_offset)
        self._become_active(Segment(self.path, base_offset, self._files, created_ms=now_ms))
        self._on_roll(self)

    def _become_active(self, segment: Segment, after: Iterable[Segment] | None = None) -> None:
        segment.create(self.config.preallocated_bytes)
        self._active = segment
        before = self._segments.items if after is None else after
        self._segments = Segments([*before, segment])

    # -- reading

    def read(
        self, offset: int, max_bytes: int, upper_offset: int, *, at_least_one: bool = False
    ) -> Slice:
        """What is stored from the batch that holds `offset` on, below `upper_offset`.

        With `at_least_one` the first batch comes whole even if it exceeds `max_bytes`; without,
        a first batch that does not fit means nothing at all.
        """
        end = self.end_offset
        if not self.start_offset <= offset <= end:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.partition} is not within [{self.start_offset}, {end}]"
            )
        if offset >= upper_offset or offset == end:
            return EMPTY_SLICE

        def look(segments: Segments) -> Slice:
            located = self._locate(segments, offset)
            if located is None:
                return EMPTY_SLICE
            segment, found, next_base = located
            limit = segment.size
            if upper_offset < (end if next_base is None else next_base):
                first_hidden = segment.locate(upper_offset)
                if first_hidden is not None:
                    limit = first_hidden.position
            if found.size > max_bytes and not at_least_one:
                return EMPTY_SLICE
            size = min(limit - found.position, max(max_bytes, found.size))
            return Slice(segment.file, found.position, size) if size > 0 else EMPTY_SLICE

        return self._look_up(look)

    def _locate(self, segments: Segments, offset: int) -> Located | None:
        """The same as `segments.locate`: what followers and consumers mostly read is at hand."""
        newest = self._newest
        if (
            newest is not None
            and newest.found.base_offset == offset
            and newest.segment is segments.items[-1]
        ):
            return newest
        return segments.locate(offset)

    def bytes_between(self, start_offset: int, end_offset: int) -> int | None:
        """About how many bytes lie between two offsets; None if they are in different segments."""
        log_end = self.end_offset

        def look(segments: Segments) -> int | None:
            located = segments.locate(start_offset)
            if located is None:
                return 0
            segment, found, next_base = located
            if next_base is not None and next_base < end_offset:
                return None
            last = segment.locate(end_offset) if end_offset < log_end else None
            return (last.position if last else segment.size) - found.position

        return self._look_up(look)

    def _look_up(self, look: Callable[[Segments], T]) -> T:
        """Look for something in the segments; once more if its file has gone meanwhile.

        Files go after their segment has been replaced, so the second look does not meet them.
        """
        if not self.directory.is_online:
            raise self.directory.refusal()
        try:
            return look(self._segments)
        except FileNotFoundError:
            with self._storage():
                return look(self._segments)
        except OSError as error:
            raise self.directory.fail(error) from error

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int
    ) -> VerificationStateEntry | None:
        """What the first batch of a transaction has to be verified with; None if it is open."""
        with self._lock:
            return self.producers.begin_verification(producer_id, epoch, sequence, now_ms)

    def aborted_transactions_in(self, offset: int, data: Slice) -> list[AbortedTxn]:
        """The aborted transactions that a reader of `data`, read from `offset` on, has to know.

        They end with the data, as exactly as the offset index tells where that is (TXN-9).
        """
        if not data.size:
            return []

        def look(segments: Segments) -> list[AbortedTxn]:
            upper_offset = self.end_offset
            for row in range(segments.floor(offset), len(segments.items)):
                segment = segments.items[row]
                if segment.file is data.file:
                    entry = segment.offset_index.first_with_value(data.position + data.size)
                    if entry is not None:
                        upper_offset = entry.key
                    elif row + 1 < len(segments.items):
                        upper_offset = segments.bases[row + 1]
                    break
            return self.aborted_transactions(offset, upper_offset)

        return self._look_up(look)

    def aborted_transactions(self, offset: int, upper_offset: int) -> list[AbortedTxn]:
        """The aborted transactions with data in [offset, upper_offset)."""
        found = []
        for segment in self._segments.from_offset(offset):
            for entry in segment.aborted_index:
                if entry.last_offset >= offset and entry.first_offset < upper_offset:
                    found.append(entry)
                if entry.last_stable_offset >= upper_offset:
                    return found
        return found

    def offset_for_timestamp(self, timestamp: int, upper_offset: int) -> TimestampedOffset | None:
        """The first record below `upper_offset` that is not older than `timestamp`."""
        start = self.start_offset

        def look(segments: Segments) -> TimestampedOffset | None:
            for segment in segments.items:
                if segment.max_timestamp < timestamp:
                    continue
                for batch in segment.batches_since(timestamp, start):
                    found = _first_in(batch, timestamp, start)
                    if found is not None:
                        return found if found.offset < upper_offset else None
            return None

        return self._look_up(look)

    def offset_of_max_timestamp(self) -> TimestampedOffset | None:
        """The first record that has the largest timestamp of all; None for an empty log."""
        start = self.start_offset

        def look(segments: Segments) -> TimestampedOffset | None:
            newest = max(segments.items, key=lambda segment: segment.max_timestamp)
            for batch in newest.batches_since(newest.max_timestamp, start):
                return _first_in(batch, newest.max_timestamp, start)
            return None

        return self._look_up(look)

    # -- truncation

    def truncate_to(self, offset: int, *, now_ms: int) -> bool:
        """Remove every batch that holds `offset` or a later one; say whether there was any.

        Leader epochs that begin at or after `offset` go in any case. Before anything is appended
        again, the recovery points should be written to their checkpoint.
        """
        with self._lock, self._storage():
            if offset >= self.end_offset:
                self.epochs.truncate_from(offset)
                return False
            if offset < self._segments.bases[0]:
                self.truncate_fully_and_start_at(offset, now_ms=now_ms)
                return True
            self._truncations += 1
            self._newest = None
            row = self._segments.floor(offset)
            kept, removed = self._segments.items[: row + 1], self._segments.items[row + 1 :]
            self._segments = Segments(kept)
            self._active = kept[-1]
            self._doom(removed, now_ms)
            self._active.open_for_append()
            end = self._active.truncate_to(offset)
            self.end_offset = end
            self.start_offset = min(self.start_offset, end)
            self.recovery_point = min(self.recovery_point, end)
            self.epochs.truncate_from(end)
            self.producers.delete_snapshots_above(end)
            rebuild_producers(self.producers, self._segments.items, end, now_ms)
            self.advance_high_watermark(self.high_watermark)
            return True

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        """Drop everything; the next record will have `offset`."""
        with self._lock, self._storage():
            self._truncations += 1
            self._newest = None
            removed = self._segments.items
            self._doom(removed, now_ms)
            self.epochs.clear()
            self.producers.clear()
            self.producers.delete_snapshots_above(-1)
            fresh = Segment(self.path, offset, self._files, created_ms=now_ms)
            self.start_offset = self.end_offset = offset
            self._become_active(fresh, after=())
            self.recovery_point = min(self.recovery_point, offset)
            self.advance_high_watermark(offset)

    # -- deletion of old records

    def raise_start_offset(self, offset: int) -> bool:
        """Hide what lies before `offset`, which must be committed; say whether anything did."""
        with self._lock, self._storage():
            if offset > self.high_watermark:
                raise OffsetOutOfRangeError(
                    f"{self.partition} cannot start at {offset}: the high watermark is "
                    f"{self.high_watermark}"
                )
            if offset <= self.start_offset:
                return False
            self.start_offset = offset
            self.epochs.truncate_before(offset)
            return True

    def delete_old_segments(self, now_ms: int) -> int:
        """Delete the segments that retention does not keep; return their number."""
        with self._lock, self._storage():
            expired = expired_segments(
                self._segments.items,
                self.config,
                start_offset=self.start_offset,
                high_watermark=self.high_watermark,
                end_offset=self.end_offset,
                now_ms=now_ms,
            )
            if not expired:
                return 0
            if expired[-1] is self._active:
                self._roll(self.end_offset, now_ms)
            kept = self._segments.items[len(expired) :]
            # Readers must learn that the offsets are gone before the data is.
            self.raise_start_offset(max(self.start_offset, kept[0].base_offset))
            self._segments = Segments(kept)
            self._doom(expired, now_ms)
            return len(expired)

    def _doom(
        self, segments: Iterable[Segment], now_ms: int, keep_snapshot_of: int | None = None
    ) -> None:
        """Mark files as deleted by renaming them; they are removed later, after pending reads."""
        for segment in segments:
            segment.seal()
            segment.change_suffix("", DELETED)
            if segment.base_offset != keep_snapshot_of:
                self.producers.delete_snapshot(segment.base_offset)
            self._doomed.append((now_ms + self.config.file_delete_delay_ms, segment))

    def delete_expired_files(self, now_ms: int) -> None:
        """Remove the files of segments that were dropped long enough ago."""
        with self._lock:
            due = [segment for deadline, segment in self._doomed if deadline <= now_ms]
            self._doomed = [entry for entry in self._doomed if entry[0] > now_ms]
        with self._storage():
            for segment in due:
                segment.delete()

    def expire_producers(self, now_ms: int) -> None:
        """Forget producers whose ids have expired."""
        with self._lock:
            self.producers.expire(now_ms)

    def replace_segments(self, old: Sequence[Segment], new: Segment, *, now_ms: int) -> bool:
        """Put `new`, which is complete but still called `.cleaned`, where `old` are.

        False, and `new` is deleted, if some of `old` have gone from the log in the meantime.
        """
        with self._lock, self._storage():
            items = self._segments.items
            if not set(old) <= set(items):
                new.delete()
                return False
            new.change_suffix(CLEANED, SWAP)
            row = items.index(old[0])
            self._segments = Segments([*items[:row], new, *items[row + len(old) :]])
            self._doom(old, now_ms, keep_snapshot_of=new.base_offset)
            new.change_suffix(SWAP, "")
        with self._storage():
            self._files.sync_directory(self.path)
        return True

    # -- disk

    def flush(self, up_to: int | None = None) -> None:
        """Sync what lies below `up_to`, all if not given, and move the recovery point there."""
        with self._lock, self._storage():
            target = self.end_offset if up_to is None else up_to
            if target <= self.recovery_point:
                return
            unflushed = [
                segment
                for segment in self._segments.from_offset(self.recovery_point)
                if segment.base_offset < target
            ]
            for segment in unflushed:
                segment.write_indexes()
            truncations = self._truncations
        began = time.perf_counter()
        with self._storage():
            for segment in unflushed:
                segment.sync()
            for segment in unflushed[1:]:
                self.producers.sync_snapshot(segment.base_offset)
            self.epochs.sync()
            self._files.sync_directory(self.path)
        self.directory.on_flush(time.perf_counter() - began)
        with self._lock:
            # What was synced may have been replaced by a truncation and later appends.
            if truncations == self._truncations:
                self.recovery_point = max(self.recovery_point, target)

    def flush_if_due(self, now_ms: int) -> None:
        """Flush if the topic's own settings ask for it now."""
        unflushed = self.end_offset - self.recovery_point
        waited_ms = now_ms - self._last_flush_ms
        if unflushed >= self.config.flush_messages or waited_ms >= self.config.flush_ms:
            self._last_flush_ms = now_ms
            self.flush()

    def close(self) -> None:
        """Flush, and write the files that a start after a clean shutdown expects."""
        with self._lock, self._storage():
            end = self.end_offset
            # A log without writes since then has one.
            needs_snapshot = end > 0 and end not in self.producers.snapshots()
            if needs_snapshot:
                self.producers.take_snapshot(end)
            self._active.seal()
            self.flush()
            if needs_snapshot:
                self.producers.sync_snapshot(end)

    def abandon(self) -> None:
        """Note that the log is being deleted, so that later errors do not fail its directory."""
        gone = LogDirectory(self.path, lambda _: None, failure="the replica was deleted")
        self.directory = self.epochs.directory = gone
        self.close_files()

    def close_files(self) -> None:
        """Close all files as soon as no reader has them; the directory is offline by now.

        A deleted file takes its place on the disk for as long as it is open, and a failed disk
        cannot be unmounted. This log may be part of a reference cycle, so nobody knows when the
        garbage collector would close them.
        """
        for segment in (*self._segments.items, *(each for _, each in tuple(self._doomed))):
            segment.close_files()

    @contextmanager
    def _storage(self) -> Iterator[None]:
        """Take the directory offline when an operation on its files fails."""
        if not self.directory.is_online:
            raise self.directory.refusal()
        try:
            yield
        except OSError as error:
            raise self.directory.fail(error) from error


def _first_in(batch: Batch, timestamp: int, offset: int) -> TimestampedOffset | None:
    for record in iterate_records(batch):
        if record.timestamp >= timestamp and record.offset >= offset:
            return TimestampedOffset(record.timestamp, record.offset, batch.header.leader_epoch)
    return None
