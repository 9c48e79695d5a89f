"""Encode a request batch as LeaderAndIsr, UpdateMetadata and StopReplica, and queue the requests.

The contents are taken from the columns when the batch is sent. A large batch is encoded in another
thread after that, while the procedure goes on. The body of an UpdateMetadata is encoded once and
shared by all brokers. Versions follow from the inter-broker protocol alone; nothing is negotiated
(CHAN-32).
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Final, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from klamm.config.ibp import Ibp
from klamm.controller.channels import ControllerChannels, QueuedRequest
from klamm.core.cluster import LEADER_DURING_DELETE, NO_TOPIC, ClusterState, RegisteredBroker
from klamm.core.columns import I32, I64, NO_BROKER, Mask, as_run, distinct, keep, members, padded
from klamm.core.context import Level
from klamm.core.effects import ReplicaRequestRows, SendRequestBatch
from klamm.core.events import (
    Event,
    LeaderAndIsrResponseReceived,
    StopReplicaResponseReceived,
    UpdateMetadataResponseReceived,
)
from klamm.names import TopicPartition, counted
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.encoding import Values
from klamm.protocol.codec.frames import decode_response
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.fast.control import (
    Chosen,
    ControlRequest,
    EncodedLeaderAndIsr,
    PartitionStates,
    RequestTopics,
    StoppedReplicas,
    TopicTable,
    decode_leader_and_isr_response,
    decode_update_metadata_response,
    encode_stop_replica,
    encode_update_metadata,
)
from klamm.zookeeper import znodes

state_changes = logging.getLogger("state.change.logger")

#: Newest first: inter-broker protocol, then LeaderAndIsr, UpdateMetadata, StopReplica (16.6).
_VERSIONS: Final = (
    (Ibp("3.4", 0), 7, 8, 4),
    (Ibp("3.2", 0), 6, 7, 3),
    (Ibp("2.8", 1), 5, 7, 3),
    (Ibp("2.6", 0), 4, 6, 3),
    (Ibp("2.4", 1), 4, 6, 2),
    (Ibp("2.4", 0), 3, 5, 1),
    (Ibp("2.2", 0), 2, 5, 1),
    (Ibp("1.0", 0), 1, 4, 0),
    (Ibp("0.10.2", 0), 0, 3, 0),
    (Ibp("0.10.0", 0), 0, 2, 0),
    (Ibp("0.9.0", 0), 0, 1, 0),
    (Ibp("0.8.0", 0), 0, 0, 0),
)


#: From this number of rows on, requests are encoded in another thread.
_LARGE_BATCH_ROWS: Final = 20_000
#: Partitions of one UpdateMetadata. A broker keeps what it knows of others, so that there may be
#: several; one about two million would be larger than `socket.request.max.bytes` allows.
_METADATA_ROWS_MAX: Final = 250_000

_Number = TypeVar("_Number", np.int8, np.int32)


class RequestBatchSender:
    """Encodes batches and hands them to the channels."""

    def __init__(
        self, broker_id: int, channels: ControllerChannels, ibp: Ibp, listener: str
    ) -> None:
        self._broker_id = broker_id
        self._channels = channels
        self._listener = listener
        _, self._leader_and_isr, self._update_metadata, self._stop_replica = next(
            row for row in _VERSIONS if ibp >= row[0]
        )
        self._told = 0
        self._heard = 0
        self._own_waiters: list[tuple[int, asyncio.Future[None]]] = []
        #: Queues the requests of large batches, and those of the batches behind them.
        self._queueing: asyncio.Task[None] | None = None

    @property
    def own_broker_is_updated(self) -> bool:
        """Whether this node's own broker has responded to all UpdateMetadata so far."""
        return self._heard >= self._told

    async def wait_own_broker_updated(self) -> None:
        """Wait until this node's own broker has responded to all UpdateMetadata queued until
        now.
        """
        if not self.own_broker_is_updated:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._own_waiters.append((self._told, waiter))
            await waiter

    def forget(self) -> None:
        """Release all waiters: the controller's term has ended and no response will come."""
        self._heard = self._told
        self._release_waiters()

    def _own_broker_responded(self) -> None:
        self._heard += 1
        self._release_waiters()

    def _release_waiters(self) -> None:
        still = []
        for told, waiter in self._own_waiters:
            if waiter.done():
                continue
            if told <= self._heard:
                waiter.set_result(None)
            else:
                still.append((told, waiter))
        self._own_waiters = still

    async def announce(self, cluster: ClusterState, batch: SendRequestBatch) -> None:
        """Queue the requests of a batch, each kind before the next (CHAN-12).

        Those of a large batch are queued later, and in the order of the batches: `wait_queued`.
        """
        requests = self._requests(cluster, batch)
        before = self._queueing
        if before is not None or len(batch.metadata_rows) >= _LARGE_BATCH_ROWS:
            self._queueing = asyncio.create_task(self._queue_in_turn(before, requests))
        else:
            for each in requests:
                each.queue(each.encode())

    async def wait_queued(self) -> bool:
        """Wait until everything is queued; return whether there was something to wait for."""
        queueing, self._queueing = self._queueing, None
        if queueing is None:
            return False
        await queueing
        return True

    @staticmethod
    async def _queue_in_turn(
        before: "asyncio.Task[None] | None", requests: "list[_Request]"
    ) -> None:
        if before is not None:
            await before
        for each in requests:
            each.queue(await asyncio.to_thread(each.encode))

    def _requests(self, cluster: ClusterState, batch: SendRequestBatch) -> "list[_Request]":
        requests = []
        capacity = len(cluster.topic_of)
        led = distinct([entries.rows for entries in batch.leader_and_isr.values()], capacity)
        if len(led) or batch.metadata_brokers:
            shown = batch.metadata_rows if batch.metadata_brokers else led
            announced = _Announced(cluster, distinct([led, shown], capacity))
            shared = _SharedStates(self._leader_and_isr, announced, announced.sorted_places(led))
            for broker, entries in batch.leader_and_isr.items():
                requests.append(self._tell_leadership(cluster, broker, entries, shared))
            if batch.metadata_brokers:
                requests += self._tell_metadata(cluster, batch, announced)
        for broker, entries in batch.stop_replica.items():
            requests.append(self._tell_to_stop(cluster, broker, entries))
        return requests

    def _tell_leadership(
        self,
        cluster: ClusterState,
        broker: int,
        entries: ReplicaRequestRows,
        shared: "_SharedStates",
    ) -> "_Request":
        epoch = cluster.controller_epoch
        details = []
        if state_changes.isEnabledFor(Level.TRACE):
            for row, flag in zip(entries.rows.tolist(), entries.flag.tolist(), strict=True):
                entry = f"{cluster.describe(row)}, new {flag}"
                details.append(f"LeaderAndIsr to broker {broker}: {entry}")

        def encode() -> _Encoded:
            announced = shared.announced
            place, is_new = announced.places(entries.rows), entries.flag
            if (np.diff(place) < 0).any():
                order = np.argsort(place)
                place, is_new = place[order], is_new[order]
            topics = announced.topics(place)
            leader = announced.states.leader[place]
            request = shared.encoded.request(
                topics,
                shared.chosen(place, is_new),
                controller_id=self._broker_id,
                controller_epoch=epoch,
                live_leaders=[
                    {"broker_id": id, "host_name": host, "port": port}
                    for id, host, port in self._endpoints(announced.brokers, members(leader))
                ],
            )
            become_leader = np.count_nonzero(leader == broker)
            remark = (
                f"sending LeaderAndIsr to broker {broker} with {become_leader} become-leader and "
                f"{len(place) - become_leader} become-follower partitions"
            )
            asked = _Named(topics, announced.states.partition[place])
            on_response = _leadership_response(broker, asked)
            return _Encoded([request], remark, lambda _: on_response)

        return self._request(cluster, [broker], encode, details)

    def _say(self, epoch: int, text: str, level: int = Level.INFO) -> None:
        """A line of the state-change log (MET-7, MET-8)."""
        state_changes.log(level, "[Controller id=%s epoch=%s] %s", self._broker_id, epoch, text)

    def _endpoints(
        self, known: Mapping[int, RegisteredBroker], brokers: Sequence[int]
    ) -> Iterator[tuple[int, str, int]]:
        """Where brokers listen for each other (CHAN-20)."""
        for broker in brokers:
            for endpoint in known[broker].endpoints if broker in known else ():
                if endpoint.listener == self._listener:
                    yield broker, endpoint.host, endpoint.port

    def _tell_metadata(
        self, cluster: ClusterState, batch: SendRequestBatch, announced: "_Announced"
    ) -> "Iterator[_Request]":
        rows = batch.metadata_rows
        place = announced.sorted_places(rows[cluster.has_leadership[rows]])
        epoch, live_brokers = cluster.controller_epoch, _live_brokers(cluster)
        brokers = batch.metadata_brokers

        def encode(some: I64) -> _Encoded:
            request = encode_update_metadata(
                self._update_metadata,
                announced.topics(some),
                announced.metadata(some),
                controller_id=self._broker_id,
                controller_epoch=epoch,
                live_brokers=live_brokers,
            )
            partitions = counted(len(some), "partition")
            remark = f"sending UpdateMetadata to brokers {list(brokers)} for {partitions}"
            return _Encoded([request], remark, _metadata_response)

        for first in range(0, max(len(place), 1), _METADATA_ROWS_MAX):
            some = place[first : first + _METADATA_ROWS_MAX]
            yield self._request(cluster, brokers, partial(encode, some))

    def _tell_to_stop(
        self, cluster: ClusterState, broker: int, entries: ReplicaRequestRows
    ) -> "_Request":
        order = _by_topic(cluster, entries.rows)
        rows, is_deleted = entries.rows[order], entries.flag[order]
        topics = _topics(cluster, rows)
        replicas = StoppedReplicas(cluster.partition[rows], entries.leader_epoch[order], is_deleted)
        deleted = {cluster.name(row) for row in rows[is_deleted].tolist()}
        epoch = cluster.controller_epoch
        details = []
        if state_changes.isEnabledFor(Level.TRACE):
            columns = (rows.tolist(), replicas.leader_epoch.tolist(), is_deleted.tolist())
            for row, leader_epoch, delete in zip(*columns, strict=True):
                topic, partition = cluster.name(row)
                entry = f"{topic}-{partition}, epoch {leader_epoch}, delete {delete}"
                details.append(f"StopReplica to broker {broker}: {entry}")

        def on_response(header: RequestHeader, frame: memoryview) -> Event | None:
            response = decode_response(header, frame)
            errors = {
                TopicPartition(each.topic_name, each.partition_index): int(each.error_code)
                for each in response.partition_errors
                if (each.topic_name, each.partition_index) in deleted
            }
            return (
                StopReplicaResponseReceived(broker, int(response.error_code), errors)
                if errors
                else None
            )

        def encode() -> _Encoded:
            requests = encode_stop_replica(
                self._stop_replica,
                topics,
                replicas,
                controller_id=self._broker_id,
                controller_epoch=epoch,
            )
            remark = f"sending StopReplica to broker {broker} for {len(rows)} replicas"
            return _Encoded(requests, remark, lambda _: on_response)

        return self._request(cluster, [broker], encode, details)

    def _request(
        self,
        cluster: ClusterState,
        brokers: Sequence[int],
        encode: "Callable[[], _Encoded]",
        details: Sequence[str] = (),
    ) -> "_Request":
        """A request to brokers as they are registered now; `details` are for the log."""
        epochs = {broker: cluster.brokers[broker].epoch for broker in brokers}
        controller_epoch = cluster.controller_epoch

        def queue(encoded: _Encoded) -> None:
            self._say(controller_epoch, encoded.remark)
            for detail in details:
                self._say(controller_epoch, detail, Level.TRACE)
            for request in encoded.requests:
                for broker, epoch in epochs.items():
                    on_response = encoded.on_response_of(broker)
                    self._send(broker, epoch, controller_epoch, request, on_response)

        return _Request(encode, queue)

    def _send(
        self,
        broker: int,
        epoch: int,
        controller_epoch: int,
        request: ControlRequest,
        on_response: "OnResponse",
    ) -> None:
        done = None
        if broker == self._broker_id and request.api_key is ApiKey.UPDATE_METADATA:
            self._told += 1
            done = self._own_broker_responded

        def on_frame(header: RequestHeader, frame: memoryview) -> Event | None:
            event = on_response(header, frame)
            if state_changes.isEnabledFor(Level.TRACE):
                text = f"broker {broker} responded to {request.api_key.name}: {event}"
                self._say(controller_epoch, text, Level.TRACE)
            return event

        self._channels.send(
            broker,
            QueuedRequest(
                api_key=request.api_key,
                api_version=request.api_version,
                encode=lambda header: request.chunks(header, epoch),
                on_response=on_frame,
                done=done,
            ),
        )


