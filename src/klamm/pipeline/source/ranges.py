"""Ranges of offsets: how much a batch reads, and how ranges are divided among tasks."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql.datasource import InputPartition

from klamm.names import TopicPartition
from klamm.pipeline.source.offsets import Offsets


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """What one task reads: the offsets of one partition from `start` to before `until`."""

    topic: str
    partition: int
    start: int
    until: int
    #: As the cluster writes it; None where it has none.
    topic_id: str | None = None

    @property
    def size(self) -> int:
        return self.until - self.start

    def __str__(self) -> str:
        return f"[{self.start}, {self.until}) of {self.topic}-{self.partition}"


@dataclass(frozen=True)
class RangeBundle(InputPartition):
    """Several small ranges, of different partitions, for one task."""

    ranges: tuple[OffsetRange, ...]


#: The largest small range, and the most that one task reads of small ranges.
_SMALL_RECORDS: Final = 1_000
_BUNDLE_RECORDS: Final = 10_000
_BUNDLE_RANGES: Final = 500
#: Work on rows may cost more than reading them, so up to here each range has a task of its own.
_TASKS_MIN: Final = 16


def bundle(
    ranges: Sequence[OffsetRange], *, min_partitions: int | None, max_records: int | None
) -> list[OffsetRange | RangeBundle]:
    """Let small ranges share tasks, but keep enough tasks for all cores.

    A task costs several milliseconds, and a request for one partition as much as one for hundreds.
    """
    # A request cannot ask for one partition twice.
    parts = Counter((each.topic, each.partition) for each in ranges)
    alone: list[OffsetRange] = []
    small: list[OffsetRange] = []
    for each in ranges:
        is_small = each.size < _SMALL_RECORDS and parts[each.topic, each.partition] == 1
        (small if is_small else alone).append(each)
    records_max = min(max_records or _BUNDLE_RECORDS, _BUNDLE_RECORDS)
    bundles = max(
        math.ceil(len(small) / _BUNDLE_RANGES),
        math.ceil(sum(each.size for each in small) / records_max),
        max(min_partitions or 0, _TASKS_MIN) - len(alone),
    )
    if len(small) <= bundles:
        return list(ranges)
    shared: list[list[OffsetRange]] = []
    room, number = 0, -1
    for at, each in enumerate(small):
        if at * bundles // len(small) != number or each.size > room:
            shared.append([])
            room, number = records_max, at * bundles // len(small)
        shared[-1].append(each)
        room -= each.size
    return [*alone, *(RangeBundle(tuple(each)) for each in shared)]


def split(
    ranges: Iterable[OffsetRange], *, min_partitions: int | None, max_records: int | None
) -> list[OffsetRange]:
    """Divide ranges into tasks as Spark does: none above the maximum, then enough of them.

    To reach the minimum, each range is divided in proportion to its size; one that is below its
    fair share stays whole.
    """
    whole = [each for each in ranges if each.size > 0]
    if max_records is not None:
        whole = [
            part for each in whole for part in _divide(each, math.ceil(each.size / max_records))
        ]
    if min_partitions is None or len(whole) >= min_partitions:
        return whole
    total = sum(each.size for each in whole)
    small = {each for each in whole if each.size / max(total, 1) * min_partitions < 1}
    total -= sum(each.size for each in small)
    wanted = min_partitions - len(small)
    return [
        part
        for each in whole
        for part in _divide(each, 1 if each in small else max(round(each.size / total * wanted), 1))
    ]


def _divide(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    bounds = [whole.start + whole.size * part // parts for part in range(parts + 1)]
    return [
        replace(whole, start=start, until=until)
        for start, until in itertools.pairwise(bounds)
        if until > start
    ]


def limit(start: Offsets, end: Offsets, max_offsets: int) -> dict[TopicPartition, int]:
    """Limit the end to this many offsets in all, each partition getting its proportion.

    A partition with little to read still gets one offset, so that it is not starved.
    """
    sizes = {each: end[each] - start[each] for each in end if end[each] > start[each]}
    total = sum(sizes.values())
    limited = dict(end)
    for partition, size in sizes.items():
        share = max_offsets * size / total
        step = math.ceil(share) if share < 1 else math.floor(share)
        limited[partition] = min(end[partition], start[partition] + step)
    return limited


def behind(position: Offsets, latest: Offsets) -> Sequence[int]:
    """How many offsets each partition that is read is behind."""
    return [max(latest[each] - offset, 0) for each, offset in position.items() if each in latest]
