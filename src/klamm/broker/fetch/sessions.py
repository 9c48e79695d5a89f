"""Fetch sessions (KIP-227) on the leader's side.

A session remembers the partitions that a client fetches, so that later requests and responses have
only what has changed. Sessions are optional: a broker without a free slot creates none, and a
client whose session is evicted starts again with a full request.

A fetch looks at the partitions of its session that may have something to say, and at no others.
A partition leaves this set when a response has told everything about it, and is put back by the
client that names it or by an event at the broker: an append, a watermark, a change of leadership.
`SessionPartitions` finds the sessions that an event concerns.

`FetchContext` tells which partitions a request reads, and which results its response contains.
"""

import uuid
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from klamm.broker.replication.isr import FollowerState
from klamm.broker.replication.replica_log import UNKNOWN_OFFSET, FetchPosition
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode
from klamm.protocol.fast.fetch import FetchPartitionResponse

NO_SESSION: Final = 0
#: The epoch of a full request that opens a session.
INITIAL_EPOCH: Final = 0
_LAST_EPOCH: Final = 2**31 - 1
_FIRST_INCREMENTAL: Final = 1
#: A session that was unused for this long is evicted when another one is created.
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
    #: Whether the last read found that only an event can give the reader something to learn.
    is_settled: bool = False
    #: The leader's state of the follower that fetches; set by a read.
    follower: FollowerState | None = None

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
    #: What else decides about results: who reads, which version, under which ACLs.
    terms: Hashable = None


class CachedPartition:
    """A partition of a session: its last request and the offsets of its last response."""

    __slots__ = ("follower", "high_watermark", "requested", "start_offset", "turn", "watched")

    def __init__(self, requested: RequestedPartition, turn: int) -> None:
        self.requested = requested
        self.high_watermark = UNKNOWN_OFFSET
        self.start_offset = UNKNOWN_OFFSET
        #: Partitions are read in the order of their turns.
        self.turn = turn
        #: The name under which events find the partition; None while its topic id is unknown.
        self.watched: TopicPartition | None = None
        #: Set while the partition is settled: the follower that fetches with its session.
        self.follower: FollowerState | None = None

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


class SessionPartitions:
    """The partitions of all sessions by name, for the events that concern them."""

    def __init__(self) -> None:
        self._by_name: dict[TopicPartition, dict[FetchSession, CachedPartition]] = {}

    def add(self, session: "FetchSession", cached: CachedPartition) -> None:
        """Watch a partition, if its name is known."""
        name = cached.requested.name
        if cached.watched is None and name is not None:
            cached.watched = name
            self._by_name.setdefault(name, {})[session] = cached

    def remove(self, session: "FetchSession", cached: CachedPartition) -> None:
        """Stop watching a partition."""
        if cached.watched is None:
            return
        sessions = self._by_name[cached.watched]
        # A topic that was deleted and created again may be there twice, under two ids.
        if sessions.get(session) is cached:
            del sessions[session]
            if not sessions:
                del self._by_name[cached.watched]
        cached.watched = None

    def find(self, session: "FetchSession", name: TopicPartition) -> RequestedPartition | None:
        """The request of a session for a partition; None if the session does not have it."""
        cached = self._by_name.get(name, {}).get(session)
        return None if cached is None else cached.requested

    def mark(self, name: TopicPartition, *, for_followers: bool = False) -> list["FetchSession"]:
        """Have a partition read by the next fetch of each session; return these sessions.

        `for_followers` leaves out the sessions of consumers.
        """
        sessions = self._by_name.get(name)
        if sessions is None:
            return []
        marked = []
        for session, cached in sessions.items():
            if session.is_follower or not for_followers:
                session.mark(cached)
                marked.append(session)
        return marked


def _turn_of(cached: CachedPartition) -> int:
    return cached.turn


