"""What a node with `klamm.roles=controller` has instead of data.

Producers ask any broker for an id, and clients give up if the one that they meet does not know how:
Java's producers want one by default.
"""

from collections.abc import Mapping

from klamm.broker.controller_channel import BrokerToControllerChannel
from klamm.broker.handlers.dispatch import Handler
from klamm.broker.handlers.producers import ProducerHandlers
from klamm.broker.identity import BrokerIdentity
from klamm.broker.metadata.cache import MetadataCache, SnapshotChange
from klamm.broker.transactions.producer_ids import ProducerIds
from klamm.config.broker import BrokerConfig
from klamm.protocol.apis import ApiKey


class NoData:
    """Ids for producers, and nothing else."""

    def __init__(
        self, config: BrokerConfig, identity: BrokerIdentity, metadata: MetadataCache
    ) -> None:
        self._controller_channel = BrokerToControllerChannel(
            identity.broker_id,
            metadata,
            config.control_plane_listener_name or config.inter_broker_listener_name,
            config.request_timeout_ms / 1000,
            config.channel_security(
                config.control_plane_listener_name or config.inter_broker_listener_name
            ),
        )
        self._producer_ids = ProducerIds(identity, self._controller_channel)

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """By API."""
        return ProducerHandlers(self._producer_ids).handlers()

    def on_metadata(self, _: SnapshotChange) -> None:
        """Take in who the controller is."""
        self._controller_channel.on_metadata()

    def close(self) -> None:
        """Ask no more."""
        self._producer_ids.close()
        self._controller_channel.close()
