"""Connections to other brokers for the requests of transactions, one for each broker."""

from collections.abc import Mapping
from typing import Any, Final

from klamm.broker.metadata.cache import MetadataCache
from klamm.config.broker import BrokerConfig
from klamm.errors import UnavailableError
from klamm.net.connection import ClientConnection
from klamm.net.secure import SecureClient
from klamm.protocol.apis import ApiKey

_API_VERSIONS: Final = 0


class PeerConnections:
    """Sends requests to brokers over the inter-broker listener, one at a time to each."""

    def __init__(self, config: BrokerConfig, broker_id: int, metadata: MetadataCache) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._listener = config.inter_broker_listener_name
        self._timeout_s = config.request_timeout_ms / 1000
        self._secure = SecureClient(config.channel_security(self._listener))
        self._connections: dict[int, ClientConnection] = {}
        #: The highest version of an API that the broker at an address speaks.
        self._versions: dict[tuple[str, int, ApiKey], int] = {}

    async def send(self, broker: int, key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        """The response's body; UnavailableError if the broker is not known or does not respond."""
        host, port = self._address(broker)
        return await self._connection(broker).send(host, port, key, version, body)

    async def highest_version(self, broker: int, key: ApiKey) -> int:
        """The highest version of `key` that a broker serves, -1 for none."""
        host, port = self._address(broker)
        known = self._versions.get((host, port, key))
        if known is None:
            response = await self._connection(broker).send(
                host, port, ApiKey.API_VERSIONS, _API_VERSIONS, {}
            )
            known = next(
                (each.max_version for each in response.api_keys if each.api_key == key), -1
            )
            self._versions[host, port, key] = known
        return known

    def on_metadata(self) -> None:
        """Let go of brokers that are gone: another version may come back at the same address."""
        alive = self._metadata.snapshot.brokers
        for broker in [each for each in self._connections if each not in alive]:
            self._connections.pop(broker).close()
            self._versions.clear()

    def close(self) -> None:
        """Give up all connections."""
        for connection in self._connections.values():
            connection.close()

    def _address(self, broker: int) -> tuple[str, int]:
        node = self._metadata.snapshot.node(broker, self._listener)
        if node is None:
            raise UnavailableError(f"broker {broker} is not alive")
        return node.host, node.port

    def _connection(self, broker: int) -> ClientConnection:
        connection = self._connections.get(broker)
        if connection is None:
            connection = self._connections[broker] = ClientConnection(
                str(self._broker_id), self._timeout_s, self._timeout_s, secure=self._secure
            )
        return connection
