"""Rows 17 to 21 and 25: brokers die, pause, lag and return, and no acknowledged record is lost."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from tests.support.cluster import RealCluster
from tests.support.raw import Raw, batch
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]


class Load:
    """A producer that numbers its records and remembers which of them were acknowledged."""

    def __init__(self, cluster: RealCluster, topic: str) -> None:
        self.acknowledged: list[int] = []
        self.failures: list[KafkaError] = []
        self._topic = topic
        self._producer = cluster.producer(
            acks="all",
            enable_idempotence=True,
            linger_ms=1,
            delivery_timeout_ms=60_000,
            # A broker that is paused does not say so.
            request_timeout_ms=2_000,
            socket_timeout_ms=3_000,
        )
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        number = 0
        while not self._stopped.wait(0.001):
            self._producer.produce(
                self._topic, b"%d" % number, partition=0, on_delivery=self._delivered
            )
            self._producer.poll(0)
            number += 1
        self._producer.flush(PATIENCE_S)

    def _delivered(self, error: KafkaError | None, message: object) -> None:
        if error is not None:
            self.failures.append(error)
        else:
            self.acknowledged.append(int(message.value()))  # type: ignore[attr-defined]

    def wait_for_more(self, count: int = 50) -> None:
        """Wait until `count` more records have been acknowledged."""
        target = len(self.acknowledged) + count
        wait_until(lambda: len(self.acknowledged) >= target, f"{count} more records are acked")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join(2 * PATIENCE_S)


@contextmanager
def load(cluster: RealCluster, topic: str) -> Iterator[Load]:
    running = Load(cluster, topic)
    running.start()
    try:
        running.wait_for_more()
        yield running
    finally:
        running.stop()


def read_all(cluster: RealCluster, topic: str) -> list[int]:
    """All records of partition 0, in order, as a consumer gets them."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    found: list[int] = []
    try:
        while True:
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"nothing more comes after {len(found)} records"
            if message.error() is None:
                found.append(int(message.value()))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return found
    finally:
        consumer.close()


def assert_nothing_lost(load: Load, found: list[int]) -> None:
    assert not load.failures, load.failures[0]
    assert found == sorted(set(found)), "records come once and in order"
    assert set(load.acknowledged) <= set(found)


@pytest.mark.rule("DUR-1", "DUR-6", "IDEM-5", "TRUNC-1", "TRUNC-2", "LISR-9", "LISR-11", "HW-1")
def test_leaders_killed_in_turn_lose_nothing(breakable: RealCluster, topic: str) -> None:
    cluster = breakable
    cluster.create(topic, config={"min.insync.replicas": "2"})
    with load(cluster, topic) as running:
        for _ in range(2):
            leader = cluster.wait_leader(topic)
            cluster[leader].kill()
            cluster.wait_leader(topic, other_than=leader)
            running.wait_for_more()
            cluster[leader].start()
            cluster.wait_isr(topic, {1, 2, 3})
    assert_nothing_lost(running, read_all(cluster, topic))


@pytest.mark.rule("LIFE-13", "LIFE-14", "LIFE-15", "STOP-2")
def test_a_rolling_restart_under_load_fails_no_record(breakable: RealCluster, topic: str) -> None:
    cluster = breakable
    cluster.create(topic, config={"min.insync.replicas": "2"})
    with load(cluster, topic) as running:
        for broker in cluster.brokers.values():
            assert broker.stop() == 0
            assert (broker.log_dir / ".kafka_cleanshutdown").exists()
            running.wait_for_more()
            broker.start()
            cluster.wait_isr(topic, {1, 2, 3})
            assert not (broker.log_dir / ".kafka_cleanshutdown").exists()
    assert_nothing_lost(running, read_all(cluster, topic))


@pytest.mark.rule("DUR-7", "BISR-9", "EPOCH-1", "DUR-2")
def test_a_paused_leader_is_fenced_when_it_wakes(breakable: RealCluster, topic: str) -> None:
    cluster = breakable
    cluster.create(topic, config={"min.insync.replicas": "2"})
    with load(cluster, topic) as running:
        leader = cluster.wait_leader(topic)
        cluster[leader].signal(signal.SIGSTOP)
        cluster.wait_leader(topic, other_than=leader)
        running.wait_for_more()
        cluster[leader].signal(signal.SIGCONT)
        cluster.wait_isr(topic, {1, 2, 3})
        running.wait_for_more()
    assert_nothing_lost(running, read_all(cluster, topic))


@pytest.mark.rule("REC-2", "REC-3", "REC-4", "REC-5", "LOG-23", "LIFE-1", "LIFE-4", "DUR-3")
def test_all_brokers_killed_at_once_come_back_with_everything(
    breakable: RealCluster, topic: str
) -> None:
    cluster = breakable
    cluster.create(topic)
    with load(cluster, topic) as running:
        running.wait_for_more(200)
        for broker in cluster.brokers.values():
            broker.kill()
        for broker in cluster.brokers.values():
            broker.start()
        cluster.wait_ready()
        cluster.wait_isr(topic, {1, 2, 3})
        running.wait_for_more()
    assert_nothing_lost(running, read_all(cluster, topic))


