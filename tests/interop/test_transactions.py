"""Transactions across brokers of both kinds, each as coordinator and as leader."""

from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from klamm.broker.groups.coordinator import group_partition
from klamm.client.admin import Admin
from klamm.client.elections import ElectionType, elect
from klamm.names import TRANSACTION_STATE
from klamm.protocol.codes import ErrorCode
from klamm.zookeeper.server import ZooKeeperServer
from tests.interop.clients import create, produce, settings
from tests.support.kafka_tools import Tools
from tests.support.mixed_cluster import PATIENCE_S, Kind, MixedCluster
from tests.support.transactions import RawProducer
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

STATE_PARTITIONS = 4
SETTINGS = {
    "transaction_state_log_num_partitions": STATE_PARTITIONS,
    "transaction_state_log_replication_factor": 3,
    "transaction_state_log_min_isr": 2,
    "offsets_topic_replication_factor": 3,
    "transaction_abort_timed_out_transaction_cleanup_interval_ms": 500,
}


@pytest.fixture(scope="module")
def cluster(
    zookeeper_server: ZooKeeperServer,
    kafka_libs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[MixedCluster]:
    """Two brokers of klamm and one of Apache Kafka."""
    directory = tmp_path_factory.mktemp("mixed")
    with MixedCluster(zookeeper_server.address, directory, kafka_libs, **SETTINGS) as cluster:
        cluster.add(Kind.KLAMM, 1)
        cluster.add(Kind.KAFKA, 2)
        cluster.add(Kind.KLAMM, 3)
        yield cluster


def ports(cluster: MixedCluster) -> dict[int, int]:
    return {
        id: int(cluster.broker(id).address.rpartition(":")[2])
        for id in cluster.nodes
        if cluster.broker(id).is_running
    }


def id_coordinated_by(cluster: MixedCluster, broker: int, prefix: str) -> str:
    """A transactional id whose coordinator is this broker."""
    first = RawProducer(ports(cluster), f"{prefix}-0")
    first.find_coordinator()  # which has the topic made
    with Admin(cluster.bootstrap) as admin:
        elect(admin, ElectionType.PREFERRED, None)
    for number in range(100):
        id = f"{prefix}-{number}"
        partition = group_partition(id, STATE_PARTITIONS)
        state = cluster.state(TRANSACTION_STATE, partition)
        if state["leader"] == broker:
            return id
    raise AssertionError(f"broker {broker} leads no partition of {TRANSACTION_STATE}")


def transact(cluster: MixedCluster, id: str, topic: str) -> Producer:
    producer = Producer(settings(cluster.bootstrap, transactional_id=id))
    producer.init_transactions(60)
    for number, commits in enumerate((True, False, True)):
        producer.begin_transaction()
        producer.produce(topic, f"{id} {number}".encode(), partition=0)
        producer.flush()
        if commits:
            producer.commit_transaction(60)
        else:
            producer.abort_transaction(60)
    return producer


def read(cluster: MixedCluster, topic: str) -> list[str]:
    consumer = Consumer(
        settings(
            cluster.bootstrap,
            group_id=f"{topic}-reader",
            isolation_level="read_committed",
            enable_partition_eof=True,
        )
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[str] = []
    try:
        while True:
            message = consumer.poll(30)
            assert message is not None
            if not message.error():
                values.append((message.value() or b"").decode())
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return values
    finally:
        consumer.close()


@pytest.mark.rule("TXN-7", "TXN-12", "TXN-16")
def test_any_coordinator_works_with_any_leader(cluster: MixedCluster):
    """Markers and verification go between both kinds, in both directions."""
    for coordinator, leader in product((1, 2), (1, 2, 3)):
        topic = f"from-{coordinator}-to-{leader}"
        others = [each for each in (1, 2, 3) if each != leader]
        create(cluster.bootstrap, topic, [[leader, *others]])
        id = id_coordinated_by(cluster, coordinator, topic)
        transact(cluster, id, topic)
        assert read(cluster, topic) == [f"{id} 0", f"{id} 2"]


@pytest.mark.rule("TXN-12")
def test_both_kinds_refuse_what_is_outside_of_a_transaction(cluster: MixedCluster):
    for coordinator, leader in ((1, 2), (2, 1), (1, 3)):
        topic = f"outside-{coordinator}-{leader}"
        others = [each for each in (1, 2, 3) if each != leader]
        create(cluster.bootstrap, topic, [[leader, *others]])
        producer = RawProducer(ports(cluster), id_coordinated_by(cluster, coordinator, topic))
        producer.init_at_last()

        expected = {11: ErrorCode.TRANSACTION_ABORTABLE, 10: ErrorCode.INVALID_TXN_STATE}
        for version, error in expected.items():
            producer.sequences.clear()
            assert producer.produce(leader, topic, b"x", version=version).error_code == error


@pytest.mark.rule("TXN-2", "TXN-14")
def test_a_log_of_one_kind_is_continued_by_the_other(cluster: MixedCluster):
    """A transaction is begun under one kind of coordinator and ended under the other, twice."""
    create(cluster.bootstrap, "moved", [[3, 1, 2]])
    values = []
    for old, new in ((Kind.KAFKA, Kind.KLAMM), (Kind.KLAMM, Kind.KAFKA)):
        assert cluster.broker(2).kind is old
        id = id_coordinated_by(cluster, 2, f"moved-{old}")
        producer = RawProducer(ports(cluster), id)
        producer.init_at_last()
        producer.add_at_last({"moved": [0]})
        producer.produce_at_last(cluster.state("moved", 0)["leader"], "moved", b"%s" % old.encode())
        cluster.restart(2, new)
        producer.ports = ports(cluster)
        wait_until(
            lambda: sorted(cluster.state(TRANSACTION_STATE, 0)["isr"]) == [1, 2, 3],
            "the replicas of the state",
            PATIENCE_S,
        )
        found = producer.wait_state("Ongoing")
        assert found.producer_id == producer.producer_id
        producer.end_at_last()
        producer.wait_state("CompleteCommit")
        values.append(old.value)
    assert read(cluster, "moved") == values


@pytest.mark.rule("TXN-17", "TXN-18", "TXN-19")
def test_kafkas_own_tool_sees_transactions_of_both_kinds(cluster: MixedCluster, tmp_path: Path):
    create(cluster.bootstrap, "seen", [[1, 2, 3]])
    tools = Tools(cluster.libs, tmp_path, cluster.bootstrap)
    for coordinator in (1, 2):
        id = id_coordinated_by(cluster, coordinator, f"seen-{coordinator}")
        transact(cluster, id, "seen")
        assert id in tools.run("kafka-transactions", "list")
        described = tools.run("kafka-transactions", "describe", "--transactional-id", id)
        assert "CompleteCommit" in described
    shown = tools.run(
        "kafka-transactions", "describe-producers", "--topic", "seen", "--partition", "0"
    )
    assert shown.count("None") == 2, "no transaction is open"


@pytest.mark.rule("TXN-10")
def test_javas_copier_copies_each_record_once(cluster: MixedCluster, tmp_path: Path):
    """Kafka's own consume-transform-produce, which aborts at random."""
    create(cluster.bootstrap, "source", [[1, 2, 3]])
    create(cluster.bootstrap, "target", [[2, 3, 1]])
    values = [b"%d" % number for number in range(500)]
    produce(cluster.bootstrap, "source", values)
    Tools(cluster.libs, tmp_path).run(
        "transactional-message-copier",
        *("--broker-list", cluster.bootstrap),
        *("--input-topic", "source", "--output-topic", "target", "--input-partition", "0"),
        *("--consumer-group", "copiers", "--transactional-id", "copier"),
        *("--transaction-size", "50", "--max-messages", str(len(values))),
        "--enable-random-aborts",
    )
    assert read(cluster, "target") == [value.decode() for value in values]
