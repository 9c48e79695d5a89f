"""The fetches of followers that keep up, served without the detours of other fetches (ADR 25).

For each record that is produced with acks=all, each follower sends a fetch, and waits with the next
for another record. Such a fetch differs from the one before in its positions alone. `SteadyFetch`
remembers what the one before has shown: the bytes that they share, the session, and the replicas
that are read. It takes a request only if nothing has changed that any check of a fetch looks at,
and before it has changed anything itself. `FetchHandlers` serves all others, and those after which
this one has nothing to say.

The results are those of `FetchHandlers`, byte by byte; a test compares the two.
"""

import uuid
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple, TypeAlias, cast

from klamm.broker.clock import Clock
from klamm.broker.delayed.purgatory import Purgatories
from klamm.broker.fetch.reader import FetchParams, FetchReader
from klamm.broker.fetch.sessions import (
    CachedPartition,
    FetchContext,
    Fetched,
    FetchSession,
    FetchSessions,
    SessionRequest,
    SessionResponse,
)
from klamm.broker.handlers.dispatch import Call, EncodedResponse, Handler, HandlerResult, Result
from klamm.broker.log.errors import CorruptLogError, OffsetOutOfRangeError, StorageError
from klamm.broker.log.log import Log
from klamm.broker.log.results import Slice
from klamm.broker.replication.partition import Partition, Role
from klamm.broker.replication.replica_log import FetchPosition
from klamm.names import TopicPartition
from klamm.net.responses import Part
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode
from klamm.protocol.fast.fetch import FIRST_WITH_TOPIC_IDS, FetchPartitionResponse
from klamm.protocol.fast.steady_fetch import RESULTS_MAX, SteadyFetchFormat
from klamm.slices import Delayed


class _Replica(NamedTuple):
    """What was read for a partition of the session, and checked when it was first read."""

    name: TopicPartition
    partition: Partition
    log: Log


class _Named(NamedTuple):
    """A partition that a request names, with what it says about it."""

    cached: CachedPartition
    position: FetchPosition
    start_offset: int
    max_bytes: int


#: The partitions to read, in their order.
_Rows: TypeAlias = list[tuple[CachedPartition, _Replica]]


class PlainFetch(NamedTuple):
    """What serves a fetch that is not steady any more, from its second read on."""

    read_again: Callable[[Call, FetchParams, FetchContext], HandlerResult]
    encode: Callable[[Call, SessionResponse, Fetched], EncodedResponse]


class SteadyFetches:
    """The parts of a broker that steady fetches need."""

    def __init__(
        self,
        sessions: FetchSessions,
        purgatories: Purgatories,
        reader: FetchReader,
        clock: Clock,
        plain: PlainFetch,
    ) -> None:
        self.replicas = reader.replicas
        self.meters = reader.meters
        self.sessions = sessions
        self.purgatories = purgatories
        self.reader = reader
        self.clock = clock
        self.plain = plain

    def learn(
        self, call: Call, params: FetchParams, request: SessionRequest, session: FetchSession
    ) -> None:
        """Prepare for more fetches like this one, which a follower has sent with its session."""
        known = call.connection.shortcut
        if isinstance(known, SteadyFetch) and known.session is session:
            known.forget()
        elif (
            call.access is None
            and call.header.api_version >= FIRST_WITH_TOPIC_IDS
            and params.min_bytes == 1
            and not params.reader.read_committed
            and call.body.max_wait_ms > 0
        ):
            call.connection.shortcut = SteadyFetch(self, call, params, request, session)


