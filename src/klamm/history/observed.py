"""The history of a cluster whose controller keeps none, told from the states that it left.

A controller leaves its decisions in ZooKeeper, or in the metadata log of KRaft: leaders, ISRs,
assignments. `ObservedCluster` compares each look with the one before, infers what must have been
decided, and makes the event records that a controller of klamm would have written. It knows neither
ZooKeeper nor logs nor clocks.

An observer sees states, not events: changes of a partition between two looks are one change, and
how long the controller took for a decision is unknown.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

import numpy as np

from klamm.core.cluster import ClusterState, LeaderAndIsrs, RegisteredBroker, TopicRead
from klamm.core.columns import I8, I32, NO_BROKER, Mask, any_slot, contains, is_one_of, widen
from klamm.core.effects import WriteOutcome
from klamm.core.elections import RECOVERING
from klamm.core.reassignment import Assignment
from klamm.core.transitions import PartitionState
from klamm.history.recorder import Term, decisions_of, known_leadership, topics_created
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
    Decisions,
    EventRecord,
    LostBroker,
    TopicChanged,
)

#: The kinds of decisions that can be inferred; `infer_kinds` gives positions in this list.
KINDS: Final = (
    CREATED,
    NOBODY,
    UNCLEAN,
    REASSIGNMENT,
    CONTROLLED_SHUTDOWN,
    PREFERRED,
    CLEAN,
    REPLICA_OFFLINE,
    ISR_CHANGED,
    EPOCH_RAISED,
)
#: By the kind of an event, the decisions that are recorded in it and, where no broker's loss
#: explains them, the cause.
_EVENTS: Final = {
    "TopicChange": ((CREATED,), "partitions got their first leader"),
    "BrokerChange": ((NOBODY, UNCLEAN, CLEAN, REPLICA_OFFLINE), "leaders were elected"),
    "ControlledShutdown": ((CONTROLLED_SHUTDOWN,), "a broker is about to stop"),
    "PreferredElection": ((PREFERRED,), "leaders went back to their preferred replicas"),
    "ReassignmentProgress": ((REASSIGNMENT, EPOCH_RAISED), "a reassignment went on"),
    "AlterPartition": ((ISR_CHANGED,), "leaders changed ISRs"),
}
#: The same as positions: for each kind of decision, the event that it is recorded in.
_EVENT_OF: Final = np.array(
    [next(at for at, (of, _) in enumerate(_EVENTS.values()) if kind in of) for kind in KINDS]
)
_DONE: Final = np.int8(WriteOutcome.DONE)


@dataclass(frozen=True, slots=True)
class ObservedStore:
    """Where a controller leaves its decisions, in the words of records and as far as it tells."""

    #: Causes of the events that the store itself shows.
    began: str
    controller_left: str
    controller_came: str
    brokers: str
    deletions: str
    assignments: str
    #: What became of a broker that is lost.
    lost: str
    #: Whether the end of a controller's term is seen, rather than only the beginning of the next.
    tells_end_of_term: bool = True
    #: Whether every unclean election shows in the recovery state of the partition.
    tells_unclean: bool = False


ZOOKEEPER: Final = ObservedStore(
    began="the observer began to watch",
    controller_left="its znode /controller is gone",
    controller_came="watch on /controller",
    brokers="watch on /brokers/ids",
    deletions="watch on /admin/delete_topics",
    assignments="watch on /brokers/topics",
    lost="had disappeared",
)


def isr_differs(known: LeaderAndIsrs, seen: LeaderAndIsrs) -> Mask:
    """Which partitions have another ISR, or the same in another order."""
    width = max(known.isr.shape[1], seen.isr.shape[1])
    return any_slot(widen(known.isr, width) != widen(seen.isr, width))


def infer_kinds(
    known: LeaderAndIsrs,
    seen: LeaderAndIsrs,
    *,
    is_new: Mask,
    is_moving: Mask,
    replicas: I32,
    live: Sequence[int],
    shutting_down: Sequence[int] = (),
    tells_unclean: bool = False,
) -> I8:
    """What must have been decided about each partition, as positions in `KINDS`.

    Rows are partitions; the first of these that holds says which it is. A leader from outside the
    known ISR is an unclean one, unless the recovery state `tells_unclean` elections and has none. A
    leader that is alive and lost its place in the ISR together with the lead is on its way out, by
    a controlled shutdown; one that stays in the ISR made room for the first replica. A member that
    left the ISR and is not alive, or is `shutting_down`, went offline; any other change of an ISR
    was its leader's wish.
    """
    has_moved = known.leader != seen.leader
    left = (known.isr != NO_BROKER) & ~contains(seen.isr, known.isr)
    has_other_isr = isr_differs(known, seen)
    was_in_sync = contains(known.isr, seen.leader[:, None])[:, 0]
    is_alive = is_one_of(known.leader, live)
    staying = sorted(set(live) - set(shutting_down))
    is_unclean = ~was_in_sync & (np.bool_(not tells_unclean) | (seen.recovery == RECOVERING))
    stays_in_sync = contains(seen.isr, known.leader[:, None])[:, 0]
    conditions = {
        CREATED: is_new,
        NOBODY: has_moved & (seen.leader == NO_BROKER),
        UNCLEAN: has_moved & is_unclean,
        REASSIGNMENT: has_moved & is_moving,
        CONTROLLED_SHUTDOWN: has_moved & is_alive & ~stays_in_sync,
        PREFERRED: has_moved & is_alive & (replicas[:, 0] == seen.leader),
        CLEAN: has_moved,
        REPLICA_OFFLINE: has_other_isr & any_slot(left & ~is_one_of(known.isr, staying)),
        ISR_CHANGED: has_other_isr,
    }
    codes = [np.int8(KINDS.index(kind)) for kind in conditions]
    otherwise = np.int8(KINDS.index(EPOCH_RAISED))
    kinds: I8 = np.select(list(conditions.values()), codes, otherwise)
    return kinds


@dataclass(frozen=True, slots=True)
class ControllerSeen:
    """Who is controller, None: nobody; and the epoch of the latest controller."""

    id: int | None
    epoch: int


@dataclass(frozen=True, slots=True)
class _Loss:
    """When a broker's registration was found gone, and the event that noted it."""

    at: int
    epoch: int
    seq: int


