"""The membership of groups: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and their timeouts.

A rebalance has two phases. In the join phase (PreparingRebalance) every member sends a JoinGroup,
which is delayed; when all members have joined or the phase times out, a new generation begins and
all responses are sent. In the sync phase (CompletingRebalance) each SyncGroup is delayed until the
leader's assignment is in the log.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from klamm.broker.groups.effects import Continuation, Outbox, Ticket
from klamm.broker.groups.group import GroupMetadata, GroupState, MemberMetadata
from klamm.broker.groups.messages import (
    UNKNOWN_MEMBER,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    MemberIdentity,
    SyncRequest,
    SyncResponse,
)
from klamm.broker.groups.records import group_record
from klamm.broker.groups.timers import GroupTimer, GroupTimers, TimerKind
from klamm.protocol.codes import ErrorCode

#: The timeout of a new member's first JoinGroup. A client that gives up on a long join phase joins
#: again under a new id, and the broker cannot know that the first attempt is abandoned.
NEW_MEMBER_JOIN_TIMEOUT_MS: Final = 5 * 60_000

#: From this version of JoinGroup on, a new member is sent its id and has to join with it (KIP-394).
FIRST_JOIN_WITH_KNOWN_ID: Final = 4
#: From this version on, a leader can be told to skip the assignment (KIP-814).
FIRST_JOIN_WITH_SKIP: Final = 9
FIRST_JOIN_WITH_REBALANCE_TIMEOUT: Final = 1
#: From this version on, SyncGroup has to name the protocol that it is about (KIP-559).
FIRST_SYNC_WITH_PROTOCOL: Final = 5

#: The errors for members when the append of their generation fails.
_STORE_ERRORS: Final[Mapping[ErrorCode, ErrorCode]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}

_S = GroupState


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig:
    """Limits and delays; each field names the broker setting that it comes from."""

    min_session_timeout_ms: int = 6_000  # group.min.session.timeout.ms
    max_session_timeout_ms: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
    max_size: int = 2**31 - 1  # group.max.size
    offsets_retention_ms: int = 10_080 * 60_000  # offsets.retention.minutes
    retention_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    offset_metadata_max_bytes: int = 4_096  # offset.metadata.max.bytes
    commit_timeout_ms: int = 5_000  # offsets.commit.timeout.ms
    commit_required_acks: int = -1  # offsets.commit.required.acks


class Membership:
    """Moves groups through their states, and responds to their members."""

    def __init__(
        self, config: GroupConfig, outbox: Outbox, timers: GroupTimers, new_uuid: Callable[[], str]
    ) -> None:
        self._config = config
        self._outbox = outbox
        self._timers = timers
        self._new_uuid = new_uuid

    # JoinGroup

    def join(self, group: GroupMetadata, ticket: Ticket, request: JoinRequest, now_ms: int) -> None:
        """Add or update a member, and delay its response until the join phase ends."""
        member = group.members.get(request.member_id)
        if not self._has_room(group, member):
            if member is not None:
                self._discard(group, member)
            self._refuse_join(ticket, UNKNOWN_MEMBER, ErrorCode.GROUP_MAX_SIZE_REACHED)
        elif not group.supports(request.protocol_type, request.protocols):
            self._refuse_join(ticket, request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        elif request.member_id == UNKNOWN_MEMBER:
            self._join_without_id(group, ticket, request, now_ms)
        elif request.member_id in group.pending_ids and request.instance_id is None:
            self._timers.cancel(_pending_timer(group, request.member_id))
            self._add_member(group, ticket, request, request.member_id, now_ms)
        elif error := group.check_member(request.member_id, request.instance_id):
            self._refuse_join(ticket, request.member_id, error)
        else:
            assert member is not None
            self._rejoin(group, member, ticket, request, now_ms)
        self._end_join_phase_if_complete(group, now_ms)

    def _has_room(self, group: GroupMetadata, member: MemberMetadata | None) -> bool:
        if group.state is _S.EMPTY:
            return True
        if group.state is _S.PREPARING_REBALANCE:
            # If the group has become larger than the limit, counting the members that have joined
            # refuses the last ones to rejoin.
            is_waiting = member is not None and member.join_ticket is not None
            return is_waiting or group.joined < self._config.max_size
        return member is not None or len(group.members) < self._config.max_size

    def _join_without_id(
        self, group: GroupMetadata, ticket: Ticket, request: JoinRequest, now_ms: int
    ) -> None:
        name = request.client_id if request.instance_id is None else request.instance_id
        member_id = f"{name}-{self._new_uuid()}"
        if request.instance_id is not None and request.instance_id in group.instances:
            self._replace_static(group, ticket, request, member_id, now_ms)
        elif request.instance_id is None and request.version >= FIRST_JOIN_WITH_KNOWN_ID:
            group.pending_ids.add(member_id)
            self._timers.arm(_pending_timer(group, member_id), now_ms + request.session_timeout_ms)
            self._refuse_join(ticket, member_id, ErrorCode.MEMBER_ID_REQUIRED)
        else:
            self._add_member(group, ticket, request, member_id, now_ms)

    def _add_member(
        self,
        group: GroupMetadata,
        ticket: Ticket,
        request: JoinRequest,
        member_id: str,
        now_ms: int,
    ) -> None:
        member = MemberMetadata(
            id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=_rebalance_timeout_ms(request),
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            is_new=True,
        )
        if not group.members:
            group.protocol_type = request.protocol_type
        if group.state is _S.PREPARING_REBALANCE and group.generation == 0:
            group.more_may_come = True
        group.add(member)
        group.park_join(member, ticket)
        self._restart_session(group, member, now_ms)
        self._rebalance(group, now_ms)

    def _rejoin(
        self,
        group: GroupMetadata,
        member: MemberMetadata,
        ticket: Ticket,
        request: JoinRequest,
        now_ms: int,
    ) -> None:
        is_unchanged = member.protocols == request.protocols
        if is_unchanged and (
            group.state is _S.COMPLETING_REBALANCE
            # A leader that rejoins wants a new assignment: it alone watches the topics' metadata.
            or (group.state is _S.STABLE and group.leader != member.id)
        ):
            # The member may not have received its response.
            self._outbox.response(ticket, group.join_response(member))
            self._restart_session(group, member, now_ms)
            return
        group.update(
            member, request.protocols, _rebalance_timeout_ms(request), request.session_timeout_ms
        )
        self._park_join(group, member, ticket)
        self._restart_session(group, member, now_ms)
        self._rebalance(group, now_ms)

    def _replace_static(
        self,
        group: GroupMetadata,
        ticket: Ticket,
        request: JoinRequest,
        member_id: str,
        now_ms: int,
    ) -> None:
        """Replace a static member that joins without a member id after a restart."""
        assert request.instance_id is not None
        member = group.members[group.instances[request.instance_id]]
        old_leader = group.leader
        self._respond_to_delayed(group, member, member.id, ErrorCode.FENCED_INSTANCE_ID)
        self._timers.cancel(_session_timer(group, member))
        group.rename(member, member_id)
        group.update(
            member, request.protocols, _rebalance_timeout_ms(request), request.session_timeout_ms
        )
        group.park_join(member, ticket)
        self._restart_session(group, member, now_ms)

        if group.state is _S.STABLE and group.choose_protocol() == group.protocol:
            assert old_leader is not None
            self._store_replacement(group, member, request.version, old_leader, now_ms)
        else:
            # In CompletingRebalance the leader may be assigning partitions to the old id right now.
            self._rebalance(group, now_ms)

    def _store_replacement(
        self,
        group: GroupMetadata,
        member: MemberMetadata,
        version: int,
        old_leader: str,
        now_ms: int,
    ) -> None:
        """Let a replaced member keep its assignment, once its new id is in the log."""
        group.subscribed = group.compute_subscribed()
        ticket = member.join_ticket

        def on_stored(error: ErrorCode, stored_ms: int) -> None:
            if group.state is not _S.STABLE or member.join_ticket != ticket:
                return  # answered already, or waiting in a join phase that began meanwhile
            if error:
                response = _join_refusal(UNKNOWN_MEMBER, error)
            elif version >= FIRST_JOIN_WITH_SKIP:
                response = group.join_response(member, skip_assignment=True)
            else:
                # A leader would compute an assignment that the stable group ignores. With the old
                # leader's id in the response the member considers itself a follower.
                response = replace(group.join_response(member), leader=old_leader, members=())
            self._respond_to_join(group, member, response)
            self._restart_session(group, member, stored_ms)

        assignments = {known.id: known.assignment for known in group.members.values()}
        self._store(group, assignments, now_ms, on_stored)

    # SyncGroup

    def sync(self, group: GroupMetadata, ticket: Ticket, request: SyncRequest, now_ms: int) -> None:
        """Send a member its assignment; delay the response until there is one."""
        error = self._check_sync(group, request)
        if error:
            self._outbox.response(ticket, SyncResponse(error=error))
            return
        member = group.members[request.member_id]
        group.unsynced.discard(member.id)
        if not group.unsynced:
            self._timers.cancel(GroupTimer(TimerKind.SYNC, group.id))
        if group.state is _S.STABLE:
            self._outbox.response(ticket, group.sync_response(member))
            self._restart_session(group, member, now_ms)
            return
        self._respond_to_sync(member, SyncResponse(error=ErrorCode.REBALANCE_IN_PROGRESS))
        member.sync_ticket = ticket
        # A leader that syncs again while its first assignment is being stored keeps the first.
        if member.id == group.leader and group.storing_generation != group.generation:
            self._store_assignments(group, request.assignments, now_ms)

    def _check_sync(self, group: GroupMetadata, request: SyncRequest) -> ErrorCode:
        if error := group.check_member(request.member_id, request.instance_id):
            return error
        if request.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if request.protocol_type not in (None, group.protocol_type):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if request.protocol not in (None, group.protocol):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is _S.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _store_assignments(
        self, group: GroupMetadata, assignments: Mapping[str, bytes], now_ms: int
    ) -> None:
        generation = group.storing_generation = group.generation

        def on_stored(error: ErrorCode, stored_ms: int) -> None:
            if group.state is not _S.COMPLETING_REBALANCE or group.generation != generation:
                return  # someone came or went; the next assignment is the one that counts
            if error:
                self._break_off_sync_phase(group, error, stored_ms)
                self._rebalance(group, stored_ms)
                return
            for member in group.members.values():
                member.assignment = assignments.get(member.id, b"")
                if self._respond_to_sync(member, group.sync_response(member)):
                    self._restart_session(group, member, stored_ms)
            group.enter(_S.STABLE, stored_ms)

        self._store(group, assignments, now_ms, on_stored)

    def _store(
        self,
        group: GroupMetadata,
        assignments: Mapping[str, bytes],
        now_ms: int,
        then: Continuation,
    ) -> None:
        self._outbox.append(
            group.partition,
            [group_record(group.id, group.stored(assignments))],
            now_ms,
            lambda error, at_ms: then(_STORE_ERRORS.get(error, error), at_ms),
        )

    # Heartbeat and LeaveGroup

    def heartbeat(self, group: GroupMetadata, request: HeartbeatRequest, now_ms: int) -> ErrorCode:
        """Renew a member's session; tell it to rejoin if a rebalance is under way."""
        if error := group.check_member(request.member_id, request.instance_id):
            return error
        if request.generation != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        self.touch(group, request.member_id, now_ms)
        if group.state is _S.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def touch(self, group: GroupMetadata, member_id: str, now_ms: int) -> None:
        """Renew the session of a member that has sent any request."""
        self._restart_session(group, group.members[member_id], now_ms)

    def leave(
        self, group: GroupMetadata, ticket: Ticket, request: LeaveRequest, now_ms: int
    ) -> None:
        """Remove members that leave, or that an administrator removes."""
        results = tuple(
            (identity, self._leave(group, identity, now_ms)) for identity in request.members
        )
        self._outbox.response(ticket, LeaveResponse(error=ErrorCode.NONE, members=results))

    def _leave(self, group: GroupMetadata, identity: MemberIdentity, now_ms: int) -> ErrorCode:
        member_id, instance_id = identity
        if member_id == UNKNOWN_MEMBER and instance_id is not None:
            member_id = group.instances.get(instance_id, UNKNOWN_MEMBER)
        if member_id in group.pending_ids:
            self._drop_pending(group, member_id, now_ms)
            return ErrorCode.NONE
        if error := group.check_member(member_id, instance_id):
            return error
        self._remove(group, group.members[member_id], now_ms)
        return ErrorCode.NONE

    # Time

    def on_session_timeout(self, group: GroupMetadata, member_id: str, now_ms: int) -> None:
        """Remove a member whose session has timed out."""
        member = group.members[member_id]
        # A member with a delayed request cannot send heartbeats; the response renews its session.
        if member.is_new or not member.is_parked:
            self._remove(group, member, now_ms)

    def on_pending_timeout(self, group: GroupMetadata, member_id: str, now_ms: int) -> None:
        """Forget a new member id whose client did not join with it."""
        self._drop_pending(group, member_id, now_ms)

    def on_join_timeout(self, group: GroupMetadata, now_ms: int) -> None:
        """End the join phase; extend the initial one if members are still joining."""
        left_ms = group.initial_delay_left_ms
        if left_ms and group.more_may_come:
            delay_ms = min(self._config.initial_rebalance_delay_ms, left_ms)
            group.more_may_come = False
            group.initial_delay_left_ms = left_ms - delay_ms
            self._timers.arm(GroupTimer(TimerKind.JOIN, group.id), now_ms + delay_ms)
        else:
            self._end_join_phase(group, now_ms)

    def on_sync_timeout(self, group: GroupMetadata, now_ms: int) -> None:
        """Remove the members that did not send SyncGroup in time."""
        for member_id in sorted(group.unsynced):
            self._discard(group, group.members[member_id])
        self._rebalance(group, now_ms)

    # Phases

    def start_sessions(self, group: GroupMetadata, now_ms: int) -> None:
        """Start the sessions of the members of a group that was loaded from the log."""
        for member in group.members.values():
            self._restart_session(group, member, now_ms)
        if len(group.members) > self._config.max_size:
            # The limit was lowered. Members may commit before they join again and some are refused.
            self._rebalance(group, now_ms)

    def end(self, group: GroupMetadata, error: ErrorCode, now_ms: int) -> None:
        """Fail the delayed requests of a group that has moved to another coordinator."""
        for member in group.members.values():
            self._respond_to_delayed(group, member, member.id, error)
            self._timers.cancel(_session_timer(group, member))
        for member_id in group.pending_ids:
            self._timers.cancel(_pending_timer(group, member_id))
        self._timers.cancel(GroupTimer(TimerKind.JOIN, group.id))
        self._timers.cancel(GroupTimer(TimerKind.SYNC, group.id))
        group.enter(_S.DEAD, now_ms)

    def _rebalance(self, group: GroupMetadata, now_ms: int) -> None:
        """Begin a join phase, unless one is under way."""
        if group.state is _S.PREPARING_REBALANCE:
            self._end_join_phase_if_complete(group, now_ms)
            return
        if group.state is _S.COMPLETING_REBALANCE:
            self._break_off_sync_phase(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms)
        self._timers.cancel(GroupTimer(TimerKind.SYNC, group.id))
        wait_ms = group.rebalance_timeout_ms
        if group.state is _S.EMPTY:
            # Consumers are often started together: an initial delay saves a rebalance for each.
            delay_ms = self._config.initial_rebalance_delay_ms
            group.initial_delay_left_ms = max(wait_ms - delay_ms, 0)
            wait_ms = delay_ms
        group.enter(_S.PREPARING_REBALANCE, now_ms)
        self._timers.arm(GroupTimer(TimerKind.JOIN, group.id), now_ms + wait_ms)
        self._end_join_phase_if_complete(group, now_ms)

    def _break_off_sync_phase(self, group: GroupMetadata, error: ErrorCode, now_ms: int) -> None:
        for member in group.members.values():
            member.assignment = b""
            if self._respond_to_sync(member, SyncResponse(error=error)):
                self._restart_session(group, member, now_ms)

    def _end_join_phase_if_complete(self, group: GroupMetadata, now_ms: int) -> None:
        if (
            group.state is _S.PREPARING_REBALANCE
            and group.initial_delay_left_ms is None
            and group.everyone_joined
        ):
            self._end_join_phase(group, now_ms)

    def _end_join_phase(self, group: GroupMetadata, now_ms: int) -> None:
        for member in list(group.members.values()):
            if member.join_ticket is None and not member.is_static:
                self._discard(group, member)
        if group.members and not group.elect_joined_leader():
            # Static members may be restarting: they stay until their sessions end.
            group.initial_delay_left_ms = None
            self._timers.arm(
                GroupTimer(TimerKind.JOIN, group.id), now_ms + group.rebalance_timeout_ms
            )
            return
        self._timers.cancel(GroupTimer(TimerKind.JOIN, group.id))
        group.begin_generation(now_ms)
        if not group.members:
            # If the record is lost, the previous generation is loaded, and its members time out.
            self._outbox.append(
                group.partition, [group_record(group.id, group.stored({}))], now_ms, then=None
            )
            return
        self._timers.arm(GroupTimer(TimerKind.SYNC, group.id), now_ms + group.rebalance_timeout_ms)
        for member in group.members.values():
            member.is_new = False
            self._respond_to_join(group, member, group.join_response(member))
            self._restart_session(group, member, now_ms)

    # Single members

    def _remove(self, group: GroupMetadata, member: MemberMetadata, now_ms: int) -> None:
        """Remove a member and start a rebalance."""
        self._discard(group, member)
        self._rebalance(group, now_ms)

    def _discard(self, group: GroupMetadata, member: MemberMetadata) -> None:
        self._respond_to_delayed(group, member, UNKNOWN_MEMBER, ErrorCode.UNKNOWN_MEMBER_ID)
        self._timers.cancel(_session_timer(group, member))
        group.remove(member)

    def _drop_pending(self, group: GroupMetadata, member_id: str, now_ms: int) -> None:
        self._timers.cancel(_pending_timer(group, member_id))
        group.pending_ids.discard(member_id)
        self._end_join_phase_if_complete(group, now_ms)

    def _restart_session(self, group: GroupMetadata, member: MemberMetadata, now_ms: int) -> None:
        timeout_ms = NEW_MEMBER_JOIN_TIMEOUT_MS if member.is_new else member.session_timeout_ms
        self._timers.arm(_session_timer(group, member), now_ms + timeout_ms)

    # Responses

    def _park_join(self, group: GroupMetadata, member: MemberMetadata, ticket: Ticket) -> None:
        # A client that sends this request has given up on an earlier one.
        self._respond_to_join(
            group, member, _join_refusal(member.id, ErrorCode.REBALANCE_IN_PROGRESS)
        )
        group.park_join(member, ticket)

    def _refuse_join(self, ticket: Ticket, member_id: str, error: ErrorCode) -> None:
        self._outbox.response(ticket, _join_refusal(member_id, error))

    def _respond_to_delayed(
        self, group: GroupMetadata, member: MemberMetadata, member_id: str, error: ErrorCode
    ) -> None:
        self._respond_to_join(group, member, _join_refusal(member_id, error))
        self._respond_to_sync(member, SyncResponse(error=error))

    def _respond_to_join(
        self, group: GroupMetadata, member: MemberMetadata, response: JoinResponse
    ) -> None:
        ticket = group.take_join(member)
        if ticket is not None:
            self._outbox.response(ticket, response)

    def _respond_to_sync(self, member: MemberMetadata, response: SyncResponse) -> bool:
        ticket = member.take_sync()
        if ticket is not None:
            self._outbox.response(ticket, response)
        return ticket is not None


def _rebalance_timeout_ms(request: JoinRequest) -> int:
    if request.version < FIRST_JOIN_WITH_REBALANCE_TIMEOUT:
        return request.session_timeout_ms
    return request.rebalance_timeout_ms


def _join_refusal(member_id: str, error: ErrorCode) -> JoinResponse:
    return JoinResponse(error=error, member_id=member_id)


def _session_timer(group: GroupMetadata, member: MemberMetadata) -> GroupTimer:
    return GroupTimer(TimerKind.SESSION, group.id, member.id)


def _pending_timer(group: GroupMetadata, member_id: str) -> GroupTimer:
    return GroupTimer(TimerKind.PENDING_MEMBER, group.id, member_id)
