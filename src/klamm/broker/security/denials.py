"""Responses to requests of which all is denied, or a part.

The denied part of a request is taken out before the handler is called, and added to its response.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable, Callable
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
from klamm.errors import LocalProtocolError
from klamm.net.server import CloseConnection
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.failures import failure, failure_of_items, whole_failure
from klamm.protocol.codec.frames import decode_large_response, encode_request
from klamm.protocol.codes import ErrorCode
from klamm.slices import LargeBody, Steps, aside

_SIZE_BYTES: Final = 4
_MILLISECOND: Final = timedelta(milliseconds=1)
_FIRST_WITH_LOG_DIRS_ERROR: Final = 3

#: Changes a response before it is sent.
Finish: TypeAlias = Callable[[dict[str, Any]], Body]


def each_allowed(
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

        return finished(call, handler(narrowed), add)

    return judge


def denied_whole(call: Call, code: ErrorCode) -> HandlerResult:
    """The whole request is denied."""
    if call.header.api_key == ApiKey.PRODUCE and call.body.acks == 0:
        raise CloseConnection(f"Produce without acknowledgement: {code.name}")
    if (
        call.header.api_key == ApiKey.DESCRIBE_LOG_DIRS
        and call.header.api_version < _FIRST_WITH_LOG_DIRS_ERROR
    ):
        return {"results": []}
    if call.header.api_key in _TOLD_BY_PARTITION:
        response = whole_failure(call.header, call.body, code)
        assert response is not None
        return response
    return refuse_all(call, code)


_TOLD_BY_PARTITION: Final = frozenset(
    {ApiKey.ALTER_PARTITION_REASSIGNMENTS, ApiKey.LIST_PARTITION_REASSIGNMENTS}
)


def denied_items(
    call: Call, code: ErrorCode, results: str = "", message: str | None = ""
) -> Callable[[Any], Body]:
    """The response to a request that holds only what is denied.

    Where Kafka has another message than that of the code, `results` names the list of the
    response whose items have it.
    """

    def make(body: Any) -> Body:
        make = failure_of_items if call.header.api_key == ApiKey.OFFSET_DELETE else failure
        response = make(call.header, body, code)
        assert response is not None, "requests with lists are answered"
        if not results:
            return response
        return {
            **response,
            results: [{**each, "error_message": message} for each in response[results]],
        }

    return make


def finished(call: Call, responding: HandlerResult, finish: Finish) -> HandlerResult:
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
    return message_values(decoded_again(call, result))


async def awaited_values(call: Call, result: Result) -> dict[str, Any]:
    """The same, read beside the event loop if the response may be large."""
    if is_large(call, result):
        return await aside(response_values, call, result)
    return response_values(call, result)


def decoded_again(call: Call, response: EncodedResponse) -> Any:
    """A response that is encoded already, as a message. Slow for large ones."""
    if response.parts is None:
        raise LocalProtocolError("a request that is not answered cannot be answered in part")
    frame = b"".join(part for part in response.parts if isinstance(part, bytes | memoryview))
    return decode_large_response(call.header, memoryview(frame)[_SIZE_BYTES:])


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
