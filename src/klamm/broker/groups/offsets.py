"""What one group has committed, is committing, and may forget.

A commit counts once its record is safely in the log. Until then it is pending: readers see the
offset before it, or are told to wait if they ask for stable offsets only.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from klamm.broker.groups.messages import FetchedOffset
from klamm.broker.groups.records import CommittedOffset
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode


class PlacedOffset(NamedTuple):
    """A committed offset and the append that wrote it, which tells older from newer.

    What was in the log before this coordinator has negative numbers.
    """

    number: int
    committed: CommittedOffset


class GroupOffsets:
    """The offsets of one group, by partition."""

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, PlacedOffset] = {}
        self._pending: dict[TopicPartition, int] = {}  # the latest append that has yet to succeed
        #: Offsets of open transactions, by producer id. The last of a partition counts, unless its
        #: append fails: then the one before it does.
        self._transactional: dict[int, dict[TopicPartition, list[PlacedOffset]]] = {}

    def __len__(self) -> int:
        return len(self._committed)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(self._committed)

    def is_empty(self) -> bool:
        """Whether nothing is committed or on its way."""
        return not (self._committed or self._pending or self._transactional)

    def committed(self) -> dict[TopicPartition, CommittedOffset]:
        """The committed offsets that readers see."""
        return {partition: placed.committed for partition, placed in self._committed.items()}

    def load(
        self,
        committed: Mapping[TopicPartition, PlacedOffset],
        transactional: Mapping[int, Mapping[TopicPartition, PlacedOffset]],
    ) -> None:
        """Take over what a replay of the log has found; transactions are those still open."""
        self._committed = dict(committed)
        self._transactional = {
            producer_id: {partition: [placed] for partition, placed in offsets.items()}
            for producer_id, offsets in transactional.items()
        }

    def begin_commit(self, partitions: Iterable[TopicPartition], number: int) -> None:
        """Offsets of these partitions are being written by append `number`."""
        self._pending.update(dict.fromkeys(partitions, number))

    def finish_commit(self, offsets: Mapping[TopicPartition, CommittedOffset], number: int) -> None:
        """Append `number` succeeded."""
        for partition, committed in offsets.items():
            if partition not in self._pending:
                continue  # deleted in the meantime, and so it stays
            previous = self._committed.get(partition)
            # Reports may overtake each other; the log's order decides.
            if previous is None or previous.number < number:
                self._committed[partition] = PlacedOffset(number, committed)
            self._end_pending(partition, number)

    def fail_commit(self, partitions: Iterable[TopicPartition], number: int) -> None:
        """Append `number` failed; what was committed before still counts."""
        for partition in partitions:
            self._end_pending(partition, number)

    def begin_transactional_commit(
        self,
        producer_id: int,
        offsets: Mapping[TopicPartition, CommittedOffset],
        number: int,
    ) -> None:
        """Offsets of a transaction are being written; they count when it is committed (TXN-10)."""
        pending = self._transactional.setdefault(producer_id, {})
        for partition, committed in offsets.items():
            pending.setdefault(partition, []).append(PlacedOffset(number, committed))

    def finish_transactional_commit(
        self, producer_id: int, partitions: Iterable[TopicPartition], number: int
    ) -> None:
        """Append `number` succeeded: it replaces what the transaction has committed before."""
        pending = self._transactional.get(producer_id, {})
        for partition in partitions:
            if partition in pending:
                pending[partition] = [each for each in pending[partition] if each.number >= number]

    def fail_transactional_commit(
        self, producer_id: int, partitions: Iterable[TopicPartition], number: int
    ) -> None:
        """Append `number` failed: its offsets are not part of the transaction.

        It may be that of an earlier epoch of the producer, which is fenced; those before it stay.
        """
        pending = self._transactional.get(producer_id, {})
        for partition in partitions:
            left = [each for each in pending.pop(partition, ()) if each.number != number]
            if left:
                pending[partition] = left
        if not pending:
            self._transactional.pop(producer_id, None)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> None:
        """A marker is in the log: offsets before it count from now on, or never."""
        pending = self._transactional.pop(producer_id, {})
        for partition, placed in pending.items() if is_commit else ():
            previous, latest = self._committed.get(partition), placed[-1]
            # A later commit outside of the transaction survives the marker.
            if previous is None or previous.number < latest.number:
                self._committed[partition] = latest

    def open_transactions(self) -> Collection[int]:
        """The producer ids with offsets that wait for a marker."""
        return self._transactional.keys()

    def fetch(self, partition: TopicPartition, *, require_stable: bool) -> FetchedOffset:
        """The response for one partition."""
        if require_stable and self._is_unstable(partition):
            return FetchedOffset(ErrorCode.UNSTABLE_OFFSET_COMMIT)
        placed = self._committed.get(partition)
        if placed is None:
            return FetchedOffset()
        committed = placed.committed
        return FetchedOffset(
            ErrorCode.NONE, committed.offset, committed.leader_epoch, committed.metadata
        )

    def remove(self, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Forget these, finished or not; returns those whose records need a tombstone."""
        partitions = list(partitions)
        if self._transactional:
            self._remove_transactional(partitions)
        removed = [
            partition
            for partition in partitions
            if partition in self._committed or partition in self._pending
        ]
        for partition in removed:
            self._committed.pop(partition, None)
            self._pending.pop(partition, None)
        return removed

    def _remove_transactional(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the offsets of open transactions for these partitions."""
        for partition in partitions:
            for pending in self._transactional.values():
                pending.pop(partition, None)
        self._transactional = {each: left for each, left in self._transactional.items() if left}

    def remove_all(self) -> list[TopicPartition]:
        """Forget everything; returns what needs a tombstone."""
        self._transactional.clear()
        return self.remove([*self._committed, *(self._pending.keys() - self._committed.keys())])

    def expired(
        self,
        now_ms: int,
        retention_ms: int,
        counts_from_ms: Callable[[CommittedOffset], int],
        subscribed: Collection[str] = (),
    ) -> list[TopicPartition]:
        """Partitions that were committed too long ago and are not of a subscribed topic."""
        return [
            partition
            for partition, (_, committed) in self._committed.items()
            if partition.topic not in subscribed
            and not self._is_unstable(partition)
            and now_ms
            >= (
                counts_from_ms(committed) + retention_ms
                if committed.expire_timestamp_ms is None
                else committed.expire_timestamp_ms
            )
        ]

    def _is_unstable(self, partition: TopicPartition) -> bool:
        return partition in self._pending or any(
            partition in partitions for partitions in self._transactional.values()
        )

    def _end_pending(self, partition: TopicPartition, number: int) -> None:
        if self._pending.get(partition) == number:
            del self._pending[partition]
