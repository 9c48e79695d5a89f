"""`klamm history` of Apache Kafka in KRaft mode: what happened is what the tables tell."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from klamm.client import topics
from klamm.client.admin import Admin
from klamm.history.kraft.directory import MetadataDirectory
from klamm.history.kraft.quorum import MetadataQuorum
from klamm.history.kraft.replay import MetadataReplay, MetadataSnapshot
from klamm.history.records import EventRecord
from klamm.protocol.records import Batch
from tests.support.command_line import run_here
from tests.support.kraft_cluster import PATIENCE_S, KraftCluster, live_through
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def kafka(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KraftCluster]:
    # Snapshots appear while the log still has its beginning.
    settings = {
        "metadata.max.idle.interval.ms": 5000,
        "metadata.log.max.snapshot.interval.ms": 12_000,
    }
    with KraftCluster(tmp_path_factory.mktemp("kraft"), kafka_libs, **settings) as cluster:
        live_through(cluster)
        yield cluster


def rows(out: Path, table: str) -> list[dict[str, Any]]:
    found = parquet.read_table(out / table).to_pylist()
    numbers, others = ("controller_epoch", "seq"), ("from", "topic", "partition", "broker")
    return sorted(
        found,
        key=lambda row: (
            [row.get(name, 0) for name in numbers],
            [str(row.get(name)) for name in others],
        ),
    )


def elections(out: Path) -> list[tuple[Any, ...]]:
    columns = ("kind", "topic", "partition", "old_leader", "new_leader")
    return [tuple(row[name] for name in columns) for row in rows(out, "elections")]


ELECTIONS = [
    # Broker 1 fails, and comes back.
    ("none", "audit", 0, 1, -1),
    ("clean", "orders", 0, 1, 2),
    ("clean", "audit", 0, -1, 1),
    ("preferred", "orders", 0, 2, 1),
    # Broker 2 is stopped.
    ("controlled_shutdown", "orders", 1, 2, 3),
    # Brokers 1 and 3 fail, and only broker 1 comes back for now.
    ("none", "audit", 0, 1, -1),
    ("clean", "orders", 0, 1, 2),
    ("clean", "orders", 1, 3, 2),
    ("clean", "orders", 2, 3, 2),
    ("none", "risky", 0, 3, -1),
    ("clean", "audit", 0, -1, 1),
    ("unclean", "risky", 0, -1, 1),
]


def test_the_tables_tell_what_happened(kafka: KraftCluster, tmp_path: Path):
    out = tmp_path / "out"
    address = kafka.controllers[0].address
    summary = run_here("history", "--kraft", address, "--out", str(out), "--json").json()
    assert elections(out) == ELECTIONS
    assert (summary["unclean"], summary["gaps"]) == (1, [])
    ends = [(row["broker"], row["start"], row["end"]) for row in rows(out, "broker_sessions")]
    assert sorted(ends, key=str) == [
        (1, "started", "failed"),
        (1, "started", "failed"),
        (1, "started", None),
        (2, "started", "shut_down"),
        (2, "started", None),
        (3, "started", "failed"),
        (3, "started", None),
    ]
    (move,) = rows(out, "reassignments")
    assert (move["topic"], move["partition"], move["outcome"]) == ("orders", 2, "completed")
    assert (move["adding"], move["removing"], move["target"]) == ([2], [1], [3, 2])
    terms = [(row["controller_epoch"], row["end"]) for row in rows(out, "controller_terms")]
    assert len(terms) == 2
    assert [end for _, end in terms] == ["replaced", None]
    without = [(row["topic"], row["partition"]) for row in rows(out, "unavailability")]
    assert without.count(("audit", 0)) == 2
    assert without.count(("risky", 0)) == 1
    left = {
        (row["topic"], row["partition"], tuple(row["left"]), row["kind"])
        for row in rows(out, "isr_changes")
        if row["left"]
    }
    assert {("orders", 0, (1,), "clean"), ("orders", 2, (1,), "replica_offline")} <= left
    lives = {row["topic"]: row["end"] for row in rows(out, "topic_life_cycles")}
    assert (lives["orders"], lives["audit"]) == (None, "deleted")
    # A second run finds nothing new, and the files of the controller tell the same.
    again = run_here("history", "--kraft", address, "--out", str(out), "--json").json()
    assert again["tables"] == summary["tables"]
    copy = tmp_path / "copy"
    log_dir = str(kafka.controllers[0].log_dir)
    run_here("history", "--metadata-log", log_dir, "--out", str(copy)).ok()
    for table in ("elections", "isr_changes", "broker_sessions", "reassignments", "unavailability"):
        assert rows(copy, table) == rows(out, table)
    # A broker reads the log, too.
    follower = MetadataDirectory(kafka.brokers[2].metadata_log)
    assert told(follower)[-1].seq == told(MetadataDirectory(kafka.controllers[0].log_dir))[-1].seq


def test_a_broker_is_refused(kafka: KraftCluster, tmp_path: Path):
    done = run_here("history", "--kraft", kafka.bootstrap, "--out", str(tmp_path / "out"))
    done.failed("is not a KRaft controller", "controller.listener.names")


def told(source: MetadataDirectory | MetadataQuorum) -> list[EventRecord]:
    source.check()
    replay = MetadataReplay(source.cluster_id(), source.leader())
    events = []
    for each in source.read():
        events += replay.load(each) if isinstance(each, MetadataSnapshot) else replay.apply(each)
    source.close()
    return events


def test_the_leader_is_followed(kafka_libs: Path, tmp_path: Path):
    with KraftCluster(tmp_path, kafka_libs, controllers=3, brokers=0) as cluster:
        leader = cluster.wait_leader()
        ports = {each.id: each for each in cluster.controllers}
        follower = next(each for each in cluster.controllers if each.id != leader.leader_id)
        reader = MetadataQuorum([("127.0.0.1", follower.port)], timeout_s=PATIENCE_S)
        reader.check()
        assert reader.leader() == leader
        before = [each for each in reader.read() if isinstance(each, Batch)]
        assert before[0].header.base_offset == 0
        ports[leader.leader_id].kill()
        after = wait_until(lambda: list(reader.read()), "batches of the next leader", PATIENCE_S)
        first = after[0]
        assert isinstance(first, Batch)
        assert first.header.base_offset == before[-1].header.last_offset + 1
        found = reader.leader()
        assert found is not None
        assert found.leader_id != leader.leader_id
        reader.close()


def test_a_log_without_its_beginning_is_read_with_its_snapshot(kafka_libs: Path, tmp_path: Path):
    settings = {
        "metadata.log.segment.min.bytes": 1000,
        "metadata.log.segment.bytes": 1000,
        "metadata.log.max.record.bytes.between.snapshots": 1500,
        "metadata.max.retention.bytes": 4000,
        "metadata.max.idle.interval.ms": 100,
    }
    with KraftCluster(tmp_path, kafka_libs, brokers=1, **settings) as cluster:
        controller = cluster.controllers[0]
        with Admin(cluster.bootstrap, timeout_s=PATIENCE_S) as admin:
            for number in range(8):
                topics.create(admin, topics.NewTopic(f"early{number}", assignment=[[1]]))

        def is_cut() -> bool:
            return not (controller.metadata_log / "00000000000000000000.log").exists()

        wait_until(is_cut, "the beginning of the log to be removed", PATIENCE_S)
        with Admin(cluster.bootstrap, timeout_s=PATIENCE_S) as admin:
            topics.create(admin, topics.NewTopic("late", assignment=[[1]]))
        events = told(MetadataQuorum(cluster.controller_addresses))
        began, *later = events
        assert (began.term, [each.change for each in began.broker_changes]) == (
            "began",
            ["present"],
        )
        created = [each for record in later for each in record.topic_changes]
        assert "late" in {each.topic for each in created if each.change == "created"}
        from_files = told(MetadataDirectory(controller.metadata_log))
        assert from_files[-1].at == events[-1].at
