"""A small world for procedures: ZooKeeper as a dictionary, brokers that answer, one controller.

Effects are performed at once, one after the other. The world records every write and every
request; it can refuse a write, fence the controller, or stop it after any write as a crash would.
Watches are always armed, and what they notice waits in the queue until `settle`.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from klamm.core import effects, events
from klamm.core.cluster import (
    LEADER_DURING_DELETE,
    Broker,
    Cluster,
    Endpoint,
    States,
    TopicPartition,
    TopicRead,
)
from klamm.core.columns import NO_BROKER, padded, unpad
from klamm.core.context import Context, Settings
from klamm.core.effects import Outcome, Procedure, StatesRead, UnreadableConfig
from klamm.core.invariants import violations
from klamm.core.procedures.dispatch import handle
from klamm.core.procedures.failover import take_office
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


@dataclass(frozen=True)
class Request:
    """One request as a broker received it; partitions by name, brokers as listed in it."""

    to: int
    api: str
    partitions: Mapping[TopicPartition, Mapping[str, Any]]
    brokers: Sequence[int] = ()


@dataclass
class Node:
    """A znode; `data` is what its JSON says."""

    data: Any
    version: int = 0


@dataclass
class Faults:
    """What is to go wrong."""

    #: Stop after that many more writes.
    crash_after: int | None = None
    #: Outcomes for the next writes of states, by path; used up one by one.
    refuse: dict[str, list[Outcome]] = field(default_factory=dict)
    #: Called before each effect; may raise, or change the world behind the controller's back.
    before: Callable[[effects.Effect], None] = lambda effect: None


def state_path(topic: str, partition: int) -> str:
    return f"{TOPICS}/{topic}/partitions/{partition}/state"


class World:
    """ZooKeeper, brokers, and who is controller."""

    def __init__(self, brokers: Iterable[int] = (), settings: Settings | None = None) -> None:
        self.nodes: dict[str, Node] = {}
        self.broker_epochs: dict[int, int] = {}
        self.registrations: dict[int, Broker] = {}
        self.writes: list[Write] = []
        self.requests: list[Request] = []
        self.queue: deque[events.Event] = deque()
        self.answers: list[tuple[events.Event, Any]] = []
        self.scheduled: list[tuple[events.Event, float]] = []
        self.performed: list[effects.Effect] = []
        self.faults = Faults()
        #: What brokers answer: errors to LeaderAndIsr and to deletions, by (broker, partition).
        self.storage_errors: set[tuple[int, TopicPartition]] = set()
        self.deletion_errors: dict[tuple[int, TopicPartition], int] = {}
        self.silent: set[int] = set()
        self.channels: dict[int, int] = {}
        self.features: dict[str, int] = {}
        self.settings = settings or Settings()
        self.ctx: Context = Context(Cluster(), self.settings)
        self.in_office = False
        self.controller_epoch = 0
        self._zxid = 100
        self._topic_ids = 0
        for broker in brokers:
            self.register(broker)
        self.queue.clear()
        self.writes.clear()

    # What others do to ZooKeeper

    def register(self, broker: int, **changes: Any) -> None:
        """A broker registers, with a new epoch."""
        self._zxid += 1
        endpoint = Endpoint("PLAINTEXT", f"host{broker}", 9092)
        values = {"endpoints": (endpoint,), **changes}
        self.registrations[broker] = Broker(broker, self._zxid, **values)
        self.create(f"{IDS}/{broker}", {"epoch": self._zxid})

    def lose(self, *brokers: int) -> None:
        """Brokers' registrations disappear."""
        for broker in brokers:
            del self.registrations[broker]
            self.delete(f"{IDS}/{broker}")

    def bounce(self, broker: int) -> None:
        """A broker restarts before anybody looks."""
        self.lose(broker)
        self.register(broker)

    def reregister(self, broker: int, **changes: Any) -> None:
        """A broker changes what its registration says."""
        old = self.registrations[broker]
        self.registrations[broker] = Broker(
            **{name: getattr(old, name) for name in Broker.__slots__} | changes
        )
        self.queue.append(events.BrokerModifications(broker))

    def create_topic(
        self, name: str, partitions: Mapping[int, Sequence[int]], *, with_id: bool = True
    ) -> None:
        """A topic appears, as the admin path leaves it."""
        self.create(f"{TOPICS}/{name}", self._topic_json(f"id-of-{name}", partitions, with_id))

    def expand_topic(self, name: str, added: Mapping[int, Sequence[int]]) -> None:
        """A topic's znode gets more partitions."""
        data = deepcopy(self.nodes[f"{TOPICS}/{name}"].data)
        data["partitions"] |= {str(number): list(brokers) for number, brokers in added.items()}
        self.set(f"{TOPICS}/{name}", data)

    def put_state(
        self,
        topic: str,
        partition: int,
        *,
        leader: int,
        isr: Sequence[int],
        leader_epoch: int = 0,
        version: int = 0,
        controller_epoch: int = 1,
        recovery: int = 0,
    ) -> None:
        """A partition's state is there, from earlier."""
        data = _state_json(leader, leader_epoch, isr, controller_epoch, recovery)
        self.nodes[state_path(topic, partition)] = Node(data, version)

    def request_deletion(self, topic: str) -> None:
        self.create(f"{DELETIONS}/{topic}", None)

    def request_reassignment(self, targets: Mapping[TopicPartition, Sequence[int]]) -> None:
        self.create(REASSIGN, _reassignment_json(targets))

    def request_preferred_election(self, *partitions: TopicPartition) -> None:
        listed = [{"topic": topic, "partition": partition} for topic, partition in partitions]
        self.create(PREFERRED, {"version": 1, "partitions": listed})

    @staticmethod
    def _topic_json(
        topic_id: str, partitions: Mapping[int, Sequence[int]], with_id: bool
    ) -> dict[str, Any]:
        return {
            "version": 3,
            "partitions": {str(n): list(brokers) for n, brokers in partitions.items()},
            "adding_replicas": {},
            "removing_replicas": {},
        } | ({"topic_id": topic_id} if with_id else {})

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

    # The controller

    @property
    def cluster(self) -> Cluster:
        return self.ctx.cluster

    def take_office(self, broker: int = 100, epoch: int | None = None) -> None:
        """A node wins the election; what was in memory or on its way before is gone."""
        self.controller_epoch = self.controller_epoch + 1 if epoch is None else epoch
        self.ctx = Context(Cluster(), self.settings)
        self.cluster.controller_id = broker
        self.cluster.controller_epoch = self.controller_epoch
        self.queue.clear()
        self.channels.clear()
        self.in_office = True
        self.run(take_office(self.ctx))

    def settle(self, limit: int = 1000) -> None:
        """Handle events until there are none, and look at the cluster after each."""
        while self.queue:
            limit -= 1
            assert limit, f"the queue does not get empty: {self.queue}"
            self.run(handle(self.ctx, self.queue.popleft()))
            assert violations(self.cluster) == []

    def ask(self, event: events.Event) -> Any:
        """Make a request and return its answer; all that follows has happened then."""
        self.queue.append(event)
        self.settle()
        return next(answer for asked, answer in reversed(self.answers) if asked is event)

    def report_isr(
        self, topic: str, isr: Sequence[int], partition: int = 0, **changes: Any
    ) -> events.IsrAnswer:
        """The leader proposes an ISR; `changes` are fields of the proposal that are otherwise.

        Fields of the request itself are given as `broker`, `broker_epoch` and `version`.
        """
        row = self.cluster.row(topic, partition)
        assert row is not None
        broker = changes.pop("broker", int(self.cluster.leader[row]))
        registered = self.registrations.get(broker)
        broker_epoch = changes.pop("broker_epoch", registered.epoch if registered else 0)
        version = changes.pop("version", 1)
        values = {
            "topic": topic,
            "topic_id": None,
            "partition": partition,
            "leader_epoch": int(self.cluster.leader_epoch[row]),
            "isr": tuple(isr),
            "recovery": 0,
            "partition_epoch": int(self.cluster.partition_epoch[row]),
        }
        proposal = events.IsrProposal(**values | changes)
        error, answers = self.ask(events.AlterPartition(broker, broker_epoch, version, [proposal]))
        return answers[0] if answers else events.IsrAnswer(proposal, error)

    def run(self, procedure: Procedure[Any]) -> Any:
        """Drive a procedure to its end and return its result."""
        try:
            effect = next(procedure)
            while True:
                self.performed.append(effect)
                try:
                    self.faults.before(effect)
                    reply = self._perform(effect)
                except Exception as error:
                    effect = procedure.throw(error)
                else:
                    effect = procedure.send(reply)
        except StopIteration as end:
            return end.value
        finally:
            procedure.close()

    def forget_what_happened(self) -> None:
        self.writes.clear()
        self.requests.clear()
        self.answers.clear()
        self.performed.clear()

    # Shorthand for tests

    def state(self, topic: str, partition: int = 0) -> tuple[int, int, list[int]] | None:
        """Leader, leader epoch and ISR in ZooKeeper."""
        node = self.nodes.get(state_path(topic, partition))
        if node is None:
            return None
        return node.data["leader"], node.data["leader_epoch"], node.data["isr"]

    def version(self, topic: str, partition: int = 0) -> int:
        return self.nodes[state_path(topic, partition)].version

    def topic(self, name: str) -> dict[str, Any]:
        """The topic's znode."""
        data: dict[str, Any] = self.nodes[f"{TOPICS}/{name}"].data
        return data

    def sent(self, api: str, to: int | None = None) -> list[Request]:
        """The requests of a kind, to one broker or to all."""
        return [r for r in self.requests if r.api == api and (to is None or r.to == to)]

    def state_writes(self) -> list[Write]:
        return [write for write in self.writes if write.path.endswith("/state")]

    def errors(self) -> list[str]:
        """What procedures had to complain about."""
        return [remark.text for remark in self.ctx.remarks if remark.level >= 40]

    # Effects

    def _fenced(self) -> None:
        if self.controller_epoch != self.cluster.controller_epoch:
            raise FencedError("another controller has taken over")

    def _perform(self, effect: effects.Effect) -> Any:
        perform = _PERFORM[type(effect)]
        return perform(self, effect)

    def _read_states(self, effect: effects.ReadStates) -> StatesRead:
        nodes = [self.nodes.get(self._path(row)) for row in effect.rows.tolist()]
        found = [node is not None and isinstance(node.data, dict) for node in nodes]
        data = [
            node.data if node and ok else _NO_STATE for node, ok in zip(nodes, found, strict=True)
        ]
        return StatesRead(
            np.array(found, np.bool_),
            States(
                effect.rows,
                np.array([d["leader"] for d in data], np.int32),
                np.array([d["leader_epoch"] for d in data], np.int32),
                padded(d["isr"] for d in data),
                np.array([d.get("leader_recovery_state", 0) for d in data], np.int8),
                np.array([d["controller_epoch"] for d in data], np.int32),
                np.array([node.version if node else -1 for node in nodes], np.int32),
            ),
        )

    def _write_states(self, effect: effects.WriteStates) -> effects.Outcomes:
        self._fenced()
        outcomes = []
        for k, row in enumerate(effect.states.row.tolist()):
            path = self._path(row)
            injected = self.faults.refuse.get(path)
            if injected:
                outcomes.append(injected.pop(0))
            elif path not in self.nodes:
                outcomes.append(Outcome.NO_NODE)
            elif self.nodes[path].version != effect.states.version[k]:
                outcomes.append(Outcome.BAD_VERSION)
            else:
                data = _state_of(effect.states, k)
                _check_succession(self.nodes[path].data, data)
                self.set(path, data)
                outcomes.append(Outcome.DONE)
        return np.array(outcomes, np.int8)

    def _create_states(self, effect: effects.CreateStates) -> effects.Outcomes:
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
            outcomes.append(Outcome.DONE if is_new else Outcome.EXISTS)
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

    def _write_topic(self, effect: effects.WriteTopic) -> Outcome:
        self._fenced()
        path = f"{TOPICS}/{effect.name}"
        injected = self.faults.refuse.get(path)
        if injected:
            return injected.pop(0)
        if path not in self.nodes:
            return Outcome.NO_NODE
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
        return Outcome.DONE

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
            self.set(REASSIGN, _reassignment_json(effect.entries))
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

    def _change_channels(self, effect: effects.ChangeChannels) -> None:
        for broker in effect.close:
            del self.channels[broker]
        for opened in effect.open:
            assert opened.id not in self.channels, "a channel is opened twice"
            self.channels[opened.id] = opened.epoch

    def _answer(self, effect: effects.Answer) -> None:
        self.answers.append((effect.event, effect.value))

    def _schedule(self, effect: effects.Schedule) -> None:
        self.scheduled.append((effect.event, effect.delay_s))

    # Requests to brokers

    def _announce(self, effect: effects.Announce) -> None:
        for broker, entries in effect.leader_and_isr.items():
            self._send_leader_and_isr(broker, entries)
        metadata = self._metadata(effect)
        for broker in effect.metadata_brokers:
            self._send(
                Request(broker, "UpdateMetadata", metadata, self.cluster.live_or_shutting_down)
            )
        for broker, entries in effect.stop_replica.items():
            self._send_stop_replica(broker, entries)

    def _send(self, request: Request) -> None:
        known = self.cluster.brokers[request.to]
        assert self.channels[request.to] == known.epoch, "a request to a broker of another epoch"
        self.requests.append(request)

    def _send_leader_and_isr(self, broker: int, entries: effects.ToReplicas) -> None:
        told = {
            self.cluster.name(row): self._leadership(row)
            | {
                "adding": list(self.cluster.adding.get(row, ())),
                "removing": list(self.cluster.removing.get(row, ())),
                "is_new": is_new,
                "recovery_state": int(self.cluster.recovery[row]),
            }
            for row, is_new in zip(entries.rows.tolist(), entries.flag.tolist(), strict=True)
        }
        leaders = {entry["leader"] for entry in told.values()} & self.cluster.brokers.keys()
        self._send(Request(broker, "LeaderAndIsr", told, sorted(leaders)))
        if broker not in self.silent:
            lost = {tp: 56 for tp in told if (broker, tp) in self.storage_errors}
            self.queue.append(events.LeaderAndIsrAnswered(broker, 0, lost, told.keys()))

    def _metadata(self, effect: effects.Announce) -> dict[TopicPartition, Mapping[str, Any]]:
        cluster = self.cluster
        rows = effect.metadata_rows[cluster.has_leadership[effect.metadata_rows]]
        offline = np.where(cluster.online(rows), NO_BROKER, cluster.replicas[rows])
        told = {}
        for row, down, going in zip(
            rows.tolist(), offline, cluster.is_queued(rows).tolist(), strict=True
        ):
            entry = self._leadership(row) | {"offline": unpad(down)}
            if going:
                entry |= {"leader": LEADER_DURING_DELETE, "leader_epoch": 0, "partition_epoch": 0}
            told[cluster.name(row)] = entry
        return told

    def _leadership(self, row: int) -> dict[str, Any]:
        """What is announced of a partition, which has to be what ZooKeeper holds."""
        cluster = self.cluster
        entry = {
            "controller_epoch": int(cluster.decided_in[row]),
            "leader": int(cluster.leader[row]),
            "leader_epoch": int(cluster.leader_epoch[row]),
            "isr": unpad(cluster.isr[row]),
            "partition_epoch": int(cluster.partition_epoch[row]),
        }
        node = self.nodes.get(self._path(row))
        assert node is None or node.version >= entry["partition_epoch"], "announced unwritten"
        if node is not None and node.version == entry["partition_epoch"]:
            for key in ("leader", "leader_epoch", "isr"):
                assert node.data[key] == entry[key], "what is announced is not in ZooKeeper"
        return entry | {"replicas": unpad(cluster.replicas[row])}

    def _send_stop_replica(self, broker: int, entries: effects.ToReplicas) -> None:
        columns = (entries.rows.tolist(), entries.leader_epoch.tolist(), entries.flag.tolist())
        told = {
            self.cluster.name(row): {"leader_epoch": epoch, "delete": delete}
            for row, epoch, delete in zip(*columns, strict=True)
        }
        self._send(Request(broker, "StopReplica", told))
        deleted = {
            tp: self.deletion_errors.get((broker, tp), 0) for tp in told if told[tp]["delete"]
        }
        if deleted and broker not in self.silent:
            self.queue.append(events.StopReplicaAnswered(broker, 0, deleted))


