"""Who reads a partition, from where, and what that reader may see."""

from typing import Final, NamedTuple

from klamm.broker.log.epochs import NO_EPOCH, EpochEnd
from klamm.broker.replica_log import UNKNOWN_OFFSET
from klamm.protocol.codes import ErrorCode

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
