"""The recorder: for each event that the controller handles, its cause and its decisions.

`History` receives every event and every effect, and keeps columns: it does not create a Python
object for each partition. The spool's own thread (`klamm.history.spool`) encodes the records and
imports pyarrow, so that a node that never becomes controller does not load it. docs/history.md
describes the records.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np

from klamm.config.broker import BrokerConfig
from klamm.core import effects
from klamm.core.cluster import NO_EPOCH, ClusterState, LeaderAndIsrs
from klamm.core.columns import I8, I32, NO_BROKER, Mask, contains, widen
from klamm.core.context import Context
from klamm.core.effects import DecisionReason, Effect, ReadEffect, WriteEffect, WriteOutcome
from klamm.core.elections import RECOVERING
from klamm.core.events import (
    IsrChangeNotification,
    LeaderAndIsrResponseReceived,
    QueuedEvent,
    ReassignmentIsrChange,
    StopReplicaResponseReceived,
    UpdateMetadataResponseReceived,
)
from klamm.core.reassignment import Assignment
from klamm.core.transitions import PartitionState
from klamm.history.records import (
    CLEAN,
    CONTROLLED_SHUTDOWN,
    CREATED,
    EPOCH_RAISED,
    ISR_CHANGED,
    NOBODY,
    PREFERRED,
    REASSIGNMENT,
    REPLICA_OFFLINE,
    UNCLEAN,
    BrokerChanged,
    Decisions,
    EventRecord,
    LostBroker,
    ReassignmentChange,
    TopicChanged,
)
from klamm.history.spool import Spool
from klamm.history.topic import TopicShipping

#: The kind of decision that the history writes for each reason of the controller.
_KIND_OF: Final[Mapping[DecisionReason, str]] = {
    DecisionReason.OFFLINE_ELECTION: CLEAN,
    DecisionReason.UNCLEAN_ELECTION: CLEAN,
    DecisionReason.PREFERRED_ELECTION: PREFERRED,
    DecisionReason.REASSIGN_ELECTION: REASSIGNMENT,
    DecisionReason.CONTROLLED_SHUTDOWN_ELECTION: CONTROLLED_SHUTDOWN,
    DecisionReason.REPLICA_OFFLINE: REPLICA_OFFLINE,
    DecisionReason.ISR_CHANGE: ISR_CHANGED,
    DecisionReason.REASSIGNMENT: EPOCH_RAISED,
}
#: Decisions after which a partition is online.
_ELECTIONS: Final = frozenset({CREATED, CLEAN, PREFERRED, REASSIGNMENT, CONTROLLED_SHUTDOWN})
#: Events whose name in written histories is not the name of their class.
_WRITTEN_KIND: Final[dict[type, str]] = {
    LeaderAndIsrResponseReceived: "LeaderAndIsrAnswered",
    StopReplicaResponseReceived: "StopReplicaAnswered",
    UpdateMetadataResponseReceived: "UpdateMetadataAnswered",
}


class RecorderClock(Protocol):
    """Both kinds of time, in seconds."""

    def now(self) -> float:
        """Since the epoch."""
        ...

    def monotonic(self) -> float:
        """Of a monotonic clock."""
        ...


class History:
    """Records the events of this node's controller terms; events outside of a term are not kept.

    Sequence numbers count from 1 in each term, so (controller epoch, sequence) names an event, and
    a missing number a gap.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: RecorderClock,
        lost_at: Callable[[int], float | None] = lambda broker: None,
        cluster_id: str | None = None,
    ) -> None:
        """`lost_at`: when the controller's connection to a broker was lost, if it was."""
        self._controller = config.broker_id
        self._lost_at = lost_at
        self._session_timeout_ms = config.zookeeper_session_timeout_ms
        self._cluster_id = cluster_id
        self._clock = clock
        self.spool = Spool(config.klamm_history_dir, config.klamm_history_retention_bytes)
        topic = config.klamm_history_topic
        self._shipping = None if topic is None else TopicShipping(config, topic, self.spool)
        self._term = Term()
        self._event: EventRecord | None = None
        self._began = 0.0
        #: Topics that were rewritten, and topics that were removed, during the event.
        self._touched: set[str] = set()
        self._gone: dict[str, str] = {}
        self._is_isr_event = False

    # Recorder

    def begin(self, queued: QueuedEvent, epoch: int, at: float) -> None:
        """Called before an event is handled; `epoch` is 0 outside of a controller term."""
        if self._shipping is not None:
            self._shipping.begin()
        self._began = self._clock.monotonic()
        event = queued.event
        self._event = EventRecord(
            at=round(at * 1e6),
            controller=self._controller,
            controller_epoch=epoch,
            seq=0,
            kind=_WRITTEN_KIND.get(type(event), type(event).__name__),
            cause=queued.cause,
            caused_by=self._term.asked_for.pop(id(event), (None, None))[1],
            queued=_us(self._began - queued.enqueued_at),
            session_timeout_ms=self._session_timeout_ms,
            cluster_id=self._cluster_id,
        )
        _name_subjects(event, self._event)
        self._is_isr_event = isinstance(event, IsrChangeNotification | ReassignmentIsrChange)

    def end(self, outcome: str, context: Context | None) -> None:
        """Called after the event was handled; without a context this node is not controller."""
        event, self._event = self._event, None
        assert event is not None, "an event ends after it has begun"
        was_controller = self._term.epoch > 0
        if context is not None:
            cluster = context.cluster
            if cluster.controller_epoch != self._term.epoch:
                self._term = Term(cluster.controller_epoch, self._term.asked_for)
                event.term = "began"
                event.controller_epoch = self._term.epoch
            event.seq = self._term.next_seq()
            self._compare(event, cluster)
        elif was_controller or event.controller_epoch:
            # Resigned, or the failover failed half-way; what was written by then is recorded.
            if not was_controller:
                self._term = Term(event.controller_epoch)
            event.term = "ended"
            event.seq = self._term.next_seq()
            self._term = Term()
        else:
            return
        event.outcome = outcome
        event.total = _us(self._clock.monotonic() - self._began)
        event.deciding = event.total - event.reading - event.writing - event.announcing
        event.topic_changes += (TopicChanged(name, how, 0) for name, how in self._gone.items())
        self._touched.clear()
        self._gone.clear()
        self.spool.put(event)

    # DecisionLog

    def performed(
        self, cluster: ClusterState, effect: Effect, reply: Any, elapsed_s: float
    ) -> None:
        """Called after an effect was performed, before its procedure continues."""
        event = self._event
        if event is None:
            return
        event.controller_epoch = cluster.controller_epoch
        elapsed = _us(elapsed_s)
        if isinstance(effect, ReadEffect):
            event.reading += elapsed
        elif isinstance(effect, WriteEffect):
            event.writing += elapsed
        match effect:
            case effects.WriteStates(states=states, reason=reason):
                self._decided(cluster, states, reply, _KIND_OF[reason])
            case effects.CreateStates(states=states):
                self._decided(cluster, states, reply, CREATED)
            case effects.SendRequestBatch():
                self.queued(elapsed_s)
            case effects.ReadStates() if self._is_isr_event:
                self._isr_seen(cluster, reply)
            case effects.WriteTopic(name=name):
                self._touched.add(name)
            case effects.WriteTopics(topics=topics):
                self._touched.update(topic.name for topic in topics)
            case effects.DeleteTopic(name=name):
                self._touched.add(name)
                self._gone[name] = "deleted"
            case effects.ReadTopicNames():
                # The cluster state still has the topics that were removed by hand.
                vanished = sorted(cluster.topics.keys() - reply)
                self._gone.update(dict.fromkeys(vanished, "vanished"))
            case effects.Enqueue(event=asked) | effects.Schedule(event=asked):
                # The event itself is kept, so that its identity is not reused meanwhile.
                self._term.asked_for[id(asked)] = (asked, self._term.seq + 1)

    def queued(self, elapsed_s: float) -> None:
        """Called when requests to brokers are queued, for which the procedure waited so long."""
        if self._event is not None:
            self._event.announcing += _us(elapsed_s)
            self._event.announced_after = _us(self._clock.monotonic() - self._began)

    async def close(self) -> None:
        """Write all records; those that were not shipped are shipped after the node's next
        start.
        """
        await asyncio.to_thread(self.spool.close)
        if self._shipping is not None:
            await self._shipping.close()

    # What an event has changed

    def _decided(
        self, cluster: ClusterState, states: LeaderAndIsrs, outcomes: I8, kind: str
    ) -> None:
        if self._event is not None and len(states):
            decisions = _decisions(cluster, states, outcomes, kind)
            self._event.decisions.append(decisions)
            if kind == CREATED:
                self._event.topic_changes += topics_created(cluster, decisions)

    def _isr_seen(self, cluster: ClusterState, reply: effects.StatesRead) -> None:
        """Leaders have written states themselves; the controller learns of it by reading them."""
        seen = reply.states.at(reply.found)
        known = cluster.leadership(seen.row)
        width = max(seen.isr.shape[1], known.isr.shape[1])
        differs = (widen(seen.isr, width) != widen(known.isr, width)).any(axis=1)
        seen = seen.at(differs)
        done = np.full(len(seen), WriteOutcome.DONE, np.int8)
        self._decided(cluster, seen, done, ISR_CHANGED)

    def _compare(self, event: EventRecord, cluster: ClusterState) -> None:
        """Record the differences from the end of the previous event."""
        term = self._term
        term_began = event.term is not None
        was_leaving = set(term.shutting_down)
        event.broker_changes += term.brokers_changed(cluster, term_began=term_began)
        event.lost += self._last_seen(event, was_leaving)
        event.topic_changes += term.deletions_changed(cluster)
        event.moves += term.reassignments_changed(cluster, None if term_began else self._touched)
        if (leaderless := term.newly_leaderless(cluster)).size:
            event.decisions.append(_nobody_elected(cluster, leaderless, event.decisions))

    def _last_seen(self, event: EventRecord, was_leaving: set[int]) -> Iterator[LostBroker]:
        """When each broker that failed or bounced was last known to be alive.

        ZooKeeper drops a registration when nothing was heard of its session for the session
        timeout. A connection that was lost within that time shows a later sign of life. A broker
        that shut down closed its session itself, right before the event.
        """
        arrived_at = event.at - event.queued
        heard_at = arrived_at - self._session_timeout_ms * 1000
        for each in event.broker_changes:
            if each.change in ("failed", "bounced") and each.broker not in was_leaving:
                lost_at = self._lost_at(each.broker)
                seen_at = heard_at if lost_at is None else round(lost_at * 1e6)
                yield LostBroker(each.broker, min(max(seen_at, heard_at), arrived_at))


