"""Fetch, from consumers and from followers (sections 6.2, 6.8 and 6.9)."""

import uuid
from collections.abc import Awaitable, Callable, Hashable, Iterable, Mapping
from functools import partial
from typing import Final, cast

from klamm.broker.clock import Clock
from klamm.broker.delayed.purgatory import Purgatories
from klamm.broker.fetch.reader import FetchParams, FetchReader
from klamm.broker.fetch.sessions import (
    FetchContext,
    Fetched,
    FetchSessions,
    RequestedPartition,
    SessionKey,
    SessionRequest,
    SessionResponse,
)
from klamm.broker.handlers.dispatch import (
    NO_QUOTAS,
    ByteQuotas,
    Call,
    EncodedResponse,
    Handler,
    Result,
    in_slices,
    translated,
)
from klamm.broker.handlers.steady_fetch import PlainFetch, SteadyFetches
from klamm.broker.log.results import Slice
from klamm.broker.metadata.cache import ClusterSnapshot, MetadataCache
from klamm.broker.replication.replica_log import FetchPosition, Reader
from klamm.broker.security.authorizer import Access
from klamm.config.broker import BrokerConfig
from klamm.names import TopicPartition
from klamm.net.responses import Part
from klamm.protocol.acls import AclOperation
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from klamm.protocol.fast.fetch import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
    NodeEndpoint,
)
from klamm.protocol.fast.fetch_response import encode_fetch_response
from klamm.slices import Delayed, Steps, aside

_FIRST_FROM_ANY_REPLICA: Final = 11
_FIRST_BY_ID: Final = 13
#: The response about more partitions than this is encoded beside the event loop.
_MANY: Final = 1000
_READ_COMMITTED: Final = 1
_RACK_AWARE_SELECTORS: Final = ("org.apache.kafka.common.replica.RackAwareReplicaSelector",)


class FetchHandlers:
    """Opens the session of a fetch, reads, and delays the response if there is too little."""

    def __init__(
        self,
        config: BrokerConfig,
        reader: FetchReader,
        sessions: FetchSessions,
        purgatories: Purgatories,
        metadata: MetadataCache,
        clock: Clock,
        quotas: ByteQuotas = NO_QUOTAS,
    ) -> None:
        self._quotas = quotas
        self._max_bytes = config.fetch_max_bytes
        self._selects_by_rack = config.replica_selector_class in _RACK_AWARE_SELECTORS
        self._reader = reader
        self._sessions = sessions
        self._purgatories = purgatories
        self._metadata = metadata
        self._clock = clock
        plain = PlainFetch(self._read_again, self._encode)
        self._steady = SteadyFetches(sessions, purgatories, reader, clock, plain)

    def handlers(self) -> Mapping[ApiKey, Handler]:
        """The handlers by API key."""
        return {ApiKey.FETCH: self._fetch}

    @in_slices
    def _fetch(self, call: Call) -> Steps[Result | Awaitable[Result]]:
        request: FetchRequest = call.body
        params = self._params(call, request)
        snapshot, terms = self._metadata.snapshot, _terms(call, params)
        wanted = yield from translated(
            call, session_request, request, params.version, snapshot, terms
        )
        context = self._sessions.open(wanted, self._clock.steady_ms())
        if isinstance(context, ErrorCode):
            return _frame(call, FetchResponse([], context))
        if params.reader.is_follower and context.session is not None:
            self._steady.learn(call, params, wanted, context.session)
        purgatory = (
            self._purgatories.follower_fetches
            if params.reader.is_follower
            else self._purgatories.consumer_fetches
        )
        checks = purgatory.checks
        result = yield from self._reader.read(params, context.partitions, is_first=True)
        if (
            result.size >= params.min_bytes
            or result.is_urgent
            or request.max_wait_ms <= 0
            or (context.session is None and not result.fetched)
        ):
            return self._respond(call, params, context, result.fetched)
        operation = self._reader.delayed(params, context)
        # Others are served while a fetch reads, and the read itself notes a follower's progress.
        is_incomplete = result.size == 0 and purgatory.checks == checks
        finished = self._purgatories.try_complete_else_watch(
            purgatory, operation, request.max_wait_ms, is_incomplete=is_incomplete
        )
        if finished is None:
            return self._read_again(call, params, context)
        return Delayed(finished, partial(self._read_again, call, params, context))

    @in_slices
    def _read_again(
        self, call: Call, params: FetchParams, context: FetchContext
    ) -> Steps[Result | Awaitable[Result]]:
        result = yield from self._reader.read(params, context.partitions, is_first=False)
        return self._respond(call, params, context, result.fetched)

    def _params(self, call: Call, request: FetchRequest) -> FetchParams:
        version = call.header.api_version
        max_bytes = min(request.max_bytes, self._max_bytes)
        allowed = self._quotas.fetch_bytes_max(call)
        if allowed is not None:
            max_bytes = min(max_bytes, allowed)
        is_movable = version >= _FIRST_FROM_ANY_REPLICA
        return FetchParams(
            Reader(
                request.replica_id,
                request.replica_epoch,
                read_committed=request.isolation_level == _READ_COMMITTED,
                leader_only=not is_movable,
            ),
            version,
            call.connection.listener,
            request.rack_id if is_movable and self._selects_by_rack else "",
            min(request.min_bytes, max_bytes),
            max_bytes,
            None if call.access is None else _may_read(call.access, request.replica_id),
        )

    def _respond(
        self, call: Call, params: FetchParams, context: FetchContext, fetched: Fetched
    ) -> Result | Awaitable[Result]:
        size = sum(entry.records.size for _, entry in fetched if isinstance(entry.records, Slice))
        throttle_ms = self._quotas.fetch_ms(call, size)
        if throttle_ms:
            # The client waits, and asks for the same again.
            empty = FetchResponse([], *context.throttled_response(), throttle_ms)
            return _frame(call, empty)
        begin, shown = context.response(fetched, self._clock.steady_ms())
        self._reader.count(params, shown)
        if len(shown) > _MANY:
            return aside(self._encode, call, begin, shown)
        return self._encode(call, begin, shown)

    def _encode(self, call: Call, begin: SessionResponse, shown: Fetched) -> EncodedResponse:
        hinted = {
            entry.current_leader.leader_id for _, entry in shown if entry.current_leader is not None
        }
        response = FetchResponse(
            response_topics(shown),
            begin.error,
            begin.session_id,
            node_endpoints=node_endpoints(
                self._metadata.snapshot, hinted, call.connection.listener
            ),
        )
        return _frame(call, response)


