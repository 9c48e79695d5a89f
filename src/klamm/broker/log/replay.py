"""Finding again in a log's batches what is remembered about them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from itertools import zip_longest

from klamm.broker.log.aborted import AbortedTransaction
from klamm.broker.log.batches import HEADER_SIZE, BatchHeader, decode_marker
from klamm.broker.log.epochs import LeaderEpochs
from klamm.broker.log.producers import (
    NO_PRODUCER,
    CompletedTransaction,
    ProducerStates,
)
from klamm.broker.log.segment import Segment


def note_batch(
    producers: ProducerStates,
    segment: Segment,
    header: BatchHeader,
    base_offset: int,
    body: memoryview,
) -> None:
    """Take in what a batch says about its producer, once it is in `segment` at `base_offset`."""
    done = _apply(producers, header, base_offset, body)
    if done is not None and done.is_aborted:
        stable = producers.stable_end_after(done)
        segment.aborted_index.append(
            AbortedTransaction(done.producer_id, done.first_offset, done.last_offset, stable)
        )


def rebuild_producers(
    producers: ProducerStates, segments: Sequence[Segment], end_offset: int, now_ms: int
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
                body = memoryview(b"")
                if header.is_control:
                    body = memoryview(os.pread(segment.file.fd, header.size, position))
                _apply(producers, header, header.base_offset, body[HEADER_SIZE:])


def collect_epochs(epochs: LeaderEpochs, segments: Iterable[Segment]) -> None:
    """Find the leader epochs in the batches themselves. Slow: it reads every header."""
    for segment in segments:
        for _, header in segment.headers():
            epochs.assign_if_newer(header.partition_leader_epoch, header.base_offset)


def _apply(
    producers: ProducerStates, header: BatchHeader, base_offset: int, body: memoryview
) -> CompletedTransaction | None:
    if header.producer_id == NO_PRODUCER:
        return None
    if not header.is_control:
        producers.update(header, base_offset)
        return None
    marker = decode_marker(header, body)
    return producers.complete(header, base_offset, marker) if marker else None
