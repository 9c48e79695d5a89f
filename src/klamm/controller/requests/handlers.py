"""Requests to the controller: decode them, put events into the queue, encode the responses (section
20).

Requests about topics are handled by `TopicAdmin`; the others become events of the queue. On a node
that is not controller each gets its own form of NOT_CONTROLLER.
"""

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final, TypeVar

from klamm.controller.loop import Controller
from klamm.controller.requests.topics import TopicAdmin
from klamm.core.elections import RECOVERED, RECOVERING
from klamm.core.events import (
    AlterPartition,
    ApiReassignment,
    ControlledShutdown,
    ElectLeaders,
    Event,
    FeatureUpdate,
    ListReassignments,
    PartitionProposal,
    ProposalResult,
    RequestedElection,
    UpdateFeatures,
    UpgradeType,
)
from klamm.core.reassignment import Assignment
from klamm.errors import KlammError, SessionLostError
from klamm.names import TopicPartition
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.failures import error_codes, failure
from klamm.protocol.codec.frames import (
    Request,
    decode_large_request,
    decode_request,
    encode_large_response,
    encode_response,
)
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codec.large import dismantle
from klamm.protocol.codes import ErrorCode
from klamm.slices import aside, discard, paced, uncollected
from klamm.zookeeper import znodes
from klamm.zookeeper.store import BadVersionError, Store

log = logging.getLogger("klamm.controller.requests.handlers")

Body = dict[str, Any]
T = TypeVar("T")
_INT64_MAX: Final = (1 << 63) - 1
#: The size from which on requests are decoded, and their responses encoded, in another thread.
_LARGE_BYTES: Final = 8 * 1024
#: How many partitions, or other things, of a request are handled as one event.
_TOGETHER: Final = 1000
#: How long a request without a timeout of its own waits for a failover.
_PATIENCE_S: Final = 30.0


