"""What filters leave to read."""

from datetime import UTC, datetime

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from klamm.names import TopicPartition
from klamm.pipeline.source.pushdown import Narrowing

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
ALL = {A0: 0, A1: 5, B0: 10}
ENDS = dict.fromkeys(ALL, 100)


class Clock:
    """Stands for a cluster whose records are as old as their offsets, in seconds."""

    def at_timestamps(self, timestamps):
        return {each: -(-at // 1000) if at <= 99_000 else None for each, at in timestamps.items()}


def left(*filters) -> dict[TopicPartition, tuple[int, int]]:
    narrowing = Narrowing()
    narrowing.push(filters)
    start, end = narrowing.cut(Clock(), ALL, ENDS)
    return {each: (start[each], end[each]) for each in end}


def test_topics_and_partitions_that_are_not_wanted_are_left_out():
    assert left(EqualTo(("topic",), "b")) == {B0: (10, 100)}
    assert left(In(("topic",), ("a", "c")), GreaterThan(("partition",), 0)) == {A1: (5, 100)}
    assert left(EqualTo(("topic",), "c")) == {}


def test_ranges_of_offsets_are_cut():
    assert left(GreaterThanOrEqual(("offset",), 7), LessThan(("offset",), 9)) == {
        A0: (7, 9),
        A1: (7, 9),
        B0: (9, 9),
    }
    assert left(EqualTo(("offset",), 3))[A0] == (3, 4)
    assert left(GreaterThan(("offset",), 200))[A0] == (100, 100)
    assert left(LessThanOrEqual(("offset",), 6))[A1] == (5, 7)


def test_reading_begins_at_the_first_record_that_is_young_enough():
    since = GreaterThanOrEqual(("timestamp",), datetime.fromtimestamp(50, UTC))
    assert left(since) == dict.fromkeys(ALL, (50, 100))
    late = GreaterThan(("timestamp",), datetime.fromtimestamp(500, UTC))
    assert left(late) == dict.fromkeys(ALL, (100, 100))


def test_spark_applies_what_is_not_done_here():
    filters = [
        EqualTo(("topic",), "a"),
        EqualTo(("value",), b"x"),
        Not(EqualTo(("topic",), "b")),
        IsNotNull(("topic",)),
        EqualTo(("headers", "key"), "k"),
        In(("offset",), (1, 2)),
        LessThan(("timestamp",), datetime.fromtimestamp(5, UTC)),
    ]
    assert Narrowing().push(filters) == filters[1:]
