"""`klamm ingest` on executors that are processes of their own: `make spark-test`."""

import json
import os
import subprocess
import sys

import pytest

from tests.pipeline.ingest.records import Place
from tests.pipeline.ingest.test_run import produce
from tests.support.spark_masters import KINDS, spark_master

pytestmark = [pytest.mark.real, pytest.mark.spark_heavy, pytest.mark.timeout(900)]

COUNT = 3000


@pytest.fixture(scope="module", params=KINDS)
def master(request, tmp_path_factory):
    with spark_master(request.param, tmp_path_factory.mktemp(request.param)) as url:
        yield url


def ingest(cluster, master, *arguments):
    done = subprocess.run(
        [
            *(sys.executable, "-m", "klamm", "ingest", *arguments, "--master", master, "--json"),
            *("--bootstrap-server", cluster.bootstrap),
        ],
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done


def succeed(*arguments):
    done = ingest(*arguments)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
def test_a_table_follows_its_topic(master, kind, cluster, topic, tmp_path):
    place = Place(kind, tmp_path)
    to = ["--to", str(place.target()), "--format", "json", "--checkpoint", f"{tmp_path}/memory"]
    for key, value in place.catalog.items():
        to += ["--catalog-property", f"{key}={value}"]
    produce(cluster, topic, [{"id": n} if n % 100 else b"bad" for n in range(COUNT)])
    first = succeed(cluster, master, topic, *to, "--batch-records", "1000")
    assert (first["records"], first["bad"], first["lag"]) == (COUNT, COUNT // 100, 0)
    produce(cluster, topic, [{"id": n} for n in range(COUNT, COUNT + 10)])
    assert succeed(cluster, master, topic, *to)["records"] == 10
    expected = [n for n in range(COUNT + 10) if n % 100 or n >= COUNT]
    assert sorted(each["id"] for each in place.rows()) == expected
    assert len(place.rows("orders_dead_letters", order="offset")) == COUNT // 100


def test_rows_are_merged_by_executors(master, cluster, topic, tmp_path):
    place = Place("delta", tmp_path)
    to = ["--to", str(place.target()), "--format", "json", "--mode", "upsert", "--key", "id"]
    produce(cluster, topic, [{"id": n, "n": 0} for n in range(50)], keys=range(50))
    succeed(cluster, master, topic, *to)
    produce(cluster, topic, [{"id": n, "n": 1} for n in range(5)] + [None] * 5, keys=range(10))
    succeed(cluster, master, topic, *to)
    found = {each["id"]: each["n"] for each in place.rows()}
    assert found == {n: 1 if n < 5 else 0 for n in range(50) if not 5 <= n < 10}


def test_what_a_task_says_reaches_the_user(master, cluster, topic, tmp_path):
    produce(cluster, topic, [{"id": 1}, {"id": -1}])
    arguments = (topic, "--to", f"delta:{tmp_path}/orders", "--format", "json")
    failed = ingest(cluster, master, *arguments, "--expect", "fail: id > 0")
    assert failed.returncode == 1
    assert "1 row of a batch breaks the expectation 'id > 0'" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert succeed(cluster, master, *arguments)["rows"] == 2


def test_a_connect_server_that_is_not_there_is_named(cluster, topic, tmp_path):
    failed = ingest(cluster, "sc://127.0.0.1:1", topic, "--to", f"delta:{tmp_path}/orders")
    assert failed.returncode == 1
    assert "The Spark Connect server sc://127.0.0.1:1 cannot be used" in failed.stderr
