"""Reading a range of offsets with librdkafka: every way of reaching a cluster, and old formats.

It is used for options that klamm's own client does not know.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    Message,
)
from confluent_kafka import TopicPartition as ClientPartition

from klamm.errors import UnavailableError
from klamm.names import TopicPartition
from klamm.pipeline.source.cluster import SourceCluster, is_other
from klamm.pipeline.source.columns import CREATE_TIME, LOG_APPEND_TIME, schema
from klamm.pipeline.source.messages import cannot_read, report_loss
from klamm.pipeline.source.offsets import Position
from klamm.pipeline.source.options import ReadOptions, Selection
from klamm.pipeline.source.pool import Pool
from klamm.pipeline.source.ranges import OffsetRange
from klamm.pipeline.source.reaching import LastError

_MESSAGES: Final = 10_000
_POLL_S: Final = 0.2
_LOOK_EVERY_S: Final = 1.0
#: The records of a range exist already. After its last one, librdkafka asks for the next, and the
#: fetches of another range from the same broker would wait until that request is answered.
_FETCH_WAIT: Final = {"fetch.wait.max.ms": "10"}


class KeptConsumer:
    """A consumer, with the metadata client that belongs to it."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self.last_error = LastError()
        self.consumer = Consumer(_FETCH_WAIT | dict(kafka) | self.last_error.settings())
        self._cluster: SourceCluster | None = None

    def cluster(self, options: ReadOptions) -> SourceCluster:
        if self._cluster is None:
            self._cluster = SourceCluster(options)
        return self._cluster

    def close(self) -> None:
        self.consumer.close()


#: The idle consumers of this process.
CONSUMERS: Final = Pool(KeptConsumer, is_sound=lambda _: True, close=KeptConsumer.close)


def consume(wanted: OffsetRange, options: ReadOptions, start: int) -> Iterator[pa.RecordBatch]:
    """The records of a range from `start` on."""
    with CONSUMERS.borrowed(options.kafka) as kept:
        yield from _consume(kept, wanted, options, start)
        kept.consumer.unassign()


def _consume(
    kept: KeptConsumer, wanted: OffsetRange, options: ReadOptions, start: int
) -> Iterator[pa.RecordBatch]:
    consumer, position, until = kept.consumer, start, wanted.until
    cluster = kept.cluster(options)
    if not _is_there(cluster, wanted, options, position):
        return
    deadline = time.monotonic() + options.poll_timeout_s
    looks_at = time.monotonic() + _LOOK_EVERY_S
    consumer.assign([ClientPartition(wanted.topic, wanted.partition, position)])
    while position < until:
        messages = []
        # librdkafka waits for as many as it is asked for, so no more than are missing.
        for message in consumer.consume(min(until - position, _MESSAGES), _POLL_S):
            error, offset = message.error(), message.offset() or 0
            if error is None:
                messages.append(message)
                position = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                # Offsets without a record may be the last ones of a range.
                position = max(position, offset)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                if not _is_there(cluster, wanted, options, position):
                    return
                position = _after_loss(consumer, wanted, options, position)
            elif not error.retriable():
                raise UnavailableError(f"{error.name()}: {error.str()}")
        while messages and (messages[-1].offset() or 0) >= until:
            messages.pop()
        if messages:
            yield _rows(messages, wanted, options.columns)
            deadline = time.monotonic() + options.poll_timeout_s
        if messages or position >= until:
            continue
        if time.monotonic() > looks_at:
            # librdkafka waits for a topic that is gone without a word.
            if not _is_there(cluster, wanted, options, position):
                return
            looks_at = time.monotonic() + _LOOK_EVERY_S
        if time.monotonic() > deadline:
            why = f": {kept.last_error.text}" if kept.last_error.text else ""
            raise UnavailableError(
                f"Nothing of {wanted} was to be had at offset {position} for "
                f"{options.poll_timeout_s:.0f} s{why}"
            )
    # What was read after the topic was deleted and created again is of the other one.
    _is_there(cluster, wanted, options, position)


def _is_there(
    cluster: SourceCluster, wanted: OffsetRange, options: ReadOptions, position: int
) -> bool:
    """Whether the topic exists with the id that was planned; report the loss if not."""
    ids = {} if wanted.topic_id is None else {wanted.topic: wanted.topic_id}
    place = TopicPartition(wanted.topic, wanted.partition)
    found = cluster.topics_after(Selection(topics=(wanted.topic,)), Position({place: 0}, ids))
    if place in found.partitions and not is_other(ids, found.ids, wanted.topic):
        return True
    was = "deleted and created again" if place in found.partitions else "deleted"
    why = f"the topic was {was}"
    report_loss(cannot_read(wanted, position, why), fail=options.fail_on_data_loss)
    return False


def _after_loss(
    consumer: Consumer, wanted: OffsetRange, options: ReadOptions, position: int
) -> int:
    place = ClientPartition(wanted.topic, wanted.partition)
    first_left, _ = consumer.get_watermark_offsets(place, timeout=options.poll_timeout_s)
    why = f"the partition begins at {first_left}"
    report_loss(cannot_read(wanted, position, why), fail=options.fail_on_data_loss)
    if not position < first_left < wanted.until:
        return wanted.until
    consumer.assign([ClientPartition(wanted.topic, wanted.partition, first_left)])
    return int(first_left)


def _rows(messages: list[Message], wanted: OffsetRange, columns: Sequence[str]) -> pa.RecordBatch:
    types = schema(columns)
    return pa.RecordBatch.from_arrays(
        [_column(messages, wanted, field) for field in types], schema=types
    )


def _column(messages: list[Message], wanted: OffsetRange, field: pa.Field) -> pa.Array:
    values: list[Any]
    match field.name:
        case "key":
            values = [message.key() for message in messages]
        case "value":
            values = [message.value() for message in messages]
        case "topic":
            return pa.repeat(pa.scalar(wanted.topic), len(messages))
        case "partition":
            return pa.repeat(pa.scalar(wanted.partition, pa.int32()), len(messages))
        case "offset":
            values = [message.offset() for message in messages]
        case "timestamp":
            values = [message.timestamp()[1] * 1000 for message in messages]
        case "timestampType":
            values = [
                LOG_APPEND_TIME
                if message.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME
                else CREATE_TIME
                for message in messages
            ]
        case _:
            values = [_headers(message) for message in messages]
    return pa.array(values, field.type)


def _headers(message: Message) -> list[dict[str, Any]] | None:
    pairs: Any = message.headers() or ()
    return [{"key": key, "value": value} for key, value in pairs] or None
