"""The log as replication sees it: `ReplicaLog`, who reads from it, and what a reader may see.

The log on disk and the logs in memory of the tests and the simulator all satisfy `ReplicaLog`,
so the state machines of replication run unchanged on each of them.
"""

import uuid
from typing import Final, NamedTuple, Protocol

from klamm.broker.log.epochs import NO_EPOCH, EpochEnd
from klamm.broker.log.files import Buffer
from klamm.protocol.codes import ErrorCode

#: An offset that is not known.
UNKNOWN_OFFSET: Final = -1


class ReplicaEpochs(Protocol):
    """Which leader epoch began at which offset of a log."""

    @property
    def latest(self) -> int:
        """The latest epoch, -1 if there is none."""

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that `epoch` writes from `start_offset` on."""

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """Where `epoch`, or failing that the one before it, ended; undefined as -1 and -1."""


class ReplicaLog(Protocol):
    """One replica of one partition: a sequence of batches with a start, an end and epochs."""

    @property
    def topic_id(self) -> uuid.UUID | None:
        """The id of the topic, None if it has not been given one yet."""

    @property
    def epochs(self) -> ReplicaEpochs:
        """The leader epochs of what the log holds."""

    @property
    def start_offset(self) -> int:
        """The first offset that can still be read."""

    @property
    def end_offset(self) -> int:
        """The next offset to be assigned."""

    @property
    def high_watermark(self) -> int:
        """The first offset that is not known to be committed."""

    @property
    def last_stable_offset(self) -> int:
        """The first offset that a reader of committed transactions may not see."""

    def bytes_between(self, start_offset: int, end_offset: int) -> int | None:
        """About how many bytes lie between two offsets; None if they are in different segments."""

    def advance_high_watermark(self, offset: int) -> int:
        """Set the high watermark as near to `offset` as start and end allow, and return it."""

    def raise_start_offset(self, offset: int) -> bool:
        """Hide what lies before `offset`, which must be committed; whether anything did."""

    def append_as_follower(self, records: Buffer, *, now_ms: int) -> int:
        """Append the leader's batches as they are and return the number of bytes taken."""

    def truncate_to(self, offset: int, *, now_ms: int) -> bool:
        """Remove every batch that holds `offset` or a later one; whether there was any."""

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        """Remove everything; the next record to be appended gets `offset`."""


#: The replica id of whoever is not a broker.
CONSUMER: Final = -1


class Reader(NamedTuple):
    """Who fetches, and what that entitles to."""

    replica_id: int = CONSUMER
    #: Which incarnation of the follower asks; -1 if it does not say.
    broker_epoch: int = -1
    read_committed: bool = False
    #: Consumers that may be sent to another replica (Fetch v11+) may also read from any.
    leader_only: bool = False

    @property
    def is_follower(self) -> bool:
        return self.replica_id >= 0


class FetchPosition(NamedTuple):
    """Where a reader is in a partition, and what it believes about the leader."""

    offset: int
    current_leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH


class ReadView(NamedTuple):
    """What a fetch may read, and the offsets that go with it, taken before anything is read."""

    error: ErrorCode
    high_watermark: int = UNKNOWN_OFFSET
    last_stable_offset: int = UNKNOWN_OFFSET
    start_offset: int = UNKNOWN_OFFSET
    end_offset: int = UNKNOWN_OFFSET
    #: Nothing at or beyond this offset may be shown to the reader.
    readable_end: int = UNKNOWN_OFFSET
    #: Set if the reader's log and this one parted: it has to truncate before anything is read.
    diverging: EpochEnd | None = None
