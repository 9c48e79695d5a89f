"""What a node with `klamm.roles=controller` has in place of the data plane.

It refuses replicas. It serves InitProducerId, because producers send that request to any broker and
give up when the broker does not know it, and the requests that tools send to every broker, which
it answers as a broker without groups, transactions and log directories does.
"""

import uuid
from collections.abc import Mapping

from klamm.broker.clock import SystemClock
from klamm.broker.controller_channel import BrokerToControllerChannel
from klamm.broker.handlers.dispatch import Body, Call, Handler
from klamm.broker.handlers.transactions import TransactionHandlers
from klamm.broker.identity import BrokerIdentity
from klamm.broker.metadata.cache import MetadataCache, SnapshotChange
from klamm.broker.replication.partition import LeaderAndIsrPartitionState
from klamm.broker.transactions.producer_ids import ProducerIds
from klamm.broker.transactions.service import TransactionService
from klamm.config.broker import BrokerConfig
from klamm.names import TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.failures import failure
from klamm.protocol.codes import ErrorCode


class NoData:
    """Stands for both the data plane and its replicas on a node that hosts none."""

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
        self._transactions = TransactionService(
            config, identity.broker_id, metadata, self._producer_ids.take, SystemClock()
        )
        self._handlers = TransactionHandlers(
            self._transactions,
            self._producer_ids,
            metadata,
            lambda: config.offsets_topic_num_partitions,
        )

    @property
    def replicas(self) -> "NoData":
        """What the controller's requests are applied to."""
        return self

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handlers that need no data, by API key."""
        return {
            **self._handlers.handlers(),
            ApiKey.LIST_GROUPS: lambda _: {"error_code": ErrorCode.NONE, "groups": []},
            ApiKey.DESCRIBE_LOG_DIRS: lambda _: {"error_code": ErrorCode.NONE, "results": []},
            ApiKey.DESCRIBE_GROUPS: _describe_no_groups,
        }

    def on_metadata(self, change: SnapshotChange) -> None:
        """Follow the controller to its current broker."""
        self._controller_channel.on_metadata()
        self._transactions.on_metadata(change)

    async def load(self) -> None:
        """There is nothing to load."""

    def start(self) -> None:
        """There is no background work."""

    def topic_config_changed(self, topic: str, overrides: dict[str, str]) -> None:
        """No topic has a replica here."""

    def config_changed(self, config: BrokerConfig) -> None:
        """No setting that can change applies here."""

    def prepare_shutdown(self) -> None:
        """There is nothing to hand over."""

    async def close(self) -> None:
        """Send no more requests to the controller."""
        self._transactions.close()
        self._producer_ids.close()
        self._controller_channel.close()

    # The controller's requests about replicas

    async def prepare(self, topics: list[str]) -> None:
        """A refusal needs no preparation."""

    async def settle(self, name: TopicPartition) -> None:
        """No truncation is under way."""

    def apply(
        self, name: TopicPartition, topic_id: uuid.UUID | None, state: LeaderAndIsrPartitionState
    ) -> ErrorCode:
        """Refuse to host a replica."""
        return ErrorCode.KAFKA_STORAGE_ERROR

    def stop(self, name: TopicPartition, leader_epoch: int, *, delete: bool) -> ErrorCode:
        """Confirm that there is no replica."""
        return ErrorCode.NONE


def _describe_no_groups(call: Call) -> Body:
    """Refuse, since this node coordinates no group."""
    refused = failure(call.header, call.body, ErrorCode.NOT_COORDINATOR)
    assert refused is not None, "DescribeGroups expects a response"
    return refused
