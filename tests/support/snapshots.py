"""Snapshots of made-up clusters."""

from datetime import UTC, datetime

import numpy as np
import pyarrow as pa

from klamm.core.assignment import assign_replicas
from klamm.pipeline import arrow
from klamm.pipeline.arrow import rows_to_arrow
from klamm.pipeline.snapshot.snapshot import Snapshot

PARTITIONS = 3000
RACKS = {broker: f"rack-{broker % 3}" for broker in range(6)}


def make_snapshot(partitions: int = PARTITIONS) -> Snapshot:
    """Three replicas each; one partition in a hundred has lost two members of its ISR."""
    replicas = assign_replicas(RACKS, partitions, 3, start=0, shift=0)
    isr = replicas.copy()
    isr[::100, 1:] = -1
    number = np.arange(partitions, dtype=np.int32)
    return Snapshot(
        cluster_id="c",
        source="test",
        taken_at=datetime.now(UTC),
        brokers=pa.Table.from_pylist(
            [{"id": broker, "rack": rack} for broker, rack in RACKS.items()], arrow.BROKERS
        ),
        topics=pa.Table.from_pylist([{"topic": "t", "partitions": partitions}], arrow.TOPICS),
        partitions=pa.table(
            {
                "topic": pa.array(["t"]).take(pa.array(number * 0)),
                "partition": number,
                "replicas": rows_to_arrow(replicas),
                "isr": rows_to_arrow(isr),
                "leader": replicas[:, 0],
                "leader_epoch": number * 0,
                "min_isr": number * 0 + 2,
                "unclean": number % 200 == 0,
                "bytes": pa.nulls(partitions, pa.int64()),
            },
            schema=arrow.PARTITIONS,
        ),
    )