def _may_read(access: Access, replica_id: int) -> Callable[[str], bool]:
    """Consumers need Read on the topic, followers ClusterAction for any topic (SEC-9)."""
    if replica_id < 0:
        return access.may_on_topic(AclOperation.READ)
    is_follower = access.may_on_cluster(AclOperation.CLUSTER_ACTION)
    return lambda _: is_follower


def _terms(call: Call, params: FetchParams) -> Hashable:
    """The parts of a request, besides its partitions, that its results depend on."""
    access = call.access
    grants = None if access is None else (access.authorizer.generation, *access[1:])
    return params.reader, params.version, params.rack, grants


def _frame(call: Call, response: FetchResponse) -> EncodedResponse:
    # All placeholders are slices of log files, which the kernel sends without a copy.
    parts = cast(list[Part], encode_fetch_response(call.header, response))
    codes = [entry.error_code for topic in response.topics for entry in topic.partitions]
    return EncodedResponse(parts, [response.error_code, *codes])


def session_request(
    request: FetchRequest, version: int, snapshot: ClusterSnapshot, terms: Hashable
) -> SessionRequest:
    """The request's partitions and session, with the names of topic ids that are known.

    As in Kafka, the last of several entries for a partition counts, in the place of the first.
    """
    partitions: dict[SessionKey, RequestedPartition] = {}
    for topic in request.topics:
        name, topic_id = topic.name, topic.topic_id
        if name is None and topic_id is not None:
            name = snapshot.topic_name(topic_id)
        for each in topic.partitions:
            requested = RequestedPartition(
                None if name is None else TopicPartition(name, each.partition),
                topic_id,
                each.partition,
                FetchPosition(
                    each.fetch_offset, each.current_leader_epoch, each.last_fetched_epoch
                ),
                each.partition_max_bytes,
                each.log_start_offset,
            )
            partitions[requested.key] = requested
    forgotten: list[SessionKey] = [
        (topic.topic_id or topic.name or "", index)
        for topic in request.forgotten_topics
        for index in topic.partitions
    ]
    return SessionRequest(
        request.session_id,
        request.session_epoch,
        list(partitions.values()),
        forgotten,
        by_id=version >= _FIRST_BY_ID,
        is_follower=request.replica_id >= 0,
        terms=terms,
    )


def response_topics(shown: Fetched) -> list[FetchTopicResponse]:
    """Group the entries by topic, in the order in which topics first appear."""
    topics: dict[tuple[str | None, uuid.UUID | None], list[FetchPartitionResponse]] = {}
    for requested, entry in shown:
        name = requested.name.topic if requested.name is not None else None
        topics.setdefault((name, requested.topic_id), []).append(entry)
    return [
        FetchTopicResponse(name, topic_id, entries) for (name, topic_id), entries in topics.items()
    ]


def node_endpoints(
    snapshot: ClusterSnapshot, brokers: Iterable[int], listener: str
) -> list[NodeEndpoint]:
    """The endpoints of the leaders that a response names as hints."""
    nodes = (snapshot.node(broker, listener) for broker in brokers)
    return [NodeEndpoint(*node) for node in nodes if node is not None]
