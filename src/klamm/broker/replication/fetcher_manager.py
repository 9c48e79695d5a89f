"""The replica fetcher manager: one fetcher task for each leader and fetcher index (REPL-1).

`ReplicaFetcher` decides what to fetch and what follows from a response. This module owns the
connections, the thread that truncates logs, and the waiting between fetches.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import groupby
from typing import Final, NamedTuple

from klamm.broker.clock import Clock
from klamm.broker.fetch.session_handler import (
    FetchRequestData,
    ForgottenPartition,
    PartitionToFetch,
)
from klamm.broker.identity import BrokerIdentity
from klamm.broker.log.errors import StorageError
from klamm.broker.log.log import Log
from klamm.broker.log.manager import LogManager
from klamm.broker.metadata.cache import MetadataCache
from klamm.broker.replication.fetcher import (
    FetchEffects,
    ListOffsetsQuery,
    ListOffsetsResult,
    ReplicaFetcher,
    Truncation,
    fetcher_index,
)
from klamm.broker.replication.throttle import ReplicationThrottle
from klamm.config.broker import BrokerConfig
from klamm.errors import UnavailableError
from klamm.metrics.meters import Meter
from klamm.names import TopicPartition
from klamm.net.connection import ClientConnection
from klamm.net.secure import SecureClient
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import decode_response
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.fast.fetch import (
    FetchPartitionRequest,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    encode_fetch_request,
)
from klamm.protocol.fast.steady_fetch import SteadyFetchFormat

log = logging.getLogger("klamm.broker.replication.fetcher_manager")

_FETCH_BY_ID: Final = 17
_FETCH_BY_NAME: Final = 12
_LIST_OFFSETS: Final = 9
_READ_UNCOMMITTED: Final = 0

OnEffects = Callable[[FetchEffects], None]
LoopKey = tuple[int, int]


class FetcherContext(NamedTuple):
    """What all fetchers of a broker share."""

    config: BrokerConfig
    identity: BrokerIdentity
    metadata: MetadataCache
    clock: Clock
    throttle: ReplicationThrottle
    secure: SecureClient


class ReplicaFetcherManager:
    """All fetcher tasks of a broker. A task lives while it has partitions to fetch."""

    def __init__(
        self,
        config: BrokerConfig,
        identity: BrokerIdentity,
        metadata: MetadataCache,
        logs: LogManager,
        on_effects: OnEffects,
        clock: Clock,
    ) -> None:
        self.throttle = ReplicationThrottle()
        secure = SecureClient(config.channel_security(config.inter_broker_listener_name))
        self._context = FetcherContext(config, identity, metadata, clock, self.throttle, secure)
        self._logs = logs
        self._on_effects = on_effects
        self._loops: dict[LoopKey, _Loop] = {}
        self._loop_of: dict[TopicPartition, _Loop] = {}
        self._truncating: dict[TopicPartition, asyncio.Task[None]] = {}
        self._failed: set[TopicPartition] = set()

    def add(self, name: TopicPartition, replica: Log, leader: int, leader_epoch: int) -> None:
        """Fetch a partition from its leader, after a truncation if its log needs one."""
        key = leader, fetcher_index(name, self._context.config.num_replica_fetchers)
        loop = self._loops.get(key)
        if loop is None:
            loop = self._loops[key] = _Loop(leader, self._context, self._take, self._ended)
        self._loop_of[name] = loop
        self._failed.discard(name)
        loop.logs[name] = replica
        truncation = loop.fetcher.add(name, replica.topic_id, replica, leader_epoch)
        if truncation is not None:
            self._start_truncating(loop, [truncation])
        loop.wake()

    def remove(self, name: TopicPartition) -> None:
        """Stop fetching a partition."""
        self._failed.discard(name)
        loop = self._loop_of.pop(name, None)
        if loop is not None:
            loop.fetcher.remove(name)
            loop.logs.pop(name, None)
            if not loop.logs:
                loop.wake()

    async def wait_truncated(self, name: TopicPartition) -> None:
        """Wait until no truncation of the partition's log is under way."""
        while (task := self._truncating.get(name)) is not None:
            await asyncio.wait([task])

    def lags(self) -> Iterator[tuple[str, TopicPartition, int]]:
        """The lag of each fetched partition, with its fetcher's name as Kafka spells it."""
        for (leader, index), loop in self._loops.items():
            for name, lag in loop.fetcher.lags():
                yield f"ReplicaFetcherThread-{index}-{leader}", name, lag

    @property
    def failed_count(self) -> int:
        """The number of followed partitions whose fetching has failed for good."""
        return len(self._failed)

    @property
    def dead_count(self) -> int:
        """The number of fetcher tasks that have ended although they have partitions to fetch."""
        return sum(loop.is_dead for loop in self._loops.values())

    def min_fetch_rate(self) -> float:
        """The smallest one-minute rate of fetch requests among the fetchers; 0 without fetchers."""
        return min((loop.fetches.rates()[0] for loop in self._loops.values()), default=0.0)

    def close(self) -> None:
        """Cancel all fetcher tasks."""
        for loop in self._loops.values():
            loop.close()

    def _take(self, loop: "_Loop", effects: FetchEffects) -> None:
        if effects.truncations:
            self._start_truncating(loop, effects.truncations)
        if effects.stopped:
            self._failed.update(effects.stopped)
            # In one line: when a leader fails, these may be thousands.
            stopped = ", ".join(map(str, effects.stopped))
            log.warning("no longer fetched from broker %s: %s", loop.leader, stopped)
        self._on_effects(effects)

    def _start_truncating(self, loop: "_Loop", truncations: list[Truncation]) -> None:
        """Truncate logs in another thread; fetch their partitions again afterwards."""
        work = [(loop.logs[each.name], each) for each in truncations]
        task = asyncio.create_task(self._truncate(loop, work))
        for each in truncations:
            self._truncating[each.name] = task

    async def _truncate(self, loop: "_Loop", work: list[tuple[Log, Truncation]]) -> None:
        def truncate() -> None:
            now_ms = self._context.clock.wall_ms()
            for replica, truncation in work:
                name, offset = truncation.name, truncation.offset
                high_watermark = replica.high_watermark
                log.info(
                    "%s: truncating to offset %s; the high watermark is %s",
                    name,
                    offset,
                    high_watermark,
                )
                if offset < high_watermark:
                    log.warning("%s: committed records are truncated", name)
                truncation.carry_out(replica, now_ms)
            self._logs.checkpoint_recovery_points()

        try:
            await asyncio.to_thread(truncate)
        except StorageError as error:
            log.error("truncation failed: %s", error)
        finally:
            for _, truncation in work:
                self._truncating.pop(truncation.name, None)
                loop.fetcher.on_truncated(truncation)
            self._on_effects(FetchEffects(moved=[truncation.name for _, truncation in work]))
            loop.wake()

    def _ended(self, loop: "_Loop") -> None:
        self._loops = {key: each for key, each in self._loops.items() if each is not loop}


