"""What a task of a read does; the only part that a driver does not import."""

from collections.abc import Iterator
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from klamm.pipeline.source.columns import OldFormatError
from klamm.pipeline.source.consuming import consume
from klamm.pipeline.source.fetching import RangeReader, can_fetch
from klamm.pipeline.source.options import ReadOptions
from klamm.pipeline.source.ranges import OffsetRange


def read_range(partition: InputPartition, options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """The records of one range, as batches of Arrow."""
    # Spark makes one task even if there is nothing to read, and gives it no range.
    if not isinstance(partition, OffsetRange):
        return
    start = partition.start
    if can_fetch(options.kafka):
        with closing(RangeReader(partition, options)) as reader:
            try:
                yield from reader.rows()
                return
            except OldFormatError:
                start = reader.position
    yield from consume(partition, options, start)
