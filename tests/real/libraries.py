"""What only some tests ask of stock clients: members of groups, steady load, administration.

kafka-python and aiokafka behind one face; librdkafka has tests of its own for all of it.
"""

import asyncio
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewPartitions as AioNewPartitions
from aiokafka.admin import NewTopic as AioNewTopic
from aiokafka.admin import RecordsToDelete as AioRecordsToDelete
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from aiokafka.errors import for_code

with warnings.catch_warnings():
    # kafka-python reads its schemas in a way that Python 3.11 would rather not see.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
    from kafka import TopicPartition as KafkaTopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic

PATIENCE_S = 60.0
SESSION_MS = 6_000


class Running(ABC):
    """Something that goes on in a thread until it is stopped."""

    def __init__(self) -> None:
        self.is_stopped = threading.Event()
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, daemon=True)
        self._thread.start()

    @abstractmethod
    def run(self) -> None:
        """What goes on, until `is_stopped`."""

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self.failure = error

    def stop(self) -> None:
        self.is_stopped.set()
        self._thread.join(PATIENCE_S)


class Member(Running):
    """A member of the group that has the topic's name."""

    def __init__(self, bootstrap: str, topic: str, instance: str | None) -> None:
        self.assigned: set[int] = set()
        self.consumed: list[bytes] = []
        self.bootstrap, self.topic, self.instance = bootstrap, topic, instance
        super().__init__()

    def stop(self) -> None:
        super().stop()
        self.assigned = set()


