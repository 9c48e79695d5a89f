"""Admin requests over the wire: validation order, error codes, and what they leave in ZooKeeper."""

import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest

from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode as E
from tests.support.lab import Lab, Node, topic_znode
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def shared(new_lab: Callable[[], Lab]) -> Lab:
    """Scripted brokers 1 to 4, controller 100, and 101, which is not."""
    lab = new_lab()
    lab.start(brokers=4)
    lab.add_node(101, auto_create_topics_enable="true", default_replication_factor=3)
    return lab


@pytest.fixture(scope="module")
def node(shared: Lab) -> Node:
    """The controller's node."""
    return shared.nodes[100]


def create(node: Node, *topics: dict[str, Any], version: int = 7, **body: Any) -> dict[str, Any]:
    """The responses to CreateTopics, by name."""
    full = [
        {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": [], **topic}
        for topic in topics
    ]
    response = node.ask(
        ApiKey.CREATE_TOPICS,
        version,
        **{"topics": full, "timeout": 10_000, "validate_only": False, **body},
    )
    return {topic.name: topic for topic in response.topics}


def assigned(*lists: list[int]) -> dict[str, Any]:
    rows = [{"partition_index": p, "broker_ids": ids} for p, ids in enumerate(lists)]
    return {"num_partitions": -1, "replication_factor": -1, "assignments": rows}


def config(name: str, value: str | None) -> dict[str, Any]:
    return {"configs": [{"name": name, "value": value}]}


def expand(node: Node, *topics: dict[str, Any], **body: Any) -> dict[str, Any]:
    response = node.ask(
        ApiKey.CREATE_PARTITIONS,
        3,
        **{
            "topics": [{"assignments": None, **topic} for topic in topics],
            "timeout": 10_000,
            "validate_only": False,
            **body,
        },
    )
    return {topic.name: topic for topic in response.results}


def delete(node: Node, *names: str, version: int = 5, timeout: int = 10_000) -> dict[str, Any]:
    response = node.ask(
        ApiKey.DELETE_TOPICS,
        version,
        topic_names=list(names),
        topics=[{"name": name, "topic_id": None} for name in names],
        timeout=timeout,
    )
    return {topic.name: topic for topic in response.responses}


@pytest.mark.rule("TOPIC-17", "TOPIC-20", "ADM-16", "ZK-12", "ZK-14", "ZK-15", "ZK-18", "ZK-19")
def test_a_created_topic_is_written_elected_and_described_in_the_response(shared: Lab, node: Node):
    wanted = {"name": "made", "num_partitions": 2, "replication_factor": 3}
    made = create(node, wanted | config("retention.ms", "1000"))["made"]
    assert (made.error_code, made.num_partitions, made.replication_factor) == (E.NONE, 2, 3)
    znode = shared.znode("/brokers/topics/made")
    assert set(znode) == {
        "version", "topic_id", "partitions", "adding_replicas", "removing_replicas"
    }  # fmt: skip
    assert (znode["version"], len(znode["topic_id"])) == (3, 22)
    assert not znode["topic_id"].startswith("-")
    assert set(znode["partitions"]["0"]) < {1, 2, 3, 4}
    assert shared.znode("/config/topics/made") == {"version": 1, "config": {"retention.ms": "1000"}}
    assert shared.zk.get_children("/config/changes") == []
    for partition in (0, 1):
        state = shared.state("made", partition)
        assert state["leader"] == znode["partitions"][str(partition)][0]
        assert (state["leader_epoch"], state["version"]) == (0, 0)
    values = {entry.name: entry.value for entry in made.configs}
    assert values["retention.ms"] == "1000"


@pytest.mark.rule("ADM-2", "ADM-3", "ADM-4", "ADM-5", "ADM-7", "ADM-9", "ADM-10", "ADM-12")
@pytest.mark.rule("ADM-6", "ASSIGN-2", "TOPIC-18", "BADM-2")
def test_each_bad_topic_of_a_request_gets_its_own_error(shared: Lab, node: Node):
    create(node, {"name": "a.b"})
    responses = create(
        node,
        {"name": "__cluster_metadata"},
        {"name": "twice"},
        {"name": "twice"},
        {"name": "a.b"},
        {"name": "null", **config("retention.ms", None)},
        {"name": "both", **assigned([1]), "num_partitions": 1},
        {"name": "none", "num_partitions": 0},
        {"name": "nobody", "replication_factor": 0},
        {"name": "many", "replication_factor": 5},
        {"name": "bad name"},
        {"name": ".."},
        {"name": "x" * 250},
        {"name": "a_b"},
        {"name": "uneven", **assigned([1, 2], [1])},
        {"name": "doubled", **assigned([1, 1])},
        {"name": "unknown-key", **config("no.such.key", "1")},
        {"name": "bad-value", **config("retention.ms", "soon")},
        {"name": "good"},
    )
    codes = {name: response.error_code for name, response in responses.items()}
    assert codes == {
        "__cluster_metadata": E.INVALID_REQUEST,
        "twice": E.INVALID_REQUEST,
        "a.b": E.TOPIC_ALREADY_EXISTS,
        "null": E.INVALID_CONFIG,
        "both": E.INVALID_REQUEST,
        "none": E.INVALID_PARTITIONS,
        "nobody": E.INVALID_REPLICATION_FACTOR,
        "many": E.INVALID_REPLICATION_FACTOR,
        "bad name": E.INVALID_TOPIC_EXCEPTION,
        "..": E.INVALID_TOPIC_EXCEPTION,
        "x" * 250: E.INVALID_TOPIC_EXCEPTION,
        "a_b": E.INVALID_TOPIC_EXCEPTION,
        "uneven": E.INVALID_REPLICA_ASSIGNMENT,
        "doubled": E.INVALID_REPLICA_ASSIGNMENT,
        "unknown-key": E.INVALID_CONFIG,
        "bad-value": E.INVALID_CONFIG,
        "good": E.NONE,
    }
    assert all(
        (response.num_partitions, response.replication_factor) == (-1, -1)
        for name, response in responses.items()
        if name != "good"
    )
    there = codes.keys() & set(shared.zk.get_children("/brokers/topics"))
    assert there == {"a.b", "good"}


@pytest.mark.rule("ADM-11", "ADM-15", "TOPIC-10", "TRACE-13")
def test_a_topic_on_dead_brokers_times_out_and_comes_online_with_them(shared: Lab, node: Node):
    response = create(node, {"name": "dead", **assigned([8, 9])}, timeout=200)["dead"]
    assert response.error_code == E.REQUEST_TIMED_OUT
    assert shared.state("dead", 0) is None
    shared.add_brokers(9)
    state = shared.wait_state("dead", 0, lambda s: s["leader"] == 9)
    assert (state["isr"], state["leader_epoch"]) == ([9], 0)
    told = wait_until(lambda: shared.brokers[9].told(ApiKey.LEADER_AND_ISR, "dead", 0))
    assert told[-1].is_new
    shared.add_brokers(8)
    told = wait_until(lambda: shared.brokers[8].told(ApiKey.LEADER_AND_ISR, "dead", 0))
    assert not told[-1].is_new
    immediate = create(node, {"name": "at-once"}, timeout=0)["at-once"]
    assert immediate.error_code == E.REQUEST_TIMED_OUT
    shared.wait_state("at-once", 0, lambda s: s["leader"] >= 0)
    for broker in (8, 9):
        shared.brokers.pop(broker).close()


@pytest.mark.rule("ADM-14", "ADM-23")
def test_validating_only_checks_everything_and_writes_nothing(shared: Lab, node: Node):
    responses = create(node, {"name": "would-be"}, {"name": "bad name"}, validate_only=True)
    assert responses["would-be"].error_code == E.NONE
    assert responses["bad name"].error_code == E.INVALID_TOPIC_EXCEPTION
    assert not shared.zk.exists("/brokers/topics/would-be")
    assert not shared.zk.exists("/config/topics/would-be")
    shared.create_topic("same", {0: [1]})
    would_grow = expand(node, {"name": "same", "count": 3}, validate_only=True)["same"]
    assert would_grow.error_code == E.NONE
    assert list(shared.znode("/brokers/topics/same")["partitions"]) == ["0"]


@pytest.mark.rule("ADM-1", "ADM-17", "ADM-24", "BADM-1", "EVT-7", "PREF-2", "REASG-5", "SHUT-2")
@pytest.mark.rule("ISR-8", "ADM-45", "LIFE-16")
def test_a_node_that_is_not_controller_refuses_each_request_in_its_own_way(shared: Lab):
    shared.create_topic("kept", {0: [1]})
    other = shared.nodes[101]
    shared.wait_registered(101)
    there = shared.zk.get_children("/brokers/topics")
    assert create(other, {"name": "n"})["n"].error_code == E.NOT_CONTROLLER
    assert delete(other, "kept")["kept"].error_code == E.NOT_CONTROLLER
    assert expand(other, {"name": "kept", "count": 2})["kept"].error_code == E.NOT_CONTROLLER
    wanted = [{"topic": "kept", "partitions": [0]}]
    elected = other.ask(
        ApiKey.ELECT_LEADERS, 2, election_type=0, topic_partitions=wanted, timeout=1000
    )
    (topic,) = elected.replica_election_results
    assert topic.partition_result[0].error_code == E.NOT_CONTROLLER
    moved = other.ask(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        0,
        timeout=1000,
        topics=[{"name": "kept", "partitions": [{"partition_index": 0, "replicas": [1]}]}],
    )
    assert moved.error_code == E.NOT_CONTROLLER
    listed = other.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=None)
    assert listed.error_code == E.NOT_CONTROLLER
    epoch = shared.brokers[1].epoch
    leaving = other.ask(ApiKey.CONTROLLED_SHUTDOWN, 3, broker_id=1, broker_epoch=epoch)
    assert leaving.error_code == E.STALE_CONTROLLER_EPOCH
    ids = other.ask(ApiKey.ALLOCATE_PRODUCER_IDS, 0, broker_id=1, broker_epoch=epoch)
    assert ids.error_code == E.NOT_CONTROLLER
    features = other.ask(
        ApiKey.UPDATE_FEATURES, 1, feature_updates=[], timeout=1000, validate_only=False
    )
    assert features.error_code == E.NOT_CONTROLLER
    assert shared.alter_partition(other, "kept", 0, [1]).error_code == E.NOT_CONTROLLER
    assert shared.zk.get_children("/brokers/topics") == there