class ControllerRequests:
    """Handles the requests that only the controller can serve."""

    def __init__(self, controller: Controller, store: Store, topics: TopicAdmin) -> None:
        self._controller = controller
        self._store = store
        self._topics = topics
        #: How often each API responded with each error code; 0 is success.
        self.errors: Counter[tuple[str, int]] = Counter()
        self._handlers: dict[int, Callable[[Request], Awaitable[Body]]] = {
            ApiKey.CONTROLLED_SHUTDOWN: self._controlled_shutdown,
            ApiKey.ALTER_PARTITION: self._alter_partition,
            ApiKey.ALLOCATE_PRODUCER_IDS: self._allocate_producer_ids,
            ApiKey.ELECT_LEADERS: self._elect_leaders,
            ApiKey.ALTER_PARTITION_REASSIGNMENTS: self._reassign,
            ApiKey.LIST_PARTITION_REASSIGNMENTS: self._list_reassignments,
            ApiKey.UPDATE_FEATURES: self._update_features,
            ApiKey.CREATE_TOPICS: topics.create_topics,
            ApiKey.DELETE_TOPICS: topics.delete_topics,
            ApiKey.CREATE_PARTITIONS: topics.create_partitions,
        }

    async def handle(self, frame: bytes) -> bytes:
        """Handle a request frame; returns the response frame."""
        if len(frame) <= _LARGE_BYTES:
            request = decode_request(frame)
            response, errors = _encode(request.header, await self._body(request))
        else:
            request = await aside(decode_large_request, frame)
            try:
                body = await self._body(request)
                response, errors = await aside(_encode_large, request.header, body)
            finally:
                discard(dismantle, request.body)
        name = APIS[request.header.api_key].name
        for code, count in errors.items():
            self.errors[name, code] += count
        return response

    async def _body(self, request: Request) -> Body:
        try:
            return await self._handlers[request.header.api_key](request)
        except Exception as error:
            return dict(self._failed(request, error))

    def _failed(self, request: Request, error: Exception) -> Mapping[str, Any]:
        """The response to a request that failed. Part of it may have taken effect, so the error is
        not one that clients retry.
        """
        name = APIS[request.header.api_key].name
        # A lost session is an event like any other, and no reason to show where it was noticed.
        trace = None if isinstance(error, SessionLostError) else error
        log.error("%s of %r failed: %s", name, request.header.client_id, error, exc_info=trace)
        body = failure(request.header, request.body, ErrorCode.UNKNOWN_SERVER_ERROR)
        assert body is not None, "every request for the controller expects a response"
        return body

    async def _ask(self, event: Event, request: Request) -> Any:
        """Queue the event and wait for its response."""
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def respond(value: Any) -> None:
            if not answered.done():
                answered.set_result(value)

        name = APIS[request.header.api_key].name
        self._controller.submit(event, f"{name} request of {request.header.client_id!r}", respond)
        return await answered

    async def _ask_each(
        self, events: Iterable[Event], request: Request
    ) -> tuple[int, dict[Any, Any]]:
        """Queue events one after the other; their results as one, or the first error.

        A request about very many things is cut into several events, so that the events of
        others are handled in between.
        """
        results: dict[Any, Any] = {}
        for event in events:
            error, found = await self._ask(event, request)
            if error != ErrorCode.NONE:
                return error, {}
            with uncollected():
                results |= found
        return ErrorCode.NONE, results

    async def _controlled_shutdown(self, request: Request) -> Body:
        body = request.body
        event = ControlledShutdown(int(body.broker_id), int(getattr(body, "broker_epoch", -1)))
        error, remaining = await self._ask(event, request)
        return {
            "error_code": error,
            "remaining_partitions": [
                {"topic_name": topic, "partition_index": partition}
                for topic, partition in sorted(remaining)
            ],
        }

    async def _alter_partition(self, request: Request) -> Body:
        body = request.body
        version = request.header.api_version
        proposals = [
            PartitionProposal(
                topic=None if version >= 2 else topic.topic_name,
                topic_id=_topic_id_text(topic.topic_id) if version >= 2 else None,
                partition=int(partition.partition_index),
                leader_epoch=int(partition.leader_epoch),
                isr=_proposed_isr(partition, version),
                recovery=int(getattr(partition, "leader_recovery_state", 0)),
                partition_epoch=int(partition.partition_epoch),
            )
            async for topic, partition in paced(
                (topic, partition) for topic in body.topics for partition in topic.partitions
            )
        ]
        if any(each.recovery not in (RECOVERED, RECOVERING) for each in proposals):
            return {"error_code": ErrorCode.UNKNOWN_SERVER_ERROR, "topics": []}
        event = AlterPartition(int(body.broker_id), int(body.broker_epoch), version, proposals)
        error, results = await self._ask(event, request)
        return {
            "error_code": error,
            "topics": [
                {
                    "topic_id": topic_id and znodes.decode_topic_id("request", topic_id),
                    "topic_name": topic,
                    "partitions": [_proposal_result(result) for result in of_topic],
                }
                for (topic, topic_id), of_topic in _by_topic(results)
            ],
        }

    async def _allocate_producer_ids(self, request: Request) -> Body:
        broker = int(request.body.broker_id)
        await self._controller.wait_taken_over(asyncio.get_running_loop().time() + _PATIENCE_S)
        cluster = self._controller.known_cluster
        if cluster is None:
            return {"error_code": ErrorCode.NOT_CONTROLLER, **_NO_BLOCK}
        known = cluster.brokers.get(broker)
        if known is None:
            return {"error_code": ErrorCode.BROKER_ID_NOT_REGISTERED, **_NO_BLOCK}
        if known.epoch != int(request.body.broker_epoch):
            return {"error_code": ErrorCode.STALE_BROKER_EPOCH, **_NO_BLOCK}
        try:
            block = await self._next_block(broker)
        except (KlammError, OverflowError):
            return {"error_code": ErrorCode.UNKNOWN_SERVER_ERROR, **_NO_BLOCK}
        return {
            "error_code": ErrorCode.NONE,
            "producer_id_start": block.start,
            "producer_id_len": block.end - block.start + 1,
        }

    async def _next_block(self, broker: int) -> znodes.ProducerIdBlock:
        """Claim the next block on condition of the node's own version (ADM-46)."""
        while True:
            node = await self._store.get(znodes.PRODUCER_ID_BLOCK)
            latest = znodes.decode_producer_id_block(node.data)
            block = znodes.next_producer_id_block(latest, broker)
            if block.end > _INT64_MAX:
                raise OverflowError("all producer ids are used up")
            try:
                await self._store.set(
                    znodes.PRODUCER_ID_BLOCK,
                    znodes.encode_producer_id_block(block),
                    node.stat.version,
                )
            except BadVersionError:
                continue
            return block

    async def _update_features(self, request: Request) -> Body:
        ibp = self._topics.config.inter_broker_protocol_version
        if self._controller.is_active and not ibp.has_feature_versioning:
            return {
                "error_code": ErrorCode.INVALID_REQUEST,
                "error_message": "Feature versioning system is disabled.",
                "results": [],
            }
        updates = [
            FeatureUpdate(
                str(each.feature),
                int(each.max_version_level),
                _upgrade_type(each, request.header.api_version),
            )
            async for each in paced(request.body.feature_updates)
        ]
        validate_only = bool(getattr(request.body, "validate_only", False))
        events = (UpdateFeatures(piece, validate_only) for piece in _pieces(updates))
        error, verdicts = await self._ask_each(events, request)
        discard(dismantle, updates)
        return {
            "error_code": error,
            "error_message": _message(error),
            "results": [
                {"feature": name, "error_code": e, "error_message": message or _message(e)}
                async for name, (e, message) in paced(verdicts.items())
            ],
        }

    async def _elect_leaders(self, request: Request) -> Body:
        body = request.body
        kind = int(getattr(body, "election_type", RequestedElection.PREFERRED))
        if kind not in (RequestedElection.PREFERRED, RequestedElection.UNCLEAN):
            refused = failure(request.header, body, ErrorCode.UNKNOWN_SERVER_ERROR)  # as Kafka does
            return dict(refused or {})
        deadline = _deadline(body)
        election = RequestedElection(kind)
        results: dict[TopicPartition, Any] = {}
        if body.topic_partitions is None:
            results = await self._ask(ElectLeaders(election, None), request)
        else:
            wanted = await _each_once(
                (topic.topic, partition)
                for topic in body.topic_partitions
                for partition in topic.partitions
            )
            for piece in _pieces(wanted):
                found = await self._ask(ElectLeaders(election, piece), request)
                with uncollected():
                    results |= found
            discard(dismantle, wanted)
        elected = [
            tp async for tp, (error, _, _) in paced(results.items()) if error == ErrorCode.NONE
        ]
        if elected and not await self._topics.wait_announced(deadline):
            late = (ErrorCode.REQUEST_TIMED_OUT, "The request timed out.", -1)
            results = {**results, **dict.fromkeys(elected, late)}
        if body.topic_partitions is None:
            results = {
                tp: result
                for tp, result in results.items()
                if result[0] != ErrorCode.ELECTION_NOT_NEEDED
            }
        return {
            "error_code": ErrorCode.NONE,
            "replica_election_results": [
                {"topic": topic, "partition_result": of_topic}
                async for topic, of_topic in _by_name(results, _election_result)
            ],
        }

    async def _reassign(self, request: Request) -> Body:
        targets: dict[TopicPartition, list[int] | None] = {}
        async for name, partition in paced(
            (topic.name, partition)
            for topic in request.body.topics
            for partition in topic.partitions
        ):
            replicas = partition.replicas
            targets[TopicPartition(name, partition.partition_index)] = (
                None if replicas is None else [int(broker) for broker in replicas]
            )
        events = (ApiReassignment({tp: targets[tp] for tp in piece}) for piece in _pieces(targets))
        error, errors = await self._ask_each(events, request)
        discard(dismantle, targets)
        return {
            "error_code": error,
            "error_message": _message(error) or "",
            "responses": [
                {"name": topic, "partitions": of_topic}
                async for topic, of_topic in _by_name(errors, _reassignment_result)
            ],
        }

    async def _list_reassignments(self, request: Request) -> Body:
        events: Iterable[Event] = [ListReassignments(None)]
        wanted: dict[TopicPartition, None] = {}
        if request.body.topics is not None:
            wanted = await _each_once(
                (topic.name, partition)
                for topic in request.body.topics
                for partition in topic.partition_indexes
            )
            events = map(ListReassignments, _pieces(wanted))
        error, found = await self._ask_each(events, request)
        discard(dismantle, wanted)
        return {
            "error_code": error,
            "error_message": _message(error) or "",
            "topics": [
                {"name": topic, "partitions": of_topic}
                async for topic, of_topic in _by_name(found, _running_reassignment)
            ],
        }