@dataclass(slots=True)
class Term:
    """What was recorded of the present controller term; epoch 0 stands for none."""

    epoch: int = 0
    #: Events that an earlier event caused, by identity: the event and that event's number.
    asked_for: dict[int, tuple[Any, int | None]] = field(default_factory=dict)
    seq: int = 0
    brokers: dict[int, int] = field(default_factory=dict)
    shutting_down: set[int] = field(default_factory=set)
    deletions: dict[str, str] = field(default_factory=dict)
    moves: dict[str, dict[int, Assignment]] = field(default_factory=dict)
    #: The column of partition states.
    states: I8 = field(default_factory=lambda: np.empty(0, np.int8))

    def next_seq(self) -> int:
        self.seq += 1
        return self.seq

    def brokers_changed(
        self, cluster: ClusterState, *, term_began: bool
    ) -> Iterator[BrokerChanged]:
        """Brokers that started, failed, bounced, or began to shut down."""
        before, now = self.brokers, {b.id: b.epoch for b in cluster.brokers.values()}
        if before != now:
            for broker in sorted(before.keys() | now.keys()):
                if broker not in now:
                    yield BrokerChanged(broker, "failed", before[broker])
                elif broker not in before:
                    change = "present" if term_began else "started"
                    yield BrokerChanged(broker, change, now[broker])
                elif before[broker] != now[broker]:
                    yield BrokerChanged(broker, "bounced", now[broker])
            self.brokers = now
        if cluster.shutting_down != self.shutting_down:
            for broker in sorted(cluster.shutting_down - self.shutting_down):
                yield BrokerChanged(broker, "shutting_down", now.get(broker, NO_EPOCH))
            self.shutting_down = set(cluster.shutting_down)

    def deletions_changed(self, cluster: ClusterState) -> Iterator[TopicChanged]:
        """Topics whose deletion was accepted, began or was put on hold."""
        if not (cluster.queued_for_deletion or self.deletions):
            return
        now = {
            name: "deletion_paused"
            if name in cluster.ineligible_for_deletion
            else "deletion_started"
            if name in cluster.deletion_started
            else "deletion_queued"
            for name in cluster.queued_for_deletion
        }
        for name in sorted(now):
            if self.deletions.get(name) != now[name]:
                topic = cluster.topics.get(name)
                yield TopicChanged(name, now[name], 0 if topic is None else len(topic.rows))
        self.deletions = now

    def reassignments_changed(
        self, cluster: ClusterState, touched: Iterable[str] | None
    ) -> Iterator[ReassignmentChange]:
        """Reassignments of the touched topics that began, changed or ended; None: all there are."""
        if touched is None:
            phase = "present"
            names = cluster.topic_names_of(np.fromiter(cluster.adding, np.int32))
            names |= cluster.topic_names_of(np.fromiter(cluster.removing, np.int32))
        else:
            phase = "started"
            names = set(touched)
        for name in sorted(names):
            before = self.moves.pop(name, {})
            now = _moves_of(cluster, name)
            if now:
                self.moves[name] = now
            for partition in sorted(before.keys() | now.keys()):
                if partition not in now:
                    yield _ended(cluster, name, partition, before[partition])
                elif now[partition] != before.get(partition):
                    move = now[partition]
                    yield ReassignmentChange(
                        name,
                        partition,
                        "replaced" if partition in before else phase,
                        tuple(move.replicas),
                        tuple(move.adding),
                        tuple(move.removing),
                    )

    def newly_leaderless(self, cluster: ClusterState) -> I32:
        """Partitions that have no leader now and had one after the previous event."""
        rows = cluster.take_restated()
        if len(self.states) < len(cluster.state):
            grown = np.full(len(cluster.state), PartitionState.NON_EXISTENT, np.int8)
            grown[: len(self.states)] = self.states
            self.states = grown
        now = cluster.state[rows]
        fresh = rows[_waits(now) & ~_waits(self.states[rows])]
        self.states[rows] = now
        return fresh[~cluster.is_queued(fresh)]


