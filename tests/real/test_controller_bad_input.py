"""Bad input is named in one sentence and changes nothing; what comes after it is served."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import OPEN_ACL_UNSAFE

from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode as E
from tests.support.lab import Lab, Node, topic_znode
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real


def wait_named(node: Node, sentence: str) -> None:
    """The node's log says it in one line."""
    wait_until(lambda: any(sentence in line for line in node.log.splitlines()), sentence)


def told(lab: Lab) -> int:
    """How many requests brokers have got."""
    return sum(len(broker.received) for broker in lab.brokers.values())


# Topics and states


@pytest.mark.rule("ZK-13", "TOPIC-11")
@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"{", "JSON is expected, not b'{'"),
        (b"[1]", "a JSON object is expected, not [1]"),
        (b'{"partitions":{"0":"one"}}', "partitions is expected to map partitions to lists"),
        (b'{"partitions":{"0":[1]},"topic_id":"short"}', "a topic id has 22 characters"),
    ],
)
def test_an_unreadable_topic_has_no_partitions_until_it_is_mended(
    shared: Lab, node: Node, data: bytes, sentence: str
):
    name = f"unreadable-{len(data)}"
    path = f"/brokers/topics/{name}"
    shared.zk.create(path, data)
    wait_named(node, f"{path}: {sentence}")
    assert shared.zk.get(path)[0] == data
    assert shared.zk.get_children(path) == []
    shared.zk.set(path, topic_znode({0: [1, 2]}))
    shared.wait_state(name, 0, lambda s: s["leader"] == 1)


@pytest.mark.rule("ZK-16", "PSM-17", "RSM-16", "FENCE-7")
@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"?", "JSON is expected, not b'?'"),
        (b'{"leader":1,"isr":[1,2]}', "leader_epoch is missing"),
    ],
)
def test_an_unreadable_state_is_left_alone_and_others_are_elected(
    shared: Lab, node: Node, data: bytes, sentence: str
):
    name = f"garbled-{len(data)}"
    path = f"/brokers/topics/{name}/partitions/0/state"
    shared.add_brokers(8)
    shared.create_topic(name, {0: [8, 2], 1: [8, 2]})
    shared.zk.set(path, data)
    shared.brokers.pop(8).close()
    shared.wait_state(name, 1, lambda s: s["leader"] == 2)
    wait_named(node, f"{path}: {sentence}")
    assert shared.zk.get(path)[0] == data


@pytest.mark.rule("FENCE-8")
def test_a_state_of_a_newer_controller_is_left_alone(shared: Lab, node: Node):
    shared.add_brokers(8)
    shared.create_topic("newer", {0: [8, 2], 1: [8, 2]})
    path = "/brokers/topics/newer/partitions/0/state"
    newer = shared.znode(path) | {"controller_epoch": 1000}
    shared.zk.set(path, json.dumps(newer).encode())
    shared.brokers.pop(8).close()
    shared.wait_state("newer", 1, lambda s: s["leader"] == 2)
    assert shared.znode(path) == newer


# Requests through ZooKeeper


@pytest.mark.rule("REASG-1", "REASG-3", "REASG-4", "ZK-26")
def test_an_unreadable_reassignment_stays_and_the_next_one_is_noticed(shared: Lab, node: Node):
    path = "/admin/reassign_partitions"
    shared.create_topic("moved", {0: [1, 2]})
    shared.zk.create(path, b"soon")
    wait_named(node, f"{path}: JSON is expected, not b'soon'")
    assert shared.zk.get(path)[0] == b"soon"
    shared.zk.delete(path)
    rows = [
        {"topic": "moved", "partition": 0, "replicas": [2, 1]},
        {"topic": "moved", "partition": 7, "replicas": [2, 1]},
        {"topic": "nowhere", "partition": 0, "replicas": [1]},
        {"topic": "moved", "partition": 0, "replicas": [2, 1]},
    ]
    shared.zk.create(path, json.dumps({"version": 1, "partitions": rows}).encode())
    wait_until(lambda: shared.znode("/brokers/topics/moved")["partitions"] == {"0": [2, 1]})
    wait_until(lambda: not shared.zk.exists(path))
    wait_named(node, "reassignment of moved-7 fails: UNKNOWN_TOPIC_OR_PARTITION")
    wait_named(node, "reassignment of nowhere-0 fails: UNKNOWN_TOPIC_OR_PARTITION")


