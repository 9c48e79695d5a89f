"""Apache Kafka's command line tools say the same about a cluster of either kind.

Every command runs on both clusters, and what it prints has to be equal, apart from addresses, ids
and times that differ from run to run.
"""

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.zookeeper.server import ZooKeeperServer
from tests.interop.clients import consume, create, produce
from tests.support.kafka_tools import Tools
from tests.support.mixed_cluster import PATIENCE_S, Kind, MixedCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

BROKERS = (1, 2, 3)


class Both:
    """Two clusters that are made to do the same."""

    def __init__(self, clusters: dict[Kind, MixedCluster], directory: Path) -> None:
        self.clusters = clusters
        self._tools = {
            kind: Tools(cluster.libs, directory, cluster.bootstrap)
            for kind, cluster in clusters.items()
        }

    def run(self, tool: str, *arguments: str, stdin: str = "", succeeds: bool = True) -> str:
        """What the tool prints, on either cluster."""
        printed = {
            kind: self._without_chance(
                self.clusters[kind], tools.run(tool, *arguments, stdin=stdin, succeeds=succeeds)
            )
            for kind, tools in self._tools.items()
        }
        assert printed[Kind.KLAMM] == printed[Kind.KAFKA]
        return printed[Kind.KLAMM]

    def file(self, content: dict[str, object]) -> str:
        return str(self._tools[Kind.KLAMM].file(content))

    def create(self, name: str, assignment: list[list[int]], **config: str) -> None:
        for cluster in self.clusters.values():
            create(cluster.bootstrap, name, assignment, **config)
            cluster.wait_in_sync(name)

    def produce(self, topic: str, values: list[bytes], partition: int | None = None) -> None:
        for cluster in self.clusters.values():
            produce(cluster.bootstrap, topic, values, partition)

    def consume(self, topic: str, group: str, count: int) -> None:
        for cluster in self.clusters.values():
            consume(cluster.bootstrap, topic, group, count)

    def _without_chance(self, cluster: MixedCluster, printed: str) -> str:
        for broker_id in BROKERS:
            broker = cluster.broker(broker_id)
            printed = printed.replace(str(broker.log_dir), f"<data of {broker_id}>")
            printed = printed.replace(broker.address, f"<broker {broker_id}>")
            printed = printed.replace(f":{broker.port}", f":<port of {broker_id}>")
        printed = re.sub(r"TopicId: \S{22}", "TopicId: <id>", printed)
        # Where the offsets of a group are kept is chance, too.
        printed = re.sub(r"<broker \d>(\s+)\(\d\)", r"<coordinator>\1", printed)
        # Several answers of one kind come in no particular order; and who tries to reach a broker
        # that is down is the client's choice.
        lines = (line.rstrip() for line in printed.splitlines() if "WARN" not in line)
        return "\n".join(sorted(lines))


@pytest.fixture(scope="module")
def both(
    zookeeper_server: ZooKeeperServer,
    kafka_libs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Both]:
    directory = tmp_path_factory.mktemp("both")
    with (
        MixedCluster(zookeeper_server.address, directory / "kafka", kafka_libs) as kafka,
        MixedCluster(zookeeper_server.address, directory / "klamm", kafka_libs) as klamm,
    ):
        kafka.add(Kind.KAFKA, *BROKERS)
        klamm.add(Kind.KLAMM, *BROKERS)
        yield Both({Kind.KAFKA: kafka, Kind.KLAMM: klamm}, directory)


def test_topics(both: Both):
    topics = "kafka-topics"
    both.run(
        topics, "--create", "--topic", "orders", "--replica-assignment", "1:2:3,2:3:1",
        "--config", "retention.ms=100000", "--config", "cleanup.policy=compact,delete",
    )  # fmt: skip
    both.run(topics, "--create", "--topic", "orders", "--partitions", "1", succeeds=False)
    both.run(topics, "--create", "--topic", "orders", "--partitions", "1", "--if-not-exists")
    both.run(
        topics, "--create", "--topic", "wide", "--replication-factor", "4", "--partitions", "1",
        succeeds=False,
    )  # fmt: skip
    both.run(topics, "--create", "--topic", "a/b", "--partitions", "1", succeeds=False)
    both.run(
        topics, "--create", "--topic", "odd", "--partitions", "1", "--config", "nonsense=1",
        succeeds=False,
    )  # fmt: skip
    assert "orders" in both.run(topics, "--list")
    described = both.run(topics, "--describe", "--topic", "orders")
    assert "Partition: 1\tLeader: 2\tReplicas: 2,3,1\tIsr: 2,3,1" in described
    both.run(topics, "--describe", "--topic", "nobody", succeeds=False)
    both.run(topics, "--describe", "--under-replicated-partitions")
    both.run(topics, "--describe", "--topics-with-overrides")
    both.run(
        topics, "--alter", "--topic", "orders", "--partitions", "3",
        "--replica-assignment", "1:2:3,2:3:1,3:1:2",
    )  # fmt: skip
    both.run(topics, "--alter", "--topic", "orders", "--partitions", "2", succeeds=False)
    both.run(topics, "--describe", "--topic", "orders")
    both.run(topics, "--delete", "--topic", "orders")
    for cluster in both.clusters.values():
        wait_until(lambda c=cluster: not c.zk.exists("/brokers/topics/orders"), "", PATIENCE_S)
    both.run(topics, "--delete", "--topic", "orders", succeeds=False)


