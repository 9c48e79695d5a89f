"""The work of a read task. Drivers do not import it, because it doubles the time of an import."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from klamm.pipeline.source.consuming import consume
from klamm.pipeline.source.fetching import RangesReader
from klamm.pipeline.source.kafka_options import can_fetch, own_settings
from klamm.pipeline.source.leaders import LEADERS
from klamm.pipeline.source.options import ReadOptions
from klamm.pipeline.source.ranges import OffsetRange, RangeBundle
from klamm.pipeline.source.workers import forget_spark_archives


def read_partition(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records that one task reads, as Arrow batches."""
    forget_spark_archives()
    match partition:
        case OffsetRange():
            ranges: tuple[OffsetRange, ...] = (partition,)
        case RangeBundle():
            ranges = partition.ranges
        case _:
            # Spark makes one task even if there is nothing to read, and gives it no range.
            return
    if not can_fetch(options.kafka):
        for each in ranges:
            yield from consume(each, options, each.start)
        return
    with LEADERS.borrowed(own_settings(options.kafka)) as leaders:
        reader = RangesReader(ranges, options, leaders)
        yield from reader.rows()
    for old in reader.old:
        yield from consume(old.wanted, options, old.position)
