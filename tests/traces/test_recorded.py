"""What Apache Kafka 3.9.1 did in 22 situations, and klamm's procedures do as well.

Each recording in `tests/data/traces` names a cause, and every write and request that followed on a
real controller. The same cause is given to the procedures in a small world. Afterwards ZooKeeper
has to hold the same data in the same versions, and each broker has to have been told the same
about each partition, in the same order. Telling a broker twice what it has just been told counts
as once, so that klamm may merge requests.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from klamm.core import events
from klamm.core.context import Settings
from klamm.core.events import RequestedElection
from tests.support.procedure_store import TOPICS, Node
from tests.support.procedure_world import Request, World

RECORDINGS = sorted((Path(__file__).parent.parent / "data" / "traces").glob("*.json"))
#: From this step on klamm is stricter on purpose: who is not the leader changes no ISR (ISR-21).
STOP_BEFORE = {"09-isr_changes": 4}
#: Nodes of the recordings that only compete for the role; what they were told is not recorded.
NODES = (100, 101)
WATCHED = ("/brokers/topics", "/admin", "/isr_change_notification", "/log_dir_event_notification")


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
@pytest.mark.rule(
    *("TRACE-1", "TRACE-2", "TRACE-3", "TRACE-4", "TRACE-5", "TRACE-9", "TRACE-11", "TRACE-13"),
    *("CHAN-10", "CHAN-12", "CHAN-15", "CHAN-16", "CHAN-17", "CHAN-22", "CHAN-23", "CHAN-24"),
    *("CHAN-25", "CHAN-28", "CHAN-35", "REASG-36", "FAILOVER-23", "FAILOVER-24"),
)
def test_a_recorded_situation_ends_as_it_did_on_kafka(path: Path) -> None:
    recording = json.loads(path.read_text())
    world = _world_before(recording["before"])
    expected = {name: Node(node.data, node.version) for name, node in world.nodes.items()}
    for step in recording["steps"][: STOP_BEFORE.get(path.stem)]:
        world.forget_what_happened()
        response = _cause(world, step)
        world.settle()
        for write in step["writes"]:
            apply_write(expected, write)
        assert contents(world.nodes) == contents(expected), step["cause"]
        assert told(world.requests) == told(map(recorded_request, step["requests"])), step["cause"]
        if step["answer"] is not None and response is not None:
            assert response == step["answer"], step["cause"]


# The world before


def _world_before(before: Mapping[str, Any]) -> World:
    world = World(before["brokers"], Settings(auto_rebalance=False))
    for name, topic in before["topics"].items():
        version = 1 if topic["znode"]["adding_replicas"] else 0
        world.nodes[f"{TOPICS}/{name}"] = Node(_with_own_id(name, topic["znode"]), version)
        if topic["config"]:
            world.nodes[f"/config/topics/{name}"] = Node({"config": topic["config"]})
        for number, state in topic["states"].items():
            data = {key: value for key, value in state.items() if key != "partition_epoch"}
            path = f"{TOPICS}/{name}/partitions/{number}/state"
            world.nodes[path] = Node(data, state["partition_epoch"])
    if before["controller"] is not None:
        world.controller_epoch = before["controller_epoch"] - 1
        if not any(topic["znode"]["adding_replicas"] for topic in before["topics"].values()):
            world.fail_over(before["controller"])
            world.settle()
            assert world.writes == [], "the situation is steady before it begins"
    return world


def _with_own_id(topic: str, znode: Mapping[str, Any]) -> dict[str, Any]:
    """The recordings write the same words for every topic's id."""
    return {**znode, "topic_id": f"id-of-{topic}"}


# Causes


def _cause(world: World, step: Mapping[str, Any]) -> Any:
    """Do what the recorded words say; returns the response, where there is one."""
    for pattern, act in CAUSES.items():
        match = re.fullmatch(pattern, step["cause"])
        if match:
            return act(world, step, *match.groups())
    raise AssertionError(f"no one knows how to cause: {step['cause']}")


def _create_recorded(world: World, step: Mapping[str, Any], *paths: str) -> None:
    """Create znodes with the data that the recording shows."""
    for path in paths:
        write = next(w for w in step["writes"] if w["path"] == path)
        data = write["data"]
        if re.fullmatch(f"{TOPICS}/[^/]+", path):
            data = _with_own_id(path.removeprefix(f"{TOPICS}/"), data)
        if write["op"] == "create":
            world.create(path, data)
        else:
            world.set(path, data)