def test_configs(both: Both):
    both.create("settled", [[1, 2, 3]], retention_ms="1000000")
    configs = "kafka-configs"
    topic = ("--entity-type", "topics", "--entity-name", "settled")
    both.run(configs, *topic, "--describe")
    both.run(configs, *topic, "--describe", "--all")
    both.run(configs, *topic, "--alter", "--add-config", "max.message.bytes=20000,retention.ms=5")
    both.run(configs, *topic, "--alter", "--delete-config", "retention.ms")
    assert "max.message.bytes=20000" in both.run(configs, *topic, "--describe")
    both.run(configs, *topic, "--alter", "--add-config", "nonsense=1", succeeds=False)
    both.run(configs, *topic, "--alter", "--add-config", "retention.ms=soon", succeeds=False)
    broker = ("--entity-type", "brokers", "--entity-name", "1")
    both.run(configs, *broker, "--alter", "--add-config", "log.retention.ms=100000")
    for cluster in both.clusters.values():
        wait_until(lambda c=cluster: c.znode("/config/brokers/1"), "", PATIENCE_S)
    both.run(configs, *broker, "--describe")
    both.run(configs, *broker, "--alter", "--delete-config", "log.retention.ms")
    both.run(configs, *broker, "--alter", "--add-config", "broker.rack=a", succeeds=False)
    default = ("--entity-type", "brokers", "--entity-default")
    both.run(configs, *default, "--alter", "--add-config", "log.segment.bytes=100000000")
    both.run(configs, *default, "--describe")
    both.run(configs, *default, "--alter", "--delete-config", "log.segment.bytes")


def test_console_producer_and_consumer(both: Both):
    both.create("typed", [[1, 2, 3]])
    lines = "".join(f"key{n}:value{n}\n" for n in range(20))
    both.run(
        "kafka-console-producer", "--topic", "typed", "--sync",
        "--property", "parse.key=true", "--property", "key.separator=:",
        "--compression-codec", "zstd", stdin=lines,
    )  # fmt: skip
    printed = both.run(
        "kafka-console-consumer", "--topic", "typed", "--from-beginning",
        "--max-messages", "20", "--group", "typists",
        "--property", "print.key=true", "--property", "print.offset=true",
    )  # fmt: skip
    assert "Offset:19\tkey19\tvalue19" in printed


def test_consumer_groups(both: Both):
    both.create("grouped", [[1, 2, 3], [2, 3, 1]])
    both.produce("grouped", [b"x"] * 10, partition=0)
    both.produce("grouped", [b"x"] * 5, partition=1)
    both.consume("grouped", "readers", 15)
    groups = "kafka-consumer-groups"
    assert "readers" in both.run(groups, "--list")
    both.run(groups, "--list", "--state")
    described = both.run(groups, "--describe", "--group", "readers")
    assert re.search(r"readers\s+grouped\s+0\s+10\s+10\s+0\s", described)
    both.run(groups, "--describe", "--group", "readers", "--state")
    both.run(groups, "--describe", "--group", "readers", "--members")
    both.run(groups, "--describe", "--group", "nobody")
    reset = (groups, "--group", "readers", "--topic", "grouped", "--reset-offsets")
    both.run(*reset, "--to-earliest", "--dry-run")
    both.run(*reset, "--shift-by", "-3", "--execute")
    both.run(*reset, "--to-datetime", "2020-01-01T00:00:00.000", "--execute")
    both.run(groups, "--delete-offsets", "--group", "readers", "--topic", "grouped:1")
    both.run(groups, "--describe", "--group", "readers")
    both.run(groups, "--delete", "--group", "readers")
    assert "The group id does not exist" in both.run(groups, "--delete", "--group", "readers")


def test_leader_election(both: Both):
    both.create("elected", [[1, 2, 3]])
    election = ("kafka-leader-election", "--topic", "elected", "--partition", "0")
    both.run(*election, "--election-type", "preferred")
    both.run(*election, "--election-type", "unclean")
    both.run(
        "kafka-leader-election", "--topic", "elected", "--partition", "7",
        "--election-type", "preferred", succeeds=False,
    )  # fmt: skip


