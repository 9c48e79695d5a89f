"""The leader's state of its followers, and the queue of ISR changes for the controller.

This module does no I/O: `klamm.broker.replication.alter_partition` sends the requests.
"""

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

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
    """A proposed ISR of one partition in an AlterPartition request. Compared by identity."""

    partition: TopicPartition
    topic_id: uuid.UUID | None
    leader_epoch: int
    partition_epoch: int
    isr: tuple[int, ...]
    is_expansion: bool


class AlterPartitionResult(NamedTuple):
    """The controller's result for one partition; without an error it has the new state."""

    error: ErrorCode
    leader_epoch: int = NO_EPOCH
    partition_epoch: int = -1
    isr: tuple[int, ...] = ()

    @property
    def refuses(self) -> bool:
        """Whether the controller has certainly not applied the proposal."""
        return self.error in (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.OPERATION_NOT_ATTEMPTED)

    @property
    def awaits_leader_and_isr(self) -> bool:
        """Whether the leader's state is outdated and the next LeaderAndIsr will correct it."""
        return self.error in _SETTLED_BY_CONTROLLER


class IsrOutcome(NamedTuple):
    """The changes in a partition after an AlterPartition result."""

    committed: bool = False
    high_watermark_rose: bool = False
    resend: bool = False


class FollowerProgress(NamedTuple):
    """The changes in a partition after a follower's fetch."""

    proposal: AlterPartitionItem | None
    high_watermark_rose: bool
    #: A DelayedDeleteRecords may wait for it.
    start_offset_rose: bool


class FollowerSession(Protocol):
    """The fetch session of a follower, as far as its progress is concerned."""

    last_fetch_ms: int


@dataclass(slots=True)
class FollowerState:
    """The leader's state of one follower, all of it taken from the follower's fetches.

    A fetch of a session reads only the partitions that have something to say. In the others, which
    are settled, the follower has everything that the leader has; with each fetch of its session it
    is caught up again, although no broker records it.
    """

    end_offset: int = UNKNOWN_OFFSET
    start_offset: int = UNKNOWN_OFFSET
    last_caught_up_ms: int = 0
    last_fetch_ms: int = 0
    last_fetch_leader_end_offset: int = UNKNOWN_OFFSET
    broker_epoch: int = -1
    #: Set while the partition is settled in this session.
    session: FollowerSession | None = None

    @property
    def caught_up_ms(self) -> int:
        """When the follower was last known to have everything."""
        if self.session is None:
            return self.last_caught_up_ms
        return max(self.last_caught_up_ms, self.session.last_fetch_ms)

    def join_session(self, session: FollowerSession) -> None:
        """Note that fetches of this session include the partition without being recorded."""
        self.session = session

    def leave_session(self, session: FollowerSession | None = None) -> None:
        """Record the last fetch of the session; the next one is recorded by itself.

        With a `session`, this happens only if the follower has not joined another one since.
        """
        if self.session is not None and session in (None, self.session):
            self.last_caught_up_ms = self.caught_up_ms
            self.last_fetch_ms = max(self.last_fetch_ms, self.session.last_fetch_ms)
            self.session = None

    def record(self, offset: int, start_offset: int, leader_end_offset: int, now_ms: int) -> None:
        """Record a fetch at `offset`, made when the leader's log ended at `leader_end_offset`.

        Under steady load a follower never fetches at the log's end. It was caught up at the time of
        its previous fetch if it now fetches from what was the end then.
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
        return self.end_offset == leader_end_offset or now_ms - self.caught_up_ms <= max_lag_ms


#: How long to wait after an error that concerns the whole request.
RETRY_BACKOFF_MS: Final = 50


class AlterPartitionBatch(NamedTuple):
    """The proposals of one AlterPartition request, and the controller that it is sent to."""

    controller: int
    proposals: tuple[AlterPartitionItem, ...]


class SettledItem(NamedTuple):
    """A proposal with its result; it has left the queue."""

    proposal: AlterPartitionItem
    result: AlterPartitionResult


class AlterPartitionQueue:
    """Unsent ISR proposals in the order of their arrival, and the one request in flight."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, AlterPartitionItem] = {}
        self._in_flight: AlterPartitionBatch | None = None
        self._not_before_ms = 0
        #: The broker that is not the controller any more, or that could not be reached.
        self._doubted: int | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def submit(self, proposal: AlterPartitionItem) -> None:
        """Queue a proposal; it replaces an older one of the same partition.

        A partition makes a second proposal only when the leadership of the first has ended.
        """
        self._waiting[proposal.partition] = proposal

    def withdraw(self, partition: TopicPartition) -> None:
        """Drop the proposal of a partition that another broker leads now."""
        self._waiting.pop(partition, None)

    def next_batch(self, controller: int | None, now_ms: int) -> AlterPartitionBatch | None:
        """The next request; None if there are no proposals, one is in flight, or a pause is due.

        `controller` is the one of the metadata cache. A controller that has just failed is tried
        again after a pause, another one at once.
        """
        if controller is None or not self._waiting or self._in_flight:
            return None
        if now_ms < self._not_before_ms and (self._doubted is None or self._doubted == controller):
            return None
        self._in_flight = AlterPartitionBatch(controller, tuple(self._waiting.values()))
        return self._in_flight

    def next_attempt_ms(self) -> int | None:
        """When to call `next_batch` again without a new event; None if there is no need to."""
        return self._not_before_ms if self._waiting and not self._in_flight else None

    def on_response(
        self, results: Mapping[TopicPartition, AlterPartitionResult], now_ms: int
    ) -> list[SettledItem]:
        """Apply a response without a top-level error; return the proposals that have results.

        A partition that is missing from the response stays in the queue.
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
        """Apply a response with a top-level error: all proposals stay in the queue."""
        sent = self._land()
        self._not_before_ms = now_ms + RETRY_BACKOFF_MS
        if error is ErrorCode.NOT_CONTROLLER:
            self._doubt(sent.controller, now_ms)
        else:
            self._doubted = None

    def on_disconnect(self, now_ms: int) -> None:
        """Keep all proposals: the controller may or may not have applied the request."""
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
