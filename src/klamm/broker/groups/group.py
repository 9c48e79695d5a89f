"""The state of one group: its members, its generation, and its protocol.

`GroupMetadata` holds the state and keeps its counts consistent. `membership.py` decides when the
group changes its state and which members are told.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from klamm.broker.groups.effects import Ticket
from klamm.broker.groups.messages import (
    NO_GENERATION,
    UNKNOWN_MEMBER,
    DescribedGroup,
    DescribedMember,
    GroupProtocol,
    JoinedMember,
    JoinResponse,
    SyncResponse,
)
from klamm.broker.groups.offsets import GroupOffsets
from klamm.broker.groups.records import StoredGroup, StoredMember, subscribed_topics
from klamm.errors import IllegalTransitionError, RemoteProtocolError
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode

#: The protocol type of Kafka's consumers, whose metadata names the topics they subscribe to.
CONSUMER: Final = "consumer"


class GroupState(enum.Enum):
    """The values are the names that DescribeGroups and ListGroups show."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_S = GroupState

#: target: the states it may be entered from.
ENTERED_FROM: Final[Mapping[GroupState, Collection[GroupState]]] = {
    _S.EMPTY: {_S.PREPARING_REBALANCE},
    _S.PREPARING_REBALANCE: {_S.EMPTY, _S.COMPLETING_REBALANCE, _S.STABLE},
    _S.COMPLETING_REBALANCE: {_S.PREPARING_REBALANCE},
    _S.STABLE: {_S.COMPLETING_REBALANCE},
    # A partition can move away at any time, and takes its groups with it.
    _S.DEAD: {_S.EMPTY, _S.PREPARING_REBALANCE, _S.COMPLETING_REBALANCE, _S.STABLE},
}


@dataclass(slots=True, eq=False)
class MemberMetadata:
    """A member of a group, and its delayed request if there is one."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[GroupProtocol, ...]
    assignment: bytes = b""
    is_new: bool = False  # has yet to see a join phase end, so it does not know its id
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None

    @property
    def is_static(self) -> bool:
        return self.instance_id is not None

    @property
    def protocol_names(self) -> set[str]:
        return {protocol.name for protocol in self.protocols}

    @property
    def is_parked(self) -> bool:
        """Whether a request of the member is delayed, so that it cannot send heartbeats."""
        return self.join_ticket is not None or self.sync_ticket is not None

    def take_sync(self) -> Ticket | None:
        """Take the ticket of the member's delayed SyncGroup."""
        ticket, self.sync_ticket = self.sync_ticket, None
        return ticket

    def metadata(self, protocol: str | None) -> bytes:
        """The member's metadata for this protocol."""
        return next((p.metadata for p in self.protocols if p.name == protocol), b"")

    def vote(self, candidates: Collection[str]) -> str:
        """The first of the member's protocols that is a candidate."""
        return next(p.name for p in self.protocols if p.name in candidates)


