"""Settings that change while the controller works, and nodes that only compete for the role."""

import contextlib
import json
from typing import Any

import pytest

from klamm.errors import KlammError
from klamm.history.story import run
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode as E
from tests.support.lab import Lab, Node, topic_znode
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

UNCLEAN = "unclean.leader.election.enable"
TOPIC, BROKER = 2, 4
SET, DELETE = 0, 1


def alter(node: Node, kind: int, name: str, operation: int, value: str | None) -> E:
    """Change one setting, as an administrator does."""
    config = {"name": UNCLEAN, "config_operation": operation, "value": value}
    resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
    response = node.ask(
        ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[resource], validate_only=False
    )
    return response.responses[0].error_code


def stranded(lab: Lab, node: Node, topic: str) -> None:
    """A topic whose only in-sync replica is gone, while another one lives."""
    lab.add_brokers(8)
    lab.create_topic(topic, {0: [8, 1]})
    lab.alter_partition(node, topic, 0, [8])
    lab.brokers.pop(8).close()
    lab.wait_state(topic, 0, lambda s: s["leader"] == -1)


def was_rescued(lab: Lab, topic: str) -> None:
    state = lab.wait_state(topic, 0, lambda s: s["leader"] == 1)
    assert (state["isr"], state["leader_recovery_state"]) == ([1], 1)


@pytest.mark.rule("LEAD-4", "LEAD-17", "CONF-2", "VER-25", "ZK-19", "CFG-2", "CFG-3")
def test_a_topic_that_allows_unclean_elections_gets_its_leader_at_once(shared: Lab, node: Node):
    stranded(shared, node, "allowed")
    stranded(shared, node, "left")
    before = len(shared.zk.get_children("/config/changes"))
    assert alter(node, TOPIC, "allowed", SET, "true") == E.NONE
    was_rescued(shared, "allowed")
    assert shared.state("left", 0)["leader"] == -1
    assert len(shared.zk.get_children("/config/changes")) == before + 1
    # The same by hand: what counts is the notification, and what the znode says then.
    config = {"version": 1, "config": {UNCLEAN: "true"}}
    shared.zk.create("/config/topics/left", json.dumps(config).encode())
    change = {"version": 2, "entity_path": "topics/left"}
    shared.zk.create("/config/changes/config_change_", json.dumps(change).encode(), sequence=True)
    was_rescued(shared, "left")


@pytest.mark.rule("LEAD-4", "LEAD-16", "CONF-2", "VER-25")
@pytest.mark.parametrize("broker", ["", "100"], ids=["default", "own"])
def test_a_broker_default_that_allows_unclean_elections_takes_effect_at_once(
    shared: Lab, node: Node, broker: str
):
    name = f"by-default-{broker}"
    stranded(shared, node, name)
    assert alter(node, BROKER, broker, SET, "true") == E.NONE
    was_rescued(shared, name)
    assert alter(node, BROKER, broker, DELETE, None) == E.NONE
    wait_until(
        lambda: UNCLEAN not in shared.znode(f"/config/brokers/{broker or '<default>'}")["config"]
    )
    # It no longer holds for what is lost from now on.
    stranded(shared, node, f"{name}-later")


@pytest.mark.rule("ZK-11")
def test_a_node_without_data_says_so_in_its_registration(shared: Lab, node: Node):
    registration = shared.znode("/brokers/ids/100")
    assert registration["klamm_roles"] == "controller"
    assert registration["endpoints"] == [f"PLAINTEXT://127.0.0.1:{node.port}"]


def test_placement_passes_over_a_node_without_data(shared: Lab, node: Node):
    def create(name: str, count: int, factor: int) -> E:
        topic = {"name": name, "num_partitions": count, "replication_factor": factor}
        response = node.ask(
            ApiKey.CREATE_TOPICS,
            7,
            topics=[topic | {"assignments": [], "configs": []}],
            timeout=10_000,
            validate_only=False,
        )
        return response.topics[0].error_code

    assert create("spread", 4, 3) == E.NONE
    lists = shared.znode("/brokers/topics/spread")["partitions"].values()
    assert all(sorted(replicas) == [1, 2, 3] for replicas in lists)
    assert create("too-many", 1, 4) == E.INVALID_REPLICATION_FACTOR


def test_a_replica_that_others_placed_on_a_node_without_data_goes_to_a_broker(
    shared: Lab, node: Node
):
    path = "/brokers/topics/misplaced"
    shared.zk.create(path, topic_znode({0: [100, 1], 1: [2, 100, 3], 2: [3, 2, 1]}))
    for partition in range(3):
        shared.wait_state("misplaced", partition, lambda s: s["leader"] >= 0)
    partitions = shared.znode(path)["partitions"]
    assert all(100 not in replicas for replicas in partitions.values())
    assert [len(partitions[str(p)]) for p in range(3)] == [2, 3, 3]
    assert partitions["0"][1] == 1
    assert (partitions["1"], partitions["2"]) == ([2, 1, 3], [3, 2, 1])
    # So it is with partitions that are added later.
    grown = partitions | {"3": [1, 100]}
    shared.zk.set(path, topic_znode({int(p): replicas for p, replicas in grown.items()}))
    state = shared.wait_state("misplaced", 3, lambda s: s["leader"] == 1)
    assert 100 not in state["isr"]
    assert shared.znode(path)["partitions"]["3"] == state["isr"]


def test_a_node_without_data_tells_clients_where_the_others_are(shared: Lab, node: Node):
    shared.create_topic("known", {0: [1, 2, 3]})

    def described() -> Any:
        topics = [{"name": "known"}]
        found = node.ask(ApiKey.METADATA, 5, topics=topics, allow_auto_topic_creation=False)
        return found if found.topics[0].error_code == E.NONE else None

    metadata = wait_until(described)
    assert {broker.node_id for broker in metadata.brokers} == {1, 2, 3, 100}
    assert metadata.controller_id == 100
    assert list(metadata.topics[0].partitions[0].replica_nodes) == [1, 2, 3]
    cluster = node.ask(ApiKey.DESCRIBE_CLUSTER, 0, include_cluster_authorized_operations=False)
    assert {broker.broker_id for broker in cluster.brokers} == {1, 2, 3, 100}
    wanted = [{"resource_type": BROKER, "resource_name": "100", "configuration_keys": None}]
    configs = node.ask(ApiKey.DESCRIBE_CONFIGS, 1, resources=wanted, include_synonyms=False)
    values = {entry.name: entry.value for entry in configs.results[0].configs}
    assert values["broker.id"] == "100"


def test_a_node_without_data_keeps_a_history_that_can_be_told(shared: Lab, node: Node):
    shared.add_brokers(8)
    shared.create_topic("told", {0: [8, 1]})
    shared.brokers.pop(8).close()
    shared.wait_state("told", 0, lambda s: s["leader"] == 1)
    spool = node.directory / "logs-history"
    assert not (node.directory / "logs").exists()

    def told() -> str:
        lines: list[str] = []
        with contextlib.suppress(KlammError):
            run("told-0", spools=[spool], write=lines.append)
        return "\n".join(lines)

    wait_until(lambda: "broker 8 disappeared" in told())
    elected, created, moved = told().splitlines()
    assert elected.endswith("epoch 1 #1: broker 100 became controller.")
    assert created.endswith("told-0 was created with leader 8, leader epoch 0, ISR 8,1.")
    assert "topics appeared or vanished in ZooKeeper" in created
    assert moved.endswith(
        "broker 8 disappeared; told-0 got leader 1 (was 8), leader epoch 1, ISR 1."
    )
