"""Everything of a broker that has to do with data: logs, replication, clients and groups.

Here it is put together; each part is described where it is written.
"""

import asyncio
import logging
import os
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from klamm.broker.clock import Clock
from klamm.broker.controller_channel import BrokerToControllerChannel
from klamm.broker.delayed.purgatory import Purgatories
from klamm.broker.fetch.reader import FetchReader
from klamm.broker.fetch.sessions import FetchSessions
from klamm.broker.groups.service import GroupService
from klamm.broker.handlers.dispatch import Handler
from klamm.broker.handlers.fetch import FetchHandlers
from klamm.broker.handlers.groups import GroupHandlers
from klamm.broker.handlers.logdirs import LogDirHandlers
from klamm.broker.handlers.offsets import OffsetHandlers
from klamm.broker.handlers.produce import ProduceHandlers
from klamm.broker.handlers.producers import ProducerHandlers
from klamm.broker.identity import BrokerIdentity
from klamm.broker.log.checkpoints import MetaProperties
from klamm.broker.log.errors import StorageError
from klamm.broker.log.log import Log
from klamm.broker.log.manager import LogManager
from klamm.broker.log.names import parse_replica
from klamm.broker.metadata.cache import MetadataCache, SnapshotChange
from klamm.broker.metadata.topic_configs import TopicConfigs
from klamm.broker.meters import BrokerMeters
from klamm.broker.replication.alter_partition import AlterPartitionManager
from klamm.broker.replication.fetcher import FetchEffects, Truncation
from klamm.broker.replication.fetcher_manager import ReplicaFetcherManager
from klamm.broker.replication.manager import ReplicaManager
from klamm.broker.replication.partition import Partition
from klamm.broker.scheduler import BrokerScheduler
from klamm.broker.transactions.producer_ids import ProducerIds
from klamm.config.broker import BrokerConfig
from klamm.errors import ConfigError, SessionLostError
from klamm.metrics.meters import Timer
from klamm.protocol.apis import ApiKey
from klamm.zookeeper import znodes
from klamm.zookeeper.store import Store

log = logging.getLogger("klamm.broker")

