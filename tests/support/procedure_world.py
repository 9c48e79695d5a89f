"""A small world for procedures: ZooKeeper, brokers that respond, and one controller.

Effects are performed at once, one after the other. The world records every write and every
request; events wait in the queue until `settle`, and after each of them the cluster is looked at.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from klamm.core import effects, events
from klamm.core.cluster import (
    LEADER_DURING_DELETE,
    AdvertisedEndpoint,
    ClusterState,
    RegisteredBroker,
    TopicPartition,
)
from klamm.core.columns import NO_BROKER, unpad
from klamm.core.context import Context, LoggerName, Settings
from klamm.core.effects import Procedure
from klamm.core.invariants import violations
from klamm.core.procedures.dispatch import handle
from klamm.core.procedures.failover import on_controller_failover
from tests.support.procedure_store import (
    DELETIONS,
    IDS,
    ISR_CHANGES,
    LOG_DIRS,
    PREFERRED,
    REASSIGN,
    TOPICS,
    ZOOKEEPER_EFFECTS,
    Ensemble,
    Node,
    Write,
    do_nothing,
    reassignment_json,
    state_json,
    state_path,
)


@dataclass(frozen=True)
class Request:
    """One request as a broker received it; partitions by name, brokers as listed in it."""

    to: int
    api: str
    partitions: Mapping[TopicPartition, Mapping[str, Any]]
    brokers: Sequence[int] = ()


@dataclass
class BrokerView:
    """What a broker believes, from the requests that it has received since it started."""

    metadata: dict[TopicPartition, Mapping[str, Any]] = field(default_factory=dict)
    replicas: dict[TopicPartition, Mapping[str, Any]] = field(default_factory=dict)
    brokers: list[int] = field(default_factory=list)

    def hear(self, request: Request) -> None:
        match request.api:
            case "LeaderAndIsr":
                for tp, entry in request.partitions.items():
                    known = self.replicas.get(tp)
                    if known is None or entry["leader_epoch"] > known["leader_epoch"]:
                        self.replicas[tp] = entry
            case "UpdateMetadata":
                self.brokers = list(request.brokers)
                self.metadata |= request.partitions
                for tp, entry in request.partitions.items():
                    if entry["leader"] == LEADER_DURING_DELETE:
                        del self.metadata[tp]
            case "StopReplica":
                for tp, entry in request.partitions.items():
                    if entry["delete"]:
                        self.replicas.pop(tp, None)


class World(Ensemble):
    """ZooKeeper, brokers, and who is controller."""

    def __init__(self, brokers: Iterable[int] = (), settings: Settings | None = None) -> None:
        super().__init__()
        self.requests: list[Request] = []
        self.lost_requests: list[Request] = []
        self.responses: list[Any] = []
        self.scheduled: list[tuple[events.Event, float]] = []
        self.performed: list[effects.Effect] = []
        #: What brokers answer: errors to LeaderAndIsr and to deletions, by (broker, partition).
        self.storage_errors: set[tuple[int, TopicPartition]] = set()
        self.deletion_errors: dict[tuple[int, TopicPartition], int] = {}
        self.silent: set[int] = set()
        self.channels: dict[int, int] = {}
        self.views: dict[int, BrokerView] = {}
        self.settings = settings or Settings()
        self.ctx: Context = Context(ClusterState(), self.settings)
        self._zxid = 100
        for broker in brokers:
            self.register(broker)
        self.queue.clear()
        self.writes.clear()

    # What others do to ZooKeeper

    def register(self, broker: int, **changes: Any) -> None:
        """A broker registers, with a new epoch."""
        self._zxid += 1
        endpoint = AdvertisedEndpoint("PLAINTEXT", f"host{broker}", 9092)
        values = {"endpoints": (endpoint,), **changes}
        self.registrations[broker] = RegisteredBroker(broker, self._zxid, **values)
        # Its disk survives a restart, what it knew of others does not.
        replicas = self.views[broker].replicas if broker in self.views else {}
        self.views[broker] = BrokerView(replicas=replicas)
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
        self.registrations[broker] = RegisteredBroker(
            **{name: getattr(old, name) for name in RegisteredBroker.__slots__} | changes
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
        data = state_json(leader, leader_epoch, isr, controller_epoch, recovery)
        self.nodes[state_path(topic, partition)] = Node(data, version)

    def request_deletion(self, topic: str) -> None:
        self.create(f"{DELETIONS}/{topic}", None)

    def request_reassignment(self, targets: Mapping[TopicPartition, Sequence[int]]) -> None:
        self.create(REASSIGN, reassignment_json(targets))

    def request_preferred_election(self, *partitions: TopicPartition) -> None:
        listed = [{"topic": topic, "partition": partition} for topic, partition in partitions]
        self.create(PREFERRED, {"version": 1, "partitions": listed})

    def notify_isr_change(self, *partitions: TopicPartition) -> None:
        """Leaders that have written states themselves say so."""
        listed = [{"topic": topic, "partition": partition} for topic, partition in partitions]
        self.create(f"{ISR_CHANGES}/isr_change_{len(self.writes)}", {"partitions": listed})

    def notify_log_dir(self, broker: int) -> None:
        """A broker has lost a log directory."""
        path = f"{LOG_DIRS}/log_dir_event_{len(self.writes)}"
        self.create(path, {"version": 1, "broker": broker, "event": 1})

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

    # The controller

    @property
    def cluster(self) -> ClusterState:
        return self.ctx.cluster

    def fail_over(self, broker: int = 100, epoch: int | None = None) -> None:
        """A node wins the election; what was in memory or on its way before is gone."""
        self.controller_epoch = self.controller_epoch + 1 if epoch is None else epoch
        self.ctx = Context(ClusterState(), self.settings)
        self.cluster.controller_id = broker
        self.cluster.controller_epoch = self.controller_epoch
        self.queue.clear()
        self.channels.clear()
        self.run(on_controller_failover(self.ctx))

    def settle(self, limit: int = 1000) -> None:
        """Handle events until there are none, and look at the cluster after each."""
        while self.queue:
            limit -= 1
            assert limit, f"the queue does not get empty: {self.queue}"
            self.run(handle(self.ctx, self.queue.popleft()))
            assert violations(self.cluster) == []
            assert self.breakdowns() == []

    def ask(self, event: events.Event) -> Any:
        """Handle a request and everything that follows from it; return its response."""
        self.queue.append(event)
        self.settle()
        return self.responses[-1]  # Requests that were queued before it have theirs before it.

    def report_isr(
        self, topic: str, isr: Sequence[int], /, partition: int = 0, **changes: Any
    ) -> events.ProposalResult:
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
        proposal = events.PartitionProposal(**values | changes)
        error, results = self.ask(events.AlterPartition(broker, broker_epoch, version, [proposal]))
        return results[0] if results else events.ProposalResult(proposal, error)

    def run(self, procedure: Procedure[Any]) -> Any:
        """Drive a procedure to its end and return its result."""
        try:
            effect = next(procedure)
            while True:
                self.performed.append(effect)
                try:
                    self.faults.before(effect)
                    reply = self._perform(effect)
                except AssertionError:
                    raise  # the test's own, and none of the procedure's business
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
        self.lost_requests.clear()
        self.responses.clear()
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

    def breakdowns(self) -> list[str]:
        """Errors that a state machine has caught although no fault was meant for it."""
        if self.faults.before is not do_nothing:
            return []
        machines = (LoggerName.PARTITION_MACHINE, LoggerName.REPLICA_MACHINE)
        return [remark.text for remark in self.ctx.remarks if remark.log in machines]

    def disagreements(self) -> list[str]:
        """Where live brokers believe something else than ZooKeeper holds; nowhere, at rest."""
        found = []
        stored = {}
        for name, topic in self.cluster.topics.items():
            if name not in self.cluster.queued_for_deletion:
                for number in topic.numbers.tolist():
                    node = self.nodes.get(state_path(name, number))
                    if node is not None:
                        stored[name, number] = node
        for broker in self.registrations:
            view = self.views[broker]
            if view.brokers != sorted(self.registrations):
                found.append(f"{broker} believes in brokers {view.brokers}")
            if view.metadata.keys() != stored.keys():
                found.append(f"{broker} has metadata of {set(view.metadata) ^ set(stored)}")
            for tp, node in stored.items():
                told = view.metadata.get(tp, {})
                facts = node.data | {"partition_epoch": node.version}
                for key in ("leader", "leader_epoch", "isr", "partition_epoch"):
                    if told.get(key) != facts[key]:
                        found.append(f"{broker} believes {tp} has {key} {told.get(key)}")
                row = self.cluster.row(*tp)
                assert row is not None
                is_assigned = broker in unpad(self.cluster.replicas[row])
                own = view.replicas.get(tp)
                if is_assigned and (own is None or own["leader_epoch"] != facts["leader_epoch"]):
                    found.append(f"replica {broker} of {tp} is at {own}")
                if own is not None and not is_assigned:
                    found.append(f"{broker} still has a replica of {tp}")
        return found

    # Effects that concern brokers and the queue

    def _perform(self, effect: effects.Effect) -> Any:
        perform = _PERFORM[type(effect)]
        return perform(self, effect)

    def _change_channels(self, effect: effects.ChangeChannels) -> None:
        for broker in effect.close:
            del self.channels[broker]
        for opened in effect.open:
            assert opened.id not in self.channels, "a channel is opened twice"
            self.channels[opened.id] = opened.epoch

    def _respond(self, effect: effects.Respond) -> None:
        self.responses.append(effect.value)

    def _schedule(self, effect: effects.Schedule) -> None:
        self.scheduled.append((effect.event, effect.delay_s))

    # Requests to brokers

    def _announce(self, effect: effects.SendRequestBatch) -> None:
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
        # Without a channel it is lost, and a broker that has bounced refuses its old epoch.
        is_heard = self.channels.get(request.to) == self.cluster.brokers[request.to].epoch
        (self.requests if is_heard else self.lost_requests).append(request)
        if is_heard:
            self.views[request.to].hear(request)

    def _send_leader_and_isr(self, broker: int, entries: effects.ReplicaRequestRows) -> None:
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
            self.queue.append(events.LeaderAndIsrResponseReceived(broker, 0, lost, told.keys()))

    def _metadata(
        self, effect: effects.SendRequestBatch
    ) -> dict[TopicPartition, Mapping[str, Any]]:
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

    def _send_stop_replica(self, broker: int, entries: effects.ReplicaRequestRows) -> None:
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
            self.queue.append(events.StopReplicaResponseReceived(broker, 0, deleted))


_PERFORM: dict[type[effects.Effect], Callable[[World, Any], Any]] = {
    **ZOOKEEPER_EFFECTS,
    effects.ChangeChannels: World._change_channels,
    effects.SendRequestBatch: World._announce,
    effects.Enqueue: lambda world, e: world.queue.append(e.event),
    effects.Schedule: World._schedule,
    effects.Respond: World._respond,
}


def steady(
    brokers: Iterable[int],
    topics: Mapping[str, Mapping[int, Sequence[int]]],
    settings: Settings | None = None,
) -> World:
    """A world whose controller, in epoch 5, has created the topics, and is at rest."""
    world = World(brokers, settings)
    world.fail_over(epoch=5)
    for name, partitions in topics.items():
        world.create_topic(name, partitions)
    world.settle()
    world.forget_what_happened()
    return world
