"""Runs the group coordinator: it performs the coordinator's effects and replays its log.

The coordinator decides. This module owns the clock, the timer, the partitions of
`__consumer_offsets` and the futures of delayed requests.
"""

import asyncio
import itertools
import logging
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final

from klamm.broker.clock import Clock
from klamm.broker.delayed.operations import DelayedProduce
from klamm.broker.groups.config import GroupConfig
from klamm.broker.groups.coordinator import GroupCoordinator
from klamm.broker.groups.effects import Append, Effect, SendResponse, Ticket
from klamm.broker.groups.replay import ReplayBatch
from klamm.broker.log.errors import AppendError
from klamm.broker.log.log import Log
from klamm.broker.log.producers import VerificationStateEntry
from klamm.broker.log.validation import AppendOrigin
from klamm.broker.metadata.cache import SnapshotChange
from klamm.broker.replication.manager import ReplicaManager
from klamm.config.broker import BrokerConfig
from klamm.errors import KlammError
from klamm.names import ACKS_ALL, CONSUMER_OFFSETS, TopicPartition
from klamm.protocol.codes import ErrorCode
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


class GroupService:
    """One group coordinator with its clock, its log and its pending requests."""

    def __init__(self, config: BrokerConfig, replicas: ReplicaManager, clock: Clock) -> None:
        self.coordinator = GroupCoordinator(
            group_config(config),
            lambda: str(uuid.uuid4()),
            partition_count=config.offsets_topic_num_partitions,
        )
        self._codec = Codec(config.offsets_topic_compression_codec)
        self._replicas = replicas
        self._clock = clock
        self._tickets = itertools.count(1)
        self._waiting: dict[Ticket, asyncio.Future[Any]] = {}
        self._effects: deque[Effect] = deque()
        self._is_carrying_out = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._tasks: set[asyncio.Task[None]] = set()

    # Requests

    @property
    def now_ms(self) -> int:
        """The time of the coordinator's clock."""
        return self._clock.steady_ms()

    def submit(self, request: Callable[[Ticket, int], list[Effect]]) -> asyncio.Future[Any]:
        """Submit a request that the coordinator may complete later."""
        ticket = next(self._tickets)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        # The future is cancelled when the client disconnects.
        future.add_done_callback(lambda _: self._waiting.pop(ticket, None))
        self._carry_out(request(ticket, self.now_ms))
        return future

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
                "%s-%s is loaded under epoch %s: %s groups, %s offsets, %s records ignored",
                CONSUMER_OFFSETS,
                partition,
                epoch,
                *loaded,
            )
        self._arm()

    # Effects

    def _carry_out(self, effects: list[Effect]) -> None:
        """Perform effects in order; performing one may add others."""
        self._effects.extend(effects)
        if self._is_carrying_out:
            return
        self._is_carrying_out = True
        try:
            while self._effects:
                effect = self._effects.popleft()
                if isinstance(effect, SendResponse):
                    future = self._waiting.get(effect.ticket)
                    if future is not None and not future.done():
                        future.set_result(effect.response)
                else:
                    self._append(effect)
        finally:
            self._is_carrying_out = False
        self._arm()

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
        is_acked = append.acks == ACKS_ALL
        try:
            result = self._replicas.append(
                name,
                batch.data,
                acks_all=is_acked,
                origin=AppendOrigin.COORDINATOR,
                verification=_verification_of(append),
            )
        except AppendError as error:
            self._report(append.number, error.code)
            return
        if not is_acked:
            self._report(append.number, ErrorCode.NONE)
            return
        required = {name: result.last_offset + 1}
        operation = self._replicas.delay_produce(required, append.timeout_ms)
        if operation.is_pending:
            self._start(self._wait(append, name, operation))
        else:
            self._report(append.number, operation.errors[name])

    async def _wait(self, append: Append, name: TopicPartition, operation: DelayedProduce) -> None:
        await operation.wait()
        self._report(append.number, operation.errors[name])

    def _report(self, number: int, error: ErrorCode) -> None:
        self._carry_out(self.coordinator.appended(number, error, self.now_ms))

    # Time

    def _arm(self) -> None:
        deadline_ms = self.coordinator.next_deadline_ms()
        if self._timer is not None:
            if deadline_ms is not None and self._timer_ms <= deadline_ms:
                return  # looks early and arms itself again: most deadlines are only moved
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            self._timer_ms = deadline_ms
            delay_s = max(deadline_ms - self.now_ms, 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._carry_out(self.coordinator.tick(self.now_ms))

    def _start(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cancel the timer and all tasks; pending requests stay unresolved."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks:
            task.cancel()


def _verification_of(append: Append) -> VerificationStateEntry | None:
    verification = append.producer.verification if append.producer else None
    assert verification is None or isinstance(verification, VerificationStateEntry)
    return verification


def _portions(replica: Log) -> Iterator[list[ReplayBatch]]:
    """Yield the batches of a log up to its current end, in portions."""
    start, end = replica.start_offset, replica.end_offset
    portion: list[ReplayBatch] = []
    size = 0
    for segment in replica.segments:
        for batch in segment.batches():
            header = batch.header
            if header.base_offset >= end:
                break
            if header.last_offset < start:
                continue
            portion.append(
                ReplayBatch(
                    [(record.key, record.value) for record in iterate_records(batch)],
                    header.producer_id,
                    header.is_transactional,
                    header.is_control,
                )
            )
            size += header.size
            if size >= _PORTION_BYTES:
                yield portion
                portion, size = [], 0
    if portion:
        yield portion
