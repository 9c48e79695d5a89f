"""One hosted partition as a state machine: its leader, its ISR, its high watermark.

`Partition` reads no clock, opens no file and sends nothing. The replica manager opens the log,
reports events together with the time, and performs what the partition returns: an ISR to propose to
the controller, a high watermark that has risen.

The committed ISR comes from LeaderAndIsr and from the responses to AlterPartition. Beside it there
is at most one proposed ISR. Until its response arrives, a replica in either of the two counts as in
sync: the controller may have put the proposal into force already, and may never do so.
"""

import enum
import uuid
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from klamm.broker.log.epochs import NO_EPOCH, UNDEFINED_END, EpochEnd
from klamm.broker.replication.isr import (
    AlterPartitionItem,
    AlterPartitionResult,
    FollowerProgress,
    FollowerState,
    IsrOutcome,
)
from klamm.broker.replication.replica_log import (
    UNKNOWN_OFFSET,
    FetchPosition,
    Reader,
    ReadView,
    ReplicaLog,
)
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode

#: The leader epoch of a StopReplica that deletes a topic: it applies at any known epoch.
EPOCH_DURING_DELETE: Final = -2
#: The offset of a DeleteRecords that stands for the high watermark.
UP_TO_HIGH_WATERMARK: Final = -1
NO_LEADER: Final = -1


class Role(enum.Enum):
    """The role of this broker for a partition; NONE until the first LeaderAndIsr."""

    NONE = enum.auto()
    LEADER = enum.auto()
    FOLLOWER = enum.auto()