_NO_BLOCK: Final = {"producer_id_start": 0, "producer_id_len": 0}


def _encode(header: RequestHeader, body: Body) -> tuple[bytes, Counter[int]]:
    """The response, and how often it has each error code."""
    return encode_response(header, body), Counter(map(int, error_codes(body)))


def _encode_large(header: RequestHeader, body: Body) -> tuple[bytes, Counter[int]]:
    """The same beside the event loop; the body is given up."""
    errors = Counter(map(int, error_codes(body)))
    response = b"".join(encode_large_response(header, body))
    dismantle(body)
    return response, errors


def _message(error: int) -> str | None:
    return None if error == ErrorCode.NONE else ErrorCode.of(error).message


def _deadline(body: Any) -> float:
    now = asyncio.get_running_loop().time()
    return float(now + max(body.timeout.total_seconds(), 0.0))


def _upgrade_type(update: Any, version: int) -> UpgradeType | None:
    if version == 0:
        return UpgradeType.SAFE_DOWNGRADE if update.allow_downgrade else UpgradeType.UPGRADE
    kind = int(update.upgrade_type)
    return UpgradeType(kind) if kind in set(UpgradeType) else None


def _topic_id_text(topic_id: uuid.UUID | None) -> str:
    return znodes.encode_topic_id(topic_id or uuid.UUID(int=0))


