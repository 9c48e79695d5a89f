"""Stock clients behind one face, so that a test can be run with each of them."""

import asyncio
import time
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import confluent_kafka
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition

with warnings.catch_warnings():
    # kafka-python reads its schemas in a way that Python 3.11 would rather not see.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer
    from kafka import TopicPartition as KafkaTopicPartition

PATIENCE_S = 30.0
#: Records that are older than a week do not live long.
NOW_MS = int(time.time() * 1000)


class Record(NamedTuple):
    """What a producer sends and a consumer gets."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = NOW_MS


class Client(Protocol):
    """A library."""

    name: str
    #: What it can compress with as it is installed here.
    codecs: tuple[str, ...]

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Record],
        *,
        acks: str = "all",
        compression: str = "none",
        idempotent: bool = False,
    ) -> None:
        """Send to partition 0, and see all of it acknowledged."""

    def read(self, bootstrap: str, topic: str, count: int, *, offset: int = 0) -> list[Record]:
        """Read `count` records of partition 0."""

    def read_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Record]:
        """Read `count` records as the only member of a group, commit, and leave."""


class Librdkafka:
    """confluent-kafka."""

    name = "librdkafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Record],
        *,
        acks: str = "all",
        compression: str = "none",
        idempotent: bool = False,
    ) -> None:
        failures: list[Any] = []
        producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": acks,
                "compression.type": compression,
                "enable.idempotence": idempotent,
                "log_level": 0,
            }
        )
        for each in records:
            producer.produce(
                topic,
                each.value,
                each.key,
                partition=0,
                timestamp=each.timestamp_ms,
                headers=list(each.headers),
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(PATIENCE_S) == 0
        assert not failures, failures[0]

    def read(self, bootstrap: str, topic: str, count: int, *, offset: int = 0) -> list[Record]:
        consumer = self._consumer(bootstrap, "nobody")
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, offset)])
        return self._take(consumer, count)

    def read_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Record]:
        consumer = self._consumer(bootstrap, group)
        consumer.subscribe([topic])
        return self._take(consumer, count, commits=True)

    @staticmethod
    def _consumer(bootstrap: str, group: str) -> Any:
        return confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )

    @staticmethod
    def _take(consumer: Any, count: int, *, commits: bool = False) -> list[Record]:
        found: list[Record] = []
        deadline = time.monotonic() + PATIENCE_S
        try:
            while len(found) < count and time.monotonic() < deadline:
                message = consumer.poll(1)
                if message is not None and message.error() is None:
                    found.append(
                        Record(
                            message.key(),
                            message.value(),
                            tuple(message.headers() or ()),
                            message.timestamp()[1],
                        )
                    )
            if commits:
                consumer.commit(asynchronous=False)
        finally:
            consumer.close()
        return found


class KafkaPython:
    """kafka-python."""

    name = "kafka-python"
    codecs = ("none", "gzip")

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Record],
        *,
        acks: str = "all",
        compression: str = "none",
        idempotent: bool = False,
    ) -> None:
        producer = KafkaProducer(
            bootstrap_servers=bootstrap.split(","),
            acks=acks if acks == "all" else int(acks),
            compression_type=None if compression == "none" else compression,
            enable_idempotence=idempotent,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    each.value,
                    each.key,
                    list(each.headers),
                    partition=0,
                    timestamp_ms=each.timestamp_ms,
                )
                for each in records
            ]
            for future in futures:
                future.get(PATIENCE_S)
        finally:
            producer.close()

    def read(self, bootstrap: str, topic: str, count: int, *, offset: int = 0) -> list[Record]:
        consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","))
        partition = KafkaTopicPartition(topic, 0)
        consumer.assign([partition])
        consumer.seek(partition, offset)
        return self._take(consumer, count)

    def read_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Record]:
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap.split(","),
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        return self._take(consumer, count, commits=True)

    @staticmethod
    def _take(consumer: Any, count: int, *, commits: bool = False) -> list[Record]:
        found: list[Record] = []
        deadline = time.monotonic() + PATIENCE_S
        try:
            while len(found) < count and time.monotonic() < deadline:
                for messages in consumer.poll(timeout_ms=1000).values():
                    found += [
                        Record(each.key, each.value, tuple(each.headers), each.timestamp)
                        for each in messages
                    ]
            if commits:
                consumer.commit()
        finally:
            consumer.close()
        return found[:count]


class Aiokafka:
    """aiokafka."""

    name = "aiokafka"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")

    def produce(
        self,
        bootstrap: str,
        topic: str,
        records: Sequence[Record],
        *,
        acks: str = "all",
        compression: str = "none",
        idempotent: bool = False,
    ) -> None:
        async def run() -> None:
            producer = AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                acks=acks if acks == "all" else int(acks),
                compression_type=None if compression == "none" else compression,
                enable_idempotence=idempotent,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic,
                        each.value,
                        each.key,
                        partition=0,
                        timestamp_ms=each.timestamp_ms,
                        headers=list(each.headers),
                    )
                    for each in records
                ]
                await asyncio.wait_for(asyncio.gather(*futures), PATIENCE_S)
            finally:
                await producer.stop()

        asyncio.run(run())

    def read(self, bootstrap: str, topic: str, count: int, *, offset: int = 0) -> list[Record]:
        async def run() -> list[Record]:
            consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
            await consumer.start()
            partition = AioTopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            return await self._take(consumer, count)

        return asyncio.run(run())

    def read_group(self, bootstrap: str, topic: str, group: str, count: int) -> list[Record]:
        async def run() -> list[Record]:
            consumer = AIOKafkaConsumer(
                topic,
                bootstrap_servers=bootstrap,
                group_id=group,
                auto_offset_reset="earliest",
                enable_auto_commit=False,
            )
            await consumer.start()
            return await self._take(consumer, count, commits=True)

        return asyncio.run(run())

    @staticmethod
    async def _take(consumer: Any, count: int, *, commits: bool = False) -> list[Record]:
        found: list[Record] = []
        deadline = time.monotonic() + PATIENCE_S
        try:
            while len(found) < count and time.monotonic() < deadline:
                for messages in (await consumer.getmany(timeout_ms=1000)).values():
                    found += [
                        Record(each.key, each.value, tuple(each.headers), each.timestamp)
                        for each in messages
                    ]
            if commits:
                await consumer.commit()
        finally:
            await consumer.stop()
        return found[:count]


CLIENTS: list[Client] = [Librdkafka(), KafkaPython(), Aiokafka()]
