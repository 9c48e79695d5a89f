"""From frames to handlers and back: the one place where a request meets the code that serves it."""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from klamm.broker.meters import BrokerMeters
from klamm.broker.server import Answer, CloseConnection, Connection
from klamm.errors import ProtocolError
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.protocol.failures import failure
from klamm.protocol.frames import decode_request, encode_response
from klamm.protocol.headers import RequestHeader

log = logging.getLogger("klamm.broker.requests")

#: Requests of the controller that name all partitions there are, and what is large for them.
_MAY_BE_HUGE: Final = frozenset({ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA})
_LARGE_BYTES: Final = 64 * 1024


class Call(NamedTuple):
    """One request: what it says, where it came from, and its bytes for those who relay it."""

    connection: Connection
    header: RequestHeader
    body: Any
    frame: memoryview


class Frame(NamedTuple):
    """An answer that is encoded already."""

    parts: Answer


#: Stands for "send nothing": a produce request without acknowledgement.
NO_ANSWER: Final = Frame(None)

Body: TypeAlias = Mapping[str, Any]
Result: TypeAlias = Body | Frame
Handler: TypeAlias = Callable[[Call], Result | Awaitable[Result]]


class Dispatcher:
    """Decodes requests, calls handlers, encodes what they return."""

    def __init__(self, handlers: Mapping[ApiKey, Handler], meters: BrokerMeters) -> None:
        self._handlers = {int(key): handler for key, handler in handlers.items()}
        self._meters = meters

    def __call__(self, connection: Connection, frame: memoryview) -> Answer | Awaitable[Answer]:
        """Serve one request; RemoteProtocolError for what cannot be read, which closes."""
        if len(frame) > _LARGE_BYTES and frame[1] in _MAY_BE_HUGE and not frame[0]:
            return self._serve_large(connection, frame)
        return self._serve(connection, frame, *decode_request(frame))

    async def _serve_large(self, connection: Connection, frame: memoryview) -> Answer:
        """What says something about every partition is not read on the event loop."""
        request = await asyncio.to_thread(decode_request, frame)
        answer = self._serve(connection, frame, *request)
        return await answer if inspect.isawaitable(answer) else answer

    def _serve(
        self, connection: Connection, frame: memoryview, header: RequestHeader, body: Any
    ) -> Answer | Awaitable[Answer]:
        handler = self._handlers.get(header.api_key)
        if handler is None:
            raise CloseConnection(f"{APIS[header.api_key].name} is not served here")
        self._meters.requests[APIS[header.api_key].name, header.api_version] += 1
        call = Call(connection, header, body, frame)
        try:
            result = handler(call)
        except (ProtocolError, CloseConnection):
            raise
        except Exception:
            return self._failed(call)
        if inspect.isawaitable(result):
            return self._await(call, result)
        return self._encode(call, result)

    async def _await(self, call: Call, result: Awaitable[Result]) -> Answer:
        try:
            return self._encode(call, await result)
        except (ProtocolError, CloseConnection):
            raise
        except Exception:
            return self._failed(call)

    @staticmethod
    def _encode(call: Call, result: Result) -> Answer:
        if isinstance(result, Frame):
            return result.parts
        return [encode_response(call.header, result)]

    @staticmethod
    def _failed(call: Call) -> Answer:
        """An answer of the request's own kind that says we failed (FRM-7)."""
        name = APIS[call.header.api_key].name
        log.exception("%s of %s failed", name, call.connection.peer)
        body = failure(call.header, call.body, ErrorCode.UNKNOWN_SERVER_ERROR)
        if body is None:
            raise CloseConnection(f"{name} failed and expects no answer")
        return [encode_response(call.header, body)]
