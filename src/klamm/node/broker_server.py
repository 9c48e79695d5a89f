"""The broker: its request handlers, its configuration and its state.

With `klamm.roles=controller` there is no data plane. Such a node knows the cluster, relays to its
candidate, refuses replicas, and gives ids to producers, who ask any broker for one.
"""

import asyncio
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, Final

from klamm.broker.administrative_requests import noted
from klamm.broker.clock import SystemClock
from klamm.broker.data_plane import DataPlane
from klamm.broker.handlers.cluster import ClusterHandlers, FirstMetadata
from klamm.broker.handlers.configs import ConfigHandlers
from klamm.broker.handlers.control import ControlHandlers, MetadataListener
from klamm.broker.handlers.dispatch import Handler
from klamm.broker.handlers.groups import FindCoordinatorHandlers
from klamm.broker.identity import BrokerIdentity
from klamm.broker.metadata.auto_topic_creation import AutoTopicCreation
from klamm.broker.metadata.cache import MetadataCache
from klamm.broker.metadata.missed_deletions import MissedDeletions
from klamm.broker.meters import BrokerMeters
from klamm.broker.no_data import NoData
from klamm.broker.replication.strays import StrayReplicas
from klamm.broker.security.service import SecurityService
from klamm.broker.security.user_handlers import CatchUp
from klamm.config.broker import BrokerConfig
from klamm.history.broker_history import BrokerHistory
from klamm.node import controlled_shutdown as leaving
from klamm.node.controller_link import ControllerLink
from klamm.node.forwarding import ForwardingManager
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.zookeeper import znodes
from klamm.zookeeper.store import Store

_ABOUT_THE_CLUSTER: Final = (ApiKey.METADATA, ApiKey.DESCRIBE_CLUSTER, ApiKey.FIND_COORDINATOR)


class BrokerState(IntEnum):
    """Where a broker is in its life, by the numbers of Kafka's gauge (LIFE-12)."""

    STARTING = 1
    RECOVERING = 2
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class _KnownTopics:
    """The topics that a broker knows at the moment."""

    def __init__(self, metadata: MetadataCache, partitions_by_default: int) -> None:
        self._metadata = metadata
        self.partitions_by_default = partitions_by_default

    def name_of(self, topic_id: Any) -> str | None:
        return self._metadata.snapshot.topic_name(topic_id)

    def partitions_of(self, topic: str) -> int:
        found = self._metadata.snapshot.topic(topic)
        return 0 if found is None else len(found)


class BrokerServer:
    """All of a broker but its sockets and its registration."""

    def __init__(
        self,
        config: BrokerConfig,
        identity: BrokerIdentity,
        store: Store,
        candidate: ControllerLink,
        catch_up: CatchUp,
    ) -> None:
        self.config = config
        self.state = BrokerState.STARTING
        self.identity = identity
        self.metadata = MetadataCache()
        self.meters = BrokerMeters()
        history = BrokerHistory(config, identity.broker_id)
        #: The history of this broker; None if none is kept.
        self._history = history if history.is_kept else None
        self.security = SecurityService(
            config,
            store,
            lambda: self.metadata.snapshot.controller_id == identity.broker_id,
            _KnownTopics(self.metadata, config.num_partitions),
            catch_up,
        )
        #: The data plane; None on a node that is only controller.
        self.data: DataPlane | None = None
        if "broker" in config.klamm_roles:
            self.data = DataPlane(
                config,
                identity,
                self.metadata,
                store,
                self.meters,
                SystemClock(),
                self.security.throttle,
                self._history,
            )
        self._plane = self.data or NoData(config, identity, self.metadata)
        self._creation = AutoTopicCreation(config, candidate.request)
        cluster = ClusterHandlers(
            identity, self.metadata, lambda: sorted(self._handlers), self._auto_create
        )
        first_metadata = FirstMetadata(lambda: _has_topics(store))
        listeners: list[MetadataListener] = [self._plane, first_metadata]
        control = asyncio.Lock()
        strays: StrayReplicas | None = None
        if self.data is not None:
            strays = StrayReplicas(identity, store, self.metadata, self.data.replicas, control)
        self._missed_deletions = MissedDeletions(
            identity,
            store,
            self.metadata,
            control,
            self._plane.on_metadata,
            strays.check if strays is not None else None,
        )
        listeners.append(self._missed_deletions)
        self._control = ControlHandlers(
            identity,
            self.metadata,
            self._plane.replicas,
            listeners,
            control,
            strays.clear_way if strays is not None else None,
        )
        self.forwarding = ForwardingManager(candidate)
        parts = (
            cluster,
            FindCoordinatorHandlers(self.metadata, self._creation),
            ConfigHandlers(lambda: self.config, self.metadata, store, self.security.check_change),
            self.forwarding,
            self._control,
            self._plane,
            self.security,
        )
        self._handlers: dict[ApiKey, Handler] = {
            key: handler for part in parts for key, handler in part.handlers().items()
        }
        for key in _ABOUT_THE_CLUSTER:
            self._handlers[key] = first_metadata.hold(self._handlers[key])

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handler of each API, behind the authorizer if there is one."""
        handlers = self.security.protect(self._handlers)
        if self._history is None:
            return handlers
        return noted(handlers, self._history, self.config.inter_broker_listener_name)

    async def load(self) -> None:
        """Open the logs; after this the controller may come."""
        self.state = BrokerState.RECOVERING
        await self.security.load()
        await self._plane.load()

    def registered(self) -> None:
        """The broker has an epoch."""
        self._control.registered()

    def start(self) -> None:
        """The broker is registered and its configuration is known."""
        self.state = BrokerState.RUNNING
        self._plane.start()
        if self._history is not None:
            self._history.start()

    def topic_config_changed(self, topic: str, overrides: dict[str, str]) -> None:
        """Settings of a topic changed in ZooKeeper."""
        self._plane.topic_config_changed(topic, overrides)

    def config_changed(self, config: BrokerConfig) -> None:
        """Settings of this broker changed in ZooKeeper."""
        self.config = self._creation.config = config
        self.security.config_changed(config)
        self._plane.config_changed(config)

    async def leave_in_order(self) -> None:
        """Hand leaderships over before stopping; clients are served meanwhile (LIFE-13, 14)."""
        self.state = BrokerState.PENDING_CONTROLLED_SHUTDOWN
        self._plane.prepare_shutdown()
        await leaving.leave_in_order(self.config, self.identity, self.metadata)

    async def close(self) -> None:
        """Stop all work and close the logs."""
        self.state = BrokerState.SHUTTING_DOWN
        self.security.close()
        self._missed_deletions.close()
        await self._plane.close()
        if self._history is not None:
            await self._history.close()

    async def _auto_create(self, topic: str) -> ErrorCode:
        if not self.config.auto_create_topics_enable:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return await self._creation.create(topic)


async def _has_topics(store: Store) -> bool:
    return bool(await store.children(znodes.TOPICS))
