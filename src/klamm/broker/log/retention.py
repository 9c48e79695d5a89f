"""Retention: which segments of a log may be deleted."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from klamm.broker.log.segment import Segment
from klamm.broker.log.settings import LogConfig


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