class FetchSession:
    """The partitions that one client fetches, and the epoch that its next request must have."""

    __slots__ = (
        "_index",
        "_marked",
        "_turn",
        "by_id",
        "created_ms",
        "epoch",
        "id",
        "is_follower",
        "last_fetch_ms",
        "last_used_ms",
        "partitions",
        "terms",
    )

    def __init__(
        self, session_id: int, request: SessionRequest, index: SessionPartitions, now_ms: int
    ) -> None:
        self.id = session_id
        self.epoch = _FIRST_INCREMENTAL
        self.by_id = request.by_id
        self.is_follower = request.is_follower
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        #: When the last request arrived. A follower was caught up then where it is settled.
        self.last_fetch_ms = now_ms
        self.partitions: dict[SessionKey, CachedPartition] = {}
        self._index = index
        #: The partitions that the next fetch reads.
        self._marked: dict[CachedPartition, None] = {}
        self._turn = 0
        #: What decides about results besides the partitions; another object when it changes.
        self.terms: Hashable = request.terms

    @property
    def value(self) -> tuple[bool, int, int]:
        """Eviction priority: followers first, then by partition count."""
        return self.is_follower, len(self.partitions), self.id

    @property
    def to_read(self) -> list[RequestedPartition]:
        """The partitions that may have something to say, in their order."""
        return [cached.requested for cached in self.marked_with(())]

    def marked_with(self, named: Iterable[CachedPartition]) -> list[CachedPartition]:
        """What `to_read` is about, or would be if these were marked too."""
        marked = self._marked.keys() | named if named else self._marked
        return sorted(marked, key=_turn_of) if len(marked) > 1 else list(marked)

    def requested(self, name: TopicPartition) -> RequestedPartition | None:
        """The session's request for a partition; None if it has none."""
        return self._index.find(self, name)

    def mark(self, cached: CachedPartition) -> None:
        """Have a partition read by the next fetch, and by one that waits."""
        self._marked[cached] = None
        cached.requested.is_settled = False
        if cached.follower is not None:
            cached.follower.leave_session(self)
            cached.follower = None

    def update(self, request: SessionRequest) -> None:
        """Apply what a request says about the partitions of the session."""
        if request.terms != self.terms:
            # Partitions were found without news on other terms: read all of them again.
            self.terms = request.terms
            for cached in self.partitions.values():
                self.mark(cached)
        for requested in request.partitions:
            found = self.partitions.get(requested.key)
            if found:
                if requested.position.current_leader_epoch != found.leader_epoch:
                    # A follower ignores a response of another leader epoch. Without this reset it
                    # would not be sent the high watermark again before that rises.
                    found.high_watermark = UNKNOWN_OFFSET
                self.mark(found)
                found.requested = requested
                self._index.add(self, found)
            else:
                self._add(requested)
        for key in request.forgotten:
            forgotten = self.partitions.pop(key, None)
            if forgotten:
                self._drop(forgotten)

    def begin(self, fetched: Fetched) -> None:
        """Take over the partitions of the full request that opens the session.

        None of them is settled: there was no session that an event could have marked them in while
        they were read. The next fetch reads them once more.
        """
        for requested, result in fetched:
            cached = self.partitions.get(requested.key) or self._add(requested)
            cached.requested = requested
            cached.remember(result)

    def response(self, fetched: Fetched) -> Fetched:
        """The results that have changed; partitions with records are read last next time."""
        news: Fetched = []
        for requested, result in fetched:
            cached = self.partitions.get(requested.key)
            if cached and self.conclude(cached, requested, result):
                news.append((requested, result))
        return news

    def conclude(
        self,
        cached: CachedPartition,
        requested: RequestedPartition,
        result: FetchPartitionResponse,
    ) -> bool:
        """Remember a result; return whether the response has to contain it."""
        is_news = cached.remember(result)
        was_watched = cached.watched is not None
        self._index.add(self, cached)
        # An event may have passed a partition whose name became known only while it was read.
        if requested.is_settled and was_watched:
            self._marked.pop(cached, None)
            if requested.follower is not None:
                requested.follower.join_session(self)
                cached.follower = requested.follower
        if is_news and has_records(result):
            self._turn += 1
            cached.turn = self._turn
        return is_news

    def close(self) -> None:
        """Let go of all partitions. A response that is still due has none."""
        for cached in self.partitions.values():
            self._drop(cached)
        self.partitions = {}

    def _add(self, requested: RequestedPartition) -> CachedPartition:
        self._turn += 1
        cached = self.partitions[requested.key] = CachedPartition(requested, self._turn)
        self._marked[cached] = None
        self._index.add(self, cached)
        return cached

    def _drop(self, cached: CachedPartition) -> None:
        self.mark(cached)
        del self._marked[cached]
        self._index.remove(self, cached)


class SessionResponse(NamedTuple):
    """The error and session id of a fetch response; its partitions are returned separately."""

    error: ErrorCode
    session_id: int


