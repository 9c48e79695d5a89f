"""The group coordinator of a broker: all groups whose partition of `__consumer_offsets` it leads.

Each call is given the time and returns effects to be performed in order. A request whose response
is not among them is delayed: its response comes with the effects of a later call. Times are
milliseconds since 1970, because they are stored, and never go backwards, because timeouts depend
on them.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple

from klamm.broker.groups.effects import Effect, Outbox, Ticket
from klamm.broker.groups.group import GroupMetadata, GroupState
from klamm.broker.groups.membership import FIRST_SYNC_WITH_PROTOCOL, GroupConfig, Membership
from klamm.broker.groups.messages import (
    UNKNOWN_MEMBER,
    DeleteGroupsResponse,
    DescribedGroup,
    FetchedOffset,
    GroupList,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    ListedGroup,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncRequest,
    SyncResponse,
)
from klamm.broker.groups.records import (
    CommittedOffset,
    GroupRecord,
    OffsetKey,
    group_tombstone,
    is_storable,
    offset_record,
    offset_tombstone,
)
from klamm.broker.groups.replay import Replay, ReplayBatch
from klamm.broker.groups.timers import GroupTimer, GroupTimers, TimerKind
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode
from klamm.slices import Steps

#: `offsets.topic.num.partitions`, used until `__consumer_offsets` exists.
DEFAULT_PARTITION_COUNT: Final = 50
#: The type of all groups, as ListGroups names it.
GROUP_TYPE: Final = "classic"

#: The errors for clients when an append of offsets fails.
_COMMIT_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.INVALID_COMMIT_OFFSET_SIZE,
}
#: As long as any: the ids of members end in one.
_LONGEST_UUID: Final = "0" * 36
_RETENTION: Final = GroupTimer(TimerKind.RETENTION)


class Loaded(NamedTuple):
    """The numbers of groups and offsets that a replay has loaded."""

    groups: int
    offsets: int
    ignored: int  # records that could not be understood


class GroupCounts(NamedTuple):
    """Counts for the metrics: groups by state, offsets, and pending deadlines."""

    groups: Mapping[GroupState, int]
    offsets: int
    #: Members with a session timeout.
    heartbeats: int
    #: Groups in a join or sync phase.
    rebalances: int


def group_partition(group_id: str, partition_count: int) -> int:
    """The partition of `__consumer_offsets` that a group lives in: Java's hash of its id."""
    code_units = group_id.encode("utf-16-be", "surrogatepass")
    value = 0
    for high, low in zip(code_units[::2], code_units[1::2], strict=True):
        value = (31 * value + (high << 8 | low)) & 0xFFFF_FFFF
    signed = value - (1 << 32) if value >= 1 << 31 else value
    # Java has no absolute value for its smallest integer, and Kafka takes zero.
    return 0 if signed == -(1 << 31) else abs(signed) % partition_count