@pytest.mark.rule("ADM-29", "META-6")
def test_an_automatic_topic_is_written_by_the_broker_that_was_asked(shared: Lab):
    shared.wait_registered(101)

    def describe() -> Any:
        topics = [{"name": "automatic"}]
        response = shared.nodes[101].ask(
            ApiKey.METADATA, 5, topics=topics, allow_auto_topic_creation=True
        )
        return response.topics[0]

    described = wait_until(lambda: (found := describe()).error_code == E.NONE and found)
    replicas = shared.znode("/brokers/topics/automatic")["partitions"]["0"]
    assert list(described.partitions[0].replica_nodes) == replicas
    # Nodes without data are passed over.
    assert len(set(replicas) & {1, 2, 3, 4}) == 3
    assert shared.state("automatic", 0)["leader"] == replicas[0]


@pytest.mark.rule("ADM-18", "ADM-19", "ADM-20", "ADM-21", "TOPIC-19", "ASSIGN-13", "BADM-6")
def test_expansion_is_checked_written_and_elected(shared: Lab, node: Node):
    shared.create_topic("grown", {0: [2, 3]})
    responses = expand(
        node,
        {"name": "grown", "count": 3},
        {"name": "missing", "count": 2},
        {"name": "twice", "count": 2},
        {"name": "twice", "count": 2},
    )
    assert responses["grown"].error_code == E.NONE
    assert responses["missing"].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert responses["twice"].error_code == E.INVALID_REQUEST
    # Start = shift = the place of broker 2, counted on from partition 1.
    partitions = shared.znode("/brokers/topics/grown")["partitions"]
    assert partitions == {"0": [2, 3], "1": [3, 1], "2": [4, 2]}
    assert shared.state("grown", 2)["leader"] == 4
    assert expand(node, {"name": "grown", "count": 3})["grown"].error_code == E.INVALID_PARTITIONS
    assert expand(node, {"name": "grown", "count": 2})["grown"].error_code == E.INVALID_PARTITIONS
    for lists in ([[1, 9]], [[1, 2], [2, 3]], [[]], [[1, 1]], [[1]]):
        given = [{"broker_ids": ids} for ids in lists]
        response = expand(node, {"name": "grown", "count": 4, "assignments": given})["grown"]
        assert response.error_code == E.INVALID_REPLICA_ASSIGNMENT
    good = [{"broker_ids": [3, 1]}]
    assert (
        expand(node, {"name": "grown", "count": 4, "assignments": good})["grown"].error_code
        == E.NONE
    )
    assert shared.state("grown", 3)["isr"] == [3, 1]


