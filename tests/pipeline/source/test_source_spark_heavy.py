"""What takes a cluster, several Sparks and minutes: `make spark-test`."""

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions
from pyspark.errors import AnalysisException, StreamingQueryException

from tests.pipeline.source.conftest import produce
from tests.pipeline.source.test_options import WRONG_FOR_A_BATCH, WRONG_FOR_A_STREAM
from tests.pipeline.source.test_reader import NOW
from tests.pipeline.source.test_source_spark import load, load_stream, numbers
from tests.support.cluster import RealCluster
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.real, pytest.mark.spark_heavy, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[3]
LONG_S = 240.0


@contextmanager
def endless_query(cluster: RealCluster, topic: str, folder: Path) -> Iterator[None]:
    """A query that is killed at the end, with the JVM and the workers that it has."""
    command = [sys.executable, "-m", "tests.pipeline.source.endless_query"]
    with (folder / "output").open("ab") as output:
        process = subprocess.Popen(
            [*command, cluster.bootstrap, topic, str(folder)],
            stdout=output,
            stderr=output,
            cwd=ROOT,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def committed_batches(folder: Path) -> int:
    names = (path.name for path in (folder / "checkpoint" / "commits").glob("[0-9]*"))
    return max(map(int, names), default=-1) + 1


def test_a_query_that_is_killed_has_read_everything_once(spark, start_cluster, topic, tmp_path):
    cluster = start_cluster(brokers=3)
    cluster.create(topic, partitions=3, factor=3)
    produce(cluster, topic, range(5000), partitions=3, acks="all")
    with endless_query(cluster, topic, tmp_path):
        wait_until(lambda: committed_batches(tmp_path) >= 3, "some batches are done", LONG_S)
    done = committed_batches(tmp_path)
    assert done < 10, "the query was killed too late to show anything"
    # Meanwhile the topic grows, and one of the leaders dies.
    futures = cluster.admin.create_partitions([NewPartitions(topic, 4)])
    futures[topic].result(PATIENCE_S)
    wait_until(lambda: cluster._sees(cluster[1], topic, 4), "the added partition has a leader")
    produce(cluster, topic, range(5000, 6000), partitions=4, acks="all")
    with endless_query(cluster, topic, tmp_path):
        wait_until(lambda: committed_batches(tmp_path) > done, "it goes on", LONG_S)
        cluster[cluster.leader(topic)].kill()
        rows = str(tmp_path / "rows")
        wait_until(lambda: spark.read.parquet(rows).count() >= 6000, "all is read", LONG_S)
    assert numbers(spark.read.parquet(rows)) == list(range(6000))


def test_a_leader_is_killed_under_a_running_query(spark, start_cluster, topic):
    cluster = start_cluster(brokers=3)
    cluster.create(topic, partitions=3, factor=3)
    produce(cluster, topic, range(3000), partitions=3, acks="all")
    stream = load_stream(
        spark, cluster, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="500"
    )
    name = topic.replace("-", "_")
    query = stream.writeStream.format("memory").queryName(name).start()
    try:
        wait_until(lambda: query.recentProgress, "the first batch is done", LONG_S)
        cluster[cluster.leader(topic)].kill()
        produce(cluster, topic, range(3000, 4000), partitions=3, acks="all")
        wait_until(lambda: spark.table(name).count() >= 4000, "all is read", LONG_S)
        assert query.isActive
    finally:
        query.stop()
    assert numbers(spark.table(name)) == list(range(4000))


ROUNDS = 20
PER_ROUND = 200


def test_brokers_restarted_in_rounds_cost_no_record_and_raise_no_alarm(
    spark, start_cluster, topic, tmp_path
):
    """Under two running streams, with either `failOnDataLoss`; every third restart is a crash."""
    cluster = start_cluster(brokers=3)
    cluster.create(topic, partitions=6, factor=3)

    def produce_round(number: int) -> None:
        numbers = range(number * PER_ROUND, (number + 1) * PER_ROUND)
        produce(cluster, topic, numbers, partitions=6, acks="all", enable_idempotence=True)

    queries = {}
    for fails in ("true", "false"):
        stream = load_stream(
            spark, cluster, subscribe=topic, startingOffsets="earliest", failOnDataLoss=fails
        )
        queries[fails] = (
            stream.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / fails / "checkpoint"))
            .start(str(tmp_path / fails / "rows"))
        )
    try:
        for number in range(ROUNDS):
            broker = cluster[number % 3 + 1]
            if number % 3 == 2:
                broker.kill()
            else:
                broker.stop()
            produce_round(number)
            broker.start()
            cluster.wait_ready()
            cluster.wait_isr(topic, {1, 2, 3})
        count = ROUNDS * PER_ROUND
        for fails, query in queries.items():
            rows = str(tmp_path / fails / "rows")
            wait_until(
                lambda query=query, rows=rows: (
                    not query.isActive or spark.read.parquet(rows).count() >= count
                ),
                "all is read",
                LONG_S,
            )
            assert query.exception() is None, f"failOnDataLoss={fails}"
            assert query.isActive
    finally:
        for query in queries.values():
            query.stop()
    for fails in queries:
        read = numbers(spark.read.parquet(str(tmp_path / fails / "rows")))
        assert read == list(range(count)), f"failOnDataLoss={fails}"


