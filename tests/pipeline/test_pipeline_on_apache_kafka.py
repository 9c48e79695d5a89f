"""Apache Kafka in KRaft mode at the other end: its snapshot, and a plan for its own tool."""

import base64
import json
import re
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from klamm.client.admin import Admin
from klamm.client.brokers import log_dirs
from klamm.client.reassignments import decode_plan
from klamm.client.topics import NewTopic, create, describe
from klamm.errors import KlammError
from klamm.local.network import free_ports
from klamm.pipeline.output import output_folder
from klamm.pipeline.planner.output import write_plan
from klamm.pipeline.planner.planner import make_plan
from klamm.pipeline.planner.waves import make_waves
from klamm.pipeline.snapshot.admin import snapshot_from_brokers
from klamm.pipeline.snapshot.snapshot import Snapshot
from tests.support.kafka_process import JVM
from tests.support.kafka_tools import Tools
from tests.support.mixed_cluster import PATIENCE_S
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

RACKS = {1: "a", 2: "b", 3: "c", 4: "a"}
#: Broker 4 has nothing of it.
ORDERS = [[1 + (p + k) % 3 for k in range(2)] for p in range(12)]


def start_node(
    libs: Path, directory: Path, node: int, listeners: str, voter: str
) -> subprocess.Popen:
    """A broker in KRaft mode; the first one is the controller as well."""
    file = directory / f"{node}.properties"
    settings = {
        "process.roles": "broker,controller" if node == 1 else "broker",
        "node.id": node,
        "controller.quorum.voters": voter,
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "listeners": listeners,
        "broker.rack": RACKS[node],
        "log.dirs": directory / f"log-{node}",
        "log.cleaner.dedupe.buffer.size": 4_000_000,
        "min.insync.replicas": 2,
    }
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    java = ["java", *JVM, "-cp", f"{libs}/*"]
    format_storage = [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(file)]
    subprocess.run(format_storage, check=True, capture_output=True, timeout=PATIENCE_S)
    with (directory / f"{node}.out").open("wb") as output:
        return subprocess.Popen(
            [*java, "kafka.Kafka", str(file)], stdout=output, stderr=output, start_new_session=True
        )


CLUSTER_ID = base64.urlsafe_b64encode(uuid.UUID(int=7 << 80 | 1 << 70 | 5).bytes).decode()[:22]


@pytest.fixture(scope="module")
def bootstrap(kafka_libs: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("kraft")
    controller_port, *ports = free_ports(1 + len(RACKS))
    voter = f"1@127.0.0.1:{controller_port}"
    with ExitStack() as stack:
        for node, port in zip(RACKS, ports, strict=True):
            listeners = f"PLAINTEXT://127.0.0.1:{port}"
            if node == 1:
                listeners += f",CONTROLLER://127.0.0.1:{controller_port}"
            process = start_node(kafka_libs, directory, node, listeners, voter)
            stack.callback(process.wait)
            stack.callback(process.kill)
        bootstrap = f"127.0.0.1:{ports[0]}"

        def is_up() -> bool:
            try:
                with Admin(bootstrap) as admin:
                    return len(admin.metadata([]).brokers) == len(RACKS)
            except KlammError:
                return False

        wait_until(is_up, "four brokers", PATIENCE_S)
        with Admin(bootstrap) as admin:
            config = {"unclean.leader.election.enable": "true"}
            create(admin, NewTopic("orders", assignment=ORDERS, config=config))
        wait_until(lambda: min(leaders_of(bootstrap), default=-1) > 0, "leaders", PATIENCE_S)
        wait_until(lambda: replicas_of(bootstrap) == sum(map(len, ORDERS)), "logs", PATIENCE_S)
        yield bootstrap


def leaders_of(bootstrap: str) -> list[int]:
    """Who leads the partitions."""
    with Admin(bootstrap) as admin:
        return [each.leader for each in describe(admin).partitions()]


def replicas_of(bootstrap: str) -> int:
    """How many replicas the brokers have in their directories."""
    with Admin(bootstrap) as admin:
        return sum(each.replicas for broker in RACKS for each in log_dirs(admin, broker))


@pytest.fixture(scope="module")
def snapshot(spark: SparkSession, bootstrap: str) -> Snapshot:
    return snapshot_from_brokers(bootstrap, lambda: spark)


def test_a_snapshot_is_taken_with_the_admin_protocol_alone(snapshot: Snapshot):
    assert snapshot.cluster_id == CLUSTER_ID
    assert {row["id"]: row["rack"] for row in snapshot.brokers.to_pylist()} == RACKS
    (topic,) = snapshot.topics.to_pylist()
    assert (topic["topic"], topic["partitions"]) == ("orders", 12)
    assert topic["config"] == [("unclean.leader.election.enable", "true")]
    rows = snapshot.partitions.to_pylist()
    assert [row["replicas"] for row in rows] == ORDERS
    assert [row["leader"] for row in rows] == [first for first, _ in ORDERS]
    # Kafka says of a setting from a broker's file what holds, though the topic has none of its own.
    assert {(row["min_isr"], row["unclean"]) for row in rows} == {(2, True)}
    assert {row["bytes"] for row in rows} == {0}


def test_kafkas_own_tool_carries_a_plan_out_and_would_have_moved_more(
    spark: SparkSession,
    bootstrap: str,
    snapshot: Snapshot,
    kafka_libs: Path,
    tmp_path: Path,
):
    planned = make_plan(snapshot.partitions, RACKS)
    assert planned.replicas_moved == planned.bound.replicas > 0
    waves = make_waves(planned, limit=10)
    file = output_folder(spark, str(tmp_path / "plan.json"))
    write_plan(file, snapshot.partitions, planned, waves, throttle=1_000_000)
    tools = Tools(kafka_libs, tmp_path, bootstrap)

    topics = tools.file({"version": 1, "topics": [{"topic": "orders"}]})
    said = tools.run(
        "kafka-reassign-partitions",
        *("--generate", "--broker-list", ",".join(map(str, RACKS))),
        *("--topics-to-move-json-file", str(topics)),
    )
    current, proposed = (decode_plan(text, "tool") for text in re.findall(r"^\{.*\}$", said, re.M))
    moved_by_tool = sum(len(set(proposed[name]) - set(current[name])) for name in current)
    print(json.dumps({"klamm plan": planned.replicas_moved, "--generate": moved_by_tool}))
    assert planned.replicas_moved < moved_by_tool

    for plan in sorted((tmp_path / "waves").iterdir()):
        reassign = ("kafka-reassign-partitions", "--reassignment-json-file", str(plan))
        tools.run(*reassign, "--execute")
        wait_until(
            lambda reassign=reassign: "still in progress" not in tools.run(*reassign, "--verify"),
            "the wave is done",
            PATIENCE_S,
        )
    wanted = {
        name: list(row)
        for name, row in decode_plan((tmp_path / "plan.json").read_bytes(), "p").items()
    }
    after = snapshot_from_brokers(bootstrap, lambda: spark, with_sizes=False, little_max=0)
    found = {
        (row["topic"], row["partition"]): row["replicas"] for row in after.partitions.collect()
    }
    assert {name: found[name] for name in wanted} == wanted
    held = [sum(broker in row for row in found.values()) for broker in RACKS]
    assert max(held) - min(held) <= 2