class _Loop:
    """Fetches from one leader until it has no partitions left."""

    def __init__(
        self,
        leader: int,
        context: FetcherContext,
        on_effects: Callable[["_Loop", FetchEffects], None],
        on_end: Callable[["_Loop"], None],
    ) -> None:
        config = context.config
        self.leader = leader
        self.fetcher = ReplicaFetcher(
            backoff_ms=config.replica_fetch_backoff_ms, throttle=context.throttle
        )
        self.logs: dict[TopicPartition, Log] = {}
        self.fetches = Meter(lambda: context.clock.steady_ms() / 1000)
        self._context = context
        self._clock = context.clock
        self._on_effects = on_effects
        self._on_end = on_end
        self._changed = asyncio.Event()
        self._connection = ClientConnection(
            f"broker-{context.identity.broker_id}-fetcher-{leader}",
            config.replica_socket_timeout_ms / 1000,
            config.socket_connection_setup_timeout_ms / 1000,
            config.socket_connection_setup_timeout_max_ms / 1000,
            context.secure,
            reuses_buffer=True,
        )
        #: What the fetches of a session have in common, and what that depends on.
        self._format: SteadyFetchFormat | None = None
        self._terms: tuple[int, int] | None = None
        self._task = asyncio.create_task(self._run(), name=f"fetcher of broker {leader}")

    @property
    def is_dead(self) -> bool:
        return self._task.done()

    def wake(self) -> None:
        """Decide anew on the next fetch, because partitions have changed."""
        self._changed.set()

    def close(self) -> None:
        self._task.cancel()
        self._connection.close()

    async def _run(self) -> None:
        while self.logs:
            try:
                await self._step()
            except UnavailableError as error:
                log.info("leader %s: %s", self.leader, error)
                self.fetcher.on_disconnect(self._clock.steady_ms())
            except Exception:
                log.exception("fetching from broker %s failed", self.leader)
                self.fetcher.on_disconnect(self._clock.steady_ms())
        self._connection.close()
        self._on_end(self)

    async def _step(self) -> None:
        self._changed.clear()
        query = self.fetcher.next_list_offsets()
        if query is not None:
            results = await self._list_offsets(query)
            now_ms = self._clock.steady_ms()
            self._on_effects(self, self.fetcher.on_list_offsets(query, results, now_ms))
            return
        request = self.fetcher.next_fetch(self._clock.steady_ms())
        if request is None:
            await self._pause()
            return
        self.fetches.mark()
        response = await self._fetch(request)
        self._on_effects(self, self.fetcher.on_response(response, self._clock.steady_ms()))

    async def _pause(self) -> None:
        """Wait until partitions change, or until the next attempt is due."""
        now_ms = self._clock.steady_ms()
        at_ms = self.fetcher.next_attempt_ms(now_ms)
        timeout_s = None if at_ms is None else max(at_ms - now_ms, 1) / 1000
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            pass

    def _leader_address(self) -> tuple[str, int]:
        listener = self._context.config.inter_broker_listener_name
        node = self._context.metadata.snapshot.node(self.leader, listener)
        if node is None:
            raise UnavailableError(f"broker {self.leader} is not known to be alive")
        return node.host, node.port

    async def _fetch(self, request: FetchRequestData) -> FetchResponse:
        response: FetchResponse = await self._connection.exchange(
            *self._leader_address(),
            ApiKey.FETCH,
            _FETCH_BY_ID if request.by_id else _FETCH_BY_NAME,
            partial(self._encode, request),
            decode_response,
        )
        return response

    def _encode(self, request: FetchRequestData, header: RequestHeader) -> list[bytes]:
        topics = _fetch_topics(request.partitions, self._context.config.replica_fetch_max_bytes)
        terms = request.session_id, self._context.identity.broker_epoch
        is_steady = request.by_id and not request.is_full and not request.forgotten
        if is_steady and self._format is not None and terms == self._terms:
            return [self._format.request(header.correlation_id, request.session_epoch, topics)]
        plain = self._fetch_request(request, topics)
        if is_steady:
            self._format, self._terms = SteadyFetchFormat(header, plain), terms
        return [encode_fetch_request(header, plain)]

    def _fetch_request(self, request: FetchRequestData, topics: list[FetchTopic]) -> FetchRequest:
        config, identity = self._context.config, self._context.identity
        return FetchRequest(
            identity.broker_id,
            identity.broker_epoch,
            config.replica_fetch_wait_max_ms,
            config.replica_fetch_min_bytes,
            config.replica_fetch_response_max_bytes,
            _READ_UNCOMMITTED,
            request.session_id,
            request.session_epoch,
            topics,
            _forgotten_topics(request.forgotten),
            "",
        )

    async def _list_offsets(
        self, query: ListOffsetsQuery
    ) -> dict[TopicPartition, ListOffsetsResult]:
        response = await self._connection.send(
            *self._leader_address(),
            ApiKey.LIST_OFFSETS,
            _LIST_OFFSETS,
            {
                "replica_id": self._context.identity.broker_id,
                "isolation_level": 0,
                "topics": [
                    {
                        "name": topic,
                        "partitions": [
                            {
                                "partition_index": name.partition,
                                "current_leader_epoch": query.leader_epochs[name],
                                "timestamp": query.timestamp,
                            }
                            for name in names
                        ],
                    }
                    for topic, names in groupby(
                        sorted(query.leader_epochs), key=lambda name: name.topic
                    )
                ],
            },
        )
        return {
            TopicPartition(topic.name, int(each.partition_index)): ListOffsetsResult(
                int(each.error_code), int(each.offset)
            )
            for topic in response.topics
            for each in topic.partitions
        }


def _fetch_topics(
    partitions: Mapping[TopicPartition, PartitionToFetch], max_bytes: int
) -> list[FetchTopic]:
    topics: dict[tuple[str, uuid.UUID | None], list[FetchPartitionRequest]] = {}
    for name, (topic_id, position, start_offset) in partitions.items():
        topics.setdefault((name.topic, topic_id), []).append(
            FetchPartitionRequest(
                name.partition,
                position.current_leader_epoch,
                position.offset,
                position.last_fetched_epoch,
                start_offset,
                max_bytes,
            )
        )
    return [FetchTopic(*topic, entries) for topic, entries in topics.items()]


def _forgotten_topics(forgotten: Iterable[ForgottenPartition]) -> list[ForgottenTopic]:
    topics: dict[tuple[str, uuid.UUID | None], list[int]] = {}
    for name, topic_id in forgotten:
        topics.setdefault((name.topic, topic_id), []).append(name.partition)
    return [ForgottenTopic(*topic, indexes) for topic, indexes in topics.items()]