@pytest.mark.rule("ADM-22", "ASSIGN-3", "ASSIGN-13")
def test_an_expansion_that_cannot_be_placed_is_refused(shared: Lab, node: Node):
    shared.create_topic("wide", {0: [1, 2, 3, 4, 88]})
    shared.create_topic("headless", {1: [1]})
    assert expand(node, {"name": "wide", "count": 2})["wide"].error_code == (
        E.INVALID_REPLICATION_FACTOR
    )
    assert expand(node, {"name": "headless", "count": 3})["headless"].error_code == (
        E.UNKNOWN_SERVER_ERROR
    )
    # A rack that only one broker has says nothing about the others: then the whole request fails.
    shared.create_topic("narrow", {0: [1]})
    shared.add_brokers(9, racks={9: "r"})
    wait_until(lambda: shared.brokers[9].received)
    given = [{"broker_ids": [2]}]
    responses = expand(
        node,
        {"name": "narrow", "count": 2},
        {"name": "headless", "count": 2, "assignments": given},
    )
    assert {response.error_code for response in responses.values()} == {E.UNKNOWN_SERVER_ERROR}
    refused = create(node, {"name": "rackless"})["rackless"]
    assert refused.error_code == E.UNKNOWN_SERVER_ERROR
    assert list(shared.znode("/brokers/topics/narrow")["partitions"]) == ["0"]
    shared.brokers.pop(9).close()
    wait_until(lambda: expand(node, {"name": "narrow", "count": 2})["narrow"].error_code == E.NONE)


