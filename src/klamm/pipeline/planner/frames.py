"""The input and output of a plan: partitions in a fixed order, the files with capacities and sizes,
and the planned moves as a data frame.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
from pyspark.sql import DataFrame

from klamm.errors import ConfigError
from klamm.pipeline.arrow import rows_to_arrow
from klamm.pipeline.planner.planner import Capacity, Demands, make_plan
from klamm.pipeline.planner.waves import default_limit, make_waves
from klamm.pipeline.session import release_memory
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
    """The partitions sorted, so that a plan does not depend on how they are stored.

    The driver gets only the columns that a plan looks at.
    """
    columns = ["topic", "partition", "replicas", "leader", "min_isr", "bytes"]
    if (here := snapshot.partitions_here) is not None:
        return here.select(columns).sort_by([("topic", "ascending"), ("partition", "ascending")])
    wanted = snapshot.partitions.select(*columns)
    table = wanted.orderBy("topic", "partition").toArrow()
    release_memory(wanted.sparkSession)
    return table


def read_capacities(path: Path) -> dict[int, Capacity]:
    """The capacities file: broker ids, each with its most `replicas`, `bytes`, or both."""
    value = _read_json(path)
    try:
        return {int(broker): Capacity(**_limits(given)) for broker, given in value.items()}
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            f'{path} is expected to be like {{"1": {{"replicas": 4000, "bytes": 1000000000}}}}.'
        ) from None


def read_sizes(path: Path) -> dict[str, int]:
    """The sizes file: the bytes of a partition, or of each partition of a topic."""
    value = _read_json(path)
    try:
        return {name: _amount(size) for name, size in value.items()}
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            f'{path} is expected to be like {{"orders": 5000000000, "audit-0": 1000000}}.'
        ) from None


def with_sizes(partitions: pa.Table, sizes: Mapping[str, int]) -> pa.Table:
    """Replace the sizes of partitions; those that are not named have none."""
    names = zip(partitions["topic"].to_pylist(), partitions["partition"].to_pylist(), strict=True)
    known = [sizes.get(f"{topic}-{partition}", sizes.get(topic)) for topic, partition in names]
    if not any(each is not None for each in known):
        raise ConfigError("None of the sizes is of a topic or partition of the snapshot.")
    place = partitions.schema.get_field_index("bytes")
    return partitions.set_column(place, "bytes", pa.array(known, pa.int64()))


def _read_json(path: Path) -> Any:
    try:
        return orjson.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON: {error}.") from None


def _limits(given: Mapping[str, Any]) -> dict[str, float]:
    return {name: _amount(limit) for name, limit in given.items()}


def _amount(given: Any) -> int:
    amount = int(float(given))
    if amount < 0:
        raise ValueError("an amount below zero")
    return amount
