"""Transactions beside Apache Kafka 3.9.1: three brokers, replication factor 3, librdkafka.

    make bench BENCH=transactions

Rows: transactions a second of one producer with 1, 100 and 10,000 records each, and of 20
producers; milliseconds from EndTxn to the record at a reader of committed records; records a second
that are consumed, transformed and produced; and how long a coordinator takes to load 100,000 ids.
Kafka is left out where its jars are not there (KAFKA_LIBS). Client, brokers and ZooKeeper share the
cores.
"""

import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.side_by_side.cluster import Cluster, ZooKeeper
from klamm.broker.transactions.records import (
    StoredTransaction,
    TransactionState,
    encode_key,
    encode_value,
)
from klamm.broker.transactions.state_partition import TransactionReplay
from klamm.protocol.records import Record, build_batch, iterate_batches, iterate_records

SECONDS = float(os.environ.get("TRANSACTIONS_SECONDS", "5"))
PARTITIONS = 6
VALUE = b"x" * 100
COPIED = 20_000
IDS = 100_000
CONFIG = {
    "offsets.topic.replication.factor": 3,
    "transaction.state.log.replication.factor": 3,
    "transaction.state.log.num.partitions": 12,
}


@contextlib.contextmanager
def cluster(implementation: str) -> Iterator[str]:
    """The bootstrap servers of three brokers."""
    directory = Path(tempfile.mkdtemp(prefix="klamm-bench-"))
    zookeeper = ZooKeeper(directory / "zookeeper")
    try:
        with Cluster(
            directory / implementation, zookeeper, implementation, (1, 2, 3), CONFIG
        ) as started:
            started.start()
            yield started.bootstrap
    finally:
        zookeeper.stop()
        shutil.rmtree(directory, ignore_errors=True)


def create(bootstrap: str, *topics: str, partitions: int = PARTITIONS) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    made = admin.create_topics([NewTopic(topic, partitions, 3) for topic in topics])
    for each in made.values():
        each.result(30)


def transactional(bootstrap: str, name: str) -> Producer:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "transactional.id": name,
            "linger.ms": 0,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(60)
    return producer


def transact(producer: Producer, topic: str, records: int) -> None:
    producer.begin_transaction()
    for number in range(records):
        producer.produce(topic, VALUE, partition=number % PARTITIONS)
    producer.commit_transaction(60)


def rate(bootstrap: str, name: str, records: int, producers: int = 1) -> float:
    """Transactions a second of some producers, together."""
    topic = f"rate-{name}"
    create(bootstrap, topic)
    ready = [transactional(bootstrap, f"{name}-{number}") for number in range(producers)]
    for producer in ready:
        transact(producer, topic, records)
    end = time.perf_counter() + SECONDS
    counts = [0] * producers

    def work(number: int) -> None:
        while time.perf_counter() < end:
            transact(ready[number], topic, records)
            counts[number] += 1

    began = time.perf_counter()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(producers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.perf_counter() - began)


def visible_ms(bootstrap: str) -> list[float]:
    """From EndTxn to the record at a reader of committed records."""
    create(bootstrap, "visible", partitions=1)
    producer = transactional(bootstrap, "visible")
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "visible",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 100,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition("visible", 0, 0)])
    times = []
    end = time.perf_counter() + SECONDS
    while time.perf_counter() < end:
        producer.begin_transaction()
        producer.produce("visible", VALUE, partition=0)
        producer.flush()
        began = time.perf_counter()
        producer.commit_transaction(60)
        while (message := consumer.poll(10)) is None or message.error():
            pass
        times.append((time.perf_counter() - began) * 1000)
    consumer.close()
    return times[1:]


def copy_rate(bootstrap: str) -> float:
    """Records a second that are consumed, transformed and produced."""
    create(bootstrap, "source", "target")
    plain = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for number in range(COPIED):
        plain.produce("source", VALUE, partition=number % PARTITIONS)
        plain.poll(0)
    plain.flush()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "copiers",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe(["source"])
    producer = transactional(bootstrap, "copier")
    messages = consumer.consume(1, 30)
    began, copied = time.perf_counter(), 0
    while copied < COPIED:
        producer.begin_transaction()
        for message in messages:
            producer.produce("target", message.value(), partition=message.partition())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), 60
        )
        producer.commit_transaction(60)
        copied += len(messages)
        if copied < COPIED:
            messages = consumer.consume(500, 5)
    consumer.close()
    return copied / (time.perf_counter() - began)


def load_s() -> float:
    """Processor time that a coordinator takes to read the batches of many ids from its log."""
    stored = StoredTransaction(1, 0, 60_000, TransactionState.EMPTY, (), 1, -1)
    value = encode_value(stored)
    keys = (encode_key(f"id-{number}") for number in range(IDS))
    log = b"".join(bytes(build_batch([Record(key, value, 1)]).data) for key in keys)
    began = time.process_time()
    replay = TransactionReplay(0)
    for batch in iterate_batches(log):
        replay.read((record.key, record.value) for record in iterate_records(batch))
    replay.finish()
    assert len(replay.transactions) == IDS
    return time.process_time() - began


ROWS: dict[str, Callable[[str], Any]] = {
    "transactions/s, 1 record": lambda b: rate(b, "one", 1),
    "transactions/s, 100 records": lambda b: rate(b, "hundred", 100),
    "transactions/s, 10,000 records": lambda b: rate(b, "many", 10_000),
    "transactions/s, 20 producers, 10 records": lambda b: rate(b, "twenty", 10, producers=20),
    "EndTxn to visible, ms": visible_ms,
    "consume-transform-produce, records/s": copy_rate,
}


def shown(value: Any) -> str:
    if isinstance(value, list):
        p99 = statistics.quantiles(value, n=100)[98]
        return f"p50 {statistics.median(value):.1f}, p99 {p99:.1f}"
    return f"{value:,.1f}"


def kafka_libs() -> str | None:
    found = os.environ.get("KAFKA_LIBS")
    if found is None:
        done = subprocess.run(
            [sys.executable, "tools/fetch_kafka.py"], capture_output=True, text=True, check=False
        )
        found = done.stdout.strip() if done.returncode == 0 else None
    return found or None


def main() -> None:
    libs = kafka_libs()
    implementations = ["klamm", *(["kafka"] if libs else [])]
    os.environ["KAFKA_LIBS"] = libs or ""
    os.environ.setdefault("KAFKA_JVM", "-Xms1g -Xmx1g -XX:+UseG1GC")
    os.environ.setdefault("KLAMM", f"{sys.executable} -m klamm")
    results: dict[str, dict[str, str]] = {}
    for implementation in implementations:
        with cluster(implementation) as bootstrap:
            for name, measure in ROWS.items():
                found = shown(measure(bootstrap))
                results.setdefault(name, {})[implementation] = found
                print(f"{implementation}: {name}: {found}", file=sys.stderr, flush=True)
    print(f"| | {' | '.join(implementations)} |")
    print(f"| --- |{' --- |' * len(implementations)}")
    for name, row in results.items():
        print(f"| {name} | {' | '.join(row.get(each, '-') for each in implementations)} |")
    print(f"| {IDS:,} ids loaded from their log, s of processor time | {load_s():.2f} |")


if __name__ == "__main__":
    main()