def _waits(state: I8) -> Mask:
    waits: Mask = (state == PartitionState.NEW) | (state == PartitionState.OFFLINE)
    return waits


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _name_subjects(event: Any, record: EventRecord) -> None:
    """Copy the broker and the topic that the event names into its record."""
    if isinstance(broker := getattr(event, "broker", None), int):
        record.brokers.append(broker)
    if isinstance(topic := getattr(event, "topic", None), str):
        record.topics.append(topic)


def _topics_of(cluster: ClusterState, rows: I32) -> tuple[list[str], I32]:
    """Names of the rows' topics, and for each row the position of its own among them."""
    index = cluster.topic_of[rows]
    # A table instead of a sort, since there are far more rows than topics.
    position = np.full(int(index.max(initial=0)) + 1, -1, np.int32)
    position[index] = 0
    present = np.flatnonzero(position == 0)
    position[present] = np.arange(len(present), dtype=np.int32)
    return [cluster.topic_at(topic).name for topic in present.tolist()], position[index]


def known_leadership(cluster: ClusterState, rows: I32) -> LeaderAndIsrs:
    """The cached states of rows; rows without one have no leader, no epoch and no ISR."""
    known = cluster.leadership(rows)
    blank = np.flatnonzero(~cluster.has_leadership[rows])
    known.leader[blank] = NO_BROKER
    known.leader_epoch[blank] = NO_EPOCH
    known.isr[blank] = NO_BROKER
    return known


