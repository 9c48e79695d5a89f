"""Filters on topic, partition, offset and timestamp that leave out what need not be read.

Topics and partitions are left out of the plan and ranges of offsets cut, so those filters are done
with. A lower bound of the timestamp moves the beginning to the first record that is as young; the
records after that are in no order of time, so Spark applies that filter once more.
"""

import operator
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from klamm.names import TopicPartition
from klamm.pipeline.source.cluster import SourceCluster

_COMPARISONS: Final[dict[type, Callable[[Any, Any], bool]]] = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, among: value in among,
}
_END_OF_TIME: Final = (1 << 63) - 1


class Narrowing:
    """The topics, partitions, offsets and timestamps that filters leave to be read."""

    def __init__(self) -> None:
        self._tests: list[Callable[[TopicPartition], bool]] = []
        self._first = 0
        self._until = _END_OF_TIME
        self._since_ms: int | None = None

    def push(self, filters: Iterable[Filter]) -> list[Filter]:
        """Take the filters that can be pushed down; return those that Spark still has to apply."""
        return [each for each in filters if not self._takes(each)]

    def keeps(self, partition: TopicPartition) -> bool:
        """Whether anything of a partition is wanted."""
        return all(test(partition) for test in self._tests)

    def cut(
        self,
        cluster: SourceCluster,
        start: dict[TopicPartition, int],
        end: dict[TopicPartition, int],
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """The ranges, cut by the filters on offsets and timestamps."""
        kept = [each for each in end if self.keeps(each)]
        since: dict[TopicPartition, int | None] = dict.fromkeys(kept, 0)
        if self._since_ms is not None:
            since = cluster.at_timestamps(dict.fromkeys(kept, self._since_ms))
        starts, ends = {}, {}
        for each in kept:
            ends[each] = min(end[each], self._until)
            young = since[each]
            # A range that would begin after its end is empty.
            starts[each] = (
                ends[each]
                if young is None
                else min(max(start[each], self._first, young), ends[each])
            )
        return starts, ends

    def _takes(self, each: Filter) -> bool:
        compare = _COMPARISONS.get(type(each))
        attribute: tuple[str, ...] = getattr(each, "attribute", ())
        value = getattr(each, "value", None)
        if compare is None or value is None or len(attribute) != 1:
            return False
        match attribute[0]:
            case "topic":
                self._tests.append(lambda partition: compare(partition.topic, value))
            case "partition":
                self._tests.append(lambda partition: compare(partition.partition, value))
            case "offset":
                return self._takes_offset(each, value)
            case "timestamp" if isinstance(value, datetime):
                if isinstance(each, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
                    since_ms = int(value.timestamp() * 1000) - 1  # whatever rounding does
                    self._since_ms = max(since_ms, self._since_ms or 0)
                return False
            case _:
                return False
        return True

    def _takes_offset(self, each: Filter, value: Any) -> bool:
        match each:
            case EqualTo() | EqualNullSafe():
                first, until = value, value + 1
            case GreaterThan():
                first, until = value + 1, self._until
            case GreaterThanOrEqual():
                first, until = value, self._until
            case LessThan():
                first, until = self._first, value
            case LessThanOrEqual():
                first, until = self._first, value + 1
            case _:
                return False
        self._first, self._until = max(self._first, first), min(self._until, max(until, 0))
        return True
