"""A term of office without ZooKeeper: real procedures in a world that does as it is told."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from klamm.config.broker import BrokerConfig
from klamm.core import effects
from klamm.core.cluster import (
    ClusterState,
    LeaderAndIsrs,
    RegisteredBroker,
    TopicPartition,
    TopicRead,
)
from klamm.core.columns import padded, unpad
from klamm.core.context import Context, Settings
from klamm.core.effects import Effect, Procedure, StatesRead, WriteOutcome
from klamm.core.events import Event, QueuedEvent
from klamm.core.procedures.dispatch import handle
from klamm.core.procedures.failover import on_controller_failover
from klamm.history.recorder import History
from klamm.history.spool import read_spool


class Clock:
    """Time that passes only when told to; it starts on 2001-09-09 at 01:46:40 UTC."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        return 1e9 + self.at

    def monotonic(self) -> float:
        return self.at


class Elect(Event):
    """Stands for the event that brings a node into office."""


class Resign(Event):
    """Stands for the event that ends its term."""


def history_config(directory: Path, **more: str) -> BrokerConfig:
    properties = {
        "broker.id": "1",
        "zookeeper.connect": "localhost:2181",
        "log.dirs": str(directory / "logs"),
        "klamm.history.dir": str(directory / "history"),
    }
    return BrokerConfig.from_properties(properties | more)


class Office:
    """One node's history, and what it believes to be ZooKeeper. Each effect takes a millisecond."""

    def __init__(self, directory: Path, brokers: Iterable[int] = (1, 2, 3), **config: str) -> None:
        self.clock = Clock()
        self.config = history_config(directory, **config)
        self.history = History(self.config, self.clock)
        self.settings = Settings()
        self.context: Context | None = None
        self.registered: dict[int, RegisteredBroker] = {}
        self.topics: dict[str, TopicRead] = {}
        self.states: dict[TopicPartition, tuple[int, int, list[int], int, int, int]] = {}
        self.deletions: set[str] = set()
        self.isr_notifications: set[TopicPartition] = set()
        self.unclean_topics: set[str] = set()
        #: What the next write about a partition comes to, if it is not done.
        self.refusals: dict[TopicPartition, WriteOutcome] = {}
        self.answers: list[Any] = []
        self.enqueued: list[Event] = []
        self.fails_to_announce = False
        self._epochs = 100
        for broker in brokers:
            self.register(broker)

    @property
    def cluster(self) -> ClusterState:
        assert self.context is not None
        return self.context.cluster

    def register(self, broker: int) -> None:
        self._epochs += 1
        self.registered[broker] = RegisteredBroker(broker, self._epochs)

    def add_topic(self, name: str, replicas: Mapping[int, Sequence[int]]) -> None:
        self.topics[name] = TopicRead(f"id-of-{name}", replicas)

    # Events

    def fail_over(self, epoch: int = 1) -> None:
        context = Context(ClusterState(), self.settings)
        context.cluster.controller_id = 1
        context.cluster.controller_epoch = epoch
        self._begin(Elect(), "watch on /controller")
        self._run(context, on_controller_failover(context))
        self.context = context
        self.history.end("done", context)

    def handle(self, event: Event, cause: str = "a test") -> None:
        assert self.context is not None
        self._begin(event, cause)
        outcome = "done"
        try:
            self._run(self.context, handle(self.context, event))
        except RuntimeError as error:
            outcome = f"failed: {error!r}"
        self.history.end(outcome, self.context)

    def resign(self, outcome: str = "done") -> None:
        self._begin(Resign(), "ZooKeeper session expired")
        self.context = None
        self.history.end(outcome, None)

    def _begin(self, event: Event, cause: str) -> None:
        epoch = self.context.cluster.controller_epoch if self.context else 0
        queued = QueuedEvent(event, self.clock.monotonic(), cause)
        self.clock.at += 0.005
        self.history.begin(queued, epoch, self.clock.now())

    def records(self) -> list[dict[str, Any]]:
        """All that has been recorded so far, as the spool has it."""
        self.history.spool.flush()
        directory = self.config.klamm_history_dir
        return [row for batch in read_spool(directory) for row in batch.to_pylist()]

    # Effects

    def _run(self, context: Context, procedure: Procedure[None]) -> None:
        try:
            effect = next(procedure)
            while True:
                reply = self._perform(context.cluster, effect)
                self.clock.at += 0.001
                self.history.performed(context.cluster, effect, reply, 0.001)
                effect = procedure.send(reply)
        except StopIteration:
            pass

    def _perform(self, cluster: ClusterState, effect: Effect) -> Any:
        match effect:
            case effects.SetUpFeatures():
                return {}
            case effects.ReadBrokers():
                return dict(self.registered)
            case effects.ReadTopicNames():
                return set(self.topics)
            case effects.ReadTopics(names):
                return {name: self.topics.get(name, TopicRead(None, {})) for name in names}
            case effects.ReadStates(rows):
                return self._read_states(cluster, rows.tolist())
            case effects.WriteStates(states) | effects.CreateStates(states):
                return self._write_states(cluster, states)
            case effects.WriteTopics(topics):
                for topic in topics:
                    self._write_topic(topic)
                return [WriteOutcome.DONE] * len(topics)
            case effects.WriteTopic():
                self._write_topic(effect)
                return WriteOutcome.DONE
            case effects.DeleteTopic(name):
                del self.topics[name]
                self.deletions.discard(name)
            case effects.ReadUncleanOverrides(topics):
                return {topic: topic in self.unclean_topics or None for topic in topics}
            case effects.ReadDeletions():
                return set(self.deletions)
            case effects.ReadIsrNotifications():
                return ["isr_change_0"], set(self.isr_notifications)
            case effects.Respond(value):
                self.answers.append(value)
            case effects.Enqueue(event) | effects.Schedule(event):
                self.enqueued.append(event)
            case effects.SendRequestBatch() if self.fails_to_announce:
                raise RuntimeError("no way to announce")
        return None

    def _read_states(self, cluster: ClusterState, rows: list[int]) -> StatesRead:
        found = [self.states.get(cluster.name(row)) for row in rows]
        values = [state or (-1, 0, [], 0, 0, -1) for state in found]
        leader, epoch, isr, recovery, controller_epoch, version = zip(*values, strict=True)
        states = LeaderAndIsrs(
            np.array(rows, np.int32),
            np.array(leader, np.int32),
            np.array(epoch, np.int32),
            padded(isr),
            np.array(recovery, np.int8),
            np.array(controller_epoch, np.int32),
            np.array(version, np.int32),
        )
        return StatesRead(np.array([state is not None for state in found]), states)

    def _write_states(self, cluster: ClusterState, states: LeaderAndIsrs) -> Any:
        outcomes = np.zeros(len(states), np.int8)
        for k, row in enumerate(states.row.tolist()):
            name = cluster.name(row)
            outcomes[k] = self.refusals.pop(name, WriteOutcome.DONE)
            if outcomes[k] == WriteOutcome.DONE:
                self.states[name] = (
                    int(states.leader[k]),
                    int(states.leader_epoch[k]),
                    unpad(states.isr[k]),
                    int(states.recovery[k]),
                    int(states.controller_epoch[k]),
                    self.states[name][5] + 1 if name in self.states else 0,
                )
        return outcomes

    def _write_topic(self, topic: effects.WriteTopic) -> None:
        self.topics[topic.name] = TopicRead(
            topic.topic_id,
            {p: a.replicas for p, a in topic.partitions.items()},
            {p: a.adding for p, a in topic.partitions.items() if a.adding},
            {p: a.removing for p, a in topic.partitions.items() if a.removing},
        )