def _alter_partition(
    world: World,
    step: Mapping[str, Any],
    leader: str,
    partition: str | None,
    isr: str,
    extra: str | None = None,
) -> Any:
    topic, number = (partition or "t-0").rsplit("-", 1)
    row = world.cluster.row(topic, int(number))
    assert row is not None
    epochs = {
        "leader epoch": int(world.cluster.leader_epoch[row]),
        "partition epoch": int(world.cluster.partition_epoch[row]),
    }
    given = re.fullmatch(r" with (.*) (\d+)", extra or "")
    if given:
        epochs[given[1]] = int(given[2])
    proposal = events.PartitionProposal(
        None,
        f"id-of-{topic}",
        int(number),
        epochs["leader epoch"],
        tuple(json.loads(isr)),
        0,
        epochs["partition epoch"],
    )
    broker = world.registrations[int(leader)]
    error, responses = world.ask(events.AlterPartition(broker.id, broker.epoch, 2, [proposal]))
    (response,) = responses
    failed = response.error != 0
    shown = {
        "partition": response.proposal.partition,
        "error": response.error,
        # A failure leaves the fields of Kafka's response at 0.
        "leader": 0 if failed else response.leader,
        "leader_epoch": 0 if failed else response.leader_epoch,
        "isr": list(response.isr),
        "recovery_state": response.recovery,
        "partition_epoch": 0 if failed else response.partition_epoch,
    }
    return [error, shown]


def _elect_leaders(world: World, step: Mapping[str, Any], kind: str, names: str) -> Any:
    partitions = [_partition(name) for name in names.split(", ")]
    response = world.ask(events.ElectLeaders(RequestedElection[kind.upper()], partitions))
    by_name = {tp: error for tp, (error, _, _) in response.items()}
    return _in_recorded_order(step, by_name)


def _reassign(world: World, step: Mapping[str, Any], name: str, replicas: str | None) -> Any:
    target = None if replicas is None else json.loads(replicas)
    error, verdicts = world.ask(events.ApiReassignment({_partition(name): target}))
    assert error == 0
    return _in_recorded_order(step, {tp: code for tp, (code, _) in verdicts.items()})


def _list_reassignments(world: World, step: Mapping[str, Any]) -> Any:
    error, moves = world.ask(events.ListReassignments(None))
    assert error == 0
    lists = {tp: [list(m.replicas), list(m.adding), list(m.removing)] for tp, m in moves.items()}
    return _in_recorded_order(step, lists)


def _in_recorded_order(step: Mapping[str, Any], values: Mapping[tuple[str, int], Any]) -> Any:
    recorded = [(row["topic"], row["partition"]) for row in step["answer"]]
    assert set(recorded) == set(values)
    return [{"topic": t, "partition": p, "value": values[t, p]} for t, p in recorded]


