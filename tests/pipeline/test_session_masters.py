"""All four commands on executors that are processes of their own: two workers, one core each."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from klamm.zookeeper import znodes
from klamm.zookeeper.server import ZooKeeperServer
from tests.pipeline.history.night import night
from tests.pipeline.snapshot.test_zookeeper import broker, fill
from tests.support.snapshots import make_snapshot

pytestmark = [pytest.mark.real, pytest.mark.spark_heavy, pytest.mark.timeout(900)]

TWO_WORKERS = "local-cluster[2,1,1024]"
#: What a machine with little memory and nobody watching wants of Spark.
SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def beside_python(name: str) -> str:
    return str(Path(sys.executable).with_name(name))


def directly(*arguments: str) -> list[str]:
    return [beside_python("klamm"), *arguments, "--master", TWO_WORKERS]


def submitted(*arguments: str) -> list[str]:
    settings = (word for key, value in SETTINGS.items() for word in ("--conf", f"{key}={value}"))
    script = find_spec("klamm.__main__")
    assert script is not None
    assert script.origin is not None
    submit = beside_python("spark-submit")
    return [submit, "--master", TWO_WORKERS, *settings, script.origin, *arguments]


def succeed(command: Sequence[str], folder: Path) -> Any:
    """The JSON that the command printed; it must have gone well."""
    done = subprocess.run(
        command,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    said = [line for line in done.stderr.splitlines() if " INFO " not in line]
    lines = done.stdout.splitlines()
    assert done.returncode == 0, "\n".join([*said[-80:], *lines[-40:]])
    # `spark-submit` joins the standard error to the output, so JSON comes last there.
    begins = next(at for at, line in enumerate(lines) if line in ("{", "["))
    return json.loads("\n".join(lines[begins:]))


@pytest.fixture(params=[directly, submitted], ids=lambda way: way.__name__)
def klamm(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """A command line, run either way in a folder of its own."""
    return lambda *arguments: succeed(request.param(*arguments), tmp_path)


@pytest.fixture
def snapshot(tmp_path: Path) -> tuple[str, str]:
    """Six brokers in three racks, of which each partition has three replicas."""
    taken = make_snapshot(partitions=60)
    for name in ("brokers", "topics", "partitions", "meta"):
        (tmp_path / "snapshot" / name).mkdir(parents=True)
        pq.write_table(getattr(taken, name), tmp_path / "snapshot" / name / "part.parquet")
    return "--snapshot", "snapshot"


def test_a_snapshot_is_taken(klamm, zookeeper_server: ZooKeeperServer, tmp_path: Path):
    connect = f"{zookeeper_server.address}/masters-{uuid.uuid4().hex}"
    nodes = {f"/brokers/ids/{each}": broker(each, f"r{each}") for each in (1, 2, 3)}
    assignment = znodes.TopicAssignment(uuid.uuid4(), {p: [1 + p % 3] for p in range(6)})
    nodes["/brokers/topics/orders"] = znodes.encode_topic(assignment)
    fill(connect, nodes)
    told = klamm("snapshot", "--zookeeper", connect, "--out", "taken", "--json")
    assert (told["brokers"], told["partitions"]) == (3, 6)
    assert pq.read_table(tmp_path / "taken" / "partitions").num_rows == 6


def test_failures_are_played_through(klamm, snapshot: tuple[str, str], tmp_path: Path):
    asked = ("--fail", "racks:2", "--out", "whatif", "--json")
    scenarios = klamm("whatif", *snapshot, *asked)
    assert {row["scenario"] for row in scenarios} == {
        "racks:rack-0,rack-1",
        "racks:rack-0,rack-2",
        "racks:rack-1,rack-2",
    }
    assert (tmp_path / "whatif" / "report.html").exists()


def test_a_plan_is_made(klamm, snapshot: tuple[str, str], tmp_path: Path):
    asked = ("--remove-brokers", "5", "--out", "plan.json", "--json")
    summary = klamm("plan", *snapshot, *asked)
    assert summary["balance"]["before"]["brokers"]["5"]["replicas"] == 30
    assert "5" not in summary["balance"]["after"]["brokers"]
    assert (tmp_path / "summary.html").exists()


def test_a_history_becomes_tables_and_a_report(klamm, tmp_path: Path):
    spools = map(str, night(tmp_path / "nodes").spools)
    told = klamm("history", "--spool", *spools, "--out", "history", "--json")
    assert told["tables"]["events"] == 29
    assert (tmp_path / "history" / "report.html").exists()