class ObservedCluster:
    """The cluster as it was last seen, and the record of how it came to be so.

    A look at the cluster is `begin`, then what was read, then `end` with the records. The first
    look gives one record, the beginning of a term, with what is there. `resumed_at` is the last
    event that an earlier observer recorded; one number is left out after it, so that readers see
    that events may be missing.
    """

    def __init__(
        self,
        cluster_id: str | None = None,
        resumed_at: tuple[int, int] | None = None,
        store: ObservedStore = ZOOKEEPER,
    ) -> None:
        self.state = ClusterState()
        self._store = store
        self._cluster_id = cluster_id
        self._resumed_at = resumed_at
        self._term = Term()
        self._at = 0
        self._place = ""
        self._is_first = True
        self._records: list[EventRecord] = []
        #: Topics whose reassignments may have changed, and milestones of topics, in this look.
        self._touched: set[str] = set()
        self._topic_changes: list[TopicChanged] = []
        #: Rows that were being reassigned when this look began, and are not any more.
        self._arrived: set[int] = set()
        #: Brokers that are gone, until they are back.
        self._losses: dict[int, _Loss] = {}

    @property
    def last_event(self) -> tuple[int, int]:
        """The epoch and the sequence of the last event."""
        return self._term.epoch, self._term.seq

    def continue_from(self, seq: int) -> None:
        """Number the events of this term on from `seq`, which is what the last one had before.

        Events that are inferred once more after a restart count from another beginning.
        """
        shift = seq - self._term.seq
        self._term.seq = seq
        self._losses = {
            broker: _Loss(loss.at, loss.epoch, loss.seq + shift * (loss.epoch == self._term.epoch))
            for broker, loss in self._losses.items()
        }

    def leave_gap(self) -> None:
        """Leave a number out, so that readers see that events may be missing."""
        self._term.seq += 1

    def begin(self, at: int, place: str = "") -> None:
        """Begin a look at the cluster, at this moment in microseconds.

        `place` is appended to the causes of its events.
        """
        self._at, self._place = at, place
        self._records, self._touched, self._topic_changes = [], set(), []
        self._arrived = set()

    def see_controller(self, seen: ControllerSeen) -> None:
        """Record the end of a term, the beginning of another, or both."""
        state = self.state
        if self._is_first:
            state.controller_epoch = seen.epoch
            state.controller_id = NO_BROKER if seen.id is None else seen.id
            self._begin_term(self._store.began)
            return
        has_left = state.controller_id not in (NO_BROKER, seen.id) or seen.epoch > self._term.epoch
        if has_left and state.controller_id != NO_BROKER:
            if self._store.tells_end_of_term:
                self._record("ControllerChange", self._store.controller_left, term="ended")
            state.controller_id = NO_BROKER
        if seen.epoch > self._term.epoch:
            state.controller_epoch = seen.epoch
            state.controller_id = NO_BROKER if seen.id is None else seen.id
            self._begin_term(self._store.controller_came)

    def _begin_term(self, cause: str) -> None:
        self._term = Term(self.state.controller_epoch)
        if self._resumed_at is not None and self._resumed_at[0] == self._term.epoch:
            self._term.seq = self._resumed_at[1] + 1
        record = self._record("ControllerChange", cause, term="began")
        record.broker_changes += self._term.brokers_changed(self.state, term_began=True)
        record.moves += self._term.reassignments_changed(self.state, None)
        record.topic_changes += self._term.deletions_changed(self.state)

    def see_brokers(self, registered: Mapping[int, RegisteredBroker]) -> None:
        """Record brokers that came, went, or came back with another registration."""
        self.state.brokers = dict(registered)
        was_leaving = set(self._term.shutting_down)
        changes = list(self._term.brokers_changed(self.state, term_began=self._is_first))
        if not changes:
            return
        if self._is_first:
            self._records[-1].broker_changes += changes
            return
        record = self._record("BrokerChange", self._store.brokers)
        record.broker_changes += changes
        for change in changes:
            if change.broker in was_leaving:
                continue
            if change.change in ("failed", "bounced"):
                record.lost.append(LostBroker(change.broker, self._at))
            if change.change == "failed":
                self._losses[change.broker] = _Loss(self._at, record.controller_epoch, record.seq)
            else:
                self._losses.pop(change.broker, None)

    def see_deletions(self, requested: Set[str]) -> None:
        """Topics that are to be deleted."""
        self.state.queued_for_deletion &= requested
        self.state.queue_for_deletion(requested)
        self._topic_changes += self._term.deletions_changed(self.state)

    def see_topics(self, reads: Mapping[str, TopicRead | None]) -> None:
        """Topics that were read; None stands for one whose znode is gone."""
        state = self.state
        new: dict[str, TopicRead] = {}
        for name, read in reads.items():
            known = state.topics.get(name)
            if known is not None and (read is None or read.topic_id != known.id):
                change = "deleted" if name in state.queued_for_deletion else "vanished"
                self._topic_changes.append(TopicChanged(name, change, 0))
                self._touched.add(name)
                state.remove_topic(name)
                known = None
            if read is None or not read.replicas:
                continue
            if known is None:
                state.add_topic(name, read.topic_id)
                new[name] = read
            else:
                added = read.only(read.replicas.keys() - set(known.numbers.tolist()))
                if added.replicas:
                    new[name] = added
                self._reassign(name, read)
        if new:
            rows = state.add_partitions(new)
            state.state[rows] = PartitionState.NEW
            self._touched.update(name for name, read in new.items() if read.adding or read.removing)

    def _reassign(self, name: str, read: TopicRead) -> None:
        changed = {}
        for number, replicas in read.replicas.items():
            row = self.state.row(name, number)
            if row is None:
                continue
            now = Assignment(
                tuple(replicas),
                tuple(read.adding.get(number, ())),
                tuple(read.removing.get(number, ())),
            )
            if now != self.state.assignment(row):
                changed[row] = now
                if row in self.state.adding or row in self.state.removing:
                    self._arrived.add(row)
        if changed:
            self.state.set_assignments(changed)
            self._touched.add(name)

    def see_states(self, seen: LeaderAndIsrs) -> None:
        """Leaders and ISRs that were read, of partitions that are known."""
        self._note_topics()
        state = self.state
        known = known_leadership(state, seen.row)
        is_new = ~state.has_leadership[seen.row]
        if self._is_first:
            chosen = seen.at(seen.leader == NO_BROKER)
            kinds = np.full(len(chosen), KINDS.index(NOBODY), np.int8)
        else:
            is_same = (
                ~is_new
                & (known.leader == seen.leader)
                & (known.leader_epoch == seen.leader_epoch)
                & ~isr_differs(known, seen)
            )
            chosen = seen.at(~is_same)
            kinds = infer_kinds(
                known.at(~is_same),
                chosen,
                is_new=is_new[~is_same],
                is_moving=np.isin(chosen.row, [*state.adding, *state.removing, *self._arrived]),
                replicas=state.replicas[chosen.row],
                live=sorted(state.brokers),
                shutting_down=sorted(state.shutting_down),
                tells_unclean=self._store.tells_unclean,
            )
        # A topic loses its leaders while it is deleted; nobody looks for others.
        is_deleted = (kinds == KINDS.index(NOBODY)) & state.is_queued(chosen.row)
        found = list(self._decided(chosen.at(~is_deleted), kinds[~is_deleted]))
        state.record_leadership(seen)
        state.state[seen.row] = np.where(
            seen.leader == NO_BROKER, PartitionState.OFFLINE, PartitionState.ONLINE
        )
        self._record_decisions(found)

    def end(self) -> list[EventRecord]:
        """The records of this look, in order."""
        self._note_topics()
        self._is_first = False
        records, self._records = self._records, []
        return records

    # Records

    def _record(self, kind: str, cause: str, term: str | None = None) -> EventRecord:
        record = EventRecord(
            at=self._at,
            controller=self.state.controller_id,
            controller_epoch=self._term.epoch,
            seq=self._term.next_seq(),
            kind=kind,
            cause=cause + self._place,
            caused_by=None,
            term=term,
            outcome="done",
            cluster_id=self._cluster_id,
        )
        self._records.append(record)
        return record

    def _note_topics(self) -> None:
        """Record what became of topics and reassignments since the last record of this look."""
        touched = None if self._is_first else self._touched
        moves = list(self._term.reassignments_changed(self.state, touched))
        changes, self._touched, self._topic_changes = self._topic_changes, set(), []
        if not (moves or changes):
            return
        if self._is_first:
            record = self._records[-1]
        elif changes:
            record = self._record("TopicDeletion", self._store.deletions)
        else:
            record = self._record("PartitionModifications", self._store.assignments)
        record.moves += moves
        record.topic_changes += changes

    def _decided(self, seen: LeaderAndIsrs, kinds: I8) -> Iterator[tuple[str, Decisions]]:
        """Decisions by the kind of their event, compared with what is known until now."""
        event_of = _EVENT_OF[kinds]
        for at, event in enumerate(_EVENTS):
            chosen = event_of == at
            if chosen.any():
                states = seen.at(chosen)
                online = np.where(
                    states.leader == NO_BROKER, PartitionState.OFFLINE, PartitionState.ONLINE
                )
                done = np.full(len(states), _DONE, np.int8)
                yield (
                    event,
                    decisions_of(
                        self.state, states, done, KINDS, kinds[chosen], online.astype(np.int8)
                    ),
                )

    def _record_decisions(self, found: Sequence[tuple[str, Decisions]]) -> None:
        for kind, decisions in found:
            if self._is_first:
                self._records[-1].decisions.append(decisions)
                continue
            record = self._record(kind, _EVENTS[kind][1])
            record.decisions.append(decisions)
            if kind == "TopicChange":
                record.topic_changes += topics_created(self.state, decisions)
            elif kind == "BrokerChange":
                self._explain_by_losses(record, decisions)
            else:
                asked = decisions.old_leader if kind == "ControlledShutdown" else decisions.leader
                if kind in ("ControlledShutdown", "AlterPartition") and len(np.unique(asked)) == 1:
                    record.brokers.append(int(asked[0]))

    def _explain_by_losses(self, record: EventRecord, decisions: Decisions) -> None:
        """Name the lost brokers that the decisions are about, and the event that noted the last."""
        ids = np.unique(np.concatenate([decisions.old_leader, decisions.old_isr.ravel()])).tolist()
        lost = {broker: self._losses[broker] for broker in ids if broker in self._losses}
        if lost:
            named = ", ".join(f"broker {broker}" for broker in lost)
            record.cause = f"{named} {self._store.lost}{self._place}"
            record.brokers += lost
            record.caused_by = max(
                (loss.seq for loss in lost.values() if loss.epoch == record.controller_epoch),
                default=None,
            )
            record.lost += (LostBroker(broker, loss.at) for broker, loss in lost.items())
        elif leaving := self.state.shutting_down.intersection(ids):
            named = ", ".join(f"broker {broker}" for broker in sorted(leaving))
            record.cause = f"{named} asked to shut down{self._place}"
            record.brokers += sorted(leaving)
