"""The source with Spark's own defaults, on executors, with accidents: `make spark-test`.

The session of the other tests is for little data. Here are adaptive execution and generated code,
eight shuffle partitions and eight splits, and every way gives the same table.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.pipeline.source.conftest import produce
from tests.pipeline.source.shipped_job import MODES
from tests.pipeline.source.test_source_spark import load
from tests.support.object_storage import object_storage
from tests.support.spark_masters import spark_master
from tools.fetch_kafka import NoMavenError, fetch_jars

pytestmark = [pytest.mark.real, pytest.mark.spark_heavy, pytest.mark.timeout(900)]

COUNT = 40_000
PARTITIONS = 4
AWS_SDK = "2.35.4"


def run(mode: str, *arguments: str) -> Any:
    script = Path(__file__).with_name("shipped_job.py")
    finished = subprocess.run(
        [sys.executable, script, mode, *arguments],
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    return json.loads(finished.stdout.splitlines()[-1])


#: Which accidents happen on which Spark: executors have to be processes to be killed.
WAYS = [
    *(("local-cluster", mode) for mode in MODES),
    *(("standalone", mode) for mode in MODES),
    ("connect", "plain"),
    ("connect", "failing"),
]


@pytest.mark.parametrize(("kind", "mode"), WAYS)
def test_whatever_happens_the_table_is_the_same(kind, mode, spark, cluster, topic, tmp_path):
    cluster.create(topic, partitions=PARTITIONS, factor=1)
    produce(cluster, topic, range(COUNT), partitions=PARTITIONS)
    little = load(spark, cluster, subscribe=topic).selectExpr(
        "partition", "offset", "cast(cast(value as string) as long) number"
    )
    expected = (
        little.groupBy("partition")
        .agg({"number": "sum", "offset": "max", "*": "count"})
        .orderBy("partition")
        .collect()
    )
    with spark_master(kind, tmp_path / "spark") as master:
        found = run(mode, master, cluster.bootstrap, topic, str(tmp_path / "out"))
    for way in ("batch", "stream"):
        assert found[way]["rows"] == COUNT, way
        assert sorted(map(sorted, found[way]["table"])) == sorted(sorted(row) for row in expected)


@pytest.fixture(scope="session")
def s3a_jars() -> str:
    """Hadoop's file system for S3, without the half gigabyte of all of AWS that it names."""
    (hadoop,) = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    version = hadoop.stem.rpartition("-")[2]
    parts = ("s3", "s3-transfer-manager", "sts")
    artifacts = [f"software.amazon.awssdk:{part}:{AWS_SDK}" for part in parts]
    without = ("software.amazon.awssdk:bundle", "io.netty:*", "org.slf4j:*")
    try:
        folder = fetch_jars("s3a", [f"org.apache.hadoop:hadoop-aws:{version}", *artifacts], without)
    except (NoMavenError, subprocess.CalledProcessError) as error:
        pytest.skip(f"hadoop-aws cannot be had: {error}")
    return ",".join(str(jar) for jar in sorted(folder.glob("*.jar")))


def test_a_checkpoint_and_a_table_on_object_storage_are_right_over_a_restart(
    s3a_jars, cluster, topic
):
    cluster.create(topic, partitions=PARTITIONS, factor=1)
    script = Path(__file__).with_name("s3a_job.py")
    with object_storage() as bucket:
        for end in (1000, 1500):
            produce(cluster, topic, range(end - 500, end), partitions=PARTITIONS)
            finished = subprocess.run(
                [sys.executable, script, cluster.bootstrap, topic, bucket, s3a_jars],
                env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
                capture_output=True,
                text=True,
                timeout=600,
            )
            assert finished.returncode == 0, finished.stderr[-4000:]
        found = json.loads(finished.stdout.splitlines()[-1])
    assert found == {"numbers": list(range(500, 1500))}
