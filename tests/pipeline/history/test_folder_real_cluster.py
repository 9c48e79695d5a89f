"""Histories of real clusters, streamed from their topic."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyarrow import parquet
from pyspark.sql import SparkSession

from klamm import Cluster
from klamm.errors import ConfigError
from klamm.history.spool import read_spool
from klamm.history.story import DEFAULT_TOPIC
from klamm.pipeline.history.sources import TopicInput
from tests.support.command_line import interruptible
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.spark_heavy, pytest.mark.timeout(600)]

ATTEMPTS_MAX = 20
#: A Spark that starts on a busy machine, and makes all tables.
LONG_S = 240.0
#: What a test's own look at the clock may be off by on a busy machine.
CLOCK_S = 30.0
KEY = ("controller_epoch", "seq", "part")
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


def test_foreign_messages_are_put_aside_and_the_rest_goes_on(spark: SparkSession, tmp_path: Path):
    out = tmp_path / "history"
    with Cluster(brokers=3, config={"klamm.history.topic": DEFAULT_TOPIC}) as cluster:
        cluster.create_topic("orders", partitions=3)
        first = history_topic(cluster).update(spark, out)
        assert first is not None
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        producer.produce(DEFAULT_TOPIC, value=b"foreign", key=b"k")
        producer.produce(DEFAULT_TOPIC, value=None, key=b"k")
        producer.flush(LONG_S)
        lost = cluster.leader("orders")
        killed_at = time.time()
        cluster.kill(lost)
        cluster.wait_leader("orders", other_than=lost)
        elected_at = time.time()
        cluster.start(lost)
        # Events are shipped as they come: read on until the one that matters has arrived.
        for _ in range(ATTEMPTS_MAX):
            facts = history_topic(cluster).update(spark, out)
            if any(row["lost_leader"] == lost for row in rows_of(out, "unavailability")):
                break
        assert facts is not None
        outages = [r for r in rows_of(out, "unavailability") if r["topic"] == "orders"]
    assert facts.counts["events"] > first.counts["events"]
    assert facts.counts["quarantined"] == 2
    put_aside = {row["bytes"]: row["reason"] for row in rows_of(out, "quarantine")}
    assert set(put_aside) == {b"foreign", None}
    assert "null" in put_aside[None]
    keys = [tuple(row[name] for name in KEY) for row in rows_of(out, "records")]
    assert len(set(keys)) == len(keys)
    assert rows_of(out, "gaps") == []
    assert {row["cluster_id"] for row in rows_of(out, "events")} == {facts.origin.cluster_id}
    # The connection broke when the broker was killed, and that is when it was last alive.
    felt = [row for row in outages if row["lost_leader"] == lost]
    assert felt
    for row in felt:
        assert killed_at - CLOCK_S < row["from"].timestamp() < row["noticed_at"].timestamp()
        assert row["from"].timestamp() < killed_at + CLOCK_S
        assert row["until"].timestamp() < elected_at + CLOCK_S
        assert row["noticing_seconds"] > row["electing_seconds"]


@contextmanager
def following(cluster: Cluster, out: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`klamm history --follow` in a process group of its own, which is killed at the end."""
    command = interruptible(
        sys.executable, "-m", "klamm", "history", "-b", cluster.bootstrap_servers
    )
    with (out.parent / "output").open("ab") as output:
        process = subprocess.Popen(
            [*command, "--out", str(out), "--follow", "--master", "local[1]"],
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


def rows_of(out: Path, table: str) -> list[dict[str, Any]]:
    return parquet.read_table(out / table).to_pylist()


def terms_told(out: Path) -> int:
    """How many controller terms the table has at the moment; once made, it never vanishes."""
    if not (out / "controller_terms").exists():
        return 0
    return len(rows_of(out, "controller_terms"))


def has_started(out: Path, broker: int) -> bool:
    sessions = rows_of(out, "broker_sessions")
    return any((row["broker"], row["start"]) == (broker, "started") for row in sessions)


def test_following_goes_on_where_it_was_killed_and_gets_what_comes_late(tmp_path: Path):
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
        (row["controller_epoch"], row["seq"], row["part"]) for row in rows_of(out, "records")
    ]
    assert len(set(keys)) == len(keys)
    # Whatever was spooled up to the last event that was read has been read.
    assert sorted(keys) == sorted(key for key in spooled if key <= max(keys))
    assert {epoch for epoch, _, _ in keys} == {1, 2}
    assert rows_of(out, "gaps") == []
