"""The replica fetcher as a state machine: what to fetch from one leader, append and truncate.

`ReplicaFetcher` decides on the next request and applies responses. Its owner sends the requests and
truncates logs, because that may wait for the disk; appends and high watermarks touch the page cache
only and are applied here. A partition is fetched from its log's end. The response to the first
fetch tells where the log diverges from a new leader's.
"""

import enum
import heapq
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

from klamm.broker.fetch.session_handler import (
    FetchRequestData,
    FetchSessionHandler,
    PartitionToFetch,
)
from klamm.broker.log.epochs import NO_EPOCH, UNDEFINED_END, EpochEnd
from klamm.broker.log.errors import AppendError, StorageError
from klamm.broker.replication.replica_log import FetchPosition, ReplicaLog
from klamm.broker.replication.throttle import ReplicationThrottle
from klamm.names import EARLIEST, LATEST, TopicPartition
from klamm.protocol.codes import ErrorCode
from klamm.protocol.fast.fetch import FetchPartitionResponse, FetchResponse


def fetcher_index(name: TopicPartition, fetchers: int) -> int:
    """The index of the fetcher that takes a partition, among those of one leader."""
    return (31 * crc32(name.topic.encode()) + name.partition) % fetchers


class Truncation(NamedTuple):
    """A truncation that a log needs before its partition is fetched again."""

    name: TopicPartition
    leader_epoch: int
    offset: int
    #: The whole log is deleted and starts again at `offset`.
    is_total: bool = False

    def carry_out(self, log: ReplicaLog, now_ms: int) -> None:
        if self.is_total:
            log.truncate_fully_and_start_at(self.offset, now_ms=now_ms)
        else:
            log.truncate_to(self.offset, now_ms=now_ms)


class ListOffsetsQuery(NamedTuple):
    """A ListOffsets request for partitions whose fetch offset is out of the leader's range."""

    timestamp: int
    leader_epochs: Mapping[TopicPartition, int]


class ListOffsetsResult(NamedTuple):
    """The response of a leader to ListOffsets."""

    error: int
    offset: int = -1


@dataclass(slots=True)
class FetchEffects:
    """The changes by a response, and the actions that the owner of the fetcher has to take."""

    #: The high watermark, the log start or, by a truncation, the log end is another one.
    moved: list[TopicPartition] = field(default_factory=list)
    truncations: list[Truncation] = field(default_factory=list)
    #: These are no longer fetched: their leader epoch is fenced, or their disk has failed.
    stopped: list[TopicPartition] = field(default_factory=list)
    appended: dict[TopicPartition, int] = field(default_factory=dict)


class _Phase(enum.Enum):
    FETCHING = enum.auto()
    TRUNCATING = enum.auto()
    #: The fetch offset is out of range: the leader's end offset is requested.
    ASKING_LATEST = enum.auto()
    #: The fetch offset is not beyond the leader's end: the leader's start offset is requested.
    ASKING_EARLIEST = enum.auto()


@dataclass(slots=True)
class _Followed:
    topic_id: uuid.UUID | None
    log: ReplicaLog
    leader_epoch: int
    phase: _Phase = _Phase.FETCHING
    delayed_until_ms: int = 0
    #: How far the log's end is behind the leader's high watermark; None before a response.
    lag: int | None = None


@dataclass(slots=True)
class _Topic:
    """The name behind a topic id, and how many fetched partitions the topic has."""

    name: str
    partitions: int = 0


