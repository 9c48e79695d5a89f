"""The sink, exactly once: each task of a batch writes one transaction and its proof.

In the same transaction as its rows, a task commits an offset of a consumer group of its own: the
number of the batch, with a fingerprint of the rows as metadata. A task that runs again, be it after
a failure, as a speculative copy or in a restarted query, fences the others by its transactional id
and looks at that offset first: what is committed is skipped, what is not is written.

That holds if the same batch has the same rows in the same tasks each time. A source that is
replayed, as klamm's and Spark's own are, and a plan without random repartitioning give that. A task
that skips compares the fingerprint, and the driver looks for tasks of the batch that no longer
exist.
"""

import json
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from klamm.errors import ConfigError, KlammError
from klamm.pipeline.source.messages import plainly
from klamm.pipeline.source.options import WriteOptions
from klamm.pipeline.source.producers import KeptProducer
from klamm.pipeline.source.spark_versions import StreamWriter
from klamm.pipeline.source.workers import forget_spark_archives
from klamm.pipeline.source.writer import DeliveryError, Sender, Written, arrow_batches

TRANSACTIONAL_ID: Final = "transactional.id"
TRANSACTION_TIMEOUT: Final = "transaction.timeout.ms"
#: Kafka's own default for the most that a broker allows: a task may take long over its rows.
_TRANSACTION_TIMEOUT_MS: Final = 900_000
#: Set by Spark for the tasks of a streaming query.
_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_BATCH_PROPERTY: Final = "streaming.sql.batchId"
#: The offset is kept for this partition, whichever partitions the rows go to.
_MARKED_PARTITION: Final = 0
_REQUEST_S: Final = 30.0
_PAUSE_S: Final = 0.5
#: How long a task that another one has fenced waits for that one's commit.
_FENCED_S: Final = 60.0
_CLIENTS_MAX: Final = 8
_FENCING: Final = frozenset(
    {
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.INVALID_PRODUCER_ID_MAPPING,
        KafkaError.CONCURRENT_TRANSACTIONS,
        # What librdkafka says of everything else that a producer does after it was fenced.
        KafkaError._FATAL,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
    }
)


class MappingChangedError(KlammError):
    """A batch that is tried again has other rows in its tasks than the first time."""


@dataclass(frozen=True, slots=True)
class Place:
    """The identity of a task: query, batch and task number."""

    query: str
    batch: int
    task: int


@dataclass
class WrittenOnce(Written):
    """The number of rows that one task has written, its identity, and the topic of the proof."""

    place: Place | None = None
    topic: str | None = None
    is_skipped: bool = False


class Fingerprint:
    """A fingerprint of rows in any order: their number, and a sum over their bytes."""

    def __init__(self) -> None:
        self.rows = 0
        self.size = 0
        self.total = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count rows."""
        self.rows += batch.num_rows
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if name.lower() in ("key", "value"):
                data = _bytes_of(column)
                self.size += len(data)
                self.total += int(data.sum(dtype=np.uint64))

    def to_json(self) -> dict[str, int]:
        return {"rows": self.rows, "bytes": self.size, "sum": self.total}


def _bytes_of(column: Any) -> Any:
    text = column.cast(pa.binary()) if pa.types.is_string(column.type) else column
    if not len(text) or text.buffers()[2] is None:
        return np.empty(0, np.uint8)
    ends = np.frombuffer(text.buffers()[1], np.int32)[text.offset :]
    return np.frombuffer(text.buffers()[2], np.uint8)[ends[0] : ends[len(text)]]


class TransactionalStreamWriter(StreamWriter):  # type: ignore[misc]  # which of two depends on Spark
    """Writes one batch after another, each task in a transaction."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    @plainly()
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY_PROPERTY)
        batch = None if context is None else context.getLocalProperty(_BATCH_PROPERTY)
        if context is None or query is None or batch is None:
            raise ConfigError(
                "Option 'kafka.transactional.id' needs a streaming query: Spark does not say which "
                "batch this is."
            )
        place = Place(query, int(batch), context.partitionId())
        return write_once(arrow_batches(iterator), self._options, place)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Every task has committed; refuse the batch if it once had other tasks."""
        written = [each for each in messages if isinstance(each, WrittenOnce) and each.place]
        if written and written[0].place and written[0].topic:
            check_tasks(self._options, written[0].place, written[0].topic, len(messages))


def transactional_config(kafka: dict[str, str]) -> dict[str, str]:
    """A producer's configuration with what a transaction needs."""
    if kafka.get("enable.idempotence", "true") != "true":
        raise ConfigError(
            "Option 'kafka.transactional.id' needs an idempotent producer: remove 'kafka.acks', "
            "'kafka.retries' and 'kafka.enable.idempotence'."
        )
    return {TRANSACTION_TIMEOUT: str(_TRANSACTION_TIMEOUT_MS), **kafka}


