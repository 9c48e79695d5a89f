"""Fetch sessions (KIP-227) on the leader's side.

A session remembers the partitions that a client fetches, so that later requests and responses have
only what has changed. Sessions are optional: a broker without a free slot creates none, and a
client whose session is evicted starts again with a full request.

`FetchContext` tells which partitions a request reads, and which results its response contains.
"""

import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from klamm.broker.replication.replica_log import UNKNOWN_OFFSET, FetchPosition
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode
from klamm.protocol.fast.fetch import FetchPartitionResponse

NO_SESSION: Final = 0
#: The epoch of a full request that opens a session.
INITIAL_EPOCH: Final = 0
#: The epoch of a full request without a session.
FINAL_EPOCH: Final = -1
_LAST_EPOCH: Final = 2**31 - 1
_FIRST_INCREMENTAL: Final = 1
#: A session that was unused for this long may be evicted for any other.
EVICTION_MS: Final = 120_000

#: A topic, by id or by name as in the request, and a partition.
SessionKey = tuple[uuid.UUID | str, int]


@dataclass(slots=True)
class RequestedPartition:
    """One partition of a fetch request."""

    #: None for a topic id that is unknown so far; the reader resolves it later.
    name: TopicPartition | None
    topic_id: uuid.UUID | None
    partition: int
    position: FetchPosition
    max_bytes: int
    #: The follower's log start offset; -1 from consumers.
    start_offset: int = UNKNOWN_OFFSET

    @property
    def key(self) -> SessionKey:
        return self.topic_id or (self.name.topic if self.name else ""), self.partition


#: The requested partitions with their results, in the order of the request.
Fetched = list[tuple[RequestedPartition, FetchPartitionResponse]]


class SessionRequest(NamedTuple):
    """The part of a fetch request that concerns sessions."""

    session_id: int
    epoch: int
    partitions: list[RequestedPartition]
    forgotten: Iterable[SessionKey] = ()
    #: Topics are named by id (v13+) and not by name; a session may not mix the two.
    by_id: bool = False
    is_follower: bool = False


class _Cached:
    """A partition of a session: its last request and the offsets of its last response."""

    __slots__ = ("high_watermark", "requested", "start_offset")

    def __init__(self, requested: RequestedPartition) -> None:
        self.requested = requested
        self.high_watermark = UNKNOWN_OFFSET
        self.start_offset = UNKNOWN_OFFSET

    @property
    def leader_epoch(self) -> int:
        """The leader epoch that the client knows."""
        return self.requested.position.current_leader_epoch

    def remember(self, response: FetchPartitionResponse) -> bool:
        """Remember a result; return whether the response has to contain it."""
        is_news = (
            has_records(response)
            or response.error_code != ErrorCode.NONE
            or response.high_watermark != self.high_watermark
            or response.log_start_offset != self.start_offset
            or response.diverging_epoch is not None
            or response.preferred_read_replica >= 0
        )
        # After an error the remembered watermark is one that no result has, so that the partition
        # is in the next response too and the client learns that the error is over. The same after
        # a divergence: the follower truncates and takes no watermark from such a response.
        was_of_use = not response.error_code and response.diverging_epoch is None
        self.high_watermark = response.high_watermark if was_of_use else UNKNOWN_OFFSET
        self.start_offset = response.log_start_offset
        return is_news


def has_records(response: FetchPartitionResponse) -> bool:
    """Whether a partition's result has records."""
    records = response.records
    if isinstance(records, bytes | memoryview):
        return len(records) > 0
    return records is not None and records.size > 0


class FetchSession:
    """The partitions that one client fetches, and the epoch that its next request must have."""

    __slots__ = ("by_id", "created_ms", "epoch", "id", "is_follower", "last_used_ms", "partitions")

    def __init__(self, session_id: int, *, by_id: bool, is_follower: bool, now_ms: int) -> None:
        self.id = session_id
        self.epoch = _FIRST_INCREMENTAL
        self.by_id = by_id
        self.is_follower = is_follower
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        self.partitions: dict[SessionKey, _Cached] = {}

    @property
    def value(self) -> tuple[bool, int, int]:
        """Eviction priority: followers first, then by partition count."""
        return self.is_follower, len(self.partitions), self.id

    def update(self, request: SessionRequest) -> None:
        for requested in request.partitions:
            cached = self.partitions.get(requested.key)
            if cached:
                if requested.position.current_leader_epoch != cached.leader_epoch:
                    # A follower ignores a response of another leader epoch. Without this reset it
                    # would not be sent the high watermark again before that rises.
                    cached.high_watermark = UNKNOWN_OFFSET
                cached.requested = requested
            else:
                self.partitions[requested.key] = _Cached(requested)
        for key in request.forgotten:
            self.partitions.pop(key, None)

    def response(self, fetched: Fetched) -> Fetched:
        """The results that have changed; partitions with records are read last next time."""
        news: Fetched = []
        for requested, result in fetched:
            cached = self.partitions.get(requested.key)
            if cached and cached.remember(result):
                news.append((requested, result))
                if has_records(result):
                    self.partitions[requested.key] = self.partitions.pop(requested.key)
        return news


