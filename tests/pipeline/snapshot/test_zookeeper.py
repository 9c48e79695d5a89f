"""Snapshots from a real ZooKeeper, with znodes as Kafka writes them."""

import asyncio
import uuid
from collections.abc import Mapping

import pytest

from klamm.errors import ConfigError
from klamm.pipeline.snapshot.zookeeper import snapshot_from_zookeeper
from klamm.zookeeper import znodes
from klamm.zookeeper.server import ZooKeeperServer
from klamm.zookeeper.session import open_store
from tests.support.state_znodes import encode_state

TOPIC_ID = uuid.UUID(int=0x1234567812344678ABCD1234567812AB)


def fill(connect: str, nodes: Mapping[str, bytes | None]) -> None:
    """Create nodes, with the parents that they need."""

    async def write() -> None:
        store = await open_store(connect)
        try:
            for path in sorted(nodes):  # so that parents with data come before their children
                await store.ensure_path(path[: path.rindex("/")] or "/")
                await store.create(path, nodes[path])
        finally:
            await store.close()

    asyncio.run(write())


def broker(number: int, rack: str | None, *, controller_only: bool = False) -> bytes:
    # Nothing listens on port 1, so nobody tells sizes.
    endpoint = znodes.RegisteredEndpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 1)
    registration = znodes.BrokerRegistration(
        number, (endpoint,), rack, controller_only=controller_only
    )
    return znodes.encode_broker(registration, 0)


@pytest.fixture
def connect(zookeeper_server: ZooKeeperServer) -> str:
    return f"{zookeeper_server.address}/snapshot-{uuid.uuid4().hex}"


def test_a_snapshot_has_what_the_znodes_say(connect):
    fill(
        connect,
        {
            "/cluster/id": znodes.encode_cluster_id("the-cluster"),
            "/brokers/ids/1": broker(1, "a"),
            "/brokers/ids/2": broker(2, None),
            "/brokers/ids/9": broker(9, None, controller_only=True),
            "/brokers/topics/orders": znodes.encode_topic(
                znodes.TopicAssignment(TOPIC_ID, {0: [1, 2], 1: [2, 1], 2: [2]})
            ),
            "/brokers/topics/orders/partitions/0/state": encode_state(2, 5, [2, 1], 3),
            "/brokers/topics/orders/partitions/1/state": encode_state(-1, 7, [2], 3),
            "/config/topics/orders": znodes.encode_config({"min.insync.replicas": "2"}),
            "/brokers/topics/plain": znodes.encode_topic(znodes.TopicAssignment(None, {0: [1]})),
            "/brokers/topics/plain/partitions/0/state": encode_state(1, 0, [1], 3),
            "/config/brokers/<default>": znodes.encode_config(
                {"unclean.leader.election.enable": "true"}
            ),
        },
    )
    snapshot = snapshot_from_zookeeper(connect)
    assert snapshot.cluster_id == "the-cluster"
    assert snapshot.brokers.to_pylist() == [
        {"id": 1, "host": "127.0.0.1", "port": 1, "rack": "a"},
        {"id": 2, "host": "127.0.0.1", "port": 1, "rack": None},
    ]
    assert snapshot.topics.to_pylist() == [
        {
            "topic": "orders",
            "topic_id": znodes.encode_topic_id(TOPIC_ID),
            "partitions": 3,
            "config": [("min.insync.replicas", "2")],
        },
        {"topic": "plain", "topic_id": None, "partitions": 1, "config": []},
    ]
    common = {"topic": "orders", "min_isr": 2, "unclean": True, "bytes": None}
    assert snapshot.partitions.to_pylist() == [
        common
        | {"partition": 0, "replicas": [1, 2], "isr": [2, 1], "leader": 2, "leader_epoch": 5},
        common | {"partition": 1, "replicas": [2, 1], "isr": [2], "leader": -1, "leader_epoch": 7},
        common | {"partition": 2, "replicas": [2], "isr": [], "leader": -1, "leader_epoch": -1},
        common
        | {"topic": "plain", "partition": 0, "replicas": [1], "isr": [1], "leader": 1}
        | {"leader_epoch": 0, "min_isr": 1},
    ]


def test_what_cannot_be_read_is_told_and_the_rest_is_there(connect):
    fill(
        connect,
        {
            "/brokers/ids/1": broker(1, None),
            "/brokers/ids/2": b'{"version":5}',
            "/brokers/topics/good": znodes.encode_topic(znodes.TopicAssignment(None, {0: [1]})),
            "/brokers/topics/good/partitions/0/state": b'{"leader":"me"}',
            "/brokers/topics/bad": b'{"version":1,"partitions":7}',
        },
    )
    told: list[str] = []
    snapshot = snapshot_from_zookeeper(connect, with_sizes=False, tell=told.append)
    assert snapshot.brokers["id"].to_pylist() == [1]
    assert snapshot.topics["topic"].to_pylist() == ["good"]
    assert snapshot.partitions["leader"].to_pylist() == [-1]
    for path in ("/brokers/ids/2", "/brokers/topics/bad", "/brokers/topics/good/partitions/0"):
        assert any(path in line for line in told)


def test_a_chroot_that_is_missing_is_refused_and_not_created(zookeeper_server):
    connect = f"{zookeeper_server.address}/nobody-{uuid.uuid4().hex}"
    for _ in range(2):
        with pytest.raises(ConfigError, match="There is no Kafka cluster at"):
            snapshot_from_zookeeper(connect)


def test_an_ensemble_without_kafka_is_refused(connect):
    fill(connect, {"/something": b""})
    with pytest.raises(ConfigError, match="/brokers/ids is missing"):
        snapshot_from_zookeeper(connect)
