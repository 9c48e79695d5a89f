"""The parts of a broker that serve data, wired together: logs, replication, requests and groups."""

import asyncio
import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from klamm.broker.clock import Clock
from klamm.broker.controller_channel import BrokerToControllerChannel
from klamm.broker.delayed.purgatory import Purgatories
from klamm.broker.fetch.reader import FetchReader
from klamm.broker.fetch.sessions import FetchSessions
from klamm.broker.groups.service import GroupService
from klamm.broker.handlers.dispatch import NO_QUOTAS, ByteQuotas, Handler
from klamm.broker.handlers.fetch import FetchHandlers
from klamm.broker.handlers.groups import GroupHandlers
from klamm.broker.handlers.logdirs import LogDirHandlers
from klamm.broker.handlers.offsets import OffsetHandlers
from klamm.broker.handlers.produce import ProduceHandlers
from klamm.broker.handlers.transactions import TransactionalDataHandlers, TransactionHandlers
from klamm.broker.identity import BrokerIdentity
from klamm.broker.log.checkpoints import MetaProperties
from klamm.broker.log.errors import StorageError
from klamm.broker.log.manager import LogManager
from klamm.broker.log.names import parse_replica
from klamm.broker.metadata.cache import MetadataCache, SnapshotChange
from klamm.broker.metadata.topic_configs import TopicConfigs
from klamm.broker.meters import BrokerMeters
from klamm.broker.replication.alter_partition import AlterPartitionManager
from klamm.broker.replication.log_dir_failures import LogDirFailureHandler
from klamm.broker.replication.manager import ReplicaManager
from klamm.broker.scheduler import BrokerScheduler, LogFlusher
from klamm.broker.transactions.marker_writer import MarkerWriter
from klamm.broker.transactions.producer_ids import ProducerIds
from klamm.broker.transactions.service import TransactionService
from klamm.broker.transactions.verifier import TransactionVerifier
from klamm.config.broker import BrokerConfig
from klamm.errors import ConfigError
from klamm.history.broker_history import BrokerHistory
from klamm.protocol.apis import ApiKey
from klamm.zookeeper.store import Store

_SESSION_ID_MAX: Final = 2**31 - 1
_LOADERS: Final = 4
#: Closing a log waits for the disk, which takes many requests at a time.
_CLOSERS: Final = 16