@pytest.mark.rule("REASG-2")
@pytest.mark.parametrize("replicas", [[], [1, 1], [-1, 1]], ids=str)
def test_a_reassignment_to_an_impossible_list_is_refused(
    shared: Lab, node: Node, replicas: list[int]
):
    name = f"impossible-{len(replicas)}-{sum(replicas)}"
    path = "/admin/reassign_partitions"
    shared.create_topic(name, {0: [1, 2]})
    before = shared.zk.get(f"/brokers/topics/{name}")
    rows = [{"topic": name, "partition": 0, "replicas": replicas}]
    shared.zk.create(path, json.dumps({"version": 1, "partitions": rows}).encode())
    wait_named(node, f"reassignment of {name}-0 fails: INVALID_REPLICA_ASSIGNMENT")
    wait_until(lambda: not shared.zk.exists(path))
    assert shared.zk.get(f"/brokers/topics/{name}") == before
    assert shared.state(name, 0)["leader_epoch"] == 0


@pytest.mark.rule("PREF-4", "PREF-9", "ZK-27")
@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"now", "/admin/preferred_replica_election: JSON is expected, not b'now'"),
        (b"{}", "/admin/preferred_replica_election: partitions is expected to be a list"),
        (
            b'{"version":1,"partitions":[{"topic":"nobody","partition":3}]}',
            "preferred election of nobody-3 fails: UNKNOWN_TOPIC_OR_PARTITION",
        ),
    ],
)
def test_a_senseless_preferred_election_is_taken_away(
    shared: Lab, node: Node, data: bytes, sentence: str
):
    path = "/admin/preferred_replica_election"
    shared.zk.create(path, data)
    wait_until(lambda: not shared.zk.exists(path))
    wait_named(node, sentence)


@pytest.mark.rule("DEL-2")
def test_a_deletion_of_a_topic_that_nobody_knows_is_taken_away(shared: Lab, node: Node):
    shared.zk.create("/admin/delete_topics/unheard-of")
    wait_until(lambda: not shared.zk.get_children("/admin/delete_topics"))
    wait_named(node, "unheard-of")


@pytest.mark.rule("ISR-2", "ISR-6")
def test_unreadable_isr_notifications_are_dropped_and_the_others_count(shared: Lab, node: Node):
    shared.create_topic("shrunk", {0: [1, 2]})
    state = shared.state("shrunk", 0)
    del state["version"]
    shrunk = json.dumps(state | {"version": 1, "isr": [1]}).encode()
    shared.zk.set("/brokers/topics/shrunk/partitions/0/state", shrunk)
    named = [{"topic": "nobody", "partition": 0}, {"topic": "shrunk", "partition": 0}]
    for data in (b"", b"!", json.dumps({"version": 1, "partitions": named}).encode()):
        shared.zk.create("/isr_change_notification/isr_change_", data, sequence=True)
    wait_until(lambda: not shared.zk.get_children("/isr_change_notification"))
    wait_named(node, "JSON is expected, not b'!'")
    heard = shared.brokers[3]
    wait_until(lambda: list(heard.told(ApiKey.UPDATE_METADATA, "shrunk", 0)[-1].isr) == [1])


@pytest.mark.rule("LOGDIR-3")
def test_senseless_log_directory_notifications_are_dropped(shared: Lab, node: Node):
    before = told(shared)
    for data in (b"?", b'{"version":1,"broker":77,"event":1}', b'{"version":1,"event":1}'):
        shared.zk.create("/log_dir_event_notification/log_dir_event_", data, sequence=True)
    wait_until(lambda: not shared.zk.get_children("/log_dir_event_notification"))
    wait_named(node, "JSON is expected, not b'?'")
    wait_named(node, "broker is missing")
    assert told(shared) == before


