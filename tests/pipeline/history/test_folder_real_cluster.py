"""Histories of real clusters, streamed from their topic."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyarrow import ArrowInvalid, parquet
from pyspark.sql import SparkSession

from klamm import Cluster
from klamm.errors import ConfigError
from klamm.history.spool import read_spool
from klamm.history.story import DEFAULT_TOPIC
from klamm.pipeline.history.folder import TopicInput, read_records, write_tables
from klamm.pipeline.history.report import write_report
from tests.support.command_line import interruptible
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.spark_heavy, pytest.mark.timeout(600)]

ATTEMPTS_MAX = 20
#: A Spark that starts on a busy machine, and makes all tables.
LONG_S = 240.0
Key = tuple[int, int, int]


def history_topic(cluster: Cluster) -> TopicInput:
    """The topic, once it is there: the controller creates it when it has something to ship."""
    topic = TopicInput(cluster.bootstrap_servers, DEFAULT_TOPIC)

    def is_there() -> bool:
        try:
            topic.check()
        except ConfigError:
            return False
        return True

    wait_until(is_there, "the history topic", LONG_S)
    return topic


def test_a_stream_that_is_stopped_and_started_neither_loses_nor_doubles_a_row(
    spark: SparkSession, tmp_path: Path
):
    out = tmp_path / "history"
    with Cluster(brokers=3, config={"klamm.history.topic": DEFAULT_TOPIC}) as cluster:
        cluster.create_topic("orders", partitions=3)
        assert history_topic(cluster).lay_down(spark, out) is not None
        before = read_records(spark, out).count()
        lost = cluster.leader("orders")
        cluster.kill(lost)
        cluster.wait_leader("orders", other_than=lost)
        cluster.start(lost)
        again = TopicInput(cluster.bootstrap_servers, DEFAULT_TOPIC)
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


@contextmanager
def following(cluster: Cluster, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`klamm history --follow` in a process group of its own, which is killed at the end."""
    command = interruptible(
        sys.executable, "-m", "klamm", "history", "-b", cluster.bootstrap_servers
    )
    with (out.parent / "output").open("ab") as output:
        process = subprocess.Popen(
            [*command, "--out", str(out), "--follow", "--every", "1", "--master", "local[1]"],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def terms_told(out: Path) -> int:
    """How many terms of office the table has at the moment; it is being written anew at times."""
    try:
        return parquet.read_table(out / "controller_terms").num_rows
    except (OSError, ArrowInvalid):
        return 0


def has_started(out: Path, broker: int) -> bool:
    try:
        sessions = parquet.read_table(out / "broker_sessions").to_pylist()
    except (OSError, ArrowInvalid):
        return False
    return any((row["broker"], row["start"]) == (broker, "started") for row in sessions)


def test_following_goes_on_where_it_was_killed_and_gets_what_comes_late(
    spark: SparkSession, tmp_path: Path
):
    out = tmp_path / "history"
    with Cluster(brokers=3, config={"klamm.history.topic": DEFAULT_TOPIC}) as cluster:
        cluster.create_topic("orders", partitions=3)
        history_topic(cluster)
        with following(cluster, out):
            wait_until(lambda: terms_told(out) == 1, "the first tables", LONG_S)
            # The role changes hands under the stream; what the old controller had not shipped yet
            # comes when it is back.
            lost = cluster.controller_id()
            assert lost is not None
            cluster.kill(lost)
            cluster.wait_controller(other_than=lost)
            wait_until(lambda: terms_told(out) == 2, "the second term", LONG_S)
        cluster.start(lost)
        with following(cluster, out) as process:
            wait_until(lambda: has_started(out, lost), "the broker's return", LONG_S)
            process.send_signal(signal.SIGINT)
            assert process.wait(LONG_S) == 0
        cluster.stop_brokers()
        spooled: set[Key] = {
            (row["controller_epoch"], row["seq"], row["part"])
            for spool in cluster.spools
            for batch in read_spool(spool)
            for row in batch.select(["controller_epoch", "seq", "part"]).to_pylist()
        }
    keys: list[Key] = [
        (row["controller_epoch"], row["seq"], row["part"])
        for row in read_records(spark, out).collect()
    ]
    assert len(set(keys)) == len(keys)
    # Whatever was spooled up to the last event that was read has been read.
    assert sorted(keys) == sorted(key for key in spooled if key <= max(keys))
    assert {epoch for epoch, _, _ in keys} == {1, 2}
    assert spark.read.parquet(str(out / "gaps")).isEmpty()
