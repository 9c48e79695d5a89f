"""Stock clients that number what they write, and note everything that they are told."""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from klamm.protocol.records import iterate_batches
from tests.chaos.recording import GroupOffset, Kept, Name, Read, Recorder, Stall, Write
from tests.chaos.world import LEDGER, WANDERER
from tests.support.raw import Raw

_FLUSH_S: Final = 120.0
_COMMIT_EVERY_S: Final = 0.5
_LOOK_EVERY_S: Final = 0.7
_CALL_S: Final = 5.0
#: How many records of a partition a producer may have under way, so that one that is stuck does not
#: keep it from writing to the others.
_UNDER_WAY_MAX: Final = 100
_READ_S: Final = 120.0


def settings(bootstrap: str, **more: Any) -> dict[str, Any]:
    """What all clients have in common: they hear soon of a cluster that changes."""
    return {
        "bootstrap.servers": bootstrap,
        "reconnect.backoff.max.ms": 1000,
        "topic.metadata.refresh.interval.ms": 2000,
        # A broker that is paused or parted does not say so.
        "socket.timeout.ms": 6000,
        "log_level": 0,
    } | {key.replace("_", "."): value for key, value in more.items()}


class Writer:
    """A producer with acks=all in a thread of its own, writing to all partitions in turn."""

    def __init__(
        self,
        name: str,
        bootstrap: str,
        partitions: Sequence[Name],
        recorder: Recorder,
        *,
        is_idempotent: bool,
        rate: float,
    ) -> None:
        self._name = name
        self._partitions = partitions
        self._recorder = recorder
        self._is_idempotent = is_idempotent
        self._pause_s = 1 / rate
        self._under_way: Counter[Name] = Counter()
        self._producer = Producer(
            settings(
                bootstrap,
                acks="all",
                enable_idempotence=is_idempotent,
                # Without idempotence, order takes waiting for each response.
                max_in_flight=5 if is_idempotent else 1,
                linger_ms=5,
                request_timeout_ms=5000,
                message_timeout_ms=300_000,
            )
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def stop(self) -> int:
        """Stop, wait for what is under way, and say how many records were not answered for."""
        self._stopping.set()
        self._thread.join()
        left: int = self._producer.flush(_FLUSH_S)
        return left

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(self._pause_s):
            name = self._partitions[number % len(self._partitions)]
            if self._under_way[name] < _UNDER_WAY_MAX:
                self._send(name, number)
            number += 1
            self._producer.poll(0)

    def _send(self, name: Name, number: int) -> None:
        sent_at = time.time()
        self._under_way[name] += 1

        def delivered(error: KafkaError | None, message: Message) -> None:
            self._under_way[name] -= 1
            offset = message.offset()
            self._recorder.add(
                Write(
                    self._name,
                    number,
                    *name,
                    sent_at,
                    time.time(),
                    offset if error is None and offset is not None and offset >= 0 else None,
                    None if error is None else error.str(),
                    self._is_idempotent,
                )
            )

        self._producer.produce(
            name[0], _value(self._name, number), partition=name[1], on_delivery=delivered
        )


class Member:
    """A consumer in a group, in a thread of its own, which commits what it has read."""

    def __init__(
        self, group: str, name: str, bootstrap: str, recorder: Recorder, strategy: str
    ) -> None:
        self._group = group
        self._name = name
        self._recorder = recorder
        self._assignments: Counter[Name] = Counter()
        self._read_up_to: dict[Name, int] = {}
        self._consumer = Consumer(
            settings(
                bootstrap,
                group_id=group,
                client_id=name,
                enable_auto_commit=False,
                auto_offset_reset="earliest",
                session_timeout_ms=6000,
                heartbeat_interval_ms=1000,
                partition_assignment_strategy=strategy,
                fetch_wait_max_ms=200,
            )
        )
        self._is_cooperative = strategy.startswith("cooperative")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name)
        self._thread.start()

    def stop(self) -> None:
        """Commit, leave the group, and end."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        self._consumer.subscribe(
            [LEDGER, WANDERER],
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._lost,
        )
        commit_at = time.monotonic()
        try:
            while not self._stopping.is_set():
                for message in self._consumer.consume(200, timeout=0.2):
                    self._got(message)
                if time.monotonic() > commit_at:
                    self._commit()
                    commit_at = time.monotonic() + _COMMIT_EVERY_S
        finally:
            self._commit()
            self._consumer.close()

    def _got(self, message: Message) -> None:
        if message.error() is not None:
            return
        name, offset = _place(message)
        producer, number = _parsed(message)
        self._recorder.add(
            Read(
                self._group,
                self._name,
                self._assignments[name],
                *name,
                offset,
                producer,
                number,
                time.time(),
            )
        )
        self._read_up_to[name] = offset + 1

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._assignments[each.topic, each.partition] += 1

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._commit()
        self._lost(consumer, partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            self._read_up_to.pop((each.topic, each.partition), None)

    def _commit(self) -> None:
        if not self._read_up_to:
            return
        asked = [TopicPartition(*name, offset) for name, offset in self._read_up_to.items()]
        began_at = time.time()
        try:
            answered = self._consumer.commit(offsets=asked, asynchronous=False)
        except KafkaException:
            return  # tried again with the next one
        done_at = time.time()
        for each in answered or ():
            if each.error is None:
                self._recorder.add(
                    GroupOffset(
                        self._group,
                        self._name,
                        each.topic,
                        each.partition,
                        each.offset,
                        began_at,
                        done_at,
                    )
                )


class OffsetWatch:
    """Looks at the committed offsets of groups all the time, without being a member of any.

    Consumers do that, since librdkafka's admin client dies of a coordinator that has moved
    (2.16: `rd_kafka_handle_OffsetFetch` takes it for granted that its client has a group).
    """

    def __init__(
        self, groups: Sequence[str], bootstrap: str, partitions: Sequence[Name], recorder: Recorder
    ) -> None:
        self._partitions = partitions
        self._recorder = recorder
        self._consumers = {group: Consumer(settings(bootstrap, group_id=group)) for group in groups}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offset watch")
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(_LOOK_EVERY_S):
            for group, consumer in self._consumers.items():
                self._look(group, consumer)
        for consumer in self._consumers.values():
            consumer.close()

    def _look(self, group: str, consumer: Consumer) -> None:
        asked = [TopicPartition(*name) for name in self._partitions]
        began_at = time.time()
        try:
            answered = consumer.committed(asked, timeout=_CALL_S)
        except KafkaException:
            return
        done_at = time.time()
        for each in answered:
            if each.error is None and each.offset >= 0:
                self._recorder.add(
                    GroupOffset(
                        group, None, each.topic, each.partition, each.offset, began_at, done_at
                    )
                )


class StallWatch:
    """Notices when this process does not get to run, because the machine has too much to do."""

    EVERY_S: Final = 0.2
    LATE_S: Final = 1.0

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stall watch")
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        before = time.time()
        while not self._stopping.wait(self.EVERY_S):
            now = time.time()
            if now - before > self.EVERY_S + self.LATE_S:
                self._recorder.add(Stall(before, now))
            before = now


def read_everything(bootstrap: str, ports: Mapping[Name, int]) -> list[Kept]:
    """All records of partitions, whose leaders have these ports."""
    written_as = {
        (name, offset): producer
        for name, port in ports.items()
        for offset, producer in _read_producers(port, *name)
    }
    consumer = Consumer(
        settings(bootstrap, group_id="chaos-reader", enable_auto_commit=False)
        | {"enable.partition.eof": True}
    )
    kept: list[Kept] = []
    try:
        consumer.assign([TopicPartition(*name, 0) for name in ports])
        left = set(ports)
        deadline = time.monotonic() + _READ_S
        while left:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{sorted(left)} cannot be read to the end")
            for message in consumer.consume(1000, timeout=0.2):
                error = message.error()
                name, offset = _place(message)
                if error is None:
                    epoch = message.leader_epoch()
                    producer = written_as.get((name, offset))
                    kept.append(Kept(*name, offset, epoch, *_parsed(message), producer))
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard(name)
    finally:
        consumer.close()
    return kept


def _read_producers(port: int, topic: str, partition: int) -> Iterator[tuple[int, tuple[int, int]]]:
    """Offsets with the producer id and epoch of their batch, of which consumers tell nothing."""
    with Raw(port) as leader:
        topic_id = leader.topic_id(topic)
        offset = 0
        while True:
            response = leader.fetch(topic_id, offset, partition=partition)
            headers = [
                batch.header
                for batch in iterate_batches(
                    memoryview(response.topics[0].partitions[0].records or b""), may_end_early=True
                )
            ]
            if not headers:
                return
            for header in headers:
                if header.producer_id >= 0:
                    producer = header.producer_id, header.producer_epoch
                    yield from (
                        (each, producer)
                        for each in range(header.base_offset, header.last_offset + 1)
                    )
            offset = headers[-1].last_offset + 1


def _place(message: Message) -> tuple[Name, int]:
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None
    assert partition is not None
    assert offset is not None
    return (topic, partition), offset


def _value(producer: str, number: int) -> bytes:
    return f"{producer}:{number}".encode()


def _parsed(message: Message) -> tuple[str, int]:
    value = message.value()
    assert value is not None
    producer, _, number = value.decode().partition(":")
    return producer, int(number)
