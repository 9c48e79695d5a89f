"""Data that both kinds of brokers have in common: replicas of each other, and directories."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from klamm.zookeeper.server import ZooKeeperServer
from tests.interop.clients import committed, consume, create, produce, transact
from tests.support.kafka_tools import Tools
from tests.support.mixed_cluster import PATIENCE_S, Kind, MixedCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
OTHER = {Kind.KAFKA: Kind.KLAMM, Kind.KLAMM: Kind.KAFKA}


@pytest.fixture
def cluster(
    zookeeper_server: ZooKeeperServer, kafka_libs: Path, tmp_path: Path
) -> Iterator[MixedCluster]:
    with MixedCluster(
        zookeeper_server.address,
        tmp_path,
        kafka_libs,
        offsets_topic_replication_factor=1,
        transaction_state_log_replication_factor=1,
        transaction_state_log_min_isr=1,
        transaction_state_log_num_partitions=1,
        log_segment_bytes=100_000,
    ) as cluster:
        yield cluster


@pytest.fixture
def tools(cluster: MixedCluster, tmp_path: Path) -> Tools:
    return Tools(cluster.libs, tmp_path)


def log_files(cluster: MixedCluster, broker_id: int, partition: str) -> list[Path]:
    return sorted((cluster.broker(broker_id).log_dir / partition).glob("*.log"))


def log_bytes(cluster: MixedCluster, broker_id: int, partition: str) -> bytes:
    """All segments; where one ends is every replica's own affair."""
    return b"".join(path.read_bytes() for path in log_files(cluster, broker_id, partition))


def produce_of_everything(cluster: MixedCluster, topic: str, partition: int) -> list[bytes]:
    """Batches in every compression, until there are several segments."""
    written = []
    noise = random.Random(1)
    for codec in CODECS:
        values = [b"%s-%d-" % (codec.encode(), n) + noise.randbytes(150) for n in range(300)]
        for idempotent in (False, True):
            produce(
                cluster.bootstrap,
                topic,
                values,
                partition=partition,
                compression_type=codec,
                enable_idempotence=idempotent,
            )
            written += values
    return written


@pytest.mark.parametrize("leader", Kind)
def test_a_follower_of_the_other_kind_has_the_same_bytes(
    cluster: MixedCluster, tools: Tools, leader: Kind
):
    cluster.add(leader, 1)
    cluster.add(OTHER[leader], 2)
    create(cluster.bootstrap, "copied", [[1, 2]])
    produce_of_everything(cluster, "copied", 0)
    cluster.wait_in_sync("copied")
    wait_until(
        lambda: log_bytes(cluster, 1, "copied-0") == log_bytes(cluster, 2, "copied-0"),
        "the same bytes on both",
        PATIENCE_S,
    )
    for broker_id in (1, 2):
        assert len(log_files(cluster, broker_id, "copied-0")) > 2
        folder = cluster.broker(broker_id).log_dir / "copied-0"
        files = ",".join(str(path) for path in sorted(folder.glob("*.*index")))
        told = tools.run("kafka-dump-log", "--files", files, "--index-sanity-check")
        assert "passed sanity check" in told
        assert "Found" not in told
    epochs = [
        (cluster.broker(id).log_dir / "copied-0" / "leader-epoch-checkpoint").read_text()
        for id in (1, 2)
    ]
    assert epochs[0] == epochs[1]


@pytest.mark.parametrize("first", Kind)
def test_logs_that_diverged_are_truncated_to_the_other_kinds_leader(
    cluster: MixedCluster, first: Kind
):
    """Both lead in turn while the other is away; the epochs say what has to go."""
    cluster.add(first, 1)
    cluster.add(OTHER[first], 2)
    create(cluster.bootstrap, "forked", [[1, 2]], unclean_leader_election_enable="true")
    produce(cluster.bootstrap, "forked", [b"common"] * 10)
    cluster.wait_in_sync("forked")
    cluster.kill(2)
    cluster.wait_state("forked", 0, lambda state: state["isr"] == [1])
    produce(cluster.bootstrap, "forked", [b"only on 1"] * 20)
    cluster.kill(1)
    cluster.start_brokers(2)
    cluster.wait_state("forked", 0, lambda state: state["leader"] == 2)
    produce(cluster.bootstrap, "forked", [b"only on 2"] * 5)
    cluster.start_brokers(1)
    cluster.wait_in_sync("forked")
    wait_until(lambda: log_bytes(cluster, 1, "forked-0") == log_bytes(cluster, 2, "forked-0"))
    cluster.kill(2)
    cluster.wait_state("forked", 0, lambda state: state["leader"] == 1)
    values = consume(cluster.bootstrap, "forked", "readers", 15)
    assert values == [b"common"] * 10 + [b"only on 2"] * 5


@pytest.mark.parametrize("stopped", ["in order", "by a crash"])
@pytest.mark.parametrize("first", Kind)
def test_a_directory_goes_on_under_the_other_kind(
    cluster: MixedCluster, tools: Tools, first: Kind, stopped: str
):
    """Records, producers' states and a group's offsets are all there, and then again."""
    cluster.add(first, 1)
    create(cluster.bootstrap, "kept", [[1], [1]])
    create(cluster.bootstrap, "compacted", [[1]], cleanup_policy="compact")
    expected = produce_of_everything(cluster, "kept", 0)
    produce(cluster.bootstrap, "compacted", [b"a", b"b"], keys=[b"k", b"k"])
    assert consume(cluster.bootstrap, "kept", "group", len(expected)) == expected
    for kind in (OTHER[first], first):
        broker = cluster.broker(1)
        if stopped == "in order":
            assert broker.stop() in (0, 143)
        else:
            broker.kill()
        cluster.wait_gone(1)
        broker.kind = kind
        cluster.start_brokers(1)
        cluster.wait_state("kept", 0, lambda state: state["leader"] == 1)
        position = TopicPartition("kept", 0)
        assert committed(cluster.bootstrap, "group", position) == len(expected)
        more = produce_of_everything(cluster, "kept", 0)
        assert consume(cluster.bootstrap, "kept", "group", len(more)) == more
        expected += more
        group = f"from-the-start-under-{kind}"
        assert consume(cluster.bootstrap, "kept", group, len(expected)) == expected
        assert consume(cluster.bootstrap, "compacted", group, 2) == [b"a", b"b"]
    files = log_files(cluster, 1, "kept-0")
    told = tools.run("kafka-dump-log", "--files", ",".join(map(str, files)), "--deep-iteration")
    assert told.count("isvalid: true") > 10
    assert "isvalid: false" not in told


def test_klamm_serves_what_kafkas_transactions_left(cluster: MixedCluster):
    cluster.add(Kind.KAFKA, 1)
    create(cluster.bootstrap, "ledger", [[1]])
    transact(cluster.bootstrap, "ledger", [b"committed-1"], commit=True)
    transact(cluster.bootstrap, "ledger", [b"aborted"], commit=False)
    transact(cluster.bootstrap, "ledger", [b"committed-2"], commit=True)
    for kind in Kind:
        cluster.restart(1, kind)
        cluster.wait_state("ledger", 0, lambda state: state["leader"] == 1)
        values = consume(
            cluster.bootstrap, "ledger", f"{kind}", 2, isolation_level="read_committed"
        )
        assert values == [b"committed-1", b"committed-2"]
        values = consume(
            cluster.bootstrap, "ledger", f"{kind}-dirty", 3, isolation_level="read_uncommitted"
        )
        assert values == [b"committed-1", b"aborted", b"committed-2"]