def write_once(
    batches: Iterator[pa.RecordBatch], options: WriteOptions, place: Place
) -> WrittenOnce:
    """Write the rows of a task; when it returns, this or another attempt has committed them."""
    forget_spark_archives()
    first = next((each for each in batches if each.num_rows), None)
    if first is None:
        return WrittenOnce(0)
    topic = options.topic or _first_topic(first)
    return _write(first, batches, options, place, BatchLedger(options, place, topic))


def _write(
    first: pa.RecordBatch,
    batches: Iterator[pa.RecordBatch],
    options: WriteOptions,
    place: Place,
    ledger: "BatchLedger",
) -> WrittenOnce:
    fingerprint = Fingerprint()
    fingerprint.add(first)
    name = f"{options.kafka[TRANSACTIONAL_ID]}-{place.query}-{place.task}"
    sender = None
    try:
        sender = _sender(options, name)
        # From here on no older attempt can commit, so what the ledger says stays true.
        recorded = ledger.look()
        if recorded is not None:
            return _skip(batches, fingerprint, recorded, place, ledger)
        sender.producer.begin_transaction()
        sender.send_batch(first)
        for batch in batches:
            fingerprint.add(batch)
            sender.send_batch(batch)
        sender.finish()
        ledger.record(sender.producer, fingerprint)
        _commit(sender.producer)
    except (DeliveryError, KafkaException, SystemError) as error:
        reason = _reason(error)
        if not _is_fencing(reason):
            # An attempt that tries to abort learns for sure whether another has taken over.
            refused = _give_up(options, name, sender)
            reason = refused if reason is None or _is_fencing(refused) else reason
        if _is_fencing(reason):
            _forget(options, name, sender)
            # If the other attempt commits, this one is done as well.
            recorded = ledger.wait()
            if recorded is not None:
                return _skip(batches, fingerprint, recorded, place, ledger)
        if isinstance(error, DeliveryError):
            raise
        raise DeliveryError(_told(reason, error)) from error
    except Exception:
        # The rows themselves failed. The worker may live on, and its next task begins anew.
        _give_up(options, name, sender)
        raise
    return WrittenOnce(fingerprint.rows, place, ledger.topic)


def _skip(
    batches: Iterator[pa.RecordBatch],
    fingerprint: Fingerprint,
    recorded: dict[str, Any],
    place: Place,
    ledger: "BatchLedger",
) -> WrittenOnce:
    """Skip a task that has committed before; raise if it had other rows then."""
    for batch in batches:
        fingerprint.add(batch)
    if recorded != fingerprint.to_json():
        raise MappingChangedError(
            f"Task {place.task} of batch {place.batch} has committed {recorded}, and now has "
            f"{fingerprint.to_json()}: the rows of a batch are not in the same tasks each time. "
            "Exactly once needs a source that is replayed and a plan that is deterministic: no "
            "repartition() without columns, no random values, the same number of partitions."
        )
    return WrittenOnce(fingerprint.rows, place, ledger.topic, is_skipped=True)


class BatchLedger:
    """Which batches a task has committed: an offset of a consumer group of its own."""

    def __init__(self, options: WriteOptions, place: Place, topic: str) -> None:
        self.topic = topic
        self._place = place
        group = f"{options.kafka[TRANSACTIONAL_ID]}-{place.query}-{place.task}"
        self._consumer = _consumer(options, group)

    def look(self) -> dict[str, Any] | None:
        """The fingerprint of the task's rows, if this batch has them."""
        wanted = [TopicPartition(self.topic, _MARKED_PARTITION)]
        deadline = time.monotonic() + _REQUEST_S
        while True:
            try:
                (found,) = self._consumer.committed(wanted, timeout=_REQUEST_S)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)
                continue
            if found.offset <= self._place.batch:
                return None
            content = json.loads(found.metadata or "{}")
            return {name: content.get(name) for name in ("rows", "bytes", "sum")}

    def wait(self) -> dict[str, Any] | None:
        """The fingerprint, once another attempt has committed; None if it does not."""
        deadline = time.monotonic() + _FENCED_S
        while time.monotonic() < deadline:
            if (found := self.look()) is not None:
                return found
            time.sleep(_PAUSE_S)
        return None

    def record(self, producer: Producer, fingerprint: Fingerprint) -> None:
        """Add to the transaction that the task's rows of this batch are in it."""
        metadata = json.dumps({"batch": self._place.batch, **fingerprint.to_json()})
        mark = TopicPartition(self.topic, _MARKED_PARTITION, self._place.batch + 1, metadata)
        group = self._consumer.consumer_group_metadata()
        _retried(lambda: producer.send_offsets_to_transaction([mark], group, _REQUEST_S))