def _partition(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("-")
    return topic, int(number)


def _shut_down(world: World, step: Mapping[str, Any], broker: str) -> Any:
    known = world.registrations[int(broker)]
    error, remaining = world.ask(events.ControlledShutdown(known.id, known.epoch))
    return [error, remaining]


def _lose_log_dir(world: World, step: Mapping[str, Any], broker: str) -> None:
    world.storage_errors.add((int(broker), ("t", 0)))
    _create_recorded(world, step, "/log_dir_event_notification/log_dir_event_0000000000")


def _first_start(world: World, step: Mapping[str, Any]) -> None:
    for broker in (1, 2, 3, 4, 5, 100):
        world.register(broker)
    world.fail_over(100)
    world.register(101)


def _move_with_work_left(world: World, step: Mapping[str, Any], *_: str) -> None:
    world.lose(1)
    _create_recorded(world, step, f"{TOPICS}/n", "/admin/delete_topics/d")
    _create_recorded(world, step, "/admin/preferred_replica_election")
    world.fail_over(100, epoch=3)


CAUSES: dict[str, Callable[..., Any]] = {
    r"the nodes start": _first_start,
    r"/brokers/topics/t created with .*": lambda world, step: _create_recorded(
        world, step, f"{TOPICS}/t"
    ),
    r"CreateTopics t .*": lambda world, step: _create_recorded(
        world, step, "/config/topics/t", f"{TOPICS}/t"
    ),
    r"CreatePartitions t .*": lambda world, step: _create_recorded(world, step, f"{TOPICS}/t"),
    r"/brokers/ids/(\d) disappears": lambda world, step, broker: world.lose(int(broker)),
    r"/brokers/ids/(\d) and /brokers/ids/(\d) disappear": lambda world, step, a, b: world.lose(
        int(a), int(b)
    ),
    r"broker (\d) registers(?: again)?": lambda world, step, broker: world.register(int(broker)),
    r"/brokers/ids/(\d) deleted and created in one transaction": lambda world, step, broker: (
        world.bounce(int(broker))
    ),
    r"leader (\d) asks AlterPartition (\S+) isr (\[.*\])(?:, recovered)?": _alter_partition,
    r"leader (\d): (?:(\S+) )?isr (\[.*?\])( with .*| again)?": _alter_partition,
    r"ElectLeaders (\w+) for (.*)": _elect_leaders,
    r"ControlledShutdown from (\d)": _shut_down,
    r"state set to isr .* notification created": lambda world, step: _create_recorded(
        world,
        step,
        f"{TOPICS}/t/partitions/0/state",
        "/isr_change_notification/isr_change_0000000000",
    ),
    r"AlterPartitionReassignments (\S+) to (\[.*\])": _reassign,
    r"ListPartitionReassignments": _list_reassignments,
    r"cancelled": lambda world, step: _reassign(world, step, "t-0", None),
    r"(/admin/\S+) created.*": lambda world, step, path: _create_recorded(
        world, step, path.rstrip(":")
    ),
    r"log_dir_event notification from broker (\d)": _lose_log_dir,
    r"/controller deleted; the other node takes the role": lambda world, step: world.fail_over(101),
    r"/controller deleted; meanwhile (.*)": _move_with_work_left,
}


# Comparing


def apply_write(nodes: dict[str, Node], write: Mapping[str, Any]) -> None:
    path, data = write["path"], write["data"]
    if write["op"] == "delete":
        nodes.pop(path, None)
        return
    if re.fullmatch(f"{TOPICS}/[^/]+", path):
        data = _with_own_id(path.removeprefix(f"{TOPICS}/"), data)
    nodes[path] = Node(data, write["version"])


def contents(nodes: Mapping[str, Node]) -> dict[str, tuple[Any, int]]:
    """What counts of ZooKeeper: data and version of the controller's nodes that have data."""
    return {
        path: (node.data, node.version)
        for path, node in nodes.items()
        if path.startswith(WATCHED) and isinstance(node.data, dict)
    } | {path: ("marker", 0) for path in nodes if path.startswith("/admin/delete_topics/")}


def recorded_request(request: Mapping[str, Any]) -> Request:
    partitions = {
        (topic["topic"], entry["partition"]): {k: v for k, v in entry.items() if k != "partition"}
        for topic in request.get("topics", ())
        for entry in topic["partitions"]
    }
    brokers = request.get("live_leaders", request.get("live_brokers", ()))
    return Request(request["to"], request["api"], partitions, brokers)


def told(requests: Iterable[Request]) -> dict[Any, list[Any]]:
    """What each broker was told of each partition, and of the brokers, without repetition.

    StopReplica is kept as often as it was sent. Of the others an entry counts unless the broker
    has just been told the same of the same partition in a request of the same kind.
    """
    told: dict[Any, list[Any]] = defaultdict(list)
    latest: dict[Any, Any] = {}
    for request in requests:
        if request.to in NODES:
            continue
        if request.api == "UpdateMetadata":
            brokers = list(request.brokers)
            if latest.get((request.to, "brokers")) != brokers:
                told[request.to, "brokers"].append(brokers)
                latest[request.to, "brokers"] = brokers
        for tp, entry in request.partitions.items():
            key = (request.to, request.api, tp)
            if request.api == "StopReplica" or latest.get(key) != entry:
                told[request.to, tp].append((request.api, dict(entry)))
                latest[key] = entry
    return dict(told)