OnResponse: TypeAlias = Callable[[RequestHeader, memoryview], Event | None]


class _Encoded(NamedTuple):
    """Requests of one kind, what the log says of them, and what takes a broker's response."""

    requests: list[ControlRequest]
    remark: str
    on_response_of: Callable[[int], OnResponse]


class _Request(NamedTuple):
    """How requests are encoded, on any thread, and what queues them then."""

    encode: Callable[[], _Encoded]
    queue: Callable[[_Encoded], None]


@dataclass(frozen=True, slots=True, eq=False)
class _Named:
    """The partitions of a request, for the rare question whether one was among them."""

    topics: RequestTopics
    partition: I32

    def __contains__(self, wanted: object) -> bool:
        match wanted:
            case (str(topic), int(partition)) if topic in (names := self.topics.names):
                at = names.index(topic)
                first, end = self.topics.bounds[at : at + 2]
                return bool((self.partition[first:end] == partition).any())
        return False


def _leadership_response(broker: int, asked: _Named) -> OnResponse:
    topics = asked.topics

    def on_response(header: RequestHeader, frame: memoryview) -> Event:
        outcome = decode_leader_and_isr_response(header, frame)
        errors = {}
        names = dict(zip(topics.ids, topics.names, strict=True)) if outcome.failed else {}
        for failed in outcome.failed:
            topic = failed.topic
            name = names.get(topic.bytes) if isinstance(topic, UUID) else topic
            if name is not None:
                errors[TopicPartition(name, failed.partition)] = failed.error_code
        return LeaderAndIsrResponseReceived(broker, outcome.error_code, errors, asked)

    return on_response


