"""The dispatcher: it decodes request frames, calls their handlers and encodes the responses.

A request that may name very much is decoded, and its response encoded, beside the event loop;
handlers take their time in slices.
"""

import functools
import inspect
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from time import perf_counter_ns
from typing import Any, Final, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar

from klamm.broker.security.authorizer import Access
from klamm.errors import RemoteProtocolError, SessionLostError
from klamm.metrics.requests import RequestMeter, RequestMeters
from klamm.net.responses import MeasuredResponse, Parts
from klamm.net.server import CloseConnection, ServerConnection
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.failures import error_codes, failure
from klamm.protocol.codec.frames import (
    decode_large_request,
    decode_request,
    encode_large_response,
    encode_response,
)
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codec.large import dismantle
from klamm.protocol.codes import ErrorCode
from klamm.protocol.fast.produce import ManyEntriesError
from klamm.slices import Delayed, LargeBody, Steps, aside, discard, run

log = logging.getLogger("klamm.broker.requests")

#: The size from which on requests are decoded, and their responses encoded, in another thread: they
#: may name every partition there is, or thousands of groups with two bytes each.
_LARGE_BYTES: Final = 8 * 1024
#: The same for requests that name less in as many bytes, and for which others wait: a group of
#: hundreds of members waits for the assignments in its leader's SyncGroup.
_LARGE_BYTES_OF: Final = {
    ApiKey.FETCH.to_bytes(2, "big"): 64 * 1024,
    ApiKey.SYNC_GROUP.to_bytes(2, "big"): 32 * 1024,
}
#: Most of a Produce request are records, and its decoder says when it names too much.
_PRODUCE: Final = ApiKey.PRODUCE.to_bytes(2, "big")
#: From this many items on a response is made in another thread, too.
_MANY_ITEMS: Final = 1000
#: Up to this many error codes of a response are counted lazily.
_FEW: Final = 32


class Call(NamedTuple):
    """A request: its header, body and frame, its connection, and when it arrived."""

    connection: ServerConnection
    header: RequestHeader
    body: Any
    frame: memoryview
    meter: RequestMeter
    #: When the frame had been read from the socket, and when it had been decoded.
    arrived: int
    begun: int
    #: What the client may do; None without an authorizer, when it may do everything.
    access: Access | None = None


class EncodedResponse(NamedTuple):
    """A response that the handler has encoded, with the error codes in it that it knows of."""

    parts: Parts
    errors: Sequence[int] | Counter[int] = ()


#: Nothing is sent: the result of a produce request with acks=0.
NO_RESPONSE: Final = EncodedResponse(None)

Body: TypeAlias = Mapping[str, Any]
Result: TypeAlias = Body | EncodedResponse
#: For `isinstance`, in the order of how often they come.
_RESULTS: Final = (EncodedResponse, Mapping)
P = ParamSpec("P")
T = TypeVar("T")
HandlerResult: TypeAlias = Result | Awaitable[Result]
Handler: TypeAlias = Callable[[Call], HandlerResult]
#: Serves a request in place of its handler, which it may call.
Interceptor: TypeAlias = Callable[[Handler, Call], HandlerResult]


class ByteQuotas(Protocol):
    """Counts the bytes of produce requests and of fetch responses.

    The handlers of Produce and Fetch encode their responses, so they need the throttle time. The
    quotas themselves are in `klamm.broker.security`.
    """

    def produce_ms(self, call: Call) -> int:
        """Count a Produce request; return the throttle time of its response in ms."""

    def fetch_ms(self, call: Call, size: int) -> int:
        """Count a Fetch response; one with a throttle time has to be sent without records."""

    def fetch_bytes_max(self, call: Call) -> int | None:
        """The bytes that the quota's window allows a consumer; None for no limit."""


class _NoQuotas:
    """No quota: do not wait."""

    def produce_ms(self, call: Call) -> int:
        return 0

    def fetch_ms(self, call: Call, size: int) -> int:
        return 0

    def fetch_bytes_max(self, call: Call) -> int | None:
        return None


NO_QUOTAS: Final = _NoQuotas()