@pytest.mark.rule("ADM-26", "ADM-28", "DEL-34", "DEL-15", "DEL-19", "BADM-5")
def test_deletion_answers_when_the_topic_is_gone_from_the_brokers(shared: Lab, node: Node):
    create(node, {"name": "gone", "replication_factor": 2})
    first_id = shared.znode("/brokers/topics/gone")["topic_id"]
    responses = delete(node, "gone", "missing")
    assert responses["gone"].error_code == E.NONE
    assert responses["missing"].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    wait_until(lambda: not shared.zk.exists("/brokers/topics/gone"))
    wait_until(lambda: not shared.zk.get_children("/admin/delete_topics"))
    assert not shared.zk.exists("/config/topics/gone")
    assert create(node, {"name": "gone"})["gone"].error_code == E.NONE
    assert shared.znode("/brokers/topics/gone")["topic_id"] != first_id
    late = delete(node, "gone", timeout=0)["gone"]
    assert late.error_code == E.REQUEST_TIMED_OUT
    wait_until(lambda: not shared.zk.exists("/brokers/topics/gone"))


@pytest.mark.rule("ADM-8", "ADM-26", "DEL-19")
def test_a_name_is_taken_until_its_deletion_is_complete(shared: Lab, node: Node):
    shared.create_topic("slow", {0: [3]})
    shared.brokers[3].script.withheld = {ApiKey.STOP_REPLICA}
    # Gone from the brokers, and yet not gone.
    assert delete(node, "slow")["slow"].error_code == E.NONE
    assert delete(node, "slow")["slow"].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    again = create(node, {"name": "slow"})["slow"]
    assert again.error_code == E.TOPIC_ALREADY_EXISTS
    assert again.error_message == "Topic 'slow' is marked for deletion."
    shared.brokers[3].release()
    wait_until(lambda: not shared.zk.exists("/admin/delete_topics/slow"))
    assert create(node, {"name": "slow"})["slow"].error_code == E.NONE