class LeaderAndIsrPartitionState(NamedTuple):
    """The state of one partition in a LeaderAndIsr request."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    partition_epoch: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    is_new: bool = False


class Step(enum.Enum):
    """The action that a `LeaderAndIsrPartitionState` requires of the replica manager."""

    LEAD = enum.auto()  # open the log, then call become_leader
    FOLLOW = enum.auto()  # open the log, then call become_follower
    OPEN_LOG = enum.auto()  # the leader is not known to be alive: nothing else changes
    ASSIGN_TOPIC_ID = enum.auto()  # the log has none yet, and that is all that is new
    NOTHING = enum.auto()


class Decision(NamedTuple):
    """The error for one partition of a LeaderAndIsr, and the step to take before the response."""

    error: ErrorCode
    step: Step


class DeletePlan(NamedTuple):
    """The error of a DeleteRecords, or the offset up to which records are deleted."""

    error: ErrorCode
    offset: int = UNKNOWN_OFFSET


class Partition:
    """The state of one partition on one broker."""

    def __init__(
        self,
        name: TopicPartition,
        broker_id: int,
        *,
        is_alive: Callable[[int], bool],
        replica_lag_time_max_ms: int,
        min_insync_replicas: int = 1,
        log: ReplicaLog | None = None,
    ) -> None:
        self.name = name
        self.broker_id = broker_id
        #: Updated when the topic's configuration changes.
        self.min_insync_replicas = min_insync_replicas
        self.log = log
        self.role = Role.NONE
        self.leader = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.partition_epoch = -1
        #: The end of the log when this broker became leader; None if it is not the leader.
        self.epoch_start_offset: int | None = None
        self.replicas: tuple[int, ...] = ()
        self.adding: tuple[int, ...] = ()
        self.removing: tuple[int, ...] = ()
        self.isr: tuple[int, ...] = ()
        self.pending: AlterPartitionItem | None = None
        self.maximal_isr: frozenset[int] = frozenset()
        #: Whether the ISR has a member that is no longer a replica and is about to be removed.
        self._isr_has_strangers = False
        self.followers: dict[int, FollowerState] = {}
        self._is_alive = is_alive
        self._max_lag_ms = replica_lag_time_max_ms

    def __repr__(self) -> str:
        return f"<{self.name} {self.role.name.lower()} epoch={self.leader_epoch} isr={self.isr}>"

    # Requests of the controller

    def decide(self, state: LeaderAndIsrPartitionState, topic_id: uuid.UUID | None) -> Decision:
        """Compare `state` with the current one; return the error and the step. Changes nothing."""
        log_topic_id = self.log.topic_id if self.log else None
        if topic_id and log_topic_id and topic_id != log_topic_id:
            return Decision(ErrorCode.INCONSISTENT_TOPIC_ID, Step.NOTHING)
        if state.leader_epoch < self.leader_epoch:
            return Decision(ErrorCode.STALE_CONTROLLER_EPOCH, Step.NOTHING)
        if state.leader_epoch == self.leader_epoch:
            if topic_id and self.log and log_topic_id is None:
                return Decision(ErrorCode.NONE, Step.ASSIGN_TOPIC_ID)
            return Decision(ErrorCode.STALE_CONTROLLER_EPOCH, Step.NOTHING)
        if self.broker_id not in state.replicas:
            return Decision(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, Step.NOTHING)
        if state.leader != self.broker_id and not self._is_alive(state.leader):
            # If the epoch were taken over, this broker would refuse the same state when it is sent
            # again, after the UpdateMetadata that names the leader.
            return Decision(ErrorCode.NONE, Step.OPEN_LOG)
        if state.partition_epoch < self.partition_epoch:
            return Decision(ErrorCode.NONE, Step.NOTHING)
        return Decision(
            ErrorCode.NONE, Step.LEAD if state.leader == self.broker_id else Step.FOLLOW
        )

    def become_leader(
        self, state: LeaderAndIsrPartitionState, log: ReplicaLog, now_ms: int
    ) -> None:
        """Become the leader. The caller has stopped the fetcher and opened `log`."""
        # In an epoch that this broker has not heard of, its followers may have followed another
        # leader and truncated what it knows them to have.
        stays_leader = self.role is Role.LEADER and state.leader_epoch <= self.leader_epoch + 1
        known = self.followers if stays_leader else {}
        self.log = log
        self._assign(state)
        self.followers = {
            replica: known.get(replica) or FollowerState()
            for replica in state.replicas
            if replica != self.broker_id
        }
        self._commit_isr(state.isr)
        # A follower that asks for the end of the previous epoch needs the start of this one,
        # whether or not anything is written under it.
        log.epochs.assign(state.leader_epoch, log.end_offset)
        self.epoch_start_offset = log.end_offset
        for replica, follower in self.followers.items():
            follower.leave_session()
            follower.last_caught_up_ms = now_ms if replica in state.isr else 0
            if stays_leader:
                follower.last_fetch_leader_end_offset = log.end_offset
                follower.last_fetch_ms = now_ms
        self.role = Role.LEADER
        self._raise_high_watermark(now_ms)

    def become_follower(self, state: LeaderAndIsrPartitionState, log: ReplicaLog) -> None:
        """Become a follower. The caller has to restart the fetcher, even for the same leader."""
        self.log = log
        self._assign(state)
        self.followers = {}
        self._commit_isr(())
        self.epoch_start_offset = None
        self.role = Role.FOLLOWER

    def check_stop(self, leader_epoch: int) -> ErrorCode:
        """The error of a StopReplica with this leader epoch; NONE if it is to be applied."""
        if leader_epoch in (EPOCH_DURING_DELETE, NO_EPOCH) or leader_epoch >= self.leader_epoch:
            return ErrorCode.NONE
        return ErrorCode.FENCED_LEADER_EPOCH

    def _assign(self, state: LeaderAndIsrPartitionState) -> None:
        self.leader = state.leader
        self.leader_epoch = state.leader_epoch
        self.partition_epoch = state.partition_epoch
        self.replicas = state.replicas
        self.adding = state.adding
        self.removing = state.removing

    # In-sync replicas

    @property
    def effective_min_isr(self) -> int:
        """`min.insync.replicas`, but no more than the partition has replicas."""
        return min(self.min_insync_replicas, len(self.followers) + 1)

    @property
    def is_under_min_isr(self) -> bool:
        return self.role is Role.LEADER and len(self.isr) < self.effective_min_isr

    @property
    def is_at_min_isr(self) -> bool:
        return self.role is Role.LEADER and len(self.isr) == self.effective_min_isr

    @property
    def is_under_replicated(self) -> bool:
        """Whether the ISR is smaller than the replicas, those that are being added not counted."""
        settled = sum(replica not in self.adding for replica in self.replicas)
        return self.role is Role.LEADER and settled > len(self.isr)

    @property
    def is_reassigning(self) -> bool:
        return bool(self.adding or self.removing)

    def record_follower_fetch(
        self, reader: Reader, offset: int, start_offset: int, leader_end_offset: int, now_ms: int
    ) -> FollowerProgress:
        """Record that a follower has everything below `offset`; return what has changed.

        Called once for each fetch without an error, before its first read. `leader_end_offset` is
        the end of the leader's log before that read.
        """
        follower = self.followers[reader.replica_id]
        follower.leave_session()
        follower.broker_epoch = reader.broker_epoch
        known_end, known_start = follower.end_offset, follower.start_offset
        follower.record(offset, start_offset, leader_end_offset, now_ms)
        proposal = self._expand(reader.replica_id, follower)
        rose = offset != known_end and self._raise_high_watermark(now_ms)
        return FollowerProgress(proposal, rose, start_offset > known_start)

    def shrink(self, now_ms: int) -> AlterPartitionItem | None:
        """Propose an ISR without the followers that have fallen behind, if there are any."""
        if self.role is not Role.LEADER or self.pending or not self.log:
            return None
        end_offset = self.log.end_offset
        kept = tuple(
            replica
            for replica in self.isr
            if replica == self.broker_id
            or (
                (follower := self.followers.get(replica)) is not None
                and follower.is_caught_up(end_offset, now_ms, self._max_lag_ms)
            )
        )
        return self._propose(kept) if len(kept) < len(self.isr) else None

    def on_alter_partition_result(
        self, proposal: AlterPartitionItem, result: AlterPartitionResult, now_ms: int
    ) -> IsrOutcome:
        """Apply the controller's result for `proposal`.

        The result of any other than the pending proposal is outdated: a LeaderAndIsr has replaced
        the state that it refers to.
        """
        if proposal is not self.pending:
            return IsrOutcome()
        if result.refuses:
            self._commit_isr(self.isr)
            return IsrOutcome()
        if result.error:
            return IsrOutcome(resend=not result.awaits_leader_and_isr)
        if (
            result.leader_epoch != self.leader_epoch
            or result.partition_epoch < self.partition_epoch
        ):
            return IsrOutcome()
        self.partition_epoch = result.partition_epoch
        self._commit_isr(result.isr)
        return IsrOutcome(committed=True, high_watermark_rose=self._raise_high_watermark(now_ms))

    def _expand(self, replica_id: int, follower: FollowerState) -> AlterPartitionItem | None:
        if self.pending or replica_id in self.isr or not self.log:
            return None
        # Without the second condition a follower could join the ISR without records that the
        # previous leader had committed: the high watermark of a new leader may lag behind.
        if follower.end_offset < self.log.high_watermark or follower.end_offset < (
            self.epoch_start_offset or 0
        ):
            return None
        return self._propose((*self.isr, replica_id)) if self._is_alive(replica_id) else None

    def _propose(self, isr: tuple[int, ...]) -> AlterPartitionItem:
        topic_id = self.log.topic_id if self.log else None
        self.pending = AlterPartitionItem(
            self.name,
            topic_id,
            self.leader_epoch,
            self.partition_epoch,
            isr,
            is_expansion=len(isr) > len(self.isr),
        )
        self._expect_of(frozenset(self.isr) | frozenset(isr))
        return self.pending

    def _commit_isr(self, isr: tuple[int, ...]) -> None:
        self.isr = isr
        self.pending = None
        self._expect_of(frozenset(isr))

    def _expect_of(self, maximal_isr: frozenset[int]) -> None:
        self.maximal_isr = maximal_isr
        known = self.followers.keys() | {self.broker_id}
        self._isr_has_strangers = not maximal_isr <= known

    # High and low watermark

    def on_append(self, now_ms: int) -> bool:
        """Record an append of this leader; return whether it raised the high watermark."""
        return self._raise_high_watermark(now_ms)

    def low_watermark(self) -> int:
        """The smallest log start offset of this leader and its live followers."""
        if not self.log:
            return UNKNOWN_OFFSET
        low = self.log.start_offset
        for replica, follower in self.followers.items():
            if follower.start_offset < low and self._is_alive(replica):
                low = follower.start_offset
        return low

    def _raise_high_watermark(self, now_ms: int) -> bool:
        log = self.log
        if self.role is not Role.LEADER or not log or len(self.isr) < self.effective_min_isr:
            return False
        # Stricter than Apache Kafka: at the end of a reassignment a removed replica stays in the
        # ISR for a moment after it has stopped fetching, and could still be elected.
        if self._isr_has_strangers:
            return False
        end_offset = candidate = log.end_offset
        for replica, follower in self.followers.items():
            # The high watermark waits for a replica that is about to join the ISR. Otherwise the
            # replica might never catch up under steady load.
            if follower.end_offset < candidate and (
                replica in self.maximal_isr
                or (
                    follower.is_caught_up(end_offset, now_ms, self._max_lag_ms)
                    and self._is_alive(replica)
                )
            ):
                candidate = follower.end_offset
        if candidate <= log.high_watermark:
            return False
        log.advance_high_watermark(candidate)
        return True

    # Produce

    def check_append(self, *, acks_all: bool) -> ErrorCode:
        """The error for an append now; NONE if it is allowed."""
        if self.role is not Role.LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if acks_all and self.is_under_min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return ErrorCode.NONE

    def check_committed(self, required_offset: int) -> ErrorCode | None:
        """The error of an acks=all append up to `required_offset`.

        None while it is not committed.
        """
        if self.role is not Role.LEADER or not self.log:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.log.high_watermark < required_offset:
            return None
        if len(self.maximal_isr) < self.effective_min_isr:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return ErrorCode.NONE

    # Fetch

    def check_epoch(self, current_leader_epoch: int) -> ErrorCode:
        """The error of a request with this leader epoch; NONE if it is the current one."""
        if current_leader_epoch < 0 or current_leader_epoch == self.leader_epoch:
            return ErrorCode.NONE
        if current_leader_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    def check_reader(self, reader: Reader, current_leader_epoch: int) -> ErrorCode:
        """The error if this broker may not serve the reader; NONE if it may."""
        if error := self.check_epoch(current_leader_epoch):
            return error
        is_leader = self.role is Role.LEADER
        if not self.log or (not is_leader and (reader.leader_only or reader.is_follower)):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if reader.is_follower and reader.replica_id not in self.followers:
            # The follower may have learned of a reassignment before this leader.
            if current_leader_epoch >= 0:
                return ErrorCode.UNKNOWN_LEADER_EPOCH
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if reader.broker_epoch >= 0 and (
            self.followers[reader.replica_id].broker_epoch > reader.broker_epoch
        ):
            # Sent before the follower restarted: it may have lost what it had then.
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE

    def view(self, reader: Reader, position: FetchPosition) -> ReadView:
        """The error, divergence or offsets for a fetch at `position`."""
        error = self.check_reader(reader, position.current_leader_epoch)
        log = self.log
        if error or not log:
            return ReadView(error)
        start_offset, end_offset = log.start_offset, log.end_offset
        diverging = None
        if position.last_fetched_epoch >= 0:
            reign = log.epochs.end_offset_for(position.last_fetched_epoch, end_offset)
            if reign == UNDEFINED_END or position.offset < start_offset:
                return ReadView(ErrorCode.OFFSET_OUT_OF_RANGE)
            if reign.epoch < position.last_fetched_epoch or reign.end_offset < position.offset:
                diverging = reign
        if not diverging and not start_offset <= position.offset <= end_offset:
            return ReadView(ErrorCode.OFFSET_OUT_OF_RANGE)
        return ReadView(
            ErrorCode.NONE,
            log.high_watermark,
            log.last_stable_offset,
            start_offset,
            end_offset,
            self._readable_end(reader, log),
            diverging,
        )

    def readable_bytes(self, reader: Reader, position: FetchPosition, *, enough: int) -> int | None:
        """The bytes that a delayed fetch could read now; None if it has to be completed at once.

        It has to be after an error or a divergence, and when the readable end is in a later segment
        than the position. If one byte is `enough`, as for nearly every fetch, sizes are not
        measured.
        """
        log = self.log
        if enough <= 1 and log and reader.is_follower and position.offset < log.end_offset:
            # There is enough, or an error or a divergence: the fetch is completed in any case.
            return 1
        view = self.view(reader, position)
        if view.error or view.diverging or not log:
            return None
        if view.readable_end <= position.offset:
            return 0
        return log.bytes_between(position.offset, view.readable_end) if enough > 1 else 1

    def _readable_end(self, reader: Reader, log: ReplicaLog) -> int:
        if reader.is_follower:
            return log.end_offset
        return log.last_stable_offset if reader.read_committed else log.high_watermark

    def preferred_read_replica(
        self, offset: int, rack: str, rack_of: Mapping[int, str | None]
    ) -> int | None:
        """The in-sync follower in the consumer's rack that should serve `offset`, or None.

        `rack_of` has the brokers that the consumer can reach. None means that the leader serves the
        fetch, which is always so when the leader is in the consumer's rack.
        """
        if self.role is not Role.LEADER or not rack or rack_of.get(self.broker_id) == rack:
            return None
        candidates = (
            (state.end_offset, state.caught_up_ms, replica)
            for replica, state in self.followers.items()
            if replica in self.isr
            and state.start_offset <= offset <= state.end_offset
            and rack_of.get(replica) == rack
        )
        best = max(candidates, default=None)
        return best[2] if best else None

    # Other requests

    def end_of_epoch(self, epoch: int, current_leader_epoch: int) -> tuple[ErrorCode, EpochEnd]:
        """The error and the epoch's end offset for OffsetForLeaderEpoch; only a leader has it."""
        error = self.check_reader(Reader(leader_only=True), current_leader_epoch)
        if error or not self.log:
            return error, UNDEFINED_END
        return ErrorCode.NONE, self.log.epochs.end_offset_for(epoch, self.log.end_offset)

    def is_lagging_behind_predecessor(self) -> bool:
        """Whether the high watermark may still lag behind the previous leader's.

        Until it has caught up, ListOffsets cannot return a latest offset.
        """
        return (
            self.log is not None
            and self.epoch_start_offset is not None
            and self.log.high_watermark < self.epoch_start_offset
        )

    def plan_delete_records(self, offset: int, *, may_delete: bool) -> DeletePlan:
        """Check a DeleteRecords; `may_delete` is whether the topic's policy contains delete."""
        if self.role is not Role.LEADER or not self.log:
            return DeletePlan(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if not may_delete:
            return DeletePlan(ErrorCode.POLICY_VIOLATION)
        target = self.log.high_watermark if offset == UP_TO_HIGH_WATERMARK else offset
        if not 0 <= target <= self.log.high_watermark:
            return DeletePlan(ErrorCode.OFFSET_OUT_OF_RANGE)
        return DeletePlan(ErrorCode.NONE, target)

    def check_deleted(self, offset: int) -> ErrorCode | None:
        """The error of a DeleteRecords up to `offset`.

        None while a live replica has not deleted.
        """
        if self.role is not Role.LEADER:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.NONE if self.low_watermark() >= offset else None
