"""Requests before an authorizer: what is denied is answered here, the rest goes to the handler.

`Guard.protect` wraps every handler once, at the start, as the table of requirements says; a
handler without a row is not served. A request of which only a part is allowed goes on without the
rest, and the denied part is added to the response. Without an authorizer nothing is wrapped.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias

from klamm.broker.handlers.dispatch import (
    Body,
    Call,
    EncodedResponse,
    Handler,
    HandlerResult,
    Result,
    in_slices,
    is_large,
    translated,
)
from klamm.broker.handlers.dispatch import refused as refuse_all
from klamm.broker.security.authorizer import Access, AclAuthorizer
from klamm.broker.security.requirements import REQUIREMENTS, Need, Scope
from klamm.errors import LocalProtocolError
from klamm.net.server import CloseConnection
from klamm.protocol.acls import CLUSTER_NAME, AclOperation, ResourceType
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.failures import failure
from klamm.protocol.codec.frames import decode_response, encode_request
from klamm.protocol.codes import ErrorCode
from klamm.slices import LargeBody, Steps, aside, each

_O = AclOperation
_T = ResourceType
_SIZE_BYTES: Final = 4
_MILLISECOND: Final = timedelta(milliseconds=1)
_TOPIC_RESOURCE: Final = 2
_FIRST_WITH_LOG_DIRS_ERROR: Final = 3
_FIRST_WITH_TOPIC_CONFIGS: Final = 5

#: Changes a response before it is sent.
Finish: TypeAlias = Callable[[dict[str, Any]], Body]
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
            "CreateTopics": _judge_create_topics,
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
            judge = _each(
                "topic_names", lambda name: access.may(_O.DELETE, _T.TOPIC, name), "responses"
            )
            return judge(call, _denied(call, ErrorCode.TOPIC_AUTHORIZATION_FAILED), handler)
        return self._judge_topics(call, access, handler)

    @in_slices
    def _judge_topics(self, call: Call, access: Access, handler: Handler) -> Steps[HandlerResult]:
        refused: list[dict[str, Any]] = []
        allowed = []
        for topic in call.body.topics:
            yield None
            name = topic.name
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
        return _finish(
            call,
            handler(narrowed),
            lambda response: {**response, "responses": [*response["responses"], *refused]},
        )


def _refused_topic(topic_id: Any, name: str | None, code: ErrorCode) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": topic_id,
        "error_code": code,
        "error_message": code.message,
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
                return _failure(call, need.denied)
        if not each:
            return handler(call)
        need = each[0]
        (operation,) = need.operations

        def may(item: Any) -> bool:
            name = getattr(item, need.item) if need.item else item
            return access.may(operation, need.resource, name)

        items = _each(need.names, may, need.results)
        return items(call, _denied(call, need.denied), handler)

    return judge


def _is_met(need: Need, call: Call, access: Access) -> bool:
    if need.resource is _T.CLUSTER:
        name = CLUSTER_NAME
    else:
        name = getattr(call.body, need.names)
        if name is None:
            return False
    return any(access.may(operation, need.resource, name) for operation in need.operations)


def _each(
    field: str, may: Callable[[Any], bool], results: str
) -> Callable[[Call, Callable[[Any], Body], Handler], HandlerResult]:
    """Serve the allowed items of a list and add the denied ones to the response."""

    @in_slices
    def judge(call: Call, denied: Callable[[Any], Body], handler: Handler) -> Steps[HandlerResult]:
        refused: list[Any] = []
        allowed: list[Any] = []
        for item in getattr(call.body, field):
            (allowed if may(item) else refused).append(item)
            yield None
        if not refused:
            return handler(call)
        only_refused = dataclasses.replace(call.body, **{field: tuple(refused)})
        told = (yield from translated(call, denied, only_refused))[results]
        narrowed = yield from translated(call, with_body, call, **{field: tuple(allowed)})

        def add(response: dict[str, Any]) -> Body:
            if response.get("error_code"):
                return response  # the whole request failed, and that comes first
            return {**response, results: [*response.get(results, ()), *told]}

        return _finish(call, handler(narrowed), add)

    return judge


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
        return _failure(call, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
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
            told.append(_no_offsets(group, (), ErrorCode.GROUP_AUTHORIZATION_FAILED))
            continue
        allowed.append(_with_allowed_topics(group, may_topic))

    def add(response: dict[str, Any]) -> Body:
        served = [
            {
                **group,
                "topics": _shown_offsets(group, may_topic, denied_topics[group["group_id"]]),
            }
            for group in response["groups"]
        ]
        return {"groups": [*served, *told]}

    if not allowed:
        return {"groups": told}
    narrowed = yield from translated(call, with_body, call, groups=tuple(allowed))
    return _finish(call, handler(narrowed), add)


def _judge_offset_fetch_of_one(call: Call, access: Access, handler: Handler) -> HandlerResult:
    body = call.body
    may_topic = access.may_on_topic(_O.DESCRIBE)
    if not access.may(_O.DESCRIBE, _T.GROUP, body.group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        # Version 1 has no place for an error but the partitions.
        return _no_offsets(body, body.topics if call.header.api_version < 2 else (), code)
    denied = _denied_offsets(body, may_topic)

    def add(response: dict[str, Any]) -> Body:
        return {**response, "topics": _shown_offsets(response, may_topic, denied)}

    return _finish(call, handler(call._replace(body=_with_allowed_topics(body, may_topic))), add)


def _with_allowed_topics(group: Any, may: Callable[[str], bool]) -> Any:
    if group.topics is None:
        return group
    return dataclasses.replace(group, topics=tuple(t for t in group.topics if may(t.name)))


def _no_offsets(group: Any, topics: Sequence[Any] | None, code: ErrorCode) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "error_code": code,
        "topics": [_denied_topic(topic, code) for topic in topics or ()],
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


def _shown_offsets(
    response: Mapping[str, Any], may: Callable[[str], bool], denied: list[dict[str, Any]]
) -> list[Any]:
    """The response without denied topics, and with an error for those that were requested."""
    return [*(topic for topic in response["topics"] if may(topic["name"])), *denied]


def _judge_find_coordinator(call: Call, access: Access, handler: Handler) -> HandlerResult:
    is_group = getattr(call.body, "key_type", 0) == 0
    resource = _T.GROUP if is_group else _T.TRANSACTIONAL_ID
    code = (
        ErrorCode.GROUP_AUTHORIZATION_FAILED
        if is_group
        else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    )

    def may(name: str) -> bool:
        return access.may(_O.DESCRIBE, resource, name)

    if not hasattr(call.body, "coordinator_keys"):
        return handler(call) if may(call.body.key) else _failure(call, code)
    judge = _each("coordinator_keys", may, "coordinators")
    return judge(call, _denied(call, code), handler)


def _judge_list_groups(call: Call, access: Access, handler: Handler) -> HandlerResult:
    if access.may_on_cluster(_O.DESCRIBE):
        return handler(call)

    def leave_out(response: dict[str, Any]) -> Body:
        shown = [g for g in response["groups"] if access.may(_O.DESCRIBE, _T.GROUP, g["group_id"])]
        return {**response, "groups": shown}

    return _finish(call, handler(call), leave_out)


@in_slices
def _judge_create_topics(call: Call, access: Access, handler: Handler) -> Steps[HandlerResult]:
    may_all = access.may_on_cluster(_O.CREATE)
    judge = _each(
        "topics", lambda topic: may_all or access.may(_O.CREATE, _T.TOPIC, topic.name), "topics"
    )
    shows_all = call.header.api_version < _FIRST_WITH_TOPIC_CONFIGS
    if not shows_all:
        may = access.may_on_topic(_O.DESCRIBE_CONFIGS)
        shows_all = all((yield from each(lambda topic: may(topic.name), call.body.topics)))
    responding = judge(call, _denied(call, ErrorCode.TOPIC_AUTHORIZATION_FAILED), handler)
    if shows_all:
        return responding

    def hide(topic: Mapping[str, Any]) -> Mapping[str, Any]:
        if topic["error_code"] or access.may(_O.DESCRIBE_CONFIGS, _T.TOPIC, topic["name"]):
            return topic
        return {
            **topic,
            "topic_config_error_code": ErrorCode.TOPIC_AUTHORIZATION_FAILED,
            "num_partitions": -1,
            "replication_factor": -1,
            "configs": [],
        }

    return _finish(
        call,
        responding,
        lambda response: {**response, "topics": [hide(t) for t in response["topics"]]},
    )


def _judge_init_producer_id(call: Call, access: Access, handler: Handler) -> HandlerResult:
    transactional_id = call.body.transactional_id
    if transactional_id is not None:
        if access.may(_O.WRITE, _T.TRANSACTIONAL_ID, transactional_id):
            return handler(call)
        return _failure(call, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if access.may_on_cluster(_O.IDEMPOTENT_WRITE) or access.may_on_any_topic(_O.WRITE):
        return handler(call)
    return _failure(call, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)


def _judge_offset_for_leader_epoch(call: Call, access: Access, handler: Handler) -> HandlerResult:
    if access.may_on_cluster(_O.CLUSTER_ACTION):
        return handler(call)
    judge = _each("topics", lambda t: access.may(_O.DESCRIBE, _T.TOPIC, t.topic), "topics")
    return judge(call, _denied(call, ErrorCode.TOPIC_AUTHORIZATION_FAILED), handler)


def _judge_add_partitions(call: Call, access: Access, handler: Handler) -> HandlerResult:
    body = call.body
    if hasattr(body, "transactions"):
        if access.may_on_cluster(_O.CLUSTER_ACTION):
            return handler(call)
        return _failure(call, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    transactional_id = body.v3_and_below_transactional_id
    topics = body.v3_and_below_topics
    denied = {t.name for t in topics if not access.may(_O.WRITE, _T.TOPIC, t.name)}
    if not access.may(_O.WRITE, _T.TRANSACTIONAL_ID, transactional_id):
        codes = dict.fromkeys(
            (t.name for t in topics), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        )
    elif denied:
        codes = {
            t.name: ErrorCode.TOPIC_AUTHORIZATION_FAILED
            if t.name in denied
            else ErrorCode.OPERATION_NOT_ATTEMPTED
            for t in topics
        }
    else:
        return handler(call)
    return {
        "results_by_topic_v3_and_below": [
            {
                "name": topic.name,
                "results_by_partition": [
                    {"partition_index": index, "partition_error_code": codes[topic.name]}
                    for index in topic.partitions
                ],
            }
            for topic in topics
        ]
    }


def _judge_configs(operation: AclOperation, results: str) -> Judge:
    def judge(call: Call, access: Access, handler: Handler) -> HandlerResult:
        def may(resource: Any) -> bool:
            if resource.resource_type == _TOPIC_RESOURCE:
                return access.may(operation, _T.TOPIC, resource.resource_name)
            return access.may_on_cluster(operation)

        def denied(body: Any) -> Body:
            told = [
                {
                    "error_code": (code := _config_denial(each)),
                    "error_message": code.message,
                    "resource_type": each.resource_type,
                    "resource_name": each.resource_name,
                    "configs": [],
                }
                for each in body.resources
            ]
            return {results: told}

        return _each("resources", may, results)(call, denied, handler)

    return judge


def _config_denial(resource: Any) -> ErrorCode:
    if resource.resource_type == _TOPIC_RESOURCE:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def _judge_describe_transactions(call: Call, access: Access, handler: Handler) -> HandlerResult:
    judge = _each(
        "transactional_ids",
        lambda name: access.may(_O.DESCRIBE, _T.TRANSACTIONAL_ID, name),
        "transaction_states",
    )

    def denied(body: Any) -> Body:
        code = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        nothing = {
            "error_code": code,
            "transaction_state": "",
            "transaction_timeout": 0,
            "transaction_start_time_ms": -1,
            "producer_id": -1,
            "producer_epoch": -1,
            "topics": [],
        }
        names = body.transactional_ids
        return {"transaction_states": [{**nothing, "transactional_id": name} for name in names]}

    def leave_out(response: dict[str, Any]) -> Body:
        may = access.may_on_topic(_O.DESCRIBE)
        states = [
            {**state, "topics": [t for t in state["topics"] if may(t["topic"])]}
            for state in response["transaction_states"]
        ]
        return {**response, "transaction_states": states}

    return _finish(call, judge(call, denied, handler), leave_out)


def _judge_list_transactions(call: Call, access: Access, handler: Handler) -> HandlerResult:
    def leave_out(response: dict[str, Any]) -> Body:
        shown = [
            state
            for state in response["transaction_states"]
            if access.may(_O.DESCRIBE, _T.TRANSACTIONAL_ID, state["transactional_id"])
        ]
        return {**response, "transaction_states": shown}

    return _finish(call, handler(call), leave_out)


# Responses


def _failure(call: Call, code: ErrorCode) -> HandlerResult:
    """The whole request is denied."""
    if call.header.api_key == ApiKey.PRODUCE and call.body.acks == 0:
        raise CloseConnection(f"Produce without acknowledgement: {code.name}")
    if (
        call.header.api_key == ApiKey.DESCRIBE_LOG_DIRS
        and call.header.api_version < _FIRST_WITH_LOG_DIRS_ERROR
    ):
        return {"results": []}
    return refuse_all(call, code)


def _denied(call: Call, code: ErrorCode) -> Callable[[Any], Body]:
    """The response to a request that holds only what is denied."""

    def make(body: Any) -> Body:
        response = failure(call.header, body, code)
        assert response is not None, "requests with lists are answered"
        return response

    return make


def _finish(call: Call, responding: HandlerResult, finish: Finish) -> HandlerResult:
    """Apply `finish` to the response once it is there."""
    if inspect.isawaitable(responding):
        return _finish_later(call, responding, finish)
    return finish(response_values(call, responding))


async def _finish_later(call: Call, responding: Awaitable[Result], finish: Finish) -> Result:
    result = await responding
    if is_large(call, result):
        return LargeBody(await aside(lambda: finish(response_values(call, result))))
    return finish(response_values(call, result))


def response_values(call: Call, result: Result) -> dict[str, Any]:
    """The fields of a response, read again if it is encoded already."""
    if not isinstance(result, EncodedResponse):
        return dict(result)
    if result.parts is None:
        raise LocalProtocolError("a request that is not answered cannot be answered in part")
    frame = b"".join(part for part in result.parts if isinstance(part, bytes | memoryview))
    return message_values(decode_response(call.header, memoryview(frame)[_SIZE_BYTES:]))


def with_body(call: Call, **fields: Any) -> Call:
    """The call with another body, also in the frame that may be forwarded."""
    body = dataclasses.replace(call.body, **fields)
    frame = encode_request(call.header, message_values(body))
    return call._replace(body=body, frame=memoryview(frame)[_SIZE_BYTES:])


def message_values(message: Any) -> dict[str, Any]:
    """A message's dataclass as the values that the encoder takes."""
    return {each.name: _value(getattr(message, each.name)) for each in dataclasses.fields(message)}


def _value(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return message_values(value)
    if isinstance(value, tuple | list):
        return [_value(each) for each in value]
    if isinstance(value, timedelta):
        return value // _MILLISECOND
    if isinstance(value, datetime):
        return round(value.timestamp() * 1000)
    return value