_SESSION_ID_MAX: Final = 2**31 - 1
_LOADERS: Final = 4
_FLUSHERS: Final = 2
_ANNOUNCE_PAUSE_S: Final = 0.1


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
    ) -> None:
        self._config = config
        self._identity = identity
        self._store = store
        self.meters = meters
        self.log_flushes = Timer(lambda: clock.steady_ms() / 1000)
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._announcing: set[asyncio.Task[None]] = set()
        # Not the threads that decode the controller's requests: a flush takes its time.
        self._flushers = ThreadPoolExecutor(_FLUSHERS, "flusher")
        self.purgatories = Purgatories(clock)
        self.topics = TopicConfigs(config, store)
        self.logs = LogManager(
            config.log_dirs,
            config_of=self.topics.of,
            on_failure=self._on_failed_directory,
            on_flush=self._on_flush,
            run_later=self._run_later,
            producer_expiration_ms=config.producer_id_expiration_ms,
        )
        self.controller_channel = BrokerToControllerChannel(
            identity.broker_id,
            metadata,
            config.control_plane_listener_name or config.inter_broker_listener_name,
            config.request_timeout_ms / 1000,
        )
        self.fetchers = ReplicaFetcherManager(
            config, identity, metadata, self._truncate, self._on_fetch_effects, clock
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
            self.fetchers,
            self._alter_partition_manager,
            self.purgatories,
            meters,
            clock,
        )
        self.groups = GroupService(config, self.replicas, clock)
        self.replicas.role_listener = self.groups
        self.sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots,
            lambda: random.randint(1, _SESSION_ID_MAX),
        )
        self._producer_ids = ProducerIds(identity, self.controller_channel)
        self._scheduler = BrokerScheduler(config, self.replicas, self.logs, clock)
        reader = FetchReader(self.replicas, metadata, meters, clock)
        self._handlers = (
            ProduceHandlers(self.replicas, metadata, meters),
            FetchHandlers(config, reader, self.sessions, self.purgatories, metadata, clock),
            OffsetHandlers(self.replicas),
            GroupHandlers(self.groups, metadata),
            ProducerHandlers(self._producer_ids),
            LogDirHandlers(self.logs),
        )

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """By API."""
        return {key: each for part in self._handlers for key, each in part.handlers().items()}

    async def load(self) -> None:
        """Open all logs, recovering those that were not closed, and be ready for orders."""
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
        """Begin with what is done again and again."""
        self._scheduler.start()

    def on_metadata(self, change: SnapshotChange) -> None:
        """Take in what the controller has told."""
        self.controller_channel.on_metadata()
        self._alter_partition_manager.on_metadata()
        self.groups.on_metadata(change)

    def config_changed(self, config: BrokerConfig) -> None:
        """Let new settings of the broker take effect."""
        self._config = self._scheduler.config = config
        self.replicas.config_changed(config)

    async def close(self) -> None:
        """Stop everything and close the logs (LIFE-15)."""
        await self._scheduler.stop()
        self.groups.close()
        self._producer_ids.close()
        self.fetchers.close()
        self._alter_partition_manager.close()
        self.controller_channel.close()
        self.purgatories.close()
        await asyncio.to_thread(self._flushers.shutdown)
        await asyncio.to_thread(self.logs.close)

    # What followers do

    async def _truncate(self, work: list[tuple[Log, Truncation]]) -> None:
        def cut() -> None:
            now_ms = self._clock.wall_ms()
            for replica, truncation in work:
                log.info(
                    "%s: truncating to offset %s; the high watermark is %s",
                    truncation.name,
                    truncation.offset,
                    replica.high_watermark,
                )
                if truncation.offset < replica.high_watermark:
                    log.warning("%s: what was committed is cut off", truncation.name)
                truncation.carry_out(replica, now_ms)
            self.logs.checkpoint_recovery_points()

        await asyncio.to_thread(cut)

    def _on_fetch_effects(self, effects: FetchEffects) -> None:
        for name, size in effects.appended.items():
            meters = self.meters.topic(name.topic)
            meters.replication_bytes_in += size
            partition = self.replicas.find(name)
            if isinstance(partition, Partition) and partition.broker_id in partition.adding:
                meters.reassignment_bytes_in += size
        for name in effects.high_watermark_moved:
            self.purgatories.on_high_watermark(name)

    # Disks

    def _run_later(self, work: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(self._loop.run_in_executor, self._flushers, work)

    def _on_flush(self, seconds: float) -> None:
        """Called on whatever thread flushed."""
        self._loop.call_soon_threadsafe(self.log_flushes.observe, seconds)

    def _on_failed_directory(self, path: Path) -> None:
        """Called on whatever thread met the failure."""
        self._loop.call_soon_threadsafe(self._lose_directory, path)

    def _lose_directory(self, path: Path) -> None:
        self.replicas.directory_failed(path)
        if not self.logs.has_online_directory:
            log.critical("all log directories have failed; this broker can do nothing more")
            os._exit(1)
        if self._identity.broker_epoch < 0:
            return  # The response to the first LeaderAndIsr will tell.
        task = asyncio.create_task(self._announce_failure())
        self._announcing.add(task)
        task.add_done_callback(self._announcing.discard)

    async def _announce_failure(self) -> None:
        """Tell the controller that a log directory has failed (LOGDIR-1), again and again."""
        while True:
            try:
                data = znodes.encode_log_dir_event(znodes.LogDirEvent(self._identity.broker_id))
                await self._store.create(znodes.LOG_DIR_EVENT_PREFIX, data, sequential=True)
            except SessionLostError:
                await asyncio.sleep(_ANNOUNCE_PAUSE_S)
            else:
                return


def _topics_on_disk(log_dirs: tuple[Path, ...]) -> set[str]:
    found = (
        parse_replica(path.name)
        for log_dir in log_dirs
        if log_dir.is_dir()
        for path in log_dir.iterdir()
    )
    return {name.topic for name in found if name is not None}
