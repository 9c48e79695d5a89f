"""A node of klamm that only competes for the role, in a cluster of Apache Kafka's brokers.

To those brokers it is one of them: they name it to clients, and may give it replicas.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from klamm.protocol.apis import ApiKey
from klamm.zookeeper.server import ZooKeeperServer
from tests.interop.clients import administer, consume, create, produce, settings, transact
from tests.support.lab import topic_znode
from tests.support.mixed_cluster import PATIENCE_S, Kind, MixedCluster
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

BROKERS = (1, 2)
NODE = 100


@pytest.fixture(scope="module", params=["3.9", "2.8"])
def shared(
    request: pytest.FixtureRequest,
    zookeeper_server: ZooKeeperServer,
    kafka_libs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[MixedCluster]:
    with MixedCluster(
        zookeeper_server.address,
        tmp_path_factory.mktemp("cluster"),
        kafka_libs,
        inter_broker_protocol_version=request.param,
        num_partitions=6,
        default_replication_factor=2,
        offsets_topic_replication_factor=2,
        transaction_state_log_replication_factor=2,
        transaction_state_log_min_isr=1,
        transaction_state_log_num_partitions=2,
    ) as cluster:
        cluster.add(Kind.KAFKA, *BROKERS, broker_rack="a")
        cluster.add_controller_only(NODE, broker_rack="b")
        yield cluster


@pytest.fixture
def cluster(shared: MixedCluster) -> MixedCluster:
    """The node rules."""
    shared.move_controller(NODE)
    return shared


def replicas(cluster: MixedCluster, topic: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = cluster.znode(f"/brokers/topics/{topic}")["partitions"]
    return found


def test_topics_that_kafkas_brokers_place_themselves_do_without_the_node(cluster: MixedCluster):
    for number in range(3):
        topic = f"automatic-{number}"
        produce(cluster.bootstrap, topic, [b"x"] * 20, allow_auto_create_topics=True)
        assert len(replicas(cluster, topic)) == 6
        assert all(sorted(each) == [1, 2] for each in replicas(cluster, topic).values())
        cluster.wait_in_sync(topic)


def test_its_id_in_a_new_assignment_is_replaced(cluster: MixedCluster):
    assignment = {0: [NODE, 1], 1: [2, NODE], 2: [1, 2]}
    cluster.zk.create("/brokers/topics/given", topic_znode(assignment))
    wait_until(lambda: len(cluster.topic("given").get("states", ())) == 3, "", PATIENCE_S)
    assert replicas(cluster, "given") == {"0": [2, 1], "1": [2, 1], "2": [1, 2]}
    cluster.wait_in_sync("given")
    produce(cluster.bootstrap, "given", [b"x"] * 10)


def test_a_replica_that_kafkas_controller_gave_it_stays_offline(cluster: MixedCluster):
    cluster.move_controller(1)
    topic = NewTopic("misplaced", num_partitions=2, replica_assignment=[[NODE, 1], [2, NODE]])
    administer(cluster.bootstrap, lambda admin: admin.create_topics([topic]))
    for partition, leader in enumerate((1, 2)):
        cluster.wait_state("misplaced", partition, lambda s, b=leader: s["isr"] == [b])
        cluster.wait_state("misplaced", partition, lambda s, b=leader: s["leader"] == b)
        produce(cluster.bootstrap, "misplaced", [b"x"] * 10, partition=partition)
    # The role comes back to the node: nothing changes for the partitions.
    cluster.move_controller(NODE)
    produce(cluster.bootstrap, "misplaced", [b"x"] * 10)
    assert cluster.state("misplaced", 0)["isr"] == [1]
    assert cluster.state("misplaced", 1)["isr"] == [2]
    assert len(consume(cluster.bootstrap, "misplaced", "finders", 30)) == 30


def test_clients_can_begin_with_it(cluster: MixedCluster):
    node = cluster.broker(NODE).address
    create(node, "begun", [[1, 2], [2, 1]])
    produce(node, "begun", [b"x"] * 10)
    assert consume(node, "begun", "beginners", 10) == [b"x"] * 10
    client = AdminClient(settings(node))
    described = client.describe_cluster().result(PATIENCE_S)
    assert {each.id for each in described.nodes} == {*BROKERS, NODE}
    assert described.controller.id == NODE
    resource = ConfigResource(ResourceType.TOPIC, "begun")
    config = administer(node, lambda admin: admin.describe_configs([resource]))[resource]
    assert config["retention.ms"].value == "604800000"


def test_transactions_go_on_under_it(cluster: MixedCluster):
    create(cluster.bootstrap, "ledger", [[1, 2]])
    # The first who asks a broker of Kafka for a coordinator makes it create the topic for them.
    question = {"key": "anybody", "key_type": 1}
    wait_until(
        lambda: not cluster.nodes[1].ask(ApiKey.FIND_COORDINATOR, 1, **question).error_code,
        "a coordinator of transactions",
        PATIENCE_S,
    )
    # From then on the node knows as well who coordinates.
    wait_until(
        lambda: not cluster.nodes[NODE].ask(ApiKey.FIND_COORDINATOR, 1, **question).error_code,
        "the node knows the coordinator",
        PATIENCE_S,
    )
    transact(cluster.bootstrap, "ledger", [b"1", b"2"], commit=True)
    transact(cluster.bootstrap, "ledger", [b"3"], commit=False)
    transact(cluster.bootstrap, "ledger", [b"4"], commit=True)
    read = consume(cluster.bootstrap, "ledger", "auditors", 3, isolation_level="read_committed")
    assert read == [b"1", b"2", b"4"]
