"""One transactional id in the memory of its coordinator, and the coordinator's settings.

A `prepare_*` method checks a transition, marks it as pending and returns what has to be written.
The transition takes effect with `complete`, once the record is replicated, or is taken back with
`cancel`. There is one pending transition at a time (TXN-15).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from klamm.broker.transactions.messages import DescribedTransaction, ProducerIdAndEpoch
from klamm.broker.transactions.records import (
    ENTERED_FROM,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    PREPARED,
    StoredTransaction,
    TransactionState,
)
from klamm.errors import IllegalTransitionError
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode

S = TransactionState
_EPOCH_MAX: Final = 2**15 - 1
#: From here on an epoch is exhausted: the last one is kept for a fence.
EXHAUSTED_EPOCH: Final = _EPOCH_MAX - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Limits and intervals; each field names the broker setting that it comes from."""

    max_timeout_ms: int = 900_000  # transaction.max.timeout.ms
    id_expiration_ms: int = 604_800_000  # transactional.id.expiration.ms
    #: transaction.abort.timed.out.transaction.cleanup.interval.ms
    abort_timed_out_interval_ms: int = 10_000
    #: transaction.remove.expired.transaction.cleanup.interval.ms
    remove_expired_interval_ms: int = 3_600_000
    request_timeout_ms: int = 30_000  # request.timeout.ms, for the appends of tombstones
    #: Whether what becomes of transactions is noted: not without a history.
    is_noted: bool = False


class Transit(NamedTuple):
    """The result of a transition that is pending; the last two fields are not stored."""

    stored: StoredTransaction
    previous_producer_id: int
    last_epoch: int


