"""What the controller knows: brokers, topics, and partitions and replicas as columns.

There is one writer, the event loop, and so the columns are changed in place: an event that touches
ten partitions of a million must not copy a million rows. Whoever decides reads; the procedures in
`klamm.core.procedures` record what ZooKeeper has accepted, through the methods below.

A *row* is a partition. Rows are handed out once and reused after a topic is gone; `topic_of[row]`
is NO_TOPIC for a free one. A *slot* is a position in a row's replica list.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from klamm.core.columns import I8, I32, NO_BROKER, Mask, is_one_of, padded, unpad, widen
from klamm.core.elections import RECOVERED
from klamm.core.reassignment import Assignment
from klamm.core.transitions import PartitionState, ReplicaState

NO_TOPIC: Final = -1
NO_EPOCH: Final = -1
#: Leader and leader epoch of a partition whose topic is being deleted, as brokers are told.
LEADER_DURING_DELETE: Final = -2
EPOCH_DURING_DELETE: Final = -2

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a broker listens, under which name, with which security protocol (0 is PLAINTEXT)."""

    listener: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True)
class Broker:
    """A registration in ZooKeeper; `epoch` is the czxid of its znode."""

    id: int
    epoch: int
    endpoints: tuple[Endpoint, ...] = ()
    rack: str | None = None
    features: tuple[tuple[str, int, int], ...] = ()
    #: A node that only competes for the controller's role: placement skips it.
    controller_only: bool = False


@dataclass(slots=True, eq=False)
class Topic:
    """A topic's name, id and partitions: `rows[k]` holds partition `numbers[k]`."""

    index: int
    name: str
    id: str | None
    rows: I32 = field(default_factory=lambda: np.empty(0, np.int32))
    numbers: I32 = field(default_factory=lambda: np.empty(0, np.int32))

    def row_of(self, partition: int) -> int | None:
        """The row of a partition, if the topic has it."""
        at = int(np.searchsorted(self.numbers, partition))
        if at < len(self.numbers) and self.numbers[at] == partition:
            return int(self.rows[at])
        return None


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """Leadership of many partitions, as read from their `state` znodes or as decided."""

    row: I32
    leader: I32
    leader_epoch: I32
    isr: I32
    recovery: I8
    controller_epoch: I32
    #: Data version of the znode: of what was read, or, in a write, what it must still be.
    version: I32

    def __len__(self) -> int:
        return len(self.row)

    def at(self, chosen: Mask | I32) -> "States":
        """The given rows only, chosen by mask or by position."""
        return States(
            self.row[chosen],
            self.leader[chosen],
            self.leader_epoch[chosen],
            self.isr[chosen],
            self.recovery[chosen],
            self.controller_epoch[chosen],
            self.version[chosen],
        )