class Load(Running):
    """An idempotent producer that numbers its records and notes which are acknowledged."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: list[int] = []
        self.bootstrap, self.topic = bootstrap, topic
        super().__init__()


class Library(Protocol):
    name: str
    member: type[Member]
    load: type[Load]

    def send_large(self, bootstrap: str, topic: str, size: int) -> str:
        """The name of the error that a record of that size meets."""

    def offsets(self, bootstrap: str, topic: str, timestamp_ms: int) -> tuple[int, int, int]:
        """Of partition 0: where it begins, where it ends, and the first record not older."""

    def administer(self, bootstrap: str) -> "Administrator":
        """A client for administration, to be closed."""


class Administrator(Protocol):
    def close(self) -> None: ...

    def topics(self) -> set[str]: ...

    def create(self, topic: str, partitions: int, factor: int) -> str:
        """The name of the error, empty if there is none."""

    def grow(self, topic: str, partitions: int) -> str: ...

    def delete(self, topic: str) -> str: ...

    def configure(self, topic: str, key: str, value: str) -> None: ...

    def setting(self, topic: str, key: str) -> str: ...

    def delete_records(self, topic: str, offset: int) -> int:
        """Up to where they are gone."""

    def groups(self) -> set[str]: ...

    def committed(self, group: str, topic: str) -> int: ...


# kafka-python


class _KafkaPythonMember(Member):
    def run(self) -> None:
        consumer = KafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap.split(","),
            group_id=self.topic,
            group_instance_id=self.instance,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=300,
            # By default 30 s, for which one of two that join together may stand still in a commit,
            # with Apache Kafka's brokers too.
            request_timeout_ms=SESSION_MS + 1_000,
        )
        try:
            while not self.is_stopped.is_set():
                for messages in consumer.poll(timeout_ms=100).values():
                    self.consumed += [each.value for each in messages]
                self.assigned = {each.partition for each in consumer.assignment()}
        finally:
            consumer.close()


class _KafkaPythonLoad(Load):
    def run(self) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self.bootstrap.split(","),
            acks="all",
            enable_idempotence=True,
            request_timeout_ms=5_000,
            delivery_timeout_ms=60_000,
        )
        number = 0
        try:
            while not self.is_stopped.wait(0.002):
                future = producer.send(self.topic, b"%d" % number, partition=0)
                future.add_callback(lambda _, sent=number: self.acknowledged.append(sent))
                future.add_errback(self._failed)
                number += 1
            producer.flush(PATIENCE_S)
        finally:
            producer.close()

    def _failed(self, error: BaseException) -> None:
        self.failure = error


class _KafkaPythonAdministrator:
    def __init__(self, bootstrap: str) -> None:
        self._client = KafkaAdminClient(bootstrap_servers=bootstrap.split(","))
        self._bootstrap = bootstrap

    def close(self) -> None:
        self._client.close()

    def topics(self) -> set[str]:
        return set(self._client.list_topics())

    def create(self, topic: str, partitions: int, factor: int) -> str:
        new = NewTopic(topic, partitions, factor)
        return _error_of(lambda: self._client.create_topics([new]))

    def grow(self, topic: str, partitions: int) -> str:
        grown = {topic: NewPartitions(partitions)}
        return _error_of(lambda: self._client.create_partitions(grown))

    def delete(self, topic: str) -> str:
        return _error_of(lambda: self._client.delete_topics([topic]))

    def configure(self, topic: str, key: str, value: str) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, configs={key: value})
        self._client.alter_configs([resource])

    def setting(self, topic: str, key: str) -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        found = self._client.describe_configs([resource], config_filter="all")
        return _find_setting(found, key)

    def delete_records(self, topic: str, offset: int) -> int:
        wanted = KafkaTopicPartition(topic, 0)
        response = self._client.delete_records({wanted: offset})[wanted]
        return int(response["low_watermark"])

    def groups(self) -> set[str]:
        return {each["group_id"] for each in self._client.list_groups()}

    def committed(self, group: str, topic: str) -> int:
        found = self._client.list_group_offsets({group: None})[group]
        offset = found.get(KafkaTopicPartition(topic, 0))
        return -1 if offset is None else int(offset.offset)


class _KafkaPython:
    name = "kafka-python"
    member = _KafkaPythonMember
    load = _KafkaPythonLoad
    administer = staticmethod(_KafkaPythonAdministrator)

    def send_large(self, bootstrap: str, topic: str, size: int) -> str:
        producer = KafkaProducer(bootstrap_servers=bootstrap.split(","), max_request_size=10 << 20)
        try:
            return _error_of(lambda: producer.send(topic, b"x" * size).get(PATIENCE_S))
        finally:
            producer.close()

    def offsets(self, bootstrap: str, topic: str, timestamp_ms: int) -> tuple[int, int, int]:
        consumer = KafkaConsumer(bootstrap_servers=bootstrap.split(","))
        try:
            wanted = KafkaTopicPartition(topic, 0)
            found = consumer.offsets_for_times({wanted: timestamp_ms})[wanted]
            begin = consumer.beginning_offsets([wanted])[wanted]
            end = consumer.end_offsets([wanted])[wanted]
            return begin, end, -1 if found is None else found.offset
        finally:
            consumer.close()


def _error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return type(error).__name__
    return ""


# aiokafka


class _AiokafkaMember(Member):
    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        consumer = AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.topic,
            group_instance_id=self.instance,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=300,
        )
        await consumer.start()
        try:
            while not self.is_stopped.is_set():
                for messages in (await consumer.getmany(timeout_ms=100)).values():
                    self.consumed += [each.value for each in messages]
                self.assigned = {each.partition for each in consumer.assignment()}
        finally:
            await consumer.stop()


class _AiokafkaLoad(Load):
    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self.bootstrap,
            acks="all",
            enable_idempotence=True,
            request_timeout_ms=30_000,
        )
        await producer.start()
        number = 0
        waiting: set[Any] = set()
        try:
            while not self.is_stopped.is_set():
                future = await producer.send(self.topic, b"%d" % number, partition=0)
                waiting.add(future)
                future.add_done_callback(lambda done, sent=number: self._done(done, sent))
                future.add_done_callback(waiting.discard)
                number += 1
                await asyncio.sleep(0.002)
            await asyncio.wait_for(producer.flush(), PATIENCE_S)
        finally:
            await producer.stop()

    def _done(self, future: Any, sent: int) -> None:
        if future.exception() is None:
            self.acknowledged.append(sent)
        else:
            self.failure = future.exception()


class _AiokafkaAdministrator:
    def __init__(self, bootstrap: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._client: Any = self._run(self._start(bootstrap))

    @staticmethod
    async def _start(bootstrap: str) -> Any:
        client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await client.start()
        return client

    def _run(self, work: Awaitable[Any]) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(work, PATIENCE_S))

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.close()

    def topics(self) -> set[str]:
        return set(self._run(self._client.list_topics()))

    def create(self, topic: str, partitions: int, factor: int) -> str:
        response = self._run(self._client.create_topics([AioNewTopic(topic, partitions, factor)]))
        return _code_name(response.topic_errors[0][1])

    def grow(self, topic: str, partitions: int) -> str:
        grown = {topic: AioNewPartitions(partitions)}
        return _error_of(lambda: self._run(self._client.create_partitions(grown)))

    def delete(self, topic: str) -> str:
        response = self._run(self._client.delete_topics([topic]))
        return _code_name(response.topic_error_codes[0][1])

    def configure(self, topic: str, key: str, value: str) -> None:
        resource = AioConfigResource(AioConfigResourceType.TOPIC, topic, configs={key: value})
        self._run(self._client.alter_configs([resource]))

    def setting(self, topic: str, key: str) -> str:
        resource = AioConfigResource(AioConfigResourceType.TOPIC, topic)
        (response,) = self._run(self._client.describe_configs([resource]))
        (described,) = response.resources
        return next(str(each[1]) for each in described[4] if each[0] == key)

    def delete_records(self, topic: str, offset: int) -> int:
        wanted = AioTopicPartition(topic, 0)
        deleted = self._run(self._client.delete_records({wanted: AioRecordsToDelete(offset)}))
        return int(deleted[wanted])

    def groups(self) -> set[str]:
        return {each[0] for each in self._run(self._client.list_consumer_groups())}

    def committed(self, group: str, topic: str) -> int:
        found = self._run(self._client.list_consumer_group_offsets(group))
        offset = found.get(AioTopicPartition(topic, 0))
        return -1 if offset is None else int(offset.offset)


class _Aiokafka:
    name = "aiokafka"
    member = _AiokafkaMember
    load = _AiokafkaLoad
    administer = staticmethod(_AiokafkaAdministrator)

    def send_large(self, bootstrap: str, topic: str, size: int) -> str:
        async def run() -> str:
            producer = AIOKafkaProducer(bootstrap_servers=bootstrap, max_request_size=10 << 20)
            await producer.start()
            try:
                await producer.send_and_wait(topic, b"x" * size)
            except Exception as error:
                return type(error).__name__
            finally:
                await producer.stop()
            return ""

        return asyncio.run(run())

    def offsets(self, bootstrap: str, topic: str, timestamp_ms: int) -> tuple[int, int, int]:
        async def run() -> tuple[int, int, int]:
            consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
            await consumer.start()
            try:
                wanted = AioTopicPartition(topic, 0)
                found = (await consumer.offsets_for_times({wanted: timestamp_ms}))[wanted]
                begin = (await consumer.beginning_offsets([wanted]))[wanted]
                end = (await consumer.end_offsets([wanted]))[wanted]
                return begin, end, -1 if found is None else found.offset
            finally:
                await consumer.stop()

        return asyncio.run(run())


def _code_name(code: int) -> str:
    return "" if code == 0 else for_code(code).__name__


def _find_setting(described: Any, key: str) -> str:
    """The value of `key`, in whatever way the library nests it."""
    if isinstance(described, dict):
        found = described.get(key)
        if found is not None:
            return str(found.get("value") if isinstance(found, dict) else found)
        return next(filter(None, (_find_setting(each, key) for each in described.values())), "")
    return ""


LIBRARIES: list[Library] = [_KafkaPython(), _Aiokafka()]
