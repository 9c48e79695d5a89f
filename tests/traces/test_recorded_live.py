"""The recordings of Apache Kafka 3.9.1 again, on real nodes: processes, sockets, ZooKeeper.

`test_recorded` gives the causes to the procedures alone. Here they happen to a cluster of two klamm
nodes and five scripted brokers, and the same comparison is made of what ZooKeeper holds and of
what each broker received over its connection.
"""

import base64
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.zookeeper.server import ZooKeeperServer
from tests.support.lab import Lab, Node, Received
from tests.support.procedure_store import Node as Znode
from tests.support.procedure_world import Request
from tests.support.waiting import wait_until
from tests.traces.test_recorded import (
    RECORDINGS,
    STOP_BEFORE,
    TOPICS,
    apply_write,
    contents,
    recorded_request,
    told,
)

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

TOPIC_ID = "the topic's id"


class Stage:
    """One recording on one laboratory."""

    def __init__(self, lab: Lab, recording: Mapping[str, Any]) -> None:
        self.lab = lab
        self.before = recording["before"]
        self.expected: dict[str, Znode] = {}
        self.heard: dict[int, int] = {}

    @property
    def controller(self) -> Node:
        holder = self.lab.controller_id()
        assert holder is not None
        return self.lab.nodes[holder]

    def set_up(self) -> None:
        """Bring ZooKeeper into the state before, and make the first node controller."""
        lab = self.lab
        for path in (TOPICS, "/config/topics", "/admin/delete_topics", "/brokers/ids"):
            lab.zk.ensure_path(path)
        for name, topic in self.before["topics"].items():
            self.put_topic(name, topic["znode"], 1 if topic["znode"]["adding_replicas"] else 0)
            if topic["config"]:
                self.put(f"/config/topics/{name}", {"version": 1, "config": topic["config"]})
            for number, state in topic["states"].items():
                data = {key: value for key, value in state.items() if key != "partition_epoch"}
                path = f"{TOPICS}/{name}/partitions/{number}/state"
                version = state["partition_epoch"]
                self.expected[path] = Znode(data, version)
                if number in topic["znode"]["adding_replicas"]:
                    # The first controller resumes the move, which raises the epoch to this one.
                    version, data = version - 1, {**data, "leader_epoch": data["leader_epoch"] - 1}
                self.put(path, data, version)
        lab.add_brokers(*(b for b in self.before["brokers"] if b < 100))
        if self.before["controller"] is None:
            return
        if self.before["controller_epoch"] > 1:
            lab.zk.create("/controller_epoch", str(self.before["controller_epoch"] - 1).encode())
        first = self.before["controller"]
        lab.add_node(first)
        lab.wait_controller(first)
        other = 201 - first
        lab.add_node(other)
        lab.wait_registered(other)
        self.wait_all_live(other)
        wait_until(lambda: contents(self.found()) == contents(self.expected), "the state before")

    def wait_all_live(self, node: int) -> None:
        """Until every broker has heard of the node, so that its registration is no news later."""
        for broker in self.lab.brokers.values():
            wait_until(
                lambda b=broker: any(
                    live.id == node
                    for request in list(b.received)[-3:]
                    if request.api is ApiKey.UPDATE_METADATA
                    for live in request.body.live_brokers
                )
            )

    def put(self, path: str, data: Any, version: int = 0) -> None:
        content = json.dumps(data).encode()
        self.lab.zk.create(path, content, makepath=True)
        for _ in range(version):
            self.lab.zk.set(path, content)

    def put_topic(self, name: str, znode: Mapping[str, Any], version: int = 0) -> None:
        self.put(f"{TOPICS}/{name}", {**znode, "topic_id": topic_id(name)}, version)
        shown = {**znode, "topic_id": f"id-of-{name}"}
        self.expected[f"{TOPICS}/{name}"] = Znode(shown, version)

    def create_recorded(self, step: Mapping[str, Any], *paths: str) -> None:
        for path in paths:
            write = next(w for w in step["writes"] if w["path"] == path)
            data = write["data"]
            name = path.removeprefix(f"{TOPICS}/")
            if path.startswith(f"{TOPICS}/") and "/" not in name:
                data = {**data, "topic_id": topic_id(name)}
            content = b"" if data in ("", None) else json.dumps(data).encode()
            sequence = re.fullmatch(r"(.*_)\d{10}", path)
            if write["op"] == "set":
                self.lab.zk.set(path, content)
            elif sequence:
                self.lab.zk.create(sequence[1], content, sequence=True)
            else:
                self.lab.zk.create(path, content, makepath=True)

    def requests(self) -> Iterator[Request]:
        """What brokers received since the first step began."""
        for broker in self.lab.brokers.values():
            for request in list(broker.received)[self.heard.get(broker.id, 0) :]:
                yield shown(broker.id, request)

    def found(self) -> dict[str, Znode]:
        """The znodes that count, as the recordings show them."""
        nodes: dict[str, Znode] = {}
        todo = ["/brokers/topics", "/admin", "/isr_change_notification"]
        todo.append("/log_dir_event_notification")
        while todo:
            path = todo.pop()
            try:
                data, stat = self.lab.zk.get(path)
                todo += [f"{path}/{child}" for child in self.lab.zk.get_children(path)]
            except NoNodeError:
                continue
            value = json.loads(data) if data and data.startswith(b"{") else None
            name = path.removeprefix(f"{TOPICS}/")
            if value is not None and path.startswith(f"{TOPICS}/") and "/" not in name:
                value["topic_id"] = f"id-of-{name}"
            nodes[path] = Znode(value, stat.version)
        return nodes


