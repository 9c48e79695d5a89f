"""The log cleaner: compaction keeps the last record of each key.

A pass reads the dirty part of a log and remembers the last offset of each key there. It then
rewrites all segments up to that point without superseded records. The remaining records keep their
offsets, order and headers, and batches are never joined.

Tombstones stay for `delete.retention.ms` after the first pass that meets them, which writes the
time of their removal into the batch. Transaction markers are never removed: they are few, and
without a marker the records of its transaction would look like those of an open one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from klamm.broker.log.files import Files
from klamm.broker.log.log import Log
from klamm.broker.log.names import CLEANED
from klamm.broker.log.producers import NO_PRODUCER
from klamm.broker.log.segment import Segment
from klamm.protocol.records import Batch, BatchHeader, Record, iterate_records, thin_batch

#: How many keys are remembered in one pass; a key takes some 200 bytes.
MAX_KEYS: Final = 500_000
_DIGEST_SIZE: Final = 32
_MAX_RELATIVE_OFFSET: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class LogToClean:
    """A log that is due for a pass over the offsets [dirty_from, dirty_to)."""

    log: Log
    dirty_from: int
    dirty_to: int
    ratio: float


def find_dirt(log: Log, cleaned_up_to: int | None, now_ms: int) -> LogToClean | None:
    """The dirty part of `log` after the end of the last pass; None if no pass is due."""
    config = log.config
    if not config.compacts:
        return None
    segments = log.segments
    first = segments[0].base_offset
    dirty_from = first if cleaned_up_to is None else max(first, cleaned_up_to)
    if dirty_from > segments[-1].base_offset:
        dirty_from = first
    dirty_to = _cleanable_end(log, segments, now_ms)
    ends = [part.base_offset for part in segments[1:]]
    dirty = [
        part
        for part, end in zip(segments, ends, strict=False)
        if dirty_from < end and part.base_offset < dirty_to
    ]
    dirty_bytes = sum(part.size for part in dirty)
    clean_bytes = sum(
        part.size for part, end in zip(segments, ends, strict=False) if end <= dirty_from
    )
    if not dirty_bytes:
        return None
    ratio = dirty_bytes / (clean_bytes + dirty_bytes)
    oldest_ms = dirty[0].first_timestamp
    is_overdue = 0 < oldest_ms < now_ms - config.max_compaction_lag_ms
    if ratio < config.min_cleanable_dirty_ratio and not is_overdue:
        return None
    return LogToClean(log, dirty_from, dirty_to, ratio)


def _cleanable_end(log: Log, segments: Sequence[Segment], now_ms: int) -> int:
    """The first offset that cannot be cleaned: it is active, not committed, or too recent."""
    end = min(segments[-1].base_offset, log.last_stable_offset)
    lag_ms = log.config.min_compaction_lag_ms
    if lag_ms > 0:
        for part in segments[:-1]:
            if part.newest_ms > now_ms - lag_ms:
                return min(end, part.base_offset)
    return end


def clean(dirty: LogToClean, files: Files, now_ms: int, max_keys: int = MAX_KEYS) -> int:
    """Make one pass; return the offset up to which the log is clean. Slow."""
    log = dirty.log
    aborted = _Aborted(log.segments)
    latest, mapped_to = _latest_offsets(dirty, aborted, max_keys)
    keeper = _Keeper(log, latest, mapped_to, aborted, now_ms)
    wanted = [part for part in log.segments[:-1] if part.base_offset < mapped_to]
    for group in _groups(wanted, log.config.segment_bytes):
        written = _write_cleaned(log, group, keeper, files, now_ms)
        if not log.replace_segments(group, written, now_ms=now_ms):
            return dirty.dirty_from
    return mapped_to


class _Aborted:
    """Tells which batches belong to an aborted transaction."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._spans: dict[int, list[tuple[int, int]]] = {}
        for part in segments:
            for entry in part.aborted_index:
                spans = self._spans.setdefault(entry.producer_id, [])
                spans.append((entry.first_offset, entry.last_offset))

    def __contains__(self, header: BatchHeader) -> bool:
        if not header.is_transactional or header.is_control:
            return False
        spans = self._spans.get(header.producer_id, ())
        return any(first <= header.base_offset <= last for first, last in spans)