# Brokers


@pytest.fixture
def stranger(shared: Lab) -> Iterator[KazooClient]:
    """A session of its own, to register what nobody should."""
    client = KazooClient(shared.address, timeout=10)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.mark.rule("ZK-10", "BRK-1")
@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"hello", "JSON is expected, not b'hello'"),
        (b'{"version":0,"host":"h","port":1,"jmx_port":-1}', "there is no version 0"),
        (b'{"version":5,"jmx_port":-1,"endpoints":["h:9092"]}', "an endpoint is LISTENER://"),
    ],
)
def test_an_unreadable_registration_is_nobody(
    shared: Lab, node: Node, stranger: KazooClient, data: bytes, sentence: str
):
    stranger.create("/brokers/ids/77", data, ephemeral=True)
    wait_named(node, f"/brokers/ids/77: {sentence}")
    shared.create_topic(f"without-77-{len(data)}", {0: [1, 77]})
    assert shared.state(f"without-77-{len(data)}", 0)["isr"] == [1]
    stranger.delete("/brokers/ids/77")


@pytest.mark.rule("BRK-20", "BRK-22")
def test_a_known_broker_whose_registration_becomes_unreadable_stays_what_it_is(
    shared: Lab, node: Node, stranger: KazooClient
):
    shared.create_topic("faithful", {0: [3, 1]})
    shared.zk.set("/brokers/ids/3", b"{}")
    wait_named(node, "/brokers/ids/3: version is missing")
    # Another broker comes and goes: all registrations are read again.
    with contextlib.closing(type(shared.brokers[3])(shared.address, 78)) as other:
        other.register()
        wait_until(lambda: other.received)
    shared.create_topic("faithful-too", {0: [3, 1]})
    assert shared.state("faithful", 0)["leader"] == 3
    assert shared.state("faithful-too", 0)["leader"] == 3
    shared.zk.set("/brokers/ids/3", shared.brokers[3].registration())


@pytest.mark.rule("ISR-8", "ISR-12", "ISR-13", "SHUT-3", "SHUT-4", "FENCE-14", "LIFE-16")
def test_unknown_brokers_and_stale_epochs_are_refused(shared: Lab, node: Node):
    shared.create_topic("current", {0: [1, 2]})
    before = shared.state("current", 0)
    epoch = shared.brokers[1].epoch

    def alter(broker: int = 1, broker_epoch: int = epoch, **changes: Any) -> Any:
        proposal = {
            "partition_index": 0,
            "leader_epoch": 0,
            "new_isr": [1],
            "leader_recovery_state": 0,
            "partition_epoch": 0,
        }
        topic = changes.pop("topic_name", "current")
        response = node.ask(
            ApiKey.ALTER_PARTITION,
            1,
            broker_id=broker,
            broker_epoch=broker_epoch,
            topics=[{"topic_name": topic, "partitions": [proposal | changes]}],
        )
        return (
            response.topics[0].partitions[0].error_code if response.topics else response.error_code
        )

    assert alter(broker=77) == E.STALE_BROKER_EPOCH
    assert alter(broker_epoch=epoch - 1) == E.STALE_BROKER_EPOCH
    assert alter(broker_epoch=epoch + 1) == E.STALE_BROKER_EPOCH
    assert alter(topic_name="nobody") == E.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(partition_index=7) == E.UNKNOWN_TOPIC_OR_PARTITION
    assert alter(leader_epoch=-1) == E.FENCED_LEADER_EPOCH
    assert alter(leader_epoch=1) == E.NOT_CONTROLLER
    assert alter(partition_epoch=1) == E.NOT_CONTROLLER
    assert alter(new_isr=[1, 77]) == E.OPERATION_NOT_ATTEMPTED

    def leave(broker: int, broker_epoch: int) -> E:
        response = node.ask(
            ApiKey.CONTROLLED_SHUTDOWN, 2, broker_id=broker, broker_epoch=broker_epoch
        )
        return response.error_code

    assert leave(1, epoch - 1) == E.STALE_BROKER_EPOCH
    assert leave(77, 1) == E.UNKNOWN_SERVER_ERROR
    assert leave(77, -1) == E.BROKER_NOT_AVAILABLE
    assert shared.state("current", 0) == before


