"""Encode a request batch as LeaderAndIsr, UpdateMetadata and StopReplica, and queue the requests.

The contents are read from the columns when the batch is sent. The body of an UpdateMetadata is
encoded once and shared by all brokers. Versions follow from the
inter-broker protocol alone; nothing is negotiated (CHAN-32).
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, TypeVar
from uuid import UUID

import numpy as np

from klamm.config.ibp import Ibp
from klamm.controller.channels import ControllerChannels, QueuedRequest
from klamm.core.cluster import LEADER_DURING_DELETE, NO_TOPIC, ClusterState
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

_T = TypeVar("_T")


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

        Large batches are encoded in another thread, so that what is queued is sent meanwhile. The
        cluster does not change until the batch is queued: its one writer waits for this.
        """
        is_large = len(batch.metadata_rows) >= _LARGE_BATCH_ROWS
        encode = asyncio.to_thread if is_large else _at_once
        if batch.leader_and_isr:
            shared = await encode(
                _SharedStates, cluster, self._leader_and_isr, batch.leader_and_isr
            )
            for broker, entries in batch.leader_and_isr.items():
                encoded = await encode(self._encode_leader_and_isr, cluster, entries, shared)
                self._send_leader_and_isr(cluster, broker, encoded)
        if batch.metadata_brokers:
            rows = batch.metadata_rows[cluster.has_leadership[batch.metadata_rows]]
            rows = rows[_by_topic(cluster, rows)]
            for first in range(0, max(len(rows), 1), _METADATA_ROWS_MAX):
                some = rows[first : first + _METADATA_ROWS_MAX]
                request = await encode(self._encode_update_metadata, cluster, some)
                self._send_update_metadata(cluster, request, len(some), batch.metadata_brokers)
        for broker, entries in batch.stop_replica.items():
            self._send_stop_replica(cluster, broker, entries)

    def _encode_leader_and_isr(
        self, cluster: ClusterState, entries: ReplicaRequestRows, shared: "_SharedStates"
    ) -> "_EncodedLeaderAndIsr":
        order = _by_topic(cluster, entries.rows)
        rows, is_new = entries.rows[order], entries.flag[order]
        topics = shared.topics(cluster, rows)
        leaders = members(cluster.leader[rows])
        request = shared.encoded.request(
            topics,
            Chosen(shared.places(rows), is_new),
            controller_id=self._broker_id,
            controller_epoch=cluster.controller_epoch,
            live_leaders=[
                {"broker_id": id, "host_name": host, "port": port}
                for id, host, port in self._endpoints(cluster, leaders)
            ],
        )
        return _EncodedLeaderAndIsr(request, topics, rows, is_new)

    def _send_leader_and_isr(
        self, cluster: ClusterState, broker: int, encoded: "_EncodedLeaderAndIsr"
    ) -> None:
        request, topics, rows, is_new = encoded
        asked = _Named(topics, cluster.partition[rows])

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

        become_leader = np.count_nonzero(cluster.leader[rows] == broker)
        epoch = cluster.controller_epoch
        self._say(
            epoch,
            f"sending LeaderAndIsr to broker {broker} with {become_leader} become-leader and "
            f"{len(rows) - become_leader} become-follower partitions",
        )
        if state_changes.isEnabledFor(Level.TRACE):
            for row, flag in zip(rows.tolist(), is_new.tolist(), strict=True):
                entry = f"{cluster.describe(row)}, new {flag}"
                self._say(epoch, f"LeaderAndIsr to broker {broker}: {entry}", Level.TRACE)
        self._send(cluster, broker, request, on_response)

    def _say(self, epoch: int, text: str, level: int = Level.INFO) -> None:
        """A line of the state-change log (MET-7, MET-8)."""
        state_changes.log(level, "[Controller id=%s epoch=%s] %s", self._broker_id, epoch, text)

    def _endpoints(
        self, cluster: ClusterState, brokers: Sequence[int]
    ) -> Iterator[tuple[int, str, int]]:
        """Where brokers listen for each other (CHAN-20)."""
        for broker in brokers:
            known = cluster.brokers.get(broker)
            for endpoint in known.endpoints if known else ():
                if endpoint.listener == self._listener:
                    yield broker, endpoint.host, endpoint.port

    def _encode_update_metadata(self, cluster: ClusterState, rows: I32) -> ControlRequest:
        topics = _topics(cluster, rows)
        offline = keep(cluster.replicas[rows], ~cluster.online(rows))
        states = _states(cluster, rows, offline)
        going = cluster.is_queued(rows)
        if going.any():
            states = replace(
                states,
                leader=np.where(going, np.int32(LEADER_DURING_DELETE), states.leader),
                leader_epoch=np.where(going, np.int32(0), states.leader_epoch),
                partition_epoch=np.where(going, np.int32(0), states.partition_epoch),
            )
        return encode_update_metadata(
            self._update_metadata,
            topics,
            states,
            controller_id=self._broker_id,
            controller_epoch=cluster.controller_epoch,
            live_brokers=_live_brokers(cluster),
        )

    def _send_update_metadata(
        self, cluster: ClusterState, request: ControlRequest, count: int, brokers: Sequence[int]
    ) -> None:
        self._say(
            cluster.controller_epoch,
            f"sending UpdateMetadata to brokers {list(brokers)} for {counted(count, 'partition')}",
        )
        for broker in brokers:
            done = None
            if broker == self._broker_id:
                self._told += 1
                done = self._own_broker_responded
            self._send(cluster, broker, request, _metadata_response(broker), done)

    def _send_stop_replica(
        self, cluster: ClusterState, broker: int, entries: ReplicaRequestRows
    ) -> None:
        order = _by_topic(cluster, entries.rows)
        rows, is_deleted = entries.rows[order], entries.flag[order]
        topics = _topics(cluster, rows)
        replicas = StoppedReplicas(cluster.partition[rows], entries.leader_epoch[order], is_deleted)
        deleted = {cluster.name(row) for row in rows[is_deleted].tolist()}

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

        epoch = cluster.controller_epoch
        self._say(epoch, f"sending StopReplica to broker {broker} for {len(rows)} replicas")
        if state_changes.isEnabledFor(Level.TRACE):
            columns = (rows.tolist(), replicas.leader_epoch.tolist(), is_deleted.tolist())
            for row, leader_epoch, delete in zip(*columns, strict=True):
                topic, partition = cluster.name(row)
                entry = f"{topic}-{partition}, epoch {leader_epoch}, delete {delete}"
                self._say(epoch, f"StopReplica to broker {broker}: {entry}", Level.TRACE)
        for request in encode_stop_replica(
            self._stop_replica,
            topics,
            replicas,
            controller_id=self._broker_id,
            controller_epoch=cluster.controller_epoch,
        ):
            self._send(cluster, broker, request, on_response)

    def _send(
        self,
        cluster: ClusterState,
        broker: int,
        request: ControlRequest,
        on_response: Callable[[RequestHeader, memoryview], Event | None],
        done: Callable[[], None] | None = None,
    ) -> None:
        epoch, controller_epoch = cluster.brokers[broker].epoch, cluster.controller_epoch

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