def test_every_way_to_say_where_reading_begins_and_ends(spark, cluster, topic):
    cluster.create(topic, partitions=2, factor=1)
    produce(cluster, topic, range(20), partitions=2, timestamp=lambda number: NOW + number)
    each_at = {"0": NOW + 4, "1": NOW + 9}
    ways = [
        ({}, range(20)),
        ({"startingOffsets": "earliest", "endingOffsets": "latest"}, range(20)),
        ({"startingOffsets": {"0": 5, "1": -2}}, [*range(1, 10, 2), *range(10, 20)]),
        ({"endingOffsets": {"0": 5, "1": -1}}, [*range(10), *range(11, 20, 2)]),
        ({"startingTimestamp": NOW + 4, "endingTimestamp": NOW + 8}, range(4, 8)),
        ({"startingOffsetsByTimestamp": each_at}, [4, 6, 8, *range(9, 20)]),
        ({"endingOffsetsByTimestamp": each_at}, [0, 1, 2, 3, 5, 7]),
        (
            {
                "startingTimestamp": NOW + 99,
                "startingOffsetsByTimestampStrategy": "latest",
            },
            [],
        ),
        ({"minPartitions": 5}, range(20)),
        ({"maxRecordsPerPartition": 3}, range(20)),
    ]
    for way, expected in ways:
        options = {
            name: json.dumps({topic: value}) if isinstance(value, dict) else str(value)
            for name, value in way.items()
        }
        assert numbers(load(spark, cluster, subscribe=topic, **options)) == [*expected], way


def test_whatever_is_wrong_with_options_reaches_the_user(spark, cluster):
    def told(wrong: dict[str, str | None]) -> dict[str, str]:
        options = {"kafka.bootstrap.servers": cluster.bootstrap, "subscribe": "orders"} | wrong
        return {name: value for name, value in options.items() if value is not None}

    for wrong, message in WRONG_FOR_A_BATCH:
        with pytest.raises(AnalysisException, match=message):
            spark.read.format("klamm").options(**told(wrong)).load().collect()
    for wrong, message in WRONG_FOR_A_STREAM:
        # What is wrong for a batch as well is said by `load`.
        with pytest.raises((AnalysisException, StreamingQueryException), match=message):
            spark.readStream.format("klamm").options(**told(wrong)).load().writeStream.format(
                "noop"
            ).start().awaitTermination()


#: What a user's job does; the executors are processes of their own.
_JOB = """
import sys
from pyspark.sql import SparkSession
from pyspark_klamm import DefaultSource

bootstrap, topic = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()
# Spark looks for sources among what is installed, not among what is shipped.
spark.dataSource.register(DefaultSource)
options = {"kafka.bootstrap.servers": bootstrap}
frame = spark.range(4000).repartition(4).selectExpr("cast(id as string) value")
frame.write.format("klamm").mode("append").options(**options, topic=topic).save()
found = spark.read.format("klamm").options(**options, subscribe=topic).load()

def places(batches):
    import klamm, pyarrow
    for batch in batches:
        yield pyarrow.record_batch({"place": [klamm.__file__] * batch.num_rows})

print("READ", found.selectExpr("sum(cast(cast(value as string) as int))").first()[0])
for row in found.select("offset").mapInArrow(places, "place string").distinct().collect():
    print("FROM", row.place)
spark.stop()
"""


def without_klamm(folder: Path) -> Path:
    """A Python that has all that klamm depends on, and not klamm."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (here,) = (folder / "lib").glob("python3*/site-packages")
    (installed,) = (Path(sys.prefix) / "lib").glob("python3*/site-packages")
    for entry in installed.iterdir():
        if "klamm" not in entry.name:
            (here / entry.name).symlink_to(entry)
    return folder / "bin" / "python"


def test_the_package_is_shipped_to_executors_elsewhere(cluster, topic, tmp_path):
    cluster.create(topic, partitions=4, factor=1)
    package = tmp_path / "klamm.zip"
    with zipfile.ZipFile(package, "w") as archive:
        for path in (ROOT / "src").rglob("*.py"):
            archive.write(path, path.relative_to(ROOT / "src"))
    python = without_klamm(tmp_path / "python")
    job = tmp_path / "job.py"
    job.write_text(_JOB)
    submit = Path(sys.executable).with_name("spark-submit")
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    finished = subprocess.run(
        [
            *(str(submit), "--master", "local-cluster[2,1,1024]", "--py-files", str(package)),
            *(word for key, value in settings.items() for word in ("--conf", f"{key}={value}")),
            *(str(job), cluster.bootstrap, topic),
        ],
        env=os.environ
        | {
            "PYSPARK_PYTHON": str(python),
            "PYSPARK_DRIVER_PYTHON": str(python),
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=800,
    )
    # What the job itself says, its traceback too, goes to the standard output.
    assert finished.returncode == 0, finished.stdout + finished.stderr[-2000:]
    lines = finished.stdout.splitlines()
    assert f"READ {sum(range(4000))}" in lines
    places = [line for line in lines if line.startswith("FROM ")]
    assert places
    assert all("klamm.zip" in place for place in places)