class SteadyFetch:
    """Serves the next fetches of a follower's connection."""

    __slots__ = (
        "_cached",
        "_call",
        "_format",
        "_params",
        "_parts",
        "_replicas",
        "_request",
        "_terms",
        "session",
    )

    def __init__(
        self,
        parts: SteadyFetches,
        call: Call,
        params: FetchParams,
        request: SessionRequest,
        session: FetchSession,
    ) -> None:
        self.session = session
        self._parts = parts
        self._call = call._replace(frame=memoryview(b""))
        self._params = params
        self._request = request._replace(partitions=[], forgotten=())
        self._terms = session.terms
        self._format = SteadyFetchFormat(call.header, call.body)
        #: The session's partitions by topic id and number, as requests name them.
        self._cached: dict[tuple[bytes, int], CachedPartition] = {}
        self._replicas: dict[CachedPartition, _Replica] = {}

    def forget(self) -> None:
        """Check everything anew: a request of the session was served in the plain way."""
        self._cached.clear()
        self._replicas.clear()

    def take(self, frame: memoryview, arrived: int) -> tuple[Call, Handler] | None:
        """The request with what serves it; None if it has to be served in the plain way."""
        whole, session = frame.obj, self.session
        if not isinstance(whole, bytes) or len(whole) != len(frame):
            return None
        request = self._format.read(whole)
        if (
            request is None
            or request.session_epoch != session.epoch
            or session.terms is not self._terms
            or not self._parts.sessions.has(session)
        ):
            return None
        named = []
        for topic_id, fields in request.partitions:
            number, leader_epoch, offset, last_epoch, start_offset, max_bytes, _ = fields
            cached = self._cached.get((topic_id, number)) or self._find(topic_id, number)
            if cached is None or cached.leader_epoch != leader_epoch:
                return None
            position = FetchPosition(offset, leader_epoch, last_epoch)
            named.append(_Named(cached, position, start_offset, max_bytes))
        positions = {each.cached: each.position for each in named}
        rows = self._rows(session.marked_with(positions), positions)
        if rows is None:
            return None
        _, header, body, _, meter, _, _, _ = self._call
        header = RequestHeader(
            header.api_key, header.api_version, request.correlation_id, header.client_id
        )
        call = Call(self._call.connection, header, body, frame, meter, arrived, arrived)
        return call, partial(self._fetch, named, rows)

    def _find(self, topic_id: bytes, number: int) -> CachedPartition | None:
        cached = self.session.partitions.get((uuid.UUID(bytes=topic_id), number))
        if cached is not None:
            self._cached[topic_id, number] = cached
        return cached

    def _rows(
        self, marked: list[CachedPartition], positions: dict[CachedPartition, FetchPosition]
    ) -> _Rows | None:
        """The replicas of the partitions; None if a check of one may fail."""
        rows = []
        for cached in marked:
            replica = self._replicas.get(cached) or self._meet(cached)
            position = positions.get(cached) or cached.requested.position
            if replica is None or not self._is_sound(cached, replica, position):
                return None
            rows.append((cached, replica))
        return rows

    def _meet(self, cached: CachedPartition) -> _Replica | None:
        requested = cached.requested
        if requested.name is None or requested.topic_id is None:
            return None
        partition = self._parts.replicas.find(requested.name)
        if isinstance(partition, ErrorCode) or not isinstance(partition.log, Log):
            return None
        if partition.log.topic_id != requested.topic_id:
            return None
        replica = _Replica(requested.name, partition, partition.log)
        self._replicas[cached] = replica
        return replica

    def _is_sound(
        self, cached: CachedPartition, replica: _Replica, position: FetchPosition
    ) -> bool:
        """Whether the checks of a fetch are certain to pass for a follower in the ISR."""
        name, partition, log = replica
        reader = self._params.reader
        follower = partition.followers.get(reader.replica_id)
        return (
            cached.watched is not None
            and self._parts.replicas.find(name) is partition
            and partition.log is log
            and partition.role is Role.LEADER
            and partition.leader_epoch == position.current_leader_epoch
            and reader.replica_id in partition.isr
            and follower is not None
            and (reader.broker_epoch < 0 or follower.broker_epoch <= reader.broker_epoch)
            and position.last_fetched_epoch in (-1, log.epochs.latest)
            and log.start_offset <= position.offset <= log.end_offset
            and log.directory.is_online
        )

    def _fetch(self, named: list[_Named], rows: _Rows, call: Call) -> HandlerResult:
        parts, session = self._parts, self.session
        parts.sessions.use(session, parts.clock.steady_ms())
        for cached, position, start_offset, max_bytes in named:
            session.mark(cached)
            requested = cached.requested
            requested.position = position
            requested.start_offset = start_offset
            requested.max_bytes = max_bytes
        context = FetchContext(parts.sessions, self._request, session, session.last_used_ms)
        again = partial(self._read_again, call, context)
        fetched = self._read(rows, is_first=True)
        if fetched is None:
            return again()
        if any(entry.records for entry in fetched):
            return self._respond(call, rows, fetched)
        # Nothing has been appended since: all of this is one step of the event loop.
        finished = parts.purgatories.try_complete_else_watch(
            parts.purgatories.follower_fetches,
            parts.reader.delayed_session(self._params, session),
            call.body.max_wait_ms,
            is_incomplete=True,
        )
        assert finished is not None, "it is incomplete"
        return Delayed(finished, again)

    def _read(self, rows: _Rows, *, is_first: bool) -> list[FetchPartitionResponse] | None:
        """The results of the partitions; None if a log cannot be read."""
        parts, reader = self._parts, self._params.reader
        entries = []
        left, is_empty = self._params.max_bytes, True
        for cached, (name, partition, log) in rows:
            requested = cached.requested
            offset = requested.position.offset
            end_offset, high_watermark = log.end_offset, log.high_watermark
            stable, start_offset = log.last_stable_offset, log.start_offset
            if is_first:
                parts.meters.topic(name.topic).fetch_requests += 1
                requested.follower = partition.followers[reader.replica_id]
                parts.replicas.on_follower_fetch(
                    partition, reader, offset, requested.start_offset, end_offset
                )
            is_at_end = offset == end_offset
            requested.is_settled = is_at_end and log.high_watermark == high_watermark
            records: Slice | bytes = b""
            if not is_at_end:
                try:
                    found = log.read(
                        offset,
                        min(requested.max_bytes, left),
                        end_offset,
                        at_least_one=is_empty,
                    )
                except (OffsetOutOfRangeError, StorageError, CorruptLogError):
                    return None
                if found.size:
                    records, is_empty = found, False
                    left = max(left - found.size, 0)
            entries.append(
                FetchPartitionResponse(
                    name.partition, ErrorCode.NONE, high_watermark, stable, start_offset, records
                )
            )
        return entries

    def _read_again(self, call: Call, context: FetchContext) -> HandlerResult:
        """Respond to a fetch that has waited."""
        if context.is_current:
            rows = self._rows(self.session.marked_with({}), {})
            fetched = None if rows is None else self._read(rows, is_first=False)
            if rows is not None and fetched is not None:
                return self._respond(call, rows, fetched)
        return self._parts.plain.read_again(call, self._params, context)

    def _respond(
        self, call: Call, rows: _Rows, fetched: list[FetchPartitionResponse]
    ) -> Result | Awaitable[Result]:
        session = self.session
        shown = [
            (cached.requested, entry)
            for (cached, _), entry in zip(rows, fetched, strict=True)
            if session.conclude(cached, cached.requested, entry)
        ]
        self._parts.reader.count(self._params, shown)
        topic_id = shown[0][0].topic_id if 0 < len(shown) <= RESULTS_MAX else None
        if topic_id is not None and all(each.topic_id == topic_id for each, _ in shown):
            entries = [
                (entry, entry.records if isinstance(entry.records, Slice) else None)
                for _, entry in shown
            ]
            correlation_id = call.header.correlation_id
            chunks = self._format.response(correlation_id, topic_id.bytes, entries)
            return EncodedResponse(cast(list[Part], chunks), [ErrorCode.NONE] * (len(shown) + 1))
        begin = SessionResponse(ErrorCode.NONE, session.id)
        return self._parts.plain.encode(call, begin, shown)
