"""Transactions, for producers, brokers and administrators (transactions.md)."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from klamm.broker.groups import codec as groups_codec
from klamm.broker.groups.coordinator import group_partition
from klamm.broker.groups.messages import OffsetCommitResponse, TransactionalProducer
from klamm.broker.groups.service import GroupService
from klamm.broker.handlers.dispatch import (
    Body,
    Call,
    Handler,
    Result,
    body_of,
    in_slices,
    translated,
)
from klamm.broker.log.log import Log
from klamm.broker.metadata.cache import MetadataCache
from klamm.broker.replication.manager import ReplicaManager
from klamm.broker.transactions import codec
from klamm.broker.transactions.codec import Addition
from klamm.broker.transactions.effects import Effect
from klamm.broker.transactions.marker_writer import MarkerWriter
from klamm.broker.transactions.messages import (
    AddResponse,
    EndResponse,
    InitResponse,
    Requester,
)
from klamm.broker.transactions.producer_ids import ProducerIds
from klamm.broker.transactions.service import TransactionService
from klamm.broker.transactions.verifier import TransactionVerifier
from klamm.names import CONSUMER_OFFSETS, TopicPartition, complaint_about
from klamm.protocol.acls import AclOperation
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.large import dismantle
from klamm.protocol.codes import ErrorCode
from klamm.slices import Steps, discard, each

#: The number of descriptions that one request keeps, for entries that are repeated.
_REMEMBERED: Final = 1000
Errors = Mapping[TopicPartition, ErrorCode]


class TransactionHandlers:
    """Hands requests to the transaction coordinator and its responses back."""

    def __init__(
        self,
        service: TransactionService,
        producer_ids: ProducerIds,
        metadata: MetadataCache,
        offsets_partitions: Callable[[], int],
    ) -> None:
        """`offsets_partitions` tells the number of partitions of `__consumer_offsets`."""
        self._service = service
        self._producer_ids = producer_ids
        self._metadata = metadata
        self._offsets_partitions = offsets_partitions

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handlers of this module, by API key."""
        return {
            ApiKey.INIT_PRODUCER_ID: self._init_producer_id,
            ApiKey.ADD_PARTITIONS_TO_TXN: self._add_partitions,
            ApiKey.ADD_OFFSETS_TO_TXN: self._add_offsets,
            ApiKey.END_TXN: self._end,
            ApiKey.DESCRIBE_TRANSACTIONS: self._describe,
            ApiKey.LIST_TRANSACTIONS: self._list,
        }

    def _init_producer_id(self, call: Call) -> Result | Awaitable[Result]:
        body, header = call.body, call.header
        if not codec.has_both_or_none(body):
            return codec.init_body(header, InitResponse(error=ErrorCode.INVALID_REQUEST))
        if body.transactional_id is None:
            taken = self._producer_ids.take()
            response = (
                InitResponse(error=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
                if taken is None
                else InitResponse(error=ErrorCode.NONE, producer_id=taken, producer_epoch=0)
            )
            return codec.init_body(header, response)
        request = codec.init_request(body, self._requester(call))
        return self._submit(
            lambda ticket, now_ms: self._service.coordinator.init_producer_id(
                ticket, request, now_ms
            ),
            lambda response: codec.init_body(header, response),
        )

    @in_slices
    def _add_partitions(self, call: Call) -> Steps[Body]:
        knows = self._metadata.snapshot.knows
        may_write: Callable[[str], bool] = codec.anything
        if call.access is not None:
            may_write = call.access.may_on_topic(AclOperation.WRITE)
        additions = yield from translated(
            call, codec.additions, call.header, call.body, knows, self._requester(call), may_write
        )
        # All are submitted before the first is waited for: they go to the log together.
        begun = yield from each(self._add, additions)
        results = []
        for addition, outcome in zip(additions, begun, strict=True):
            request = addition.request
            if isinstance(outcome, asyncio.Future):
                response: AddResponse = yield outcome
                outcome = dict.fromkeys(request.partitions, response.error)
            results.append((request.transactional_id, outcome))
            yield None
        body = yield from translated(call, codec.additions_body, call.header, results)
        for made in (additions, begun, results):
            discard(dismantle, made)
        return body

    def _add(self, addition: Addition) -> "Errors | asyncio.Future[Any]":
        """The errors by partition, or the future of the coordinator's response."""
        request, coordinator = addition.request, self._service.coordinator
        if addition.refused:
            return addition.refused
        if addition.verify_only:
            verdict = coordinator.verify_partitions(request)
            return verdict.errors or dict.fromkeys(request.partitions, verdict.error)
        return self._service.submit(
            lambda ticket, now_ms: coordinator.add_partitions(ticket, request, now_ms)
        )

    def _add_offsets(self, call: Call) -> Result | Awaitable[Result]:
        index = group_partition(call.body.group_id, self._offsets_partitions())
        partition = TopicPartition(CONSUMER_OFFSETS, index)
        request = codec.add_offsets_request(call.body, partition, self._requester(call))

        def respond(response: AddResponse) -> Body:
            return codec.error_body(call.header, response.error)

        return self._submit(
            lambda ticket, now_ms: self._service.coordinator.add_partitions(
                ticket, request, now_ms
            ),
            respond,
        )

    def _end(self, call: Call) -> Result | Awaitable[Result]:
        request = codec.end_request(call.body, self._requester(call))

        def respond(response: EndResponse) -> Body:
            return codec.error_body(call.header, response.error)

        return self._submit(
            lambda ticket, now_ms: self._service.coordinator.end_transaction(
                ticket, request, now_ms
            ),
            respond,
        )

    @in_slices
    def _describe(self, call: Call) -> Steps[Body]:
        describe = lru_cache(_REMEMBERED)(self._service.coordinator.describe)
        found = yield from each(describe, call.body.transactional_ids)
        body = yield from translated(call, codec.descriptions_body, found)
        discard(dismantle, found)
        return body

    @in_slices
    def _list(self, call: Call) -> Steps[Body]:
        request = yield from translated(call, codec.list_request, call.body)
        found = yield from self._service.coordinator.list_transactions(
            request, self._service.now_ms
        )
        return (yield from body_of(found.transactions, codec.list_body, found))

    def _requester(self, call: Call) -> Requester | None:
        """The requester, if a history is kept."""
        if not self._service.coordinator.config.is_noted:
            return None
        connection, header = call.connection, call.header
        return Requester(
            connection.principal,
            connection.client_host,
            header.client_id,
            APIS[header.api_key].name,
        )

    def _submit(
        self, ask: Callable[[int, int], list[Effect]], respond: Callable[[Any], Result]
    ) -> Result | Awaitable[Result]:
        future = self._service.submit(ask)
        return respond(future.result()) if future.done() else _then(future, respond)


async def _then(future: asyncio.Future[Any], respond: Callable[[Any], Result]) -> Result:
    return respond(await future)


class TransactionalDataHandlers:
    """The requests of transactions to partition leaders: markers, offsets, producers."""

    def __init__(
        self,
        replicas: ReplicaManager,
        groups: GroupService,
        markers: MarkerWriter,
        verifier: TransactionVerifier,
        metadata: MetadataCache,
    ) -> None:
        self._replicas = replicas
        self._groups = groups
        self._markers = markers
        self._verifier = verifier
        self._metadata = metadata

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handlers of this module, by API key."""
        return {
            ApiKey.WRITE_TXN_MARKERS: self._write_markers,
            ApiKey.TXN_OFFSET_COMMIT: self._commit_offsets,
            ApiKey.DESCRIBE_PRODUCERS: self._describe_producers,
        }

    @in_slices
    def _write_markers(self, call: Call) -> Steps[Body]:
        markers = yield from translated(call, codec.markers, call.body)
        written = yield from self._markers.write(markers)
        return (yield from translated(call, codec.markers_body, written))

    # TxnOffsetCommit

    @in_slices
    def _commit_offsets(self, call: Call) -> Steps[Body]:
        """Verify the transaction, then commit as part of it (TXN-10, TXN-12)."""
        body, header = call.body, call.header
        snapshot = self._metadata.snapshot
        request = yield from translated(
            call, groups_codec.txn_offset_commit_request, body, snapshot.knows
        )
        errors: Errors = {}
        if request.offsets:
            error, producer = yield self._verify(body)
            if error:
                errors = dict.fromkeys(request.offsets, error)
            else:
                request = replace(request, producer=producer)
                response: OffsetCommitResponse = yield self._groups.submit(
                    lambda ticket, now_ms: self._groups.coordinator.commit_offsets(
                        ticket, request, now_ms
                    )
                )
                errors = response.errors
        told = {each: codec.offset_commit_error(header, error) for each, error in errors.items()}
        response = OffsetCommitResponse(errors=told)
        return (yield from translated(call, groups_codec.offset_commit_body, body, response))

    async def _verify(self, body: Any) -> tuple[ErrorCode, TransactionalProducer]:
        producer_id, epoch = body.producer_id, body.producer_epoch
        groups = self._groups.coordinator
        if error := groups.check_group(body.group_id):
            return error, TransactionalProducer(producer_id, epoch, None)
        index = group_partition(body.group_id, groups.partition_count)
        name = TopicPartition(CONSUMER_OFFSETS, index)
        verification = self._replicas.begin_verification(name, producer_id, epoch, -1)
        producer = TransactionalProducer(producer_id, epoch, verification)
        if verification is None:
            return ErrorCode.NONE, producer
        verdict = self._verifier.verify(body.transactional_id, producer_id, epoch, (name,))
        errors = await verdict if inspect.isawaitable(verdict) else verdict
        return errors[name], producer

    # DescribeProducers

    @in_slices
    def _describe_producers(self, call: Call) -> Steps[Body]:
        topics = []
        # A partition that is named again is described in the same way.
        describe = lru_cache(_REMEMBERED)(self._producers_of)
        for topic in call.body.topics:
            names = (TopicPartition(topic.name, index) for index in topic.partition_indexes)
            topics.append({"name": topic.name, "partitions": (yield from each(describe, names))})
            yield None
        return {"topics": topics}

    def _producers_of(self, name: TopicPartition) -> Body:
        complaint = complaint_about(name.topic)
        if complaint is not None:
            return _no_producers(name, ErrorCode.INVALID_TOPIC_EXCEPTION, complaint)
        partition = self._replicas.find(name)
        if isinstance(partition, ErrorCode):
            return _no_producers(name, partition, partition.message)
        if not isinstance(partition.log, Log):
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return _no_producers(name, error, error.message)
        return {
            "partition_index": name.partition,
            "error_code": ErrorCode.NONE,
            "error_message": None,
            "active_producers": [
                {
                    "producer_id": producer_id,
                    "producer_epoch": state.epoch,
                    "last_sequence": state.last_sequence,
                    "last_timestamp": state.timestamp,
                    "coordinator_epoch": state.coordinator_epoch,
                    "current_txn_start_offset": state.transaction_start,
                }
                for producer_id, state in partition.log.producers
            ],
        }


def _no_producers(name: TopicPartition, error: ErrorCode, message: str) -> Body:
    return {
        "partition_index": name.partition,
        "error_code": error,
        "error_message": message,
        "active_producers": [],
    }
