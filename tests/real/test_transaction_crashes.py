"""A broker dies at any write of a transaction, and the transaction is there as a whole or not.

The broker is the coordinator and leads everything. It dies before or after the first batch of
`__transaction_state` or marker that a transaction writes, in the next round at the second, until
the transaction needs no more. It comes back at once, on the same files.
"""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from klamm.client import transactions
from klamm.client.admin import Admin
from klamm.errors import KlammError
from klamm.zookeeper.server import ZooKeeperServer
from tests.support.cluster import BrokerProcess, RealCluster
from tests.support.dying_broker import AFTER, BEFORE
from tests.support.raw import Raw
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.real, pytest.mark.crash, pytest.mark.timeout(580)]

PARTITIONS = (0, 1)
TIMEOUT_MS = 15_000
#: The id, the partitions, the offsets, the decision, three markers and the end.
WRITES_MIN = 8


class DyingBroker(BrokerProcess):
    """Comes back whenever it has died, without another death in mind."""

    def command(self, file: Path) -> list[str]:
        python, *_ = super().command(file)
        return [python, "-m", "tests.support.dying_broker", str(file)]

    @property
    def sentence(self) -> Path:
        return self.directory / "die"

    def arm(self, write: int, when: str) -> threading.Thread:
        """Let the process die at a write; the thread ends when it has come back."""
        self.sentence.write_text(f"{write} {when}")
        rising = threading.Thread(target=self._rise, daemon=True)
        rising.start()
        return rising

    def _rise(self) -> None:
        assert self.process is not None
        self.process.wait()
        if self.sentence.exists():
            self.sentence.unlink()
            self.start()


@pytest.fixture(scope="module")
def dying(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    cluster = RealCluster(zookeeper_server, tmp_path_factory.mktemp("dying"), brokers=1)
    broker = cluster.brokers[1]
    cluster.brokers[1] = DyingBroker(1, broker.directory, broker.config)
    cluster.brokers[1].port = broker.port
    with cluster:
        yield cluster


def transact(cluster: RealCluster, topic: str, number: int) -> bool | None:
    """One transaction on two partitions and a group: committed, aborted, or (None) not known."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "transactional.id": f"{topic}-{number}",
            "transaction.timeout.ms": TIMEOUT_MS,
            "reconnect.backoff.max.ms": 200,
            "log_level": 0,
        }
    )
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": topic, "log_level": 0})
    is_asked = False
    try:
        producer.init_transactions(60)
        producer.begin_transaction()
        for partition in PARTITIONS:
            producer.produce(topic, b"%d" % number, partition=partition)
        producer.flush(60)
        producer.send_offsets_to_transaction(
            [TopicPartition(topic, 0, number + 1)], consumer.consumer_group_metadata(), 60
        )
        is_asked = True
        producer.commit_transaction(60)
        return True
    except KafkaException as error:
        if error.args[0].txn_requires_abort():
            producer.abort_transaction(60)
            return False
        return None if is_asked else False
    finally:
        consumer.close()


def committed(cluster: RealCluster, topic: str) -> list[list[int]]:
    """The numbers on each partition that a reader of committed records sees, once all is over."""

    def found() -> list[list[int]] | None:
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": f"{topic}-reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        try:
            numbers: list[list[int]] = [[] for _ in PARTITIONS]
            consumer.assign([TopicPartition(topic, each, 0) for each in PARTITIONS])
            while message := consumer.poll(2):
                if message.error():
                    return None
                numbers[message.partition()].append(int(message.value()))
            return numbers
        finally:
            consumer.close()

    return wait_until(found, "a reader of committed records")


@pytest.mark.rule("TXN-14", "TXN-15", "TXN-16")
@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_transaction_whose_coordinator_dies_at_a_write_is_whole_or_absent(
    dying: RealCluster, topic: str, when: str
):
    broker = dying.brokers[1]
    assert isinstance(broker, DyingBroker)
    dying.create(topic, partitions=len(PARTITIONS), factor=1)
    told = {0: transact(dying, topic, 0)}  # the internal topics are there after it
    for number in itertools.count(1):
        rising = broker.arm(number, when)
        told[number] = transact(dying, topic, number)
        # The markers and the end are written after the producer has its response.
        wait_until(lambda: not broker.sentence.exists() or is_over(dying, f"{topic}-{number}"))  # noqa: B023
        if broker.sentence.exists():
            broker.sentence.unlink()  # the transaction has no write of this number
            broker.kill()
            rising.join(60)
            broker.start()
            dying.wait_ready()
            break
        rising.join(60)
    assert number > WRITES_MIN
    wait_until(lambda: not open_partitions(dying, topic), "every transaction to be over")
    first, second = committed(dying, topic)
    assert first == second
    assert set(first) >= {each for each, outcome in told.items() if outcome}
    assert not set(first) & {each for each, outcome in told.items() if outcome is False}
    assert committed_offset(dying, topic) == max(first) + 1


def is_over(cluster: RealCluster, transactional_id: str) -> bool:
    try:
        with Admin(cluster.bootstrap) as admin:
            return transactions.describe(admin, transactional_id).state.startswith("Complete")
    except KlammError:
        return False


def open_partitions(cluster: RealCluster, topic: str) -> list[int]:
    """The partitions on which a transaction is open: committed records end before all records."""
    with Raw(cluster.brokers[1].port) as raw:
        return [
            each
            for each in PARTITIONS
            if raw.list_offset(topic, -1, partition=each, isolation_level=0).offset
            != raw.list_offset(topic, -1, partition=each, isolation_level=1).offset
        ]


def committed_offset(cluster: RealCluster, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": group, "log_level": 0})
    try:
        (found,) = consumer.committed([TopicPartition(group, 0)], 60)
        return int(found.offset)
    finally:
        consumer.close()
