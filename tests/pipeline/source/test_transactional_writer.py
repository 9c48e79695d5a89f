"""The transactional sink on brokers of both kinds: each row once, as read_committed reads it."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import SparkSession

from klamm.errors import ConfigError
from klamm.pipeline.source import transactional_writer as sink
from klamm.pipeline.source.options import WriteOptions, write_options
from klamm.pipeline.source.source import KlammDataSource
from klamm.pipeline.source.transactional_writer import (
    MappingChangedError,
    Place,
    check_tasks,
    write_once,
)
from klamm.pipeline.source.writer import DeliveryError
from klamm.zookeeper.server import ZooKeeperServer
from tests.interop.clients import create
from tests.support.mixed_cluster import Kind, MixedCluster


@pytest.fixture(scope="module", params=Kind)
def kafka(
    request: pytest.FixtureRequest,
    zookeeper_server: ZooKeeperServer,
    kafka_libs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[MixedCluster]:
    """One broker with transactions, of Apache Kafka and of klamm."""
    folder = tmp_path_factory.mktemp("kafka")
    with MixedCluster(
        zookeeper_server.address,
        folder,
        kafka_libs,
        transaction_state_log_replication_factor=1,
        transaction_state_log_min_isr=1,
        transaction_state_log_num_partitions=4,
        offsets_topic_replication_factor=1,
    ) as cluster:
        cluster.add(request.param, 1)
        yield cluster


@pytest.fixture
def topic(kafka: MixedCluster, request: pytest.FixtureRequest) -> str:
    name = f"sink-{time.monotonic_ns()}"
    create(kafka.bootstrap, name, [[1], [1]])
    return name


def options_for(kafka: MixedCluster, topic: str) -> WriteOptions:
    return write_options(
        {
            "kafka.bootstrap.servers": kafka.bootstrap,
            "topic": topic,
            "kafka.transactional.id": "etl",
        }
    )


def rows(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array([b"%d" % each for each in values])})


def committed(kafka: MixedCluster, topic: str) -> Counter[int]:
    """What a read_committed reader has, up to the end of what is decided."""
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    found: Counter[int] = Counter()
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in (0, 1)])
        ended = set()
        while len(ended) < 2:
            message = consumer.poll(30)
            assert message is not None
            if message.error():
                ended.add(message.partition())
            else:
                found[int(message.value())] += 1
    finally:
        consumer.close()
    return found


def fresh_worker() -> None:
    """As if the next attempt ran in another process."""
    sink._SENDERS.clear()


@pytest.mark.interop
@pytest.mark.timeout(600)
class TestOnBrokers:
    def test_a_task_that_runs_again_skips_what_is_committed(self, kafka, topic):
        options, place = options_for(kafka, topic), Place("q", 0, 0)
        assert not write_once(iter([rows(1, 2), rows(3)]), options, place).is_skipped
        assert write_once(iter([rows(1, 2, 3)]), options, place).is_skipped
        fresh_worker()
        assert write_once(iter([rows(3, 2), rows(1)]), options, place).is_skipped
        assert not write_once(iter([rows(4)]), options, Place("q", 1, 0)).is_skipped
        assert committed(kafka, topic) == Counter([1, 2, 3, 4])

    @pytest.mark.parametrize("is_other_worker", [True, False])
    def test_a_task_that_dies_in_the_middle_leaves_nothing(self, kafka, topic, is_other_worker):
        options, place = options_for(kafka, topic), Place("q", 0, 0)

        def dying():
            yield rows(1, 2)
            raise RuntimeError("killed")

        with pytest.raises(RuntimeError):
            write_once(dying(), options, place)
        if is_other_worker:
            fresh_worker()
        write_once(iter([rows(1, 2, 3)]), options, place)
        assert committed(kafka, topic) == Counter([1, 2, 3])

    @pytest.mark.parametrize("is_told", [True, False])
    def test_of_two_attempts_at_the_same_time_one_commits_and_both_succeed(
        self, kafka, topic, is_told, monkeypatch
    ):
        """Even if the client does not say why it ends, as it happens when callbacks meet."""
        finish = sink.Sender.finish

        def untold(sender):
            try:
                finish(sender)
            except DeliveryError:
                raise SystemError("returned NULL without setting an exception") from None

        if not is_told:
            monkeypatch.setattr(sink.Sender, "finish", untold)
        options, place = options_for(kafka, topic), Place("q", 5, 1)
        first_is_writing, second_is_done = threading.Event(), threading.Event()
        results = []

        def slow():
            yield rows(1)
            first_is_writing.set()
            second_is_done.wait(60)
            yield rows(2)

        def first():
            results.append(write_once(slow(), options, place))

        thread = threading.Thread(target=first)
        thread.start()
        assert first_is_writing.wait(60)
        fresh_worker()
        results.append(write_once(iter([rows(1), rows(2)]), options, place))
        second_is_done.set()
        thread.join(120)
        assert [each.is_skipped for each in results] == [False, True]
        assert committed(kafka, topic) == Counter([1, 2])

    def test_other_rows_in_a_task_that_has_committed_are_refused(self, kafka, topic):
        options, place = options_for(kafka, topic), Place("q", 0, 0)
        write_once(iter([rows(1, 2)]), options, place)
        with pytest.raises(MappingChangedError, match="not in the same tasks each time"):
            write_once(iter([rows(1)]), options, place)

    def test_a_batch_that_had_more_tasks_is_refused(self, kafka, topic):
        options = options_for(kafka, topic)
        for task in range(3):
            write_once(iter([rows(task)]), options, Place("q", 0, task))
        check_tasks(options, Place("q", 0, 0), topic, 3)
        check_tasks(options, Place("q", 1, 0), topic, 2)
        with pytest.raises(MappingChangedError, match="once had more than 2 tasks"):
            check_tasks(options, Place("q", 0, 0), topic, 2)

    def test_a_task_without_rows_writes_nothing(self, kafka, topic):
        options = options_for(kafka, topic)
        assert write_once(iter([rows()]), options, Place("q", 0, 0)).rows == 0

    def test_a_record_that_is_too_large_fails_and_the_next_attempt_succeeds(self, kafka, topic):
        options, place = options_for(kafka, topic), Place("q", 0, 0)
        large = pa.RecordBatch.from_pydict({"value": pa.array([b"1" * 2_000_000])})
        with pytest.raises(DeliveryError, match="MSG_SIZE_TOO_LARGE"):
            write_once(iter([rows(7), large]), options, place)
        write_once(iter([rows(7)]), options, place)
        assert committed(kafka, topic) == Counter([7])

    def test_a_streaming_query_writes_each_row_once_over_restarts(
        self, spark: SparkSession, kafka, topic, tmp_path
    ):
        source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"

        def run() -> None:
            stream = spark.readStream.schema("value string").text(str(source))
            stream.writeStream.format("klamm").options(
                **{
                    "kafka.bootstrap.servers": kafka.bootstrap,
                    "topic": topic,
                    "kafka.transactional.id": "query",
                    "checkpointLocation": str(checkpoint),
                }
            ).trigger(availableNow=True).start().awaitTermination()

        source.mkdir()
        (source / "a.txt").write_text("\n".join(map(str, range(100))))
        run()
        (source / "b.txt").write_text("\n".join(map(str, range(100, 150))))
        run()
        # As if the driver had died after its tasks had committed and before Spark wrote that down.
        last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
        run()
        assert committed(kafka, topic) == Counter(range(150))


def test_a_batch_write_in_transactions_is_refused():
    given = {"kafka.bootstrap.servers": "b:1", "topic": "t", "kafka.transactional.id": "x"}
    from pyspark.sql.types import BinaryType, StructType

    schema = StructType().add("value", BinaryType())
    with pytest.raises(ConfigError, match="is for streaming queries"):
        KlammDataSource(given).writer(schema, False)


def test_transactions_without_idempotence_are_refused():
    with pytest.raises(ConfigError, match="needs an idempotent producer"):
        sink.transactional_config({"enable.idempotence": "false"})


def test_a_fingerprint_follows_the_rows_and_not_their_order():
    def of(*batches):
        found = sink.Fingerprint()
        for each in batches:
            found.add(each)
        return found.to_json()

    assert of(rows(1, 2), rows(3)) == of(rows(3, 2, 1))
    assert of(rows(1, 2)) != of(rows(1, 3))
