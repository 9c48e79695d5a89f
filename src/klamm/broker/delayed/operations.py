"""The data requests that wait: what each waits for, and what it is told in the end."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from klamm.broker.replication.partition import Partition
from klamm.broker.replication.replica_log import UNKNOWN_OFFSET, FetchPosition, Reader
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode

#: Finds a hosted partition, or says why data requests cannot have it.
FindPartition = Callable[[TopicPartition], Partition | ErrorCode]


class DelayedProduce:
    """An acks=all produce: waits until what it appended is committed."""

    def __init__(self, required_offset: Mapping[TopicPartition, int], find: FindPartition) -> None:
        self.keys = tuple(required_offset)
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self._pending = dict(required_offset)
        self._find = find

    def check(self, key: TopicPartition) -> bool:
        required_offset = self._pending.get(key)
        if required_offset is not None:
            partition = self._find(key)
            response = (
                partition
                if isinstance(partition, ErrorCode)
                else partition.check_committed(required_offset)
            )
            if response is not None:
                self.errors[key] = response
                del self._pending[key]
        return not self._pending

    def check_all(self) -> bool:
        for key in tuple(self._pending):
            self.check(key)
        return not self._pending

    def expire(self) -> None:
        """Time is up. What was appended stays, and may be committed later."""
        self.errors.update(dict.fromkeys(self._pending, ErrorCode.REQUEST_TIMED_OUT))
        self._pending.clear()


class FetchPartitionStatus(NamedTuple):
    """One partition of a waiting fetch."""

    position: FetchPosition
    max_bytes: int


class DelayedFetch:
    """A fetch that found too little: waits for enough bytes, or for a reason not to wait.

    Each partition counts with what could be read when it was last looked at, so that a wake-up
    costs one partition and not all of them.
    """

    def __init__(
        self,
        reader: Reader,
        interests: Mapping[TopicPartition, FetchPartitionStatus],
        min_bytes: int,
        find: FindPartition,
        is_held_back: Callable[[Partition], bool] = lambda _: False,
    ) -> None:
        """`is_held_back` tells for which partitions a throttle stops this follower just now."""
        self.reader = reader
        self.interests = interests
        self._min_bytes = min_bytes
        self._find = find
        self._is_held_back = is_held_back
        self._readable: dict[TopicPartition, int] = {}
        self._total = 0

    @property
    def keys(self) -> Iterable[TopicPartition]:
        return self.interests

    def check(self, key: TopicPartition) -> bool:
        position, max_bytes = self.interests[key]
        partition = self._find(key)
        if isinstance(partition, ErrorCode):
            return True
        size = partition.readable_bytes(self.reader, position, enough=self._min_bytes)
        if self._is_held_back(partition):
            size = 0
        if size is None:
            return True
        size = min(size, max_bytes)
        self._total += size - self._readable.get(key, 0)
        self._readable[key] = size
        return self._total >= self._min_bytes

    def check_all(self) -> bool:
        return any(self.check(key) for key in self.interests)


class DelayedDeleteRecords:
    """A DeleteRecords: waits until every live replica has raised its log start."""

    def __init__(self, offset: Mapping[TopicPartition, int], find: FindPartition) -> None:
        self.keys = tuple(offset)
        self.errors: dict[TopicPartition, ErrorCode] = {}
        self.low_watermarks: dict[TopicPartition, int] = {}
        self._pending = dict(offset)
        self._find = find

    def check(self, key: TopicPartition) -> bool:
        offset = self._pending.get(key)
        if offset is not None:
            self._look(key, offset)
        return not self._pending

    def check_all(self) -> bool:
        for key in tuple(self._pending):
            self.check(key)
        return not self._pending

    def expire(self) -> None:
        """Time is up. The leader's records are gone all the same."""
        self.errors.update(dict.fromkeys(self._pending, ErrorCode.REQUEST_TIMED_OUT))
        self.low_watermarks.update(dict.fromkeys(self._pending, UNKNOWN_OFFSET))
        self._pending.clear()

    def _look(self, key: TopicPartition, offset: int) -> None:
        partition = self._find(key)
        if isinstance(partition, ErrorCode):
            response: ErrorCode | None = partition
        else:
            response = partition.check_deleted(offset)
        if response is None:
            return
        del self._pending[key]
        self.errors[key] = response
        self.low_watermarks[key] = (
            UNKNOWN_OFFSET
            if response or isinstance(partition, ErrorCode)
            else partition.low_watermark()
        )
