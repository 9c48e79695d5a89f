"""What becomes of an idempotent producer's records when the client begins a new epoch by itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, Message, Producer

from klamm.protocol.records import iterate_batches, iterate_records
from klamm.zookeeper.server import ZooKeeperServer
from tests.interop.clients import create, settings
from tests.support.mixed_cluster import PATIENCE_S, Kind, MixedCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]


@pytest.fixture
def cluster(
    zookeeper_server: ZooKeeperServer, kafka_libs: Path, tmp_path: Path
) -> Iterator[MixedCluster]:
    with MixedCluster(zookeeper_server.address, tmp_path, kafka_libs) as cluster:
        yield cluster


def written(cluster: MixedCluster, partition: str) -> list[tuple[int, int, bytes]]:
    """Producer epoch, sequence and value of each record that broker 1 has in its log."""
    (path,) = (cluster.broker(1).log_dir / partition).glob("*.log")
    return [
        (batch.header.producer_epoch, batch.header.base_sequence + number, bytes(record.value))
        for batch in iterate_batches(memoryview(path.read_bytes()), may_end_early=True)
        for number, record in enumerate(iterate_records(batch))
        if record.value is not None
    ]


@pytest.mark.parametrize("kind", Kind)
def test_what_a_client_sends_again_under_a_new_epoch_is_kept_twice(
    cluster: MixedCluster, kind: Kind
):
    """A refusal by one partition makes librdkafka number all partitions anew, those as well in
    which a record was written and not acknowledged. No broker can know that it is the same."""
    cluster.add(kind, 1)
    cluster.add(kind, 2)
    create(cluster.bootstrap, "ledger", [[1, 2]], min_insync_replicas="2")
    create(cluster.bootstrap, "narrow", [[1]], max_message_bytes="100")
    told: dict[bytes, KafkaError | None] = {}

    def delivered(error: KafkaError | None, message: Message) -> None:
        told[bytes(message.value() or b"")] = error

    producer = Producer(
        settings(
            cluster.bootstrap,
            enable_idempotence=True,
            acks="all",
            request_timeout_ms=2000,
            message_timeout_ms=600_000,
        )
    )

    def produce(topic: str, value: bytes) -> None:
        producer.produce(topic, value, partition=0, on_delivery=delivered)
        producer.poll(0)

    def is_told(value: bytes) -> bool:
        producer.poll(0.1)
        return value in told

    produce("ledger", b"first")
    wait_until(lambda: is_told(b"first"), "the first record", PATIENCE_S)
    cluster.broker(2).kill()
    produce("ledger", b"second")
    wait_until(lambda: (0, 1, b"second") in written(cluster, "ledger-0"), "the second", PATIENCE_S)
    cluster.wait_isr("ledger", 0, [1])
    assert not is_told(b"second"), "one replica was enough"
    too_much = b"x" * 1000
    produce("narrow", too_much)
    wait_until(lambda: is_told(too_much), "the refusal", PATIENCE_S)
    assert told[too_much] is not None
    cluster.start_brokers(2)
    wait_until(lambda: is_told(b"second"), "the second record", PATIENCE_S)
    assert told[b"second"] is None
    assert written(cluster, "ledger-0") == [
        (0, 0, b"first"),
        (0, 1, b"second"),
        (1, 0, b"second"),
    ]