@pytest.mark.rule(
    "PROD-2", "HW-2", "BISR-2", "BISR-4", "BISR-5", "BISR-6", "BISR-8", "LIFE-10", "LIFE-11"
)
def test_too_few_replicas_refuse_acks_all_and_hide_the_rest(
    breakable: RealCluster, topic: str
) -> None:
    cluster = breakable
    cluster.create(topic, assignment=[[1, 2, 3]], config={"min.insync.replicas": "3"})
    for other in (2, 3):
        # Paused, not dead: it is the leader that finds out, by their silence.
        cluster[other].signal(signal.SIGSTOP)
    with Raw(cluster[1].port) as raw:
        wait_until(
            lambda: (
                raw.produce(topic, batch(b"no"), timeout_ms=100).error_code
                == ErrorCode.NOT_ENOUGH_REPLICAS
            ),
            "the ISR has shrunk",
        )
        before = raw.list_offset(topic, -1).offset
        hidden = raw.produce(topic, batch(b"hidden"), acks=1)
        assert hidden.error_code == ErrorCode.NONE
        assert raw.list_offset(topic, -1).offset == before <= hidden.base_offset
        for other in (2, 3):
            cluster[other].signal(signal.SIGCONT)
        cluster.wait_isr(topic, {1, 2, 3})
        wait_until(
            lambda: raw.list_offset(topic, -1).offset > hidden.base_offset,
            "what was hidden is committed",
        )
        assert raw.produce(topic, batch(b"yes")).error_code == ErrorCode.NONE


@pytest.mark.rule("DUR-5", "TRUNC-3", "TRUNC-4", "FETCH-4", "LEAD-17")
def test_an_unclean_leader_has_its_log_win(breakable: RealCluster, topic: str) -> None:
    cluster = breakable
    cluster.create(topic, assignment=[[1, 2]])
    cluster.produce(topic, [b"0", b"1"], acks="all")
    cluster[2].kill()
    cluster.wait_isr(topic, {1})
    cluster.produce(topic, [b"2", b"3"], acks="all")
    cluster[1].kill()
    cluster[2].start()
    cluster.wait_ready()
    cluster.renew_admin()
    cluster.alter_topic(topic, unclean_leader_election_enable="true")
    assert cluster.wait_leader(topic, other_than=1) == 2
    with Raw(cluster[2].port) as raw:
        wait_until(lambda: raw.list_offset(topic, -1).offset == 2, "broker 2 leads")
        beyond = raw.fetch(raw.topic_id(topic), 4)
        assert beyond.topics[0].partitions[0].error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert raw.produce(topic, batch(b"22"), acks=1).base_offset == 2
    cluster[1].start()
    cluster.wait_isr(topic, {1, 2})
    cluster[2].stop()
    assert cluster.wait_leader(topic, other_than=2) == 1
    assert read_all(cluster, topic) == [0, 1, 22]


@pytest.mark.rule("REC-1", "REC-2", "REC-6", "LOG-16", "LOG-22")
def test_a_torn_tail_and_lost_indexes_are_repaired(breakable: RealCluster, topic: str) -> None:
    cluster = breakable
    cluster.create(topic, assignment=[[1, 2]], config={"segment.bytes": "20000"})
    cluster.produce(
        topic, [b"%d" % each for each in range(3000)], acks="all", batch_num_messages=50
    )
    cluster[2].kill()
    cluster.wait_isr(topic, {1})
    replica = cluster[2].log_dir / f"{topic}-0"
    *_, last = sorted(replica.glob("*.log"))
    with last.open("r+b") as file:
        file.truncate(last.stat().st_size - 7)
        file.seek(0, 2)
        file.write(b"garbage" * 10)
    for index in [*replica.glob("*.index"), *replica.glob("*.timeindex")]:
        index.unlink()
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        (cluster[2].log_dir / name).unlink(missing_ok=True)
    cluster[2].start()
    cluster.wait_isr(topic, {1, 2})
    cluster[1].stop()
    assert cluster.wait_leader(topic, other_than=1) == 2
    assert read_all(cluster, topic) == list(range(3000))


@pytest.mark.rule("REPL-9", "REPL-10", "EPC-4", "LOG-30", "BADM-9")
def test_a_follower_behind_the_log_start_begins_anew(breakable: RealCluster, topic: str) -> None:
    cluster = breakable
    cluster.create(topic, assignment=[[1, 2]])
    cluster.produce(topic, [b"0", b"1"], acks="all")
    cluster[2].kill()
    cluster.wait_isr(topic, {1})
    cluster.produce(topic, [b"2", b"3", b"4"], acks="all")
    # A deletion waits for every replica that the leader takes for alive.
    wait_until(
        lambda: (known := cluster.known_to(cluster[1])) and 2 not in known,
        "the leader hears of the failure",
    )
    with Raw(cluster[1].port) as raw:
        response = raw.ask(
            ApiKey.DELETE_RECORDS,
            topics=[{"name": topic, "partitions": [{"partition_index": 0, "offset": 4}]}],
            timeout=5000,
        )
        assert response.topics[0].partitions[0].low_watermark == 4
    cluster[2].start()
    cluster.wait_isr(topic, {1, 2})
    cluster[1].stop()
    assert cluster.wait_leader(topic, other_than=1) == 2
    with Raw(cluster[2].port) as raw:
        wait_until(lambda: raw.list_offset(topic, -2).offset == 4, "the new leader starts there")
        assert raw.list_offset(topic, -1).offset == 5
