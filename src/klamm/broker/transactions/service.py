"""Runs the transaction coordinator: its clock, its log, its markers.

The coordinator and the queue of markers decide; here are the partitions of `__transaction_state`
and the connections to other brokers.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any, Final

from klamm.broker.clock import Clock
from klamm.broker.coordinator_service import CoordinatorService, read_portions
from klamm.broker.log.log import Log
from klamm.broker.metadata.cache import MetadataCache, SnapshotChange
from klamm.broker.replication.manager import ReplicaManager
from klamm.broker.transactions.coordinator import TransactionCoordinator
from klamm.broker.transactions.effects import (
    AppendState,
    DropMarkers,
    Effect,
    NoteTransition,
    RespondToProducer,
    SendMarkers,
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
from klamm.broker.transactions.state_partition import TransactionReplay
from klamm.broker.transactions.transaction import TransactionConfig
from klamm.config.broker import BrokerConfig
from klamm.errors import KlammError, UnavailableError
from klamm.history.broker_history import BrokerHistory
from klamm.names import TRANSACTION_STATE, TopicPartition, counted
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.protocol.records import Record, build_batch, iterate_records
from klamm.slices import finish

log = logging.getLogger("klamm.broker.transactions")

_WRITE_TXN_MARKERS: Final = 1
_LOAD_TIMES: Final = 50
#: How long after it has become coordinator a broker may still learn of partitions.
_SETTLING_MS: Final = 2_000


def transaction_config(config: BrokerConfig, *, is_noted: bool = False) -> TransactionConfig:
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
        is_noted=is_noted,
    )


class TransactionService(CoordinatorService[Effect]):
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
        history: BrokerHistory | None = None,
    ) -> None:
        """A node without data has no replicas, coordinates nothing and says so."""
        self._led_since_ms = 0
        self.coordinator = TransactionCoordinator(
            transaction_config(config, is_noted=history is not None),
            new_producer_id,
            partition_count=config.transaction_state_log_num_partitions,
        )
        self.markers = MarkerChannels(self._locate)
        #: How long the latest state partitions took to load, in milliseconds.
        self.load_times_ms: deque[float] = deque(maxlen=_LOAD_TIMES)
        self._broker_id = broker_id
        self._metadata = metadata
        self._load_bytes = config.transaction_state_log_load_buffer_size
        self._marker_writer = marker_writer
        self._history = history
        self._peers = PeerConnections(config, broker_id, metadata)
        super().__init__(self.coordinator, clock, replicas)

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
                "%s-%s is loaded under epoch %s: %s, markers of %s are sent again, %s ignored",
                TRANSACTION_STATE,
                partition,
                replay.epoch,
                counted(loaded[0], "transactional id"),
                loaded[1],
                counted(loaded[2], "record"),
            )
        self._carry_out(effects)

    # Effects

    def _perform(self, effect: Effect) -> None:
        match effect:
            case RespondToProducer(ticket, response):
                self._respond(ticket, response)
            case AppendState():
                name = TopicPartition(TRANSACTION_STATE, effect.partition)
                now_ms = self._clock.wall_ms()
                batch = build_batch([Record(*each, now_ms) for each in effect.records])
                self._write(effect.number, name, batch, effect.timeout_ms)
            case SendMarkers():
                self.markers.add(effect, self.now_ms)
            case DropMarkers(partition):
                self.markers.drop(partition)
            case NoteTransition() if self._history is not None:
                self._history.note(partial(_described, effect))

    def _on_performed(self) -> None:
        self._send_markers()

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
                markers = (
                    WritableMarker(
                        each.producer_id,
                        each.producer_epoch,
                        each.coordinator_epoch,
                        each.is_commit,
                        each.partitions,
                    )
                    for each in request.markers
                )
                results = await finish(self._marker_writer.write(markers))
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

    def _next_deadline_ms(self) -> int | None:
        deadlines = (self.coordinator.next_deadline_ms(), self.markers.next_deadline_ms())
        return min((each for each in deadlines if each is not None), default=None)

    def close(self) -> None:
        """Stop the clock and the markers; pending requests stay unresolved."""
        super().close()
        self._peers.close()


def _read(replica: Log, replay: TransactionReplay, portion_bytes: int) -> None:
    """Read the log up to where it ends now. Slow: it runs in a thread of its own."""
    for portion in read_portions(replica, portion_bytes):
        if replay.is_abandoned:
            return
        for batch in portion:
            if not batch.header.is_control:
                replay.read((record.key, record.value) for record in iterate_records(batch))
    replay.finish()


def _described(note: NoteTransition) -> dict[str, Any]:
    """The fields of a record of the history."""
    who = note.requester
    return {
        "kind": "transaction",
        "what": note.what,
        "transactional_id": note.transactional_id,
        "state": note.state,
        "producer_id": note.producer_id,
        "producer_epoch": note.producer_epoch,
        "timeout_ms": note.timeout_ms,
        "partitions": [f"{topic}-{partition}" for topic, partition in note.partitions],
        "state_partition": note.state_partition,
        "coordinator_epoch": note.coordinator_epoch,
        "principal": who and who.principal,
        "address": who and who.address,
        "client_id": who and who.client_id,
        "api": who and who.api,
    }


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
