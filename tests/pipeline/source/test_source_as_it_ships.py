"""The source with Spark's own defaults, on executors, with accidents: `make spark-test`.

The session of the other tests is for little data. Here are adaptive execution and generated code,
eight shuffle partitions and eight splits, and every way gives the same table.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.source.conftest import produce
from tests.pipeline.source.shipped_job import MODES
from tests.pipeline.source.test_source_spark import load

pytestmark = [pytest.mark.real, pytest.mark.spark_heavy, pytest.mark.timeout(900)]

COUNT = 40_000
PARTITIONS = 4


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


@pytest.mark.parametrize("mode", MODES)
def test_whatever_happens_the_table_is_the_same(mode, spark, cluster, topic):
    if mode == "connect" and find_spec("grpc") is None:
        pytest.skip("Spark Connect needs grpcio")
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
    found = run(mode, cluster.bootstrap, topic)
    assert found["rows"] == COUNT
    assert sorted(map(sorted, found["table"])) == sorted(sorted(row) for row in expected)
