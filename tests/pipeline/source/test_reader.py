"""Reading a real cluster, as Spark would have it done, but without Spark around it."""

import json
import socket
import threading
import time
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import NewPartitions
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from klamm.errors import ConfigError, UnavailableError
from klamm.pipeline.source import reaching
from klamm.pipeline.source.cluster import SourceCluster
from klamm.pipeline.source.limits import NoOffsetError
from klamm.pipeline.source.messages import DataLossError
from klamm.pipeline.source.offsets import RESERVED_KEY
from klamm.pipeline.source.options import read_options
from klamm.pipeline.source.reader import TopicReader, TopicStreamReader
from tests.pipeline.source.conftest import produce
from tests.support.cluster import RealCluster
from tests.support.waiting import PATIENCE_S, wait_until

#: Records that are too old do not outlive retention.
NOW = int(time.time() * 1000)
ALL = ReadAllAvailable()

pytestmark = pytest.mark.real


def given(cluster: RealCluster, options: dict[str, str]) -> dict[str, str]:
    return {"kafka.bootstrap.servers": cluster.bootstrap, **options}


def read_all(cluster: RealCluster, **options: str) -> list[dict[str, Any]]:
    reader = TopicReader(read_options(given(cluster, options), streaming=False))
    return [
        row
        for task in reader.partitions()
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["value"]) for row in rows)


class Stream:
    """What Spark does with a stream's reader: plan a batch, run it, keep where it ended."""

    def __init__(self, cluster: RealCluster, **options: str) -> None:
        self._options = given(cluster, options)
        self.reader = self._open()
        self.position = self._kept(self.reader.initialOffset())

    def _open(self) -> TopicStreamReader:
        return TopicStreamReader(read_options(self._options, streaming=True))

    @staticmethod
    def _kept(position: dict[str, Any]) -> dict[str, Any]:
        return json.loads(json.dumps(position))

    def restart(self) -> None:
        self.reader = self._open()

    def plan(self, limit: Any = None) -> dict[str, Any]:
        limit = limit or self.reader.getDefaultReadLimit()
        return self._kept(self.reader.latestOffset(self.position, limit))

    def run(self, end: dict[str, Any]) -> list[int]:
        rows = [
            row
            for task in self.reader.partitions(self.position, end)
            for batch in self.reader.read(task)
            for row in batch.to_pylist()
        ]
        self.position = end
        return numbers(rows)

    def batch(self, limit: Any = None) -> list[int]:
        return self.run(self.plan(limit))


# Batches


