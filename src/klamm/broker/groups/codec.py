"""Translates group and offset requests for the coordinator, and its results into response bodies.

`<api>_request` reads the decoded request of any version, where older versions lack fields.
`<api>_body` builds a response body with the fields of all versions; the encoder takes those
that the version carries. These are plain functions, so that they can be tested without a broker.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from datetime import timedelta
from typing import Any, Final, NamedTuple

from klamm.broker.groups.coordinator import GROUP_TYPE
from klamm.broker.groups.group import GroupState
from klamm.broker.groups.messages import (
    NO_GENERATION,
    NO_LEADER_EPOCH,
    UNKNOWN_MEMBER,
    DeleteGroupsResponse,
    DescribedGroup,
    FetchedOffset,
    GroupList,
    GroupProtocol,
    HeartbeatRequest,
    JoinRequest,
    JoinResponse,
    LeaveRequest,
    LeaveResponse,
    MemberIdentity,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetToCommit,
    SyncRequest,
    SyncResponse,
)
from klamm.names import TopicPartition
from klamm.protocol.codec.encoding import Values
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codec.large import dismantle
from klamm.protocol.codes import ErrorCode

_MILLISECOND: Final = timedelta(milliseconds=1)
_NO_NODE: Final = -1
_NO_PORT: Final = -1
_NOT_ASKED: Final = -(1 << 31)
#: READ 3, DELETE 6, DESCRIBE 8: one bit for each operation that an unrestricted client may do.
GROUP_OPERATIONS: Final = sum(1 << code for code in (3, 6, 8))

FIRST_JOIN_WITH_NULL_PROTOCOL: Final = 7
FIRST_LEAVE_IN_BATCHES: Final = 3
FIRST_FETCH_WITH_TOP_LEVEL_ERROR: Final = 2
FIRST_FETCH_OF_SEVERAL_GROUPS: Final = 8
FIRST_FIND_OF_SEVERAL_KEYS: Final = 4

_STATES: Final = frozenset(state.value.lower() for state in GroupState)
#: Whether the metadata cache knows a partition.
Exists = Callable[[TopicPartition], bool]


# JoinGroup, SyncGroup, Heartbeat, LeaveGroup


def join_request(header: RequestHeader, body: Any, client_address: str) -> JoinRequest:
    """Read a JoinGroup; version 0 has no rebalance timeout, which is then the session timeout."""
    session_timeout_ms = body.session_timeout // _MILLISECOND
    rebalance_timeout = getattr(body, "rebalance_timeout", body.session_timeout)
    return JoinRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        client_id=header.client_id,
        client_host=f"/{client_address}",
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=rebalance_timeout // _MILLISECOND,
        protocol_type=body.protocol_type,
        protocols=tuple(GroupProtocol(each.name, each.metadata) for each in body.protocols),
        version=header.api_version,
    )


def join_body(header: RequestHeader, response: JoinResponse) -> Values:
    """The body of a JoinGroup response; old versions send an empty protocol for null."""
    protocol = response.protocol
    if protocol is None and header.api_version < FIRST_JOIN_WITH_NULL_PROTOCOL:
        protocol = ""
    return {
        "error_code": response.error,
        "generation_id": response.generation,
        "protocol_type": response.protocol_type,
        "protocol_name": protocol,
        "leader": response.leader,
        "skip_assignment": response.skip_assignment,
        "member_id": response.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "metadata": member.metadata,
            }
            for member in response.members
        ],
    }


def sync_request(header: RequestHeader, body: Any) -> SyncRequest:
    """Read a SyncGroup."""
    return SyncRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        generation=body.generation_id,
        protocol_type=getattr(body, "protocol_type", None),
        protocol=getattr(body, "protocol_name", None),
        assignments={each.member_id: each.assignment for each in body.assignments},
        version=header.api_version,
    )


def sync_body(response: SyncResponse) -> Values:
    """The body of a SyncGroup response."""
    return {
        "error_code": response.error,
        "protocol_type": response.protocol_type,
        "protocol_name": response.protocol,
        "assignment": response.assignment,
    }


def heartbeat_request(body: Any) -> HeartbeatRequest:
    """Read a Heartbeat."""
    return HeartbeatRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        generation=body.generation_id,
        instance_id=getattr(body, "group_instance_id", None),
    )


def heartbeat_body(error: ErrorCode) -> Values:
    """The body of a Heartbeat response."""
    return {"error_code": error}


def leave_request(header: RequestHeader, body: Any) -> LeaveRequest:
    """Read a LeaveGroup; versions before 3 name one member."""
    if header.api_version < FIRST_LEAVE_IN_BATCHES:
        members: tuple[MemberIdentity, ...] = (MemberIdentity(body.member_id),)
    else:
        members = tuple(
            MemberIdentity(each.member_id, each.group_instance_id) for each in body.members
        )
    return LeaveRequest(group_id=body.group_id, members=members)


def leave_body(header: RequestHeader, response: LeaveResponse) -> Values:
    """The body of a LeaveGroup response; versions before 3 have the member's error at the top."""
    error = response.error
    if header.api_version < FIRST_LEAVE_IN_BATCHES and not error:
        # These versions have one member, whose error stands at the top level.
        ((_, error),) = response.members
    return {
        "error_code": error,
        "members": [
            {
                "member_id": identity.member_id,
                "group_instance_id": identity.instance_id,
                "error_code": member_error,
            }
            for identity, member_error in response.members
        ],
    }