@pytest.mark.rule("ADM-26", "FAILOVER-13")
def test_a_topic_that_waited_for_its_deletion_at_failover_is_unknown(lab: Lab):
    lab.add_brokers(1)
    lab.zk.ensure_path("/admin/delete_topics/waiting")
    lab.zk.ensure_path("/brokers/topics")
    lab.zk.create("/brokers/topics/waiting", topic_znode({0: [1, 2]}))  # and there is no broker 2
    node = lab.add_node()
    lab.wait_controller(100)
    assert delete(node, "waiting")["waiting"].error_code == E.UNKNOWN_TOPIC_OR_PARTITION
    assert lab.zk.exists("/brokers/topics/waiting")


@pytest.mark.rule("ISR-11")
def test_a_recovery_state_that_does_not_exist_is_not_written(shared: Lab, node: Node):
    shared.create_topic("recovering", {0: [1, 2]})
    before = shared.state("recovering", 0)
    refused = shared.alter_partition(node, "recovering", 0, [1], leader_recovery_state=25)
    assert refused.error_code == E.UNKNOWN_SERVER_ERROR
    assert shared.state("recovering", 0) == before


@pytest.mark.rule("ADM-17", "ADM-18", "ADM-27", "DEL-4", "DEL-28")
def test_a_deletion_that_has_to_wait_is_accepted_again_and_again(shared: Lab, node: Node):
    shared.create_topic("busy", {0: [1, 2]})
    assert move(node, "busy", [2, 3]) == E.NONE
    grown = expand(node, {"name": "busy", "count": 2})["busy"]
    assert grown.error_code == E.REASSIGNMENT_IN_PROGRESS
    for _ in range(2):
        assert delete(node, "busy", timeout=200)["busy"].error_code == E.REQUEST_TIMED_OUT
    grown = expand(node, {"name": "busy", "count": 2})["busy"]
    assert grown.error_code == E.INVALID_TOPIC_EXCEPTION
    assert shared.zk.exists("/brokers/topics/busy")
    shared.alter_partition(node, "busy", 0, [1, 2, 3])
    wait_until(lambda: not shared.zk.exists("/brokers/topics/busy"))


@pytest.mark.rule("ADM-25")
def test_topics_are_deleted_by_name_or_by_id_and_not_by_both(shared: Lab, node: Node):
    made = create(node, {"name": "by-id"}, {"name": "by-name"})

    def deleted(*topics: tuple[str | None, uuid.UUID | None]) -> list[E]:
        wanted = [{"name": name, "topic_id": topic_id} for name, topic_id in topics]
        response = node.ask(ApiKey.DELETE_TOPICS, 6, topics=wanted, timeout=10_000)
        return [topic.error_code for topic in response.responses]

    topic_id = made["by-id"].topic_id
    assert deleted(("by-name", topic_id)) == [E.INVALID_REQUEST]
    assert deleted((None, uuid.uuid4())) == [E.UNKNOWN_TOPIC_ID]
    assert deleted((None, topic_id), ("by-name", None)) == [E.NONE, E.NONE]


