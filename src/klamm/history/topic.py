"""The history as a topic: writing it, shipping the spool to it, and reading it.

A message is a batch of the spool, schema included, as an Arrow stream; its key is the controller
epoch and the sequence of the first event in it.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from klamm.config.broker import BrokerConfig
from klamm.config.client_properties import PLAINTEXT, ClientSecurity
from klamm.errors import KlammError, UnavailableError
from klamm.history.shipping import Shipper, SpoolFormat, TooLargeError
from klamm.history.spool import RecordSpool
from klamm.names import ACKS_ALL
from klamm.net.connection import ClientConnection
from klamm.net.librdkafka import librdkafka_settings
from klamm.net.secure import SecureClient
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.protocol.records import Record, build_batch

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger("klamm.history.topic")

#: Versions that Kafka has known since 2.4 and knows in 3.9.
_METADATA_VERSION: Final = 9
_CREATE_TOPICS_VERSION: Final = 5
_PRODUCE_VERSION: Final = 8
_REPLICATION_MAX: Final = 3
_LEADER_PAUSES_S: Final = (0.05, 0.1, 0.2, 0.4)
_REQUEST_TIMEOUT_MS: Final = 30_000
_RESPONSE_TIMEOUT_S: Final = 35.0
_CONNECT_TIMEOUT_S: Final = 10.0
#: How long a reader waits for the next message of a topic that is known to have one.
_READ_TIMEOUT_S: Final = 30.0


class HistoryTopicWriter:
    """Sends messages to partition 0 of a topic, one at a time, and creates the topic if need be."""

    def __init__(
        self, host: str, port: int, topic: str, client_id: str, security: ClientSecurity = PLAINTEXT
    ) -> None:
        secure = SecureClient(security)
        self._bootstrap = (host, port)
        self._topic = topic
        self._asking = ClientConnection(
            client_id, _RESPONSE_TIMEOUT_S, _CONNECT_TIMEOUT_S, secure=secure
        )
        self._producing = ClientConnection(
            client_id, _RESPONSE_TIMEOUT_S, _CONNECT_TIMEOUT_S, secure=secure
        )
        self._leader: tuple[str, int] | None = None

    async def send(self, value: bytes, key: bytes) -> None:
        """Returns when all in-sync replicas have the message.

        Raises `UnavailableError` if that did not come about; sending it again may help.
        """
        if self._leader is None:
            self._leader = await self._find_leader()
        batch = build_batch([Record(key, value, time.time_ns() // 1_000_000)])
        request = {
            "acks": ACKS_ALL,
            "timeout": _REQUEST_TIMEOUT_MS,
            "topic_data": [
                {
                    "name": self._topic,
                    "partition_data": [{"index": 0, "records": bytes(batch.data)}],
                }
            ],
        }
        try:
            response = await self._producing.send(
                *self._leader, ApiKey.PRODUCE, _PRODUCE_VERSION, request
            )
        except UnavailableError:
            self._leader = None
            raise
        code = ErrorCode.of(response.responses[0].partition_responses[0].error_code)
        if code in (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE):
            raise TooLargeError(f"{len(value)} bytes: {code.message}")
        if code != ErrorCode.NONE:
            self._leader = None
            raise UnavailableError(f"{self._topic}-0 was not written to: {code.name}")

    def close(self) -> None:
        """Close the connections."""
        self._asking.close()
        self._producing.close()

    async def _find_leader(self) -> tuple[str, int]:
        request = {
            "topics": [{"name": self._topic}],
            "allow_auto_topic_creation": False,
            "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False,
        }
        code = ErrorCode.NONE
        # A topic that was just created has no leader yet, or is not known everywhere.
        for pause_s in (*_LEADER_PAUSES_S, 0.0):
            response = await self._asking.send(
                *self._bootstrap, ApiKey.METADATA, _METADATA_VERSION, request
            )
            nodes = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
            topic = response.topics[0]
            code = ErrorCode.of(topic.error_code)
            leader = next((p.leader_id for p in topic.partitions if p.partition_index == 0), None)
            if leader in nodes:
                return nodes[leader]
            if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and response.controller_id in nodes:
                await self._create(nodes[response.controller_id], len(nodes))
            await asyncio.sleep(pause_s)
        raise UnavailableError(f"{self._topic}-0 has no leader ({code.name})")

    async def _create(self, controller: tuple[str, int], brokers: int) -> None:
        """Create the topic with up to three replicas: not every node may hold any."""
        for factor in range(min(brokers, _REPLICATION_MAX), 0, -1):
            request = {
                "topics": [
                    {"name": self._topic, "num_partitions": 1, "replication_factor": factor}
                ],
                "timeout": _REQUEST_TIMEOUT_MS,
            }
            response = await self._asking.send(
                *controller, ApiKey.CREATE_TOPICS, _CREATE_TOPICS_VERSION, request
            )
            code = ErrorCode.of(response.topics[0].error_code)
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                return
            if code != ErrorCode.INVALID_REPLICATION_FACTOR:
                raise UnavailableError(f"{self._topic} was not created: {code.name}")
        raise UnavailableError(f"{self._topic} was not created: no broker holds replicas")


class TopicShipping:
    """The task that ships a spool of this node; it begins with the first record."""

    def __init__(
        self,
        config: BrokerConfig,
        topic: str,
        spool: RecordSpool[Any],
        format: SpoolFormat | None = None,
    ) -> None:
        # The node's own broker, as other brokers reach it: it knows the leader of the topic.
        own = next(
            endpoint
            for endpoint in config.advertised_listeners
            if endpoint.name == config.inter_broker_listener_name
        )
        client_id = f"klamm-history-{config.broker_id}"
        security = config.channel_security(config.inter_broker_listener_name)
        self._writer = HistoryTopicWriter(
            own.host or "localhost", own.port, topic, client_id, security
        )
        self._shipper = Shipper(spool.directory, topic, self._writer.send, format)
        self._spool = spool
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Begin, unless that has been done."""
        if self._task is None:
            loop = asyncio.get_running_loop()

            def on_written() -> None:
                with contextlib.suppress(RuntimeError):  # the loop may be closed already
                    loop.call_soon_threadsafe(self._shipper.notify)

            self._spool.on_written = on_written
            self._task = loop.create_task(self._shipper.run(), name="history shipping")

    async def close(self) -> None:
        """Stop shipping; the position stays where it is."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._writer.close()


class NoHistoryTopicError(UnavailableError):
    """The cluster has no such topic."""


def read_topic(
    bootstrap_servers: str, topic: str, security: ClientSecurity = PLAINTEXT
) -> "Iterator[pa.RecordBatch]":
    """Everything that the topic holds now, partition by partition; foreign messages are skipped."""
    from klamm.history.arrow import decode_stream

    for value, source in read_values(bootstrap_servers, topic, security):
        try:
            yield from decode_stream(value, source)
        except KlammError as error:
            log.warning("skipped: %s", error)


def read_values(
    bootstrap_servers: str, topic: str, security: ClientSecurity = PLAINTEXT
) -> Iterator[tuple[bytes | None, str]]:
    """The value of each message that the topic holds now, and where it stands."""
    from confluent_kafka import Consumer, KafkaException, TopicPartition

    settings = {
        "bootstrap.servers": bootstrap_servers,
        **librdkafka_settings(security),
        "group.id": "klamm-story",  # librdkafka wants one; no group is joined
        "enable.auto.commit": False,
        "allow.auto.create.topics": False,
        "log_level": 0,  # errors are raised instead
    }
    consumer = Consumer(settings)
    try:
        known = consumer.list_topics(topic, timeout=_CONNECT_TIMEOUT_S).topics[topic]
        if known.error is not None or not known.partitions:
            raise NoHistoryTopicError(
                f"There is no history topic {topic} at {bootstrap_servers}: set "
                f"klamm.history.topic={topic} on the brokers, or name the nodes' spools "
                "(klamm.history.dir) with --spool"
            )
        for partition in known.partitions:
            at = TopicPartition(topic, partition)
            low, high = consumer.get_watermark_offsets(at, timeout=_READ_TIMEOUT_S)
            consumer.assign([TopicPartition(topic, partition, low)])
            while low < high:
                message = consumer.poll(_READ_TIMEOUT_S)
                if message is None:
                    raise UnavailableError(f"{topic}-{partition} cannot be read at offset {low}")
                offset = message.offset()
                if message.error() is not None or offset is None:
                    raise UnavailableError(f"{topic}-{partition}: {message.error()}")
                low = offset + 1
                yield message.value(), f"{topic}-{partition} at {offset}"
    except KafkaException as error:
        raise UnavailableError(
            f"The history cannot be read from {bootstrap_servers}: {error.args[0].str()}"
        ) from error
    finally:
        consumer.close()
