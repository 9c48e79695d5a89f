"""Runs the transaction coordinator: its clock, its log, its markers.

The coordinator and the queue of markers decide; here are the event loop, the partitions of
`__transaction_state`, the connections to other brokers and the futures that requests wait for.
"""

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from time import perf_counter
from typing import Any, Final

from klamm.broker.clock import Clock
from klamm.broker.delayed.operations import DelayedProduce
from klamm.broker.log.errors import AppendError
from klamm.broker.log.log import Log
from klamm.broker.log.validation import AppendOrigin
from klamm.broker.metadata.cache import MetadataCache, SnapshotChange
from klamm.broker.replication.manager import ReplicaManager
from klamm.broker.transactions.config import TransactionConfig
from klamm.broker.transactions.coordinator import TransactionCoordinator
from klamm.broker.transactions.effects import (
    AppendState,
    DropMarkers,
    Effect,
    RespondToProducer,
    SendMarkers,
    Ticket,
)
from klamm.broker.transactions.marker_writer import MarkerWriter, WritableMarker
from klamm.broker.transactions.markers import (
    NO_BROKER,
    MarkerChannels,
    MarkerRequest,
    MarkerResults,
)
from klamm.broker.transactions.peers import PeerConnections
from klamm.broker.transactions.records import by_topic
from klamm.broker.transactions.replay import KeyAndValue, TransactionReplay
from klamm.config.broker import BrokerConfig
from klamm.errors import KlammError, UnavailableError
from klamm.names import TRANSACTION_STATE, TopicPartition
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.protocol.records import Record, build_batch, iterate_records

log = logging.getLogger("klamm.broker.transactions")

_WRITE_TXN_MARKERS: Final = 1
_LOAD_TIMES: Final = 50
#: How long after it has become coordinator a broker may still learn of partitions.
_SETTLING_MS: Final = 2_000


def transaction_config(config: BrokerConfig) -> TransactionConfig:
    """The coordinator's part of the broker's configuration."""
    return TransactionConfig(
        max_timeout_ms=config.transaction_max_timeout_ms,
        id_expiration_ms=config.transactional_id_expiration_ms,
        abort_timed_out_interval_ms=(
            config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        ),
        remove_expired_interval_ms=(
            config.transaction_remove_expired_transaction_cleanup_interval_ms
        ),
        request_timeout_ms=config.request_timeout_ms,
    )