def topic_id(name: str) -> str:
    """A valid id that follows from the topic's name."""
    raw = uuid.uuid5(uuid.NAMESPACE_DNS, f"klamm-{name}").bytes
    return base64.urlsafe_b64encode(raw)[:22].decode()


def shown(to: int, request: Received) -> Request:
    """A request in the words of the recordings."""
    api = {
        ApiKey.LEADER_AND_ISR: "LeaderAndIsr",
        ApiKey.UPDATE_METADATA: "UpdateMetadata",
        ApiKey.STOP_REPLICA: "StopReplica",
    }[request.api]
    partitions = {}
    for name, state in request.partitions().items():
        if api == "StopReplica":
            entry = {"leader_epoch": state.leader_epoch, "delete": state.delete_partition}
        else:
            entry = {
                "controller_epoch": state.controller_epoch,
                "leader": state.leader,
                "leader_epoch": state.leader_epoch,
                "isr": list(state.isr),
                "replicas": list(state.replicas),
            }
            if api == "LeaderAndIsr":
                entry |= {
                    "partition_epoch": state.partition_epoch,
                    "adding": list(state.adding_replicas),
                    "removing": list(state.removing_replicas),
                    "is_new": state.is_new,
                    "recovery_state": state.leader_recovery_state,
                }
            else:
                entry |= {
                    "partition_epoch": state.zk_version,
                    "offline": list(state.offline_replicas),
                }
        partitions[name] = entry
    if api == "LeaderAndIsr":
        brokers = sorted(live.broker_id for live in request.body.live_leaders)
    elif api == "UpdateMetadata":
        brokers = sorted(live.id for live in request.body.live_brokers)
    else:
        brokers = []
    return Request(to, api, partitions, brokers)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_a_recorded_situation_ends_the_same_on_real_nodes(
    path: Path, zookeeper_server: ZooKeeperServer, tmp_path: Path
):
    with Lab(zookeeper_server.address, tmp_path) as lab:
        replay(lab, path)


def replay(lab: Lab, path: Path) -> None:
    """Cause again what was recorded, and compare what comes of it, step by step."""
    recording = json.loads(path.read_text())
    stage = Stage(lab, recording)
    stage.set_up()
    stage.heard = {b.id: len(b.received) for b in lab.brokers.values()}
    recorded: list[Request] = []
    for step in recording["steps"][: STOP_BEFORE.get(path.stem)]:
        response = cause(stage, step)
        for write in step["writes"]:
            apply_write(stage.expected, write)
        # Of all steps so far: a repetition may arrive when the next step has begun.
        recorded += map(recorded_request, step["requests"])
        wanted = told(recorded)
        try:
            wait_until(lambda: contents(stage.found()) == contents(stage.expected), timeout_s=10)
            wait_until(lambda wanted=wanted: told(stage.requests()) == wanted, timeout_s=10)
        except TimeoutError:
            assert contents(stage.found()) == contents(stage.expected), step["cause"]
            assert told(stage.requests()) == wanted, step["cause"]
        if response is not None:
            assert response == step["answer"], step["cause"]


