"""ZooKeeper as a dictionary, for procedures: effects that concern it are performed at once.

Every write is recorded, and what a watch would notice of it is put into a queue; watches are always
armed. A write can be refused, or be the last one before a crash.

`klamm.zookeeper.memory` is the other double: it stands for a session, with bytes, watches and
expiry, below the interpreter. This one stands for the interpreter and the session together, so that
tests of `core/` need neither.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from klamm.core import effects, events
from klamm.core.cluster import (
    ClusterState,
    LeaderAndIsrs,
    RegisteredBroker,
    TopicPartition,
    TopicRead,
)
from klamm.core.columns import padded, unpad
from klamm.core.effects import StatesRead, UnreadableConfig, WriteOutcome
from klamm.errors import FencedError

TOPICS = "/brokers/topics"
IDS = "/brokers/ids"
REASSIGN = "/admin/reassign_partitions"
PREFERRED = "/admin/preferred_replica_election"
DELETIONS = "/admin/delete_topics"
ISR_CHANGES = "/isr_change_notification"
LOG_DIRS = "/log_dir_event_notification"
UNCLEAN = "unclean.leader.election.enable"


class Crash(BaseException):
    """The controller stops dead; no procedure gets to see this."""


@dataclass(frozen=True)
class Write:
    """One change of one znode; `version` is the one after it."""

    op: str
    path: str
    version: int
    data: Any


@dataclass
class Node:
    """A znode; `data` is what its JSON says."""

    data: Any
    version: int = 0


def do_nothing(effect: effects.Effect) -> None:
    """No fault at all."""


@dataclass
class Faults:
    """What is to go wrong."""

    #: Stop after that many more writes.
    crash_after: int | None = None
    #: Outcomes for the next writes of states, by path; used up one by one.
    refuse: dict[str, list[WriteOutcome]] = field(default_factory=dict)
    #: Called before each effect; may raise, or change the world behind the controller's back.
    before: Callable[[effects.Effect], None] = do_nothing


def state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


class Ensemble:
    """Znodes, and the effects that read and write them."""

    cluster: ClusterState

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.registrations: dict[int, RegisteredBroker] = {}
        self.features: dict[str, int] = {}
        self.controller_epoch = 0
        self.writes: list[Write] = []
        self.queue: deque[events.Event] = deque()
        self.faults = Faults()
        self._topic_ids = 0

    # Znodes

    def create(self, path: str, data: Any) -> bool:
        if path in self.nodes:
            return False
        self.nodes[path] = Node(deepcopy(data))
        self._written("create", path, 0, data)
        return True

    def set(self, path: str, data: Any) -> None:
        node = self.nodes[path]
        node.data, node.version = deepcopy(data), node.version + 1
        self._written("set", path, node.version, data)

    def delete(self, path: str) -> None:
        node = self.nodes.pop(path)
        self._written("delete", path, node.version, None)

    def children(self, path: str) -> list[str]:
        stem = path + "/"
        return sorted(
            {p.removeprefix(stem).split("/")[0] for p in self.nodes if p.startswith(stem)}
        )

    def _written(self, op: str, path: str, version: int, data: Any) -> None:
        self.writes.append(Write(op, path, version, deepcopy(data)))
        event = _noticed(op, path)
        if event is not None and event not in self.queue:
            self.queue.append(event)
        if self.faults.crash_after is not None:
            self.faults.crash_after -= 1
            if self.faults.crash_after <= 0:
                self.faults.crash_after = None
                raise Crash

    # Effects

    def _fenced(self) -> None:
        if self.controller_epoch != self.cluster.controller_epoch:
            raise FencedError("another controller has taken over")

    def _read_states(self, effect: effects.ReadStates) -> StatesRead:
        nodes = [self.nodes.get(self._path(row)) for row in effect.rows.tolist()]
        found = [node is not None and isinstance(node.data, dict) for node in nodes]
        data = [
            node.data if node and ok else _NO_STATE for node, ok in zip(nodes, found, strict=True)
        ]
        return StatesRead(
            np.array(found, np.bool_),
            LeaderAndIsrs(
                effect.rows,
                np.array([d["leader"] for d in data], np.int32),
                np.array([d["leader_epoch"] for d in data], np.int32),
                padded(d["isr"] for d in data),
                np.array([d.get("leader_recovery_state", 0) for d in data], np.int8),
                np.array([d["controller_epoch"] for d in data], np.int32),
                np.array([node.version if node else -1 for node in nodes], np.int32),
            ),
        )

    def _write_states(self, effect: effects.WriteStates) -> effects.WriteOutcomes:
        self._fenced()
        outcomes = []
        for k, row in enumerate(effect.states.row.tolist()):
            path = self._path(row)
            injected = self.faults.refuse.get(path)
            if injected:
                outcomes.append(injected.pop(0))
            elif path not in self.nodes:
                outcomes.append(WriteOutcome.NO_NODE)
            elif self.nodes[path].version != effect.states.version[k]:
                outcomes.append(WriteOutcome.BAD_VERSION)
            else:
                data = _state_of(effect.states, k)
                _check_succession(self.nodes[path].data, data)
                self.set(path, data)
                outcomes.append(WriteOutcome.DONE)
        return np.array(outcomes, np.int8)

    def _create_states(self, effect: effects.CreateStates) -> effects.WriteOutcomes:
        self._fenced()
        outcomes = []
        for k, row in enumerate(effect.states.row.tolist()):
            path = self._path(row)
            injected = self.faults.refuse.get(path)
            if injected:
                outcomes.append(injected.pop(0))
                continue
            parent = path.removesuffix("/state")
            self.create(parent.rsplit("/", 1)[0], None)
            self.create(parent, None)
            is_new = self.create(path, _state_of(effect.states, k))
            outcomes.append(WriteOutcome.DONE if is_new else WriteOutcome.EXISTS)
        return np.array(outcomes, np.int8)

    def _path(self, row: int) -> str:
        return state_path(*self.cluster.name(row))

    def _read_topics(self, effect: effects.ReadTopics) -> dict[str, TopicRead]:
        return {name: self._topic_read(name) for name in effect.names}

    def _topic_read(self, name: str) -> TopicRead:
        node = self.nodes.get(f"{TOPICS}/{name}")
        if node is None or not isinstance(node.data, dict):
            return TopicRead(None, {})
        lists = (
            {int(number): brokers for number, brokers in node.data.get(key, {}).items()}
            for key in ("partitions", "adding_replicas", "removing_replicas")
        )
        return TopicRead(node.data.get("topic_id"), *lists)

    def _write_topic(self, effect: effects.WriteTopic) -> WriteOutcome:
        self._fenced()
        path = f"{TOPICS}/{effect.name}"
        injected = self.faults.refuse.get(path)
        if injected:
            return injected.pop(0)
        if path not in self.nodes:
            return WriteOutcome.NO_NODE
        moves = effect.partitions.items()
        data = {
            "version": 3,
            "partitions": {str(number): list(move.replicas) for number, move in moves},
            "adding_replicas": {str(n): list(move.adding) for n, move in moves if move.adding},
            "removing_replicas": {
                str(n): list(move.removing) for n, move in moves if move.removing
            },
        }
        if effect.topic_id is not None:
            data["topic_id"] = effect.topic_id
        self.set(path, data)
        return WriteOutcome.DONE

    def _new_topic_ids(self, effect: effects.NewTopicIds) -> list[str]:
        self._topic_ids += effect.count
        return [f"new-id-{self._topic_ids - k}" for k in range(effect.count)]

    def _read_overrides(self, effect: effects.ReadUncleanOverrides) -> dict[str, Any]:
        return {name: self._override(name) for name in effect.topics}

    def _override(self, name: str) -> Any:
        node = self.nodes.get(f"/config/topics/{name}")
        if node is None:
            return None
        if not isinstance(node.data, dict):
            return UnreadableConfig
        value = node.data.get("config", {}).get(UNCLEAN)
        return None if value is None else value == "true"

    def _delete_topic(self, effect: effects.DeleteTopic) -> None:
        self._fenced()
        stem = f"{TOPICS}/{effect.name}"
        below = sorted((p for p in self.nodes if p.startswith(stem + "/")), reverse=True)
        for path in (
            *below,
            stem,
            f"/config/topics/{effect.name}",
            f"{DELETIONS}/{effect.name}",
        ):
            self._drop([path])

    def _drop(self, paths: Iterable[str]) -> None:
        self._fenced()
        for path in paths:
            if path in self.nodes:
                self.delete(path)

    def _read_reassign(self, effect: effects.ReadReassignRequest) -> Any:
        node = self.nodes.get(REASSIGN)
        if node is None:
            return None
        listed = node.data["partitions"] if isinstance(node.data, dict) else []
        return {(entry["topic"], entry["partition"]): entry["replicas"] for entry in listed}

    def _write_reassign(self, effect: effects.WriteReassignRequest) -> None:
        self._fenced()
        if effect.entries:
            self.set(REASSIGN, reassignment_json(effect.entries))
        else:
            self._drop([REASSIGN])

    def _read_preferred(self, effect: effects.ReadPreferredRequest) -> Any:
        node = self.nodes.get(PREFERRED)
        return None if node is None else _partitions_in(node.data)

    def _read_isr_changes(self, effect: effects.ReadIsrNotifications) -> Any:
        names = self.children(ISR_CHANGES)
        found = (_partitions_in(self.nodes[f"{ISR_CHANGES}/{name}"].data) for name in names)
        return names, set().union(*found)

    def _read_log_dirs(self, effect: effects.ReadLogDirNotifications) -> Any:
        names = self.children(LOG_DIRS)
        return names, {self.nodes[f"{LOG_DIRS}/{name}"].data["broker"] for name in names}

    def _drop_notifications(
        self, effect: effects.DropIsrNotifications | effects.DropLogDirNotifications
    ) -> None:
        is_isr = isinstance(effect, effects.DropIsrNotifications)
        parent = ISR_CHANGES if is_isr else LOG_DIRS
        names = self.children(parent) if effect.names is None else effect.names
        self._drop(f"{parent}/{name}" for name in names)

    def _write_features(self, effect: effects.WriteFeatures) -> None:
        self.features = dict(effect.levels)


_NO_STATE = {"leader": -1, "leader_epoch": 0, "isr": [], "controller_epoch": 0}

ZOOKEEPER_EFFECTS: dict[type[effects.Effect], Callable[[Any, Any], Any]] = {
    effects.ReadStates: Ensemble._read_states,
    effects.ReadStatesAhead: lambda zk, _: None,  # they are read when they are waited for
    effects.WriteStates: Ensemble._write_states,
    effects.CreateStates: Ensemble._create_states,
    effects.ReadTopicNames: lambda zk, _: set(zk.children(TOPICS)),
    effects.ReadTopics: Ensemble._read_topics,
    effects.WriteTopic: Ensemble._write_topic,
    effects.WriteTopics: lambda zk, e: [zk._write_topic(topic) for topic in e.topics],
    effects.NewTopicIds: Ensemble._new_topic_ids,
    effects.ReadPartitionChildren: lambda zk, e: set(
        map(int, zk.children(f"{TOPICS}/{e.topic}/partitions"))
    ),
    effects.ReadUncleanOverrides: Ensemble._read_overrides,
    effects.DeleteTopic: Ensemble._delete_topic,
    effects.WatchStates: lambda zk, e: None,
    effects.ReadDeletions: lambda zk, _: set(zk.children(DELETIONS)),
    effects.DropDeletions: lambda zk, e: zk._drop(f"{DELETIONS}/{n}" for n in e.names),
    effects.ReadReassignRequest: Ensemble._read_reassign,
    effects.WriteReassignRequest: Ensemble._write_reassign,
    effects.ReadPreferredRequest: Ensemble._read_preferred,
    effects.DropPreferredRequest: lambda zk, _: zk._drop([PREFERRED]),
    effects.ReadIsrNotifications: Ensemble._read_isr_changes,
    effects.ReadLogDirNotifications: Ensemble._read_log_dirs,
    effects.DropIsrNotifications: Ensemble._drop_notifications,
    effects.DropLogDirNotifications: Ensemble._drop_notifications,
    effects.SetUpFeatures: lambda zk, _: zk.features,
    effects.WriteFeatures: Ensemble._write_features,
    effects.ReadBrokers: lambda zk, _: dict(zk.registrations),
    effects.ReadBroker: lambda zk, e: zk.registrations.get(e.id),
    effects.WatchBrokers: lambda zk, e: None,
}


def _noticed(op: str, path: str) -> events.Event | None:
    """The event that a watch makes of a change (ZK-25)."""
    parent, _, name = path.rpartition("/")
    match parent, op:
        case "/brokers/ids", "create" | "delete":
            return events.BrokerChange()
        case "/brokers/topics", "create" | "delete":
            return events.TopicChange()
        case "/brokers/topics", "set":
            return events.PartitionModifications(name)
        case "/admin/delete_topics", "create" | "delete":
            return events.TopicDeletion()
        case "/isr_change_notification", "create" | "delete":
            return events.IsrChangeNotification()
        case "/log_dir_event_notification", "create" | "delete":
            return events.LogDirEventNotification()
    match path, op:
        case "/admin/reassign_partitions", "create":
            return events.ZkReassignment()
        case "/admin/preferred_replica_election", "create":
            return events.ZkPreferredElection()
    return None


def state_json(
    leader: int, leader_epoch: int, isr: Sequence[int], controller_epoch: int, recovery: int
) -> dict[str, Any]:
    data = {
        "version": 1,
        "leader": leader,
        "leader_epoch": leader_epoch,
        "controller_epoch": controller_epoch,
        "isr": list(isr),
    }
    return data | {"leader_recovery_state": recovery} if recovery else data


def _state_of(states: LeaderAndIsrs, k: int) -> dict[str, Any]:
    return state_json(
        int(states.leader[k]),
        int(states.leader_epoch[k]),
        unpad(states.isr[k]),
        int(states.controller_epoch[k]),
        int(states.recovery[k]),
    )


def _check_succession(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """A partition never has two leaders in one epoch, and its epoch never goes back."""
    assert after["isr"], "an ISR is written empty"
    assert after["leader_epoch"] >= before["leader_epoch"], "a leader epoch goes back"
    if after["leader_epoch"] == before["leader_epoch"]:
        assert after["leader"] == before["leader"], "two leaders in one epoch"


def reassignment_json(targets: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
    listed = [
        {"topic": topic, "partition": partition, "replicas": list(replicas)}
        for (topic, partition), replicas in targets.items()
    ]
    return {"version": 1, "partitions": listed}


def _partitions_in(data: Any) -> set[TopicPartition]:
    return {(entry["topic"], entry["partition"]) for entry in data["partitions"]}