def _latest_offsets(
    dirty: LogToClean, aborted: _Aborted, max_keys: int
) -> tuple[dict[bytes, int], int]:
    """The last offset of each key in the dirty part, and the offset up to which keys fitted."""
    latest: dict[bytes, int] = {}
    for part in dirty.log.segments:
        found = part.locate(dirty.dirty_from)
        if part.base_offset >= dirty.dirty_to or found is None:
            continue
        for batch in part.batches(found.position):
            header = batch.header
            if header.base_offset >= dirty.dirty_to:
                break
            if latest and len(latest) + header.record_count > max_keys:
                return latest, header.base_offset
            if header.is_control or header in aborted:
                continue
            for record in iterate_records(batch):
                if record.key is not None:
                    latest[_fingerprint(record.key)] = record.offset
    return latest, dirty.dirty_to


def _fingerprint(key: bytes) -> bytes:
    """The key itself if it is shorter than a digest, or else its digest."""
    return key if len(key) < _DIGEST_SIZE else blake2b(key, digest_size=_DIGEST_SIZE).digest()


class _Keeper:
    """Decides which records of a batch are kept."""

    def __init__(
        self, log: Log, latest: dict[bytes, int], mapped_to: int, aborted: _Aborted, now_ms: int
    ) -> None:
        self._latest = latest
        self._mapped_to = mapped_to
        self._aborted = aborted
        self._now_ms = now_ms
        self._horizon_ms = now_ms + log.config.delete_retention_ms
        self._last_offsets = log.producers.last_offsets()

    def keep(self, batch: Batch) -> Batch | None:
        """The batch with the records that are kept; None if none is."""
        header = batch.header
        if header.is_control or not header.record_count:
            return batch if header.is_control or self._is_last_of_producer(header) else None
        records = [] if header in self._aborted else self._records_to_keep(batch)
        if not records:
            return thin_batch(header, []) if self._is_last_of_producer(header) else None
        horizon_ms = _horizon_of(header)
        if horizon_ms is None and any(record.value is None for record in records):
            horizon_ms = self._horizon_ms
        elif len(records) == header.record_count:
            return batch
        return thin_batch(header, records, delete_horizon_ms=horizon_ms)

    def _records_to_keep(self, batch: Batch) -> list[Record]:
        horizon_ms = _horizon_of(batch.header)
        drops_deletions = horizon_ms is not None and horizon_ms <= self._now_ms
        return [
            record
            for record in iterate_records(batch)
            if record.offset >= self._mapped_to
            or (
                record.key is not None
                and self._latest.get(_fingerprint(record.key), -1) <= record.offset
                and not (drops_deletions and record.value is None)
            )
        ]

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        """Whether the batch holds the last sequence number of a producer that may come back."""
        if header.producer_id == NO_PRODUCER:
            return False
        return self._last_offsets.get(header.producer_id) == header.last_offset


def _horizon_of(header: BatchHeader) -> int | None:
    """When the tombstones of a batch may be removed; None before a pass has met them."""
    return header.base_timestamp if header.has_delete_horizon else None


def _groups(segments: Sequence[Segment], segment_bytes: int) -> Iterator[list[Segment]]:
    """Group neighbouring segments that fit into one, so that no small segments are left."""
    group: list[Segment] = []
    size = 0
    for part in segments:
        fits = group and (
            size + part.size <= segment_bytes
            and part.end_offset() - group[0].base_offset <= _MAX_RELATIVE_OFFSET
        )
        if group and not fits:
            yield group
            group, size = [], 0
        group.append(part)
        size += part.size
    if group:
        yield group


def _write_cleaned(
    log: Log, group: Sequence[Segment], keeper: _Keeper, files: Files, now_ms: int
) -> Segment:
    """A segment, still named `.cleaned`, with what is to be kept of `group`; it is on disk."""
    # A pass that failed may have left something behind.
    Segment(log.path, group[0].base_offset, files, created_ms=now_ms, suffix=CLEANED).delete()
    target = Segment(log.path, group[0].base_offset, files, created_ms=now_ms, suffix=CLEANED)
    target.open_for_append()
    for part in group:
        for batch in part.batches():
            kept = keeper.keep(batch)
            if kept is not None:
                stored = kept.header
                target.append([kept.data], stored.size)
                target.extend(
                    stored.size,
                    stored.last_offset,
                    stored.max_timestamp,
                    log.config.index_interval_bytes,
                )
        for entry in part.aborted_index:
            target.aborted_index.append(entry)
    target.seal()
    target.sync()
    modified = group[-1].path.stat().st_mtime
    os.utime(target.path, (modified, modified))
    return target