def cause(stage: Stage, step: Mapping[str, Any]) -> Any:
    """Do what the recorded words say; returns the response, where there is one."""
    for pattern, act in CAUSES.items():
        match = re.fullmatch(pattern, step["cause"])
        if match:
            return act(stage, step, *match.groups())
    raise AssertionError(f"no one knows how to cause: {step['cause']}")


def alter_partition(
    stage: Stage, step: Mapping[str, Any], leader: str, name: str | None, isr: str, *rest: str
) -> Any:
    topic, number = partition(name or "t-0")
    state = stage.lab.state(topic, number)
    assert state is not None
    epochs = {"leader epoch": state["leader_epoch"], "partition epoch": state["version"]}
    given = re.fullmatch(r" with (.*) (\d+)", (rest and rest[0]) or "")
    if given:
        epochs[given[1]] = int(given[2])
    response = stage.controller.ask(
        ApiKey.ALTER_PARTITION,
        2,
        broker_id=int(leader),
        broker_epoch=stage.lab.brokers[int(leader)].epoch,
        topics=[
            {
                "topic_id": uuid.uuid5(uuid.NAMESPACE_DNS, f"klamm-{topic}"),
                "partitions": [
                    {
                        "partition_index": number,
                        "leader_epoch": epochs["leader epoch"],
                        "new_isr": json.loads(isr),
                        "leader_recovery_state": 0,
                        "partition_epoch": epochs["partition epoch"],
                    }
                ],
            }
        ],
    )
    (row,) = response.topics[0].partitions
    return [
        response.error_code,
        {
            "partition": row.partition_index,
            "error": row.error_code,
            "leader": row.leader_id,
            "leader_epoch": row.leader_epoch,
            "isr": list(row.isr),
            "recovery_state": row.leader_recovery_state,
            "partition_epoch": row.partition_epoch,
        },
    ]


def elect_leaders(stage: Stage, step: Mapping[str, Any], kind: str, names: str) -> Any:
    wanted = [partition(name) for name in names.split(", ")]
    response = stage.controller.ask(
        ApiKey.ELECT_LEADERS,
        2,
        election_type={"preferred": 0, "unclean": 1}[kind],
        topic_partitions=[{"topic": t, "partitions": [p]} for t, p in wanted],
        timeout=10_000,
    )
    values = {
        (topic.topic, row.partition_id): row.error_code
        for topic in response.replica_election_results
        for row in topic.partition_result
    }
    return in_recorded_order(step, values)


def reassign(stage: Stage, step: Mapping[str, Any], name: str, replicas: str | None) -> Any:
    topic, number = partition(name)
    target = None if replicas is None else json.loads(replicas)
    response = stage.controller.ask(
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        0,
        timeout=10_000,
        topics=[{"name": topic, "partitions": [{"partition_index": number, "replicas": target}]}],
    )
    values = {
        (t.name, p.partition_index): p.error_code for t in response.responses for p in t.partitions
    }
    return in_recorded_order(step, values)


def list_reassignments(stage: Stage, step: Mapping[str, Any]) -> Any:
    response = stage.controller.ask(
        ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, timeout=10_000, topics=None
    )
    values = {
        (t.name, p.partition_index): [
            list(p.replicas), list(p.adding_replicas), list(p.removing_replicas),
        ]
        for t in response.topics
        for p in t.partitions
    }  # fmt: skip
    return in_recorded_order(step, values)


def in_recorded_order(step: Mapping[str, Any], values: Mapping[tuple[str, int], Any]) -> Any:
    recorded = [(row["topic"], row["partition"]) for row in step["answer"]]
    assert set(recorded) == set(values)
    return [{"topic": t, "partition": p, "value": values[t, p]} for t, p in recorded]


