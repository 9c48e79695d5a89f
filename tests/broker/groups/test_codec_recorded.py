"""Groups and offsets as stock clients and Apache Kafka 3.9.1 spoke of them, byte for byte."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from klamm.broker.groups import codec as groups
from klamm.broker.groups.messages import (
    DeleteGroupsResponse,
    DescribedGroup,
    DescribedMember,
    FetchedOffset,
    GroupList,
    JoinedMember,
    JoinResponse,
    LeaveResponse,
    ListedGroup,
    OffsetCommitResponse,
    OffsetFetchResponse,
    SyncResponse,
)
from klamm.names import TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import (
    RequestHeader,
    decode_request,
    decode_response,
    encode_response,
)
from klamm.protocol.codes import ErrorCode
from tests.broker.groups.driver import Driver
from tests.support.recorded_exchanges import EXCHANGES, Exchange

SIZE_BYTES = 4


def _join(header: RequestHeader, _: Any, told: Any) -> Any:
    response = JoinResponse(
        error=ErrorCode(told.error_code),
        member_id=told.member_id,
        generation=told.generation_id,
        protocol_type=getattr(told, "protocol_type", None),
        protocol=told.protocol_name or None,
        leader=told.leader,
        skip_assignment=getattr(told, "skip_assignment", False),
        members=tuple(
            JoinedMember(m.member_id, getattr(m, "group_instance_id", None), m.metadata)
            for m in told.members
        ),
    )
    return groups.join_body(header, response)


def _sync(header: RequestHeader, body: Any, told: Any) -> Any:
    request = groups.sync_request(header, body)
    response = SyncResponse(
        error=ErrorCode(told.error_code),
        protocol_type=request.protocol_type,
        protocol=request.protocol,
        assignment=told.assignment,
    )
    return groups.sync_body(response)


def _leave(header: RequestHeader, body: Any, told: Any) -> Any:
    members = tuple((who, ErrorCode.NONE) for who in groups.leave_request(header, body).members)
    return groups.leave_body(
        header, LeaveResponse(error=ErrorCode(told.error_code), members=members)
    )


def _commit(_: RequestHeader, body: Any, __: Any) -> Any:
    request = groups.offset_commit_request(body, lambda _: True)
    response = OffsetCommitResponse(errors=dict.fromkeys(request.offsets, ErrorCode.NONE))
    return groups.offset_commit_body(body, response)


def _fetch(header: RequestHeader, body: Any, told: Any) -> Any:
    requests = groups.offset_fetch_requests(header, body)
    responses = [
        OffsetFetchResponse(
            error=ErrorCode(group.error_code),
            offsets={
                TopicPartition(topic.name, each.partition_index): FetchedOffset(
                    ErrorCode(each.error_code),
                    each.committed_offset,
                    getattr(each, "committed_leader_epoch", -1),
                    each.metadata,
                )
                for topic in group.topics
                for each in topic.partitions
            },
        )
        for group in getattr(told, "groups", (told,))
    ]
    return groups.offset_fetch_body(header, requests, responses)


def _find(header: RequestHeader, body: Any, told: Any) -> Any:
    _, keys = groups.find_coordinator_keys(header, body)
    found = [
        groups.FoundCoordinator(key, ErrorCode(at.error_code), at.node_id, at.host, at.port)
        for key, at in zip(keys, getattr(told, "coordinators", (told,)), strict=True)
    ]
    return groups.find_coordinator_body(header, found)


def _describe(_: RequestHeader, body: Any, told: Any) -> Any:
    descriptions = [
        DescribedGroup(
            error=ErrorCode(group.error_code),
            group_id=group.group_id,
            state=group.group_state,
            protocol_type=group.protocol_type,
            protocol=group.protocol_data,
            members=tuple(
                DescribedMember(
                    m.member_id,
                    m.group_instance_id,
                    m.client_id,
                    m.client_host,
                    m.member_metadata,
                    m.member_assignment,
                )
                for m in group.members
            ),
        )
        for group in told.groups
    ]
    return groups.describe_groups_body(body, descriptions)


def _list(_: RequestHeader, __: Any, told: Any) -> Any:
    listed = tuple(
        ListedGroup(g.group_id, g.protocol_type, getattr(g, "group_state", "")) for g in told.groups
    )
    return groups.list_groups_body(GroupList(error=ErrorCode(told.error_code), groups=listed))


def _delete(_: RequestHeader, body: Any, __: Any) -> Any:
    response = DeleteGroupsResponse(errors=dict.fromkeys(body.groups_names, ErrorCode.NONE))
    return groups.delete_groups_body(response)


RECORDED: Mapping[int, Callable[[RequestHeader, Any, Any], Any]] = {
    ApiKey.JOIN_GROUP: _join,
    ApiKey.SYNC_GROUP: _sync,
    ApiKey.HEARTBEAT: lambda _, __, told: groups.heartbeat_body(ErrorCode(told.error_code)),
    ApiKey.LEAVE_GROUP: _leave,
    ApiKey.OFFSET_COMMIT: _commit,
    ApiKey.OFFSET_FETCH: _fetch,
    ApiKey.FIND_COORDINATOR: _find,
    ApiKey.DESCRIBE_GROUPS: _describe,
    ApiKey.LIST_GROUPS: _list,
    ApiKey.DELETE_GROUPS: _delete,
}


@pytest.mark.parametrize(
    "exchange", [exchange for exchange in EXCHANGES if exchange.key in RECORDED], ids=str
)
def test_responses_are_those_of_apache_kafka_byte_for_byte(exchange: Exchange):
    header, body = decode_request(exchange.request)
    told = decode_response(header, exchange.response)
    made = encode_response(header, RECORDED[exchange.key](header, body, told))
    assert made[SIZE_BYTES:] == exchange.response


@pytest.mark.rule("GRP-8")
@pytest.mark.parametrize(
    "exchange", [exchange for exchange in EXCHANGES if exchange.key == ApiKey.JOIN_GROUP], ids=str
)
def test_first_request_of_a_real_client_gets_an_id_and_the_others_are_strangers(exchange: Exchange):
    header, body = decode_request(exchange.request)
    request = groups.join_request(header, body, "127.0.0.1")
    driver = Driver()
    driver.carry_out(driver.coordinator.join(1, request, driver.now_ms))
    if request.member_id:
        assert driver.responses[1].error is ErrorCode.UNKNOWN_MEMBER_ID
    else:
        told = decode_response(header, exchange.response)
        assert driver.responses[1].error == told.error_code == ErrorCode.MEMBER_ID_REQUIRED
        assert driver.responses[1].member_id.startswith(f"{header.client_id}-")
