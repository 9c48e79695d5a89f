"""A Kafka broker on our directories, and we on Kafka's."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient

from klamm.broker.log import names
from klamm.broker.log.checkpoints import MetaProperties
from klamm.broker.log.log import Log
from klamm.broker.log.manager import LogManager
from klamm.broker.log.settings import LogConfig
from klamm.config.properties import read_properties
from klamm.protocol.compression import Codec
from klamm.protocol.records import Record, build_batch
from klamm.zookeeper.server import ZooKeeperServer
from tests.broker.log.making import stored_records
from tests.support.ports import free_port
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(300),
    pytest.mark.skipif("KAFKA_LIBS" not in os.environ, reason="KAFKA_LIBS names no Kafka jars"),
    pytest.mark.skipif(not shutil.which("java"), reason="there is no java"),
]

PARTITION = names.TopicPartition("orders", 0)
SEGMENT_BYTES = 8_000
DEADLINE_S = 90


class Kafka:
    """One Kafka broker that is started and ended on the same directory."""

    def __init__(self, root: Path, zookeeper: str) -> None:
        self.log_dir = root / "kafka-logs"
        self.bootstrap = f"127.0.0.1:{free_port()}"
        self._zookeeper = zookeeper
        self._output = root / "kafka.log"
        self._settings = root / "server.properties"
        self._settings.write_text(
            f"broker.id=1\nlisteners=PLAINTEXT://{self.bootstrap}\nzookeeper.connect={zookeeper}\n"
            f"log.dirs={self.log_dir}\nlog.segment.bytes={SEGMENT_BYTES}\n"
            "log.index.interval.bytes=500\noffsets.topic.replication.factor=1\n"
            "offsets.topic.num.partitions=1\nzookeeper.session.timeout.ms=2000\n"
            "controlled.shutdown.enable=false\n"
        )
        self._log4j = root / "log4j.properties"
        self._log4j.write_text(
            "log4j.rootLogger=INFO, out\nlog4j.appender.out=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n\n"
        )

    @contextmanager
    def running(self, end: signal.Signals = signal.SIGTERM) -> Iterator[None]:
        # A killed broker is registered until its session ends; Kafka does not start before.
        self._wait_registered(False)
        with self._output.open("ab") as output:
            process = subprocess.Popen(
                [
                    "java",
                    "-Xmx256m",
                    f"-Dlog4j.configuration=file:{self._log4j}",
                    "-cp",
                    os.environ["KAFKA_LIBS"] + "/*",
                    "kafka.Kafka",
                    str(self._settings),
                ],
                stdout=output,
                stderr=output,
            )
            try:
                self._wait_registered(True)
                yield
                process.send_signal(end)
                process.wait(DEADLINE_S)
            finally:
                process.kill()
                process.wait()

    def _wait_registered(self, expected: bool) -> None:
        client = KazooClient(self._zookeeper)
        client.start()
        try:
            for path in ("/brokers/ids/1", "/controller"):
                wait_until(lambda path=path: bool(client.exists(path)) is expected, path)
        finally:
            client.stop()
            client.close()

    @property
    def output(self) -> str:
        return self._output.read_text()

    def create_topic(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        # librdkafka asks for the controller once, and would wait in vain if there is none yet.
        wait_until(lambda: admin.list_topics(timeout=DEADLINE_S).controller_id == 1)
        (created,) = admin.create_topics([NewTopic("orders", 1, 1)]).values()
        created.result(DEADLINE_S)

    def produce(self, values: list[bytes], codec: str) -> None:
        producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "compression.type": codec,
                "linger.ms": 1,
                "batch.num.messages": 20,
            }
        )
        for value in values:
            producer.produce("orders", value, b"key")
        assert producer.flush(DEADLINE_S) == 0

    def consume(self, count: int) -> list[bytes]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "readers"})
        consumer.assign([TopicPartition("orders", 0, 0)])
        values: list[bytes] = []
        deadline = time.monotonic() + DEADLINE_S
        while len(values) < count and time.monotonic() < deadline:
            values += [message.value() for message in consumer.consume(500, timeout=1)]
        consumer.close()
        return values


@contextmanager
def opened(log_dir: Path, end: signal.Signals) -> Iterator[Log]:
    """Our view of the partition in Kafka's directory, ended as a broker of ours would end."""
    meta = read_properties(log_dir / "meta.properties")
    manager = LogManager(
        [log_dir],
        config_of=lambda _: LogConfig(segment_bytes=SEGMENT_BYTES, index_interval_bytes=500),
        on_failure=lambda path: pytest.fail(f"{path} failed"),
    )
    manager.open(MetaProperties(int(meta["broker.id"]), meta["cluster.id"]))
    manager.load(now_ms=int(time.time() * 1000))
    log = manager.get(PARTITION)
    assert log is not None
    yield log
    if end is signal.SIGTERM:
        manager.close()
    else:
        manager.release()


@pytest.mark.rule("LIFE-3", "LOG-15", "LOG-19", "LOG-20", "LOG-21", "LOG-22", "LOG-23", "REC-2")
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_brokers_of_both_kinds_take_turns_on_a_directory(tmp_path, end):
    values: list[bytes] = []

    def more(count: int) -> list[bytes]:
        fresh = [b"%d " % (len(values) + i) + b"x" * 100 for i in range(count)]
        values.extend(fresh)
        return fresh

    with ZooKeeperServer(data_dir=tmp_path / "zookeeper") as zookeeper:
        kafka = Kafka(tmp_path, zookeeper.address)
        with kafka.running(end):
            kafka.create_topic()
            for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
                kafka.produce(more(200), codec)
            assert kafka.consume(len(values)) == values

        with opened(kafka.log_dir, end) as log:
            assert [record.value for record in stored_records(log)] == values
            assert log.topic_id is not None
            assert len(log.segments) > 2
            assert len(log.producers) == 5
            epoch = log.epochs.latest
            for index in range(50):
                now_ms = int(time.time() * 1000)
                records = [Record(b"key", value, now_ms) for value in more(10)]
                batch = build_batch(records, codec=list(Codec)[index % 5])
                log.append_as_leader(batch.data, leader_epoch=epoch, now_ms=now_ms)
            log.advance_high_watermark(log.end_offset)

        with kafka.running(end):
            assert kafka.consume(len(values)) == values
            kafka.produce(more(100), "none")

        expected = "Skipping recovery" if end is signal.SIGTERM else "Recovering 2 logs"
        assert expected in kafka.output
        assert "orrupt" not in kafka.output
        with opened(kafka.log_dir, end) as log:
            assert [record.value for record in stored_records(log)] == values
