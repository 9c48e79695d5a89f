"""Requests of this broker to the controller: who that is, and one request at a time (LIFE-10, 11).

The controller is the one that the latest UpdateMetadata named. A request that meets a broken
connection, or a node that is not controller, waits until the cache names one and is sent again.
"""

import asyncio
import logging
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from klamm.broker.metadata import MetadataCache, Node
from klamm.errors import UnavailableError
from klamm.protocol.apis import ApiKey
from klamm.protocol.frames import decode_response, encode_request
from klamm.protocol.headers import RequestHeader

log = logging.getLogger("klamm.broker.to_controller")
_SIZE: Final = struct.Struct(">i")
_PAUSE_S: Final = 0.05


class Exchange:
    """One connection to another node, for one request at a time."""

    def __init__(self, client_id: str, timeout_s: float) -> None:
        self._client_id = client_id
        self._timeout_s = timeout_s
        self._correlation_id = 0
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._address: tuple[str, int] | None = None

    async def ask(
        self, host: str, port: int, key: ApiKey, version: int, body: Mapping[str, Any]
    ) -> Any:
        """The answer's body; UnavailableError if the connection fails, which is then closed."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._ask(host, port, key, version, body)
        except (OSError, EOFError, TimeoutError) as error:
            self.close()
            raise UnavailableError(f"{key.name} to {host}:{port} failed: {error!r}") from error
        except asyncio.CancelledError:
            self.close()
            raise

    async def _ask(
        self, host: str, port: int, key: ApiKey, version: int, body: Mapping[str, Any]
    ) -> Any:
        if self._streams is None or self._address != (host, port):
            self.close()
            self._streams = await asyncio.open_connection(host, port, limit=1 << 20)
            self._address = (host, port)
        reader, writer = self._streams
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        header = RequestHeader(key, version, self._correlation_id, self._client_id)
        writer.write(encode_request(header, body))
        await writer.drain()
        (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
        return decode_response(header, await reader.readexactly(size))

    def close(self) -> None:
        """Give up the connection; the next request opens another."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class ToController:
    """Asks whoever is controller."""

    def __init__(
        self, broker_id: int, metadata: MetadataCache, listener: str, timeout_s: float
    ) -> None:
        self._metadata = metadata
        self._listener = listener
        self._exchange = Exchange(str(broker_id), timeout_s)
        self._turn = asyncio.Lock()

    @property
    def controller(self) -> Node | None:
        """The controller as far as it is known, on the listener that brokers use."""
        return self._metadata.snapshot.controller(self._listener)

    async def ask_once(self, key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        """Ask the present controller; UnavailableError if there is none or it does not answer."""
        async with self._turn:
            node = self.controller
            if node is None:
                raise UnavailableError("no controller is known")
            return await self._exchange.ask(node.host, node.port, key, version, body)

    async def ask(
        self,
        key: ApiKey,
        version: int,
        body: Callable[[], Mapping[str, Any]],
        is_refused: Callable[[Any], bool],
    ) -> Any:
        """Ask until a controller answers and does not refuse; the body is made anew each time."""
        while True:
            try:
                answer = await self.ask_once(key, version, body())
            except UnavailableError as error:
                log.debug("%s", error)
            else:
                if not is_refused(answer):
                    return answer
            await asyncio.sleep(_PAUSE_S)

    def close(self) -> None:
        """Give up the connection."""
        self._exchange.close()