def _metadata_response(broker: int) -> OnResponse:
    def on_response(header: RequestHeader, frame: memoryview) -> Event:
        error_code = decode_update_metadata_response(header, frame)
        return UpdateMetadataResponseReceived(broker, error_code)

    return on_response


class _Announced:
    """What a batch says of partitions: a copy of their columns, by topic and partition."""

    def __init__(self, cluster: ClusterState, rows: I32) -> None:
        """The rows are ascending."""
        order = _by_topic(cluster, rows)
        self.brokers = dict(cluster.brokers)
        self.rows = rows[order]
        self.states = _states(cluster, self.rows)
        self._going = cluster.is_queued(self.rows)
        self._topic = cluster.topic_of[self.rows]
        self._topic_index, _ = _runs(self._topic)
        self._table = _topic_table(cluster, self._topic_index)
        self._is_ascending = isinstance(order, slice)
        #: The place of each row; for a few rows it is not worth a table.
        self._place: I32 | None = None
        capacity = len(cluster.topic_of)
        if len(rows) > capacity // 16:
            self._place = np.zeros(capacity, np.int32)
            self._place[self.rows] = np.arange(len(rows), dtype=np.int32)

    def places(self, rows: I32) -> I64:
        """Where the rows are."""
        if self._place is not None:
            return self._place[rows].astype(np.int64)
        if self._is_ascending:
            return np.searchsorted(self.rows, rows)
        ascending = np.argsort(self.rows)
        return ascending[np.searchsorted(self.rows, rows, sorter=ascending)]

    def sorted_places(self, rows: I32) -> I64:
        """Where the rows are, in ascending order."""
        place = self.places(rows)
        return place if (np.diff(place) > 0).all() else np.sort(place)

    def topics(self, place: I64) -> RequestTopics:
        """The topics of ascending places."""
        index, bounds = _runs(self._topic[place])
        return RequestTopics(self._table, np.searchsorted(self._topic_index, index), bounds)

    def metadata(self, place: I64) -> PartitionStates:
        """The states at some places, as UpdateMetadata has them."""
        states, going = self.states.at(as_run(place)), self._going[place]
        if not going.any():
            return states
        return replace(
            states,
            leader=np.where(going, np.int32(LEADER_DURING_DELETE), states.leader),
            leader_epoch=np.where(going, np.int32(0), states.leader_epoch),
            partition_epoch=np.where(going, np.int32(0), states.partition_epoch),
        )