def test_reassignment_with_a_throttle(both: Both):
    both.create("moved", [[1, 2], [2, 3]])
    both.produce("moved", [bytes(1000)] * 300, partition=0)
    plan = both.file(
        {
            "version": 1,
            "partitions": [
                {"topic": "moved", "partition": 0, "replicas": [3, 2], "log_dirs": ["any", "any"]},
                {"topic": "moved", "partition": 1, "replicas": [3, 2], "log_dirs": ["any", "any"]},
            ],
        }
    )
    reassign = ("kafka-reassign-partitions", "--reassignment-json-file", plan)
    both.run(*reassign, "--execute", "--throttle", "100000000")
    for cluster in both.clusters.values():
        wait_until(
            lambda c=cluster: c.znode("/brokers/topics/moved")["removing_replicas"] == {},
            "the move to end",
            PATIENCE_S,
        )
    both.run(*reassign, "--verify")
    for cluster in both.clusters.values():
        assert cluster.znode("/config/topics/moved")["config"] == {}
        assert cluster.znode("/config/brokers/1")["config"] == {}
    both.run("kafka-topics", "--describe", "--topic", "moved")


def test_reassignment_that_is_cancelled(both: Both):
    """The throttle lets it go on for longer than anybody wants to wait."""
    both.create("stuck", [[1, 2]])
    both.produce("stuck", [random.Random(1).randbytes(50_000)] * 100)
    plan = both.file(
        {
            "version": 1,
            "partitions": [
                {"topic": "stuck", "partition": 0, "replicas": [3, 2], "log_dirs": ["any", "any"]}
            ],
        }
    )
    reassign = ("kafka-reassign-partitions", "--reassignment-json-file", plan)
    both.run(*reassign, "--execute", "--throttle", "1000")
    both.run("kafka-reassign-partitions", "--list")
    both.run(*reassign, "--verify")
    both.run(*reassign, "--execute", succeeds=False)
    both.run(*reassign, "--cancel")
    left = {kind: cluster.topic("stuck") for kind, cluster in both.clusters.items()}
    assert left[Kind.KLAMM] == left[Kind.KAFKA]
    for cluster in both.clusters.values():
        # The old replicas, in the order that they had beside the new ones.
        assert cluster.znode("/brokers/topics/stuck")["partitions"] == {"0": [2, 1]}
        assert cluster.znode("/config/topics/stuck")["config"] == {}
        wait_until(lambda c=cluster: not (c.broker(3).log_dir / "stuck-0").exists())
    both.run("kafka-reassign-partitions", "--list")


def test_log_dirs_and_offsets(both: Both):
    both.create("measured", [[1, 2, 3]])
    both.produce("measured", [b"x" * 100] * 10)
    offsets = ("kafka-get-offsets", "--topic", "measured")
    assert "measured:0:10" in both.run(*offsets)
    both.run(*offsets, "--time", "earliest")
    both.run(*offsets, "--time", "1")
    deleted = both.file(
        {"version": 1, "partitions": [{"topic": "measured", "partition": 0, "offset": 4}]}
    )
    both.run("kafka-delete-records", "--offset-json-file", deleted)
    assert "measured:0:4" in both.run(*offsets, "--time", "earliest")
    sizes = {}
    for kind, cluster in both.clusters.items():
        printed = Tools(cluster.libs, cluster.directory, cluster.bootstrap).run(
            "kafka-log-dirs", "--describe", "--topic-list", "measured"
        )
        sizes[kind] = _sizes(next(line for line in printed.splitlines() if line[:1] == "{"))
    assert sizes[Kind.KLAMM] == sizes[Kind.KAFKA]


def _sizes(described: str) -> dict[int, list[tuple[str, int, int, bool]]]:
    return {
        broker["broker"]: [
            (each["partition"], each["size"], each["offsetLag"], each["isFuture"])
            for folder in broker["logDirs"]
            for each in folder["partitions"]
        ]
        for broker in json.loads(described)["brokers"]
    }


def test_the_versions_of_every_request_are_in_kafkas_range(both: Both):
    versions = {}
    for kind, cluster in both.clusters.items():
        printed = Tools(cluster.libs, cluster.directory, cluster.bootstrap).run(
            "kafka-broker-api-versions"
        )
        found = re.findall(r"(\w+)\((\d+)\): (\d+)(?: to (\d+))? \[usable: \d+\]", printed)
        versions[kind] = {name: (int(low), int(high or low)) for name, _, low, high in found}
    assert len(versions[Kind.KLAMM]) > 30
    wrong = {
        name: (own, versions[Kind.KAFKA].get(name))
        for name, own in versions[Kind.KLAMM].items()
        if name not in versions[Kind.KAFKA]
        or own[0] < versions[Kind.KAFKA][name][0]
        or own[1] > versions[Kind.KAFKA][name][1]
    }
    assert not wrong