# OffsetCommit, OffsetFetch, OffsetDelete


def offset_commit_request(body: Any, exists: Exists) -> OffsetCommitRequest:
    """The offsets to commit, for partitions that exist."""
    retention = getattr(body, "retention_time", -_MILLISECOND)
    return OffsetCommitRequest(
        group_id=body.group_id,
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        generation=body.generation_id_or_member_epoch,
        offsets=_offsets_to_commit(body, exists),
        retention_ms=None if retention == -_MILLISECOND else retention // _MILLISECOND,
    )


def txn_offset_commit_request(body: Any, exists: Exists) -> OffsetCommitRequest:
    """The offsets that a transaction commits, without unknown partitions, before verification."""
    return OffsetCommitRequest(
        group_id=body.group_id,
        member_id=getattr(body, "member_id", UNKNOWN_MEMBER),
        instance_id=getattr(body, "group_instance_id", None),
        generation=getattr(body, "generation_id", NO_GENERATION),
        offsets=_offsets_to_commit(body, exists),
    )


def _offsets_to_commit(body: Any, exists: Exists) -> dict[TopicPartition, OffsetToCommit]:
    offsets = {
        TopicPartition(topic.name, each.partition_index): OffsetToCommit(
            each.committed_offset,
            getattr(each, "committed_leader_epoch", NO_LEADER_EPOCH),
            each.committed_metadata,
        )
        for topic in body.topics
        for each in topic.partitions
    }
    return {partition: offset for partition, offset in offsets.items() if exists(partition)}


def offset_commit_body(body: Any, response: OffsetCommitResponse) -> Values:
    """The errors in the order of the request; partitions without a result do not exist."""
    return {"topics": _partition_errors(body.topics, response.errors)}


def offset_fetch_requests(header: RequestHeader, body: Any) -> list[OffsetFetchRequest]:
    """One request for each group."""
    require_stable = getattr(body, "require_stable", False)
    groups = body.groups if header.api_version >= FIRST_FETCH_OF_SEVERAL_GROUPS else (body,)
    return [
        OffsetFetchRequest(
            group_id=group.group_id,
            partitions=None
            if group.topics is None
            else tuple(
                dict.fromkeys(
                    TopicPartition(topic.name, index)
                    for topic in group.topics
                    for index in topic.partition_indexes
                )
            ),
            require_stable=require_stable,
        )
        for group in groups
    ]


def offset_fetch_body(
    header: RequestHeader,
    requests: Sequence[OffsetFetchRequest],
    responses: Sequence[OffsetFetchResponse],
) -> Values:
    """The body of an OffsetFetch response about one group or several."""
    groups = [
        {
            "group_id": request.group_id,
            "error_code": response.error,
            "topics": _fetched_topics(header, request, response),
        }
        for request, response in zip(requests, responses, strict=True)
    ]
    # Versions about a single group have its fields at the top level.
    return {**(groups[0] if groups else {}), "groups": groups}


def offset_delete_request(body: Any, exists: Exists) -> OffsetDeleteRequest:
    """Read an OffsetDelete; partitions that do not exist are left out."""
    named = dict.fromkeys(
        TopicPartition(topic.name, each.partition_index)
        for topic in body.topics
        for each in topic.partitions
    )
    partitions = tuple(filter(exists, named))
    dismantle(named)
    return OffsetDeleteRequest(group_id=body.group_id, partitions=partitions)


def offset_delete_body(body: Any, response: OffsetDeleteResponse) -> Values:
    """The body of an OffsetDelete response."""
    if response.error:
        return {"error_code": response.error}
    return {"topics": _partition_errors(body.topics, response.errors)}


# DescribeGroups, ListGroups, DeleteGroups


