"""All four commands on executors that are processes of their own: two workers, one core each."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from klamm.zookeeper import znodes
from klamm.zookeeper.server import ZooKeeperServer
from tests.pipeline.history.night import night
from tests.pipeline.snapshot.test_snapshot_zookeeper import broker, fill

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


def succeed(command: Sequence[str], folder: Path) -> str:
    """What the command printed; it must have gone well."""
    done = subprocess.run(
        command,
        env=os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=600,
    )
    said = [line for line in done.stderr.splitlines() if " INFO " not in line]
    assert done.returncode == 0, "\n".join(said[-80:])
    return done.stdout


@pytest.fixture
def connect(zookeeper_server: ZooKeeperServer) -> str:
    """Three brokers in three racks and six partitions, which broker 3 has nothing of."""
    connect = f"{zookeeper_server.address}/masters-{uuid.uuid4().hex}"
    nodes = {f"/brokers/ids/{each}": broker(each, f"r{each}") for each in (1, 2, 3)}
    replicas = {p: [1 + p % 2, 2 - p % 2] for p in range(6)}
    assignment = znodes.TopicAssignment(uuid.uuid4(), replicas)
    nodes["/brokers/topics/orders"] = znodes.encode_topic(assignment)
    for partition, (leader, other) in replicas.items():
        state = znodes.encode_state(leader, 3, [leader, other], 1)
        nodes[f"/brokers/topics/orders/partitions/{partition}/state"] = state
    fill(connect, nodes)
    return connect


@pytest.mark.parametrize("command", [directly, submitted])
def test_every_command_runs_on_two_workers(command, connect: str, tmp_path: Path):
    snapshot = ("--snapshot", "snapshot")
    succeed(command("snapshot", "--zookeeper", connect, "--out", "snapshot"), tmp_path)
    assert pq.read_table(tmp_path / "snapshot" / "partitions").num_rows == 6

    answer = ("--fail", "brokers:2", "--out", "whatif", "--json")
    scenarios = json.loads(succeed(command("whatif", *snapshot, *answer), tmp_path))
    assert [row["leaderless"] for row in scenarios] == [6, 0, 0]

    summary = json.loads(
        succeed(command("plan", *snapshot, "--out", "plan.json", "--json"), tmp_path)
    )
    assert summary["balance"]["after"]["replicas"]["min"] >= 3

    spools = map(str, night(tmp_path / "nodes").spools)
    told = succeed(command("history", "--spool", *spools, "--out", "history", "--json"), tmp_path)
    assert json.loads(told)["tables"]["events"] == 29
    assert (tmp_path / "history" / "report.html").exists()
