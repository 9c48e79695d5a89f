"""Columns of made-up clusters."""

import numpy as np

from klamm.console.columns import ClusterColumns, ShownBroker, with_named_brokers
from klamm.core.columns import padded


def make_columns(
    partitions: dict[tuple[str, int], tuple[int, list[int], list[int]]],
    brokers: dict[int, str | None],
    controller: int = 1,
) -> ClusterColumns:
    """From (topic, partition): (leader, replicas, ISR), and the live brokers with their racks."""
    names = sorted(partitions)
    topics = sorted({topic for topic, _ in names})
    rows = [partitions[name] for name in names]
    replicas = padded([row[1] for row in rows], 4)
    live = [ShownBroker(id, "h", 9092, rack) for id, rack in brokers.items()]
    return ClusterColumns(
        brokers=with_named_brokers(live, replicas, {}),
        controller=controller,
        topics=tuple(topics),
        topic_ids=(None,) * len(topics),
        internal=(False,) * len(topics),
        counts=np.array([sum(t == topic for t, _ in names) for topic in topics], np.int32),
        partition=np.array([number for _, number in names], np.int32),
        leader=np.array([row[0] for row in rows], np.int32),
        leader_epoch=np.zeros(len(rows), np.int32),
        replicas=replicas,
        isr=padded([row[2] for row in rows], 4),
    )