def _decisions(cluster: ClusterState, states: LeaderAndIsrs, outcomes: I8, kind: str) -> Decisions:
    """The decisions of a write, with the state that the cluster holds before it."""
    row = states.row
    kinds: Sequence[str] = (kind,)
    code = np.zeros(len(row), np.int8)
    state = cluster.state[row]
    if kind in _ELECTIONS:
        state = np.where(outcomes == WriteOutcome.DONE, np.int8(PartitionState.ONLINE), state)
    if kind == CLEAN:
        kinds = (CLEAN, UNCLEAN)
        known = known_leadership(cluster, row)
        outsider = ~contains(known.isr, states.leader[:, None])[:, 0]
        outsider &= cluster.has_leadership[row]
        recovering = (states.recovery == RECOVERING) & (known.recovery != RECOVERING)
        code = (outsider | recovering).astype(np.int8)
    return decisions_of(cluster, states, outcomes, kinds, code, state)


def decisions_of(
    cluster: ClusterState,
    states: LeaderAndIsrs,
    outcomes: I8,
    kinds: Sequence[str],
    code: I8,
    state: I8,
) -> Decisions:
    """New states beside those that the cluster holds; `code` are positions in `kinds`."""
    row = states.row
    topics, topic = _topics_of(cluster, row)
    known = known_leadership(cluster, row)
    return Decisions(
        topics=topics,
        kinds=kinds,
        row=row,
        topic=topic,
        partition=cluster.partition[row],
        kind=code,
        outcome=outcomes,
        old_leader=known.leader,
        old_leader_epoch=known.leader_epoch,
        old_isr=known.isr,
        old_state=cluster.state[row],
        leader=states.leader,
        leader_epoch=states.leader_epoch,
        isr=states.isr,
        state=state,
        # Several times faster than an index, for rows of a few slots.
        replicas=cluster.replicas.take(row, axis=0),
    )