def test_rows_have_what_records_have(cluster, topic):
    cluster.create(topic, partitions=2, factor=1)
    produce(
        cluster,
        topic,
        range(3),
        partitions=2,
        timestamp=lambda number: NOW + number,
        headers=[("a", b"1"), ("a", None)],
    )
    rows = read_all(cluster, subscribe=topic, includeHeaders="true")
    headers = [{"key": "a", "value": b"1"}, {"key": "a", "value": None}]
    for row in rows:
        number = int(row["value"])
        assert row["key"] == row["value"]
        assert (row["topic"], row["partition"], row["offset"]) == (topic, number % 2, number // 2)
        assert round(row["timestamp"].timestamp() * 1000) == NOW + number
        assert row["timestampType"] == 0
        assert row["headers"] == headers
    assert numbers(rows) == [0, 1, 2]
    assert "headers" not in read_all(cluster, subscribe=topic)[0]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_both_ways_of_reading_agree_for_every_codec(cluster, topic, codec):
    cluster.create(topic, factor=1)
    produce(cluster, topic, range(5000), compression_type=codec, linger_ms=20)
    own = read_all(cluster, subscribe=topic, includeHeaders="true")
    by_librdkafka = read_all(
        cluster, subscribe=topic, includeHeaders="true", **{"kafka.client.rack": "a"}
    )
    assert own == by_librdkafka
    assert numbers(own) == list(range(5000))


def test_topics_are_chosen_by_name_by_pattern_and_by_partition(cluster, topic):
    for suffix in ("x", "y"):
        cluster.create(topic + suffix, partitions=2, factor=1)
    produce(cluster, topic + "x", range(4), partitions=2)
    produce(cluster, topic + "y", range(4, 8), partitions=2)
    assert numbers(read_all(cluster, subscribe=f"{topic}x,{topic}y")) == list(range(8))
    assert numbers(read_all(cluster, subscribePattern=f"{topic}[xz]")) == list(range(4))
    assert numbers(read_all(cluster, subscribePattern=topic)) == []
    assigned = json.dumps({f"{topic}x": [1], f"{topic}y": [0]})
    assert numbers(read_all(cluster, assign=assigned)) == [1, 3, 4, 6]


def test_a_range_is_read_by_offsets(cluster, topic):
    cluster.create(topic, partitions=2, factor=1)
    produce(cluster, topic, range(20), partitions=2)
    start = json.dumps({topic: {"0": 3, "1": -2}})
    end = json.dumps({topic: {"0": 6, "1": -1}})
    rows = read_all(cluster, subscribe=topic, startingOffsets=start, endingOffsets=end)
    assert numbers(rows) == sorted([6, 8, 10, *range(1, 20, 2)])
    with pytest.raises(ConfigError, match="you must specify all TopicPartitions"):
        read_all(cluster, subscribe=topic, startingOffsets=json.dumps({topic: {"0": 3}}))


def test_a_range_is_read_by_time(cluster, topic):
    cluster.create(topic, partitions=2, factor=1)
    produce(cluster, topic, range(10), partitions=2, timestamp=lambda number: NOW + number)
    by_time = {"startingTimestamp": str(NOW + 4), "endingTimestamp": str(NOW + 8)}
    assert numbers(read_all(cluster, subscribe=topic, **by_time)) == [4, 5, 6, 7]
    each = json.dumps({topic: {"0": NOW + 6, "1": NOW}})
    rows = read_all(cluster, subscribe=topic, startingOffsetsByTimestamp=each)
    assert numbers(rows) == [1, 3, 5, 6, 7, 8, 9]
    rows = read_all(cluster, subscribe=topic, endingOffsetsByTimestamp=each)
    assert numbers(rows) == [0, 2, 4]
    late = {"startingTimestamp": str(NOW + 100)}
    with pytest.raises(NoOffsetError, match="No offset matched from request of topic-partition"):
        read_all(cluster, subscribe=topic, **late)
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    assert read_all(cluster, subscribe=topic, **late, **strategy) == []
    assert numbers(read_all(cluster, subscribe=topic, endingTimestamp=str(NOW + 100))) == [
        *range(10)
    ]


def test_tasks_are_as_many_as_asked_for(cluster, topic):
    cluster.create(topic, factor=1)
    produce(cluster, topic, range(1000))
    for options, tasks in (
        ({}, 1),
        ({"minPartitions": "4"}, 4),
        ({"maxRecordsPerPartition": "300"}, 4),
    ):
        options = given(cluster, {"subscribe": topic, **options})
        reader = TopicReader(read_options(options, streaming=False))
        assert len(reader.partitions()) == tasks
    assert numbers(read_all(cluster, subscribe=topic, minPartitions="7")) == [*range(1000)]


def test_many_small_partitions_are_read_by_few_tasks(start_cluster, topic):
    cluster = start_cluster(brokers=2)
    for suffix in "xy":
        cluster.create(topic + suffix, partitions=40, factor=1)
        produce(cluster, topic + suffix, range(400), partitions=40)
    asked = {"subscribe": f"{topic}x,{topic}y"}
    reader = TopicReader(read_options(given(cluster, asked), streaming=False))
    assert len(reader.partitions()) == 16
    for more in ({}, {"kafka.client.rack": "a"}):
        rows = read_all(cluster, **asked, **more)
        places = {(row["topic"][-1], row["partition"], row["offset"]) for row in rows}
        assert places == {(t, p, o) for t in "xy" for p in range(40) for o in range(10)}
        assert len(rows) == 800
        assert all(int(row["value"]) % 40 == row["partition"] for row in rows)


def test_tasks_of_one_worker_share_connections_and_metadata(cluster, topic, monkeypatch):
    cluster.create(topic, partitions=2, factor=1)
    stream = Stream(cluster, subscribe=topic, startingOffsets="earliest")
    produce(cluster, topic, range(10), partitions=2)
    stream.batch()
    opened = []
    connect = socket.create_connection
    monkeypatch.setattr(
        socket, "create_connection", lambda *given: opened.append(given) or connect(*given)
    )
    for first in range(10, 60, 10):
        produce(cluster, topic, range(first, first + 10), partitions=2)
        assert stream.batch() == list(range(first, first + 10))
    assert opened == []


def test_a_topic_that_does_not_exist_is_named_and_not_created(cluster, topic):
    with pytest.raises(ConfigError, match=f"UNKNOWN_TOPIC_OR_PARTITION: there is no topic {topic}"):
        read_all(cluster, subscribe=topic)
    cluster.create(topic, factor=1)
    with pytest.raises(ConfigError, match=f"there is no {topic}-1 in this cluster"):
        read_all(cluster, assign=json.dumps({topic: [0, 1]}))


def delete_records(cluster: RealCluster, topic: str, before: int) -> None:
    """What retention does, at once."""
    wanted = TopicPartition(topic, 0, before)
    for future in cluster.admin.delete_records([wanted]).values():
        future.result(PATIENCE_S)


def test_what_retention_took_is_missed_or_passed_over(cluster, topic):
    cluster.create(topic, factor=1)
    produce(cluster, topic, range(10))
    options = given(cluster, {"subscribe": topic, "startingOffsets": "earliest"})
    (task,) = TopicReader(read_options(options, streaming=False)).partitions()
    delete_records(cluster, topic, before=6)
    for more in ({}, {"kafka.client.rack": "a"}):
        reader = TopicReader(read_options(options | more, streaming=False))
        with pytest.raises(DataLossError, match='set the source option "failOnDataLoss"'):
            list(reader.read(task))
        lenient = {"failOnDataLoss": "false"} | more
        reader = TopicReader(read_options(options | lenient, streaming=False))
        rows = [row for batch in reader.read(task) for row in batch.to_pylist()]
        assert numbers(rows) == [6, 7, 8, 9]
    start = json.dumps({topic: {"0": 2}})
    with pytest.raises(DataLossError, match="begins at 6, and offset 2 is asked for"):
        read_all(cluster, subscribe=topic, startingOffsets=start)


def test_what_compaction_removed_is_passed_over(cluster, topic):
    config = {
        "cleanup.policy": "compact",
        "min.cleanable.dirty.ratio": "0.01",
        "segment.bytes": "5000",
    }
    cluster.create(topic, factor=1, config=config)
    for _ in range(10):
        produce(cluster, topic, range(100))
    asked = {"subscribe": topic, "kafkaConsumer.pollTimeoutMs": "5000"}
    wait_until(lambda: len(read_all(cluster, **asked)) < 500, "most records are removed")
    for more in ({}, {"kafka.client.rack": "a"}):
        rows = read_all(cluster, **asked, **more, maxRecordsPerPartition="30")
        offsets = [row["offset"] for row in rows]
        assert offsets == sorted(set(offsets))
        last = {int(row["key"]): row["offset"] for row in rows}
        assert last == {number: 900 + number for number in range(100)}


def check_deleted_topic(options, task):
    """Both clients notice that the topic of a task is gone: an error, or no rows."""
    for more in ({}, {"kafka.client.rack": "a"}):
        reader = TopicReader(read_options(options | more, streaming=False))
        with pytest.raises(DataLossError, match="the topic was deleted"):
            list(reader.read(task))
        lenient = TopicReader(
            read_options(options | more | {"failOnDataLoss": "false"}, streaming=False)
        )
        assert list(lenient.read(task)) == []


def test_a_topic_that_goes_away_under_a_task_is_missed(cluster, topic, monkeypatch):
    monkeypatch.setattr(reaching, "GONE_AFTER_S", 0.5)
    cluster.create(topic, factor=1)
    produce(cluster, topic, range(3))
    options = given(cluster, {"subscribe": topic})
    (task,) = TopicReader(read_options(options, streaming=False)).partitions()
    cluster.admin.delete_topics([topic])[topic].result(PATIENCE_S)
    wait_until(lambda: cluster.znode(f"/brokers/topics/{topic}") is None, f"{topic} is deleted")
    check_deleted_topic(options, task)


def test_a_topic_that_is_created_again_under_a_task_is_another_one(cluster, topic, monkeypatch):
    monkeypatch.setattr(reaching, "GONE_AFTER_S", 0.5)
    cluster.create(topic, factor=1)
    produce(cluster, topic, range(3))
    options = given(cluster, {"subscribe": topic})
    (task,) = TopicReader(read_options(options, streaming=False)).partitions()
    recreate(cluster, topic)
    produce(cluster, topic, range(100, 103))
    check_deleted_topic(options, task)


def test_an_address_where_nobody_answers_is_said_in_seconds_and_once(capfd):
    nowhere = {"kafka.bootstrap.servers": "127.0.0.1:1,[::1]:1", "subscribe": "orders"}
    reader = TopicReader(read_options(nowhere, streaming=False))
    began_at = time.monotonic()
    with pytest.raises(UnavailableError, match=r"No broker answers at 127\.0\.0\.1:1 \(.*refused"):
        reader.partitions()
    assert time.monotonic() - began_at < 10
    assert capfd.readouterr().err == ""


def test_a_port_where_no_broker_speaks_is_said_in_seconds_and_once(capfd):
    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        options = {"kafka.bootstrap.servers": f"127.0.0.1:{port}", "subscribe": "orders"}
        reader = TopicReader(read_options(options, streaming=False))
        began_at = time.monotonic()
        with pytest.raises(
            UnavailableError,
            match=rf"cluster at 127\.0\.0\.1:{port} does not answer: .*nobody speaks",
        ):
            reader.partitions()
    assert time.monotonic() - began_at < 20
    assert "FAIL" not in capfd.readouterr().err


def test_a_cluster_that_is_slow_is_not_taken_for_mute(monkeypatch):
    """Whatever it says: a broker behind TLS does not understand the question."""
    monkeypatch.setattr(reaching, "_MUTE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        assert reaching.is_mute(address)
        monkeypatch.setattr(reaching, "_MUTE_S", PATIENCE_S)
        listening.accept()[0].close()

        def close() -> None:
            connection, _ = listening.accept()
            connection.close()

        speaker = threading.Thread(target=close)
        speaker.start()
        assert not reaching.is_mute(f"127.0.0.1:1,{address}")
        speaker.join()


# Streams


def test_a_stream_reads_everything_once(cluster, topic):
    cluster.create(topic, partitions=3, factor=1)
    produce(cluster, topic, range(10), partitions=3)
    stream = Stream(cluster, subscribe=topic, startingOffsets="earliest")
    assert stream.batch() == list(range(10))
    assert stream.plan() == stream.position
    assert stream.batch() == []
    produce(cluster, topic, range(10, 15), partitions=3)
    stream.restart()
    assert stream.batch() == list(range(10, 15))


def test_a_stream_begins_at_the_end_unless_told_otherwise(cluster, topic):
    cluster.create(topic, factor=1)
    produce(cluster, topic, range(5))
    stream = Stream(cluster, subscribe=topic)
    assert stream.batch() == []
    produce(cluster, topic, range(5, 7))
    assert stream.batch() == [5, 6]


def test_the_first_batch_is_the_same_after_a_restart(cluster, topic):
    cluster.create(topic, factor=1)
    produce(cluster, topic, range(5))
    stream = Stream(cluster, subscribe=topic)
    produce(cluster, topic, range(5, 8))
    planned = stream.plan()
    # The query dies with its first batch planned. By the time it is back there is more.
    produce(cluster, topic, range(8, 10))
    stream.restart()
    stream.position = stream.reader.initialOffset()
    assert stream.run(planned) == [5, 6, 7]
    assert stream.batch() == [8, 9]


def test_a_query_that_dies_with_its_first_batch_empty_can_be_restarted(cluster, topic):
    cluster.create(topic, factor=1)
    produce(cluster, topic, range(5))
    stream = Stream(cluster, subscribe=topic)
    planned = stream.plan()  # nothing, but Spark logs it
    produce(cluster, topic, range(5, 8))
    stream.restart()
    stream.position = stream._kept(stream.reader.initialOffset())
    assert stream.run(planned) == []
    assert stream.batch() == [5, 6, 7]
    assert stream.batch() == []


def test_the_first_batch_is_known_as_such_after_an_empty_one(cluster, topic):
    cluster.create(topic, factor=1)
    produce(cluster, topic, range(5))
    stream = Stream(cluster, subscribe=topic)
    assert stream.batch() == []
    produce(cluster, topic, range(5, 8))
    planned = stream.plan()
    stream.restart()
    assert stream.run(planned) == [5, 6, 7]
    produce(cluster, topic, range(8, 9))
    assert stream.batch() == [8]


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("choice", ["subscribe", "subscribePattern"])
def test_a_broker_that_does_not_know_the_topics_yet_costs_no_record(
    cluster, topic, forget_topics, fails, choice
):
    cluster.create(topic, partitions=2, factor=1)
    produce(cluster, topic, range(10), partitions=2)
    forget_topics(2)
    options = {choice: topic, "startingOffsets": "earliest", "failOnDataLoss": fails}
    stream = Stream(cluster, **options)
    assert stream.batch() == list(range(10))
    forget_topics(3)
    assert stream.plan() == stream.position, "there is nothing new"
    produce(cluster, topic, range(10, 20), partitions=2)
    forget_topics(3)
    assert stream.batch() == list(range(10, 20))
    produce(cluster, topic, range(20, 30), partitions=2)
    planned = stream.plan()
    stream.restart()  # so that the batch is planned by one that has not looked yet
    forget_topics(3)
    assert stream.run(planned) == list(range(20, 30))
    stream.restart()
    forget_topics(3)
    stream.reader.prepareForTriggerAvailableNow()
    assert stream.batch() == []


def test_a_stream_may_remember_which_partitions_there_are(cluster, topic, monkeypatch):
    cluster.create(topic, factor=1)
    asked = []
    describe = SourceCluster._describe
    monkeypatch.setattr(
        SourceCluster, "_describe", lambda self, names: asked.append(names) or describe(self, names)
    )
    ttl = {"partition.metadata.cache.ttl.ms": "60000"}
    stream = Stream(cluster, subscribe=topic, startingOffsets="earliest", **ttl)
    for number in range(4):
        produce(cluster, topic, range(number, number + 1))
        assert stream.batch() == [number]
    assert len(asked) == 2  # where to begin, and how far to go the first time


def test_how_far_a_stream_is_can_be_committed_to_a_group(cluster, topic):
    cluster.create(topic, partitions=2, factor=1)
    produce(cluster, topic, range(10), partitions=2)
    group = f"lag-{topic}"
    stream = Stream(cluster, subscribe=topic, startingOffsets="earliest", commitOffsets=group)
    stream.batch()
    stream.reader.commit(stream.position)
    asked = ConsumerGroupTopicPartitions(group)
    (future,) = cluster.admin.list_consumer_group_offsets([asked]).values()
    found = future.result(PATIENCE_S).topic_partitions
    assert {(each.partition, each.offset) for each in found} == {(0, 5), (1, 5)}


def test_offsets_that_spark_wrote_itself_are_read(cluster, topic):
    cluster.create(topic, partitions=2, factor=1)
    produce(cluster, topic, range(10), partitions=2)
    stream = Stream(cluster, subscribe=topic)
    stream.position = json.loads(f'{{"{topic}":{{"0":2,"1":4}}}}')
    end = json.loads(f'{{"{topic}":{{"0":3,"1":5}}}}')
    assert stream.run(end) == [4, 9]
    assert stream.batch() == [6, 8]


def test_partitions_and_topics_that_are_added_are_read_from_their_beginning(cluster, topic):
    cluster.create(topic + "x", factor=1)
    produce(cluster, topic + "x", range(3))
    stream = Stream(cluster, subscribePattern=topic + ".*", startingOffsets="latest")
    futures = cluster.admin.create_partitions([NewPartitions(topic + "x", 2)])
    futures[topic + "x"].result(PATIENCE_S)
    cluster.create(topic + "y", factor=1)
    wait_until(
        lambda: cluster._sees(cluster[1], topic + "x", 2), "the added partition has a leader"
    )
    produce(cluster, topic + "x", range(3, 8), partitions=2)
    produce(cluster, topic + "y", range(8, 10))
    assert stream.batch() == list(range(3, 10))


def test_a_batch_takes_no_more_than_it_may(cluster, topic):
    cluster.create(topic, partitions=2, factor=1)
    produce(cluster, topic, range(100), partitions=2)
    stream = Stream(cluster, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    assert stream.reader.getDefaultReadLimit() == ReadMaxRows(40)
    sizes = [len(stream.batch()) for _ in range(4)]
    assert sizes == [40, 40, 20, 0]
    stream = Stream(cluster, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="40")
    assert len(stream.batch(ALL)) == 100


def test_a_batch_waits_for_enough_but_not_forever(cluster, topic):
    cluster.create(topic, factor=1)
    options = {"subscribe": topic, "minOffsetsPerTrigger": "10", "startingOffsets": "earliest"}
    stream = Stream(cluster, **options, maxTriggerDelay="1h")
    assert stream.reader.getDefaultReadLimit() == ReadMinRows(10)
    produce(cluster, topic, range(4))
    assert stream.batch() == [0, 1, 2, 3]  # the first one does not wait
    produce(cluster, topic, range(4, 9))
    assert stream.batch() == []
    produce(cluster, topic, range(9, 14))
    assert stream.batch() == list(range(4, 14))
    stream = Stream(cluster, **options, maxTriggerDelay="1ms")
    stream.batch()
    produce(cluster, topic, range(14, 16))
    time.sleep(0.002)
    assert stream.batch() == [14, 15]


def test_what_is_available_now_is_read_and_nothing_later(cluster, topic):
    cluster.create(topic, factor=1)
    produce(cluster, topic, range(10))
    stream = Stream(
        cluster,
        subscribe=topic,
        startingOffsets="earliest",
        maxOffsetsPerTrigger="6",
        minOffsetsPerTrigger="6",
    )
    stream.reader.prepareForTriggerAvailableNow()
    produce(cluster, topic, range(10, 20))
    assert [stream.batch() for _ in range(3)] == [[*range(6)], [*range(6, 10)], []]


def test_progress_says_how_far_behind_the_stream_is(cluster, topic):
    cluster.create(topic, partitions=2, factor=1)
    stream = Stream(cluster, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="10")
    produce(cluster, topic, range(40), partitions=2)
    stream.batch()
    report = stream.reader.reportLatestOffset()
    assert report[topic] == {"0": 20, "1": 20}
    assert report[RESERVED_KEY]["maxOffsetsBehindLatest"] == 15
    assert report[RESERVED_KEY]["avgOffsetsBehindLatest"] == 15


def recreate(cluster: RealCluster, topic: str) -> None:
    cluster.admin.delete_topics([topic])[topic].result(PATIENCE_S)

    def is_created() -> bool:
        try:
            cluster.create(topic, factor=1)
        except KafkaException as error:
            # While the last of it is being deleted, it still exists.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    wait_until(is_created, f"{topic} is deleted and created again")


def test_a_topic_that_was_deleted_and_created_again_is_not_the_same(cluster, topic, monkeypatch):
    monkeypatch.setattr(reaching, "GONE_AFTER_S", 0.5)
    cluster.create(topic, factor=1)
    produce(cluster, topic, range(5))
    streams = {
        fails: Stream(cluster, subscribe=topic, startingOffsets="earliest", failOnDataLoss=fails)
        for fails in ("true", "false")
    }
    assert all(stream.batch() == list(range(5)) for stream in streams.values())
    recreate(cluster, topic)
    produce(cluster, topic, range(100, 105))  # so that the offsets alone say nothing
    with pytest.raises(DataLossError, match="was deleted and created again"):
        streams["true"].batch()
    assert streams["false"].batch() == list(range(100, 105))
    assert streams["false"].batch() == []


def test_a_topic_that_is_gone_is_missed(cluster, topic, monkeypatch):
    monkeypatch.setattr(reaching, "GONE_AFTER_S", 0.5)
    for suffix in ("x", "y"):
        cluster.create(topic + suffix, factor=1)
        produce(cluster, topic + suffix, range(2))
    streams = {
        fails: Stream(
            cluster,
            subscribe=f"{topic}x,{topic}y",
            startingOffsets="earliest",
            failOnDataLoss=fails,
        )
        for fails in ("true", "false")
    }
    assert all(stream.batch() == [0, 0, 1, 1] for stream in streams.values())
    cluster.admin.delete_topics([topic + "x"])[topic + "x"].result(PATIENCE_S)
    wait_until(lambda: cluster.znode(f"/brokers/topics/{topic}x") is None, "the topic is deleted")
    produce(cluster, topic + "y", range(2, 4))
    with pytest.raises(DataLossError, match=f"{topic}x-0 are gone"):
        streams["true"].batch()
    assert streams["false"].batch() == [2, 3]


def raise_leader_epoch(cluster: RealCluster, topic: str) -> None:
    """Have the controller write a new epoch for the leader that there is."""
    before = cluster.state(topic)
    first, *others = cluster.znode(f"/brokers/topics/{topic}")["partitions"]["0"]
    wanted = {"topic": topic, "partition": 0, "replicas": [first, *reversed(others)]}
    cluster.zk.create(
        "/admin/reassign_partitions", json.dumps({"version": 1, "partitions": [wanted]}).encode()
    )
    wait_until(
        lambda: cluster.state(topic)["leader_epoch"] > before["leader_epoch"],
        "the leader has a new epoch",
    )
    assert cluster.leader(topic) == before["leader"]


def test_a_leader_that_dies_costs_time_and_no_record(start_cluster, topic):
    cluster = start_cluster(brokers=3)
    cluster.create(topic, partitions=3, factor=3)
    produce(cluster, topic, range(300), partitions=3, acks="all")
    stream = Stream(
        cluster, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="150"
    )
    first = stream.batch()
    raise_leader_epoch(cluster, topic)
    planned = stream.plan()
    cluster[cluster.leader(topic)].kill()
    second = stream.run(planned)
    produce(cluster, topic, range(300, 400), partitions=3, acks="all")
    assert sorted(first + second + stream.batch(ALL)) == list(range(400))
