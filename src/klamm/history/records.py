"""What the history keeps of an event, in memory: plain values, and columns for the decisions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from klamm.core.columns import I8, I32

#: Kinds of decisions.
CREATED: Final = "created"
CLEAN: Final = "clean"
UNCLEAN: Final = "unclean"
PREFERRED: Final = "preferred"
REASSIGNMENT: Final = "reassignment"
CONTROLLED_SHUTDOWN: Final = "controlled_shutdown"
NOBODY: Final = "none"
REPLICA_OFFLINE: Final = "replica_offline"
ISR_CHANGED: Final = "isr_changed"
EPOCH_RAISED: Final = "epoch_raised"

#: Decisions that choose a leader, or find that there is none to choose.
ELECTION_KINDS: Final = (CLEAN, UNCLEAN, PREFERRED, REASSIGNMENT, CONTROLLED_SHUTDOWN, NOBODY)
#: Changes with which a topic is gone.
TOPIC_ENDINGS: Final = ("deleted", "vanished")
#: Phases with which a reassignment begins, and those with which it is over.
MOVE_BEGINNINGS: Final = ("started", "replaced")
MOVE_ENDINGS: Final = ("completed", "cancelled", "dropped")
#: The durations in an event's header, in microseconds.
PHASES: Final = (
    "queued_us",
    "reading_us",
    "deciding_us",
    "writing_us",
    "announcing_us",
    "total_us",
    "announced_after_us",
)
#: A broker that registers so often within an hour is said to flap.
FLAPPING_STARTS: Final = 3
FLAPPING_WINDOW_S: Final = 3600

#: In a cause, the separator between the request and the principal that sent it.
ASKED_BY: Final = ", asked by "


@dataclass(frozen=True, slots=True, eq=False)
class Decisions:
    """Decisions about many partitions: the state before, and the state that was written.

    `topic` and `kind` are positions in `topics` and `kinds`. Before a partition's first state its
    leader and epoch are -1 and its ISR is empty.
    """

    topics: Sequence[str]
    kinds: Sequence[str]
    row: I32
    topic: I32
    partition: I32
    kind: I8
    outcome: I8
    old_leader: I32
    old_leader_epoch: I32
    old_isr: I32
    old_state: I8
    leader: I32
    leader_epoch: I32
    isr: I32
    state: I8
    replicas: I32

    def __len__(self) -> int:
        return len(self.row)


@dataclass(frozen=True, slots=True)
class BrokerChanged:
    """A change of a broker: present, started, failed, bounced or shutting_down."""

    broker: int
    change: str
    epoch: int


@dataclass(frozen=True, slots=True)
class LostBroker:
    """A broker that the event found lost, and the last moment it is known to have been alive."""

    broker: int
    alive_at: int


@dataclass(frozen=True, slots=True)
class TopicChanged:
    """A milestone of a topic.

    One of created, expanded, deletion_queued, deletion_started, deletion_paused, deleted and
    vanished (removed from ZooKeeper by hand).
    """

    topic: str
    change: str
    partitions: int


@dataclass(frozen=True, slots=True)
class ReassignmentChange:
    """A phase of a reassignment: present, started, replaced, completed, cancelled or dropped."""

    topic: str
    partition: int
    phase: str
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(slots=True, eq=False)
class EventRecord:
    """One event: its header, and all that was decided because of it. Times are microseconds."""

    at: int
    controller: int
    controller_epoch: int
    seq: int
    kind: str
    cause: str
    caused_by: int | None
    #: `began` in the event of the failover, `ended` in the event that ended the term.
    term: str | None = None
    outcome: str = ""
    queued: int = 0
    reading: int = 0
    deciding: int = 0
    writing: int = 0
    announcing: int = 0
    total: int = 0
    #: From `at` to the end of the last announcement.
    announced_after: int | None = None
    brokers: list[int] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    lost: list[LostBroker] = field(default_factory=list)
    session_timeout_ms: int | None = None
    cluster_id: str | None = None
    broker_changes: list[BrokerChanged] = field(default_factory=list)
    topic_changes: list[TopicChanged] = field(default_factory=list)
    moves: list[ReassignmentChange] = field(default_factory=list)
    decisions: list[Decisions] = field(default_factory=list)
