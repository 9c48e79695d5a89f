"""From frames to handlers and back: the one place where a request meets the code that serves it."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any, Final, NamedTuple, TypeAlias

from klamm.broker.security.access import Access
from klamm.errors import RemoteProtocolError
from klamm.metrics.requests import RequestMeter, RequestMeters
from klamm.net.server import CloseConnection, MeasuredResponse, Parts, ServerConnection
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.failures import error_codes, failure
from klamm.protocol.codec.frames import decode_request, encode_response
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode

log = logging.getLogger("klamm.broker.requests")

#: Requests of the controller that name all partitions there are, and what is large for them.
_MAY_BE_HUGE: Final = frozenset({ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA})
_LARGE_BYTES: Final = 64 * 1024
#: So many errors of a response are counted when there is time for it.
_FEW: Final = 32


class Call(NamedTuple):
    """One request: what it says, where it came from, and its bytes for those who relay it."""

    connection: ServerConnection
    header: RequestHeader
    body: Any
    frame: memoryview
    meter: RequestMeter
    #: When all of it had been read from the socket, and when it had been decoded.
    arrived: int
    begun: int
    #: What the client may do; None without an authorizer, when it may do everything.
    access: Access | None = None


class EncodedResponse(NamedTuple):
    """A response that is encoded already, and the error codes in it as far as they are known."""

    parts: Parts
    errors: Sequence[int] = ()


#: Stands for "send nothing": a produce request without acknowledgement.
NO_RESPONSE: Final = EncodedResponse(None)

Body: TypeAlias = Mapping[str, Any]
Result: TypeAlias = Body | EncodedResponse
Handler: TypeAlias = Callable[[Call], Result | Awaitable[Result]]


class Dispatcher:
    """Decodes requests, calls handlers, encodes what they return, and measures all of it."""

    def __init__(self, handlers: Mapping[ApiKey, Handler], meters: RequestMeters) -> None:
        self._handlers = {
            int(key): (handler, meters.of_api[key]) for key, handler in handlers.items()
        }
        self._fetches = meters.of_api[ApiKey.FETCH]
        self._consumer_fetches = meters.consumer_fetches
        self._follower_fetches = meters.follower_fetches

    def __call__(
        self, connection: ServerConnection, frame: memoryview
    ) -> MeasuredResponse | Awaitable[MeasuredResponse]:
        """Serve one request; RemoteProtocolError for what cannot be read, which closes."""
        arrived = perf_counter_ns()
        if len(frame) > _LARGE_BYTES and frame[1] in _MAY_BE_HUGE and not frame[0]:
            return self._serve_large(connection, frame, arrived)
        return self._serve(connection, frame, arrived, arrived, *decode_request(frame))

    async def _serve_large(
        self, connection: ServerConnection, frame: memoryview, arrived: int
    ) -> MeasuredResponse:
        """What says something about every partition is not read on the event loop."""
        request = await asyncio.to_thread(decode_request, frame)
        response = self._serve(connection, frame, arrived, perf_counter_ns(), *request)
        return await response if inspect.isawaitable(response) else response

    def _serve(
        self,
        connection: ServerConnection,
        frame: memoryview,
        arrived: int,
        begun: int,
        header: RequestHeader,
        body: Any,
    ) -> MeasuredResponse | Awaitable[MeasuredResponse]:
        served = self._handlers.get(header.api_key)
        if served is None:
            raise CloseConnection(f"{APIS[header.api_key].name} is not served here")
        handler, meter = served
        if meter is self._fetches:
            is_follower = body.replica_id >= 0
            meter = self._follower_fetches if is_follower else self._consumer_fetches
        call = Call(connection, header, body, frame, meter, arrived, begun)
        try:
            result = handler(call)
            handled = perf_counter_ns()
            if inspect.isawaitable(result):
                return self._await(call, result, handled)
            return _respond(call, result, handled)
        except (RemoteProtocolError, CloseConnection):
            _note_closed(call, perf_counter_ns())
            raise
        except Exception:
            return _failed(call, perf_counter_ns())

    @staticmethod
    async def _await(call: Call, result: Awaitable[Result], handled: int) -> MeasuredResponse:
        try:
            return _respond(call, await result, handled)
        except (RemoteProtocolError, CloseConnection):
            _note_closed(call, handled)
            raise
        except Exception:
            return _failed(call, handled)


def _respond(call: Call, result: Result, handled: int) -> MeasuredResponse:
    _, header, _, frame, meter, arrived, begun, _ = call
    if isinstance(result, EncodedResponse):
        parts, codes = result
    else:
        parts, codes = [encode_response(header, result)], list(error_codes(result))
    if len(codes) > _FEW:
        # They would be kept for a while with all that is noted.
        meter.count_errors(codes)
        codes = ()
    answered = perf_counter_ns()
    return parts, meter, (header.api_version, len(frame), codes, arrived, begun, handled, answered)


def _note_closed(call: Call, handled: int) -> None:
    """The end of the connection is the response."""
    _, meter, unsent = _respond(call, NO_RESPONSE, handled)
    meter.note(unsent)


def _failed(call: Call, handled: int) -> MeasuredResponse:
    """A response of the request's own kind that says we failed (FRM-7)."""
    name = APIS[call.header.api_key].name
    log.exception("%s of %s failed", name, call.connection.peer)
    try:
        body = failure(call.header, call.body, ErrorCode.UNKNOWN_SERVER_ERROR)
        if body is not None:
            return _respond(call, body, handled)
    except Exception:
        log.exception("%s cannot even be told so", call.connection.peer)
    raise CloseConnection(f"{name} failed without a response")