class Transaction:
    """The coordinator's state of one transactional id."""

    __slots__ = (
        "has_failed_fence",
        "id",
        "last_epoch",
        "last_update_ms",
        "partitions",
        "pending",
        "previous_producer_id",
        "producer_epoch",
        "producer_id",
        "queued_ms",
        "start_ms",
        "state",
        "timeout_ms",
        "unmarked",
    )

    def __init__(self, transactional_id: str, stored: StoredTransaction) -> None:
        self.id = transactional_id
        self.producer_id = stored.producer_id
        self.producer_epoch = stored.producer_epoch
        self.timeout_ms = stored.timeout_ms
        self.state = stored.state
        self.partitions = dict.fromkeys(stored.partitions)
        self.last_update_ms = stored.last_update_ms
        self.start_ms = stored.start_ms
        #: The producer id and the epoch before the last bump; a failover forgets both.
        self.previous_producer_id = NO_PRODUCER_ID
        self.last_epoch = NO_PRODUCER_EPOCH
        self.pending: TransactionState | None = None
        #: An epoch was bumped in memory and the record of it was refused.
        self.has_failed_fence = False
        #: In Prepare*: the partitions whose marker is not known to be written.
        self.unmarked: set[TopicPartition] = set()
        #: When the coordinator looks for a timeout next; None: not at all.
        self.queued_ms: int | None = None

    @classmethod
    def create(
        cls, transactional_id: str, producer_id: int, timeout_ms: int, now_ms: int
    ) -> Transaction:
        """A new id, which has no epoch until its first record is written."""
        stored = StoredTransaction(
            producer_id, NO_PRODUCER_EPOCH, timeout_ms, S.EMPTY, (), now_ms, NO_TIMESTAMP
        )
        return cls(transactional_id, stored)

    def __repr__(self) -> str:
        return (
            f"<Transaction {self.id} {self.state.label} {self.producer_id}/{self.producer_epoch}>"
        )

    @property
    def deadline_ms(self) -> int:
        """An Ongoing transaction is aborted after this time (TXN-11)."""
        return self.start_ms + self.timeout_ms

    @property
    def stored(self) -> StoredTransaction:
        """The present state, as it is in the log."""
        return StoredTransaction(
            self.producer_id,
            self.producer_epoch,
            self.timeout_ms,
            self.state,
            tuple(self.partitions),
            self.last_update_ms,
            self.start_ms,
        )

    @property
    def is_epoch_exhausted(self) -> bool:
        return self.producer_epoch >= EXHAUSTED_EPOCH

    def describe(self) -> DescribedTransaction:
        """The content of a DescribeTransactions response (TXN-17)."""
        shown = self.partitions if self.state not in PREPARED else self.unmarked
        return DescribedTransaction(
            error=ErrorCode.NONE,
            transactional_id=self.id,
            state=self.state.label,
            timeout_ms=self.timeout_ms,
            start_ms=self.start_ms,
            producer_id=self.producer_id,
            producer_epoch=self.producer_epoch,
            partitions=tuple(shown),
        )

    # Checks

    def check_producer(self, producer_id: int, producer_epoch: int) -> ErrorCode:
        """Whether a request comes from the producer that holds the id now (TXN-4)."""
        if producer_id != self.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if producer_epoch != self.producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.NONE

    def check_init(self, current: ProducerIdAndEpoch | None) -> ErrorCode:
        """Whether InitProducerId may go on (TXN-3, a to c)."""
        if self.pending is not None:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if current is not None and not self._accepts(current):
            return ErrorCode.PRODUCER_FENCED
        return ErrorCode.CONCURRENT_TRANSACTIONS if self.state in PREPARED else ErrorCode.NONE

    def needs_new_producer_id(self, current: ProducerIdAndEpoch | None) -> bool:
        """Whether the epochs of the producer id are used up and the producer knows the last one."""
        return self.is_epoch_exhausted and (
            current is None or current.producer_epoch == self.producer_epoch
        )

    def _accepts(self, current: ProducerIdAndEpoch) -> bool:
        return (
            self.producer_epoch == NO_PRODUCER_EPOCH
            or current.producer_id == self.producer_id
            or (
                current.producer_id == self.previous_producer_id
                and current.producer_epoch >= EXHAUSTED_EPOCH
            )
        )

    # Transitions

    def prepare_rotation(
        self, producer_id: int, timeout_ms: int, *, has_epoch: bool, now_ms: int
    ) -> Transit:
        """Begin anew with a fresh producer id."""
        last_epoch = self.producer_epoch if has_epoch else NO_PRODUCER_EPOCH
        return self._prepare_empty(producer_id, 0, last_epoch, timeout_ms, now_ms)

    def prepare_increment(
        self, current: ProducerIdAndEpoch | None, timeout_ms: int, now_ms: int
    ) -> Transit | ErrorCode:
        """Give the producer the next epoch, or the same again if it asks again (TXN-3, d)."""
        if self.is_epoch_exhausted:
            # Kafka meets a failed assertion here.
            return ErrorCode.UNKNOWN_SERVER_ERROR
        bumped = self.producer_epoch + 1
        if current is None:
            epoch, last_epoch = bumped, NO_PRODUCER_EPOCH
        elif self.producer_epoch in (NO_PRODUCER_EPOCH, current.producer_epoch):
            epoch, last_epoch = bumped, self.producer_epoch
        elif current.producer_epoch == self.last_epoch:
            epoch, last_epoch = self.producer_epoch, self.last_epoch
        else:
            return ErrorCode.PRODUCER_FENCED
        return self._prepare_empty(self.producer_id, epoch, last_epoch, timeout_ms, now_ms)

    def prepare_add(self, partitions: Iterable[TopicPartition], now_ms: int) -> Transit:
        """Begin a transaction, or add partitions to it."""
        start_ms = self.start_ms if self.state is S.ONGOING else now_ms
        known = self.partitions if self.state is S.ONGOING else {}
        merged = (*known, *(each for each in dict.fromkeys(partitions) if each not in known))
        return self._prepare(S.ONGOING, merged, start_ms, now_ms)

    def prepare_end(self, *, is_commit: bool, now_ms: int) -> Transit:
        """Decide the outcome."""
        target = S.PREPARE_COMMIT if is_commit else S.PREPARE_ABORT
        return self._prepare(target, tuple(self.partitions), self.start_ms, now_ms)

    def prepare_fenced_abort(self, now_ms: int) -> Transit:
        """Bump the epoch, so that the producer is fenced, and abort.

        The bump stays in memory if its record is refused; the next attempt does not bump again.
        """
        self._check(S.PREPARE_EPOCH_FENCE)
        if not self.has_failed_fence:
            self.producer_epoch = min(self.producer_epoch + 1, _EPOCH_MAX)
        self.last_epoch = NO_PRODUCER_EPOCH
        return self.prepare_end(is_commit=False, now_ms=now_ms)

    def prepare_complete(self, now_ms: int) -> Transit:
        """Decide that, once all markers are written, the transaction is over."""
        self.has_failed_fence = False
        self.unmarked = set(self.partitions)
        is_commit = self.state is S.PREPARE_COMMIT
        target = S.COMPLETE_COMMIT if is_commit else S.COMPLETE_ABORT
        return self._prepare(target, (), self.start_ms, now_ms)

    def prepare_dead(self) -> None:
        """Begin to remove the id."""
        self._check(S.DEAD)
        self.pending = S.DEAD

    def complete(self, transit: Transit) -> None:
        """Let a transition take effect: its record is replicated."""
        stored = transit.stored
        if self.pending is not stored.state:
            raise IllegalTransitionError(
                f"{self!r} completes {stored.state.label}, but pending is {self.pending}"
            )
        self.producer_id = stored.producer_id
        self.producer_epoch = stored.producer_epoch
        self.timeout_ms = stored.timeout_ms
        self.state = stored.state
        self.partitions = dict.fromkeys(stored.partitions)
        self.last_update_ms = stored.last_update_ms
        self.start_ms = stored.start_ms
        self.previous_producer_id = transit.previous_producer_id
        self.last_epoch = transit.last_epoch
        self.pending = None

    def cancel(self) -> None:
        """Take the pending transition back: its record was refused."""
        self.pending = None

    def _prepare_empty(
        self, producer_id: int, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int
    ) -> Transit:
        self._check(S.EMPTY)
        self.pending = S.EMPTY
        stored = StoredTransaction(
            producer_id, epoch, timeout_ms, S.EMPTY, (), now_ms, NO_TIMESTAMP
        )
        return Transit(stored, self.producer_id, last_epoch)

    def _prepare(
        self,
        target: TransactionState,
        partitions: tuple[TopicPartition, ...],
        start_ms: int,
        now_ms: int,
    ) -> Transit:
        self._check(target)
        self.pending = target
        stored = StoredTransaction(
            self.producer_id,
            self.producer_epoch,
            self.timeout_ms,
            target,
            partitions,
            now_ms,
            start_ms,
        )
        return Transit(stored, self.previous_producer_id, self.last_epoch)

    def _check(self, target: TransactionState) -> None:
        if self.pending is not None or self.state not in ENTERED_FROM[target]:
            raise IllegalTransitionError(
                f"{self!r} cannot become {target.label} (pending: {self.pending})"
            )