@pytest.mark.rule("ADM-24", "DEL-3")
def test_where_deletion_is_disabled_nothing_is_deleted(lab: Lab):
    node = lab.start(brokers=1, delete_topic_enable="false")
    lab.create_topic("t", {0: [1]})
    assert delete(node, "t")["t"].error_code == E.TOPIC_DELETION_DISABLED
    assert delete(node, "t", version=2)["t"].error_code == E.INVALID_REQUEST
    lab.zk.create("/admin/delete_topics/t")
    wait_until(lambda: not lab.zk.get_children("/admin/delete_topics"))
    assert lab.zk.exists("/brokers/topics/t")


@pytest.mark.rule("ADM-40", "ADM-41", "FAILOVER-5")
def test_features_are_updated_as_far_as_this_broker_knows_them(lab: Lab):
    finalized = {"version": 2, "status": 1, "features": {"f": {"max_version_level": 3}}}
    lab.zk.create("/feature", json.dumps(finalized).encode())
    node = lab.add_node(100)
    wait_until(lambda: "controller of" in node.log)
    # Nobody here supports f, so nobody counts: not even the node itself.
    assert "broker 100 is ignored: it does not support the finalized features" in node.log

    def update(version: int, **change: Any) -> Any:
        updates = [{"feature": "f", "max_version_level": 0, **change}]
        return node.ask(
            ApiKey.UPDATE_FEATURES,
            version,
            feature_updates=updates,
            timeout=1000,
            validate_only=False,
        )

    higher = update(1, max_version_level=4, upgrade_type=1)
    assert higher.error_code == E.NONE
    assert higher.results[0].error_code == E.INVALID_REQUEST
    assert higher.results[0].error_message.endswith("the provided feature is not supported.")
    assert update(0, allow_downgrade=False).results[0].error_code == E.INVALID_REQUEST
    assert lab.znode("/feature") == finalized
    assert update(0, allow_downgrade=True).results[0].error_code == E.NONE
    assert lab.znode("/feature") == finalized | {"features": {}}


@pytest.mark.rule("ADM-45", "ADM-46", "ADM-47", "ZK-21", "FENCE-14", "IDEM-3")
def test_producer_ids_come_in_blocks_that_never_repeat(shared: Lab, node: Node):
    epoch = shared.brokers[1].epoch

    def allocate(broker: int = 1, broker_epoch: int = epoch) -> Any:
        return node.ask(
            ApiKey.ALLOCATE_PRODUCER_IDS, 0, broker_id=broker, broker_epoch=broker_epoch
        )

    blocks = [allocate() for _ in range(3)]
    assert [(b.producer_id_start, b.producer_id_len) for b in blocks] == [
        (0, 1000), (1000, 1000), (2000, 1000),
    ]  # fmt: skip
    assert shared.znode("/latest_producer_id_block") == {
        "version": 1, "broker": 1, "block_start": "2000", "block_end": "2999",
    }  # fmt: skip
    assert allocate(broker=9).error_code == E.BROKER_ID_NOT_REGISTERED
    assert allocate(broker_epoch=epoch - 1).error_code == E.STALE_BROKER_EPOCH
    # No block is left that would fit.
    path = "/latest_producer_id_block"
    last = {
        "version": 1,
        "broker": 1,
        "block_start": str(2**63 - 1500),
        "block_end": str(2**63 - 501),
    }
    shared.zk.set(path, json.dumps(last).encode())
    assert allocate().error_code == E.UNKNOWN_SERVER_ERROR
    assert shared.znode(path) == last


