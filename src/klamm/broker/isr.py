"""What a leader knows of its followers, and how it asks the controller to change the ISR."""

import uuid
from dataclasses import dataclass
from typing import Final, NamedTuple

from klamm.broker.log.epochs import NO_EPOCH
from klamm.broker.log.names import TopicPartition
from klamm.broker.replica_log import UNKNOWN_OFFSET
from klamm.protocol.codes import ErrorCode

_SETTLED_BY_CONTROLLER: Final = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)


@dataclass(frozen=True, slots=True, eq=False)
class IsrProposal:
    """A change of the ISR that the controller is asked for. Compared by identity."""

    partition: TopicPartition
    topic_id: uuid.UUID | None
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    is_expansion: bool


class IsrAnswer(NamedTuple):
    """What the controller says to one proposal; the rest only counts without an error."""

    error: ErrorCode
    leader_epoch: int = NO_EPOCH
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()

    @property
    def refuses(self) -> bool:
        """Without a doubt: what was committed before still is."""
        return self.error in (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)

    @property
    def awaits_order(self) -> bool:
        """Whether the controller knows better, and only its next LeaderAndIsr will tell what."""
        return self.error in _SETTLED_BY_CONTROLLER


class IsrOutcome(NamedTuple):
    """What came of a proposal."""

    committed: bool = False
    high_watermark_rose: bool = False
    resend: bool = False


class FollowerProgress(NamedTuple):
    """What changed because a follower fetched."""

    proposal: IsrProposal | None
    high_watermark_rose: bool
    #: A DeleteRecords may be waiting for it.
    start_offset_rose: bool


@dataclass(slots=True)
class FollowerState:
    """What a leader knows of one follower, all of it from the follower's fetches."""

    end_offset: int = UNKNOWN_OFFSET
    start_offset: int = UNKNOWN_OFFSET
    last_caught_up_ms: int = 0
    last_fetch_ms: int = 0
    last_fetch_leader_end_offset: int = UNKNOWN_OFFSET
    broker_epoch: int = -1

    def record(self, offset: int, start_offset: int, leader_end_offset: int, now_ms: int) -> None:
        """Note a fetch at `offset`, made when the leader's log ended at `leader_end_offset`.

        A follower under steady load never asks for the very end. It has caught up with an
        earlier moment if it now asks for what was the end at its previous fetch.
        """
        if offset >= leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, now_ms)
        elif offset >= self.last_fetch_leader_end_offset:
            self.last_caught_up_ms = max(self.last_caught_up_ms, self.last_fetch_ms)
        self.end_offset = offset
        self.start_offset = start_offset
        self.last_fetch_leader_end_offset = max(
            leader_end_offset, self.last_fetch_leader_end_offset
        )
        self.last_fetch_ms = now_ms

    def is_caught_up(self, leader_end_offset: int, now_ms: int, max_lag_ms: int) -> bool:
        return self.end_offset == leader_end_offset or now_ms - self.last_caught_up_ms <= max_lag_ms
