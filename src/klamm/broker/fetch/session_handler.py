"""Fetch sessions (KIP-227) on the follower's side.

The fetcher declares which partitions it fetches and from where. The first request names all of
them. While the leader keeps the session, later requests name only what has changed.
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
    """The fetch position of one partition."""

    topic_id: uuid.UUID | None
    position: FetchPosition
    #: The follower's log start offset; a DeleteRecords at the leader may wait for it.
    start_offset: int


class ForgottenPartition(NamedTuple):
    """A partition that leaves the session, with the topic id under which the leader knows it."""

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
    """The partitions to fetch, and the partitions that the leader's session has."""

    def __init__(self) -> None:
        self.wanted: dict[TopicPartition, PartitionToFetch] = {}
        #: The partitions of the leader's session after the last request.
        self.remembered: dict[TopicPartition, PartitionToFetch] = {}
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._by_id = True
        self._changed: dict[TopicPartition, None] = {}
        self._without_id = 0

    def want(self, name: TopicPartition, wanted: PartitionToFetch) -> None:
        """Add a partition to the next request, or change its position."""
        before = self.wanted.get(name)
        if before == wanted:
            return
        self._without_id += (wanted.topic_id is None) - (
            before is not None and before.topic_id is None
        )
        self.wanted[name] = wanted
        self._changed[name] = None

    def drop(self, name: TopicPartition) -> None:
        """Remove a partition from the next request and from the session."""
        before = self.wanted.pop(name, None)
        if before:
            self._without_id -= before.topic_id is None
            self._changed[name] = None

    def rotate(self, name: TopicPartition) -> None:
        """Move a partition that has just returned records to the end of the next full request."""
        self.wanted[name] = self.wanted.pop(name)

    def next_request(self) -> FetchRequestData:
        """The next request. There is at most one request in flight."""
        by_id = not self._without_id
        if by_id != self._by_id:
            # A session uses names or ids, not both. A full request with its id closes the old
            # session.
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
        """Apply the session part of a response; return whether its partitions may be used.

        The response to a full request must have exactly the requested partitions. The response to
        an incremental request may have any partitions of the session.
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
        """Note that the response is lost.

        The next request closes the session if it still exists.
        """
        self._epoch = INITIAL_EPOCH
