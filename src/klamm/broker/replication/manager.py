"""The replica manager: it applies LeaderAndIsr and StopReplica, and appends what clients produce.

`ReplicaManager` holds the `Partition` of every hosted replica and connects them with the logs, the
fetchers, the AlterPartition manager and the purgatories. It runs on the event loop and does not
block. The controller's requests are applied one at a time.
"""

import contextlib
import logging
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from klamm.broker.clock import Clock
from klamm.broker.delayed.operations import DelayedDeleteRecords, DelayedProduce
from klamm.broker.delayed.purgatory import Purgatories
from klamm.broker.identity import BrokerIdentity
from klamm.broker.log.errors import AppendError, StorageError
from klamm.broker.log.files import Buffer
from klamm.broker.log.log import Log
from klamm.broker.log.manager import LogManager
from klamm.broker.log.producers import VerificationStateEntry
from klamm.broker.log.results import AppendResult
from klamm.broker.log.validation import AppendOrigin, validate_batch
from klamm.broker.metadata.cache import MetadataCache
from klamm.broker.metadata.topic_configs import TopicConfigs
from klamm.broker.meters import BrokerMeters
from klamm.broker.replication.alter_partition import AlterPartitionManager
from klamm.broker.replication.fetcher import FetchEffects
from klamm.broker.replication.fetcher_manager import ReplicaFetcherManager
from klamm.broker.replication.isr import AlterPartitionItem, AlterPartitionResult
from klamm.broker.replication.partition import LeaderAndIsrPartitionState, Partition, Role, Step
from klamm.broker.replication.replica_log import Reader
from klamm.broker.replication.throttle import ReplicationThrottle, parse_throttled_replicas
from klamm.config.broker import BrokerConfig
from klamm.names import TopicPartition, counted
from klamm.protocol.codes import ErrorCode
from klamm.protocol.compression import DECOMPRESSED_BYTES_MAX
from klamm.protocol.records import Batch
from klamm.slices import Steps

log = logging.getLogger("klamm.broker.replication.manager")

_LEADER_THROTTLE = "leader.replication.throttled"
_FOLLOWER_THROTTLE = "follower.replication.throttled"


class RoleListener(Protocol):
    """Is told when this broker's role for a partition changes. Coordinators load their state so."""

    def on_leading(self, name: TopicPartition, leader_epoch: int, log: Log) -> None: ...

    def on_following(self, name: TopicPartition, leader_epoch: int) -> None: ...

    def on_removed(self, name: TopicPartition) -> None: ...