def _proposed_isr(partition: Any, version: int) -> tuple[int, ...]:
    if version >= 3:
        return tuple(int(member.broker_id) for member in partition.new_isr_with_epochs)
    return tuple(int(broker) for broker in partition.new_isr)


def _proposal_result(result: ProposalResult) -> Body:
    body: Body = {
        "partition_index": result.proposal.partition,
        "error_code": result.error,
        "leader_id": result.leader,
        "leader_epoch": result.leader_epoch,
        "isr": result.isr,
        "leader_recovery_state": result.recovery,
        "partition_epoch": result.partition_epoch,
    }
    if result.error != ErrorCode.NONE:
        # Kafka leaves these fields at the defaults of an empty message.
        body |= {"leader_id": 0, "leader_epoch": 0, "partition_epoch": 0}
    return body


def _by_topic(
    results: Iterable[ProposalResult],
) -> Iterable[tuple[tuple[str | None, str | None], list[ProposalResult]]]:
    groups: dict[tuple[str | None, str | None], list[ProposalResult]] = {}
    for result in results:
        key = (result.proposal.topic, result.proposal.topic_id)
        groups.setdefault(key, []).append(result)
    return groups.items()


async def _each_once(partitions: Iterable[tuple[str, int]]) -> dict[TopicPartition, None]:
    return {TopicPartition(*each): None async for each in paced(partitions)}


def _pieces(things: Iterable[T]) -> Iterable[list[T]]:
    """The things that each event is about; one event about nothing if there are none."""
    left = iter(things)
    piece = list(islice(left, _TOGETHER))
    yield piece
    while piece := list(islice(left, _TOGETHER)):
        yield piece


async def _by_name(
    results: dict[TopicPartition, T], body_of: Callable[[int, T], Body]
) -> AsyncIterator[tuple[str, list[Body]]]:
    """The body of each partition's result, by topic; the results are given up."""
    groups: dict[str, list[Body]] = {}
    async for tp, result in paced(results.items()):
        groups.setdefault(tp.topic, []).append(body_of(tp.partition, result))
    discard(dismantle, results)
    async for group in paced(groups.items()):
        yield group


def _election_result(partition: int, result: tuple[int, str | None, int]) -> Body:
    error, message, _ = result
    return {
        "partition_id": partition,
        "error_code": error,
        "error_message": message or _message(error),
    }


def _reassignment_result(partition: int, result: tuple[int, str | None]) -> Body:
    error, message = result
    return {
        "partition_index": partition,
        "error_code": error,
        "error_message": message or _message(error),
    }


def _running_reassignment(partition: int, assignment: Assignment) -> Body:
    return {
        "partition_index": partition,
        "replicas": assignment.replicas,
        "adding_replicas": assignment.adding,
        "removing_replicas": assignment.removing,
    }
