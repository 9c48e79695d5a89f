"""Writing to a real cluster, as Spark would have it done, but without Spark around it."""

from collections import Counter

import pyarrow as pa
import pytest
from aiokafka.partitioner import murmur2
from pyspark.sql.types import StructType

from klamm.errors import ConfigError
from klamm.pipeline.source.options import write_options
from klamm.pipeline.source.writer import DeliveryError, check_columns, write_rows
from klamm.protocol.records import decode_batch_header
from tests.pipeline.source.test_reader import numbers, read_all

COUNT = 500


def options(cluster, **given):
    return write_options({"kafka.bootstrap.servers": cluster.bootstrap, **given})


def rows(**columns) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": [b"%d" % n for n in range(COUNT)], **columns})


@pytest.mark.real
def test_what_is_written_is_read(cluster, topic):
    cluster.create(topic, partitions=3, factor=1)
    batches = [rows().slice(0, 200), rows().slice(200)]
    assert write_rows(iter(batches), options(cluster, topic=topic)).rows == COUNT
    found = read_all(cluster, subscribe=topic)
    assert numbers(found) == list(range(COUNT))
    assert {row["key"] for row in found} == {None}


@pytest.mark.real
def test_tasks_of_one_worker_share_a_producer_until_one_of_them_fails(cluster, topic):
    cluster.create(topic, partitions=3, factor=1, config={"max.message.bytes": "100000"})
    asked = options(cluster, topic=topic, **{"kafka.client.id": topic})
    for _ in range(5):
        write_rows(iter([rows()]), asked)
    assert producer_ids(cluster, topic) == 1
    large = pa.RecordBatch.from_pydict({"value": [b"x" * 200_000]})
    with pytest.raises(DeliveryError):
        write_rows(iter([large]), asked)
    write_rows(iter([rows()]), asked)
    assert producer_ids(cluster, topic) == 2
    found = Counter(int(row["value"]) for row in read_all(cluster, subscribe=topic))
    assert found == dict.fromkeys(range(COUNT), 6)


def producer_ids(cluster, topic: str) -> int:
    """How many producers have written to the topic, as its log has it."""
    found = set()
    for path in cluster[1].directory.rglob(f"{topic}-*/*.log"):
        content, at = memoryview(path.read_bytes()), 0
        while at < len(content):
            header = decode_batch_header(content, at)
            found.add(header.producer_id)
            at += header.size
    return len(found)


@pytest.mark.real
def test_columns_say_where_a_row_goes_and_with_what(cluster, topic):
    for suffix in "xy":
        cluster.create(topic + suffix, partitions=4, factor=1)
    header = [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    batch = rows(
        topic=[topic + "xy"[n % 2] for n in range(COUNT)],
        key=[f"k{n}" for n in range(COUNT)],
        partition=pa.array([n % 4 for n in range(COUNT)], pa.int32()),
        headers=[header if n % 2 else None for n in range(COUNT)],
        ignored=list(range(COUNT)),
    )
    write_rows(iter([batch]), options(cluster))
    found = read_all(cluster, subscribePattern=topic + ".", includeHeaders="true")
    assert numbers(found) == list(range(COUNT))
    for row in found:
        number = int(row["value"])
        assert row["key"] == b"k%d" % number
        assert (row["topic"], row["partition"]) == (topic + "xy"[number % 2], number % 4)
        assert row["headers"] == (header if number % 2 else None)


@pytest.mark.real
def test_keys_land_where_java_puts_them_and_the_option_goes_before_the_column(cluster, topic):
    cluster.create(topic, partitions=5, factor=1)
    keys = [b"key-%d" % n for n in range(COUNT)]
    batch = rows(key=keys, topic=["not-there"] * COUNT)
    write_rows(iter([batch]), options(cluster, topic=topic))
    found = read_all(cluster, subscribe=topic)
    assert len(found) == COUNT
    for row in found:
        assert row["partition"] == (murmur2(row["key"]) & 0x7FFFFFFF) % 5


@pytest.mark.real
def test_a_partition_that_is_null_is_chosen_by_the_key(cluster, topic):
    cluster.create(topic, partitions=5, factor=1)
    batch = rows(key=["same"] * COUNT, partition=pa.nulls(COUNT, pa.int32()))
    write_rows(iter([batch]), options(cluster, topic=topic))
    counts = Counter(row["partition"] for row in read_all(cluster, subscribe=topic))
    assert counts == {(murmur2(b"same") & 0x7FFFFFFF) % 5: COUNT}


@pytest.mark.real
def test_a_record_that_a_broker_refuses_fails_the_task_with_its_reason(cluster, topic):
    cluster.create(topic, factor=1, config={"max.message.bytes": "1000"})
    large = pa.RecordBatch.from_pydict({"value": [b"x" * 5000]})
    with pytest.raises(DeliveryError, match="MSG_SIZE_TOO_LARGE"):
        write_rows(iter([large]), options(cluster, topic=topic))
    larger = pa.RecordBatch.from_pydict({"value": [b"x" * 2_000_000]})
    with pytest.raises(DeliveryError, match="MSG_SIZE_TOO_LARGE"):
        write_rows(iter([larger]), options(cluster, topic=topic))
    wrong = rows(partition=pa.array([7] * COUNT, pa.int32()))
    with pytest.raises(DeliveryError, match="partition"):
        write_rows(iter([wrong]), options(cluster, topic=topic))
    nowhere = options(cluster, **{"kafka.delivery.timeout.ms": "500"})
    with pytest.raises(DeliveryError, match="null topic present in the data"):
        write_rows(iter([rows(topic=pa.nulls(COUNT, pa.string()))]), nowhere)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("key binary, topic string", "Required attribute 'value' not found"),
        ("value string", "topic option required when no 'topic' attribute is present"),
        ("value integer, topic string", "value attribute type must be a string or binary, not int"),
        ("value string, topic integer", "topic attribute type must be a string"),
        ("value string, topic string, key double", "key attribute type must be a string or binary"),
        ("value string, topic string, partition long", "partition attribute type must be an int"),
        ("value string, topic string, headers string", "headers attribute type must be an array"),
    ],
)
def test_columns_that_cannot_be_written_are_refused(columns, message):
    schema = StructType()
    for column in columns.split(", "):
        schema.add(*column.split())
    bare = write_options({"kafka.bootstrap.servers": "127.0.0.1:9092"})
    with pytest.raises(ConfigError, match=message):
        check_columns(schema, bare)