# Configuration


@pytest.mark.rule("LEAD-5", "CONF-2")
def test_an_unreadable_topic_configuration_fails_only_what_needs_it(shared: Lab, node: Node):
    shared.add_brokers(8)
    shared.create_topic("doubtful", {0: [8, 1]})
    shared.alter_partition(node, "doubtful", 0, [8])
    shared.zk.create("/config/topics/doubtful", b"true")
    shared.brokers.pop(8).close()
    wait_named(node, "/config/topics/doubtful: a JSON object is expected, not True")
    state = shared.wait_state("doubtful", 0, lambda s: s["leader"] == -1)
    assert state["isr"] == [8]


@pytest.mark.rule("CFG-3", "LEAD-17")
def test_unreadable_configuration_changes_are_passed_over(shared: Lab, node: Node):
    shared.add_brokers(8)
    shared.create_topic("at-risk", {0: [8, 1]})
    shared.alter_partition(node, "at-risk", 0, [8])
    shared.brokers.pop(8).close()
    shared.wait_state("at-risk", 0, lambda s: s["leader"] == -1)
    config = {"version": 1, "config": {"unclean.leader.election.enable": "true"}}
    shared.zk.create("/config/topics/at-risk", json.dumps(config).encode())
    shared.zk.create("/config/changes/odd", b"")
    for data in (b"x", b'{"version":9}', b'{"version":2,"entity_path":"topics/at-risk"}'):
        shared.zk.create("/config/changes/config_change_", data, sequence=True)
    shared.wait_state("at-risk", 0, lambda s: s["leader"] == 1)
    wait_named(node, "JSON is expected, not b'x'")
    wait_named(node, "there is no version 9 of a configuration change")


# The role


@pytest.mark.rule("ZK-6", "ZK-7", "ZK-20", "FAILOVER-1", "FAILOVER-7", "ELEC-9", "RESIGN-3")
def test_an_unreadable_role_epoch_or_feature_is_named_and_left_alone(new_lab: Callable[[], Lab]):
    lab = new_lab()
    lab.zk.create("/controller", b"me")
    lab.zk.create("/feature", b"none")
    lab.add_brokers(1)
    node = lab.add_node(100)
    wait_named(
        node, "/controller: JSON is expected, not b'me'; no controller can be elected until it"
    )
    assert node.log.count("JSON is expected, not b'me'") <= 4
    lab.zk.ensure_path("/controller_epoch")
    lab.zk.set("/controller_epoch", b"one")
    lab.zk.delete("/controller")
    wait_named(node, "/controller_epoch: a decimal number is expected, not b'one'")
    assert not lab.zk.exists("/controller")
    # Two topics with one id: no node can become controller before that is settled.
    topic_id = "wohptOcNRbWE58WMzUQYMw"
    for name in ("one", "other"):
        lab.zk.create(f"/brokers/topics/{name}", topic_znode({0: [1]}, topic_id))
    lab.zk.set("/controller_epoch", b"4")
    wait_named(node, "the failover failed: topics have the id of another topic: ['other']")
    lab.zk.delete("/brokers/topics/other")
    lab.wait_controller(100)
    lab.wait_state("one", 0, lambda s: s["leader"] == 1)
    wait_named(node, "/feature: JSON is expected, not b'none'")
    assert lab.zk.get("/feature")[0] == b"none"


