"""Stock clients: confluent-kafka, as an application would use it."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.mixed_cluster import PATIENCE_S
from tests.support.waiting import wait_until

Position = tuple[int, int]


def settings(bootstrap: str, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        # Brokers come and go in these tests; nobody should wait for a minute to hear of it.
        "reconnect.backoff.max.ms": 1000,
        "topic.metadata.refresh.interval.ms": 2000,
        "log_level": 2,
    } | {key.replace("_", "."): value for key, value in more.items()}


def administer(
    bootstrap: str, call: Callable[[AdminClient], dict[Any, Future[Any]]]
) -> dict[Any, Any]:
    """The results of an admin call; the first failure is raised."""
    # The futures come to nothing once the client is gone.
    client = AdminClient(settings(bootstrap))
    return {key: future.result(PATIENCE_S) for key, future in call(client).items()}


def create(bootstrap: str, name: str, assignment: list[list[int]], **config: str) -> None:
    """Create a topic with the given replicas, and wait until the cluster knows its leaders."""
    topic = NewTopic(
        name,
        num_partitions=len(assignment),
        replica_assignment=assignment,
        config={key.replace("_", "."): value for key, value in config.items()},
    )
    administer(bootstrap, lambda admin: admin.create_topics([topic]))
    wait_for_leaders(bootstrap, name, len(assignment))


def wait_for_leaders(bootstrap: str, name: str, partitions: int) -> None:
    """Wait until each broker knows the leaders of all partitions, whichever a client asks first."""
    for address in bootstrap.split(","):
        client = AdminClient(settings(address))

        def has_leaders(client: AdminClient = client) -> bool:
            known = client.list_topics(name, PATIENCE_S).topics[name].partitions
            return sum(each.leader >= 0 for each in known.values()) == partitions

        wait_until(has_leaders, f"the leaders of {name} at {address}", PATIENCE_S)


def produce(
    bootstrap: str,
    topic: str,
    values: list[bytes],
    partition: int | None = None,
    keys: list[bytes] | None = None,
    **more: Any,
) -> list[Position]:
    """Produce with acks=all and say where each record went."""
    placed: dict[int, Position] = {}
    failed: list[KafkaError] = []
    producer = Producer(settings(bootstrap, acks="all", message_timeout_ms=120_000, **more))
    for number, value in enumerate(values):

        def delivered(error: KafkaError | None, message: Message, number: int = number) -> None:
            if error is not None:
                failed.append(error)
            else:
                placed[number] = (message.partition(), message.offset())

        where = {} if partition is None else {"partition": partition}
        key = None if keys is None else keys[number]
        producer.produce(topic, value, key, on_delivery=delivered, **where)
    assert producer.flush(PATIENCE_S) == 0, "not everything was delivered"
    assert not failed, failed
    return [placed[number] for number in range(len(values))]


def consume(bootstrap: str, topic: str, group: str, count: int, **more: Any) -> list[bytes]:
    """Read `count` records as a member of a group, and commit."""
    consumer = Consumer(
        settings(bootstrap, group_id=group, auto_offset_reset="earliest", **more)
        | {"enable.auto.commit": False}
    )
    try:
        consumer.subscribe([topic])
        values: list[bytes] = []

        def enough() -> bool:
            values.extend(m.value() for m in consumer.consume(1000, 1.0) if m.error() is None)
            return len(values) >= count

        wait_until(enough, f"{count} records of {topic}", PATIENCE_S)
        consumer.commit(asynchronous=False)
        return values
    finally:
        consumer.close()


def committed(bootstrap: str, group: str, position: TopicPartition) -> int:
    """The offset up to which a group has read a partition."""
    consumer = Consumer(settings(bootstrap, group_id=group))
    try:
        (found,) = consumer.committed([position], PATIENCE_S)
        return int(found.offset)
    finally:
        consumer.close()


def transact(bootstrap: str, topic: str, values: list[bytes], *, commit: bool) -> None:
    """Write in one transaction, and end it one way or the other."""
    producer = Producer(settings(bootstrap, transactional_id=f"writer-of-{topic}"))
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(PATIENCE_S) == 0
    if commit:
        producer.commit_transaction(PATIENCE_S)
    else:
        producer.abort_transaction(PATIENCE_S)


@dataclass
class Traffic:
    """A producer that never stops, and a group that reads what it wrote."""

    acknowledged: list[bytes] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    read: list[tuple[int, int, bytes]] = field(default_factory=list)

    def check(self) -> None:
        """Every acknowledged record arrived once, and each partition's in order."""
        assert not self.failures, self.failures[:5]
        values = [value for _, _, value in self.read]
        assert len(set(values)) == len(values), "something was read twice"
        missing = set(self.acknowledged) - set(values)
        assert not missing, f"{len(missing)} acknowledged records are lost"
        by_partition: dict[int, list[tuple[int, int]]] = {}
        for partition, offset, value in self.read:
            by_partition.setdefault(partition, []).append((offset, int(value)))
        for partition, records in by_partition.items():
            assert records == sorted(records), f"partition {partition} is out of order"
            numbers = [number for _, number in records]
            assert numbers == sorted(numbers), f"partition {partition} was reordered"


@contextmanager
def traffic(bootstrap: str, topic: str, rate: int = 200) -> Iterator[Traffic]:
    """Clients at work while the block runs; when it ends, everything written has been read."""
    seen = Traffic()
    stop = threading.Event()
    writer = threading.Thread(target=_write, args=(bootstrap, topic, rate, seen, stop))
    drained = threading.Event()
    reader = threading.Thread(target=_read, args=(bootstrap, topic, seen, drained))
    writer.start()
    reader.start()
    try:
        yield seen
    finally:
        stop.set()
        writer.join()
        try:
            wait_until(
                lambda: len(seen.read) >= len(seen.acknowledged),
                "the group to read everything",
                PATIENCE_S,
            )
        finally:
            drained.set()
            reader.join()


def progress(seen: Traffic, records: int = 100) -> None:
    """Wait until `count` more records were written and read."""
    written, read = len(seen.acknowledged), len(seen.read)
    wait_until(lambda: len(seen.acknowledged) >= written + records, "progress", PATIENCE_S)
    wait_until(lambda: len(seen.read) >= read + records, "progress of the reader", PATIENCE_S)


def _write(bootstrap: str, topic: str, rate: int, seen: Traffic, stop: threading.Event) -> None:
    producer = Producer(
        settings(bootstrap, acks="all", enable_idempotence=True, message_timeout_ms=120_000)
    )

    def delivered(value: bytes) -> Callable[[KafkaError | None, Message], None]:
        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                seen.acknowledged.append(value)
            else:
                seen.failures.append(str(error))

        return report

    number = 0
    while not stop.wait(1 / rate):
        value = b"%d" % number
        producer.produce(topic, value, on_delivery=delivered(value))
        producer.poll(0)
        number += 1
    if producer.flush(PATIENCE_S):
        seen.failures.append("records were never delivered")


def _read(bootstrap: str, topic: str, seen: Traffic, drained: threading.Event) -> None:
    consumer = Consumer(
        settings(
            bootstrap,
            group_id=f"readers-of-{topic}",
            auto_offset_reset="earliest",
            session_timeout_ms=30_000,
        )
    )
    consumer.subscribe([topic])
    while not drained.is_set():
        for message in consumer.consume(500, 0.5):
            if message.error() is None:
                seen.read.append((message.partition(), message.offset(), message.value()))
    consumer.close()
