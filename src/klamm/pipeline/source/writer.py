"""Writing rows to topics: at least once, as Spark's own sink.

A task that fails is run again, and what it had written is written again. Within a task nothing is
written twice: its producer, which outlives the task, is idempotent.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import pyarrow as pa
from confluent_kafka import KafkaError, KafkaException
from pyspark.sql import Row
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructType,
)

from klamm.errors import ConfigError, KlammError
from klamm.pipeline.source.messages import plainly
from klamm.pipeline.source.options import WriteOptions
from klamm.pipeline.source.producers import PRODUCERS, KeptProducer
from klamm.pipeline.source.spark_versions import HAS_ARROW_STREAM_WRITER, StreamWriter
from klamm.pipeline.source.workers import forget_spark_archives

_HEADER_TYPE: Final = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))
#: column: what it may be, in words and as types.
_COLUMNS: Final[dict[str, tuple[str, tuple[DataType, ...]]]] = {
    "topic": ("a string", (StringType(),)),
    "key": ("a string or binary", (StringType(), BinaryType())),
    "value": ("a string or binary", (StringType(), BinaryType())),
    "headers": ("an array<struct<key:string,value:binary>>", (_HEADER_TYPE,)),
    "partition": ("an int", (IntegerType(),)),
}
#: How many rows become one batch where Spark does not make batches.
_ROWS: Final = 10_000
_ANY_PARTITION: Final = -1
#: How often room in the queue is looked for.
_POLL_S: Final = 0.05


class DeliveryError(KlammError):
    """A broker refused a record, or no broker could be reached."""

    def __init__(self, text: str, reason: KafkaError | None = None) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass
class Written(WriterCommitMessage):
    """How much one task has written."""

    rows: int


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Refuse rows that cannot be written; columns of other names are left alone, as in Spark."""
    types = {field.name.lower(): field.dataType for field in schema.fields}
    if "value" not in types:
        raise ConfigError("Required attribute 'value' not found")
    if "topic" not in types and options.topic is None:
        raise ConfigError(
            "topic option required when no 'topic' attribute is present. Use the topic option for "
            "setting a topic."
        )
    for name, (words, allowed) in _COLUMNS.items():
        if name in types and not any(_is_same(types[name], each) for each in allowed):
            raise ConfigError(
                f"{name} attribute type must be {words}, not {types[name].simpleString()}"
            )


def _is_same(found: DataType, wanted: DataType) -> bool:
    """Whether two types are equal apart from nullability."""
    return found.simpleString() == wanted.simpleString()


class TopicWriter(DataSourceArrowWriter):
    """Writes a data frame once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @plainly()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_rows(iterator, self._options)


class TopicStreamWriter(StreamWriter):  # type: ignore[misc]  # which of two depends on Spark
    """Writes one batch after another."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @plainly()
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return write_rows(arrow_batches(iterator), self._options)


def arrow_batches(iterator: Iterator[Any]) -> Iterator[pa.RecordBatch]:
    """The input of a stream's writer as Arrow batches, in every version of Spark."""
    return iterator if HAS_ARROW_STREAM_WRITER else _as_batches(iterator)


def _as_batches(rows: Iterator[Row]) -> Iterator[pa.RecordBatch]:
    """Rows as Arrow batches, for Spark 4.0, which passes rows to a stream's writer."""
    while portion := list(itertools.islice(rows, _ROWS)):
        yield pa.RecordBatch.from_pylist([row.asDict(recursive=True) for row in portion])


def write_rows(batches: Iterator[pa.RecordBatch], options: WriteOptions) -> Written:
    """Write the rows of a task; return when brokers have acknowledged every row."""
    forget_spark_archives()
    rows = 0
    with PRODUCERS.borrowed(options.kafka) as kept:
        sender = Sender(options.topic, kept)
        for batch in batches:
            sender.send_batch(batch)
            rows += batch.num_rows
        sender.finish()
    return Written(rows)


def _listed(columns: dict[str, Any], name: str, count: int) -> list[Any]:
    return columns[name].to_pylist() if name in columns else [None] * count


class Sender:
    """Hands rows to a producer, and raises the first delivery error."""

    def __init__(self, topic: str | None, kept: KeptProducer) -> None:
        self._topic = topic
        self._kept = kept
        self.producer = kept.producer

    @property
    def failure(self) -> KafkaError | None:
        """The first failure that librdkafka reported."""
        return self._kept.failure

    def send_batch(self, batch: pa.RecordBatch) -> None:
        """Hand over the rows of a batch."""
        columns = {
            name.lower(): column
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        try:
            self.send(columns, batch.num_rows)
        except KafkaException as error:  # librdkafka itself does not take a row
            self.give_up(error.args[0])

    def send(self, columns: dict[str, Any], count: int) -> None:
        """Hand rows to librdkafka, which batches, compresses and sends them in the background."""
        topics = self._topics(columns, count)
        keys, values = _listed(columns, "key", count), _listed(columns, "value", count)
        if "headers" not in columns and "partition" not in columns:
            produce = self.producer.produce
            for topic, value, key in zip(topics, values, keys, strict=True):
                try:
                    produce(topic, value, key)
                except BufferError:
                    self._produce_once_there_is_room(topic, value, key)
        else:
            partitions = _listed(columns, "partition", count)
            headers = _listed(columns, "headers", count)
            for topic, value, key, partition, pairs in zip(
                topics, values, keys, partitions, headers, strict=True
            ):
                self._produce_once_there_is_room(
                    topic,
                    value,
                    key,
                    _ANY_PARTITION if partition is None else partition,
                    headers=[(each["key"], each["value"]) for each in pairs or ()],
                )
        self.producer.poll(0)
        self._raise_failure()

    def finish(self) -> None:
        """Wait until each record is delivered or has failed."""
        while self.producer.flush(_POLL_S * 10):
            self._raise_failure()
        self._raise_failure()

    def give_up(self, error: KafkaError) -> NoReturn:
        """End the task without waiting: drop the unsent records."""
        self.producer.purge()
        raise DeliveryError(f"{error.name()}: {error.str()}", error)

    def _topics(self, columns: dict[str, Any], count: int) -> list[str]:
        # The option goes before the column.
        if self._topic is not None:
            return [self._topic] * count
        topics = columns["topic"]
        if topics.null_count:
            raise DeliveryError(
                "null topic present in the data. Use the topic option for setting a topic."
            )
        names: list[str] = topics.to_pylist()
        return names

    def _produce_once_there_is_room(self, *arguments: Any, **named: Any) -> None:
        while True:
            try:
                return self.producer.produce(*arguments, **named)
            except BufferError:
                if len(self.producer) == 0:
                    raise DeliveryError(
                        "MSG_SIZE_TOO_LARGE: a row is larger than 'kafka.buffer.memory'"
                    ) from None
                self.producer.poll(_POLL_S)
                self._raise_failure()

    def _raise_failure(self) -> None:
        if self.failure is not None:
            self.give_up(self.failure)
