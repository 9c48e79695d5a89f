"""What a plan is told in files: how much brokers may hold, and how much partitions weigh."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from klamm.errors import ConfigError
from klamm.pipeline.planner.planner import Capacity


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
    """The sizes file: how much a partition, or each partition of a topic, weighs."""
    value = _read_json(path)
    try:
        return {name: _amount(size) for name, size in value.items()}
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(
            f'{path} is expected to be like {{"orders": 5000000000, "audit-0": 1000000}}.'
        ) from None


def with_sizes(partitions: pa.Table, sizes: Mapping[str, int]) -> pa.Table:
    """The partitions with these sizes for their own; those that are not named have none."""
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