class TransactionService:
    """One transaction coordinator at work."""

    def __init__(
        self,
        config: BrokerConfig,
        broker_id: int,
        metadata: MetadataCache,
        new_producer_id: Callable[[], int | None],
        clock: Clock,
        replicas: ReplicaManager | None = None,
        marker_writer: MarkerWriter | None = None,
    ) -> None:
        """A node without data has no replicas, coordinates nothing and says so."""
        self._led_since_ms = 0
        self.coordinator = TransactionCoordinator(
            transaction_config(config),
            new_producer_id,
            partition_count=config.transaction_state_log_num_partitions,
        )
        self.markers = MarkerChannels(self._locate)
        #: How long the latest state partitions took to load, in milliseconds.
        self.load_times_ms: deque[float] = deque(maxlen=_LOAD_TIMES)
        self._broker_id = broker_id
        self._metadata = metadata
        self._load_bytes = config.transaction_state_log_load_buffer_size
        self._replicas = replicas
        self._marker_writer = marker_writer
        self._clock = clock
        self._peers = PeerConnections(config, broker_id, metadata)
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
        """The time by the coordinator's clock."""
        return self._clock.steady_ms()

    def submit(self, ask: Callable[[Ticket, int], list[Effect]]) -> asyncio.Future[Any]:
        """Ask the coordinator something that it may respond to later."""
        ticket = next(self._tickets)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        # A client that goes away wants no response.
        future.add_done_callback(lambda _: self._waiting.pop(ticket, None))
        self._carry_out(ask(ticket, self.now_ms))
        return future

    # State partitions

    def on_leading(self, name: TopicPartition, leader_epoch: int, replica: Log) -> None:
        """This broker leads a partition; if it holds transactions, they are read."""
        if name.topic == TRANSACTION_STATE:
            self._led_since_ms = self.now_ms
            replay = self.coordinator.begin_load(name.partition, leader_epoch)
            if replay is not None:
                self._start(self._load(name.partition, replay, replica))

    def on_following(self, name: TopicPartition, leader_epoch: int) -> None:
        """Another broker leads the partition and coordinates its transactions."""
        if name.topic == TRANSACTION_STATE:
            self._carry_out(self.coordinator.unload(name.partition, leader_epoch))

    def on_removed(self, name: TopicPartition) -> None:
        """The replica is gone."""
        if name.topic == TRANSACTION_STATE:
            self._carry_out(self.coordinator.unload(name.partition, None))

    def on_metadata(self, change: SnapshotChange) -> None:
        """`__transaction_state` may have come; leaders of partitions may have changed."""
        if TRANSACTION_STATE in change.topics:
            topic = change.snapshot.topic(TRANSACTION_STATE)
            if topic is not None:
                self.coordinator.partition_count = len(topic)
        self._peers.on_metadata()
        self.markers.on_metadata()
        self._send_markers()

    async def _load(self, partition: int, replay: TransactionReplay, replica: Log) -> None:
        began = perf_counter()
        try:
            await asyncio.to_thread(_read, replica, replay, self._load_bytes)
        except KlammError:
            # What was read so far is better than no coordinator at all.
            log.exception("%s-%s cannot be read to its end", TRANSACTION_STATE, partition)
            await asyncio.to_thread(replay.finish)
        loaded, effects = self.coordinator.finish_load(partition, replay, self.now_ms)
        if loaded is not None:
            self.load_times_ms.append((perf_counter() - began) * 1000)
            log.info(
                "%s-%s is loaded under epoch %s: %s transactional ids, markers of %s are sent "
                "again, %s records ignored",
                TRANSACTION_STATE,
                partition,
                replay.epoch,
                *loaded,
            )
        self._carry_out(effects)

    # Effects

    def _carry_out(self, effects: list[Effect]) -> None:
        """Do what the coordinator wants, in order; doing it may make it want more."""
        self._effects.extend(effects)
        if self._is_carrying_out:
            return
        self._is_carrying_out = True
        try:
            while self._effects:
                effect = self._effects.popleft()
                match effect:
                    case RespondToProducer(ticket, response):
                        future = self._waiting.get(ticket)
                        if future is not None and not future.done():
                            future.set_result(response)
                    case AppendState():
                        self._append(effect)
                    case SendMarkers():
                        self.markers.add(effect, self.now_ms)
                    case DropMarkers(partition):
                        self.markers.drop(partition)
        finally:
            self._is_carrying_out = False
        self._send_markers()

    def _append(self, append: AppendState) -> None:
        if self._replicas is None:
            self._report(append.number, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        name = TopicPartition(TRANSACTION_STATE, append.partition)
        now_ms = self._clock.wall_ms()
        batch = build_batch([Record(*each, now_ms) for each in append.records])
        try:
            result = self._replicas.append(
                name, batch.data, acks_all=True, origin=AppendOrigin.COORDINATOR
            )
        except AppendError as error:
            self._report(append.number, error.code)
            return
        required = {name: result.last_offset + 1}
        operation = self._replicas.delay_produce(required, append.timeout_ms)
        if operation.is_pending:
            self._start(self._wait(append, name, operation))
        else:
            self._report(append.number, operation.errors[name])

    async def _wait(
        self, append: AppendState, name: TopicPartition, operation: DelayedProduce
    ) -> None:
        await operation.wait()
        self._report(append.number, operation.errors[name])

    def _report(self, number: int, error: ErrorCode) -> None:
        self._carry_out(self.coordinator.appended(number, error, self.now_ms))

    # Markers

    def _locate(self, name: TopicPartition) -> int | None:
        snapshot = self._metadata.snapshot
        partition = snapshot.partition(name)
        if partition is None:
            # A broker may coordinate before it has heard of every partition: the controller sends
            # LeaderAndIsr first. To take such a partition for deleted would leave its transaction
            # without a marker, and what was aborted would be committed with the next one.
            is_told = snapshot.topic(TRANSACTION_STATE) is not None
            is_settled = self.now_ms - self._led_since_ms > _SETTLING_MS
            return None if is_told and is_settled else NO_BROKER
        return partition.leader if snapshot.is_alive(partition.leader) else NO_BROKER

    def _send_markers(self) -> None:
        """Send what can be sent, and take note of what needs no marker any more."""
        while True:
            requests, written = self.markers.poll(self.now_ms)
            for request in requests:
                self._start(self._send(request))
            if not written:
                break
            for each in written:
                self._carry_out(self.coordinator.markers_written(*each, self.now_ms))
        self._arm()

    async def _send(self, request: MarkerRequest) -> None:
        results: MarkerResults | None = None
        try:
            if request.broker == self._broker_id and self._marker_writer is not None:
                results = await self._marker_writer.write(
                    WritableMarker(
                        each.producer_id,
                        each.producer_epoch,
                        each.coordinator_epoch,
                        each.is_commit,
                        each.partitions,
                    )
                    for each in request.markers
                )
            else:
                response = await self._peers.send(
                    request.broker, ApiKey.WRITE_TXN_MARKERS, _WRITE_TXN_MARKERS, _body(request)
                )
                results = _results(response)
        except UnavailableError as error:
            log.debug("markers for broker %s are sent again: %s", request.broker, error)
        except Exception:
            log.exception("markers for broker %s are sent again", request.broker)
        self.markers.on_response(request.broker, results, self.now_ms)
        self._send_markers()

    # Time

    def _arm(self) -> None:
        deadlines = (self.coordinator.next_deadline_ms(), self.markers.next_deadline_ms())
        deadline_ms = min((each for each in deadlines if each is not None), default=None)
        if self._timer is not None:
            if deadline_ms is not None and self._timer_ms <= deadline_ms:
                return  # it looks early and arms itself again
            self._timer.cancel()
            self._timer = None
        if deadline_ms is not None:
            self._timer_ms = deadline_ms
            delay_s = max(deadline_ms - self.now_ms, 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        self._carry_out(self.coordinator.tick(self.now_ms))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Stop the clock and the markers; pending requests stay unresolved."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for task in self._tasks:
            task.cancel()
        self._peers.close()


def _read(replica: Log, replay: TransactionReplay, portion_bytes: int) -> None:
    """Read the log up to where it ends now. Slow: it runs in a thread of its own."""
    for portion in _portions(replica, portion_bytes):
        if replay.is_abandoned:
            return
        replay.read(portion)
    replay.finish()


def _portions(replica: Log, portion_bytes: int) -> Iterator[list[KeyAndValue]]:
    start, end = replica.start_offset, replica.end_offset
    portion: list[KeyAndValue] = []
    size = 0
    for segment in replica.segments:
        for batch in segment.batches():
            header = batch.header
            if header.base_offset >= end:
                break
            if header.last_offset < start or header.is_control:
                continue
            portion += [(record.key, record.value) for record in iterate_records(batch)]
            size += header.size
            if size >= portion_bytes:
                yield portion
                portion, size = [], 0
    yield portion


def _body(request: MarkerRequest) -> dict[str, Any]:
    return {
        "markers": [
            {
                "producer_id": each.producer_id,
                "producer_epoch": each.producer_epoch,
                "transaction_result": each.is_commit,
                "topics": [
                    {"name": topic, "partition_indexes": partitions}
                    for topic, partitions in by_topic(each.partitions).items()
                ],
                "coordinator_epoch": each.coordinator_epoch,
            }
            for each in request.markers
        ]
    }


def _results(response: Any) -> MarkerResults:
    results: dict[int, dict[TopicPartition, ErrorCode]] = {}
    for marker in response.markers:
        errors = results.setdefault(marker.producer_id, {})
        for topic in marker.topics:
            for each in topic.partitions:
                name = TopicPartition(topic.name, each.partition_index)
                errors[name] = ErrorCode.of(each.error_code)
    return results
