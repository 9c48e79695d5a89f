"""Runs the group coordinator: it performs the coordinator's effects and replays its log.

The coordinator decides. This module knows the partitions of `__consumer_offsets`.
"""

import asyncio
import logging
import uuid
from collections.abc import Iterator
from typing import Final

from klamm.broker.clock import Clock
from klamm.broker.coordinator_service import CoordinatorService, read_portions
from klamm.broker.groups.coordinator import GroupCoordinator
from klamm.broker.groups.effects import Append, Effect, SendResponse
from klamm.broker.groups.membership import GroupConfig
from klamm.broker.groups.replay import ReplayBatch
from klamm.broker.log.log import Log
from klamm.broker.log.producers import VerificationStateEntry
from klamm.broker.metadata.cache import SnapshotChange
from klamm.broker.replication.manager import ReplicaManager
from klamm.config.broker import BrokerConfig
from klamm.errors import KlammError
from klamm.names import ACKS_ALL, CONSUMER_OFFSETS, TopicPartition, counted
from klamm.protocol.compression import Codec
from klamm.protocol.records import Record, build_batch, iterate_records

log = logging.getLogger("klamm.broker.groups")

#: How many bytes of the log are replayed before other tasks get a turn.
_PORTION_BYTES: Final = 1 << 18
_MINUTE_MS: Final = 60_000


def group_config(config: BrokerConfig) -> GroupConfig:
    """The coordinator's part of the broker's configuration."""
    return GroupConfig(
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        max_size=config.group_max_size,
        offsets_retention_ms=config.offsets_retention_minutes * _MINUTE_MS,
        retention_check_interval_ms=config.offsets_retention_check_interval_ms,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        commit_timeout_ms=config.offsets_commit_timeout_ms,
        commit_required_acks=config.offsets_commit_required_acks,
    )


class GroupService(CoordinatorService[Effect]):
    """One group coordinator with its clock, its log and its pending requests."""

    def __init__(self, config: BrokerConfig, replicas: ReplicaManager, clock: Clock) -> None:
        self.coordinator = GroupCoordinator(
            group_config(config),
            lambda: str(uuid.uuid4()),
            partition_count=config.offsets_topic_num_partitions,
        )
        self._codec = Codec(config.offsets_topic_compression_codec)
        super().__init__(self.coordinator, clock, replicas)

    def touched(self) -> None:
        """Set the timer again, because a call has moved deadlines."""
        self._arm()

    # Partitions

    def on_leading(self, name: TopicPartition, leader_epoch: int, replica: Log) -> None:
        """Load the groups of a partition that this broker leads now."""
        if name.topic == CONSUMER_OFFSETS and self.coordinator.begin_load(
            name.partition, leader_epoch
        ):
            self._start(self._load(name.partition, leader_epoch, replica))

    def on_following(self, name: TopicPartition, leader_epoch: int) -> None:
        """Drop the groups of a partition that another broker leads now."""
        if name.topic == CONSUMER_OFFSETS:
            self._carry_out(self.coordinator.unload(name.partition, leader_epoch, self.now_ms))

    def on_removed(self, name: TopicPartition) -> None:
        """Drop the groups of a partition whose replica is removed."""
        if name.topic == CONSUMER_OFFSETS:
            self._carry_out(self.coordinator.unload(name.partition, None, self.now_ms))

    def on_metadata(self, change: SnapshotChange) -> None:
        """Apply the partition count of `__consumer_offsets`, and deletions of partitions."""
        if CONSUMER_OFFSETS in change.topics:
            topic = change.snapshot.topic(CONSUMER_OFFSETS)
            if topic is not None:
                self.coordinator.partition_count = len(topic)
        if change.deleted:
            self._carry_out(self.coordinator.partitions_deleted(change.deleted, self.now_ms))

    def end_transaction(self, partition: int, producer_id: int, is_commit: bool) -> None:
        """A marker is replicated: the offsets of its transaction count, or are forgotten."""
        self.coordinator.end_transaction(partition, producer_id, is_commit=is_commit)

    async def _load(self, partition: int, epoch: int, replica: Log) -> None:
        coordinator = self.coordinator
        portions = _portions(replica)
        try:
            while portion := await asyncio.to_thread(next, portions, None):
                if not coordinator.load(partition, epoch, portion):
                    return
        except KlammError:
            # The groups that were read so far are better than no coordinator at all.
            log.exception("%s-%s cannot be read to its end", CONSUMER_OFFSETS, partition)
        loaded = coordinator.finish_load(partition, epoch, self.now_ms)
        if loaded is not None:
            log.info(
                "%s-%s is loaded under epoch %s: %s, %s, %s ignored",
                CONSUMER_OFFSETS,
                partition,
                epoch,
                *map(counted, loaded, ("group", "offset", "record")),
            )
        self._arm()

    # Effects

    def _perform(self, effect: Effect) -> None:
        if isinstance(effect, SendResponse):
            self._respond(effect.ticket, effect.response)
        else:
            self._append(effect)

    def _append(self, append: Append) -> None:
        name = TopicPartition(CONSUMER_OFFSETS, append.partition)
        records = [Record(*each, append.timestamp_ms) for each in append.records]
        producer = append.producer
        if producer is None:
            batch = build_batch(records, codec=self._codec)
        else:
            batch = build_batch(
                records,
                codec=self._codec,
                producer_id=producer.producer_id,
                producer_epoch=producer.producer_epoch,
                base_sequence=0,
                transactional=True,
            )
        self._write(
            append.number,
            name,
            batch,
            append.timeout_ms,
            acks_all=append.acks == ACKS_ALL,
            verification=_verification_of(append),
        )

    def _next_deadline_ms(self) -> int | None:
        return self.coordinator.next_deadline_ms()


def _verification_of(append: Append) -> VerificationStateEntry | None:
    verification = append.producer.verification if append.producer else None
    assert verification is None or isinstance(verification, VerificationStateEntry)
    return verification


def _portions(replica: Log) -> Iterator[list[ReplayBatch]]:
    """The batches of a log up to its current end, as a replay needs them."""
    for portion in read_portions(replica, _PORTION_BYTES):
        yield [
            ReplayBatch(
                [(record.key, record.value) for record in iterate_records(batch)],
                batch.header.producer_id,
                batch.header.is_transactional,
                batch.header.is_control,
            )
            for batch in portion
        ]
