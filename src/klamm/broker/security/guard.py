"""Requests before an authorizer: what is denied is answered here, the rest goes to the handler.

`Guard.protect` wraps every handler once, at the start, as the table of requirements says; a
handler without a row is not served. A request of which only a part is allowed goes on without the
rest, and the denied part is added to the response. Without an authorizer nothing is wrapped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from klamm.broker.handlers.dispatch import (
    Body,
    Call,
    Handler,
    HandlerResult,
    Result,
    in_slices,
    translated,
)
from klamm.broker.security.authorizer import Access, AclAuthorizer
from klamm.broker.security.denials import (
    denied_items,
    denied_whole,
    each_allowed,
    finished,
    with_body,
)
from klamm.broker.security.requirements import REQUIREMENTS, Need, Scope
from klamm.names import CLUSTER_METADATA
from klamm.net.server import CloseConnection
from klamm.protocol.acls import CLUSTER_NAME, AclOperation, ResourceType
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.slices import Steps, counted, each

_O = AclOperation
_T = ResourceType
_TOPIC_RESOURCE: Final = 2
_LOGGER_RESOURCE: Final = 8
_FIRST_WITH_PROTOCOL: Final = 5
_FIRST_WITH_TOPIC_CONFIGS: Final = 5

#: Decides about one request, and calls the handler for what is allowed.
Judge: TypeAlias = Callable[[Call, Access, Handler], HandlerResult]


class Guard:
    """Stands before the handlers of a broker with an authorizer."""

    def __init__(self, authorizer: AclAuthorizer, topic_name: Callable[[Any], str | None]) -> None:
        """`topic_name` gives the name of a topic id, or None for one that is not known."""
        self._authorizer = authorizer
        self._topic_name = topic_name
        self._special: dict[str, Judge] = {
            "Produce": _judge_produce,
            "OffsetFetch": _judge_offset_fetch,
            "FindCoordinator": _judge_find_coordinator,
            "ListGroups": _judge_list_groups,
            "SyncGroup": _judge_sync_group,
            "CreateTopics": _judge_create_topics,
            "CreatePartitions": _judge_create_partitions,
            "DeleteTopics": self._judge_delete_topics,
            "InitProducerId": _judge_init_producer_id,
            "OffsetForLeaderEpoch": _judge_offset_for_leader_epoch,
            "AddPartitionsToTxn": _judge_add_partitions,
            "DescribeConfigs": _judge_configs(_O.DESCRIBE_CONFIGS, "results"),
            "AlterConfigs": _judge_configs(_O.ALTER_CONFIGS, "responses"),
            "IncrementalAlterConfigs": _judge_configs(_O.ALTER_CONFIGS, "responses"),
            "DescribeTransactions": _judge_describe_transactions,
            "ListTransactions": _judge_list_transactions,
        }

    def protect(self, handlers: Mapping[ApiKey, Handler]) -> dict[ApiKey, Handler]:
        """Wrap handlers so that they get authorized requests only."""
        return {key: self._guarded(APIS[key].name, handler) for key, handler in handlers.items()}

    def _guarded(self, name: str, handler: Handler) -> Handler:
        row = REQUIREMENTS.get(name)
        if row is None:
            return _refuse
        judge = self._special[name] if row.is_special else _judge_by_needs(row.needs)

        def handle(call: Call) -> HandlerResult:
            connection = call.connection
            access = Access(self._authorizer, connection.principal, connection.client_host)
            return judge(call._replace(access=access), access, handler)

        return handle

    def _judge_delete_topics(self, call: Call, access: Access, handler: Handler) -> HandlerResult:
        if not hasattr(call.body, "topics"):
            judge = each_allowed(
                "topic_names", lambda name: access.may(_O.DELETE, _T.TOPIC, name), "responses"
            )
            denied = denied_items(call, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "responses", None)
            return judge(call, denied, handler)
        return self._judge_topics(call, access, handler)

    @in_slices
    def _judge_topics(self, call: Call, access: Access, handler: Handler) -> Steps[HandlerResult]:
        refused: list[dict[str, Any]] = []
        allowed = []
        for topic in call.body.topics:
            yield None
            name = topic.name
            if name is not None and topic.topic_id is not None:
                return handler(call)  # which refuses the whole request
            if name is None:
                name = self._topic_name(topic.topic_id)
            if name is None:
                # An id that this broker cannot name cannot be judged by name.
                refused.append(_refused_topic(topic.topic_id, None, ErrorCode.UNKNOWN_TOPIC_ID))
            elif access.may(_O.DELETE, _T.TOPIC, name) and (
                topic.name is not None or access.may(_O.DESCRIBE, _T.TOPIC, name)
            ):
                allowed.append(topic)
            else:
                is_told = topic.name is not None or access.may(_O.DESCRIBE, _T.TOPIC, name)
                refused.append(
                    _refused_topic(
                        topic.topic_id,
                        name if is_told else None,
                        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    )
                )
        if not refused:
            return handler(call)
        if not allowed:
            return {"responses": refused}
        narrowed = yield from translated(call, with_body, call, topics=tuple(allowed))
        return finished(
            call,
            handler(narrowed),
            lambda response: {**response, "responses": [*response["responses"], *refused]},
        )


def _refused_topic(topic_id: Any, name: str | None, code: ErrorCode) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": code,
        "error_message": None,
    }


def _refuse(call: Call) -> Result:
    name = APIS[call.header.api_key].name
    raise CloseConnection(f"{name} has no row in the table of requirements")


# Rows that their needs describe completely


def _judge_by_needs(needs: Sequence[Need]) -> Judge:
    whole = [need for need in needs if need.scope is Scope.WHOLE]
    each = [need for need in needs if need.scope is Scope.EACH]
    assert len(each) <= 1, "two lists of one request need a function of their own"

    def judge(call: Call, access: Access, handler: Handler) -> HandlerResult:
        for need in whole:
            if not _is_met(need, call, access):
                return denied_whole(call, need.denied)
        if not each:
            return handler(call)
        need = each[0]
        (operation,) = need.operations

        def may(item: Any) -> bool:
            name = getattr(item, need.item) if need.item else item
            return access.may(operation, need.resource, name)

        items = each_allowed(need.names, may, need.results)
        return items(call, denied_items(call, need.denied), handler)

    return judge


def _is_met(need: Need, call: Call, access: Access) -> bool:
    if need.resource is _T.CLUSTER:
        name = CLUSTER_NAME
    else:
        name = getattr(call.body, need.names)
        if name is None:
            return False
    return any(access.may(operation, need.resource, name) for operation in need.operations)


# Rows with rules of their own


@in_slices
def _judge_produce(call: Call, access: Access, handler: Handler) -> Steps[HandlerResult]:
    request = call.body
    is_transactional = False
    for topic in request.topics:
        for _, records in topic.partitions:
            is_transactional = is_transactional or _is_transactional(records)
            yield None
    if is_transactional and (
        request.transactional_id is None
        or not access.may(_O.WRITE, _T.TRANSACTIONAL_ID, request.transactional_id)
    ):
        return denied_whole(call, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return handler(call)


_ATTRIBUTES: Final = 22
_TRANSACTIONAL_BIT: Final = 0x10


def _is_transactional(records: Any) -> bool:
    return (
        records is not None
        and len(records) > _ATTRIBUTES
        and bool(records[_ATTRIBUTES] & _TRANSACTIONAL_BIT)
    )


@in_slices
def _judge_offset_fetch(call: Call, access: Access, handler: Handler) -> Steps[HandlerResult]:
    groups = getattr(call.body, "groups", None)
    if groups is None:
        return _judge_offset_fetch_of_one(call, access, handler)
    may_topic = access.may_on_topic(_O.DESCRIBE)
    allowed, told, denied_topics = [], [], {}
    for group in groups:
        yield None
        denied_topics[group.group_id] = _denied_offsets(group, may_topic)
        if not access.may(_O.DESCRIBE, _T.GROUP, group.group_id):
            told.append(_no_offsets(group))
            continue
        allowed.append(_with_allowed_topics(group, may_topic))

    def add(response: dict[str, Any]) -> Body:
        served = [
            _with_denied_topics(group, may_topic, denied_topics[group["group_id"]])
            for group in response["groups"]
        ]
        return {"groups": [*served, *told]}

    if not allowed:
        return {"groups": told}
    narrowed = yield from translated(call, with_body, call, groups=tuple(allowed))
    return finished(call, handler(narrowed), add)


def _judge_offset_fetch_of_one(call: Call, access: Access, handler: Handler) -> HandlerResult:
    body = call.body
    may_topic = access.may_on_topic(_O.DESCRIBE)
    if not access.may(_O.DESCRIBE, _T.GROUP, body.group_id):
        return _no_offsets(body)
    denied = _denied_offsets(body, may_topic)

    def add(response: dict[str, Any]) -> Body:
        return _with_denied_topics(response, may_topic, denied)

    return finished(call, handler(call._replace(body=_with_allowed_topics(body, may_topic))), add)


def _with_allowed_topics(group: Any, may: Callable[[str], bool]) -> Any:
    if group.topics is None:
        return group
    return dataclasses.replace(group, topics=tuple(t for t in group.topics if may(t.name)))


def _no_offsets(group: Any) -> dict[str, Any]:
    """Version 1 has no place for the error, and Kafka names no topics in any version."""
    return {
        "group_id": group.group_id,
        "error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED,
        "topics": [],
    }


def _denied_offsets(group: Any, may: Callable[[str], bool]) -> list[dict[str, Any]]:
    denied = [topic for topic in group.topics or () if not may(topic.name)]
    return [_denied_topic(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED) for topic in denied]


def _denied_topic(topic: Any, code: ErrorCode) -> dict[str, Any]:
    return {
        "name": topic.name,
        "partitions": [
            {
                "partition_index": index,
                "committed_offset": -1,
                "committed_leader_epoch": -1,
                "metadata": "",
                "error_code": code,
            }
            for index in topic.partition_indexes
        ],
    }


def _with_denied_topics(
    response: Mapping[str, Any], may: Callable[[str], bool], denied: list[dict[str, Any]]
) -> dict[str, Any]:
    """The response without denied topics, and with an error for those that were requested."""
    if response["error_code"]:
        return dict(response)
    shown = [*(topic for topic in response["topics"] if may(topic["name"])), *denied]
    return {**response, "topics": shown}


#: What a coordinator is of, by the type of the key; other types are refused by the handler.
_COORDINATED: Final = {
    0: (_T.GROUP, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    1: (_T.TRANSACTIONAL_ID, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
}


def _judge_find_coordinator(call: Call, access: Access, handler: Handler) -> HandlerResult:
    found = _COORDINATED.get(getattr(call.body, "key_type", 0))
    if found is None:
        return handler(call)
    resource, code = found

    def may(name: str) -> bool:
        return access.may(_O.DESCRIBE, resource, name)

    if not hasattr(call.body, "coordinator_keys"):
        if may(call.body.key):
            return handler(call)
        return denied_whole(call, code)
    judge = each_allowed("coordinator_keys", may, "coordinators")
    return judge(call, denied_items(call, code, "coordinators", ""), handler)


def _judge_sync_group(call: Call, access: Access, handler: Handler) -> HandlerResult:
    body = call.body
    lacks_protocol = call.header.api_version >= _FIRST_WITH_PROTOCOL and (
        body.protocol_type is None or body.protocol_name is None
    )
    # The handler refuses a request without a protocol; Kafka looks at that first.
    if lacks_protocol or access.may(_O.READ, _T.GROUP, body.group_id):
        return handler(call)
    return denied_whole(call, ErrorCode.GROUP_AUTHORIZATION_FAILED)


def _judge_list_groups(call: Call, access: Access, handler: Handler) -> HandlerResult:
    if access.may_on_cluster(_O.DESCRIBE):
        return handler(call)

    def leave_out(response: dict[str, Any]) -> Body:
        shown = [g for g in response["groups"] if access.may(_O.DESCRIBE, _T.GROUP, g["group_id"])]
        return {**response, "groups": shown}

    return finished(call, handler(call), leave_out)


@in_slices
def _judge_create_topics(call: Call, access: Access, handler: Handler) -> Steps[HandlerResult]:
    may_all = access.may_on_cluster(_O.CREATE)
    counts = yield from counted(topic.name for topic in call.body.topics)

    def may_create(topic: Any) -> bool:
        # The handler refuses a name that is given twice, and Kafka looks at that first.
        is_refused = counts[topic.name] > 1 or topic.name == CLUSTER_METADATA
        return is_refused or may_all or access.may(_O.CREATE, _T.TOPIC, topic.name)

    shows_all = call.header.api_version < _FIRST_WITH_TOPIC_CONFIGS
    if not shows_all:
        may = access.may_on_topic(_O.DESCRIBE_CONFIGS)
        shows_all = all((yield from each(lambda topic: may(topic.name), call.body.topics)))
    denied = denied_items(
        call, ErrorCode.TOPIC_AUTHORIZATION_FAILED, "topics", "Authorization failed."
    )
    responding = each_allowed("topics", may_create, "topics")(call, denied, handler)
    if shows_all:
        return responding

    def hide(topic: Mapping[str, Any]) -> Mapping[str, Any]:
        name, code = topic["name"], topic["error_code"]
        is_told = code and code != ErrorCode.TOPIC_AUTHORIZATION_FAILED and counts[name] == 1
        if is_told or access.may(_O.DESCRIBE_CONFIGS, _T.TOPIC, name):
            return topic
        return {
            **topic,
            "topic_config_error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "num_partitions": -1,
            "replication_factor": -1,
            "configs": [],
        }

    return finished(
        call,
        responding,
        lambda response: {**response, "topics": [hide(t) for t in response["topics"]]},
    )


@in_slices
def _judge_create_partitions(call: Call, access: Access, handler: Handler) -> Steps[HandlerResult]:
    counts = yield from counted(topic.name for topic in call.body.topics)

    def may(topic: Any) -> bool:
        # The handler refuses a name that is given twice, and Kafka looks at that first.
        return counts[topic.name] > 1 or access.may(_O.ALTER, _T.TOPIC, topic.name)

    denied = denied_items(
        call,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        "results",
        "The topic authorization is failed.",
    )
    return each_allowed("topics", may, "results")(call, denied, handler)


def _judge_init_producer_id(call: Call, access: Access, handler: Handler) -> HandlerResult:
    transactional_id = call.body.transactional_id
    if transactional_id is not None:
        if access.may(_O.WRITE, _T.TRANSACTIONAL_ID, transactional_id):
            return handler(call)
        return denied_whole(call, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if access.may_on_cluster(_O.IDEMPOTENT_WRITE) or access.may_on_any_topic(_O.WRITE):
        return handler(call)
    return denied_whole(call, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def _judge_offset_for_leader_epoch(call: Call, access: Access, handler: Handler) -> HandlerResult:
    if access.may_on_cluster(_O.CLUSTER_ACTION):
        return handler(call)
    judge = each_allowed("topics", lambda t: access.may(_O.DESCRIBE, _T.TOPIC, t.topic), "topics")
    return judge(call, denied_items(call, ErrorCode.TOPIC_AUTHORIZATION_FAILED), handler)


def _judge_add_partitions(call: Call, access: Access, handler: Handler) -> HandlerResult:
    body = call.body
    if hasattr(body, "transactions"):
        if access.may_on_cluster(_O.CLUSTER_ACTION):
            return handler(call)
        return denied_whole(call, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if access.may(_O.WRITE, _T.TRANSACTIONAL_ID, body.v3_and_below_transactional_id):
        return handler(call)  # which asks for each topic
    return denied_whole(call, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


def _judge_configs(operation: AclOperation, results: str) -> Judge:
    def judge(call: Call, access: Access, handler: Handler) -> HandlerResult:
        api = call.header.api_key

        def may(resource: Any) -> bool:
            if resource.resource_type == _TOPIC_RESOURCE:
                return access.may(operation, _T.TOPIC, resource.resource_name)
            # The handler of AlterConfigs refuses loggers, and Kafka looks at that first.
            if api == ApiKey.ALTER_CONFIGS and resource.resource_type == _LOGGER_RESOURCE:
                return True
            return access.may_on_cluster(operation)

        def denied(body: Any) -> Body:
            told = [
                {
                    "error_code": (code := _config_denial(each)),
                    "error_message": code.message if api == ApiKey.DESCRIBE_CONFIGS else None,
                    "resource_type": each.resource_type,
                    "resource_name": each.resource_name,
                    "configs": [],
                }
                for each in body.resources
            ]
            return {results: told}

        return each_allowed("resources", may, results)(call, denied, handler)

    return judge


def _config_denial(resource: Any) -> ErrorCode:
    if resource.resource_type == _TOPIC_RESOURCE:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def _judge_describe_transactions(call: Call, access: Access, handler: Handler) -> HandlerResult:
    judge = each_allowed(
        "transactional_ids",
        lambda name: access.may(_O.DESCRIBE, _T.TRANSACTIONAL_ID, name),
        "transaction_states",
    )

    def leave_out(response: dict[str, Any]) -> Body:
        may = access.may_on_topic(_O.DESCRIBE)
        states = [
            {**state, "topics": [t for t in state["topics"] if may(t["topic"])]}
            for state in response["transaction_states"]
        ]
        return {**response, "transaction_states": states}

    denied = denied_items(call, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    return finished(call, judge(call, denied, handler), leave_out)


def _judge_list_transactions(call: Call, access: Access, handler: Handler) -> HandlerResult:
    def leave_out(response: dict[str, Any]) -> Body:
        shown = [
            state
            for state in response["transaction_states"]
            if access.may(_O.DESCRIBE, _T.TRANSACTIONAL_ID, state["transactional_id"])
        ]
        return {**response, "transaction_states": shown}

    return finished(call, handler(call), leave_out)