class DataPlane:
    """The parts that serve and replicate data, wired to each other."""

    def __init__(
        self,
        config: BrokerConfig,
        identity: BrokerIdentity,
        metadata: MetadataCache,
        store: Store,
        meters: BrokerMeters,
        clock: Clock,
        quotas: ByteQuotas = NO_QUOTAS,
        history: BrokerHistory | None = None,
    ) -> None:
        self._config = config
        self._identity = identity
        self._clock = clock
        self.meters = meters
        self.flusher = LogFlusher(clock)
        self.sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots,
            lambda: random.randint(1, _SESSION_ID_MAX),
        )
        self.purgatories = Purgatories(clock, self.sessions.partitions)
        self.topics = TopicConfigs(config, store)
        self.logs = LogManager(
            config.log_dirs,
            config_of=self.topics.of,
            on_failure=lambda path: self._log_dir_failures.on_failure(path),
            on_flush=self.flusher.on_flush,
            run_later=self.flusher.run_later,
            producer_expiration_ms=config.producer_id_expiration_ms,
        )
        self.controller_channel = BrokerToControllerChannel(
            identity.broker_id,
            metadata,
            config.control_plane_listener_name or config.inter_broker_listener_name,
            config.request_timeout_ms / 1000,
            config.channel_security(
                config.control_plane_listener_name or config.inter_broker_listener_name
            ),
        )
        self._alter_partition_manager = AlterPartitionManager(
            identity, self.controller_channel, clock
        )
        self.replicas = ReplicaManager(
            config,
            identity,
            metadata,
            self.logs,
            self.topics,
            self._alter_partition_manager,
            self.purgatories,
            meters,
            clock,
        )
        self._log_dir_failures = LogDirFailureHandler(identity, self.replicas, store)
        self.groups = GroupService(config, self.replicas, clock)
        self._producer_ids = ProducerIds(identity, self.controller_channel)
        markers = MarkerWriter(
            self.replicas, self.groups.end_transaction, clock, config.request_timeout_ms
        )
        self.transactions = TransactionService(
            config,
            identity.broker_id,
            metadata,
            self._producer_ids.take,
            clock,
            self.replicas,
            markers,
            history,
        )
        self.verifier = TransactionVerifier(
            config, identity.broker_id, metadata, self.transactions.coordinator, clock
        )
        self.replicas.role_listeners += [self.groups, self.transactions]
        self._scheduler = BrokerScheduler(config, self.replicas, self.logs, clock)
        reader = FetchReader(self.replicas, metadata, meters, clock)
        self._handlers = (
            ProduceHandlers(self.replicas, metadata, meters, self.verifier, quotas),
            FetchHandlers(config, reader, self.sessions, self.purgatories, metadata, clock, quotas),
            OffsetHandlers(self.replicas),
            GroupHandlers(self.groups, metadata),
            TransactionHandlers(
                self.transactions,
                self._producer_ids,
                metadata,
                lambda: self.groups.coordinator.partition_count,
            ),
            TransactionalDataHandlers(self.replicas, self.groups, markers, self.verifier, metadata),
            LogDirHandlers(self.logs),
        )

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handlers of all APIs that need data, by API key."""
        return {key: each for part in self._handlers for key, each in part.handlers().items()}

    async def load(self) -> None:
        """Open all logs, recover those that were not closed, and be ready for LeaderAndIsr."""
        identity = MetaProperties(self._identity.broker_id, self._identity.cluster_id)
        try:
            await asyncio.to_thread(self.logs.open, identity)
        except StorageError as error:
            raise ConfigError(f"log.dirs: {error}") from error
        await self.replicas.prepare(sorted(_topics_on_disk(self._config.log_dirs)))
        with ThreadPoolExecutor(_LOADERS, "loader") as loaders:
            await asyncio.to_thread(self.logs.load, now_ms=self._clock.wall_ms(), executor=loaders)
        self.replicas.apply_throttle_rates()
        self._alter_partition_manager.start(self.replicas.on_alter_partition_result)

    def start(self) -> None:
        """Start the periodic background work."""
        self._scheduler.start()

    def on_metadata(self, change: SnapshotChange) -> None:
        """Pass a change of the metadata on to the parts that depend on it."""
        self.controller_channel.on_metadata()
        self._alter_partition_manager.on_metadata()
        self.groups.on_metadata(change)
        self.transactions.on_metadata(change)
        self.verifier.on_metadata()

    def topic_config_changed(self, topic: str, overrides: dict[str, str]) -> None:
        """Apply changed settings of a topic."""
        self.replicas.topic_config_changed(topic, overrides)

    def prepare_shutdown(self) -> None:
        """Follow no more partitions: the broker is about to hand its leaderships over."""
        self.replicas.is_shutting_down = True

    def config_changed(self, config: BrokerConfig) -> None:
        """Apply a changed configuration of the broker."""
        self._config = self._scheduler.config = config
        self.replicas.config_changed(config)

    async def close(self) -> None:
        """Stop everything and close the logs (LIFE-15)."""
        await self._scheduler.stop()
        self.groups.close()
        self.transactions.close()
        self.verifier.close()
        self._producer_ids.close()
        self.replicas.fetchers.close()
        self._alter_partition_manager.close()
        self.controller_channel.close()
        self.purgatories.close()
        await self.flusher.close()
        with ThreadPoolExecutor(_CLOSERS, "closer") as closers:
            await asyncio.to_thread(self.logs.close, executor=closers)


def _topics_on_disk(log_dirs: tuple[Path, ...]) -> set[str]:
    found = (
        parse_replica(path.name)
        for log_dir in log_dirs
        if log_dir.is_dir()
        for path in log_dir.iterdir()
    )
    return {name.topic for name in found if name is not None}
