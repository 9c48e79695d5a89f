"""Parts of a snapshot from ZooKeeper: topic and partition tables."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from klamm.core.columns import I32
from klamm.pipeline import arrow
from klamm.pipeline.source.tables.rows import ElectionSettings

#: The bytes of partitions by topic and number.
Sizes = Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True, eq=False)
class AssignmentColumns:
    """Topics and their partitions as columns, since a million Python lists would be slow."""

    topics: Sequence[str]
    topic_ids: Sequence[str | None]
    counts: I32  # of each topic
    partition: I32
    replicas: pa.ChunkedArray

    def names(self) -> Iterable[tuple[str, int]]:
        """The topic and number of each partition."""
        topics = chain.from_iterable(
            [topic] * count for topic, count in zip(self.topics, self.counts.tolist(), strict=True)
        )
        return zip(topics, self.partition.tolist(), strict=True)


@dataclass(frozen=True, slots=True, eq=False)
class StateColumns:
    """Leader, leader epoch and ISR of each partition, in the order of the assignments."""

    leader: I32
    leader_epoch: I32
    isr: pa.ChunkedArray


def lists_to_arrow(rows: Sequence[Sequence[int]]) -> pa.ListArray:
    """Convert lists of brokers to Arrow."""
    ends = np.cumsum(np.fromiter(map(len, rows), np.int32, len(rows)), dtype=np.int32)
    offsets = np.concatenate([np.zeros(1, np.int32), ends])
    brokers = np.fromiter(chain.from_iterable(rows), np.int32, int(offsets[-1]))
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(brokers))


def chunked(arrays: Sequence[pa.ListArray]) -> pa.ChunkedArray:
    """Join lists of brokers to one column, which may be empty."""
    return pa.chunked_array(arrays, pa.list_(pa.int32()))


def topic_table(
    assignments: AssignmentColumns, configs: Mapping[str, Mapping[str, str]]
) -> pa.Table:
    """The table of topics, with their own settings."""
    rows = zip(assignments.topics, assignments.topic_ids, assignments.counts.tolist(), strict=True)
    return pa.Table.from_pylist(
        [
            {
                "topic": topic,
                "topic_id": topic_id,
                "partitions": count,
                "config": list(configs.get(topic, {}).items()),
            }
            for topic, topic_id, count in rows
        ],
        arrow.TOPICS,
    )


def partition_table(
    assignments: AssignmentColumns,
    states: StateColumns,
    settings: Mapping[str, ElectionSettings],
    sizes: Sizes,
) -> pa.Table:
    """The table of partitions, with election settings and sizes."""

    def repeated(of_topic: Sequence[Any], kind: pa.DataType) -> pa.Array:
        place = np.repeat(np.arange(len(assignments.topics)), assignments.counts)
        return pa.array(of_topic, kind).take(pa.array(place))

    of_topic = [settings[topic] for topic in assignments.topics]
    known = pa.nulls(len(states.leader), pa.int64())
    if sizes:
        known = pa.array([sizes.get(name) for name in assignments.names()], pa.int64())
    return pa.table(
        {
            "topic": repeated(assignments.topics, pa.string()),
            "partition": assignments.partition,
            "replicas": assignments.replicas,
            "isr": states.isr,
            "leader": states.leader,
            "leader_epoch": states.leader_epoch,
            "min_isr": repeated([each.min_isr for each in of_topic], pa.int32()),
            "unclean": repeated([each.unclean for each in of_topic], pa.bool_()),
            "bytes": known,
        },
        schema=arrow.PARTITIONS,
    )
