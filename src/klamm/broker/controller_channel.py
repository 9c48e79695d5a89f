"""The broker's channel to the controller: it sends one request at a time (LIFE-10, LIFE-11).

The controller is the one of the latest UpdateMetadata. A request whose connection fails, or that
reaches a node that is not controller, is sent again to the controller that the cache names then.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

from klamm.broker.metadata.cache import BrokerNode, MetadataCache
from klamm.config.client_properties import ClientSecurity
from klamm.errors import UnavailableError
from klamm.net.connection import ClientConnection
from klamm.net.secure import SecureClient
from klamm.protocol.apis import ApiKey

log = logging.getLogger("klamm.broker.controller_channel")
_PAUSE_S: Final = 0.05


class BrokerToControllerChannel:
    """Sends requests to the current controller."""

    def __init__(
        self,
        broker_id: int,
        metadata: MetadataCache,
        listener: str,
        timeout_s: float,
        security: ClientSecurity,
    ) -> None:
        self._metadata = metadata
        self._listener = listener
        self._connection = ClientConnection(
            str(broker_id), timeout_s, timeout_s, secure=SecureClient(security)
        )
        self._turn = asyncio.Lock()

    @property
    def controller(self) -> BrokerNode | None:
        """The controller's address on the listener for it; None if it is not known."""
        return self._metadata.snapshot.controller(self._listener)

    async def send_once(self, key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        """Send to the current controller; UnavailableError if none is known or none responds."""
        async with self._turn:
            node = self.controller
            if node is None:
                raise UnavailableError("no controller is known")
            return await self._connection.send(node.host, node.port, key, version, body)

    async def send(
        self,
        key: ApiKey,
        version: int,
        body: Callable[[], Mapping[str, Any]],
        is_refused: Callable[[Any], bool],
    ) -> Any:
        """Send until a controller responds and does not refuse; `body` is made anew each time."""
        while True:
            try:
                response = await self.send_once(key, version, body())
            except UnavailableError as error:
                log.debug("%s", error)
            else:
                if not is_refused(response):
                    return response
            await asyncio.sleep(_PAUSE_S)

    def on_metadata(self) -> None:
        """Close the connection to a former controller: its response is not awaited."""
        node = self.controller
        if node is not None and self._connection.address not in (None, (node.host, node.port)):
            self._connection.close()

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
