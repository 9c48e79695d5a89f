"""A plan as a data frame, for whoever goes on from there."""

from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from klamm.pipeline.arrow import rows_to_arrow
from klamm.pipeline.planner.planner import Demands, make_plan
from klamm.pipeline.planner.waves import default_limit, make_waves
from klamm.pipeline.snapshot.snapshot import SnapshotFrames

_MOVES: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("before", pa.list_(pa.int32())),
        ("after", pa.list_(pa.int32())),
        ("wave", pa.int32()),
    ]
)


def plan_moves(
    snapshot: SnapshotFrames, demands: Demands | None = None, *, wave_moves: int | None = None
) -> DataFrame:
    """The partitions that a plan changes, from which replicas to which, and in which wave."""
    partitions = ordered_partitions(snapshot)
    planned = make_plan(partitions, snapshot.racks(), demands)
    waves = make_waves(planned, wave_moves or default_limit(planned))
    rows = np.concatenate([np.empty(0, np.int64), *waves])
    number = np.repeat(np.arange(1, len(waves) + 1), [len(wave) for wave in waves])
    moves = pa.table(
        {
            "topic": partitions["topic"].take(pa.array(rows)),
            "partition": partitions["partition"].take(pa.array(rows)),
            "before": rows_to_arrow(planned.before[rows]),
            "after": rows_to_arrow(planned.after[rows]),
            "wave": number.astype(np.int32),
        },
        schema=_MOVES,
    )
    return snapshot.partitions.sparkSession.createDataFrame(moves)


def ordered_partitions(snapshot: SnapshotFrames) -> pa.Table:
    """The partitions in an order that does not depend on how they are stored, as the plan must."""
    return snapshot.partitions.orderBy("topic", "partition").toArrow()