class FetchContext:
    """One fetch request: the partitions to read, and which results to send back."""

    def __init__(
        self,
        sessions: "FetchSessions",
        request: SessionRequest,
        session: FetchSession | None,
        now_ms: int,
    ) -> None:
        #: The session of an incremental request; a full request has none so far.
        self.session = session
        self._sessions = sessions
        self._request = request
        self._epoch = session.epoch if session else 0
        self._began_ms = now_ms

    @property
    def partitions(self) -> list[RequestedPartition]:
        """The partitions to read now: of a session those that may have something to say."""
        return self.session.to_read if self.session else self._request.partitions

    @property
    def is_current(self) -> bool:
        """Whether the session, if there is one, has had no other request since."""
        return self.session is None or self.session.epoch == self._epoch

    def response(self, fetched: Fetched, now_ms: int) -> tuple[SessionResponse, Fetched]:
        """The session part of the response, and the results that it contains."""
        session = self.session
        if session:
            if not self.is_current:
                # The client has sent another request of the session without waiting for this one.
                return SessionResponse(ErrorCode.INVALID_FETCH_SESSION_EPOCH, NO_SESSION), []
            return SessionResponse(ErrorCode.NONE, session.id), session.response(fetched)
        if self._request.epoch != INITIAL_EPOCH:
            return SessionResponse(ErrorCode.NONE, NO_SESSION), fetched
        session_id = self._sessions.create(self._request, fetched, self._began_ms, now_ms)
        return SessionResponse(ErrorCode.NONE, session_id), fetched

    def throttled_response(self) -> SessionResponse:
        """The session part of a response without partitions: the client asks for them again."""
        session = self.session
        if not self.is_current:
            return SessionResponse(ErrorCode.INVALID_FETCH_SESSION_EPOCH, NO_SESSION)
        return SessionResponse(ErrorCode.NONE, session.id if session else NO_SESSION)


class FetchSessions:
    """The sessions of a broker."""

    def __init__(self, slots: int, new_id: Callable[[], int]) -> None:
        """`new_id` draws a random positive id; it is called again if the id is taken."""
        self.partitions = SessionPartitions()
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
            self._remove(request.session_id)
            return FetchContext(self, request, None, now_ms)
        session = self._sessions.get(request.session_id)
        if not session:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != request.epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.by_id != request.by_id:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.update(request)
        if not session.partitions:
            self._remove(session.id)
            return FetchContext(self, request, None, now_ms)
        self.use(session, now_ms)
        return FetchContext(self, request, session, now_ms)

    def has(self, session: FetchSession) -> bool:
        """Whether a session has not been closed or evicted."""
        return self._sessions.get(session.id) is session

    def use(self, session: FetchSession, now_ms: int) -> None:
        """Note the next request of a session."""
        session.epoch = session.epoch + 1 if session.epoch < _LAST_EPOCH else _FIRST_INCREMENTAL
        session.last_used_ms = session.last_fetch_ms = now_ms
        # The least recently used one is always the first.
        self._sessions[session.id] = self._sessions.pop(session.id)

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session:
            session.close()

    def create(self, request: SessionRequest, fetched: Fetched, began_ms: int, now_ms: int) -> int:
        """Create a session from the results of a full request; return its id, 0 without a slot.

        `began_ms` is when the request arrived; its response may have been delayed.
        """
        self._evict_unused(now_ms)
        if len(self._sessions) >= self._slots and not self._make_room(request, now_ms):
            return NO_SESSION
        session_id = self._new_id()
        while session_id in self._sessions:
            session_id = self._new_id()
        session = FetchSession(session_id, request, self.partitions, now_ms)
        session.last_fetch_ms = began_ms
        session.begin(fetched)
        self._sessions[session_id] = session
        return session_id

    def _evict_unused(self, now_ms: int) -> None:
        """Evict the sessions that were unused for long.

        Not only for want of a slot: a broker that is killed again and again would leave a session
        with all of its partitions each time, which costs memory and a mark with every append.
        """
        while self._sessions:
            stalest = next(iter(self._sessions.values()))
            if now_ms - stalest.last_used_ms <= EVICTION_MS:
                return
            self._remove(stalest.id)

    def _make_room(self, request: SessionRequest, now_ms: int) -> bool:
        """Evict a session of lower priority than the new one.

        A consumer cannot evict a young session, so that two clients do not keep evicting each
        other. A follower can evict any consumer's session.
        """
        candidates = (
            session.value
            for session in self._sessions.values()
            if now_ms - session.created_ms > EVICTION_MS
            or (request.is_follower and not session.is_follower)
        )
        cheapest = min(candidates, default=None)
        if cheapest is None or (request.is_follower, len(request.partitions)) < cheapest[:2]:
            return False
        self._remove(cheapest[2])
        return True
