"""Handlers of the group and offset APIs, and of FindCoordinator (section 8)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from typing import Final, TypeVar

from klamm.broker.groups import codec as groups
from klamm.broker.groups.codec import FoundCoordinator
from klamm.broker.groups.coordinator import group_partition
from klamm.broker.groups.effects import Effect, Ticket
from klamm.broker.groups.messages import (
    DeleteGroupsResponse,
    FetchedOffset,
    JoinResponse,
    LeaveResponse,
    OffsetCommitResponse,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    SyncResponse,
)
from klamm.broker.groups.service import GroupService
from klamm.broker.handlers.dispatch import Body, Call, Handler, body_of, in_slices, translated
from klamm.broker.metadata.auto_topic_creation import AutoTopicCreation
from klamm.broker.metadata.cache import MetadataCache
from klamm.names import CONSUMER_OFFSETS, TRANSACTION_STATE, TopicPartition
from klamm.protocol.acls import ResourceType
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.large import dismantle
from klamm.protocol.codes import ErrorCode
from klamm.slices import Steps, counted, discard, each, pieces

T = TypeVar("T")
_GROUP_KEY: Final = 0
_TRANSACTION_KEY: Final = 1
#: The number of descriptions that one request keeps, for entries that are repeated.
_REMEMBERED: Final = 1000
#: More protocols than this have no meaning: a client names one or two.
_PROTOCOLS_MAX: Final = 1000
_LOGS: Final = {_GROUP_KEY: CONSUMER_OFFSETS, _TRANSACTION_KEY: TRANSACTION_STATE}


class FindCoordinatorHandlers:
    """Finds the coordinator of a group or of a transactional id; any broker can.

    The first request has the topic created that holds the coordinators' state.
    """

    def __init__(self, metadata: MetadataCache, creation: AutoTopicCreation) -> None:
        self._metadata = metadata
        self._creation = creation

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handlers by API key."""
        return {ApiKey.FIND_COORDINATOR: self._find_coordinator}

    @in_slices
    def _find_coordinator(self, call: Call) -> Steps[Body]:
        key_type, keys = groups.find_coordinator_keys(call.header, call.body)
        snapshot = self._metadata.snapshot
        log_name = _LOGS.get(key_type)
        topic = None if log_name is None else snapshot.topic(log_name)
        if topic is None and log_name is not None:
            yield self._creation.create(log_name)
        nobody = (
            ErrorCode.INVALID_REQUEST if log_name is None else ErrorCode.COORDINATOR_NOT_AVAILABLE
        )

        @lru_cache(_REMEMBERED)
        def find(key: str) -> FoundCoordinator:
            record = topic and topic.partition(group_partition(key, len(topic)))
            node = record and snapshot.node(record.leader, call.connection.listener)
            if not node:
                return FoundCoordinator(key, nobody)
            return FoundCoordinator(key, ErrorCode.NONE, node.id, node.host, node.port)

        found = yield from each(find, keys)
        body = yield from translated(call, groups.find_coordinator_body, call.header, found)
        discard(dismantle, found)
        return body


