"""Write a plan: reassignments in Kafka's JSON, and a summary as JSON and HTML."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa

from klamm.core.columns import I32, I64, NO_BROKER
from klamm.pipeline.output import OutputFolder
from klamm.pipeline.planner.planner import Planned
from klamm.pipeline.planner.report import PlannedWaves, render_summary
from klamm.pipeline.planner.state import held_by, places_of

_MOVES_AT_A_TIME: Final = 20_000


def write_plan(
    out: OutputFolder,
    partitions: pa.Table,
    planned: Planned,
    waves: Sequence[I64],
    *,
    facts: Mapping[str, str] | None = None,
    throttle: int,
) -> None:
    """Write the plan to `out`, and `waves/`, `summary.json` and `summary.html` beside it.

    The page says how long copying takes at the throttle, in bytes a second for each broker.
    """
    summary = summarise(planned, len(waves))
    beside = out.parent
    out.write(encode_moves(partitions, planned, planned.changed))
    # Remove the waves of an earlier plan.
    (beside / "waves").delete()
    (beside / "waves").make()
    for number, rows in enumerate(waves, 1):
        (beside / "waves" / f"{number:03}.json").write(encode_moves(partitions, planned, rows))
    held = frozenset(np.unique(planned.before).tolist())
    moves = PlannedWaves(
        partitions,
        planned,
        waves,
        planned.racks,
        frozenset(planned.brokers.tolist()) - held,
        out.name,
        throttle,
    )
    (beside / "summary.json").write(orjson.dumps(summary, option=orjson.OPT_INDENT_2))
    (beside / "summary.html").write(render_summary(summary, moves, facts or {}).encode())


def encode_moves(partitions: pa.Table, planned: Planned, rows: I64) -> Iterator[bytes]:
    """Some rows of a plan, in the form of kafka-reassign-partitions and in the order of the table.

    In portions: a million moves as Python objects would be most of the driver's memory.
    """
    yield b'{"version":1,"partitions":['
    for start in range(0, len(rows), _MOVES_AT_A_TIME):
        portion = rows[start : start + _MOVES_AT_A_TIME]
        some = partitions.select(["topic", "partition"]).take(pa.array(portion))
        moves = zip(
            some["topic"].to_pylist(),
            some["partition"].to_pylist(),
            planned.after[portion].tolist(),
            strict=True,
        )
        listed = orjson.dumps(
            [
                {
                    "topic": topic,
                    "partition": partition,
                    "replicas": (replicas := [each for each in row if each != NO_BROKER]),
                    "log_dirs": ["any"] * len(replicas),
                }
                for topic, partition, row in moves
            ]
        )
        yield b"," * (start > 0) + listed[1:-1]
    yield b"]}"


def summarise(planned: Planned, waves: int) -> dict[str, Any]:
    """What a plan costs and achieves."""
    changed = planned.changed
    return {
        "replicas_moved": planned.replicas_moved,
        "bytes_moved": planned.bytes_moved,
        "lower_bound_replicas": planned.bound.replicas,
        "lower_bound_bytes": planned.bound.bytes,
        "lower_bound_reason": planned.bound.reason,
        "partitions_changed": len(changed),
        "partitions_reordered": len(changed) - int(planned.added[changed].any(axis=1).sum()),
        "waves": waves,
        "notes": list(planned.notes),
        "balance": {
            "before": _balance(planned, planned.before),
            "after": _balance(planned, planned.after),
        },
    }


def _balance(planned: Planned, rows: I32) -> dict[str, Any]:
    """Replicas, preferred leaders and bytes: of all together, and of each broker."""
    held = np.unique(rows[rows != NO_BROKER])
    ids = np.union1d(planned.brokers, held)
    places = places_of(rows, ids)
    weight = np.zeros(len(rows)) if planned.weight is None else planned.weight
    replicas, bytes_ = held_by(places, weight, len(ids))
    first = rows[:, 0]
    loads = {
        "replicas": replicas.astype(np.int64),
        "leaders": np.bincount(np.searchsorted(ids, first[first != NO_BROKER]), minlength=len(ids)),
    }
    if planned.weight is not None:
        loads["bytes"] = bytes_.astype(np.int64)
    return {name: _spread(load) for name, load in loads.items()} | {
        "brokers": {
            str(broker): {name: int(load[place]) for name, load in loads.items()}
            for place, broker in enumerate(ids.tolist())
        }
    }


def _spread(load: I64) -> dict[str, Any]:
    mean = float(load.mean())
    return {
        "min": int(load.min()),
        "mean": round(mean, 3),
        "max": int(load.max()),
        "max_deviation_percent": round(100 * float(np.abs(load - mean).max()) / mean, 3)
        if mean
        else 0.0,
    }