class ReplicaManager:
    """The partitions that this broker hosts, and the operations on them."""

    def __init__(
        self,
        config: BrokerConfig,
        identity: BrokerIdentity,
        metadata: MetadataCache,
        logs: LogManager,
        topics: TopicConfigs,
        alter_partition_manager: AlterPartitionManager,
        purgatories: Purgatories,
        meters: BrokerMeters,
        clock: Clock,
    ) -> None:
        self.logs = logs
        self.topics = topics
        self.purgatories = purgatories
        self.leader_throttle = ReplicationThrottle()
        self.is_shutting_down = False
        self.role_listeners: list[RoleListener] = []
        self._config = config
        self._identity = identity
        self._metadata = metadata
        self.fetchers = ReplicaFetcherManager(
            config, identity, metadata, logs, self._on_fetch_effects, clock
        )
        self._alter_partition_manager = alter_partition_manager
        self._meters = meters
        self._clock = clock
        self._partitions: dict[TopicPartition, Partition] = {}
        self._offline: set[TopicPartition] = set()
        self._of_topic: dict[str, dict[int, Partition]] = {}
        self._topic_ids: dict[str, uuid.UUID] = {}
        self._topic_names: dict[uuid.UUID, str] = {}

    def __iter__(self) -> Iterator[Partition]:
        return iter(list(self._partitions.values()))

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def offline_count(self) -> int:
        """Replicas whose log directory has failed."""
        return len(self._offline)

    @property
    def late_transaction_count(self) -> int:
        """Led partitions with a transaction that is open for longer than any may be (TXN-20)."""
        now_ms, max_timeout_ms = self._clock.wall_ms(), self._config.transaction_max_timeout_ms
        return sum(
            partition.role is Role.LEADER
            and isinstance(partition.log, Log)
            and partition.log.producers.has_late_transaction(now_ms, max_timeout_ms)
            for partition in self._partitions.values()
        )

    def find(self, name: TopicPartition) -> Partition | ErrorCode:
        """The hosted partition, or the error for a request about a partition elsewhere (UMD-9)."""
        partition = self._partitions.get(name)
        if partition is not None:
            return partition
        if name in self._offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if self._metadata.snapshot.knows(name):
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        """The name of a topic with a partition here, even if the metadata lacks the topic."""
        return self._topic_names.get(topic_id)

    # Requests of the controller

    async def prepare(self, topics: list[str]) -> None:
        """Read the settings of topics that are new on this broker: their logs need them."""
        new = [topic for topic in topics if topic not in self.topics]
        await self.topics.learn(new)
        for topic in new:
            self._apply_throttles(topic)

    async def settle(self, name: TopicPartition) -> None:
        """Wait until no truncation of this partition's log is under way."""
        await self.fetchers.wait_truncated(name)

    def apply(
        self, name: TopicPartition, topic_id: uuid.UUID | None, state: LeaderAndIsrPartitionState
    ) -> ErrorCode:
        """Apply one partition of a LeaderAndIsr request; return its error (LISR-1..13)."""
        if name in self._offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        try:
            partition = self._partitions.get(name) or self._new_partition(name)
            error, step = partition.decide(state, topic_id)
            if step is Step.NOTHING:
                return error
            replica = self._open(name, topic_id, state)
            self._hold(partition)
            match step:
                case Step.LEAD:
                    self._lead(partition, state, replica)
                case Step.FOLLOW:
                    self._follow(partition, state, replica)
                case _:
                    partition.log = replica
                    self.purgatories.on_leadership_change(name)
        except StorageError as failure:
            log.error("%s cannot be opened: %s", name, failure)
            return ErrorCode.KAFKA_STORAGE_ERROR
        return error

    def stop(self, name: TopicPartition, leader_epoch: int, *, delete: bool) -> ErrorCode:
        """Apply one partition of a StopReplica request; return its error (STOP-1..4)."""
        if name in self._offline:
            return ErrorCode.KAFKA_STORAGE_ERROR
        partition = self._partitions.get(name)
        if partition is not None and (error := partition.check_stop(leader_epoch)):
            return error
        self.fetchers.remove(name)
        if delete:
            try:
                self._delete(name)
            except StorageError:
                return ErrorCode.KAFKA_STORAGE_ERROR
        self.purgatories.on_leadership_change(name)
        return ErrorCode.NONE

    def hosts(self, name: TopicPartition) -> bool:
        """Whether a controller has told this broker to lead or follow the partition."""
        return name in self._partitions

    def move_aside(self, name: TopicPartition) -> None:
        """Stop serving a stray replica and keep its files under another name."""
        self.fetchers.remove(name)
        self._let_go(name)
        with contextlib.suppress(StorageError):  # reported with the failed directory
            self.logs.move_aside(name)
        if not self._of_topic.get(name.topic):
            self._forget_topic(name.topic)
        self.purgatories.on_leadership_change(name)

    def _new_partition(self, name: TopicPartition) -> Partition:
        return Partition(
            name,
            self._identity.broker_id,
            is_alive=self._metadata.is_alive,
            replica_lag_time_max_ms=self._config.replica_lag_time_max_ms,
            min_insync_replicas=self.topics.of(name.topic).min_insync_replicas,
            log=self.logs.get(name),
        )

    def _hold(self, partition: Partition) -> None:
        if partition.name not in self._partitions:
            self._partitions[partition.name] = partition
            topic, index = partition.name
            self._of_topic.setdefault(topic, {})[index] = partition

    def _let_go(self, name: TopicPartition) -> None:
        if self._partitions.pop(name, None) is not None:
            del self._of_topic[name.topic][name.partition]
        self._alter_partition_manager.withdraw(name)
        for listener in self.role_listeners:
            listener.on_removed(name)

    def _open(
        self, name: TopicPartition, topic_id: uuid.UUID | None, state: LeaderAndIsrPartitionState
    ) -> Log:
        replica = self.logs.get_or_create(
            name, topic_id=topic_id, is_new=state.is_new, now_ms=self._clock.wall_ms()
        )
        if topic_id is not None and replica.topic_id is None:
            replica.assign_topic_id(topic_id)
        if replica.topic_id is not None:
            self._topic_ids[name.topic] = replica.topic_id
            self._topic_names[replica.topic_id] = name.topic
        return replica

    def _lead(self, partition: Partition, state: LeaderAndIsrPartitionState, replica: Log) -> None:
        name = partition.name
        self.fetchers.remove(name)
        self._alter_partition_manager.withdraw(name)
        partition.become_leader(state, replica, self._clock.steady_ms())
        log.debug(
            "[Broker id=%s] leads %s from offset %s under epoch %s, ISR %s",
            self._identity.broker_id,
            name,
            replica.end_offset,
            state.leader_epoch,
            state.isr,
        )
        self.purgatories.on_leadership_change(name)
        for listener in self.role_listeners:
            listener.on_leading(name, state.leader_epoch, replica)

    def _follow(
        self, partition: Partition, state: LeaderAndIsrPartitionState, replica: Log
    ) -> None:
        name = partition.name
        self.fetchers.remove(name)
        self._alter_partition_manager.withdraw(name)
        partition.become_follower(state, replica)
        self.purgatories.on_leadership_change(name)
        for listener in self.role_listeners:
            listener.on_following(name, state.leader_epoch)
        if not self.is_shutting_down:
            self.fetchers.add(name, replica, state.leader, state.leader_epoch)

    def _delete(self, name: TopicPartition) -> None:
        self._let_go(name)
        self.logs.delete(name, now_ms=self._clock.wall_ms())
        if not self._of_topic.get(name.topic):
            self._forget_topic(name.topic)

    def _forget_topic(self, topic: str) -> None:
        self._of_topic.pop(topic, None)
        if topic in self._topic_ids:
            del self._topic_names[self._topic_ids.pop(topic)]
        self.topics.forget(topic)
        self.leader_throttle.forget_topics([topic])
        self.fetchers.throttle.forget_topics([topic])
        self._meters.forget_topic(topic)

    # Produce

    def append(
        self,
        name: TopicPartition,
        records: Buffer | Batch,
        *,
        acks_all: bool,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification: VerificationStateEntry | None = None,
    ) -> AppendResult:
        """Append one batch to a partition that this broker leads (PROD-2, from its fifth check on).

        A `Batch` is what `validate` has returned; `verification` is what `begin_verification` has
        returned for a batch that begins a transaction. A batch that is refused raises an
        AppendError.
        """
        size = records.header.size if isinstance(records, Batch) else len(records)
        try:
            partition = self.find(name)
            if isinstance(partition, ErrorCode):
                raise AppendError(partition)
            if code := partition.check_append(acks_all=acks_all):
                raise AppendError(code)
            assert isinstance(partition.log, Log), "a leader has a log on disk"
            result = partition.log.append_as_leader(
                records,
                leader_epoch=partition.leader_epoch,
                now_ms=self._clock.wall_ms(),
                origin=origin,
                must_be_verified=self._config.transaction_partition_verification_enable,
                verification=verification,
            )
        except AppendError as error:
            self._meters.on_append_error(name.topic, size, error)
            raise
        except StorageError as error:
            raise AppendError(error.code) from error
        if not result.is_duplicate:
            count = result.last_offset - result.first_offset + 1
            self._meters.on_appended(name.topic, count, size)
            # In this order: a lone replica commits what it appends, and delayed fetches see both.
            rose = partition.on_append(self._clock.steady_ms())
            self.purgatories.on_append(name)
            if rose:
                self.purgatories.on_high_watermark(name)
        return result

    def begin_verification(
        self, name: TopicPartition, producer_id: int, epoch: int, sequence: int
    ) -> VerificationStateEntry | None:
        """What a transactional batch has to be verified with (TXN-12).

        None if its transaction is open here, if verification is switched off, or if the partition
        is not led here, in which case the append is refused anyway.
        """
        partition = self.find(name)
        if (
            not self._config.transaction_partition_verification_enable
            or isinstance(partition, ErrorCode)
            or partition.role is not Role.LEADER
        ):
            return None
        assert isinstance(partition.log, Log), "a leader has a log on disk"
        return partition.log.begin_verification(producer_id, epoch, sequence, self._clock.wall_ms())

    def validate(
        self,
        name: TopicPartition,
        records: memoryview,
        decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX,
    ) -> Batch | memoryview:
        """Do ahead what takes longest in `append`, on any thread; AppendError if it is refused.

        `decompressed_bytes_max` is that of `validate_batch`.
        """
        partition = self.find(name)
        if isinstance(partition, ErrorCode) or partition.role is not Role.LEADER:
            return records  # `append` refuses them
        assert isinstance(partition.log, Log), "a leader has a log on disk"
        return validate_batch(
            records,
            partition.log.config,
            self._clock.wall_ms(),
            AppendOrigin.CLIENT,
            decompressed_bytes_max,
        )

    def delay_produce(
        self, required_offsets: dict[TopicPartition, int], timeout_ms: int
    ) -> DelayedProduce:
        """Delay a response until the partitions are committed up to the required offsets.

        The operation is complete already if every required offset is committed.
        """
        operation = DelayedProduce(required_offsets, self.find)
        purgatories = self.purgatories
        purgatories.try_complete_else_watch(purgatories.produces, operation, timeout_ms)
        return operation

    # DeleteRecords

    def delete_records(self, name: TopicPartition, offset: int) -> tuple[ErrorCode, int]:
        """Raise the log start of a partition led by this broker; return the error and the offset.

        The offset is the one that all replicas have to reach (BADM-9).
        """
        partition = self.find(name)
        if isinstance(partition, ErrorCode):
            return partition, -1
        may_delete = self.topics.of(name.topic).deletes
        error, target = partition.plan_delete_records(offset, may_delete=may_delete)
        if error:
            return error, -1
        assert partition.log is not None, "a leader has a log"
        try:
            if partition.log.raise_start_offset(target):
                self.purgatories.on_low_watermark(name)
        except StorageError:
            return ErrorCode.KAFKA_STORAGE_ERROR, -1
        return ErrorCode.NONE, target

    def delay_delete_records(
        self, offsets: dict[TopicPartition, int], timeout_ms: int
    ) -> DelayedDeleteRecords:
        """Delay a response until all live replicas have deleted their records below the offsets."""
        operation = DelayedDeleteRecords(offsets, self.find)
        purgatories = self.purgatories
        purgatories.try_complete_else_watch(purgatories.delete_records, operation, timeout_ms)
        return operation

    # Followers

    def on_follower_fetch(
        self, partition: Partition, reader: Reader, offset: int, start_offset: int, end_offset: int
    ) -> None:
        """Record a follower's fetch.

        `end_offset` is the end of the leader's log before the read.
        """
        progress = partition.record_follower_fetch(
            reader, offset, start_offset, end_offset, self._clock.steady_ms()
        )
        if progress.proposal is not None:
            self._propose(progress.proposal)
        if progress.high_watermark_rose:
            self.purgatories.on_high_watermark(partition.name)
        if progress.start_offset_rose:
            self.purgatories.on_low_watermark(partition.name)

    def _on_fetch_effects(self, effects: FetchEffects) -> None:
        """Count what a fetcher has appended, and check requests that wait for high watermarks."""
        for name, size in effects.appended.items():
            meters = self._meters.topic(name.topic)
            meters.replication_bytes_in += size
            partition = self._partitions.get(name)
            if partition is not None and partition.broker_id in partition.adding:
                meters.reassignment_bytes_in += size
        for name in effects.moved:
            self.purgatories.on_high_watermark(name)

    def on_alter_partition_result(
        self, proposal: AlterPartitionItem, result: AlterPartitionResult
    ) -> None:
        """Apply the controller's result for one partition of an AlterPartition (BISR-8..10)."""
        partition = self._partitions.get(proposal.partition)
        if partition is None:
            return
        outcome = partition.on_alter_partition_result(proposal, result, self._clock.steady_ms())
        if outcome.resend:
            self._alter_partition_manager.submit_later(
                proposal, lambda: partition.pending is proposal
            )
        if outcome.committed:
            self._meters.on_isr_changed(is_expansion=proposal.is_expansion)
            log.info("%s: the ISR is now %s", partition.name, partition.isr)
            # A delayed produce may have to fail because the ISR has become too small.
            self.purgatories.on_high_watermark(partition.name)
        elif result.error:
            self._meters.failed_isr_updates += 1
            log.info("%s: the controller refuses the ISR: %s", partition.name, result.error.name)

    def shrink_isrs(self) -> Steps[None]:
        """Propose ISRs without the followers that have fallen behind (BISR-4)."""
        now_ms = self._clock.steady_ms()
        for partition in list(self._partitions.values()):
            if (
                partition.role is Role.LEADER
                and (proposal := partition.shrink(now_ms))
                and self._partitions.get(partition.name) is partition
            ):
                self._propose(proposal)
            yield None

    def _propose(self, proposal: AlterPartitionItem) -> None:
        log.info("%s: proposing the ISR %s", proposal.partition, proposal.isr)
        self._alter_partition_manager.submit(proposal)

    # Configuration and failures

    def topic_config_changed(self, topic: str, overrides: dict[str, str]) -> None:
        """Apply changed settings of a topic to its logs, throttles and partitions (CFG-4)."""
        config = self.topics.change(topic, overrides)
        if config is None:
            return
        self.logs.configure(topic, config)
        self._apply_throttles(topic)
        for partition in self._of_topic.get(topic, {}).values():
            partition.min_insync_replicas = config.min_insync_replicas
            if partition.on_append(self._clock.steady_ms()):
                self.purgatories.on_high_watermark(partition.name)
            self.purgatories.on_settings_change(partition.name)

    def config_changed(self, config: BrokerConfig) -> None:
        """Apply the broker's changed settings to the logs, partitions and throttles."""
        self._config = config
        for topic, of_topic in self.topics.use(config):
            self.logs.configure(topic, of_topic)
            for partition in self._of_topic.get(topic, {}).values():
                partition.min_insync_replicas = of_topic.min_insync_replicas
                self.purgatories.on_settings_change(partition.name)
        self.apply_throttle_rates()

    def apply_throttle_rates(self) -> None:
        """Read the rates of replication throttles from the configuration."""
        now_ms = self._clock.steady_ms()
        for throttle, prefix in self._throttles():
            rate = self._config.layers.value(f"{prefix}.rate")
            throttle.set_rate(rate if isinstance(rate, int) else None, now_ms)

    def _apply_throttles(self, topic: str) -> None:
        overrides = self.topics.overrides(topic)
        for throttle, prefix in self._throttles():
            text = overrides.get(f"{prefix}.replicas", "")
            throttle.set_partitions(topic, parse_throttled_replicas(text, self._identity.broker_id))

    def _throttles(self) -> tuple[tuple[ReplicationThrottle, str], ...]:
        return (
            (self.leader_throttle, _LEADER_THROTTLE),
            (self.fetchers.throttle, _FOLLOWER_THROTTLE),
        )

    def directory_failed(self, path: Path) -> None:
        """Stop serving the replicas of a log directory that has gone offline (REC-7)."""
        for name, partition in list(self._partitions.items()):
            if isinstance(partition.log, Log) and not partition.log.directory.is_online:
                self.fetchers.remove(name)
                self._let_go(name)
                self._offline.add(name)
                self.purgatories.on_leadership_change(name)
        lost = counted(len(self._offline), "replica is lost", "replicas are lost")
        log.error("log directory %s is offline; %s", path, lost)