def check_tasks(options: WriteOptions, place: Place, topic: str, count: int) -> None:
    """Refuse a batch that has committed tasks beyond those that it has now."""
    found = BatchLedger(options, Place(place.query, place.batch, count), topic).look()
    if found is not None:
        raise MappingChangedError(
            f"Batch {place.batch} once had more than {count} tasks, one of which has committed "
            f"{found}: its rows are in the topic twice. Keep the number of partitions the same."
        )


#: What a worker keeps from one task to the next: connecting takes longer than a small transaction.
_SENDERS: Final[OrderedDict[str, Sender]] = OrderedDict()
_CONSUMERS: Final[OrderedDict[str, Consumer]] = OrderedDict()


def _consumer(options: WriteOptions, group: str) -> Consumer:
    """A consumer that reads and names the offsets of a group, and joins none."""
    key = _key(options, group)
    consumer = _CONSUMERS.get(key)
    if consumer is None:
        consumer = _CONSUMERS[key] = Consumer(
            {
                "log_level": "0",  # what matters is raised; an idle one would tell of every restart
                **_client_config(options.kafka),
                "group.id": group,
                # An offset of a transaction that is not decided yet is waited for.
                "isolation.level": "read_committed",
                "enable.auto.commit": "false",
            }
        )
        while len(_CONSUMERS) > _CLIENTS_MAX:
            _CONSUMERS.popitem(last=False)[1].close()
    _CONSUMERS.move_to_end(key)
    return consumer


def _sender(options: WriteOptions, name: str) -> Sender:
    """A producer that fences all older attempts: a new one, or one that was not fenced."""
    key = _key(options, name)
    sender = _SENDERS.get(key)
    if sender is None:
        kafka = {**transactional_config(dict(options.kafka)), TRANSACTIONAL_ID: name}
        sender = Sender(options.topic, KeptProducer(kafka))
        _retried(lambda: sender.producer.init_transactions(_REQUEST_S))
        _SENDERS[key] = sender
        while len(_SENDERS) > _CLIENTS_MAX:
            _SENDERS.popitem(last=False)
    _SENDERS.move_to_end(key)
    return sender


def _key(options: WriteOptions, name: str) -> str:
    """The key of a client that is kept: the cluster, and the transactional id or group."""
    return f"{options.kafka['bootstrap.servers']} {name}"


def _commit(producer: Producer) -> None:
    _retried(lambda: producer.commit_transaction(_REQUEST_S))


def _give_up(options: WriteOptions, name: str, sender: Sender | None) -> KafkaError | None:
    """Abort the transaction, and do not use its producer again; returns why it could not."""
    if sender is None:
        return None
    _forget(options, name, sender)
    try:
        _retried(lambda: sender.producer.abort_transaction(_REQUEST_S))
    except KafkaException as error:
        return _reason(error)  # the next attempt's transactional id aborts it
    except SystemError as error:
        return _reason(error) or sender.failure
    return None


def _forget(options: WriteOptions, name: str, sender: Sender | None) -> None:
    key = _key(options, name)
    if sender is not None and _SENDERS.get(key) is sender:
        del _SENDERS[key]


def _retried(ask: Any) -> None:
    """Retry an operation while librdkafka calls its error retriable."""
    deadline = time.monotonic() + _REQUEST_S * 4
    while True:
        try:
            ask()
            return
        except KafkaException as error:
            if not error.args[0].retriable() or time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_S)


def _is_fencing(reason: KafkaError | None) -> bool:
    """Whether this error means that another attempt has fenced the producer."""
    return reason is not None and (reason.fatal() or reason.code() in _FENCING)


def _reason(error: Exception) -> KafkaError | None:
    if isinstance(error, DeliveryError):
        return error.reason
    # The client raises what is fatal in the middle of its callbacks, which Python objects to, and
    # now and then it does not say what was raised.
    raised = error.__cause__ if isinstance(error, SystemError) else error
    found = raised.args[0] if raised is not None and raised.args else None
    return found if isinstance(found, KafkaError) else None


def _told(reason: KafkaError | None, error: Exception) -> str:
    return str(error) if reason is None else f"{reason.name()}: {reason.str()}"


def _client_config(kafka: Any) -> dict[str, str]:
    """The settings of the producer that a consumer needs to reach the cluster."""
    shared = (
        "bootstrap.servers",
        "client.id",
        "security.",
        "sasl.",
        "ssl.",
        "log_level",
        "socket.",
    )
    return {key: value for key, value in kafka.items() if key.startswith(shared)}


def _first_topic(batch: pa.RecordBatch) -> str:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name.lower() == "topic" and column[0].is_valid:
            return str(column[0].as_py())
    raise DeliveryError("null topic present in the data. Use the topic option for setting a topic.")
