"""Plans made from the cluster as it is: `klamm plan` without a snapshot and without Spark."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from klamm.client.reassignments import Plan, encode_plan
from klamm.console.columns import ClusterColumns
from klamm.console.failures import Settings, partitions_of
from klamm.core.columns import I64, unpad
from klamm.errors import ConfigError
from klamm.names import TopicPartition
from klamm.pipeline import arrow
from klamm.pipeline.planner.planner import Demands, Planned, make_plan
from klamm.pipeline.planner.waves import default_limit, make_waves

_SHOWN: Final = 500


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A plan that was shown and can be run: its waves, and what the whole of it costs."""

    id: str
    demands: Mapping[str, Any]
    waves: tuple[dict[TopicPartition, tuple[int, ...]], ...]
    bytes: dict[TopicPartition, int]  # what each partition has to copy
    summary: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        moves = [
            {"topic": topic, "partition": partition, "replicas": list(replicas), "wave": number}
            for number, wave in enumerate(self.waves, 1)
            for (topic, partition), replicas in wave.items()
        ]
        return {
            "id": self.id,
            "demands": dict(self.demands),
            "summary": self.summary,
            "waves": [
                {
                    "partitions": len(wave),
                    "bytes": sum(self.bytes.get(name, 0) for name in wave),
                }
                for wave in self.waves
            ],
            "moves": moves[:_SHOWN],
            "json": encode_plan({name: to for wave in self.waves for name, to in wave.items()})
            if len(moves) <= _SHOWN
            else None,
        }


def parse_demands(body: Mapping[str, Any]) -> Demands:
    """The options of `klamm plan` that the page sent."""
    known = {"add", "remove", "replication_factor", "topics", "pin"}
    if unknown := sorted(set(body) - known - {"wave_moves"}):
        raise ConfigError(f"A plan has no {unknown[0]!r}; it has {', '.join(sorted(known))}.")
    factor = body.get("replication_factor")
    return Demands(
        add=_ids(body, "add"),
        remove=_ids(body, "remove"),
        replication_factor=None if factor is None else _number(factor, "replication_factor"),
        topics=str(body.get("topics") or ".*"),
        pin=str(body["pin"]) if body.get("pin") else None,
    )


def prepare(
    columns: ClusterColumns,
    settings: Settings,
    sizes: Mapping[TopicPartition, int],
    body: Mapping[str, Any],
) -> Prepared:
    """Plan what is asked for, and cut it into waves."""
    from klamm.pipeline.planner.output import summarise

    demands = parse_demands(body)
    table = partition_table(columns, settings, sizes)
    planned = make_plan(table, columns.racks(), demands)
    limit = body.get("wave_moves")
    waves = make_waves(
        planned, default_limit(planned) if limit is None else _number(limit, "wave_moves")
    )
    return Prepared(
        secrets.token_urlsafe(9),
        {name: value for name, value in body.items() if value not in (None, "", [])},
        tuple(_moves(columns, planned, rows) for rows in waves),
        _copied(columns, planned),
        summarise(planned, len(waves)),
    )


def partition_table(
    columns: ClusterColumns, settings: Settings, sizes: Mapping[TopicPartition, int]
) -> pa.Table:
    """The partitions as a snapshot has them."""
    judged = partitions_of(columns, settings)
    topic = pa.array(columns.topics, pa.string()).take(pa.array(columns.topic_of))
    numbers = columns.partition.tolist()
    known = [
        sizes.get(TopicPartition(columns.topics[at], number))
        for at, number in zip(columns.topic_of.tolist(), numbers, strict=True)
    ]
    return pa.table(
        {
            "topic": topic,
            "partition": columns.partition,
            "replicas": arrow.rows_to_arrow(columns.replicas),
            "isr": arrow.rows_to_arrow(columns.isr),
            "leader": columns.leader,
            "leader_epoch": columns.leader_epoch,
            "min_isr": judged.min_isr,
            "unclean": judged.unclean,
            "bytes": pa.array(known, pa.int64()),
        },
        schema=arrow.PARTITIONS,
    )


def _moves(
    columns: ClusterColumns, planned: Planned, rows: I64
) -> dict[TopicPartition, tuple[int, ...]]:
    topic = columns.topic_of
    return {
        TopicPartition(columns.topics[topic[row]], int(columns.partition[row])): tuple(
            unpad(planned.after[row])
        )
        for row in rows.tolist()
    }


def _copied(columns: ClusterColumns, planned: Planned) -> dict[TopicPartition, int]:
    if planned.weight is None:
        return {}
    copied = planned.added.sum(axis=1) * planned.weight
    topic = columns.topic_of
    return {
        TopicPartition(columns.topics[topic[row]], int(columns.partition[row])): int(copied[row])
        for row in np.flatnonzero(copied).tolist()
    }


def _ids(body: Mapping[str, Any], name: str) -> tuple[int, ...]:
    given = body.get(name) or []
    if not isinstance(given, list):
        raise ConfigError(f"{name} has to be a list of broker ids, as in [3, 4].")
    return tuple(_number(each, name) for each in given)


def _number(given: Any, name: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise ConfigError(f"{name} is not a number: {given!r}.")
    return given


def as_plan(rows: list[dict[str, Any]]) -> dict[TopicPartition, tuple[int, ...]]:
    """A wave as it is kept in a file."""
    return {TopicPartition(row["topic"], row["partition"]): tuple(row["replicas"]) for row in rows}


def as_rows(plan: Plan) -> list[dict[str, Any]]:
    """The moves as rows for JSON."""
    return [
        {"topic": topic, "partition": partition, "replicas": list(replicas)}
        for (topic, partition), replicas in plan.items()
    ]