def in_slices(
    handle: Callable[P, Steps[HandlerResult]],
) -> Callable[P, HandlerResult]:
    """Make a handler of a function whose work is cut into steps."""

    @functools.wraps(handle)
    def begin(*args: P.args, **kwargs: P.kwargs) -> HandlerResult:
        responding: HandlerResult = run(handle(*args, **kwargs))
        return responding

    return begin


class Dispatcher:
    """Decodes requests, calls handlers, encodes their results, and measures each step."""

    def __init__(self, handlers: Mapping[ApiKey, Handler], meters: RequestMeters) -> None:
        self._handlers = {
            int(key): (handler, meters.of_api[key]) for key, handler in handlers.items()
        }
        #: The handlers, but for APIs that are intercepted.
        self._serving = self._handlers
        self._fetches = meters.of_api[ApiKey.FETCH]
        self._consumer_fetches = meters.consumer_fetches
        self._follower_fetches = meters.follower_fetches

    def intercept(self, keys: Collection[int], serve: Interceptor) -> None:
        """Let `serve` decide about requests of these APIs; all others go to their handler."""
        intercepted = {
            key: (functools.partial(serve, handler), meter)
            for key, (handler, meter) in self._handlers.items()
            if key in keys
        }
        self._serving = {**self._handlers, **intercepted} if intercepted else self._handlers

    def __call__(
        self, connection: ServerConnection, frame: memoryview
    ) -> MeasuredResponse | Awaitable[MeasuredResponse]:
        """Serve one request; raise a RemoteProtocolError if it cannot be decoded."""
        arrived = perf_counter_ns()
        if connection.shortcut is not None and self._serving is self._handlers:
            taken = connection.shortcut.take(frame, arrived)
            if taken is not None:
                return self._handle(*taken)
        if _is_large_request(frame) and frame[:2] != _PRODUCE:
            return self._serve_large(connection, frame, arrived)
        try:
            request = decode_request(frame)
        except ManyEntriesError:
            return self._serve_large(connection, frame, arrived)
        return self._serve(connection, frame, arrived, arrived, *request)

    async def _serve_large(
        self, connection: ServerConnection, frame: memoryview, arrived: int
    ) -> MeasuredResponse:
        """Serve a request that may name very much, and take it apart afterwards."""
        request = await aside(decode_large_request, frame)
        try:
            response = self._serve(connection, frame, arrived, perf_counter_ns(), *request)
            return await response if inspect.isawaitable(response) else response
        finally:
            discard(dismantle, request.body)

    def _serve(
        self,
        connection: ServerConnection,
        frame: memoryview,
        arrived: int,
        begun: int,
        header: RequestHeader,
        body: Any,
    ) -> MeasuredResponse | Awaitable[MeasuredResponse]:
        served = self._serving.get(header.api_key)
        if served is None:
            raise CloseConnection(f"{APIS[header.api_key].name} is not served here")
        handler, meter = served
        if meter is self._fetches:
            is_follower = body.replica_id >= 0
            meter = self._follower_fetches if is_follower else self._consumer_fetches
        return self._handle(Call(connection, header, body, frame, meter, arrived, begun), handler)

    def _handle(
        self, call: Call, handler: Handler
    ) -> MeasuredResponse | Awaitable[MeasuredResponse]:
        try:
            result = handler(call)
            handled = perf_counter_ns()
            if isinstance(result, Delayed):
                return self._delay(call, result, handled)
            if isinstance(result, _RESULTS):
                return _respond(call, result, handled)
            return self._await(call, result, handled)
        except (RemoteProtocolError, CloseConnection):
            _note_closed(call, perf_counter_ns())
            raise
        except Exception as error:
            return _failed(call, error, perf_counter_ns())

    def _delay(
        self, call: Call, result: Delayed[Result], handled: int
    ) -> Delayed[MeasuredResponse]:
        resume = functools.partial(self._resume, call, result.respond, handled)
        return Delayed(result.event, resume)

    def _resume(
        self, call: Call, respond: Callable[[], HandlerResult], handled: int
    ) -> MeasuredResponse | Awaitable[MeasuredResponse]:
        """Go on with a request that was delayed."""
        try:
            result = respond()
            if isinstance(result, Delayed):
                return self._delay(call, result, handled)
            if isinstance(result, EncodedResponse) or (
                isinstance(result, Mapping) and not is_large(call, result)
            ):
                return _respond(call, result, handled)
            return self._await(call, result, handled)
        except (RemoteProtocolError, CloseConnection):
            _note_closed(call, handled)
            raise
        except Exception as error:
            return _failed(call, error, handled)

    @staticmethod
    async def _await(call: Call, result: HandlerResult, handled: int) -> MeasuredResponse:
        try:
            response = await result if inspect.isawaitable(result) else result
            if is_large(call, response) and not isinstance(response, EncodedResponse):
                response = await aside(_encode_large, call.header, response)
            return _respond(call, response, handled)
        except (RemoteProtocolError, CloseConnection):
            _note_closed(call, handled)
            raise
        except Exception as error:
            return _failed(call, error, handled)


