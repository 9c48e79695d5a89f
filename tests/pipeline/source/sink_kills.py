"""Copy a topic in transactions while drivers, executors and tasks are killed, speculation on.

    KAFKA_LIBS=... python -m tests.pipeline.source.sink_kills --records 200000 --kills 200 --seed 7

The brokers are Apache Kafka's. In the end a read_committed reader must have every row once.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from klamm.zookeeper.server import ZooKeeperServer
from tests.interop.clients import create
from tests.pipeline.ingest.kills import Driver, run_kills
from tests.support.mixed_cluster import Kind, MixedCluster

PARTITIONS = 4
SOURCE, TARGET = "numbers", "copies"


def fill(bootstrap: str, count: int) -> None:
    """Numbers, as values."""
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 20})
    for number in range(count):
        while True:
            try:
                producer.produce(SOURCE, b"%d" % number, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(300) == 0


class CommittedReader:
    """Counts what a read_committed reader gets, from where it was."""

    def __init__(self, bootstrap: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign([TopicPartition(TARGET, number, 0) for number in range(PARTITIONS)])
        self.rows = 0
        self.numbers: set[int] = set()

    def count(self) -> int:
        """Read what is there now; how many rows there were so far."""
        while messages := self._consumer.consume(5000, 1.0):
            for message in messages:
                if message.error() is None:
                    self.rows += 1
                    self.numbers.add(int(message.value()))
        return self.rows

    def close(self) -> None:
        self._consumer.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--master", default="local-cluster[2,1,1024]")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    libs = Path(os.environ["KAFKA_LIBS"])
    with tempfile.TemporaryDirectory() as name, ZooKeeperServer() as zookeeper:
        folder = Path(name)
        with MixedCluster(
            zookeeper.address,
            folder / "kafka",
            libs,
            transaction_state_log_replication_factor=1,
            transaction_state_log_min_isr=1,
            offsets_topic_replication_factor=1,
        ) as cluster:
            cluster.add(Kind.KAFKA, 1)
            for topic in (SOURCE, TARGET):
                create(cluster.bootstrap, topic, [[1]] * PARTITIONS)
            fill(cluster.bootstrap, given.records)
            command = [sys.executable, "-m", "tests.pipeline.source.sink_query", cluster.bootstrap]
            command += [SOURCE, TARGET, str(folder / "checkpoint"), given.master]
            # A batch for each kill, so that most kills hit a query at work.
            command.append(str(max(given.records // max(given.kills, 1), PARTITIONS)))
            driver = Driver(command, folder / "driver.log")
            reader = CommittedReader(cluster.bootstrap)
            try:
                chance = random.Random(given.seed)
                kills = run_kills(driver, given.kills, chance, reader.count, given.records)
            except BaseException:
                print((folder / "driver.log").read_text()[-5000:], file=sys.stderr)
                raise
            finally:
                driver.kill_all()
            rows, distinct = reader.count(), len(reader.numbers)
            reader.close()
    assert rows == distinct == given.records, (rows, distinct, given.records)
    print(json.dumps({"kills": kills, "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
