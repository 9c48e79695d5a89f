"""Handlers of the group and offset APIs, and of FindCoordinator (section 8)."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from klamm.broker.groups import codec as groups
from klamm.broker.groups.codec import FoundCoordinator
from klamm.broker.groups.coordinator import group_partition
from klamm.broker.groups.effects import Effect
from klamm.broker.groups.service import GroupService
from klamm.broker.handlers.dispatch import Body, Call, Handler, Result
from klamm.broker.metadata.auto_topic_creation import AutoTopicCreation
from klamm.broker.metadata.cache import MetadataCache
from klamm.names import CONSUMER_OFFSETS, TRANSACTION_STATE, TopicPartition
from klamm.protocol.acls import ResourceType
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode

_GROUP_KEY: Final = 0
_TRANSACTION_KEY: Final = 1
_LOGS: Final = {_GROUP_KEY: CONSUMER_OFFSETS, _TRANSACTION_KEY: TRANSACTION_STATE}


class FindCoordinatorHandlers:
    """Says who coordinates a group or a transactional id; any broker knows.

    The first who asks has the topic made that holds the coordinators' state.
    """

    def __init__(self, metadata: MetadataCache, creation: AutoTopicCreation) -> None:
        self._metadata = metadata
        self._creation = creation

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handlers by API key."""
        return {ApiKey.FIND_COORDINATOR: self._find_coordinator}

    async def _find_coordinator(self, call: Call) -> Body:
        key_type, keys = groups.find_coordinator_keys(call.header, call.body)
        snapshot = self._metadata.snapshot
        log_name = _LOGS.get(key_type)
        topic = None if log_name is None else snapshot.topic(log_name)
        if topic is None and log_name is not None:
            await self._creation.create(log_name)
        nobody = (
            ErrorCode.INVALID_REQUEST if log_name is None else ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        found = []
        for key in keys:
            record = topic and topic.partition(group_partition(key, len(topic)))
            node = record and snapshot.node(record.leader, call.connection.listener)
            found.append(
                FoundCoordinator(key, ErrorCode.NONE, node.id, node.host, node.port)
                if node
                else FoundCoordinator(key, nobody)
            )
        return groups.find_coordinator_body(call.header, found)


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

    def _join(self, call: Call) -> Result | Awaitable[Result]:
        request = groups.join_request(call.header, call.body, call.connection.client_host)
        return self._submit(
            lambda ticket, now_ms: self._service.coordinator.join(ticket, request, now_ms),
            lambda response: groups.join_body(call.header, response),
        )

    def _sync(self, call: Call) -> Result | Awaitable[Result]:
        request = groups.sync_request(call.header, call.body)
        return self._submit(
            lambda ticket, now_ms: self._service.coordinator.sync(ticket, request, now_ms),
            groups.sync_body,
        )

    def _heartbeat(self, call: Call) -> Body:
        service = self._service
        request = groups.heartbeat_request(call.body)
        error = service.coordinator.heartbeat(request, service.now_ms)
        service.touched()
        return groups.heartbeat_body(error)

    def _leave(self, call: Call) -> Result | Awaitable[Result]:
        request = groups.leave_request(call.header, call.body)
        return self._submit(
            lambda ticket, now_ms: self._service.coordinator.leave(ticket, request, now_ms),
            lambda response: groups.leave_body(call.header, response),
        )

    def _commit(self, call: Call) -> Result | Awaitable[Result]:
        request = groups.offset_commit_request(call.body, self._exists)
        return self._submit(
            lambda ticket, now_ms: self._service.coordinator.commit_offsets(
                ticket, request, now_ms
            ),
            lambda response: groups.offset_commit_body(call.body, response),
        )

    def _fetch_offsets(self, call: Call) -> Body:
        requests = groups.offset_fetch_requests(call.header, call.body)
        responses = [self._service.coordinator.fetch_offsets(request) for request in requests]
        return groups.offset_fetch_body(call.header, requests, responses)

    def _delete_offsets(self, call: Call) -> Result | Awaitable[Result]:
        request = groups.offset_delete_request(call.body, self._exists)
        return self._submit(
            lambda ticket, now_ms: self._service.coordinator.delete_offsets(
                ticket, request, now_ms
            ),
            lambda response: groups.offset_delete_body(call.body, response),
        )

    def _describe(self, call: Call) -> Body:
        descriptions = map(self._service.coordinator.describe_group, call.body.groups)
        access = call.access
        if access is None:
            return groups.describe_groups_body(call.body, descriptions)
        return groups.describe_groups_body(
            call.body, descriptions, lambda group: access.operations(ResourceType.GROUP, group)
        )

    def _list(self, call: Call) -> Body:
        states, types = groups.list_groups_filters(call.body)
        return groups.list_groups_body(self._service.coordinator.list_groups(states, types))

    def _delete(self, call: Call) -> Result | Awaitable[Result]:
        return self._submit(
            lambda ticket, now_ms: self._service.coordinator.delete_groups(
                ticket, call.body.groups_names, now_ms
            ),
            groups.delete_groups_body,
        )

    def _exists(self, name: TopicPartition) -> bool:
        return self._metadata.snapshot.knows(name)

    def _submit(
        self, request: Callable[[int, int], list[Effect]], response: Callable[[Any], Result]
    ) -> Result | Awaitable[Result]:
        future = self._service.submit(request)
        return response(future.result()) if future.done() else _then(future, response)


async def _then(future: asyncio.Future[Any], response: Callable[[Any], Result]) -> Result:
    return response(await future)
