"""Requests of the controller: LeaderAndIsr, StopReplica and UpdateMetadata (section 4)."""

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, Protocol

from klamm.broker.handlers.dispatch import Body, Call, Handler, translated
from klamm.broker.identity import BrokerIdentity
from klamm.broker.metadata.cache import (
    BrokerEndpoint,
    CachedBroker,
    ClusterSnapshot,
    MetadataCache,
    MetadataUpdate,
    SnapshotChange,
)
from klamm.broker.replication.partition import LeaderAndIsrPartitionState
from klamm.names import TopicPartition, counted
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.protocol.fast.control_decode import LeaderAndIsrRequest, UpdateMetadataRequest
from klamm.slices import aside, finish, paced

log = logging.getLogger("klamm.broker.control")

ClearWay = Callable[[TopicPartition, uuid.UUID | None], Awaitable[None]]


class Replicas(Protocol):
    """Applies LeaderAndIsr and StopReplica."""

    async def prepare(self, topics: list[str]) -> None:
        """Read what is needed before the states of these topics are applied."""

    async def settle(self, name: TopicPartition) -> None:
        """Wait until no truncation of this partition's log is under way."""

    def apply(
        self, name: TopicPartition, topic_id: Any, state: LeaderAndIsrPartitionState
    ) -> ErrorCode: ...

    def stop(self, name: TopicPartition, leader_epoch: int, *, delete: bool) -> ErrorCode: ...


class MetadataListener(Protocol):
    """Is told of every change of the metadata."""

    def on_metadata(self, change: SnapshotChange) -> None: ...


class ControlHandlers:
    """Applies the controller's requests one at a time, in the order of their arrival."""

    def __init__(
        self,
        identity: BrokerIdentity,
        metadata: MetadataCache,
        replicas: Replicas,
        listeners: list[MetadataListener],
        turn: asyncio.Lock,
        clear_way: ClearWay | None = None,
    ) -> None:
        """`turn` is held while a request is carried out.

        `clear_way` moves a log aside that would be in a LeaderAndIsr's way.
        """
        self._identity = identity
        self._metadata = metadata
        self._replicas = replicas
        self._listeners = listeners
        self._turn = turn
        self._clear_way = clear_way
        self._has_epoch = asyncio.Event()

    def registered(self) -> None:
        """Let requests in: this broker has an epoch to compare with theirs."""
        self._has_epoch.set()

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handlers by API key."""
        return {
            ApiKey.LEADER_AND_ISR: self._leader_and_isr,
            ApiKey.STOP_REPLICA: self._stop_replica,
            ApiKey.UPDATE_METADATA: self._update_metadata,
        }

    async def _admit(self, controller_epoch: int, broker_epoch: int) -> ErrorCode:
        """Wait until this broker is registered; return the error of an outdated request.

        An earlier request may be meant for the previous incarnation of this broker, by a controller
        that has not noticed its end. It cannot be refused at once either: the controller may know
        of the new registration before the broker does, and would not send the request again.
        """
        await self._has_epoch.wait()
        return self._identity.admit_controller(controller_epoch, broker_epoch)

    # UpdateMetadata

    async def _update_metadata(self, call: Call) -> Body:
        request: UpdateMetadataRequest = call.body
        async with self._turn:
            error = await self._admit(request.controller_epoch, request.broker_epoch)
            if error:
                return {"error_code": error}
            snapshot = self._metadata.snapshot
            change = await finish(translated(call, _changed, snapshot, request))
            self._metadata.install(change)
            for listener in self._listeners:
                listener.on_metadata(change)
        return {"error_code": ErrorCode.NONE}

    # LeaderAndIsr

    async def _leader_and_isr(self, call: Call) -> Body:
        request: LeaderAndIsrRequest = call.body
        async with self._turn:
            error = await self._admit(request.controller_epoch, request.broker_epoch)
            if error:
                return await aside(_refused, request, error)
            names = {topic.topic_name async for topic in paced(request.topic_states)}
            await self._replicas.prepare(sorted(names))
            topics = [await self._apply_topic(topic) async for topic in paced(request.topic_states)]
        refused = sum(bool(each["error_code"]) for t in topics for each in t["partition_errors"])
        log.info(
            "[Broker id=%s] LeaderAndIsr of controller %s, epoch %s: %s, %s refused",
            self._identity.broker_id,
            request.controller_id,
            request.controller_epoch,
            counted(sum(len(each["partition_errors"]) for each in topics), "partition"),
            refused,
        )
        return {"error_code": ErrorCode.NONE, "topics": topics}

    async def _apply_topic(self, topic: Any) -> Body:
        errors = []
        async for state in paced(topic.partition_states):
            name = TopicPartition(topic.topic_name, state.partition_index)
            await self._replicas.settle(name)
            if self._clear_way is not None:
                await self._clear_way(name, topic.topic_id)
            error = self._replicas.apply(name, topic.topic_id, _order(state))
            errors.append({"partition_index": name.partition, "error_code": error})
        return {"topic_id": topic.topic_id, "partition_errors": errors}

    # StopReplica

    async def _stop_replica(self, call: Call) -> Body:
        request = call.body
        async with self._turn:
            error = await self._admit(int(request.controller_epoch), int(request.broker_epoch))
            if error:
                return {"error_code": error, "partition_errors": []}
            errors = [await self._stop(*each) async for each in paced(_partitions_to_stop(request))]
        return {"error_code": ErrorCode.NONE, "partition_errors": errors}

    async def _stop(self, name: TopicPartition, leader_epoch: int, delete: bool) -> Body:
        await self._replicas.settle(name)
        error = self._replicas.stop(name, leader_epoch, delete=delete)
        return {
            "topic_name": name.topic,
            "partition_index": name.partition,
            "error_code": error,
        }


def _refused(request: LeaderAndIsrRequest, error: ErrorCode) -> Body:
    """A response with the error at the top level and on every partition (CTRL-5)."""
    return {
        "error_code": error,
        "topics": [
            {
                "topic_id": topic.topic_id,
                "partition_errors": [
                    {"partition_index": state.partition_index, "error_code": error}
                    for state in topic.partition_states
                ],
            }
            for topic in request.topic_states
        ],
    }


def _order(state: Any) -> LeaderAndIsrPartitionState:
    return LeaderAndIsrPartitionState(
        state.leader,
        state.leader_epoch,
        state.isr,
        state.partition_epoch,
        state.replicas,
        state.adding_replicas,
        state.removing_replicas,
        state.is_new,
    )


def _partitions_to_stop(request: Any) -> Iterator[tuple[TopicPartition, int, bool]]:
    for topic in request.topic_states:
        for state in topic.partition_states:
            name = TopicPartition(topic.topic_name, state.partition_index)
            yield name, state.leader_epoch, state.delete_partition


def _changed(snapshot: ClusterSnapshot, request: UpdateMetadataRequest) -> SnapshotChange:
    brokers = [_live_broker(broker) for broker in request.live_brokers]
    return snapshot.after(MetadataUpdate(request.controller_id, brokers, request.topics))


def _live_broker(broker: Any) -> CachedBroker:
    endpoints = {each.listener: BrokerEndpoint(each.host, each.port) for each in broker.endpoints}
    return CachedBroker(broker.id, endpoints, broker.rack)