# Starting


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        ({"zookeper.connect": "localhost"}, "zookeeper.connect"),
        ({"authorizer.class.name": "com.example.Authorizer"}, "authorizer"),
        ({"listeners": "SASL_SSL://127.0.0.1:0"}, "SASL_SSL"),
        ({"zookeeper.set.acl": "true"}, "zookeeper.set.acl"),
        ({"num.partitions": "many"}, "num.partitions"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_file_that_cannot_be_right_is_refused_in_one_sentence(
    shared: Lab, tmp_path: Path, properties: dict[str, str], sentence: str
):
    refused = Node(tmp_path, shared.address, 60)
    refused.config |= properties
    code, said = refused.run_to_its_end()
    assert code == 1
    assert sentence in said
    assert said.count("\n") == 1
    assert not shared.zk.exists("/brokers/ids/60")


@pytest.mark.rule("ZK-22")
def test_znodes_are_open_and_others_are_not_promised(shared: Lab, tmp_path: Path):
    shared.create_topic("open", {0: [1]})
    for path in (
        "/controller",
        "/controller_epoch",
        "/brokers/ids/100",
        "/config/users",
        "/brokers/topics/open/partitions/0/state",
    ):
        acls, _ = shared.zk.get_acls(path)
        assert acls == OPEN_ACL_UNSAFE
    # klamm does not log in to ZooKeeper, so it cannot have nodes of its own there.
    refused = Node(tmp_path, shared.address, 60, zookeeper_set_acl="true")
    code, said = refused.run_to_its_end()
    assert code == 1
    assert "zookeeper.set.acl" in said


def test_a_port_that_is_taken_is_named(shared: Lab, tmp_path: Path):
    port = shared.brokers[1].port
    refused = Node(tmp_path, shared.address, 60, listeners=f"PLAINTEXT://127.0.0.1:{port}")
    code, said = refused.run_to_its_end()
    assert code == 1
    assert f"127.0.0.1:{port}" in said.splitlines()[-1]
    assert not shared.zk.exists("/brokers/ids/60")


@pytest.mark.rule("LIFE-5")
def test_an_endpoint_of_another_broker_is_refused(shared: Lab, tmp_path: Path):
    port = shared.brokers[1].port
    advertised = f"PLAINTEXT://127.0.0.1:{port}"
    refused = Node(tmp_path, shared.address, 60, advertised_listeners=advertised)
    code, said = refused.run_to_its_end()
    assert code == 1
    assert f"127.0.0.1:{port} is registered by broker 1 already" in said.splitlines()[-1]
    assert not shared.zk.exists("/brokers/ids/60")


@pytest.mark.rule("ZK-9")
def test_a_broker_id_that_stays_taken_is_refused_with_its_owner(shared: Lab, tmp_path: Path):
    before = shared.zk.get("/brokers/ids/1")
    refused = Node(tmp_path, shared.address, 1, zookeeper_session_timeout_ms=1000)
    code, said = refused.run_to_its_end()
    assert code == 1
    owner = f"session {before[1].ephemeralOwner:#x}"
    assert "broker.id=1 is taken" in said.splitlines()[-1]
    assert owner in said.splitlines()[-1]
    assert shared.zk.get("/brokers/ids/1") == before


@pytest.mark.rule("ZK-9")
def test_a_broker_id_is_waited_for_while_its_owner_may_have_crashed(
    shared: Lab, stranger: KazooClient
):
    stranger.create("/brokers/ids/61", shared.brokers[1].registration(port=1), ephemeral=True)
    successor = shared.add_node(61, zookeeper_session_timeout_ms=6000)
    wait_until(lambda: "session" in successor.log and "has started" in successor.log)
    before = shared.zk.exists("/brokers/ids/61").czxid
    stranger.delete("/brokers/ids/61")
    wait_until(lambda: "registered with epoch" in successor.log)
    assert shared.zk.exists("/brokers/ids/61").czxid > before
    assert successor.stop() == 0