def _respond(call: Call, result: Result, handled: int) -> MeasuredResponse:
    _, header, _, frame, meter, arrived, begun, _ = call
    parts, codes = result if isinstance(result, EncodedResponse) else _encode(header, result)
    if len(codes) > _FEW or isinstance(codes, Counter):
        # Lazily counted codes stay in memory until they are counted.
        meter.count_errors(codes)
        codes = ()
    encoded = perf_counter_ns()
    return parts, meter, (header.api_version, len(frame), codes, arrived, begun, handled, encoded)


def _encode(header: RequestHeader, body: Body) -> EncodedResponse:
    return EncodedResponse([encode_response(header, body)], list(error_codes(body)))


def _encode_large(header: RequestHeader, body: Body) -> EncodedResponse:
    codes = Counter(map(int, error_codes(body)))
    encoded = EncodedResponse(encode_large_response(header, body), codes)
    dismantle(body)
    return encoded


def is_large(call: Call, result: Result) -> bool:
    """Whether a request or its response may take long to go through."""
    return isinstance(result, LargeBody) or _is_large_request(call.frame)


def _is_large_request(frame: memoryview) -> bool:
    size = len(frame)
    return size > _LARGE_BYTES and size > _LARGE_BYTES_OF.get(bytes(frame[:2]), _LARGE_BYTES)


def translated(call: Call, function: Callable[P, T], *args: P.args, **kw: P.kwargs) -> Steps[T]:
    """Steps that call a pure function: beside the event loop if the request is large."""
    if _is_large_request(call.frame):
        result: T = yield aside(function, *args, **kw)
        return result
    return function(*args, **kw)


def body_of(items: Sequence[Any], make: Callable[[T], Body], found: T) -> Steps[Body]:
    """Steps that make the body of a response from what was found; beside the event loop if its
    items are many, however small the request was.
    """
    if len(items) > _MANY_ITEMS:
        body: Body = yield aside(make, found)
        return LargeBody(body)
    return make(found)


def refused(call: Call, code: ErrorCode) -> HandlerResult:
    """The response to a request of which all is refused with one error."""
    if _is_large_request(call.frame):
        return aside(_refusal, call, code)
    return _refusal(call, code)


def _refusal(call: Call, code: ErrorCode) -> Body:
    response = failure(call.header, call.body, code)
    if response is None:
        raise CloseConnection(f"{APIS[call.header.api_key].name}: {code.name}")
    return response


def _note_closed(call: Call, handled: int) -> None:
    """Measure a request whose connection is closed in place of a response."""
    _, meter, unsent = _respond(call, NO_RESPONSE, handled)
    meter.note(unsent)


def _failed(call: Call, error: Exception, handled: int) -> MeasuredResponse:
    """A response of the request's own API with UNKNOWN_SERVER_ERROR (FRM-7)."""
    name = APIS[call.header.api_key].name
    # A lost session is an event like any other, and no reason to show where it was noticed.
    trace = None if isinstance(error, SessionLostError) else error
    log.error("%s of %s failed: %s", name, call.connection.peer, error, exc_info=trace)
    try:
        if call.connection.shortcut is not None:
            # What serves a request by a shortcut has not decoded it.
            call = call._replace(body=decode_request(call.frame).body)
        return _respond(call, _refusal(call, ErrorCode.UNKNOWN_SERVER_ERROR), handled)
    except CloseConnection:
        pass
    except Exception:
        log.exception("the error response for %s cannot be encoded", call.connection.peer)
    raise CloseConnection(f"{name} failed without a response")
