"""Performs the effects that procedures yield: reads, writes, requests and timers.

Each write is fenced by the version of `/controller_epoch`. If the fence does not hold, the
interpreter throws `FencedError` into the procedure.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from klamm.controller.announcements import RequestBatchSender
from klamm.controller.channels import ControllerChannels
from klamm.controller.event_queue import EventQueue
from klamm.controller.state_store import StateStore, outcome_codes
from klamm.core import effects
from klamm.core.cluster import (
    AdvertisedEndpoint,
    ClusterState,
    RegisteredBroker,
)
from klamm.core.columns import I8
from klamm.core.context import Context, LoggerName
from klamm.core.effects import Procedure, StatesRead, TopicRead, UnreadableConfig, WriteOutcome
from klamm.core.events import Event, QueuedEvent
from klamm.errors import MalformedZnodeError
from klamm.names import TopicPartition
from klamm.zookeeper import znodes
from klamm.zookeeper.bulk import start
from klamm.zookeeper.store import (
    ANY_VERSION,
    NO_VERSION,
    Delete,
    Fence,
    NodeExistsError,
    NoNodeError,
    Row,
    SetData,
    Store,
)

log = logging.getLogger("klamm.controller")
_LOGGERS: Final = {
    LoggerName.STATE_CHANGE: logging.getLogger("state.change.logger"),
    LoggerName.CONTROLLER: log,
    LoggerName.PARTITION_MACHINE: log,
    LoggerName.REPLICA_MACHINE: log,
    LoggerName.DELETION: log,
}
_UNCLEAN: Final = "unclean.leader.election.enable"


class DecisionLog(Protocol):
    """Receives each effect after it was performed; the history is made from it."""

    def performed(
        self, cluster: ClusterState, effect: effects.Effect, reply: Any, elapsed_s: float
    ) -> None:
        """Called before the procedure continues: `cluster` still holds the state before the
        effect.
        """
        ...

    def queued(self, elapsed_s: float) -> None:
        """Called when the procedure has waited until its requests to brokers were queued."""
        ...


class Interpreter:
    """Performs effects on one store and one set of channels."""

    def __init__(
        self,
        broker_id: int,
        store: Store,
        channels: ControllerChannels,
        request_sender: RequestBatchSender,
        decisions: DecisionLog,
        random_bytes: Callable[[int], bytes],
        feature_version: int | None,
    ) -> None:
        self.fence: Fence | None = None
        self._broker_id = broker_id
        self._store = store
        self._channels = channels
        self._request_sender = request_sender
        self._decisions = decisions
        self._random_bytes = random_bytes
        self._feature_version = feature_version
        self._put_event: Callable[[Event], None]
        self._put_event_later: Callable[[Event, float], None]
        self._context: Context
        self._queued: QueuedEvent | None = None
        self._states = StateStore(store, self._complain)
        #: What was begun to be read for the next `ReadTopics`.
        self._topics_begun: asyncio.Task[dict[str, TopicRead]] | None = None

    def attach(self, queue: EventQueue, schedule: Callable[[Event, float], None]) -> None:
        """Set the queue and the scheduler for events that procedures ask for."""
        self._put_event = lambda event: queue.put(event, cause="the controller itself")
        self._put_event_later = schedule

    async def run(
        self, procedure: Procedure[Any], context: Context, queued: QueuedEvent | None
    ) -> None:
        """Run a procedure to its end, performing each effect that it yields."""
        self._context = context
        self._queued = queued
        try:
            effect = next(procedure)
            while True:
                try:
                    if not isinstance(effect, _BESIDE_ENCODING):
                        await self._wait_queued()
                    started = time.monotonic()
                    reply = await _HANDLERS[type(effect)](self, effect)
                except Exception as error:
                    effect = procedure.throw(error)
                else:
                    elapsed_s = time.monotonic() - started
                    self._decisions.performed(context.cluster, effect, reply, elapsed_s)
                    effect = procedure.send(reply)
        except StopIteration:
            pass
        finally:
            self._states.cancel()
            if self._topics_begun is not None:
                self._topics_begun.cancel()
                self._topics_begun = None
            await self._wait_queued()

    async def _wait_queued(self) -> None:
        started = time.monotonic()
        if await self._request_sender.wait_queued():
            self._decisions.queued(time.monotonic() - started)

    def flush_remarks(self, context: Context | None) -> None:
        """Write the remarks of procedures to the logs (MET-6, MET-10)."""
        if context is None:
            return
        controller = self._broker_id
        epoch = context.cluster.controller_epoch
        prefixes = {
            LoggerName.STATE_CHANGE: f"[Controller id={controller} epoch={epoch}] ",
            LoggerName.CONTROLLER: f"[Controller id={controller}] ",
            LoggerName.PARTITION_MACHINE: f"[PartitionStateMachine controllerId={controller}] ",
            LoggerName.REPLICA_MACHINE: f"[ReplicaStateMachine controllerId={controller}] ",
            LoggerName.DELETION: f"[Topic Deletion Manager {controller}] ",
        }
        for remark in context.remarks:
            _LOGGERS[remark.log].log(remark.level, "%s%s", prefixes[remark.log], remark.text)
        context.remarks.clear()

    # Partition states

    async def _read_states_ahead(self, effect: effects.ReadStatesAhead) -> None:
        self._states.read_ahead(self._context.cluster, effect.rows)

    async def _read_states(self, effect: effects.ReadStates) -> StatesRead:
        return await self._states.read(self._context.cluster, effect.rows)

    async def _write_states(self, effect: effects.WriteStates) -> I8:
        return await self._states.write(self._context.cluster, effect.states, self._licence())

    async def _create_states(self, effect: effects.CreateStates) -> I8:
        return await self._states.create(self._context.cluster, effect.states, self._licence())

    def _complain(self, error: MalformedZnodeError | None) -> None:
        if error is not None:
            log.error("[Controller id=%s] %s", self._broker_id, error)

    async def _write(self, rows: Iterable[Row]) -> I8:
        """Write rows under the fence; returns the outcome of each."""
        outcomes = await self._store.write_many(rows, self._licence())
        return outcome_codes(outcomes, len(outcomes))

    def _licence(self) -> Fence:
        assert self.fence is not None, "only a controller writes"
        return self.fence

    # Topics

    async def _read_topic_names(self, effect: effects.ReadTopicNames) -> set[str]:
        return set(await self._store.children(znodes.TOPICS, watch=True))

    async def _read_topics(self, effect: effects.ReadTopics) -> dict[str, TopicRead]:
        reading, self._topics_begun = self._topics_begun, None
        if reading is None:
            reading = start(self._read_topics_now(effect.names))
        if effect.then:
            self._topics_begun = start(self._read_topics_now(effect.then))
        found = await reading
        assert [*found] == [*effect.names], "the topics that were begun are the ones to be read"
        return found

    async def _read_topics_now(self, names: Sequence[str]) -> dict[str, TopicRead]:
        found: dict[str, TopicRead] = {}
        armed: list[asyncio.Task[None]] = []
        name_of = iter(names)
        async for chunk in self._store.read_many(map(znodes.topic_path, names)):
            # The watch reports changes after the read. A missing node gets no watch.
            there = [
                path
                for path, version in zip(chunk.path, chunk.version, strict=True)
                if version != NO_VERSION
            ]
            armed.append(start(self._store.watch_data(there, chunk.zxid)))
            for data in chunk.data:
                name = next(name_of)
                found[name] = self._decode_topic(name, data)
        for each in armed:
            await each
        return found

    def _decode_topic(self, name: str, data: bytes | None) -> TopicRead:
        try:
            topic = znodes.decode_topic(name, data)
            if not topic.partitions:
                self._complain(znodes.flaw(znodes.topic_path(name), data))
        except MalformedZnodeError as error:
            self._complain(error)
            topic = znodes.NO_PARTITIONS
        return TopicRead(
            None if topic.topic_id is None else znodes.encode_topic_id(topic.topic_id),
            topic.partitions,
            topic.adding,
            topic.removing,
        )

    async def _write_topic(self, effect: effects.WriteTopic) -> WriteOutcome:
        (outcome,) = await self._write_topics(effects.WriteTopics([effect]))
        return WriteOutcome(outcome)

    async def _write_topics(self, effect: effects.WriteTopics) -> list[WriteOutcome]:
        outcomes = await self._write(
            [SetData(znodes.topic_path(t.name), _topic_data(t), ANY_VERSION)] for t in effect.topics
        )
        return [WriteOutcome(outcome) for outcome in outcomes.tolist()]

    async def _new_topic_ids(self, effect: effects.NewTopicIds) -> list[str]:
        return [
            znodes.encode_topic_id(znodes.new_topic_id(self._random_bytes))
            for _ in range(effect.count)
        ]

    async def _read_partition_children(self, effect: effects.ReadPartitionChildren) -> set[int]:
        try:
            names = await self._store.children(znodes.partitions_path(effect.topic))
        except NoNodeError:
            return set()
        return {int(name) for name in names if name.isdecimal()}

    async def _read_unclean_overrides(self, effect: effects.ReadUncleanOverrides) -> dict[str, Any]:
        found: dict[str, Any] = {}
        paths = (znodes.config_path(f"topics/{name}") for name in effect.topics)
        names = iter(effect.topics)
        async for chunk in self._store.read_many(paths):
            for path, data in zip(chunk.path, chunk.data, strict=True):
                try:
                    text = znodes.decode_config(path, data).get(_UNCLEAN)
                except MalformedZnodeError as error:
                    self._complain(error)
                    found[next(names)] = UnreadableConfig
                else:
                    found[next(names)] = None if text is None else text.lower() == "true"
        return found

    async def _delete_topic(self, effect: effects.DeleteTopic) -> None:
        # In this order: a successor that finds the last one completes the others (DEL-16).
        for path in (
            znodes.topic_path(effect.name),
            znodes.config_path(f"topics/{effect.name}"),
            znodes.delete_topic_path(effect.name),
        ):
            await self._store.delete_recursive([path], self._licence())

    async def _watch_states(self, effect: effects.WatchStates) -> None:
        for path in self._states.nodes(self._context.cluster, effect.rows).paths():
            await self._store.exists(path, watch=True)

    # Requests and notifications in ZooKeeper

    async def _read_deletions(self, effect: effects.ReadDeletions) -> set[str]:
        return set(await self._store.children(znodes.DELETE_TOPICS, watch=True))

    async def _drop_deletions(self, effect: effects.DropDeletions) -> None:
        await self._drop(map(znodes.delete_topic_path, effect.names))

    async def _read_reassign_request(self, effect: effects.ReadReassignRequest) -> Any:
        data = await self._read_request(znodes.REASSIGN_PARTITIONS)
        if data is _ABSENT:
            return None
        try:
            targets = znodes.decode_reassignment(data)
        except MalformedZnodeError as error:
            self._complain(error)
            return {}
        if not targets:
            self._complain(znodes.flaw(znodes.REASSIGN_PARTITIONS, data or b""))
        return targets

    async def _write_reassign_request(self, effect: effects.WriteReassignRequest) -> None:
        path = znodes.REASSIGN_PARTITIONS
        if effect.entries:
            await self._write([[SetData(path, znodes.encode_reassignment(effect.entries))]])
        else:
            await self._drop([path])

    async def _read_preferred_request(self, effect: effects.ReadPreferredRequest) -> Any:
        data = await self._read_request(znodes.PREFERRED_ELECTION)
        if data is _ABSENT:
            return None
        try:
            return set(znodes.decode_partitions(znodes.PREFERRED_ELECTION, data))
        except MalformedZnodeError as error:
            self._complain(error)
            return set()

    async def _drop_preferred_request(self, effect: effects.DropPreferredRequest) -> None:
        await self._drop([znodes.PREFERRED_ELECTION])

    async def _read_request(self, path: str) -> Any:
        """Read a node that may be missing, and set a watch on its existence."""
        if await self._store.exists(path, watch=True) is None:
            return _ABSENT
        try:
            return (await self._store.get(path)).data
        except NoNodeError:
            return _ABSENT

    async def _read_isr_notifications(self, effect: effects.ReadIsrNotifications) -> Any:
        partitions: set[TopicPartition] = set()
        names = await self._store.children(znodes.ISR_CHANGES, watch=True)
        async for path, data in self._read_children(znodes.ISR_CHANGES, names):
            try:
                partitions.update(znodes.decode_partitions(path, data))
            except MalformedZnodeError as error:
                self._complain(error)
        return names, partitions

    async def _read_log_dir_notifications(self, effect: effects.ReadLogDirNotifications) -> Any:
        brokers: set[int] = set()
        names = await self._store.children(znodes.LOG_DIR_EVENTS, watch=True)
        async for path, data in self._read_children(znodes.LOG_DIR_EVENTS, names):
            try:
                brokers.add(znodes.decode_log_dir_event(path, data).broker)
            except MalformedZnodeError as error:
                self._complain(error)
        return names, brokers

    async def _read_children(self, parent: str, names: list[str]) -> Any:
        """Data of children in the order of their sequence numbers; deleted ones are skipped."""
        async for chunk in self._store.read_many(f"{parent}/{name}" for name in sorted(names)):
            for path, data, version in zip(chunk.path, chunk.data, chunk.version, strict=True):
                if version != NO_VERSION:
                    yield path, data

    async def _drop_isr_notifications(self, effect: effects.DropIsrNotifications) -> None:
        await self._drop_children(znodes.ISR_CHANGES, effect.names)

    async def _drop_log_dir_notifications(self, effect: effects.DropLogDirNotifications) -> None:
        await self._drop_children(znodes.LOG_DIR_EVENTS, effect.names)

    async def _drop_children(self, parent: str, names: Iterable[str] | None) -> None:
        if names is None:
            names = await self._store.children(parent, watch=True)
        await self._drop(f"{parent}/{name}" for name in names)

    async def _drop(self, paths: Iterable[str]) -> None:
        """Fenced deletes whose results do not matter (ZK-28)."""
        await self._write([Delete(path, missing_ok=True)] for path in paths)

    async def _set_up_features(self, effect: effects.SetUpFeatures) -> dict[str, int]:
        version = self._feature_version
        wanted = znodes.FinalizedFeatures(version is not None, {}, version or 1)
        while True:
            try:
                node = await self._store.get(znodes.FEATURE)
            except NoNodeError:
                try:
                    await self._store.create(znodes.FEATURE, znodes.encode_features(wanted))
                except NodeExistsError:
                    continue
                return {}
            try:
                present = znodes.decode_features(node.data)
            except MalformedZnodeError as error:
                # An operator has to repair it. Until then the controller works without finalized
                # features.
                self._complain(error)
                return {}
            if wanted.enabled and present.enabled:
                wanted = wanted._replace(levels=present.levels)
            if wanted != present:
                await self._store.set(znodes.FEATURE, znodes.encode_features(wanted))
            return dict(wanted.levels)

    async def _write_features(self, effect: effects.WriteFeatures) -> None:
        features = znodes.FinalizedFeatures(True, effect.levels, self._feature_version or 1)
        await self._store.set(znodes.FEATURE, znodes.encode_features(features))

    # Brokers and channels

    async def _read_brokers(self, effect: effects.ReadBrokers) -> dict[int, RegisteredBroker]:
        names = await self._store.children(znodes.BROKER_IDS, watch=True)
        ids = sorted(int(name) for name in names if name.isdecimal())
        found = {}
        # The registration and its czxid, which is the broker's epoch, come with one read each.
        for broker_id in ids:
            broker = await self._read_registration(broker_id, watch=False)
            if broker is not None:
                found[broker_id] = broker
        return found

    async def _read_broker(self, effect: effects.ReadBroker) -> RegisteredBroker | None:
        return await self._read_registration(effect.id, watch=True)

    async def _read_registration(self, broker_id: int, *, watch: bool) -> RegisteredBroker | None:
        path = znodes.broker_path(broker_id)
        try:
            node = await self._store.get(path, watch=watch)
            registration = znodes.decode_broker(broker_id, node.data)
        except NoNodeError:
            return None
        except MalformedZnodeError as error:
            self._complain(error)
            # An unreadable registration changes nothing: no broker joins and none is lost.
            known = self._context.cluster.brokers.get(broker_id)
            return known if known and known.epoch == node.stat.czxid else None
        return RegisteredBroker(
            id=broker_id,
            epoch=node.stat.czxid,
            endpoints=tuple(
                AdvertisedEndpoint(
                    e.listener, e.host, e.port, _PROTOCOLS.get(e.security_protocol, 0)
                )
                for e in registration.endpoints
            ),
            rack=registration.rack,
            features=tuple(
                (name, f.min_version, f.max_version)
                for name, f in sorted(registration.features.items())
            ),
            controller_only=registration.controller_only,
        )

    async def _watch_brokers(self, effect: effects.WatchBrokers) -> None:
        for broker_id in effect.ids:
            await self._store.exists(znodes.broker_path(broker_id), watch=True)

    async def _change_channels(self, effect: effects.ChangeChannels) -> None:
        self._channels.close(effect.close)
        for broker in effect.open:
            self._channels.open(broker)

    async def _send_request_batch(self, effect: effects.SendRequestBatch) -> None:
        await self._request_sender.announce(self._context.cluster, effect)

    # The queue and its requesters

    async def _enqueue(self, effect: effects.Enqueue) -> None:
        self._put_event(effect.event)

    async def _schedule(self, effect: effects.Schedule) -> None:
        self._put_event_later(effect.event, effect.delay_s)

    async def _respond(self, effect: effects.Respond) -> None:
        if self._queued is not None and self._queued.respond is not None:
            self._queued.respond(effect.value)


#: How each effect is performed. A test checks that no effect is missing.
_HANDLERS: Final[Mapping[type[effects.Effect], Callable[..., Awaitable[Any]]]] = {
    effects.ReadStates: Interpreter._read_states,
    effects.ReadStatesAhead: Interpreter._read_states_ahead,
    effects.WriteStates: Interpreter._write_states,
    effects.CreateStates: Interpreter._create_states,
    effects.WatchStates: Interpreter._watch_states,
    effects.ReadTopicNames: Interpreter._read_topic_names,
    effects.ReadTopics: Interpreter._read_topics,
    effects.WriteTopic: Interpreter._write_topic,
    effects.WriteTopics: Interpreter._write_topics,
    effects.NewTopicIds: Interpreter._new_topic_ids,
    effects.ReadPartitionChildren: Interpreter._read_partition_children,
    effects.ReadUncleanOverrides: Interpreter._read_unclean_overrides,
    effects.DeleteTopic: Interpreter._delete_topic,
    effects.ReadDeletions: Interpreter._read_deletions,
    effects.DropDeletions: Interpreter._drop_deletions,
    effects.ReadReassignRequest: Interpreter._read_reassign_request,
    effects.WriteReassignRequest: Interpreter._write_reassign_request,
    effects.ReadPreferredRequest: Interpreter._read_preferred_request,
    effects.DropPreferredRequest: Interpreter._drop_preferred_request,
    effects.ReadIsrNotifications: Interpreter._read_isr_notifications,
    effects.ReadLogDirNotifications: Interpreter._read_log_dir_notifications,
    effects.DropIsrNotifications: Interpreter._drop_isr_notifications,
    effects.DropLogDirNotifications: Interpreter._drop_log_dir_notifications,
    effects.SetUpFeatures: Interpreter._set_up_features,
    effects.WriteFeatures: Interpreter._write_features,
    effects.ReadBrokers: Interpreter._read_brokers,
    effects.ReadBroker: Interpreter._read_broker,
    effects.WatchBrokers: Interpreter._watch_brokers,
    effects.ChangeChannels: Interpreter._change_channels,
    effects.SendRequestBatch: Interpreter._send_request_batch,
    effects.Enqueue: Interpreter._enqueue,
    effects.Schedule: Interpreter._schedule,
    effects.Respond: Interpreter._respond,
}

#: What may be done while the requests of a large batch are encoded, and is done at the same time:
#: their contents do not depend on it, and brokers need not have them before.
_BESIDE_ENCODING: Final = (
    effects.ReadStates,
    effects.WriteStates,
    effects.CreateStates,
    effects.SendRequestBatch,
)
_ABSENT: Final = object()
_PROTOCOLS: Final = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


def _topic_data(topic: effects.WriteTopic) -> bytes:
    topic_id = None
    if topic.topic_id is not None:
        topic_id = znodes.decode_topic_id(znodes.topic_path(topic.name), topic.topic_id)
    return znodes.encode_topic(
        znodes.TopicAssignment(
            topic_id,
            {p: a.replicas for p, a in topic.partitions.items()},
            {p: a.adding for p, a in topic.partitions.items()},
            {p: a.removing for p, a in topic.partitions.items()},
        )
    )