@pytest.mark.rule("ISR-17", "ISR-18", "ISR-19", "ISR-21", "PREF-5", "PREF-10", "PREF-11")
def test_isr_changes_and_elections_through_requests(shared: Lab, node: Node):
    shared.create_topic("led", {0: [1, 2, 3], 1: [2, 3, 1]})
    shrunk = shared.alter_partition(node, "led", 0, [1, 3])
    assert (shrunk.error_code, list(shrunk.isr), shrunk.partition_epoch) == (E.NONE, [1, 3], 1)
    assert shared.state("led", 0)["leader_epoch"] == 0
    stale = shared.alter_partition(node, "led", 0, [1, 2, 3], partition_epoch=0)
    assert stale.error_code == E.INVALID_UPDATE_VERSION
    stranger = shared.alter_partition(node, "led", 0, [2], broker=2)
    assert stranger.error_code == E.INVALID_REQUEST
    assert shared.state("led", 0)["isr"] == [1, 3]
    # Another order of the same replicas makes another one the preferred leader.
    assert move(node, "led", [3, 1, 2]) == E.NONE
    assert shared.state("led", 0)["leader"] == 1

    def elect(partitions: Any) -> dict[tuple[str, int], E]:
        response = node.ask(
            ApiKey.ELECT_LEADERS, 2, election_type=0, topic_partitions=partitions, timeout=10_000
        )
        return {
            (topic.topic, result.partition_id): result.error_code
            for topic in response.replica_election_results
            for result in topic.partition_result
        }

    assert elect([{"topic": "led", "partitions": [0, 1, 7]}]) == {
        ("led", 0): E.NONE,
        ("led", 1): E.ELECTION_NOT_NEEDED,
        ("led", 7): E.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert shared.state("led", 0)["leader"] == 3
    assert move(node, "led", [1, 2, 3]) == E.NONE
    of_all = elect(None)
    assert of_all["led", 0] == E.NONE
    assert ("led", 1) not in of_all
    assert shared.state("led", 0)["leader"] == 1


def move(node: Node, topic: str, replicas: list[int] | None) -> E:
    """Reassign partition 0 and return what was answered for it."""
    partition = {"partition_index": 0, "replicas": replicas}
    response = node.ask(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        0,
        timeout=10_000,
        topics=[{"name": topic, "partitions": [partition]}],
    )
    return response.responses[0].partitions[0].error_code


@pytest.mark.rule("REASG-6", "REASG-8", "REASG-11", "REASG-32", "REASG-33", "ADM-30", "ADM-31")
def test_a_reassignment_is_started_listed_cancelled_and_completed(shared: Lab, node: Node):
    shared.create_topic("moved", {0: [1, 2, 3]})

    def moving() -> list[Any]:
        response = node.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=None)
        return [
            (list(p.replicas), list(p.adding_replicas), list(p.removing_replicas))
            for topic in response.topics
            for p in topic.partitions
        ]

    assert move(node, "moved", None) == E.NO_REASSIGNMENT_IN_PROGRESS
    for bad in ([], [1, 1], [-1, 2], [1, 9]):
        assert move(node, "moved", bad) == E.INVALID_REPLICA_ASSIGNMENT
    assert move(node, "moved", [2, 3, 4]) == E.NONE
    assert moving() == [([2, 3, 4, 1], [4], [1])]
    assert move(node, "moved", None) == E.NONE
    assert moving() == []
    assert shared.znode("/brokers/topics/moved")["partitions"]["0"] == [2, 3, 1]
    assert move(node, "moved", [2, 3, 4]) == E.NONE
    assert shared.alter_partition(node, "moved", 0, [1, 2, 3, 4]).error_code == E.NONE
    wait_until(lambda: shared.znode("/brokers/topics/moved")["partitions"]["0"] == [2, 3, 4])
    state = shared.state("moved", 0)
    assert (state["leader"], state["isr"]) == (2, [2, 3, 4])
    stopped = wait_until(lambda: shared.brokers[1].told(ApiKey.STOP_REPLICA, "moved", 0))
    wait_until(lambda: shared.brokers[1].told(ApiKey.STOP_REPLICA, "moved", 0)[-1].delete_partition)
    assert not stopped[0].delete_partition