class GroupHandlers:
    """Translates group requests for the coordinator, and its results into responses."""

    def __init__(self, service: GroupService, metadata: MetadataCache) -> None:
        self._service = service
        self._metadata = metadata

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handlers by API key."""
        return {
            ApiKey.JOIN_GROUP: self._join,
            ApiKey.SYNC_GROUP: self._sync,
            ApiKey.HEARTBEAT: self._heartbeat,
            ApiKey.LEAVE_GROUP: self._leave,
            ApiKey.OFFSET_COMMIT: self._commit,
            ApiKey.OFFSET_FETCH: self._fetch_offsets,
            ApiKey.OFFSET_DELETE: self._delete_offsets,
            ApiKey.DESCRIBE_GROUPS: self._describe,
            ApiKey.LIST_GROUPS: self._list,
            ApiKey.DELETE_GROUPS: self._delete,
        }

    @in_slices
    def _join(self, call: Call) -> Steps[Body]:
        if len(call.body.protocols) > _PROTOCOLS_MAX:
            code = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            return groups.join_body(
                call.header, JoinResponse(error=code, member_id=call.body.member_id)
            )
        host = call.connection.client_host
        request = yield from translated(call, groups.join_request, call.header, call.body, host)
        response: JoinResponse = yield self._service.submit(
            lambda ticket, now_ms: self._service.coordinator.join(ticket, request, now_ms)
        )
        return groups.join_body(call.header, response)

    @in_slices
    def _sync(self, call: Call) -> Steps[Body]:
        request = yield from translated(call, groups.sync_request, call.header, call.body)
        response: SyncResponse = yield self._service.submit(
            lambda ticket, now_ms: self._service.coordinator.sync(ticket, request, now_ms)
        )
        return groups.sync_body(response)

    def _heartbeat(self, call: Call) -> Body:
        service = self._service
        request = groups.heartbeat_request(call.body)
        error = service.coordinator.heartbeat(request, service.now_ms)
        service.touched()
        return groups.heartbeat_body(error)

    @in_slices
    def _leave(self, call: Call) -> Steps[Body]:
        request = yield from translated(call, groups.leave_request, call.header, call.body)
        coordinator = self._service.coordinator
        left: list[LeaveResponse] = []
        for members in pieces(request.members) if request.members else [()]:
            part = replace(request, members=members)
            left.append((yield self._service.submit(partial(_ask, coordinator.leave, part))))
            yield None
        response = LeaveResponse(
            error=left[0].error, members=tuple(chain.from_iterable(each.members for each in left))
        )
        return (yield from translated(call, groups.leave_body, call.header, response))

    @in_slices
    def _commit(self, call: Call) -> Steps[Body]:
        request = yield from translated(
            call, groups.offset_commit_request, call.body, self._metadata.snapshot.knows
        )
        response: OffsetCommitResponse = yield self._service.submit(
            lambda ticket, now_ms: self._service.coordinator.commit_offsets(ticket, request, now_ms)
        )
        return (yield from translated(call, groups.offset_commit_body, call.body, response))

    @in_slices
    def _fetch_offsets(self, call: Call) -> Steps[Body]:
        requests = yield from translated(call, groups.offset_fetch_requests, call.header, call.body)
        responses = []
        for request in requests:
            responses.append((yield from self._fetch_group(request)))
            yield None
        return (
            yield from translated(call, groups.offset_fetch_body, call.header, requests, responses)
        )

    def _fetch_group(self, request: OffsetFetchRequest) -> Steps[OffsetFetchResponse]:
        fetch = self._service.coordinator.fetch_offsets
        if not request.partitions:
            return fetch(request)
        offsets: dict[TopicPartition, FetchedOffset] = {}
        for partitions in pieces(request.partitions):
            response = fetch(replace(request, partitions=partitions))
            if response.error:
                return response
            offsets |= response.offsets
            yield None
        return OffsetFetchResponse(error=ErrorCode.NONE, offsets=offsets)

    @in_slices
    def _delete_offsets(self, call: Call) -> Steps[Body]:
        request = yield from translated(
            call, groups.offset_delete_request, call.body, self._metadata.snapshot.knows
        )
        response: OffsetDeleteResponse = yield self._service.submit(
            lambda ticket, now_ms: self._service.coordinator.delete_offsets(ticket, request, now_ms)
        )
        return (yield from translated(call, groups.offset_delete_body, call.body, response))

    @in_slices
    def _describe(self, call: Call) -> Steps[Body]:
        describe = lru_cache(_REMEMBERED)(self._service.coordinator.describe_group)
        descriptions = yield from each(describe, call.body.groups)
        operations = None
        if call.access is not None and getattr(call.body, "include_authorized_operations", False):
            allowed = partial(call.access.operations, ResourceType.GROUP)
            operations = yield from each(allowed, call.body.groups)
        body = yield from translated(
            call, groups.describe_groups_body, call.body, descriptions, operations
        )
        discard(dismantle, descriptions)
        return body

    @in_slices
    def _list(self, call: Call) -> Steps[Body]:
        states, types = yield from translated(call, groups.list_groups_filters, call.body)
        listed = yield from self._service.coordinator.list_groups(states, types)
        return (yield from body_of(listed.groups, groups.list_groups_body, listed))

    @in_slices
    def _delete(self, call: Call) -> Steps[Body]:
        # A group that is named twice is deleted once.
        wanted = list((yield from counted(call.body.groups_names)))
        errors: dict[str, ErrorCode] = {}
        for part in pieces(wanted):
            delete = partial(_ask, self._service.coordinator.delete_groups, part)
            deleted: DeleteGroupsResponse = yield self._service.submit(delete)
            errors |= deleted.errors
            yield None
        response = DeleteGroupsResponse(errors=errors)
        return (yield from translated(call, groups.delete_groups_body, response))


def _ask(
    ask: Callable[[Ticket, T, int], list[Effect]], request: T, ticket: Ticket, now_ms: int
) -> list[Effect]:
    return ask(ticket, request, now_ms)
