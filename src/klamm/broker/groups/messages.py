"""Requests to the group coordinator and its responses, free of wire formats and their versions.

A request carries its version where the version changes what the coordinator does, and not only how
the response is encoded.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode

NO_GENERATION: Final = -1
NO_OFFSET: Final = -1
NO_LEADER_EPOCH: Final = -1
#: The member id of a client that has none yet.
UNKNOWN_MEMBER: Final = ""


class GroupProtocol(NamedTuple):
    """An assignment strategy that a member supports, with the member's metadata for it."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup request."""

    group_id: str
    member_id: str
    protocol_type: str
    protocols: tuple[GroupProtocol, ...]  # in order of preference
    session_timeout_ms: int
    rebalance_timeout_ms: int  # means nothing in version 0, which has no such field
    client_id: str
    client_host: str  # "/" and the address, as Kafka stores and shows it
    version: int
    instance_id: str | None = None


class JoinedMember(NamedTuple):
    """A member in the leader's JoinGroup response."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResponse:
    """The response to a JoinGroup request."""

    error: ErrorCode
    member_id: str
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()  # empty for everyone but the leader


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A SyncGroup request."""

    group_id: str
    member_id: str
    generation: int
    version: int
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: Mapping[str, bytes] = field(default_factory=dict)  # from the leader alone


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResponse:
    """The response to a SyncGroup request: the assignment of one member."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatRequest:
    """A Heartbeat request."""

    group_id: str
    member_id: str
    generation: int
    instance_id: str | None = None


class MemberIdentity(NamedTuple):
    """A member that leaves. With an empty member id the instance id alone identifies it."""

    member_id: str
    instance_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequest:
    """A LeaveGroup request; old versions have one member."""

    group_id: str
    members: tuple[MemberIdentity, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveResponse:
    """The response to a LeaveGroup request."""

    error: ErrorCode
    members: tuple[tuple[MemberIdentity, ErrorCode], ...] = ()  # as asked for, in that order


class OffsetToCommit(NamedTuple):
    """The offset that a commit has for one partition."""

    offset: int
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str | None = ""


class TransactionalProducer(NamedTuple):
    """The producer whose transaction offsets are part of."""

    producer_id: int
    producer_epoch: int
    #: Goes to the log with the offsets: the verification of the transaction, if there was one.
    verification: object | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitRequest:
    """An OffsetCommit or TxnOffsetCommit request."""

    group_id: str
    offsets: Mapping[TopicPartition, OffsetToCommit]  # of partitions that exist
    member_id: str = UNKNOWN_MEMBER
    generation: int = NO_GENERATION
    instance_id: str | None = None
    retention_ms: int | None = None  # None: as the broker is configured
    producer: TransactionalProducer | None = None  # of a TxnOffsetCommit


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitResponse:
    """The response to an OffsetCommit or TxnOffsetCommit request."""

    errors: Mapping[TopicPartition, ErrorCode]  # one for each offset of the request


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchRequest:
    """The request of an OffsetFetch for one group."""

    group_id: str
    partitions: tuple[TopicPartition, ...] | None  # None: all that have an offset
    require_stable: bool = False


class FetchedOffset(NamedTuple):
    """The committed offset of one partition; without one, the offset is -1."""

    error: ErrorCode = ErrorCode.NONE
    offset: int = NO_OFFSET
    leader_epoch: int = NO_LEADER_EPOCH
    metadata: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetFetchResponse:
    """The response of an OffsetFetch for one group."""

    error: ErrorCode
    offsets: Mapping[TopicPartition, FetchedOffset] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteRequest:
    """An OffsetDelete request."""

    group_id: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetDeleteResponse:
    """The response to an OffsetDelete request."""

    error: ErrorCode
    errors: Mapping[TopicPartition, ErrorCode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroupsResponse:
    """The response to a DeleteGroups request."""

    errors: Mapping[str, ErrorCode]  # by group id


class DescribedMember(NamedTuple):
    """A member in the response to DescribeGroups."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes = b""
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedGroup:
    """A group in the response to DescribeGroups."""

    error: ErrorCode
    group_id: str
    state: str = ""
    protocol_type: str = ""
    protocol: str = ""
    members: tuple[DescribedMember, ...] = ()


class ListedGroup(NamedTuple):
    """A group in the response to ListGroups."""

    group_id: str
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupList:
    """The response to ListGroups; an error means that it may be incomplete."""

    error: ErrorCode
    groups: Sequence[ListedGroup] = ()


#: The responses of requests that may be delayed or that write records.
Response = (
    JoinResponse
    | SyncResponse
    | LeaveResponse
    | OffsetCommitResponse
    | OffsetDeleteResponse
    | DeleteGroupsResponse
)