class _SharedStates:
    """The states of all LeaderAndIsr requests of a batch, of which each broker gets its own."""

    def __init__(self, version: int, announced: _Announced, place: I64) -> None:
        """`place` says which of the announced partitions they are about, in ascending order."""
        self.announced = announced
        self._version = version
        self._place = place

    @cached_property
    def encoded(self) -> EncodedLeaderAndIsr:
        """The states, encoded when the first request needs them."""
        states = self.announced.states.at(as_run(self._place))
        return EncodedLeaderAndIsr(self._version, states)

    def chosen(self, place: I64, is_new: Mask) -> Chosen:
        """Some of the partitions, for the request to a broker."""
        has_all = len(self._place) == len(self.announced.rows)
        return Chosen(place if has_all else np.searchsorted(self._place, place), is_new)


def _by_topic(cluster: ClusterState, rows: I32) -> I64 | slice:
    """The order in which rows of a topic stand together, by partition."""
    partition, topic = cluster.partition[rows], cluster.topic_of[rows]
    step = np.diff(topic)
    # Rows are handed out in this order, so that only reused ones have to be sorted.
    if ((step > 0) | ((step == 0) & (np.diff(partition) > 0))).all():
        return slice(None)
    return np.lexsort((partition, topic))


def _topics(cluster: ClusterState, rows: I32) -> RequestTopics:
    """The topics of rows that stand together by topic."""
    index, bounds = _runs(cluster.topic_of[rows])
    return RequestTopics(_topic_table(cluster, index), np.arange(len(index)), bounds)


