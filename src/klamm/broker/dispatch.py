"""From frames to handlers and back: the one place where a request meets the code that serves it."""

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from klamm.broker.server import Answer, CloseConnection, Connection
from klamm.errors import ProtocolError
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.protocol.failures import failure
from klamm.protocol.frames import RequestHeader, decode_request, encode_response

log = logging.getLogger("klamm.broker.requests")


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

    def __init__(self, handlers: Mapping[ApiKey, Handler]) -> None:
        self._handlers = {int(key): handler for key, handler in handlers.items()}

    def __call__(
        self, connection: Connection, frame: memoryview
    ) -> Answer | Awaitable[Answer]:
        """Serve one request; RemoteProtocolError for what cannot be read, which closes."""
        header, body = decode_request(frame)
        handler = self._handlers.get(header.api_key)
        if handler is None:
            raise CloseConnection(f"{APIS[header.api_key].name} is not served here")
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
