"""Rebuilds producer state and leader epochs from the batches of a log."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final

from klamm.broker.log.aborted import AbortedTxn
from klamm.broker.log.epochs import LeaderEpochCache
from klamm.broker.log.producers import (
    NO_PRODUCER,
    CompletedTxn,
    EndTransactionMarker,
    ProducerStateManager,
)
from klamm.broker.log.segment import Segment
from klamm.protocol.records import Batch, iterate_records

#: A version, then the kind of marker; a version, then the coordinator's epoch.
_MARKER_KEY: Final = struct.Struct(">hh")
_MARKER_VALUE: Final = struct.Struct(">hi")
_ABORT: Final = 0


def note_batch(
    producers: ProducerStateManager, segment: Segment, batch: Batch, base_offset: int
) -> None:
    """Take in what a batch says about its producer, once it is in `segment` at `base_offset`."""
    done = _apply(producers, batch, base_offset)
    if done is not None and done.is_aborted:
        stable = producers.stable_end_after(done)
        segment.aborted_index.append(
            AbortedTxn(done.producer_id, done.first_offset, done.last_offset, stable)
        )


def rebuild_producers(
    producers: ProducerStateManager, segments: Sequence[Segment], end_offset: int, now_ms: int
) -> None:
    """Bring `producers` to what follows from all offsets below `end_offset`, and no more."""
    start = producers.load_snapshot(end_offset, now_ms)
    for segment, following in zip_longest(segments, segments[1:]):
        if start is not None and following is not None and following.base_offset <= start:
            continue
        found = segment.locate(segment.base_offset if start is None else start)
        if found is None:
            continue
        for position, header in segment.headers(found.position):
            if header.base_offset >= end_offset:
                return
            if header.producer_id != NO_PRODUCER:
                # Of data the header is enough, and most of a log is data.
                size = header.size if header.is_control else 0
                batch = Batch(header, segment.content(position, size))
                _apply(producers, batch, header.base_offset)


def collect_epochs(epochs: LeaderEpochCache, segments: Iterable[Segment]) -> None:
    """Find the leader epochs in the batches themselves. Slow: it reads every header."""
    for segment in segments:
        for _, header in segment.headers():
            epochs.assign_if_newer(header.leader_epoch, header.base_offset)


def _apply(producers: ProducerStateManager, batch: Batch, base_offset: int) -> CompletedTxn | None:
    header = batch.header
    if header.producer_id == NO_PRODUCER:
        return None
    if not header.is_control:
        producers.update(header, base_offset)
        return None
    marker = decode_marker(batch)
    return producers.complete(header, base_offset, marker) if marker else None


def decode_marker(batch: Batch) -> EndTransactionMarker | None:
    """The marker of a control batch; None if compaction has emptied it."""
    record = next(iterate_records(batch), None)
    if record is None or record.key is None or record.value is None:
        return None
    _, kind = _MARKER_KEY.unpack_from(record.key)
    _, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
    return EndTransactionMarker(kind == _ABORT, coordinator_epoch)