def _runs(topic: I32) -> tuple[I32, I64]:
    """The index of each topic, and where its rows begin and end."""
    starts = np.flatnonzero(np.diff(topic, prepend=NO_TOPIC))
    return topic[starts], np.append(starts, len(topic)).astype(np.int64)


def _topic_table(cluster: ClusterState, index: I32) -> TopicTable:
    topics = [*map(cluster.topic_at, index.tolist())]
    return TopicTable([topic.name for topic in topics], [_id_bytes(topic.id) for topic in topics])


def _states(cluster: ClusterState, rows: I32) -> PartitionStates:
    """A copy of the rows."""
    at = as_run(rows)

    def copied(column: NDArray[_Number]) -> NDArray[_Number]:
        return column[at].copy() if isinstance(at, slice) else column[at]

    replicas = copied(cluster.replicas)
    return PartitionStates(
        partition=copied(cluster.partition),
        controller_epoch=copied(cluster.decided_in),
        leader=copied(cluster.leader),
        leader_epoch=copied(cluster.leader_epoch),
        isr=copied(cluster.isr),
        partition_epoch=copied(cluster.partition_epoch),
        replicas=replicas,
        offline=keep(replicas, ~cluster.online(rows)),
        adding=_moving(rows, cluster.adding),
        removing=_moving(rows, cluster.removing),
        is_new=np.zeros(len(rows), np.bool_),
        recovery=copied(cluster.recovery),
    )


def _nobody(rows: I32) -> I32:
    return np.full((len(rows), 1), NO_BROKER, np.int32)


def _moving(rows: I32, lists: dict[int, tuple[int, ...]]) -> I32:
    """Replicas that a reassignment adds or removes: none, for nearly every partition."""
    if not lists:
        return _nobody(rows)
    moving = np.isin(rows, np.fromiter(lists, np.int32, len(lists)))
    found = padded([lists[row] for row in rows[moving].tolist()])
    columns = np.full((len(rows), found.shape[1]), NO_BROKER, np.int32)
    columns[moving] = found
    return columns


def _live_brokers(cluster: ClusterState) -> list[Values]:
    """Every broker with all its endpoints (CHAN-22)."""
    return [
        {
            "id": broker.id,
            "v0_host": broker.endpoints[0].host if broker.endpoints else "",
            "v0_port": broker.endpoints[0].port if broker.endpoints else -1,
            "endpoints": [
                {
                    "port": endpoint.port,
                    "host": endpoint.host,
                    "listener": endpoint.listener,
                    "security_protocol": endpoint.security_protocol,
                }
                for endpoint in broker.endpoints
            ],
            "rack": broker.rack,
        }
        for _, broker in sorted(cluster.brokers.items())
    ]


@lru_cache(maxsize=1 << 16)
def _id_bytes(topic_id: str | None) -> bytes | None:
    return None if topic_id is None else znodes.decode_topic_id("cluster", topic_id).bytes