class ReplicaFetcher:
    """The state of all partitions that one fetcher fetches from one leader."""

    def __init__(self, *, backoff_ms: int, throttle: ReplicationThrottle | None = None) -> None:
        self._backoff_ms = backoff_ms
        self._throttle = throttle or ReplicationThrottle()
        self._followed: dict[TopicPartition, _Followed] = {}
        self._session = FetchSessionHandler()
        self._topics: dict[uuid.UUID, _Topic] = {}
        self._delayed: list[tuple[int, TopicPartition]] = []
        self._paused_until_ms = 0
        self._held_back: dict[TopicPartition, None] = {}
        #: The partitions that are out of range.
        self._asking: dict[TopicPartition, None] = {}

    def __len__(self) -> int:
        return len(self._followed)

    def __contains__(self, name: TopicPartition) -> bool:
        return name in self._followed

    def lags(self) -> Iterator[tuple[TopicPartition, int]]:
        """The lag of each partition in records, for partitions that have had a response."""
        return (
            (name, followed.lag)
            for name, followed in self._followed.items()
            if followed.lag is not None
        )

    # Partitions

    def add(
        self, name: TopicPartition, topic_id: uuid.UUID | None, log: ReplicaLog, leader_epoch: int
    ) -> Truncation | None:
        """Fetch a partition under `leader_epoch`; return the truncation that it needs first.

        A log without leader epochs cannot be compared with the leader's, so it is truncated to its
        high watermark.
        """
        known = self._followed.get(name)
        if known and known.leader_epoch == leader_epoch:
            return None
        self.remove(name)
        followed = self._followed[name] = _Followed(topic_id, log, leader_epoch)
        if topic_id:
            self._topics.setdefault(topic_id, _Topic(name.topic)).partitions += 1
        if log.epochs.latest == NO_EPOCH and log.end_offset > log.high_watermark:
            return self._truncate(name, followed, log.high_watermark)
        self._want(name, followed)
        return None

    def remove(self, name: TopicPartition) -> bool:
        """Stop fetching a partition; return whether it was fetched."""
        followed = self._followed.pop(name, None)
        if not followed:
            return False
        self._session.drop(name)
        self._held_back.pop(name, None)
        self._asking.pop(name, None)
        if followed.topic_id:
            topic = self._topics[followed.topic_id]
            topic.partitions -= 1
            if not topic.partitions:
                del self._topics[followed.topic_id]
        return True

    # Fetching

    def next_fetch(self, now_ms: int) -> FetchRequestData | None:
        """The next fetch request; None if there is nothing to fetch at the moment."""
        self._end_delays(now_ms)
        if now_ms < self._paused_until_ms:
            return None
        self._apply_throttle(now_ms)
        return self._session.next_request() if self._session.wanted else None

    def next_attempt_ms(self, now_ms: int) -> int | None:
        """When to call `next_fetch` again without a new event; None if there is no need to."""
        if not self._followed:
            return None
        times = [self._delayed[0][0]] if self._delayed else []
        if self._held_back:
            times.append(self._throttle.open_again_ms(now_ms))
        if self._session.wanted or times:
            return max(self._paused_until_ms, min(times, default=now_ms))
        return None

    def on_response(self, response: FetchResponse, now_ms: int) -> FetchEffects:
        """Apply the response to the last fetch."""
        effects = FetchEffects()
        entries = list(self._entries(response))
        is_usable = self._session.on_response(
            response.error_code,
            response.session_id,
            (name for name, _ in entries),
            throttled=response.throttle_time_ms > 0,
        )
        if not is_usable:
            return effects
        asked = self._session.remembered
        for name, entry in entries:
            followed = self._followed.get(name)
            # Since the request was sent, the partition may have been truncated or changed its
            # leader.
            if (
                followed
                and followed.phase is _Phase.FETCHING
                and followed.delayed_until_ms <= now_ms
                and asked[name].position.offset == followed.log.end_offset
                and asked[name].position.current_leader_epoch == followed.leader_epoch
            ):
                self._take(name, followed, entry, effects, now_ms)
        return effects

    def on_disconnect(self, now_ms: int) -> None:
        """Pause: the leader cannot be reached."""
        self._paused_until_ms = now_ms + self._backoff_ms
        self._session.on_failure()

    def on_truncated(self, truncation: Truncation) -> None:
        """Fetch a truncated partition again, from its new end."""
        followed = self._followed.get(truncation.name)
        if followed and followed.leader_epoch == truncation.leader_epoch:
            followed.phase = _Phase.FETCHING
            self._want(truncation.name, followed)

    # Out of range

    def next_list_offsets(self) -> ListOffsetsQuery | None:
        """The next ListOffsets request; None if no partition is out of range."""
        if not self._asking:
            return None
        for phase, timestamp in (
            (_Phase.ASKING_LATEST, LATEST),
            (_Phase.ASKING_EARLIEST, EARLIEST),
        ):
            epochs = {
                name: self._followed[name].leader_epoch
                for name in self._asking
                if self._followed[name].phase is phase
            }
            if epochs:
                return ListOffsetsQuery(timestamp, epochs)
        return None

    def on_list_offsets(
        self,
        query: ListOffsetsQuery,
        results: Mapping[TopicPartition, ListOffsetsResult],
        now_ms: int,
    ) -> FetchEffects:
        """Apply the leader's results for a `ListOffsetsQuery`."""
        effects = FetchEffects()
        phase = _Phase.ASKING_LATEST if query.timestamp == LATEST else _Phase.ASKING_EARLIEST
        for name, leader_epoch in query.leader_epochs.items():
            followed = self._followed.get(name)
            if not followed or followed.phase is not phase or followed.leader_epoch != leader_epoch:
                continue
            result = results.get(name, ListOffsetsResult(ErrorCode.UNKNOWN_SERVER_ERROR))
            del self._asking[name]
            if result.error:
                followed.phase = _Phase.FETCHING
                self._on_error(name, followed, result.error, effects, now_ms)
            elif phase is _Phase.ASKING_LATEST and result.offset >= followed.log.end_offset:
                followed.phase = _Phase.ASKING_EARLIEST
                self._asking[name] = None
            elif phase is _Phase.ASKING_LATEST:
                effects.truncations.append(self._truncate(name, followed, result.offset))
            elif result.offset > followed.log.end_offset:
                truncation = self._truncate(name, followed, result.offset, is_total=True)
                effects.truncations.append(truncation)
            else:
                followed.phase = _Phase.FETCHING
                self._want(name, followed)
        return effects

    # One partition

    def _take(
        self,
        name: TopicPartition,
        followed: _Followed,
        entry: FetchPartitionResponse,
        effects: FetchEffects,
        now_ms: int,
    ) -> None:
        if entry.error_code:
            self._on_error(name, followed, entry.error_code, effects, now_ms)
        elif entry.diverging_epoch:
            offset = truncation_offset(followed.log, EpochEnd(*entry.diverging_epoch))
            effects.truncations.append(self._truncate(name, followed, offset))
        else:
            try:
                self._append(name, followed, entry, effects, now_ms)
            except AppendError:
                # The leader may have truncated while it sent this response; the next may be sound.
                self._delay(name, followed, now_ms)
            except StorageError:
                self._stop(name, effects)

    def _append(
        self,
        name: TopicPartition,
        followed: _Followed,
        entry: FetchPartitionResponse,
        effects: FetchEffects,
        now_ms: int,
    ) -> None:
        log, records = followed.log, entry.records
        assert records is None or isinstance(records, bytes | memoryview)
        taken = log.append_as_follower(records, now_ms=now_ms) if records else 0
        if taken:
            effects.appended[name] = taken
            if self._throttle.covers(*name):
                self._throttle.record(taken, now_ms)
        before = log.high_watermark
        has_moved = log.advance_high_watermark(entry.high_watermark) != before
        if entry.log_start_offset > log.start_offset:
            start_offset = min(entry.log_start_offset, log.high_watermark)
            has_moved = log.raise_start_offset(start_offset) or has_moved
        if has_moved:
            effects.moved.append(name)
        followed.lag = max(0, entry.high_watermark - log.end_offset)
        self._want(name, followed)
        if taken:
            self._session.rotate(name)

    def _on_error(
        self,
        name: TopicPartition,
        followed: _Followed,
        error: int,
        effects: FetchEffects,
        now_ms: int,
    ) -> None:
        if error == ErrorCode.OFFSET_OUT_OF_RANGE:
            followed.phase = _Phase.ASKING_LATEST
            self._asking[name] = None
            self._session.drop(name)
        elif error == ErrorCode.FENCED_LEADER_EPOCH:
            self._stop(name, effects)
        else:
            self._delay(name, followed, now_ms)

    def _truncate(
        self, name: TopicPartition, followed: _Followed, offset: int, *, is_total: bool = False
    ) -> Truncation:
        followed.phase = _Phase.TRUNCATING
        self._session.drop(name)
        return Truncation(name, followed.leader_epoch, offset, is_total)

    def _stop(self, name: TopicPartition, effects: FetchEffects) -> None:
        self.remove(name)
        effects.stopped.append(name)

    def _want(self, name: TopicPartition, followed: _Followed) -> None:
        log = followed.log
        position = FetchPosition(log.end_offset, followed.leader_epoch, log.epochs.latest)
        self._session.want(name, PartitionToFetch(followed.topic_id, position, log.start_offset))

    # Delays

    def _delay(self, name: TopicPartition, followed: _Followed, now_ms: int) -> None:
        followed.delayed_until_ms = now_ms + self._backoff_ms
        self._session.drop(name)
        heapq.heappush(self._delayed, (followed.delayed_until_ms, name))

    def _end_delays(self, now_ms: int) -> None:
        while self._delayed and self._delayed[0][0] <= now_ms:
            until_ms, name = heapq.heappop(self._delayed)
            followed = self._followed.get(name)
            if followed and followed.delayed_until_ms == until_ms:
                self._want(name, followed)

    def _apply_throttle(self, now_ms: int) -> None:
        """Stop fetching throttled partitions that lag while their quota is exceeded."""
        if not self._throttle.is_exceeded(now_ms):
            for name in self._held_back:
                self._want(name, self._followed[name])
            self._held_back.clear()
            return
        for name in tuple(self._session.wanted):
            if self._throttle.covers(*name) and self._followed[name].lag != 0:
                self._held_back[name] = None
                self._session.drop(name)

    def _entries(
        self, response: FetchResponse
    ) -> Iterator[tuple[TopicPartition, FetchPartitionResponse]]:
        for topic in response.topics:
            name = topic.name
            if topic.topic_id and (known := self._topics.get(topic.topic_id)):
                name = known.name
            for entry in topic.partitions:
                yield TopicPartition(name or "", entry.partition), entry


def truncation_offset(log: ReplicaLog, diverging: EpochEnd) -> int:
    """The offset to truncate to when the leader reports a diverging epoch and its end offset.

    If this log has the same epoch, both logs agree up to the smaller of the two end offsets. If it
    only has an older epoch, everything after that epoch goes, and the next fetch compares again.
    """
    own = log.epochs.end_offset_for(diverging.epoch, log.end_offset)
    if own == UNDEFINED_END:
        return min(diverging.end_offset, log.end_offset)
    if own.epoch < diverging.epoch:
        return min(own.end_offset, log.end_offset)
    return min(diverging.end_offset, own.end_offset, log.end_offset)