async def _at_once(encode: Callable[..., _T], *args: Any) -> _T:
    """In place of `asyncio.to_thread`: without a thread, and without a pause."""
    return encode(*args)


class _EncodedLeaderAndIsr(NamedTuple):
    """A request to one broker, and what it is about."""

    request: ControlRequest
    topics: RequestTopics
    rows: I32
    is_new: Mask


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


def _metadata_response(broker: int) -> Callable[[RequestHeader, memoryview], Event]:
    def on_response(header: RequestHeader, frame: memoryview) -> Event:
        error_code = decode_update_metadata_response(header, frame)
        return UpdateMetadataResponseReceived(broker, error_code)

    return on_response


class _SharedStates:
    """The states of all LeaderAndIsr requests of a batch, of which each broker gets its own."""

    def __init__(
        self, cluster: ClusterState, version: int, entries: Mapping[int, ReplicaRequestRows]
    ) -> None:
        capacity = len(cluster.topic_of)
        self._rows = distinct([each.rows for each in entries.values()], capacity)
        #: The place of each row; for a few rows it is not worth a table.
        self._place: I32 | None = None
        if len(self._rows) > capacity // 16:
            self._place = np.zeros(capacity, np.int32)
            self._place[self._rows] = np.arange(len(self._rows), dtype=np.int32)
        states = _states(cluster, self._rows, _nobody(self._rows))
        self.encoded = EncodedLeaderAndIsr(version, states)
        self._topic_index = np.unique(cluster.topic_of[self._rows])
        self._topics = _topic_table(cluster, self._topic_index)

    def topics(self, cluster: ClusterState, rows: I32) -> RequestTopics:
        """The topics of some of the rows, which stand together by topic."""
        index, bounds = _runs_of_topics(cluster, rows)
        return RequestTopics(self._topics, np.searchsorted(self._topic_index, index), bounds)

    def places(self, rows: I32) -> I64:
        """Where the states of the rows are."""
        if self._place is None:
            return np.searchsorted(self._rows, rows)
        return self._place[rows].astype(np.int64)


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
    index, bounds = _runs_of_topics(cluster, rows)
    return RequestTopics(_topic_table(cluster, index), np.arange(len(index)), bounds)


def _runs_of_topics(cluster: ClusterState, rows: I32) -> tuple[I32, I64]:
    """The index of each topic of the rows, and where its rows begin and end."""
    index = cluster.topic_of[rows]
    starts = np.flatnonzero(np.diff(index, prepend=NO_TOPIC))
    return index[starts], np.append(starts, len(rows)).astype(np.int64)


def _topic_table(cluster: ClusterState, index: I32) -> TopicTable:
    topics = [*map(cluster.topic_at, index.tolist())]
    return TopicTable([topic.name for topic in topics], [_id_bytes(topic.id) for topic in topics])


def _states(cluster: ClusterState, rows: I32, offline: I32) -> PartitionStates:
    at = as_run(rows)
    return PartitionStates(
        partition=cluster.partition[at],
        controller_epoch=cluster.decided_in[at],
        leader=cluster.leader[at],
        leader_epoch=cluster.leader_epoch[at],
        isr=cluster.isr[at],
        partition_epoch=cluster.partition_epoch[at],
        replicas=cluster.replicas[at],
        offline=offline,
        adding=_moving(rows, cluster.adding),
        removing=_moving(rows, cluster.removing),
        is_new=np.zeros(len(rows), np.bool_),
        recovery=cluster.recovery[at],
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