class GroupCoordinator:
    """Coordinates the groups of the `__consumer_offsets` partitions that this broker leads."""

    def __init__(
        self,
        config: GroupConfig,
        new_uuid: Callable[[], str],
        partition_count: int = DEFAULT_PARTITION_COUNT,
    ) -> None:
        self.partition_count = partition_count  # of __consumer_offsets, once that is known
        self._config = config
        self._outbox = Outbox(config.commit_required_acks, config.commit_timeout_ms)
        self._timers = GroupTimers()
        self._membership = Membership(config, self._outbox, self._timers, new_uuid)
        self._groups: dict[str, GroupMetadata] = {}  # of owned partitions
        self._owned: set[int] = set()
        self._loading: dict[int, Replay] = {}
        self._epochs: dict[int, int] = {}  # the latest leader epoch seen, by partition
        #: The groups with offsets of an open transaction, by partition and producer id.
        self._transactional: dict[tuple[int, int], set[str]] = {}

    # Partitions

    def begin_load(self, partition: int, epoch: int) -> bool:
        """Note that this broker leads `partition`; return whether its log has to be replayed."""
        if not self._is_current(partition, epoch) or partition in self._owned:
            return False
        loading = self._loading.get(partition)
        if loading is not None and loading.epoch == epoch:
            return False
        self._loading[partition] = Replay(epoch)
        return True

    def load(self, partition: int, epoch: int, batches: Iterable[ReplayBatch]) -> bool:
        """Replay more of the log; return False if the partition has another leader by now."""
        replay = self._replay(partition, epoch)
        if replay is None:
            return False
        for batch in batches:
            replay.read(batch)
        return True

    def finish_load(self, partition: int, epoch: int, now_ms: int) -> Loaded | None:
        """Serve the groups of a replayed partition; None if it has another leader by now."""
        replay = self._replay(partition, epoch)
        if replay is None:
            return None
        del self._loading[partition]
        self._owned.add(partition)
        groups = offsets = 0
        for group_id, found in replay.groups():
            group = (
                GroupMetadata(group_id, partition, state_since_ms=now_ms)
                if found.stored is None
                else GroupMetadata.load(group_id, partition, found.stored)
            )
            group.offsets.load(found.offsets, found.open_transactions)
            self._groups[group_id] = group
            for producer_id in group.offsets.open_transactions():
                self._note_transaction(group, producer_id)
            self._membership.start_sessions(group, now_ms)
            groups, offsets = groups + 1, offsets + len(found.offsets)
        for producer_id, is_commit in replay.late_markers:
            self.end_transaction(partition, producer_id, is_commit=is_commit)
        if not self._timers.is_armed(_RETENTION):
            self._arm_retention(now_ms)
        return Loaded(groups, offsets, replay.ignored)

    def unload(self, partition: int, epoch: int | None, now_ms: int) -> list[Effect]:
        """Drop the groups of a partition that this broker no longer leads.

        Without a leader epoch the replica itself is removed.
        """
        if epoch is not None and not self._is_current(partition, epoch):
            return []
        self._loading.pop(partition, None)
        self._owned.discard(partition)
        for key in [each for each in self._transactional if each[0] == partition]:
            del self._transactional[key]
        for group in [g for g in self._groups.values() if g.partition == partition]:
            self._membership.end(group, ErrorCode.NOT_COORDINATOR, now_ms)
            del self._groups[group.id]
        if not self._owned:
            self._timers.cancel(_RETENTION)
        return self._outbox.drain()

    # Requests that may be delayed or that write records

    def join(self, ticket: Ticket, request: JoinRequest, now_ms: int) -> list[Effect]:
        """Handle a JoinGroup; the response comes with the end of the join phase."""
        error = self._check_join(request)
        group = self._groups.get(request.group_id)
        if not error and group is None:
            if request.member_id == UNKNOWN_MEMBER:
                group = self._create(request.group_id, now_ms)
            else:
                error = ErrorCode.UNKNOWN_MEMBER_ID
        if error or group is None:
            self._outbox.response(ticket, JoinResponse(error=error, member_id=request.member_id))
        else:
            self._membership.join(group, ticket, request, now_ms)
        return self._outbox.drain()

    def sync(self, ticket: Ticket, request: SyncRequest, now_ms: int) -> list[Effect]:
        """Handle a SyncGroup; the response comes with the leader's assignment."""
        error = self._check_sync(request)
        group = self._groups.get(request.group_id)
        if error or group is None:
            error = error or ErrorCode.UNKNOWN_MEMBER_ID
            self._outbox.response(ticket, SyncResponse(error=error))
        else:
            self._membership.sync(group, ticket, request, now_ms)
        return self._outbox.drain()

    def leave(self, ticket: Ticket, request: LeaveRequest, now_ms: int) -> list[Effect]:
        """Handle a LeaveGroup: remove members and begin a rebalance."""
        error = self.check_group(request.group_id)
        group = self._groups.get(request.group_id)
        if error:
            self._outbox.response(ticket, LeaveResponse(error=error))
        elif group is None:
            results = tuple((who, ErrorCode.UNKNOWN_MEMBER_ID) for who in request.members)
            self._outbox.response(ticket, LeaveResponse(error=ErrorCode.NONE, members=results))
        else:
            self._membership.leave(group, ticket, request, now_ms)
        return self._outbox.drain()

    def commit_offsets(
        self, ticket: Ticket, request: OffsetCommitRequest, now_ms: int
    ) -> list[Effect]:
        """Handle an OffsetCommit; the response comes when the record is replicated."""
        if not request.offsets:
            self._outbox.response(
                ticket, OffsetCommitResponse(errors={})
            )  # and no group comes of it
            return self._outbox.drain()
        is_transactional = request.producer is not None
        error = self.check_group(request.group_id, may_be_empty=not is_transactional)
        group = self._groups.get(request.group_id)
        if not error and group is None:
            if request.generation < 0 or is_transactional:
                group = self._create(request.group_id, now_ms)
            else:
                error = ErrorCode.ILLEGAL_GENERATION
        if not error and group is not None:
            check = group.check_transactional_commit if is_transactional else group.check_commit
            error = check(request.member_id, request.instance_id, request.generation)
        if error or group is None:
            self._outbox.response(
                ticket, OffsetCommitResponse(errors=dict.fromkeys(request.offsets, error))
            )
        else:
            self._commit(group, ticket, request, now_ms)
        return self._outbox.drain()

    def delete_offsets(
        self, ticket: Ticket, request: OffsetDeleteRequest, now_ms: int
    ) -> list[Effect]:
        """Handle an OffsetDelete; offsets of topics that the group reads are kept."""
        error = self.check_group(request.group_id)
        group = self._groups.get(request.group_id)
        if not error and group is None:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        elif not error and group is not None and not group.has_deletable_offsets():
            error = ErrorCode.NON_EMPTY_GROUP
        if error or group is None:
            response = OffsetDeleteResponse(error=error)
        else:
            errors = {
                partition: ErrorCode.NONE
                if group.may_delete_offsets(partition.topic)
                else ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                for partition in request.partitions
            }
            self._forget(group, [p for p, refused in errors.items() if not refused], now_ms)
            response = OffsetDeleteResponse(error=ErrorCode.NONE, errors=errors)
        self._outbox.response(ticket, response)
        return self._outbox.drain()

    def delete_groups(self, ticket: Ticket, group_ids: Iterable[str], now_ms: int) -> list[Effect]:
        """Handle a DeleteGroups; only empty groups are deleted."""
        # A group that is named twice is deleted once.
        wanted = dict.fromkeys(group_ids)
        errors = {group_id: self._delete_group(group_id, now_ms) for group_id in wanted}
        self._outbox.response(ticket, DeleteGroupsResponse(errors=errors))
        return self._outbox.drain()

    # Requests that get their response at once and write nothing

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Handle a Heartbeat: prolong the session, or tell of a rebalance."""
        error = self.check_group(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            return ErrorCode.NONE  # no member has timed out yet, as far as this broker knows
        group = self._groups.get(request.group_id)
        if error or group is None:
            return error or ErrorCode.UNKNOWN_MEMBER_ID
        return self._membership.heartbeat(group, request, now_ms)

    def fetch_offsets(self, request: OffsetFetchRequest) -> OffsetFetchResponse:
        """The committed offsets of a group, or an error."""
        error = self.check_group(request.group_id, may_be_empty=True)
        if error:
            return OffsetFetchResponse(error=error)
        group = self._groups.get(request.group_id)
        if group is None:
            offsets = {partition: FetchedOffset() for partition in request.partitions or ()}
        else:
            wanted = group.offsets if request.partitions is None else request.partitions
            offsets = {
                partition: group.offsets.fetch(partition, require_stable=request.require_stable)
                for partition in wanted
            }
        return OffsetFetchResponse(error=ErrorCode.NONE, offsets=offsets)

    def describe_group(self, group_id: str) -> DescribedGroup:
        """The state and the members of a group; an unknown group is dead."""
        error = self.check_group(group_id, may_be_empty=True)
        if error:
            return DescribedGroup(error=error, group_id=group_id)
        group = self._groups.get(group_id)
        if group is None:
            state = GroupState.DEAD.value
            return DescribedGroup(error=ErrorCode.NONE, group_id=group_id, state=state)
        return group.describe()

    def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = ()
    ) -> Steps[GroupList]:
        """Steps that find the groups in one of `states`, compared without case; empty means all."""
        wanted = {state.lower() for state in states}
        groups = []
        if not types or GROUP_TYPE in {name.lower() for name in types}:
            for group in list(self._groups.values()):
                yield None
                if not wanted or group.state.value.lower() in wanted:
                    listed = ListedGroup(group.id, group.protocol_type or "", group.state.value)
                    groups.append(listed)
        error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if self._loading else ErrorCode.NONE
        return GroupList(error=error, groups=groups)

    def census(self) -> GroupCounts:
        """The counts for the metrics."""
        states = Counter(group.state for group in self._groups.values())
        return GroupCounts(
            {state: states[state] for state in GroupState},
            sum(len(group.offsets) for group in self._groups.values()),
            self._timers.count(TimerKind.SESSION, TimerKind.PENDING_MEMBER),
            self._timers.count(TimerKind.JOIN, TimerKind.SYNC),
        )

    # Other events

    def appended(self, number: int, error: ErrorCode, now_ms: int) -> list[Effect]:
        """The append `number` was acknowledged, or failed with `error`."""
        self._outbox.report(number, error, now_ms)
        return self._outbox.drain()

    def end_transaction(self, partition: int, producer_id: int, *, is_commit: bool) -> None:
        """A marker is replicated in `partition`: the transaction's offsets count, or are forgotten.

        A marker that comes while the log is read may or may not be read, so it is kept for later.
        """
        loading = self._loading.get(partition)
        if loading is not None:
            loading.late_markers.append((producer_id, is_commit))
        for group_id in self._transactional.pop((partition, producer_id), ()):
            group = self._groups.get(group_id)
            if group is not None:
                group.offsets.end_transaction(producer_id, is_commit=is_commit)

    def partitions_deleted(
        self, partitions: Collection[TopicPartition], now_ms: int
    ) -> list[Effect]:
        """Delete the offsets of partitions that were deleted."""
        for group in list(self._groups.values()):
            self._forget(group, partitions, now_ms)
        return self._outbox.drain()

    def next_deadline_ms(self) -> int | None:
        """When to call `tick` next; None if no deadline is pending."""
        return self._timers.next_deadline_ms()

    def tick(self, now_ms: int) -> list[Effect]:
        """Act on the deadlines that have passed."""
        for timer in self._timers.due(now_ms):
            if timer == _RETENTION:
                self._expire_offsets(now_ms)
                continue
            group = self._groups[timer.group_id]
            match timer.kind:
                case TimerKind.SESSION:
                    self._membership.on_session_timeout(group, timer.member_id, now_ms)
                case TimerKind.PENDING_MEMBER:
                    self._membership.on_pending_timeout(group, timer.member_id, now_ms)
                case TimerKind.JOIN:
                    self._membership.on_join_timeout(group, now_ms)
                case TimerKind.SYNC:
                    self._membership.on_sync_timeout(group, now_ms)
        return self._outbox.drain()

    # Checks

    def check_group(self, group_id: str, *, may_be_empty: bool = False) -> ErrorCode:
        """Whether this broker coordinates the group.

        Consumers without a group id, which are older than groups, keep offsets under the empty one.
        """
        if not (group_id or may_be_empty) or not is_storable(group_id):
            return ErrorCode.INVALID_GROUP_ID
        if group_id in self._groups:
            return ErrorCode.NONE
        partition = group_partition(group_id, self.partition_count)
        if partition in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.NONE if partition in self._owned else ErrorCode.NOT_COORDINATOR

    def _check_join(self, request: JoinRequest) -> ErrorCode:
        if error := self.check_group(request.group_id):
            return error
        low, high = self._config.min_session_timeout_ms, self._config.max_session_timeout_ms
        if not low <= request.session_timeout_ms <= high:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        names = (protocol.name for protocol in request.protocols)
        member_id = f"{request.instance_id or request.client_id}-{_LONGEST_UUID}"
        if not is_storable(member_id, request.client_id, request.protocol_type, *names):
            return ErrorCode.INVALID_REQUEST
        return ErrorCode.NONE

    def _check_sync(self, request: SyncRequest) -> ErrorCode:
        names_protocol = request.protocol_type is not None and request.protocol is not None
        if request.version >= FIRST_SYNC_WITH_PROTOCOL and not names_protocol:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        error = self.check_group(request.group_id)
        if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            # The rebalance under way is lost, so the member should rejoin at this coordinator.
            return ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def _is_current(self, partition: int, epoch: int) -> bool:
        """Remember a leader epoch of `partition`; return whether it is the latest."""
        if epoch < self._epochs.get(partition, epoch):
            return False
        self._epochs[partition] = epoch
        return True

    def _replay(self, partition: int, epoch: int) -> Replay | None:
        replay = self._loading.get(partition)
        return replay if replay is not None and replay.epoch == epoch else None

    # Groups and offsets

    def _create(self, group_id: str, now_ms: int) -> GroupMetadata:
        partition = group_partition(group_id, self.partition_count)
        group = self._groups[group_id] = GroupMetadata(group_id, partition, state_since_ms=now_ms)
        return group

    def _commit(
        self, group: GroupMetadata, ticket: Ticket, request: OffsetCommitRequest, now_ms: int
    ) -> None:
        if request.producer is None and request.member_id in group.members:
            self._membership.touch(group, request.member_id, now_ms)
        expire_ms = None if request.retention_ms is None else now_ms + request.retention_ms
        errors = dict.fromkeys(request.offsets, ErrorCode.NONE)
        offsets: dict[TopicPartition, CommittedOffset] = {}
        for partition, (offset, leader_epoch, given_metadata) in request.offsets.items():
            metadata = given_metadata or ""
            if len(metadata) > self._config.offset_metadata_max_bytes or not is_storable(metadata):
                errors[partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            offsets[partition] = CommittedOffset(offset, leader_epoch, metadata, now_ms, expire_ms)
        if not offsets:
            self._outbox.response(ticket, OffsetCommitResponse(errors=errors))
            return

        producer = request.producer

        def on_appended(error: ErrorCode, _: int) -> None:
            if error:
                errors.update(dict.fromkeys(offsets, _COMMIT_ERRORS.get(error, error)))
            if producer is None:
                if error:
                    group.offsets.fail_commit(offsets, number)
                else:
                    group.offsets.finish_commit(offsets, number)
            elif error:
                group.offsets.fail_transactional_commit(producer.producer_id, offsets, number)
            else:
                group.offsets.finish_transactional_commit(producer.producer_id, offsets, number)
            self._outbox.response(ticket, OffsetCommitResponse(errors=errors))

        records = [
            offset_record(OffsetKey(group.id, *partition), committed)
            for partition, committed in offsets.items()
        ]
        number = self._outbox.append(group.partition, records, now_ms, on_appended, producer)
        if producer is None:
            group.offsets.begin_commit(offsets, number)
        else:
            group.offsets.begin_transactional_commit(producer.producer_id, offsets, number)
            self._note_transaction(group, producer.producer_id)

    def _note_transaction(self, group: GroupMetadata, producer_id: int) -> None:
        self._transactional.setdefault((group.partition, producer_id), set()).add(group.id)

    def _delete_group(self, group_id: str, now_ms: int) -> ErrorCode:
        if error := self.check_group(group_id, may_be_empty=True):
            return error
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        if group.state is not GroupState.EMPTY:
            return ErrorCode.NON_EMPTY_GROUP
        self._bury(group, group.offsets.remove_all(), now_ms)
        return ErrorCode.NONE

    def _expire_offsets(self, now_ms: int) -> None:
        for group in list(self._groups.values()):
            expired = group.expired_offsets(now_ms, self._config.offsets_retention_ms)
            self._forget(group, expired, now_ms)
        self._arm_retention(now_ms)

    def _arm_retention(self, now_ms: int) -> None:
        self._timers.arm(_RETENTION, now_ms + self._config.retention_check_interval_ms)

    def _forget(
        self, group: GroupMetadata, partitions: Iterable[TopicPartition], now_ms: int
    ) -> None:
        """Delete offsets, and the group if it has no members and no other offsets."""
        removed = group.offsets.remove(partitions)
        if group.is_forgettable():
            self._bury(group, removed, now_ms)
        elif removed:
            self._write_tombstones(group, _offset_tombstones(group, removed), now_ms)

    def _bury(self, group: GroupMetadata, removed: Iterable[TopicPartition], now_ms: int) -> None:
        tombstones = _offset_tombstones(group, removed)
        if group.generation > 0:  # otherwise nothing but offsets was ever written
            tombstones.append(group_tombstone(group.id))
        self._membership.end(group, ErrorCode.UNKNOWN_MEMBER_ID, now_ms)
        del self._groups[group.id]
        if tombstones:
            self._write_tombstones(group, tombstones, now_ms)

    def _write_tombstones(
        self, group: GroupMetadata, tombstones: list[GroupRecord], now_ms: int
    ) -> None:
        self._outbox.append_unawaited(group.partition, tombstones, now_ms)


def _offset_tombstones(
    group: GroupMetadata, partitions: Iterable[TopicPartition]
) -> list[GroupRecord]:
    return [offset_tombstone(OffsetKey(group.id, *partition)) for partition in partitions]
