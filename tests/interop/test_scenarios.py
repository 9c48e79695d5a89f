"""One set of scenarios for clusters of every composition, with the same outcome in ZooKeeper.

The first composition is Apache Kafka alone: it shows that what the others are held to is what
Kafka does. Leader epochs and data versions are part of that, so nobody may write more or less.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka.admin import NewPartitions

from klamm.zookeeper.server import ZooKeeperServer
from tests.interop.clients import administer, consume, create, produce, wait_for_leaders
from tests.support.kafka_tools import Tools
from tests.support.mixed_cluster import PATIENCE_S, Kind, MixedCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

CONTROLLER_ONLY = 100


@dataclass(frozen=True)
class Composition:
    """Who runs the cluster."""

    kafka: tuple[int, ...]
    klamm: tuple[int, ...]
    controller: int
    protocol: str = "3.9"

    def __str__(self) -> str:
        counts = {Kind.KAFKA: len(self.kafka), Kind.KLAMM: len(self.klamm)}
        brokers = "-".join(f"{count}{kind}" for kind, count in counts.items() if count)
        holder = Kind.KAFKA if self.controller in self.kafka else Kind.KLAMM
        return f"{brokers}-led-by-{holder}-{self.protocol}"


#: Brokers 2 and 3 are those that fail: the controller is never among them.
COMPOSITIONS = [
    Composition((1, 2, 3), (), controller=1),
    Composition((1, 2, 3), (), controller=CONTROLLER_ONLY),
    Composition((1, 2, 3), (), controller=1, protocol="2.8"),
    Composition((1, 2, 3), (), controller=CONTROLLER_ONLY, protocol="2.8"),
    Composition((1,), (2, 3), controller=1),
    Composition((2, 3), (1,), controller=1),
    Composition((3,), (1, 2), controller=1, protocol="2.8"),
    Composition((), (1, 2, 3), controller=1),
]


@pytest.fixture(scope="module", params=COMPOSITIONS, ids=str)
def composed(
    request: pytest.FixtureRequest,
    zookeeper_server: ZooKeeperServer,
    kafka_libs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[MixedCluster, Composition]]:
    """The cluster of a composition, for all scenarios in turn."""
    composition: Composition = request.param
    with MixedCluster(
        zookeeper_server.address,
        tmp_path_factory.mktemp("cluster"),
        kafka_libs,
        inter_broker_protocol_version=composition.protocol,
    ) as cluster:
        if composition.kafka:
            cluster.add(Kind.KAFKA, *composition.kafka)
        if composition.klamm:
            cluster.add(Kind.KLAMM, *composition.klamm)
        if composition.controller == CONTROLLER_ONLY:
            cluster.add_controller_only(CONTROLLER_ONLY)
        yield cluster, composition


@pytest.fixture
def cluster(composed: tuple[MixedCluster, Composition]) -> MixedCluster:
    """The cluster, whole again, with the role where the composition wants it."""
    cluster, composition = composed
    cluster.start_brokers(*(id for id in cluster.nodes if not cluster.broker(id).is_running))
    cluster.move_controller(composition.controller)
    return cluster


@pytest.fixture
def tools(cluster: MixedCluster, tmp_path: Path) -> Tools:
    return Tools(cluster.libs, tmp_path, cluster.bootstrap)


def state(leader: int, isr: list[int], *, epoch: int, version: int) -> dict[str, object]:
    return {"version": version, "leader": leader, "leader_epoch": epoch, "isr": isr}


def states_become(cluster: MixedCluster, topic: str, wanted: dict[int, dict[str, object]]) -> None:
    """Wait for the states; the order inside of an ISR is not looked at."""

    def sorted_isr(states: dict[int, dict[str, object]]) -> dict[int, dict[str, object]]:
        return {n: {**each, "isr": sorted(each.get("isr", ()))} for n, each in states.items()}

    try:
        wait_until(
            lambda: sorted_isr(cluster.topic(topic).get("states", {})) == sorted_isr(wanted),
            timeout_s=60,
        )
    except TimeoutError:
        assert sorted_isr(cluster.topic(topic).get("states", {})) == sorted_isr(wanted)


def test_a_topic_is_created(cluster):
    create(cluster.bootstrap, "created", [[1, 2, 3], [2, 3, 1]], retention_ms="12345")
    assert cluster.topic("created") == {
        "has id": True,
        "topic": {
            "version": 3,
            "partitions": {"0": [1, 2, 3], "1": [2, 3, 1]},
            "adding_replicas": {},
            "removing_replicas": {},
        },
        "states": {
            0: state(1, [1, 2, 3], epoch=0, version=0),
            1: state(2, [2, 3, 1], epoch=0, version=0),
        },
    }
    config = cluster.znode("/config/topics/created")
    assert config == {"version": 1, "config": {"retention.ms": "12345"}}


def test_what_was_acknowledged_is_read_by_a_group(cluster):
    create(cluster.bootstrap, "written", [[1, 2, 3], [2, 3, 1], [3, 1, 2]])
    values = [b"%d" % number for number in range(500)]
    produce(cluster.bootstrap, "written", values)
    assert sorted(consume(cluster.bootstrap, "written", "readers", 500)) == sorted(values)
    produce(cluster.bootstrap, "written", [b"more"])
    assert consume(cluster.bootstrap, "written", "readers", 1) == [b"more"]


def test_leaders_leave_a_killed_broker_which_rejoins(cluster):
    create(cluster.bootstrap, "failing", [[3, 1, 2], [1, 2, 3], [2, 3, 1]])
    produce(cluster.bootstrap, "failing", [b"before"] * 10, partition=0)
    cluster.kill(3)
    states_become(
        cluster,
        "failing",
        {
            0: state(1, [1, 2], epoch=1, version=1),
            1: state(1, [1, 2], epoch=1, version=1),
            2: state(2, [2, 1], epoch=1, version=1),
        },
    )
    produce(cluster.bootstrap, "failing", [b"meanwhile"] * 10, partition=0)
    cluster.start_brokers(3)
    states_become(
        cluster,
        "failing",
        {
            0: state(1, [1, 2, 3], epoch=1, version=2),
            1: state(1, [1, 2, 3], epoch=1, version=2),
            2: state(2, [2, 3, 1], epoch=1, version=2),
        },
    )
    assert len(consume(cluster.bootstrap, "failing", "after-failure", 20)) == 20


def test_a_broker_that_stops_in_order_hands_its_leaders_over_first(cluster):
    create(cluster.bootstrap, "leaving", [[2, 1, 3], [3, 2, 1]])
    assert cluster.broker(2).stop() in (0, 143)
    cluster.wait_gone(2)
    handed_over = {
        0: state(1, [1, 3], epoch=1, version=1),
        1: state(3, [1, 3], epoch=1, version=1),
    }
    states_become(cluster, "leaving", handed_over)
    cluster.start_brokers(2)
    states_become(
        cluster,
        "leaving",
        {number: {**each, "isr": [1, 2, 3], "version": 2} for number, each in handed_over.items()},
    )


def test_without_an_in_sync_replica_there_is_no_leader(cluster):
    create(cluster.bootstrap, "waiting", [[2, 3]])
    produce(cluster.bootstrap, "waiting", [b"1", b"2"])
    cluster.kill(3)
    states_become(cluster, "waiting", {0: state(2, [2], epoch=1, version=1)})
    produce(cluster.bootstrap, "waiting", [b"3"])
    cluster.kill(2)
    states_become(cluster, "waiting", {0: state(-1, [2], epoch=2, version=2)})
    cluster.start_brokers(3)
    states_become(cluster, "waiting", {0: state(-1, [2], epoch=2, version=2)})
    cluster.start_brokers(2)
    states_become(cluster, "waiting", {0: state(2, [2, 3], epoch=3, version=4)})
    assert consume(cluster.bootstrap, "waiting", "waiters", 3) == [b"1", b"2", b"3"]


def test_partitions_are_moved_by_kafkas_tool(cluster, tools):
    create(cluster.bootstrap, "moving", [[1, 2], [2, 1]])
    produce(cluster.bootstrap, "moving", [b"x" * 100] * 200, partition=0)
    plan = tools.file(
        {"version": 1, "partitions": [{"topic": "moving", "partition": 0, "replicas": [3, 2]}]}
    )
    tools.run("kafka-reassign-partitions", "--reassignment-json-file", str(plan), "--execute")
    states_become(
        cluster,
        "moving",
        {
            0: state(3, [3, 2], epoch=3, version=4),
            1: state(2, [2, 1], epoch=0, version=0),
        },
    )
    wait_until(lambda: not cluster.topic("moving")["topic"]["adding_replicas"])
    assert cluster.topic("moving")["topic"]["partitions"] == {"0": [3, 2], "1": [2, 1]}
    told = tools.run("kafka-reassign-partitions", "--reassignment-json-file", str(plan), "--verify")
    assert "Reassignment of partition moving-0 is completed." in told
    assert len(consume(cluster.bootstrap, "moving", "movers", 200)) == 200


def test_the_preferred_replica_is_elected_by_kafkas_tool(cluster, tools):
    create(cluster.bootstrap, "preferring", [[2, 1, 3]])
    cluster.kill(2)
    states_become(cluster, "preferring", {0: state(1, [1, 3], epoch=1, version=1)})
    cluster.start_brokers(2)
    states_become(cluster, "preferring", {0: state(1, [1, 2, 3], epoch=1, version=2)})
    elect = ("--election-type", "preferred", "--topic", "preferring", "--partition", "0")
    told = tools.run("kafka-leader-election", *elect)
    assert "Successfully completed leader election (PREFERRED) for partitions preferring-0" in told
    assert cluster.topic("preferring")["states"] == {0: state(2, [1, 3, 2], epoch=2, version=3)}
    told = tools.run("kafka-leader-election", *elect)
    assert "Valid replica already elected for partitions preferring-0" in told


def test_a_topic_gets_more_partitions(cluster):
    create(cluster.bootstrap, "growing", [[1, 2]])
    more = NewPartitions("growing", 2, [[3, 1]])
    administer(cluster.bootstrap, lambda admin: admin.create_partitions([more]))
    states_become(
        cluster,
        "growing",
        {0: state(1, [1, 2], epoch=0, version=0), 1: state(3, [3, 1], epoch=0, version=0)},
    )
    assert cluster.topic("growing")["topic"]["partitions"] == {"0": [1, 2], "1": [3, 1]}
    wait_for_leaders(cluster.bootstrap, "growing", 2)
    produce(cluster.bootstrap, "growing", [b"new"], partition=1)


def test_a_deleted_topic_leaves_nothing_behind(cluster):
    create(cluster.bootstrap, "doomed", [[1, 2, 3], [2, 3, 1]], retention_ms="12345")
    produce(cluster.bootstrap, "doomed", [b"x"] * 10)
    administer(cluster.bootstrap, lambda admin: admin.delete_topics(["doomed"]))
    wait_until(lambda: not cluster.zk.exists("/brokers/topics/doomed"), timeout_s=PATIENCE_S)
    wait_until(lambda: not cluster.zk.exists("/admin/delete_topics/doomed"))
    wait_until(lambda: not cluster.zk.exists("/config/topics/doomed"))
    for broker_id in (1, 2, 3):
        data = cluster.broker(broker_id).log_dir
        wait_until(lambda data=data: not any((data / f"doomed-{n}").exists() for n in (0, 1)))
    create(cluster.bootstrap, "doomed", [[3]])
    assert produce(cluster.bootstrap, "doomed", [b"fresh"]) == [(0, 0)]


def test_a_topic_is_created_by_writing_to_it(cluster):
    produce(cluster.bootstrap, "automatic", [b"first"], allow_auto_create_topics=True)
    ((_, replicas),) = cluster.topic("automatic")["topic"]["partitions"].items()
    assert set(replicas) <= {1, 2, 3}
    assert consume(cluster.bootstrap, "automatic", "curious", 1) == [b"first"]


def test_the_role_moves_on_and_everything_goes_on(cluster):
    create(cluster.bootstrap, "staying", [[1, 2, 3]])
    before = cluster.topic("staying")
    holder = cluster.controller_id()
    for successor in (2, holder):
        cluster.move_controller(successor)
        assert cluster.topic("staying") == before
        produce(cluster.bootstrap, "staying", [b"on"])