@dataclass(slots=True, eq=False)
class GroupMetadata:
    """The state of one group. Members are in the order in which they joined."""

    id: str
    partition: int
    state: GroupState = GroupState.EMPTY
    state_since_ms: int | None = None  # None: loaded from a record that did not know
    generation: int = 0
    protocol_type: str | None = None  # None: no member ever joined, the group only has offsets
    protocol: str | None = None
    leader: str | None = None
    members: dict[str, MemberMetadata] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)  # instance id: member id
    pending_ids: set[str] = field(default_factory=set)  # handed out, and yet to come back
    unsynced: set[str] = field(default_factory=set)  # have yet to ask for this assignment
    subscribed: frozenset[str] | None = None  # topics; None: not known
    offsets: GroupOffsets = field(default_factory=GroupOffsets)
    #: How much longer the first join phase may be drawn out; None in a join phase like any other.
    initial_delay_left_ms: int | None = None
    more_may_come: bool = False  # someone joined during the initial delay
    storing_generation: int = NO_GENERATION  # whose assignment was handed to the log
    _supporters: Counter[str] = field(default_factory=Counter)  # of each protocol
    _joined: int = 0  # how many members wait in JoinGroup

    @classmethod
    def load(cls, group_id: str, partition: int, stored: StoredGroup) -> GroupMetadata:
        """Make the group from the record of its last coordinator."""
        group = cls(
            id=group_id,
            partition=partition,
            state=GroupState.STABLE if stored.members else GroupState.EMPTY,
            state_since_ms=stored.state_timestamp_ms,
            generation=stored.generation,
            protocol_type=stored.protocol_type or None,
            protocol=stored.protocol,
        )
        for member in stored.members:
            group.add(
                MemberMetadata(
                    id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    # The other protocols it knows were not stored; it names them when it rejoins.
                    protocols=(GroupProtocol(stored.protocol or "", member.subscription),),
                    assignment=member.assignment,
                )
            )
        if stored.leader in group.members:
            group.leader = stored.leader
        group.subscribed = group.compute_subscribed()
        return group

    def stored(self, assignments: Mapping[str, bytes]) -> StoredGroup:
        """The group as it is stored for its next coordinator."""
        return StoredGroup(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol,
            leader=self.leader,
            state_timestamp_ms=self.state_since_ms,
            members=tuple(
                StoredMember(
                    member_id=member.id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout_ms=member.rebalance_timeout_ms,
                    session_timeout_ms=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol),
                    assignment=assignments.get(member.id, b""),
                )
                for member in self.members.values()
            ),
        )

    def enter(self, state: GroupState, now_ms: int) -> None:
        """Move to `state`, if the table allows it."""
        if self.state not in ENTERED_FROM[state]:
            raise IllegalTransitionError(
                f"group {self.id} in generation {self.generation}: "
                f"{self.state.value} to {state.value}"
            )
        self.state = state
        self.state_since_ms = now_ms

    # Members

    @property
    def joined(self) -> int:
        """The number of members with a delayed JoinGroup."""
        return self._joined

    @property
    def everyone_joined(self) -> bool:
        """Whether all members have joined, and no new member id is pending."""
        return self._joined == len(self.members) and not self.pending_ids

    @property
    def rebalance_timeout_ms(self) -> int:
        """The largest rebalance timeout of the members."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """The error if the request's member id and instance id do not belong together."""
        if instance_id is not None:
            holder = self.instances.get(instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def add(self, member: MemberMetadata) -> None:
        """Add `member`; the first member becomes the leader."""
        self.members[member.id] = member
        self.pending_ids.discard(member.id)
        if member.instance_id is not None:
            self.instances[member.instance_id] = member.id
        if self.leader is None:
            self.leader = member.id
        self._supporters.update(member.protocol_names)

    def remove(self, member: MemberMetadata) -> None:
        """Remove `member`, which has no delayed request.

        Another member becomes leader if it was.
        """
        del self.members[member.id]
        self.unsynced.discard(member.id)
        if member.instance_id is not None:
            del self.instances[member.instance_id]
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)
        self._supporters.subtract(member.protocol_names)

    def rename(self, member: MemberMetadata, member_id: str) -> None:
        """Give a static member another member id, and keep the rest of its state."""
        assert member.instance_id is not None
        self.members = {
            member_id if known.id == member.id else known.id: known
            for known in self.members.values()
        }
        self.instances[member.instance_id] = member_id
        if self.leader == member.id:
            self.leader = member_id
        if member.id in self.unsynced:
            self.unsynced.remove(member.id)
            self.unsynced.add(member_id)
        member.id = member_id

    def update(
        self,
        member: MemberMetadata,
        protocols: tuple[GroupProtocol, ...],
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
    ) -> None:
        """Update a member that joins again."""
        self._supporters.subtract(member.protocol_names)
        member.protocols = protocols
        self._supporters.update(member.protocol_names)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def park_join(self, member: MemberMetadata, ticket: Ticket) -> None:
        """Delay the member's JoinGroup; it has no other delayed."""
        assert member.join_ticket is None
        member.join_ticket = ticket
        self._joined += 1

    def take_join(self, member: MemberMetadata) -> Ticket | None:
        """Take the ticket of the member's delayed JoinGroup."""
        ticket, member.join_ticket = member.join_ticket, None
        if ticket is not None:
            self._joined -= 1
        return ticket

    # Protocols

    def supports(self, protocol_type: str, protocols: Collection[GroupProtocol]) -> bool:
        """Whether a member with these protocols can join."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type and protocols)
        return protocol_type == self.protocol_type and any(
            self._supporters[protocol.name] == len(self.members) for protocol in protocols
        )

    def choose_protocol(self) -> str:
        """Choose the protocol with the most votes among those that all members support."""
        candidates = {
            protocol for protocol, count in self._supporters.items() if count == len(self.members)
        }
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def compute_subscribed(self) -> frozenset[str] | None:
        """The topics that members of a consumer group subscribe to; None if unknown."""
        if self.protocol_type != CONSUMER or (self.members and self.protocol is None):
            return None
        try:
            return frozenset[str]().union(
                *(subscribed_topics(m.metadata(self.protocol)) for m in self.members.values())
            )
        except RemoteProtocolError:
            return None

    # Phases

    def elect_joined_leader(self) -> bool:
        """Make a member that has joined the leader; return False if no member has joined."""
        if self.leader is None:
            return False
        if self.members[self.leader].join_ticket is not None:
            return True
        joined = (m.id for m in self.members.values() if m.join_ticket is not None)
        self.leader = next(joined, self.leader)
        return self._joined > 0

    def begin_generation(self, now_ms: int) -> None:
        """End the join phase: begin the sync phase, or become empty without members."""
        self.generation += 1
        self.initial_delay_left_ms = None
        self.more_may_come = False
        self.protocol = self.choose_protocol() if self.members else None
        self.subscribed = self.compute_subscribed()
        self.unsynced = set(self.members)
        self.enter(
            GroupState.COMPLETING_REBALANCE if self.members else GroupState.EMPTY,
            now_ms,
        )

    # Responses

    def join_response(
        self, member: MemberMetadata, *, skip_assignment: bool = False
    ) -> JoinResponse:
        """The JoinGroup response of this member for the current generation."""
        assert self.leader is not None
        leads = member.id == self.leader
        return JoinResponse(
            error=ErrorCode.NONE,
            member_id=member.id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            leader=self.leader,
            skip_assignment=leads and skip_assignment,
            members=tuple(
                JoinedMember(m.id, m.instance_id, m.metadata(self.protocol))
                for m in self.members.values()
            )
            if leads
            else (),
        )

    def sync_response(self, member: MemberMetadata) -> SyncResponse:
        """The SyncGroup response of this member: its part of the assignment."""
        return SyncResponse(
            error=ErrorCode.NONE,
            protocol_type=self.protocol_type,
            protocol=self.protocol,
            assignment=member.assignment,
        )

    def describe(self) -> DescribedGroup:
        """The group for DescribeGroups; members have metadata and assignments only in Stable."""
        is_stable = self.state is GroupState.STABLE
        return DescribedGroup(
            error=ErrorCode.NONE,
            group_id=self.id,
            state=self.state.value,
            protocol_type=self.protocol_type or "",
            protocol=(self.protocol or "") if is_stable else "",
            members=tuple(
                DescribedMember(
                    member.id,
                    member.instance_id,
                    member.client_id,
                    member.client_host,
                    member.metadata(self.protocol) if is_stable else b"",
                    member.assignment if is_stable else b"",
                )
                for member in self.members.values()
            ),
        )

    # Offsets

    def check_commit(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """The error if the sender may not commit offsets now."""
        if generation < 0 and self.state is GroupState.EMPTY:
            return ErrorCode.NONE  # an administrator, or a consumer that does without membership
        if generation < 0 and member_id == UNKNOWN_MEMBER and instance_id is None:
            return ErrorCode.UNKNOWN_MEMBER_ID  # the offsets belong to the members
        if (error := self.check_member(member_id, instance_id)) is not ErrorCode.NONE:
            return error
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if self.state is GroupState.COMPLETING_REBALANCE:
            # A rebalance is under way: the sender should rejoin first.
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def check_transactional_commit(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Whether the sender may commit as part of a transaction (TXN-10).

        Old producers do not say which member they are, and are believed.
        """
        is_anonymous = member_id == UNKNOWN_MEMBER and instance_id is None
        if generation < 0 and (is_anonymous or self.state is GroupState.EMPTY):
            return ErrorCode.NONE
        if error := self.check_member(member_id, instance_id):
            return error
        return ErrorCode.NONE if generation == self.generation else ErrorCode.ILLEGAL_GENERATION

    def has_deletable_offsets(self) -> bool:
        """Whether the group is empty, or its subscribed topics are known."""
        return self.state is GroupState.EMPTY or self.protocol_type == CONSUMER

    def may_delete_offsets(self, topic: str) -> bool:
        """Whether no member subscribes to this topic."""
        return self.state is GroupState.EMPTY or topic not in (self.subscribed or ())

    def expired_offsets(self, now_ms: int, retention_ms: int) -> list[TopicPartition]:
        """Partitions whose offsets have expired."""
        if self.protocol_type is None:
            return self.offsets.expired(now_ms, retention_ms, lambda o: o.commit_timestamp_ms)
        if self.state is GroupState.EMPTY:
            since_ms = self.state_since_ms
            return self.offsets.expired(
                now_ms,
                retention_ms,
                lambda o: o.commit_timestamp_ms if since_ms is None else since_ms,
            )
        if self.state is GroupState.STABLE and self.subscribed is not None:
            return self.offsets.expired(
                now_ms, retention_ms, lambda o: o.commit_timestamp_ms, self.subscribed
            )
        return []

    def is_forgettable(self) -> bool:
        """Whether the group has no members and no offsets."""
        return self.state is GroupState.EMPTY and self.offsets.is_empty() and not self.pending_ids
