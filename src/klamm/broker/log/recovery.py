"""The recovery of a log from its directory.

After a clean shutdown the files are trusted. Otherwise the segments after the recovery point are
read batch by batch and truncated at the first damaged batch. Checkpoints may be missing: the log
itself has all that is needed.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from klamm.broker.log.checkpoints import LEADER_EPOCHS, PARTITION_METADATA, read_topic_id
from klamm.broker.log.directory import LogDirectory
from klamm.broker.log.epochs import LeaderEpochCache
from klamm.broker.log.files import Files, size_of
from klamm.broker.log.log import Log
from klamm.broker.log.names import (
    ABORTED_INDEX,
    CLEANED,
    DELETED,
    LOG,
    OFFSET_INDEX,
    SWAP,
    TIME_INDEX,
    parse_segment_file,
)
from klamm.broker.log.producers import ProducerStateManager
from klamm.broker.log.replay import collect_epochs, note_batch, rebuild_producers
from klamm.broker.log.segment import Segment
from klamm.broker.log.settings import FOREVER, LogConfig
from klamm.names import TopicPartition
from klamm.protocol.records import MAGIC, Batch, has_valid_crc

logger = logging.getLogger(__name__)

_INDEXES: Final = (OFFSET_INDEX, TIME_INDEX, ABORTED_INDEX)
#: The ends of the names of files that a crash has left behind.
_UNFINISHED: Final = (DELETED, ".tmp", SWAP, CLEANED)


@dataclass(frozen=True, slots=True)
class Checkpointed:
    """The offsets of one partition in the checkpoints of its log directory."""

    was_clean: bool
    recovery_point: int = 0
    start_offset: int = 0
    high_watermark: int = 0


def load_log(
    path: Path,
    partition: TopicPartition,
    directory: LogDirectory,
    config: LogConfig,
    files: Files,
    checkpointed: Checkpointed,
    *,
    now_ms: int,
    producer_expiration_ms: int,
    on_roll: Callable[[Log], None],
    is_new: bool = False,
) -> Log:
    """Open the log in `path`, which may be empty, and recover it if necessary. Slow.

    The directory is listed once, because a broker may have many thousands. One that `is_new` is
    known to be empty.
    """
    names = [] if is_new else os.listdir(path)
    if any(name.endswith(_UNFINISHED) for name in names):
        _finish_swaps(path, files)
        names = os.listdir(path)
    segments = _open_segments(path, names, files, now_ms)
    flushed = len(segments)
    if not checkpointed.was_clean:
        flushed = max(0, bisect_right(segments, checkpointed.recovery_point, key=_base) - 1)
    _repair_indexes(segments[:flushed], config)
    epochs = LeaderEpochCache(path, files, directory)
    producers = ProducerStateManager(path, files, producer_expiration_ms, names)
    if LEADER_EPOCHS not in names or not epochs.load():
        collect_epochs(epochs, segments[:flushed])
    is_believed = flushed == len(segments)
    if not is_believed:
        segments = _recover(segments, flushed, config, epochs, producers, now_ms)
    end_offset = segments[-1].end_offset() if segments else 0
    if is_believed:
        rebuild_producers(producers, segments, end_offset, now_ms)
    if not segments or end_offset < checkpointed.start_offset:
        for segment in segments:
            logger.warning("%s ends before the log's start and is deleted", segment.path)
            segment.delete()
        end_offset = checkpointed.start_offset
        fresh = Segment(path, end_offset, files, created_ms=now_ms, sizes={})
        fresh.create(config.preallocated_bytes)
        segments = [fresh]
        epochs.clear()
        producers.clear()
    producers.delete_snapshots_above(end_offset)
    start_offset = max(checkpointed.start_offset, segments[0].base_offset)
    epochs.truncate_from(end_offset)
    epochs.truncate_before(start_offset)
    return Log(
        partition,
        path,
        directory,
        config,
        files,
        segments=segments,
        epochs=epochs,
        producers=producers,
        start_offset=start_offset,
        end_offset=end_offset,
        recovery_point=(
            end_offset if checkpointed.was_clean else min(checkpointed.recovery_point, end_offset)
        ),
        high_watermark=checkpointed.high_watermark,
        topic_id=read_topic_id(path) if PARTITION_METADATA in names else None,
        on_roll=on_roll,
    )


class _Found(NamedTuple):
    """A file that belongs to a segment."""

    path: Path
    base_offset: int
    suffix: str


def _find_files(path: Path) -> list[_Found]:
    """The files of segments, in whatever state, in the order of their offsets."""
    names = sorted(os.listdir(path))
    parsed = [(name, parse_segment_file(name)) for name in names]
    return [_Found(path / name, *found) for name, found in parsed if found]


def _finish_swaps(path: Path, files: Files) -> None:
    """Finish or undo an interrupted compaction; it is finished if its result is complete."""
    for name in os.listdir(path):
        if name.endswith((DELETED, ".tmp")):
            files.delete(path / name)
    found = _find_files(path)
    # A swap file from where on results are still incomplete is itself part of such a result.
    incomplete_from = min(
        (file.base_offset for file in found if file.suffix.endswith(CLEANED)), default=FOREVER
    )
    swaps: list[_Found] = []
    for file in found:
        if file.suffix.endswith(SWAP) and file.base_offset < incomplete_from:
            swaps.append(file)
        elif file.suffix.endswith((SWAP, CLEANED)):
            files.delete(file.path)
    if not swaps:
        return
    replaced = [
        range(file.base_offset, _end_of(path, file.base_offset, files))
        for file in swaps
        if file.suffix == LOG + SWAP
    ]
    for file in found:
        is_current = file.suffix == LOG or file.suffix in _INDEXES
        if is_current and any(file.base_offset in offsets for offsets in replaced):
            files.delete(file.path)
    for file in swaps:
        files.replace(file.path, file.path.with_name(file.path.name.removesuffix(SWAP)))
    files.sync_directory(path)


def _end_of(path: Path, base_offset: int, files: Files) -> int:
    swapped = Segment(path, base_offset, files, created_ms=0, suffix=SWAP)
    return max(base_offset + 1, swapped.end_offset())


def _open_segments(path: Path, names: list[str], files: Files, now_ms: int) -> list[Segment]:
    """All segments in order; an index without its log is removed."""
    sizes: dict[str, int] = {}
    bases: dict[int, None] = {}
    for name in sorted(names, key=_logs_first):
        parsed = parse_segment_file(name)
        if parsed is None:
            continue
        base, suffix = parsed
        if suffix == LOG:
            bases[base] = None
        elif suffix not in _INDEXES:
            continue
        elif base not in bases:
            files.delete(f"{path}/{name}")
            continue
        sizes[name] = size_of(f"{path}/{name}") or 0
    return [Segment(path, base, files, created_ms=now_ms, sizes=sizes) for base in bases]


def _logs_first(name: str) -> tuple[bool, str]:
    return not name.endswith(LOG), name


def _repair_indexes(segments: Iterable[Segment], config: LogConfig) -> None:
    """Rebuild the indexes that are missing or cannot be right."""
    for segment in segments:
        if not segment.has_sane_indexes():
            logger.warning("the indexes of %s are missing or damaged and are rebuilt", segment.path)
            segment.rebuild(config.index_interval_bytes, _is_batch)


def _recover(
    segments: list[Segment],
    flushed: int,
    config: LogConfig,
    epochs: LeaderEpochCache,
    producers: ProducerStateManager,
    now_ms: int,
) -> list[Segment]:
    """Read the segments after the first `flushed`, and keep what is whole up to the first damage.

    They may not have reached the disk; the others are believed. A loss of power can take the last
    batches of a segment as a whole and leave the segment that was rolled after it, perhaps empty.
    To go on there would leave a hole that replication never fills. Compaction leaves such holes,
    too, so those of a compacted log are believed.
    """
    expected = segments[flushed].base_offset
    producers.delete_snapshots_above(expected)
    rebuild_producers(producers, segments[:flushed], expected, now_ms)
    for row in range(flushed, len(segments)):
        segment = segments[row]
        if segment.base_offset > expected and not config.compacts:
            logger.warning("%s begins after %d; what is between is lost", segment.path, expected)
            for later in segments[row:]:
                later.delete()
            return segments[:row]
        segment.aborted_index.cut_from(segment.base_offset)

        def is_next(batch: Batch, segment: Segment = segment) -> bool:
            nonlocal expected
            header = batch.header
            if not _is_batch(batch) or not segment.may_hold(header, expected):
                return False
            expected = header.last_offset + 1
            epochs.assign_if_newer(header.leader_epoch, header.base_offset)
            note_batch(producers, segment, batch, header.base_offset)
            return True

        expected = max(expected, segment.base_offset)
        cut = segment.rebuild(config.index_interval_bytes, is_next)
        if cut:
            logger.warning("%s ends in %d bytes that are no batch; cut", segment.path, cut)
            for later in segments[row + 1 :]:
                later.delete()
            return segments[: row + 1]
    return segments


def _is_batch(batch: Batch) -> bool:
    return batch.header.magic == MAGIC and has_valid_crc(batch)


def _base(segment: Segment) -> int:
    return segment.base_offset
