"""format("klamm") in a real session: registered by being installed, batch and streaming."""

import json
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tests.pipeline.source.conftest import produce
from tests.pipeline.source.test_reader import NOW
from tests.support.cluster import RealCluster

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

#: The columns of Spark's own `kafka` format.
COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, "
    "timestampType int"
)


def load(spark: SparkSession, cluster: RealCluster, **options: str) -> DataFrame:
    reader = spark.read.format("klamm").option("kafka.bootstrap.servers", cluster.bootstrap)
    return reader.options(**options).load()


def load_stream(spark: SparkSession, cluster: RealCluster, **options: str) -> DataFrame:
    reader = spark.readStream.format("klamm").option("kafka.bootstrap.servers", cluster.bootstrap)
    return reader.options(**options).load()


def run_to_files(stream: DataFrame, folder: Path) -> int:
    """Read what is available now into Parquet files; how many batches that took."""
    query = (
        stream.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "rows"))
    )
    query.awaitTermination()
    return sum(progress["numInputRows"] > 0 for progress in query.recentProgress)


def numbers(frame: DataFrame) -> list[int]:
    rows = frame.selectExpr("cast(cast(value as string) as int) number").collect()
    return sorted(row.number for row in rows)


def test_a_data_frame_goes_to_a_topic_and_back(spark, cluster, topic):
    cluster.create(topic, partitions=2, factor=1)
    frame = spark.range(1000).selectExpr(
        "cast(id % 7 as string) key",
        "cast(id as string) value",
        "array(named_struct('key', 'n', 'value', cast('1' as binary))) headers",
    )
    frame.write.format("klamm").mode("append").options(
        **{"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic}
    ).save()
    found = load(spark, cluster, subscribe=topic, minPartitions="3")
    assert found.schema == StructType.fromDDL(COLUMNS)
    assert numbers(found) == list(range(1000))
    with_headers = load(spark, cluster, subscribe=topic, includeHeaders="true")
    assert with_headers.schema == StructType.fromDDL(
        f"{COLUMNS}, headers array<struct<key:string,value:binary>>"
    )
    row = with_headers.where("cast(value as string) = '8'").collect()[0]
    assert (row.key, row.topic, row.timestampType) == (b"1", topic, 0)
    assert [(header.key, header.value) for header in row.headers] == [("n", b"1")]


def test_a_read_may_have_some_of_the_columns(spark, cluster, topic):
    cluster.create(topic, partitions=2, factor=1)
    produce(cluster, topic, range(20), partitions=2, headers=[("a", b"1")])
    wanted = "offset bigint, headers array<struct<key:string,value:binary>>, topic string"
    for more in ({}, {"kafka.client.rack": "a"}):
        options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": topic, **more}
        rows = spark.read.format("klamm").schema(wanted).options(**options).load().collect()
        assert len(rows) == 20
        assert rows[0].__fields__ == ["offset", "headers", "topic"]
        assert {(row.topic, row.headers[0].value) for row in rows} == {(topic, b"1")}
    unknown = spark.read.format("klamm").schema("valu binary").options(**options)
    with pytest.raises(AnalysisException, match="There is no column 'valu'; the columns are key"):
        unknown.load().collect()


def test_filters_are_pushed_down_if_so_asked(spark, cluster, topic):
    for suffix in "xy":
        cluster.create(topic + suffix, partitions=3, factor=1)
        produce(
            cluster,
            topic + suffix,
            range(30),
            partitions=3,
            timestamp=lambda number: NOW + 1000 * number,
        )
    asked = {"subscribePattern": topic + ".", "pushFilters": "true"}
    with pytest.raises(AnalysisException, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
        load(spark, cluster, **asked).collect()
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        for condition in (
            f"topic = '{topic}x'",
            f"topic in ('{topic}y', 'z') and partition >= 1",
            "partition in (0, 2) and offset between 3 and 5",
            "offset > 7 or partition = 1",
            f"timestamp >= timestamp_millis({NOW + 20_500})",
            f"timestamp = timestamp_millis({NOW + 4000})",
            f"timestamp < timestamp_millis({NOW + 4000}) and offset <= 1",
            "offset < 0",
            f"topic like '{topic}_' and value is not null",
        ):
            filtered = load(spark, cluster, **asked).where(condition)
            whole = load(spark, cluster, subscribePattern=topic + ".").where(condition)
            columns = ("topic", "partition", "offset", "timestamp", "value")
            assert sorted(filtered.select(*columns).collect()) == sorted(
                whole.select(*columns).collect()
            ), condition
        one = load(spark, cluster, **asked).where(f"topic = '{topic}x' and partition = 1")
        assert one.rdd.getNumPartitions() == 1
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_query_goes_on_where_it_was(spark, cluster, topic, tmp_path):
    cluster.create(topic, partitions=2, factor=1)
    produce(cluster, topic, range(100), partitions=2)
    stream = load_stream(
        spark, cluster, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="60"
    )
    assert run_to_files(stream, tmp_path) == 2
    produce(cluster, topic, range(100, 130), partitions=2)
    assert run_to_files(stream, tmp_path) == 1
    assert numbers(spark.read.parquet(str(tmp_path / "rows"))) == list(range(130))


def test_a_checkpoint_of_sparks_own_format_is_taken_over(spark, cluster, topic, tmp_path):
    cluster.create(topic, partitions=2, factor=1)
    produce(cluster, topic, range(20), partitions=2)
    checkpoint = tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "commits").mkdir()
    head = {"batchWatermarkMs": 0, "batchTimestampMs": 1735689600000, "conf": {}}
    offsets = json.dumps({topic: {"0": 4, "1": 8}}, separators=(",", ":"))
    (checkpoint / "offsets" / "0").write_text(f"v1\n{json.dumps(head)}\n{offsets}")
    (checkpoint / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    (checkpoint / "metadata").write_text('{"id":"8e1c2f4a-3b0d-4a63-9d3f-3f1b7f0c9a11"}')
    found = []
    query = (
        load_stream(spark, cluster, subscribe=topic)
        .writeStream.foreachBatch(lambda frame, _: found.extend(numbers(frame)))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(found) == sorted([*range(8, 20, 2), 17, 19])


def test_a_stream_is_written_to_a_topic(spark, cluster, topic, tmp_path):
    for suffix in ("-in", "-out"):
        cluster.create(topic + suffix, partitions=2, factor=1)
    produce(cluster, topic + "-in", range(50), partitions=2)
    stream = load_stream(spark, cluster, subscribe=f"{topic}-in", startingOffsets="earliest")
    query = (
        stream.selectExpr("key", "value", f"'{topic}-out' topic")
        .writeStream.format("klamm")
        .option("kafka.bootstrap.servers", cluster.bootstrap)
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert numbers(load(spark, cluster, subscribe=f"{topic}-out")) == list(range(50))


def test_what_is_wrong_is_said_first_and_without_a_traceback(spark, cluster, topic):
    def first_line(error: pytest.ExceptionInfo[Exception]) -> str:
        assert "Traceback" not in str(error.value)
        return str(error.value).splitlines()[0]

    with pytest.raises(AnalysisException) as unknown:
        load(spark, cluster, subscribe=topic, startingOffset="earliest")
    assert "did you mean 'startingOffsets'" in first_line(unknown)
    stream = load_stream(spark, cluster, subscribe=topic, endingOffsets="latest")
    with pytest.raises(StreamingQueryException) as not_for_streams:
        stream.writeStream.format("noop").start().awaitTermination()
    assert "ending offset not valid in streaming queries" in first_line(not_for_streams)
    with pytest.raises(AnalysisException) as missing:
        load(spark, cluster, subscribe=topic).collect()
    assert f"there is no topic {topic}" in first_line(missing)


def test_what_is_wrong_reaches_the_user(spark, cluster, topic):
    with pytest.raises(AnalysisException, match="did you mean 'startingOffsets'"):
        load(spark, cluster, subscribe=topic, startingOffset="earliest").collect()
    other = spark.read.format("klamm").schema("value string").option("subscribe", topic)
    with pytest.raises(AnalysisException, match="'value' is binary, not string; cast it after"):
        other.option("kafka.bootstrap.servers", cluster.bootstrap).load().collect()
    with pytest.raises(AnalysisException, match="Required attribute 'value' not found"):
        spark.range(1).write.format("klamm").mode("append").options(
            **{"kafka.bootstrap.servers": cluster.bootstrap, "topic": topic}
        ).save()