_NO_STATE = {"leader": -1, "leader_epoch": 0, "isr": [], "controller_epoch": 0}

_PERFORM: dict[type[effects.Effect], Callable[[World, Any], Any]] = {
    effects.ReadStates: World._read_states,
    effects.WriteStates: World._write_states,
    effects.CreateStates: World._create_states,
    effects.ReadTopicNames: lambda world, _: set(world.children(TOPICS)),
    effects.ReadTopics: World._read_topics,
    effects.WriteTopic: World._write_topic,
    effects.WriteTopics: lambda world, e: [world._write_topic(topic) for topic in e.topics],
    effects.NewTopicIds: World._new_topic_ids,
    effects.ReadPartitionChildren: lambda world, e: set(
        map(int, world.children(f"{TOPICS}/{e.topic}/partitions"))
    ),
    effects.ReadUncleanOverrides: World._read_overrides,
    effects.DeleteTopic: World._delete_topic,
    effects.ForgetTopicWatch: lambda world, e: None,
    effects.WatchStates: lambda world, e: None,
    effects.ForgetStateWatch: lambda world, e: None,
    effects.ReadDeletions: lambda world, _: set(world.children(DELETIONS)),
    effects.DropDeletions: lambda world, e: world._drop(f"{DELETIONS}/{n}" for n in e.names),
    effects.ReadReassignRequest: World._read_reassign,
    effects.WriteReassignRequest: World._write_reassign,
    effects.ReadPreferredRequest: World._read_preferred,
    effects.DropPreferredRequest: lambda world, _: world._drop([PREFERRED]),
    effects.ReadIsrNotifications: World._read_isr_changes,
    effects.ReadLogDirNotifications: World._read_log_dirs,
    effects.DropIsrNotifications: World._drop_notifications,
    effects.DropLogDirNotifications: World._drop_notifications,
    effects.SetUpFeatures: lambda world, _: world.features,
    effects.ReadBrokers: lambda world, _: dict(world.registrations),
    effects.ReadBroker: lambda world, e: world.registrations.get(e.id),
    effects.WatchBrokers: lambda world, e: None,
    effects.ForgetBrokerWatch: lambda world, e: None,
    effects.ChangeChannels: World._change_channels,
    effects.Announce: World._announce,
    effects.Enqueue: lambda world, e: world.queue.append(e.event),
    effects.Schedule: World._schedule,
    effects.Answer: World._answer,
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


def _state_json(
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


def _state_of(states: States, k: int) -> dict[str, Any]:
    return _state_json(
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


def _reassignment_json(targets: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
    listed = [
        {"topic": topic, "partition": partition, "replicas": list(replicas)}
        for (topic, partition), replicas in targets.items()
    ]
    return {"version": 1, "partitions": listed}


def _partitions_in(data: Any) -> set[TopicPartition]:
    return {(entry["topic"], entry["partition"]) for entry in data["partitions"]}


def steady(
    brokers: Iterable[int],
    topics: Mapping[str, Mapping[int, Sequence[int]]],
    settings: Settings | None = None,
) -> World:
    """A world whose controller, in epoch 5, has created the topics, and is at rest."""
    world = World(brokers, settings)
    world.take_office(epoch=5)
    for name, partitions in topics.items():
        world.create_topic(name, partitions)
    world.settle()
    world.forget_what_happened()
    return world
