"""Reading a range of offsets with librdkafka: every way of reaching a cluster, and old formats.

This is what reads where klamm's own way of fetching would not do justice to the options.
"""

import time
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import (
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from klamm.errors import UnavailableError
from klamm.pipeline.source.columns import CREATE_TIME, LOG_APPEND_TIME, schema
from klamm.pipeline.source.loss import GONE_AFTER_S, cannot_read, report_loss
from klamm.pipeline.source.options import ReadOptions
from klamm.pipeline.source.ranges import OffsetRange

_MESSAGES: Final = 10_000
_POLL_S: Final = 0.2
_METADATA_TIMEOUT_S: Final = 1.0


def consume(wanted: OffsetRange, options: ReadOptions, start: int) -> Iterator[pa.RecordBatch]:
    """The records of a range from `start` on."""
    consumer = Consumer(dict(options.kafka))
    position, until = start, wanted.until
    last_seen = time.monotonic()
    deadline = last_seen + options.poll_timeout_s
    try:
        consumer.assign([TopicPartition(wanted.topic, wanted.partition, position)])
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
                    position = _after_loss(consumer, wanted, options, position)
                elif not error.retriable():
                    raise KafkaException(error)
            while messages and (messages[-1].offset() or 0) >= until:
                messages.pop()
            if messages:
                yield _rows(messages, wanted, include_headers=options.include_headers)
                deadline = time.monotonic() + options.poll_timeout_s
            if messages or position >= until:
                continue
            if _exists(consumer, wanted.topic):
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen > GONE_AFTER_S:
                why = "the topic was deleted"
                report_loss(cannot_read(wanted, position, why), fail=options.fail_on_data_loss)
                return
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"Nothing of {wanted} was to be had at offset {position} for "
                    f"{options.poll_timeout_s:.0f} s"
                )
    finally:
        consumer.close()


def _exists(consumer: Consumer, topic: str) -> bool:
    """Whether there is the topic, for all that is known; librdkafka waits for it without a word."""
    try:
        found = consumer.list_topics(topic, timeout=_METADATA_TIMEOUT_S).topics[topic]
    except KafkaException:
        return True
    return found.error is None or found.error.code() != KafkaError.UNKNOWN_TOPIC_OR_PART


def _after_loss(
    consumer: Consumer, wanted: OffsetRange, options: ReadOptions, position: int
) -> int:
    place = TopicPartition(wanted.topic, wanted.partition)
    first_left, _ = consumer.get_watermark_offsets(place, timeout=options.poll_timeout_s)
    why = f"the partition begins at {first_left}"
    report_loss(cannot_read(wanted, position, why), fail=options.fail_on_data_loss)
    if not position < first_left < wanted.until:
        return wanted.until
    consumer.assign([TopicPartition(wanted.topic, wanted.partition, first_left)])
    return int(first_left)


def _rows(messages: list[Message], wanted: OffsetRange, *, include_headers: bool) -> pa.RecordBatch:
    stamps = [message.timestamp() for message in messages]
    columns: list[Any] = [
        [message.key() for message in messages],
        [message.value() for message in messages],
        pa.repeat(pa.scalar(wanted.topic), len(messages)),
        pa.repeat(pa.scalar(wanted.partition, pa.int32()), len(messages)),
        [message.offset() for message in messages],
        [milliseconds * 1000 for _, milliseconds in stamps],
        [
            LOG_APPEND_TIME if kind == TIMESTAMP_LOG_APPEND_TIME else CREATE_TIME
            for kind, _ in stamps
        ],
    ]
    if include_headers:
        columns.append([_headers(message) for message in messages])
    names = schema(include_headers=include_headers)
    return pa.RecordBatch.from_arrays(
        [
            column if isinstance(column, pa.Array) else pa.array(column, field.type)
            for column, field in zip(columns, names, strict=True)
        ],
        schema=names,
    )


def _headers(message: Message) -> list[dict[str, Any]] | None:
    pairs: Any = message.headers() or ()
    return [{"key": key, "value": value} for key, value in pairs] or None
