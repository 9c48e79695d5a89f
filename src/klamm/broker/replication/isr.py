"""What a leader knows of its followers, and the ISR changes that it wants the controller to make.

All of it is free of I/O: `klamm.broker.replication.alter_partition` sends the requests.
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from klamm.broker.log.epochs import NO_EPOCH
from klamm.broker.replication.replica_log import UNKNOWN_OFFSET
from klamm.names import TopicPartition
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
class AlterPartitionItem:
    """A change of the ISR that the controller is asked for. Compared by identity."""

    partition: TopicPartition
    topic_id: uuid.UUID | None
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    is_expansion: bool


class AlterPartitionResult(NamedTuple):
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
    def awaits_leader_and_isr(self) -> bool:
        """Whether the controller knows better, and only its next LeaderAndIsr will tell what."""
        return self.error in _SETTLED_BY_CONTROLLER


class IsrOutcome(NamedTuple):
    """What came of a proposal."""

    committed: bool = False
    high_watermark_rose: bool = False
    resend: bool = False


class FollowerProgress(NamedTuple):
    """What changed because a follower fetched."""

    proposal: AlterPartitionItem | None
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


#: How long to wait after an error that concerns the whole request.
RETRY_BACKOFF_MS: Final = 50


class AlterPartitionBatch(NamedTuple):
    """What goes into one AlterPartition request."""

    controller: int
    proposals: tuple[AlterPartitionItem, ...]


class SettledItem(NamedTuple):
    """A proposal that is settled for the line; the partition decides what that means."""

    proposal: AlterPartitionItem
    result: AlterPartitionResult


class AlterPartitionQueue:
    """Proposals in the order of their arrival, and the one request that is under way."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, AlterPartitionItem] = {}
        self._in_flight: AlterPartitionBatch | None = None
        self._not_before_ms = 0
        #: A controller that has said that it is none, or that cannot be reached.
        self._doubted: int | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, proposal: AlterPartitionItem) -> None:
        """Put a proposal into the line; it replaces an older one for the same partition.

        The older one belongs to a leadership that has ended, or the partition would not have
        made another.
        """
        self._waiting[proposal.partition] = proposal

    def withdraw(self, partition: TopicPartition) -> None:
        """Forget what was proposed for a partition that is led by someone else now."""
        self._waiting.pop(partition, None)

    def next_batch(self, controller: int | None, now_ms: int) -> AlterPartitionBatch | None:
        """What to send now, and to whom; None while there is nothing to send or a reason to wait.

        `controller` is the one that the metadata cache names. One that has just failed is tried
        again after a pause; another one at once.
        """
        if controller is None or not self._waiting or self._in_flight:
            return None
        if now_ms < self._not_before_ms and (self._doubted is None or self._doubted == controller):
            return None
        self._in_flight = AlterPartitionBatch(controller, tuple(self._waiting.values()))
        return self._in_flight

    def next_attempt_ms(self) -> int | None:
        """When `next_batch` is worth another call if nothing else happens; None: not at all."""
        return self._not_before_ms if self._waiting and not self._in_flight else None

    def on_response(
        self, results: Mapping[TopicPartition, AlterPartitionResult], now_ms: int
    ) -> list[SettledItem]:
        """Take in a response without an error of its own.

        A partition that the controller left out stays in the line.
        """
        sent = self._land()
        if any(result.error is ErrorCode.NOT_CONTROLLER for result in results.values()):
            self._doubt(sent.controller, now_ms)
            return []
        settled = [
            SettledItem(proposal, results[proposal.partition])
            for proposal in sent.proposals
            if proposal.partition in results
        ]
        self._settle(settled)
        return settled

    def on_error(self, error: ErrorCode, now_ms: int) -> None:
        """Take in a response that refuses the whole request."""
        sent = self._land()
        self._not_before_ms = now_ms + RETRY_BACKOFF_MS
        if error is ErrorCode.NOT_CONTROLLER:
            self._doubt(sent.controller, now_ms)
        else:
            self._doubted = None

    def on_disconnect(self, now_ms: int) -> None:
        """The controller may or may not have acted; only asking again will tell."""
        self._doubt(self._land().controller, now_ms)

    def _land(self) -> AlterPartitionBatch:
        assert self._in_flight, "a response to a request that was not sent"
        sent, self._in_flight = self._in_flight, None
        return sent

    def _doubt(self, controller: int, now_ms: int) -> None:
        self._doubted = controller
        self._not_before_ms = now_ms + RETRY_BACKOFF_MS

    def _settle(self, settled: Iterable[SettledItem]) -> None:
        for proposal, _ in settled:
            if self._waiting.get(proposal.partition) is proposal:
                del self._waiting[proposal.partition]