class SessionResponse(NamedTuple):
    """The error and session id of a fetch response; its partitions are returned separately."""

    error: ErrorCode
    session_id: int


class FetchContext:
    """One fetch request: the partitions to read, and which results to send back."""

    def __init__(
        self, sessions: "FetchSessions", request: SessionRequest, session: FetchSession | None
    ) -> None:
        self._sessions = sessions
        self._request = request
        self._session = session
        self._epoch = session.epoch if session else 0

    @property
    def partitions(self) -> Iterator[RequestedPartition]:
        if self._session:
            return (cached.requested for cached in self._session.partitions.values())
        return iter(self._request.partitions)

    def response(self, fetched: Fetched, now_ms: int) -> tuple[SessionResponse, Fetched]:
        """The session part of the response, and the results that it contains."""
        session = self._session
        if session:
            if session.epoch != self._epoch:
                # The client has sent another request of the session without waiting for this one.
                return SessionResponse(ErrorCode.INVALID_FETCH_SESSION_EPOCH, NO_SESSION), []
            return SessionResponse(ErrorCode.NONE, session.id), session.response(fetched)
        if self._request.epoch != INITIAL_EPOCH:
            return SessionResponse(ErrorCode.NONE, NO_SESSION), fetched
        session_id = self._sessions.create(self._request, fetched, now_ms)
        return SessionResponse(ErrorCode.NONE, session_id), fetched


class FetchSessions:
    """The sessions of a broker."""

    def __init__(self, slots: int, new_id: Callable[[], int]) -> None:
        """`new_id` draws a random positive id; it is called again if the id is taken."""
        self._slots = slots
        self._new_id = new_id
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        return sum(len(session.partitions) for session in self._sessions.values())

    def open(self, request: SessionRequest, now_ms: int) -> FetchContext | ErrorCode:
        """The context of a request, or the error of its session."""
        if request.epoch <= INITIAL_EPOCH:
            self._sessions.pop(request.session_id, None)
            return FetchContext(self, request, None)
        session = self._sessions.get(request.session_id)
        if not session:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.by_id != request.by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.update(request)
        if not session.partitions:
            del self._sessions[session.id]
            return FetchContext(self, request, None)
        session.epoch = session.epoch + 1 if session.epoch < _LAST_EPOCH else _FIRST_INCREMENTAL
        session.last_used_ms = now_ms
        # The least recently used one is always the first.
        self._sessions[session.id] = self._sessions.pop(session.id)
        return FetchContext(self, request, session)

    def create(self, request: SessionRequest, fetched: Fetched, now_ms: int) -> int:
        """Create a session from the results of a full request; return its id, 0 without a slot."""
        if len(self._sessions) >= self._slots and not self._make_room(request, now_ms):
            return NO_SESSION
        session_id = self._new_id()
        while session_id in self._sessions:
            session_id = self._new_id()
        session = FetchSession(
            session_id, by_id=request.by_id, is_follower=request.is_follower, now_ms=now_ms
        )
        for requested, result in fetched:
            cached = session.partitions[requested.key] = _Cached(requested)
            cached.remember(result)
        self._sessions[session_id] = session
        return session_id

    def _make_room(self, request: SessionRequest, now_ms: int) -> bool:
        """Evict a stale session, or else one of lower priority than the new one.

        A consumer cannot evict a young session, so that two clients do not keep evicting each
        other. A follower can evict any consumer's session.
        """
        stalest = next(iter(self._sessions.values()), None)
        if stalest is None:
            return False
        if now_ms - stalest.last_used_ms > EVICTION_MS:
            del self._sessions[stalest.id]
            return True
        candidates = (
            session.value
            for session in self._sessions.values()
            if now_ms - session.created_ms > EVICTION_MS
            or (request.is_follower and not session.is_follower)
        )
        cheapest = min(candidates, default=None)
        if cheapest is None or (request.is_follower, len(request.partitions)) < cheapest[:2]:
            return False
        del self._sessions[cheapest[2]]
        return True
