"""A prediction about a real cluster, what then happens to it, and what its history says of that."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from klamm.local.cluster import Cluster
from klamm.pipeline import arrow
from klamm.pipeline.arrow import partitions_from_arrow
from klamm.pipeline.history.definitions import make_tables
from klamm.pipeline.history.input import read_spools
from klamm.pipeline.snapshot.admin import snapshot_from_brokers
from klamm.pipeline.snapshot.snapshot import Snapshot, write_snapshot
from klamm.pipeline.snapshot.zookeeper import snapshot_from_zookeeper
from klamm.pipeline.whatif.whatif import judge

TOPICS = {
    "safe": {"min.insync.replicas": "2"},
    "eager": {"unclean.leader.election.enable": "true"},
}
VICTIM = 2
Name = tuple[str, int]


def leaders(snapshot: Snapshot) -> dict[Name, int]:
    table = snapshot.partitions.select(["topic", "partition", "leader"]).to_pydict()
    return dict(
        zip(zip(table["topic"], table["partition"], strict=True), table["leader"], strict=True)
    )


def predicted(snapshot: Snapshot, failed: int) -> dict[Name, int]:
    partitions = partitions_from_arrow(snapshot.partitions)
    alive = [broker for broker in snapshot.brokers["id"].to_pylist() if broker != failed]
    judged = judge(partitions, np.isin(partitions.replicas, alive))
    return dict(zip(leaders(snapshot), judged.leader.tolist(), strict=True))


def settled(read: Callable[[], Snapshot], expected: Mapping[Name, int]) -> dict[Name, int]:
    """What there is when it is as expected, or at the deadline."""
    deadline = time.monotonic() + 60
    while (found := leaders(read())) != expected and time.monotonic() < deadline:
        time.sleep(0.2)
    return found


@pytest.mark.real
@pytest.mark.timeout(300)
def test_leaders_go_where_the_snapshot_says_they_will_and_the_history_tells_so(
    spark: SparkSession, tmp_path: Path
):
    with Cluster(brokers=4, racks=["a", "b"]) as cluster:
        for topic, config in TOPICS.items():
            cluster.create_topic(topic, partitions=12, replication_factor=2, config=config)
        cluster.create_topic("alone", partitions=4, replication_factor=1)
        snapshot = snapshot_from_zookeeper(cluster.zookeeper)
        columns = ["topic", "partition", "replicas", "leader", "min_isr", "unclean"]
        for little_max in (100, 0):  # read by the driver, and by tasks
            through_brokers = snapshot_from_brokers(
                cluster.bootstrap_servers, lambda: spark, little_max=little_max
            )
            write_snapshot(spark, through_brokers, str(tmp_path))
            found = pq.read_table(tmp_path / "partitions", schema=arrow.PARTITIONS)
            assert found.select(columns) == snapshot.partitions.select(columns)
            assert found["bytes"].null_count == 0
            topics = pq.read_table(tmp_path / "topics", schema=arrow.TOPICS)
            assert topics.to_pylist() == snapshot.topics.to_pylist()
            assert through_brokers.brokers == snapshot.brokers
        assert snapshot.partitions["bytes"].null_count == 0
        before, expected = leaders(snapshot), predicted(snapshot, VICTIM)
        lost = {name: leader for name, leader in expected.items() if before[name] == VICTIM}
        assert -1 in lost.values(), "the partitions without a second replica lose their leader"
        assert len(set(lost.values())) > 1
        cluster.kill(VICTIM)
        read = lambda: snapshot_from_zookeeper(cluster.zookeeper, with_sizes=False)  # noqa: E731
        assert settled(read, expected) == expected
        cluster.stop_brokers()
        tables = make_tables(read_spools(spark, cluster.spools))
        away = tables["unavailability"].where(f"lost_leader = {VICTIM}").collect()
    assert {(row["topic"], row["partition"]) for row in away} == set(lost)
    for row in away:
        leader = lost[row["topic"], row["partition"]]
        assert row["new_leader"] == (None if leader == -1 else leader)
        assert row["seconds"] is None if leader == -1 else 0 < row["seconds"] < 60