def describe_groups_body(
    body: Any,
    descriptions: Sequence[DescribedGroup],
    operations: Sequence[int] | None = None,
) -> Values:
    """`operations` are the authorized operations on each group; without them all are."""
    asks = getattr(body, "include_authorized_operations", False)
    operations = operations or [GROUP_OPERATIONS] * len(descriptions)
    return {
        "groups": [
            {
                "error_code": group.error,
                "group_id": group.group_id,
                "group_state": group.state,
                "protocol_type": group.protocol_type,
                "protocol_data": group.protocol,
                "members": [
                    {
                        "member_id": member.member_id,
                        "group_instance_id": member.instance_id,
                        "client_id": member.client_id,
                        "client_host": member.client_host,
                        "member_metadata": member.metadata,
                        "member_assignment": member.assignment,
                    }
                    for member in group.members
                ],
                "authorized_operations": (allowed if asks and not group.error else _NOT_ASKED),
            }
            for group, allowed in zip(descriptions, operations, strict=True)
        ]
    }


def list_groups_filters(body: Any) -> tuple[Sequence[str], Sequence[str]]:
    """The states and types to filter by, in lower case and each once; empty means all."""
    return (
        _names(getattr(body, "states_filter", ()), _STATES),
        _names(getattr(body, "types_filter", ()), {GROUP_TYPE}),
    )


def _names(given: Iterable[str], known: Set[str]) -> Sequence[str]:
    names: set[str] = set()
    unknown = None
    for name in map(str.lower, given):
        if name in known:
            names.add(name)
        else:
            # One unknown name stands for all of them: none matches a group.
            unknown = name
    return sorted(names) if unknown is None else [*sorted(names), unknown]


def list_groups_body(listed: GroupList) -> Values:
    """The body of a ListGroups response."""
    return {
        "error_code": listed.error,
        "groups": [
            {
                "group_id": group.group_id,
                "protocol_type": group.protocol_type,
                "group_state": group.state,
                "group_type": GROUP_TYPE,
            }
            for group in listed.groups
        ],
    }


def delete_groups_body(response: DeleteGroupsResponse) -> Values:
    """The body of a DeleteGroups response."""
    return {
        "results": [
            {"group_id": group_id, "error_code": error}
            for group_id, error in response.errors.items()
        ]
    }


# FindCoordinator


class FoundCoordinator(NamedTuple):
    """The coordinator of `key`, or the error."""

    key: str
    error: ErrorCode = ErrorCode.NONE
    node_id: int = _NO_NODE
    host: str = ""
    port: int = _NO_PORT


def find_coordinator_keys(header: RequestHeader, body: Any) -> tuple[int, Sequence[str]]:
    """The type of the keys, 0 for groups, and the keys."""
    key_type = getattr(body, "key_type", 0)
    if header.api_version >= FIRST_FIND_OF_SEVERAL_KEYS:
        return key_type, body.coordinator_keys
    return key_type, (body.key,)


def find_coordinator_body(header: RequestHeader, found: Sequence[FoundCoordinator]) -> Values:
    """The body of a FindCoordinator response about one key or several."""
    has_several = header.api_version >= FIRST_FIND_OF_SEVERAL_KEYS

    def message(error: ErrorCode) -> str:
        # As in Kafka: old versions call the absence of an error NONE, and new ones explain only an
        # error of the whole request.
        if has_several:
            return error.message if error is ErrorCode.INVALID_REQUEST else ""
        return error.message if error else ErrorCode.NONE.name

    coordinators = [
        {
            "key": each.key,
            "error_code": each.error,
            "error_message": message(each.error),
            "node_id": each.node_id,
            "host": each.host,
            "port": each.port,
        }
        for each in found
    ]
    return {**(coordinators[0] if coordinators else {}), "coordinators": coordinators}


# Topics and their partitions


def _partition_errors(
    topics: Iterable[Any], errors: Mapping[TopicPartition, ErrorCode]
) -> list[Values]:
    """The error of each partition, in the order of the request."""
    return [
        {
            "name": topic.name,
            "partitions": [
                {
                    "partition_index": each.partition_index,
                    "error_code": errors.get(
                        TopicPartition(topic.name, each.partition_index),
                        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    ),
                }
                for each in topic.partitions
            ],
        }
        for topic in topics
    ]


def _fetched_topics(
    header: RequestHeader, request: OffsetFetchRequest, response: OffsetFetchResponse
) -> list[Values]:
    offsets = response.offsets
    if response.error and header.api_version < FIRST_FETCH_WITH_TOP_LEVEL_ERROR:
        offsets = dict.fromkeys(request.partitions or (), FetchedOffset(response.error))
    topics: dict[str, list[Values]] = {}
    for (topic, partition), fetched in offsets.items():
        topics.setdefault(topic, []).append(
            {
                "partition_index": partition,
                "committed_offset": fetched.offset,
                "committed_leader_epoch": fetched.leader_epoch,
                "metadata": fetched.metadata,
                "error_code": fetched.error,
            }
        )
    return [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()]
