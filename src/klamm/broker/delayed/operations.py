"""The delayed operations: produce with acks=all, fetch, and DeleteRecords.

Each class states the condition under which it is complete, and holds the result for the response.
"""

from collections.abc import Callable, Mapping

from klamm.broker.delayed.purgatory import DelayedOperation
from klamm.broker.fetch.sessions import FetchSession, RequestedPartition
from klamm.broker.replication.partition import Partition
from klamm.broker.replication.replica_log import UNKNOWN_OFFSET, Reader
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode

#: Finds a hosted partition, or returns the error for requests that name it.
FindPartition = Callable[[TopicPartition], Partition | ErrorCode]


class DelayedProduce(DelayedOperation):
    """A produce request with acks=all.

    A partition is complete when its high watermark has reached the required offset, or when an
    error is certain: the partition is gone, is led by another broker, or has too small an ISR.
    The operation is complete when all its partitions are.
    """

    def __init__(self, required_offset: Mapping[TopicPartition, int], find: FindPartition) -> None:
        super().__init__(required_offset)
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self._pending = dict(required_offset)
        self._find = find

    def try_complete(self, key: TopicPartition) -> bool:
        required_offset = self._pending.get(key)
        if required_offset is not None:
            partition = self._find(key)
            error = (
                partition
                if isinstance(partition, ErrorCode)
                else partition.check_committed(required_offset)
            )
            if error is not None:
                self.errors[key] = error
                del self._pending[key]
        return not self._pending

    def try_complete_all(self) -> bool:
        for key in tuple(self._pending):
            self.try_complete(key)
        return not self._pending

    def on_expiration(self) -> None:
        """Report a timeout. The appended records stay, and may be committed later."""
        self.errors.update(dict.fromkeys(self._pending, ErrorCode.REQUEST_TIMED_OUT))
        self._pending.clear()


class DelayedFetch(DelayedOperation):
    """A fetch that found less than its `min_bytes`.

    It is complete when its partitions together have `min_bytes` to read, or as soon as one of them
    has a reason to respond at once: it is gone, is led by another broker, has diverged from the
    follower's log, or its end has moved to a later segment.

    Each partition counts with the bytes that were readable when it was last checked, so that an
    event costs one check and not one for each partition. A fetch of a session begins with the
    partitions that are marked in it; the others have nothing to read before an event.
    """

    def __init__(
        self,
        reader: Reader,
        partitions: Mapping[TopicPartition, RequestedPartition],
        min_bytes: int,
        find: FindPartition,
        is_throttled: Callable[[Partition], bool] = lambda _: False,
        session: FetchSession | None = None,
    ) -> None:
        """`is_throttled` tells whether a replication throttle stops this follower now."""
        if session is None:
            super().__init__(partitions)
        else:
            super().__init__([session], len(session.partitions))
        self._reader = reader
        self._partitions = partitions
        self._requested = partitions.get if session is None else session.requested
        self._min_bytes = min_bytes
        self._find = find
        self._is_throttled = is_throttled
        self._readable: dict[TopicPartition, int] = {}
        self._total = 0

    def try_complete(self, key: TopicPartition) -> bool:
        requested = self._requested(key)
        if requested is None:
            return False
        partition = self._find(key)
        if isinstance(partition, ErrorCode):
            return True
        position = requested.position
        size = partition.readable_bytes(self._reader, position, enough=self._min_bytes)
        if self._is_throttled(partition):
            size = 0
        if size is None:
            return True
        size = min(size, requested.max_bytes)
        self._total += size - self._readable.get(key, 0)
        self._readable[key] = size
        return self._total >= self._min_bytes

    def try_complete_all(self) -> bool:
        return any(self.try_complete(key) for key in self._partitions)

    def on_expiration(self) -> None:
        """Do nothing: the response has the records that are available."""


class DelayedDeleteRecords(DelayedOperation):
    """A DeleteRecords request whose offsets the leader has applied to its own log.

    A partition is complete when every live replica has raised its log start to the offset, or when
    the partition is gone or led by another broker. The operation is complete when all are.
    """

    def __init__(self, offset: Mapping[TopicPartition, int], find: FindPartition) -> None:
        super().__init__(offset)
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.low_watermarks: dict[TopicPartition, int] = {}
        self._pending = dict(offset)
        self._find = find

    def try_complete(self, key: TopicPartition) -> bool:
        offset = self._pending.get(key)
        if offset is not None:
            partition = self._find(key)
            if isinstance(partition, ErrorCode):
                self._finish(key, partition, UNKNOWN_OFFSET)
            elif (error := partition.check_deleted(offset)) is not None:
                self._finish(key, error, UNKNOWN_OFFSET if error else partition.low_watermark())
        return not self._pending

    def try_complete_all(self) -> bool:
        for key in tuple(self._pending):
            self.try_complete(key)
        return not self._pending

    def on_expiration(self) -> None:
        """Report a timeout. The leader has deleted its records all the same."""
        for key in tuple(self._pending):
            self._finish(key, ErrorCode.REQUEST_TIMED_OUT, UNKNOWN_OFFSET)

    def _finish(self, key: TopicPartition, error: ErrorCode, low_watermark: int) -> None:
        del self._pending[key]
        self.errors[key] = error
        self.low_watermarks[key] = low_watermark