class Cluster:
    """Everything the controller has in memory; empty unless it is in office (RESIGN-2)."""

    def __init__(self, width: int = 3, capacity: int = 64) -> None:
        self.controller_id = NO_BROKER
        self.controller_epoch = 0
        #: Live and shutting-down brokers, by id.
        self.brokers: dict[int, Broker] = {}
        self.shutting_down: set[int] = set()
        #: For each broker the rows it last called KAFKA_STORAGE_ERROR.
        self.offline_dirs: dict[int, set[int]] = {}

        self.topics: dict[str, Topic] = {}
        self.topic_names: dict[str, str] = {}  # by topic id
        self._topic_at: list[Topic | None] = []
        self._free_topics: list[int] = []

        #: Topics accepted for deletion, those among them that are paused, those whose work began.
        self.queued_for_deletion: set[str] = set()
        self.ineligible_for_deletion: set[str] = set()
        self.deletion_started: set[str] = set()

        #: Rows being reassigned; lists of adding and removing replicas exist for these only.
        self.being_reassigned: set[int] = set()
        self.adding: dict[int, tuple[int, ...]] = {}
        self.removing: dict[int, tuple[int, ...]] = {}

        self._used = 0
        self._free_rows: list[int] = []
        self.width = width
        self.topic_of: I32 = np.full(capacity, NO_TOPIC, np.int32)
        self.partition: I32 = np.zeros(capacity, np.int32)
        self.state: I8 = np.full(capacity, PartitionState.NON_EXISTENT, np.int8)
        self.has_leadership: Mask = np.zeros(capacity, np.bool_)
        self.leader: I32 = np.full(capacity, NO_BROKER, np.int32)
        self.leader_epoch: I32 = np.zeros(capacity, np.int32)
        self.partition_epoch: I32 = np.zeros(capacity, np.int32)
        self.decided_in: I32 = np.zeros(capacity, np.int32)
        self.recovery: I8 = np.zeros(capacity, np.int8)
        self.replicas: I32 = np.full((capacity, width), NO_BROKER, np.int32)
        self.isr: I32 = np.full((capacity, width), NO_BROKER, np.int32)
        self.replica_state: I8 = np.full((capacity, width), ReplicaState.NON_EXISTENT, np.int8)

    # Brokers

    @property
    def live(self) -> set[int]:
        """Brokers that are registered and not on their way out."""
        return self.brokers.keys() - self.shutting_down

    @property
    def live_or_shutting_down(self) -> list[int]:
        """The audience of most requests, in ascending order."""
        return sorted(self.brokers)

    def online(self, rows: I32, *, count_shutting_down: bool = False) -> Mask:
        """For each slot of the rows' replicas: is the broker live and its log directory well?"""
        brokers = self.brokers.keys() if count_shutting_down else self.live
        replicas = self.replicas[rows]
        return is_one_of(replicas, list(brokers)) & ~self._on_offline_dir(rows, replicas)

    def leader_is_online(self, rows: I32) -> Mask:
        """Is the cached leader of each row an online replica?"""
        leader = self.leader[rows][:, None]
        return (is_one_of(leader, list(self.live)) & ~self._on_offline_dir(rows, leader))[:, 0]

    def is_online(self, row: int, broker: int) -> bool:
        """The same question about one replica."""
        return (
            broker in self.brokers
            and broker not in self.shutting_down
            and row not in self.offline_dirs.get(broker, ())
        )

    def _on_offline_dir(self, rows: I32, brokers: I32) -> Mask:
        offline = np.zeros(brokers.shape, np.bool_)
        for broker, lost in self.offline_dirs.items():
            if lost:
                hit = np.isin(rows, np.fromiter(lost, np.int32, len(lost)))
                offline |= hit[:, None] & (brokers == broker)
        return offline

    # Topics and rows

    def add_topic(self, name: str, topic_id: str | None) -> Topic:
        """Make a topic known, without partitions."""
        if name in self.topics:
            raise ValueError(f"topic {name} is known already")
        if topic_id is not None and self.topic_names.get(topic_id, name) != name:
            raise ValueError(
                f"topic id {topic_id} of {name} belongs to {self.topic_names[topic_id]} already"
            )
        if self._free_topics:
            index = self._free_topics.pop()
        else:
            index = len(self._topic_at)
            self._topic_at.append(None)
        topic = Topic(index, name, topic_id)
        self._topic_at[index] = self.topics[name] = topic
        if topic_id is not None:
            self.topic_names[topic_id] = name
        return topic

    def set_topic_id(self, name: str, topic_id: str) -> None:
        """Record the id that a topic without one was given."""
        topic = self.topics[name]
        if topic.id is not None:
            del self.topic_names[topic.id]
        topic.id = topic_id
        self.topic_names[topic_id] = name

    def add_partitions(self, name: str, assignments: Mapping[int, Assignment]) -> I32:
        """Give rows to partitions of a known topic; their order is that of the partition ids."""
        topic = self.topics[name]
        numbers = sorted(assignments)
        rows = self._take_rows(len(numbers))
        if not numbers:
            return rows
        replicas = padded([assignments[n].replicas for n in numbers])
        self._ensure_width(replicas.shape[1])
        self.topic_of[rows] = topic.index
        self.partition[rows] = numbers
        self.state[rows] = PartitionState.NON_EXISTENT
        self.has_leadership[rows] = False
        self.leader[rows] = NO_BROKER
        self.isr[rows] = NO_BROKER
        self.replicas[rows] = widen(replicas, self.width)
        self.replica_state[rows] = ReplicaState.NON_EXISTENT
        for row, number in zip(rows.tolist(), numbers, strict=True):
            if assignments[number].is_being_reassigned:
                self.adding[row] = tuple(assignments[number].adding)
                self.removing[row] = tuple(assignments[number].removing)
        all_rows = np.concatenate([topic.rows, rows])
        all_numbers = np.concatenate([topic.numbers, np.array(numbers, np.int32)])
        order = np.argsort(all_numbers)
        topic.rows, topic.numbers = all_rows[order], all_numbers[order]
        return rows

    def remove_topic(self, name: str) -> None:
        """Forget a topic and everything about its partitions."""
        topic = self.topics.pop(name)
        if topic.id is not None:
            self.topic_names.pop(topic.id, None)
        rows = topic.rows
        self.topic_of[rows] = NO_TOPIC
        self.state[rows] = PartitionState.NON_EXISTENT
        self.has_leadership[rows] = False
        self.replicas[rows] = NO_BROKER
        self.isr[rows] = NO_BROKER
        self.leader[rows] = NO_BROKER
        self.replica_state[rows] = ReplicaState.NON_EXISTENT
        gone = rows.tolist()
        for row in gone:
            self.adding.pop(row, None)
            self.removing.pop(row, None)
        self.being_reassigned.difference_update(gone)
        for lost in self.offline_dirs.values():
            lost.difference_update(gone)
        self._free_rows.extend(gone)
        self._topic_at[topic.index] = None
        self._free_topics.append(topic.index)
        self.queued_for_deletion.discard(name)
        self.ineligible_for_deletion.discard(name)
        self.deletion_started.discard(name)

    def all_rows(self) -> I32:
        """Every partition."""
        return np.flatnonzero(self.topic_of[: self._used] != NO_TOPIC).astype(np.int32)

    def rows_of(self, names: Iterable[str]) -> I32:
        """All partitions of the given topics; unknown names are passed over."""
        parts = [self.topics[n].rows for n in names if n in self.topics]
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def row(self, topic: str, partition: int) -> int | None:
        """Where a partition is, if it is known."""
        known = self.topics.get(topic)
        return None if known is None else known.row_of(partition)

    def topic(self, row: int) -> Topic:
        """The topic of a row in use."""
        return self.topic_at(int(self.topic_of[row]))

    def topic_at(self, index: int) -> Topic:
        """The topic with the given index (a value of the `topic_of` column)."""
        found = self._topic_at[index]
        assert found is not None, f"topic index {index} is free"
        return found

    def name(self, row: int) -> TopicPartition:
        """Topic and partition number of a row, for answers and messages."""
        return self.topic(row).name, int(self.partition[row])

    def is_queued(self, rows: I32) -> Mask:
        """Which rows belong to topics queued for deletion?"""
        return self._of_topics(rows, self.queued_for_deletion)

    def is_deletion_started(self, rows: I32) -> Mask:
        """Which rows belong to topics whose deletion has started?"""
        return self._of_topics(rows, self.deletion_started)

    def _of_topics(self, rows: I32, names: set[str]) -> Mask:
        index = [self.topics[n].index for n in names if n in self.topics]
        if not index:
            return np.zeros(len(rows), np.bool_)
        return np.isin(self.topic_of[rows], np.array(index, np.int32))

    # Assignments

    def assignment(self, row: int) -> Assignment:
        """Replicas, adding and removing replicas of a partition."""
        return Assignment(
            tuple(unpad(self.replicas[row])), self.adding.get(row, ()), self.removing.get(row, ())
        )

    def assignments(self, name: str) -> dict[int, Assignment]:
        """The same for each partition of a topic, by partition number."""
        topic = self.topics[name]
        pairs = zip(topic.numbers.tolist(), topic.rows.tolist(), strict=True)
        return {number: self.assignment(row) for number, row in pairs}

    def set_assignment(self, row: int, assignment: Assignment) -> None:
        """Replace a replica list; a replica that stays keeps its state, a new one has none yet."""
        before = dict(
            zip(self.replicas[row].tolist(), self.replica_state[row].tolist(), strict=True)
        )
        replicas = list(assignment.replicas)
        self._ensure_width(len(replicas))
        self.replicas[row] = NO_BROKER
        self.replica_state[row] = ReplicaState.NON_EXISTENT
        self.replicas[row, : len(replicas)] = replicas
        self.replica_state[row, : len(replicas)] = [
            before.get(broker, ReplicaState.NON_EXISTENT) for broker in replicas
        ]
        if assignment.is_being_reassigned:
            self.adding[row] = tuple(assignment.adding)
            self.removing[row] = tuple(assignment.removing)
        else:
            self.adding.pop(row, None)
            self.removing.pop(row, None)

    def hosted_by(self, brokers: Iterable[int], rows: I32 | None = None) -> tuple[I32, I32]:
        """Replicas (row, broker) that the brokers are assigned, among the rows or among all."""
        rows = self.all_rows() if rows is None else rows
        at, slot = np.nonzero(is_one_of(self.replicas[rows], list(brokers)))
        found = rows[at]
        return found.astype(np.int32), self.replicas[found, slot]

    def replicas_of(self, rows: I32) -> tuple[I32, I32]:
        """All assigned replicas (row, broker) of the rows."""
        at, slot = np.nonzero(self.replicas[rows] != NO_BROKER)
        found = rows[at]
        return found.astype(np.int32), self.replicas[found, slot]

    def states_of(self, row: I32, broker: I32) -> I8:
        """State of each replica (row, broker); NON_EXISTENT where the broker is not assigned."""
        match = self.replicas[row] == broker[:, None]
        found = np.where(match, self.replica_state[row], 0).max(axis=1, initial=0)
        return np.where(match.any(axis=1), found, ReplicaState.NON_EXISTENT).astype(np.int8)

    def set_replica_state(self, row: I32, broker: I32, state: ReplicaState) -> None:
        """Record the new state of replicas (row, broker)."""
        at, slot = np.nonzero(self.replicas[row] == broker[:, None])
        self.replica_state[row[at], slot] = state

    # Leadership

    def leadership(self, rows: I32) -> States:
        """What is cached about the rows; only rows that have leadership make sense."""
        return States(
            rows,
            self.leader[rows],
            self.leader_epoch[rows],
            self.isr[rows],
            self.recovery[rows],
            self.decided_in[rows],
            self.partition_epoch[rows],
        )

    def record_leadership(self, states: States) -> None:
        """Cache what ZooKeeper holds, be it read or just written."""
        row = states.row
        self._ensure_width(states.isr.shape[1])
        self.leader[row] = states.leader
        self.leader_epoch[row] = states.leader_epoch
        self.isr[row] = widen(states.isr, self.width)
        self.recovery[row] = states.recovery
        self.decided_in[row] = states.controller_epoch
        self.partition_epoch[row] = states.version
        self.has_leadership[row] = True

    # Storage of the columns

    def _take_rows(self, count: int) -> I32:
        """Rows for new partitions, in one ascending run unless freed rows must be reused."""
        reuse = min(count, len(self._free_rows))
        taken = sorted(self._free_rows[len(self._free_rows) - reuse :])
        del self._free_rows[len(self._free_rows) - reuse :]
        fresh = count - reuse
        if self._used + fresh > len(self.topic_of):
            self._grow(max(self._used + fresh, len(self.topic_of) * 3 // 2))
        taken.extend(range(self._used, self._used + fresh))
        self._used += fresh
        return np.array(taken, np.int32)

    def _grow(self, capacity: int) -> None:
        more = capacity - len(self.topic_of)
        for name, empty in _EMPTY.items():
            column = getattr(self, name)
            shape = (more, *column.shape[1:])
            setattr(self, name, np.concatenate([column, np.full(shape, empty, column.dtype)]))

    def _ensure_width(self, width: int) -> None:
        if width > self.width:
            self.width = width
            self.replicas = widen(self.replicas, width)
            self.isr = widen(self.isr, width)
            states = np.full((len(self.replicas), width), ReplicaState.NON_EXISTENT, np.int8)
            states[:, : self.replica_state.shape[1]] = self.replica_state
            self.replica_state = states

    def reserve(self, partitions: int, width: int) -> None:
        """Make room at once for that many partitions, before a whole cluster is loaded."""
        self._ensure_width(width)
        if partitions > len(self.topic_of):
            self._grow(partitions)

    def topics_by_row(self, rows: I32) -> Iterator[tuple[Topic, I32]]:
        """The rows grouped by topic, each group in the order of partition numbers."""
        order = rows[np.lexsort((self.partition[rows], self.topic_of[rows]))]
        index = self.topic_of[order]
        for chunk in np.split(order, np.flatnonzero(np.diff(index)) + 1):
            if len(chunk):
                yield self.topic(int(chunk[0])), chunk


_EMPTY: Final = {
    "topic_of": NO_TOPIC,
    "partition": 0,
    "state": PartitionState.NON_EXISTENT,
    "has_leadership": False,
    "leader": NO_BROKER,
    "leader_epoch": 0,
    "partition_epoch": 0,
    "decided_in": 0,
    "recovery": RECOVERED,
    "replicas": NO_BROKER,
    "isr": NO_BROKER,
    "replica_state": ReplicaState.NON_EXISTENT,
}