def partition(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("-")
    return topic, int(number)


def shut_down(stage: Stage, step: Mapping[str, Any], broker: str) -> Any:
    response = stage.controller.ask(
        ApiKey.CONTROLLED_SHUTDOWN,
        3,
        broker_id=int(broker),
        broker_epoch=stage.lab.brokers[int(broker)].epoch,
    )
    return [response.error_code, list(response.remaining_partitions)]


def lose(stage: Stage, step: Mapping[str, Any], *brokers: str) -> None:
    transaction = stage.lab.zk.transaction()
    for broker in brokers:
        transaction.delete(f"/brokers/ids/{broker}")
    transaction.commit()
    for broker in brokers:
        stage.lab.brokers[int(broker)].leave()


def register(stage: Stage, step: Mapping[str, Any], broker: str) -> None:
    stage.lab.brokers.setdefault(int(broker), None)  # type: ignore[arg-type]
    known = stage.lab.brokers[int(broker)]
    if known is None:
        del stage.lab.brokers[int(broker)]
        stage.lab.add_brokers(int(broker))
    else:
        known.register()


def lose_log_dir(stage: Stage, step: Mapping[str, Any], broker: str) -> None:
    failed = {("t", 0): ErrorCode.KAFKA_STORAGE_ERROR}
    stage.lab.brokers[int(broker)].script.partition_error = failed
    stage.create_recorded(step, "/log_dir_event_notification/log_dir_event_0000000000")


def first_start(stage: Stage, step: Mapping[str, Any]) -> None:
    if not stage.lab.brokers:
        stage.lab.add_brokers(1, 2, 3, 4, 5)
    stage.lab.add_node(100)
    stage.lab.wait_controller(100)
    stage.lab.add_node(101)


def move(stage: Stage, step: Mapping[str, Any]) -> None:
    """The role goes to the other node: the holder sleeps until it has lost its session."""
    leave_only(stage, 101)
    stage.lab.zk.delete("/controller")


def move_with_work_left(stage: Stage, step: Mapping[str, Any], *_: str) -> None:
    winner = int(
        next(w for w in step["writes"] if w["path"] == "/controller" and w["data"])["data"][
            "brokerid"
        ]
    )
    leave_only(stage, winner)
    transaction = stage.lab.zk.transaction()
    transaction.delete("/controller")
    transaction.delete("/brokers/ids/1")
    for path in (f"{TOPICS}/n", "/admin/delete_topics/d", "/admin/preferred_replica_election"):
        write = next(w for w in step["writes"] if w["path"] == path)
        data = write["data"]
        if path == f"{TOPICS}/n":
            data = {**data, "topic_id": topic_id("n")}
        transaction.create(path, b"" if data in ("", None) else json.dumps(data).encode())
    transaction.commit()
    stage.lab.brokers[1].leave()


def leave_only(stage: Stage, winner: int) -> None:
    """Nobody but the winner runs: the operator's move names it."""
    stage.lab.zk.create("/klamm_controller_move", str(winner).encode(), ephemeral=True)


CAUSES: dict[str, Callable[..., Any]] = {
    r"the nodes start": first_start,
    r"/brokers/topics/t created with .*": lambda stage, step: stage.create_recorded(
        step, f"{TOPICS}/t"
    ),
    r"CreateTopics t .*": lambda stage, step: stage.create_recorded(
        step, "/config/topics/t", f"{TOPICS}/t"
    ),
    r"CreatePartitions t .*": lambda stage, step: stage.create_recorded(step, f"{TOPICS}/t"),
    r"/brokers/ids/(\d) disappears": lose,
    r"/brokers/ids/(\d) and /brokers/ids/(\d) disappear": lose,
    r"broker (\d) registers(?: again)?": register,
    r"/brokers/ids/(\d) deleted and created in one transaction": lambda stage, step, broker: (
        stage.lab.brokers[int(broker)].bounce()
    ),
    r"leader (\d) asks AlterPartition (\S+) isr (\[.*\])(?:, recovered)?": alter_partition,
    r"leader (\d): (?:(\S+) )?isr (\[.*?\])( with .*| again)?": alter_partition,
    r"ElectLeaders (\w+) for (.*)": elect_leaders,
    r"ControlledShutdown from (\d)": shut_down,
    r"state set to isr .* notification created": lambda stage, step: stage.create_recorded(
        step,
        f"{TOPICS}/t/partitions/0/state",
        "/isr_change_notification/isr_change_0000000000",
    ),
    r"AlterPartitionReassignments (\S+) to (\[.*\])": reassign,
    r"ListPartitionReassignments": list_reassignments,
    r"cancelled": lambda stage, step: reassign(stage, step, "t-0", None),
    r"(/admin/\S+) created.*": lambda stage, step, path: stage.create_recorded(
        step, path.rstrip(":")
    ),
    r"log_dir_event notification from broker (\d)": lose_log_dir,
    r"/controller deleted; the other node takes the role": move,
    r"/controller deleted; meanwhile (.*)": move_with_work_left,
}
