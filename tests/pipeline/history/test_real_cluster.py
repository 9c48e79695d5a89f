"""Histories of real clusters: from the spools of their nodes, and streamed from their topic."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from klamm import Cluster
from klamm.controller.story import DEFAULT_TOPIC
from klamm.pipeline.history import Topic, make_tables, read_records, write_tables
from klamm.pipeline.history_input import read_spools
from klamm.pipeline.report import write_report

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

ATTEMPTS_MAX = 20


def test_a_killed_leader_is_in_the_spools_with_its_successor(spark: SparkSession):
    with Cluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=3)
        lost = cluster.leader("orders")
        cluster.kill(lost)
        successor = cluster.wait_leader("orders", other_than=lost)
        cluster.stop_brokers()
        tables = make_tables(read_spools(spark, cluster.spools))
        chosen = tables["elections"].where("topic = 'orders' and partition = 0 and kind = 'clean'")
        elected = [row.asDict() for row in chosen.collect()]
        away = tables["unavailability"].where(f"topic = 'orders' and lost_leader = {lost}")
        lengths = {row["partition"]: row["seconds"] for row in away.collect()}
    assert [(row["old_leader"], row["new_leader"]) for row in elected][:1] == [(lost, successor)]
    assert 0 < lengths[0] < 60


@pytest.mark.spark_heavy
def test_a_stream_that_is_stopped_and_started_neither_loses_nor_doubles_a_row(
    spark: SparkSession, tmp_path: Path
):
    out = tmp_path / "history"
    with Cluster(brokers=3, config={"klamm.history.topic": DEFAULT_TOPIC}) as cluster:
        cluster.create_topic("orders", partitions=3)
        first = Topic(cluster.bootstrap_servers, DEFAULT_TOPIC)
        first.check()
        assert first.lay_down(spark, out) is not None
        before = read_records(spark, out).count()
        lost = cluster.leader("orders")
        cluster.kill(lost)
        cluster.wait_leader("orders", other_than=lost)
        cluster.start(lost)
        again = Topic(cluster.bootstrap_servers, DEFAULT_TOPIC)
        # Events are shipped as they come: read on until the one that matters has arrived.
        for _ in range(ATTEMPTS_MAX):
            again.lay_down(spark, out)
            records = read_records(spark, out)
            failed = f"exists(broker_changes, c -> c.broker = {lost} and c.change = 'failed')"
            if not records.where(failed).isEmpty():
                break
        tables = write_tables(records, out)
        rows = records.select("controller_epoch", "seq", "part").collect()
        assert len(rows) > before
        assert len(set(rows)) == len(rows)
        assert tables["gaps"].collect() == []
        kinds = {row["kind"] for row in tables["elections"].where("topic = 'orders'").collect()}
        assert "clean" in kinds
        facts = write_report(records, tables, out)
        assert facts.counts["affected"] > 0