def _nobody_elected(cluster: ClusterState, rows: I32, earlier: Sequence[Decisions]) -> Decisions:
    """Partitions that the event leaves without a leader, compared with how it found them."""
    found, left = known_leadership(cluster, rows), known_leadership(cluster, rows)
    # From the last to the first, so that the first one's past is what stays.
    for decisions in reversed(earlier):
        at = np.flatnonzero(np.isin(decisions.row, rows))
        target = np.searchsorted(rows, decisions.row[at])
        found.leader[target] = decisions.old_leader[at]
        found.leader_epoch[target] = decisions.old_leader_epoch[at]
        found.isr[target] = widen(decisions.old_isr[at], found.isr.shape[1])
    topics, topic = _topics_of(cluster, rows)
    state = cluster.state[rows]
    was_online = np.int8(PartitionState.ONLINE)
    return Decisions(
        topics=topics,
        kinds=(NOBODY,),
        row=rows,
        topic=topic,
        partition=cluster.partition[rows],
        kind=np.zeros(len(rows), np.int8),
        outcome=np.full(len(rows), WriteOutcome.DONE, np.int8),
        old_leader=found.leader,
        old_leader_epoch=found.leader_epoch,
        old_isr=found.isr,
        old_state=np.where(cluster.has_leadership[rows], was_online, state),
        leader=np.full(len(rows), NO_BROKER, np.int32),
        leader_epoch=left.leader_epoch,
        isr=left.isr,
        state=state,
        replicas=cluster.replicas[rows],
    )


def topics_created(cluster: ClusterState, decisions: Decisions) -> Iterator[TopicChanged]:
    """Topics that have got their first, or more, partitions."""
    done = decisions.topic[decisions.outcome == WriteOutcome.DONE]
    counts = np.bincount(done, minlength=len(decisions.topics)).tolist()
    for name, count in zip(decisions.topics, counts, strict=True):
        if count:
            is_whole = count == len(cluster.topics[name].rows)
            yield TopicChanged(name, "created" if is_whole else "expanded", count)


def _moves_of(cluster: ClusterState, name: str) -> dict[int, Assignment]:
    topic = cluster.topics.get(name)
    if topic is None:
        return {}
    return {
        number: cluster.assignment(row)
        for number, row in zip(topic.numbers.tolist(), topic.rows.tolist(), strict=True)
        if row in cluster.adding or row in cluster.removing
    }


def _ended(
    cluster: ClusterState, name: str, partition: int, move: Assignment
) -> ReassignmentChange:
    """The end of a reassignment: whether it reached its target shows in the replicas."""
    row = cluster.row(name, partition)
    if row is None:
        phase, replicas = "dropped", tuple(move.replicas)
    else:
        replicas = tuple(cluster.assignment(row).replicas)
        reached = set(replicas) == set(move.replicas) - set(move.removing)
        phase = "completed" if reached else "cancelled"
    return ReassignmentChange(
        name, partition, phase, replicas, tuple(move.adding), tuple(move.removing)
    )
