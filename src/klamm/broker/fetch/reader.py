"""The reader of fetch requests: it reads each partition and decides whether to respond at once."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

from klamm.broker.clock import Clock
from klamm.broker.delayed.operations import DelayedFetch
from klamm.broker.fetch.sessions import (
    FetchContext,
    Fetched,
    FetchSession,
    RequestedPartition,
)
from klamm.broker.log.errors import CorruptLogError, OffsetOutOfRangeError, StorageError
from klamm.broker.log.log import Log
from klamm.broker.log.results import Slice
from klamm.broker.metadata.cache import MetadataCache
from klamm.broker.meters import BrokerMeters
from klamm.broker.replication.manager import ReplicaManager
from klamm.broker.replication.partition import Partition
from klamm.broker.replication.replica_log import Reader, ReadView
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode
from klamm.protocol.fast.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchPartitionResponse,
    LeaderHint,
)
from klamm.slices import Steps

log = logging.getLogger("klamm.broker.fetch.reader")

_FIRST_WITH_STORAGE_ERROR: Final = 6
_FIRST_WITH_ZSTD: Final = 10
_FIRST_WITH_PREFERRED_REPLICA: Final = 11
_FIRST_WITH_LEADER_HINTS: Final = 16
_HINTED: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH})


class FetchParams(NamedTuple):
    """The parameters of a fetch request that do not depend on a partition."""

    reader: Reader
    version: int
    listener: str
    #: The consumer's rack; empty if it is unknown or the replica selector does not use it.
    rack: str
    min_bytes: int
    max_bytes: int
    #: Whether a topic may be read; None if every topic may.
    may_read: Callable[[str], bool] | None = None


class FetchResult(NamedTuple):
    """The result of reading all partitions once."""

    fetched: Fetched
    size: int
    #: The response must not be delayed: it has an error, a divergence or a preferred replica.
    is_urgent: bool


class FetchReader:
    """Reads the partitions of a fetch in the order of the request."""

    def __init__(
        self,
        replicas: ReplicaManager,
        metadata: MetadataCache,
        meters: BrokerMeters,
        clock: Clock,
    ) -> None:
        self.replicas = replicas
        self._metadata = metadata
        self.meters = meters
        self._clock = clock

    def read(
        self, params: FetchParams, partitions: Iterable[RequestedPartition], *, is_first: bool
    ) -> Steps[FetchResult]:
        """Read all partitions; on the first read of a request, record a follower's progress."""
        fetched: Fetched = []
        size, left, is_urgent = 0, params.max_bytes, False
        for requested in partitions:
            entry = self._read(params, requested, left, size == 0, is_first)
            records = entry.records
            if isinstance(records, Slice):
                size += records.size
                left = max(left - records.size, 0)
            elif entry.error_code or entry.diverging_epoch or entry.preferred_read_replica >= 0:
                is_urgent = True
            fetched.append((requested, entry))
            yield None
        return FetchResult(fetched, size, is_urgent)

    def count(self, params: FetchParams, fetched: Fetched) -> None:
        """Count the bytes that are about to be sent."""
        for requested, entry in fetched:
            if isinstance(entry.records, Slice) and requested.name is not None:
                size = entry.records.size
                if params.reader.is_follower:
                    self._count_replicated(requested.name, size, params.reader.replica_id)
                else:
                    self.meters.topic(requested.name.topic).bytes_out += size

    def delayed(self, params: FetchParams, context: FetchContext) -> DelayedFetch:
        """The delayed operation of a fetch that has found less than its `min_bytes`.

        Of a session it begins with the partitions that are marked now, because others are served
        while a fetch reads: an append to a partition that it did not have to read may have come.
        """
        found = {
            requested.name: requested
            for requested in context.partitions
            if requested.name is not None
        }
        return self._delayed(params, found, context.session)

    def delayed_session(self, params: FetchParams, session: FetchSession) -> DelayedFetch:
        """The same if the session is known to have nothing to read."""
        return self._delayed(params, {}, session)

    def _delayed(
        self,
        params: FetchParams,
        found: Mapping[TopicPartition, RequestedPartition],
        session: FetchSession | None,
    ) -> DelayedFetch:
        return DelayedFetch(
            params.reader,
            found,
            params.min_bytes,
            self.replicas.find,
            lambda partition: self._is_throttled(params.reader, partition),
            session=session,
        )

    # One partition

    def _read(
        self,
        params: FetchParams,
        requested: RequestedPartition,
        left: int,
        at_least_one: bool,
        is_first: bool,
    ) -> FetchPartitionResponse:
        requested.is_settled = False
        name = requested.name or self._resolve(params.reader, requested)
        may_read = params.may_read
        if name is None:
            # What a follower may read does not depend on the topic, and is looked at first.
            is_denied = params.reader.is_follower and may_read is not None and not may_read("")
            error = ErrorCode.UNKNOWN_TOPIC_ID
            if is_denied:
                error = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            return _refused(requested.partition, error)
        if may_read is not None and not may_read(name.topic):
            return _refused(requested.partition, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        partition = self.replicas.find(name)
        if isinstance(partition, ErrorCode):
            return self._failed(params, name, partition, None)
        if is_first:
            self.meters.topic(name.topic).fetch_requests += 1
        error = self._check(params, requested, partition)
        if error:
            return self._failed(params, name, error, partition)
        reader, position = params.reader, requested.position
        view = partition.view(reader, position)
        if view.error:
            return self._failed(params, name, view.error, partition)
        if view.diverging is not None:
            return _entry(name, view, diverging_epoch=EpochEndOffset(*view.diverging))
        if reader.is_follower:
            requested.follower = partition.followers[reader.replica_id]
            if is_first:
                self.replicas.on_follower_fetch(
                    partition, reader, position.offset, requested.start_offset, view.end_offset
                )
        requested.is_settled = self._is_settled(params, requested, partition, view)
        if reader.is_follower:
            if position.offset >= view.readable_end or self._is_throttled(reader, partition):
                return _entry(name, view)
        elif params.rack:
            preferred = partition.preferred_read_replica(
                position.offset, params.rack, self._metadata.snapshot.racks(params.listener)
            )
            if preferred is not None:
                return _entry(name, view, preferred_read_replica=preferred)
        try:
            return self._read_log(
                params,
                name,
                partition,
                view,
                requested,
                min(requested.max_bytes, left),
                at_least_one,
            )
        except OffsetOutOfRangeError:
            return self._failed(params, name, ErrorCode.OFFSET_OUT_OF_RANGE, partition)
        except StorageError:
            return self._failed(params, name, ErrorCode.KAFKA_STORAGE_ERROR, partition)
        except CorruptLogError as error:
            # As in Kafka, this counts as a failed fetch, unlike the errors that clients cause.
            log.error("%s cannot be read: %s", name, error)
            self.meters.topic(name.topic).failed_fetch_requests += 1
            return self._failed(params, name, ErrorCode.CORRUPT_MESSAGE, partition)

    def _resolve(self, reader: Reader, requested: RequestedPartition) -> TopicPartition | None:
        """The name of a topic id that was unknown when the session was opened."""
        if requested.topic_id is None:
            return None
        topic = self._metadata.snapshot.topic_name(requested.topic_id)
        if topic is None and reader.is_follower:
            # A topic that is queued for deletion leaves the metadata at once, but a reassignment
            # that its deletion waits for has to be completed.
            topic = self.replicas.topic_name(requested.topic_id)
        if topic is not None:
            requested.name = TopicPartition(topic, requested.partition)
        return requested.name

    @staticmethod
    def _is_settled(
        params: FetchParams, requested: RequestedPartition, partition: Partition, view: ReadView
    ) -> bool:
        """Whether later fetches of a session need not read the partition until an event.

        The reader has everything that it may read. A follower outside of the ISR is looked at each
        time, because each of its fetches may bring it in; and so is a consumer that another replica
        may be better for, because that depends on the followers' progress. The follower's own fetch
        may have raised the high watermark, which is then news for the next fetch.
        """
        assert partition.log is not None, "a partition with a view has a log"
        if partition.log.high_watermark != view.high_watermark:
            return False
        if params.rack or requested.position.offset < view.readable_end:
            return False
        return not params.reader.is_follower or params.reader.replica_id in partition.isr

    def _check(
        self, params: FetchParams, requested: RequestedPartition, partition: Partition
    ) -> ErrorCode:
        replica = partition.log
        if (
            requested.topic_id is not None
            and replica is not None
            and replica.topic_id is not None
            and replica.topic_id != requested.topic_id
        ):
            return ErrorCode.INCONSISTENT_TOPIC_ID
        if params.version < _FIRST_WITH_ZSTD:
            config = self.replicas.topics.of(partition.name.topic)
            if config.compression_type == "zstd":
                return ErrorCode.UNSUPPORTED_COMPRESSION_TYPE
        return ErrorCode.NONE

    @staticmethod
    def _read_log(
        params: FetchParams,
        name: TopicPartition,
        partition: Partition,
        view: ReadView,
        requested: RequestedPartition,
        max_bytes: int,
        at_least_one: bool,
    ) -> FetchPartitionResponse:
        replica = partition.log
        assert isinstance(replica, Log), "a partition that can be read has a log on disk"
        offset = requested.position.offset
        found = replica.read(offset, max_bytes, view.readable_end, at_least_one=at_least_one)
        aborted = None
        if params.reader.read_committed:
            aborted = [
                AbortedTransaction(each.producer_id, each.first_offset)
                for each in replica.aborted_transactions_in(offset, found)
            ]
        return FetchPartitionResponse(
            name.partition,
            ErrorCode.NONE,
            view.high_watermark,
            view.last_stable_offset,
            view.start_offset,
            found if found.size else b"",
            aborted,
        )

    def _failed(
        self,
        params: FetchParams,
        name: TopicPartition,
        error: ErrorCode,
        partition: Partition | None,
    ) -> FetchPartitionResponse:
        if params.version < _FIRST_WITH_STORAGE_ERROR and error is ErrorCode.KAFKA_STORAGE_ERROR:
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        hint = None
        if params.version >= _FIRST_WITH_LEADER_HINTS and error in _HINTED:
            hint = leader_hint(self._metadata, name, partition)
        return FetchPartitionResponse(name.partition, error, current_leader=hint)

    # Replication

    def _count_replicated(self, name: TopicPartition, size: int, follower: int) -> None:
        meters = self.meters.topic(name.topic)
        meters.replication_bytes_out += size
        partition = self.replicas.find(name)
        if isinstance(partition, Partition) and follower in partition.adding:
            meters.reassignment_bytes_out += size
        throttle = self.replicas.leader_throttle
        if throttle.covers(*name):
            throttle.record(size, self._clock.steady_ms())

    def _is_throttled(self, reader: Reader, partition: Partition) -> bool:
        """Whether a throttle stops this follower now; in-sync followers are never stopped."""
        throttle = self.replicas.leader_throttle
        return (
            reader.is_follower
            and throttle.covers(*partition.name)
            and reader.replica_id not in partition.isr
            and throttle.is_exceeded(self._clock.steady_ms())
        )


def _refused(partition: int, error: ErrorCode) -> FetchPartitionResponse:
    """What is refused before a log is read has no aborted transactions rather than null."""
    return FetchPartitionResponse(partition, error, aborted_transactions=())


def leader_hint(
    metadata: MetadataCache, name: TopicPartition, partition: Partition | None
) -> LeaderHint:
    """The leader of a partition as the hosted replica or else the cache knows it (EPOCH-2)."""
    if partition is not None and partition.leader >= 0:
        return LeaderHint(partition.leader, partition.leader_epoch)
    known = metadata.snapshot.partition(name)
    return LeaderHint(-1, -1) if known is None else LeaderHint(known.leader, known.leader_epoch)


def _entry(
    name: TopicPartition,
    view: ReadView,
    *,
    diverging_epoch: EpochEndOffset | None = None,
    preferred_read_replica: int = -1,
) -> FetchPartitionResponse:
    """A partition's entry without records."""
    return FetchPartitionResponse(
        name.partition,
        ErrorCode.NONE,
        view.high_watermark,
        view.last_stable_offset,
        view.start_offset,
        preferred_read_replica=preferred_read_replica,
        diverging_epoch=diverging_epoch,
    )
