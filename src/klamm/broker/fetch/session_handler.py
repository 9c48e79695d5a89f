"""Fetch sessions (KIP-227), the follower's side.

A follower says what it wants whenever that changes. The first request names all of it; as long as
the leader keeps a session, the following ones name only what is different from what the leader
remembers.
"""

import uuid
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from klamm.broker.fetch.sessions import INITIAL_EPOCH, NO_SESSION
from klamm.broker.replication.replica_log import FetchPosition
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode

_LAST_EPOCH: Final = 2**31 - 1
_FIRST_INCREMENTAL: Final = 1


class PartitionToFetch(NamedTuple):
    """What is asked of one partition."""

    topic_id: uuid.UUID | None
    position: FetchPosition
    #: The follower's own log start, which a DeleteRecords at the leader may be waiting for.
    start_offset: int


class ForgottenPartition(NamedTuple):
    """A partition that the leader is to forget, under the id by which it knows it."""

    name: TopicPartition
    topic_id: uuid.UUID | None


class FetchRequestData(NamedTuple):
    """The next fetch request."""

    session_id: int
    session_epoch: int
    #: Whether every topic has an id, so that the request can use ids (v13+) and not names (v12).
    by_id: bool
    partitions: Mapping[TopicPartition, PartitionToFetch]
    forgotten: tuple[ForgottenPartition, ...]

    @property
    def is_full(self) -> bool:
        return self.session_epoch == INITIAL_EPOCH


class FetchSessionHandler:
    """What is wanted, and what of that the leader knows."""

    def __init__(self) -> None:
        self.wanted: dict[TopicPartition, PartitionToFetch] = {}
        #: What the leader takes this follower to want as of the last request.
        self.remembered: dict[TopicPartition, PartitionToFetch] = {}
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._by_id = True
        self._changed: dict[TopicPartition, None] = {}
        self._without_id = 0

    def want(self, name: TopicPartition, wanted: PartitionToFetch) -> None:
        """Ask for a partition from now on, or for something else of it than before."""
        before = self.wanted.get(name)
        if before == wanted:
            return
        self._without_id += (wanted.topic_id is None) - (
            before is not None and before.topic_id is None
        )
        self.wanted[name] = wanted
        self._changed[name] = None

    def drop(self, name: TopicPartition) -> None:
        """Ask for a partition no longer."""
        before = self.wanted.pop(name, None)
        if before:
            self._without_id -= before.topic_id is None
            self._changed[name] = None

    def rotate(self, name: TopicPartition) -> None:
        """Let a partition that has just had its share come last in the next full request."""
        self.wanted[name] = self.wanted.pop(name)

    def next_request(self) -> FetchRequestData:
        """What to send now; one request at a time is under way."""
        by_id = not self._without_id
        if by_id != self._by_id:
            # A session is about names or about ids. Naming it in a full request closes it.
            self._by_id = by_id
            self._epoch = INITIAL_EPOCH
        if self._epoch == INITIAL_EPOCH:
            self._changed.clear()
            self.remembered = self.wanted.copy()
            return FetchRequestData(self._session_id, INITIAL_EPOCH, by_id, self.remembered, ())
        named: dict[TopicPartition, PartitionToFetch] = {}
        forgotten: list[ForgottenPartition] = []
        for name in self._changed:
            known, wanted = self.remembered.get(name), self.wanted.get(name)
            if known and (not wanted or wanted.topic_id != known.topic_id):
                forgotten.append(ForgottenPartition(name, known.topic_id))
                del self.remembered[name]
            if wanted and wanted != known:
                named[name] = self.remembered[name] = wanted
        self._changed.clear()
        return FetchRequestData(self._session_id, self._epoch, by_id, named, tuple(forgotten))

    def on_response(
        self, error: int, session_id: int, answered: Iterable[TopicPartition], *, throttled: bool
    ) -> bool:
        """Take in how a response begins; whether its partitions may be used.

        A full request has to be answered with exactly what it named. An incremental one may be
        answered with anything that the session holds.
        """
        if error:
            if error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
                self._session_id = NO_SESSION
            self._epoch = INITIAL_EPOCH
            return False
        names = set(answered)
        if self._epoch == INITIAL_EPOCH:
            if names != self.remembered.keys() or (throttled and not names):
                self._session_id = NO_SESSION
                return False
        elif not names <= self.remembered.keys():
            self._epoch = INITIAL_EPOCH
            return False
        self._session_id = session_id
        if session_id == NO_SESSION:
            self._epoch = INITIAL_EPOCH
        else:
            self._epoch = self._epoch + 1 if self._epoch < _LAST_EPOCH else _FIRST_INCREMENTAL
        return True

    def on_failure(self) -> None:
        """The response is lost; the next request closes the session, if there is one left."""
        self._epoch = INITIAL_EPOCH
