"""The interface of a log for replication, the readers of a log, and what a reader may see.

The log on disk and the in-memory logs of tests satisfy `ReplicaLog`, so that the state machines of
replication run unchanged on both.
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
        """Record that `epoch` starts at `start_offset`."""

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """The end offset of `epoch`, or of the latest epoch before it; -1 and -1 if undefined."""


class ReplicaLog(Protocol):
    """One replica of one partition: a sequence of batches with a start, an end and epochs."""

    @property
    def topic_id(self) -> uuid.UUID | None:
        """The id of the topic; None before one is assigned."""

    @property
    def epochs(self) -> ReplicaEpochs:
        """The leader epochs of the log's records."""

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
        """Delete records before `offset`, which must be committed.

        Return whether there were any.
        """

    def append_as_follower(self, records: Buffer, *, now_ms: int) -> int:
        """Append the leader's batches unchanged; return the number of bytes appended."""

    def truncate_to(self, offset: int, *, now_ms: int) -> bool:
        """Remove all batches with `offset` or later ones; return whether there were any."""

    def truncate_fully_and_start_at(self, offset: int, *, now_ms: int) -> None:
        """Remove everything; the next record to be appended gets `offset`."""


#: The replica id of a consumer.
CONSUMER: Final = -1


class Reader(NamedTuple):
    """The reader of a log: a consumer or a follower, with the records that it may read."""

    replica_id: int = CONSUMER
    #: The broker epoch of the follower; -1 if the request has none.
    broker_epoch: int = -1
    read_committed: bool = False
    #: Consumers that may be sent to another replica (Fetch v11+) may also read from any.
    leader_only: bool = False

    @property
    def is_follower(self) -> bool:
        return self.replica_id >= 0


class FetchPosition(NamedTuple):
    """The offset of a fetch, and the leader epochs that the reader knows."""

    offset: int
    current_leader_epoch: int = NO_EPOCH
    last_fetched_epoch: int = NO_EPOCH


class ReadView(NamedTuple):
    """The result of checking a fetch: an error, a divergence, or the offsets before the read."""

    error: ErrorCode
    high_watermark: int = UNKNOWN_OFFSET
    last_stable_offset: int = UNKNOWN_OFFSET
    start_offset: int = UNKNOWN_OFFSET
    end_offset: int = UNKNOWN_OFFSET
    #: The reader may read up to this offset.
    readable_end: int = UNKNOWN_OFFSET
    #: Set if the reader's log has diverged from this one: the reader has to truncate first.
    diverging: EpochEnd | None = None
