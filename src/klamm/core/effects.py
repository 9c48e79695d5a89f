"""Effects: what a procedure asks for, as data.

A procedure (see `klamm.core.procedures`) is a generator: it yields an effect, the interpreter
performs it and sends the reply back in. So a decision can be printed, compared, replayed,
interrupted between any two steps, or run against a simulated world.

Every write among them is fenced by the version of `/controller_epoch` (FENCE-3). If the fence
does not hold, the interpreter throws `FencedError` into the procedure, which lets it pass.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum, auto
from typing import Any, TypeVar

import numpy as np

from klamm.core.cluster import LeaderAndIsrs, RegisteredBroker
from klamm.core.cluster import TopicRead as TopicRead
from klamm.core.columns import I8, I32, Mask
from klamm.core.reassignment import Assignment
from klamm.names import TopicPartition

T = TypeVar("T")
#: A procedure that yields effects and returns a T.
Procedure = Generator["Effect", Any, T]


class WriteOutcome(IntEnum):
    """The outcome of one row of a write."""

    DONE = 0
    BAD_VERSION = 1
    NO_NODE = 2
    EXISTS = 3
    FAILED = 4


class Effect:
    """Base of everything that a procedure can yield; each docstring describes the reply."""

    __slots__ = ()


class ReadEffect(Effect):
    """An effect that reads from ZooKeeper or sets a watch there."""

    __slots__ = ()


class WriteEffect(Effect):
    """An effect that changes ZooKeeper."""

    __slots__ = ()


class DecisionReason(Enum):
    """Why partition states are written; the history derives the kind of decision from it."""

    OFFLINE_ELECTION = auto()
    UNCLEAN_ELECTION = auto()
    PREFERRED_ELECTION = auto()
    REASSIGN_ELECTION = auto()
    CONTROLLED_SHUTDOWN_ELECTION = auto()
    REPLICA_OFFLINE = auto()
    ISR_CHANGE = auto()
    #: A reassignment gives the partition a new leader epoch and changes nothing else.
    REASSIGNMENT = auto()


# Partition states


@dataclass(frozen=True, slots=True, eq=False)
class ReadStates(ReadEffect):
    """Read `state` znodes. Reply: `StatesRead`, aligned with `rows`."""

    rows: I32


@dataclass(frozen=True, slots=True, eq=False)
class ReadStatesAhead(ReadEffect):
    """Begin to read `state` znodes, while the procedure goes on. Reply: None.

    The next `ReadStates` names the rows of all these effects, in their order, and gets the result.
    """

    rows: I32


@dataclass(frozen=True, slots=True, eq=False)
class StatesRead:
    """`found` is false where the znode is missing or cannot be read as a state."""

    found: Mask
    states: LeaderAndIsrs


@dataclass(frozen=True, slots=True, eq=False)
class WriteStates(WriteEffect):
    """Set `state` znodes, each on condition of `states.version`.

    Reply: `WriteOutcome` codes (int8), aligned. A row that is DONE has version + 1 now.
    """

    states: LeaderAndIsrs
    reason: DecisionReason


@dataclass(frozen=True, slots=True, eq=False)
class CreateStates(WriteEffect):
    """Create `partitions`, `partitions/P` and `partitions/P/state`; the last one's fate counts.

    Reply: `WriteOutcome` codes (int8), aligned.
    """

    states: LeaderAndIsrs


WriteOutcomes = I8


# Topics


@dataclass(frozen=True, slots=True)
class ReadTopicNames(ReadEffect):
    """Children of `/brokers/topics`, with a watch. Reply: `set[str]`."""


@dataclass(frozen=True, slots=True)
class ReadTopics(ReadEffect):
    """Topic znodes, with data watches. Reply: `dict[str, TopicRead]`; a missing one is empty.

    `then` are the names that the next `ReadTopics` has, which may be read meanwhile.
    """

    names: Sequence[str]
    then: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class WriteTopic(WriteEffect):
    """Set `/brokers/topics/T` as version 3, at any data version. Reply: `WriteOutcome`."""

    name: str
    topic_id: str | None
    partitions: Mapping[int, Assignment]


@dataclass(frozen=True, slots=True)
class WriteTopics(WriteEffect):
    """The same for many topics, in bulk. Reply: `list[WriteOutcome]`."""

    topics: Sequence[WriteTopic]


@dataclass(frozen=True, slots=True)
class NewTopicIds(Effect):
    """Draw that many random topic ids. Reply: `list[str]`."""

    count: int


@dataclass(frozen=True, slots=True)
class ReadPartitionChildren(ReadEffect):
    """Partition numbers that have a znode under a topic. Reply: `set[int]`."""

    topic: str


@dataclass(frozen=True, slots=True)
class ReadUncleanOverrides(ReadEffect):
    """`unclean.leader.election.enable` of topics, read now (CONF-2).

    Reply: `dict[str, bool | None | UnreadableConfig]`; None means that there is no override.
    """

    topics: Sequence[str]


class UnreadableConfig:
    """A topic config that could not be read or understood: its elections fail (LEAD-5)."""


@dataclass(frozen=True, slots=True)
class DeleteTopic(WriteEffect):
    """Delete `/brokers/topics/T` with all below, `/config/topics/T`, `/admin/delete_topics/T`.

    In this order, so that a successor finds the request as long as anything is left (DEL-16).
    Reply: None.
    """

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class WatchStates(ReadEffect):
    """Arm data watches on `state` znodes, for leaders that write those themselves. Reply: None."""

    rows: I32


# Deletion requests, notifications, other requests in ZooKeeper


@dataclass(frozen=True, slots=True)
class ReadDeletions(ReadEffect):
    """Children of `/admin/delete_topics`, with a watch. Reply: `set[str]`."""


@dataclass(frozen=True, slots=True)
class DropDeletions(WriteEffect):
    """Delete children of `/admin/delete_topics`; whether they were there is ignored (ZK-28)."""

    names: Sequence[str]


@dataclass(frozen=True, slots=True)
class ReadReassignRequest(ReadEffect):
    """`/admin/reassign_partitions`, with a watch.

    Reply: `dict[TopicPartition, list[int]]`, empty if unreadable, or None if there is no node.
    """


@dataclass(frozen=True, slots=True)
class WriteReassignRequest(WriteEffect):
    """Set the rest of `/admin/reassign_partitions`, or delete the node if nothing is left."""

    entries: Mapping[TopicPartition, Sequence[int]]


@dataclass(frozen=True, slots=True)
class ReadPreferredRequest(ReadEffect):
    """`/admin/preferred_replica_election`, with a watch. Reply: `set[TopicPartition]` or None."""


@dataclass(frozen=True, slots=True)
class DropPreferredRequest(WriteEffect):
    """Delete `/admin/preferred_replica_election`; its absence is fine."""


@dataclass(frozen=True, slots=True)
class ReadIsrNotifications(ReadEffect):
    """Children of `/isr_change_notification` with their data, and a watch.

    Reply: `(names of the children, set[TopicPartition])`.
    """


@dataclass(frozen=True, slots=True)
class ReadLogDirNotifications(ReadEffect):
    """Children of `/log_dir_event_notification`, with a watch. Reply: `(names, broker ids)`."""


@dataclass(frozen=True, slots=True)
class DropIsrNotifications(WriteEffect):
    """Delete those children; None means all there are."""

    names: Sequence[str] | None


@dataclass(frozen=True, slots=True)
class DropLogDirNotifications(WriteEffect):
    """Delete those children; None means all there are."""

    names: Sequence[str] | None


@dataclass(frozen=True, slots=True)
class SetUpFeatures(WriteEffect):
    """Bring `/feature` into the form of FAILOVER-1.

    Reply: `dict[str, int]`, the finalized features and their levels.
    """


@dataclass(frozen=True, slots=True)
class WriteFeatures(WriteEffect):
    """Finalize features at these levels; not fenced (FENCE-6). Reply: None."""

    levels: Mapping[str, int]


# Brokers and channels


@dataclass(frozen=True, slots=True)
class ReadBrokers(ReadEffect):
    """All registrations, with a watch on their parent. Reply: `dict[int, Broker]`."""


@dataclass(frozen=True, slots=True)
class ReadBroker(ReadEffect):
    """One registration, with a data watch. Reply: `RegisteredBroker | None`."""

    id: int


@dataclass(frozen=True, slots=True)
class WatchBrokers(ReadEffect):
    """Arm data watches on registrations. Reply: None."""

    ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class ChangeChannels(Effect):
    """Close the channels of `close` (their queues are lost), then open those of `open`."""

    open: Sequence[RegisteredBroker] = ()
    close: Sequence[int] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ReplicaRequestRows:
    """Entries of one request to one broker: the rows, each with a flag, and a leader epoch."""

    rows: I32
    #: LeaderAndIsr: the replica is new. StopReplica: its data is deleted.
    flag: Mask
    #: StopReplica only: the epoch it carries (CHAN-28).
    leader_epoch: I32 = field(default_factory=lambda: np.empty(0, np.int32))


@dataclass(frozen=True, slots=True, eq=False)
class SendRequestBatch(Effect):
    """Send one batch: LeaderAndIsr, then UpdateMetadata, then StopReplica (CHAN-12).

    Contents are taken from the cluster's columns at once, before the procedure goes on (CHAN-8).
    Reply: None; the procedure does not wait for the responses.
    """

    leader_and_isr: Mapping[int, ReplicaRequestRows]
    #: Partitions and receivers of the UpdateMetadata; without receivers there is none.
    metadata_rows: I32
    metadata_brokers: Sequence[int]
    stop_replica: Mapping[int, ReplicaRequestRows]


# Responses, timers and the queue


@dataclass(frozen=True, slots=True)
class Enqueue(Effect):
    """Put an event at the end of the controller's own queue. Reply: None."""

    event: Any


@dataclass(frozen=True, slots=True)
class Schedule(Effect):
    """Put an event into the queue after a delay, unless the term has ended. Reply: None."""

    event: Any
    delay_s: float


@dataclass(frozen=True, slots=True)
class Respond(Effect):
    """Send the requester its response now, before the procedure goes on. Reply: None.

    Only the first response of an event is sent: a failure after it does not reach the requester.
    """

    value: Any
