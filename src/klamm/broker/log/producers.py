"""The producer state manager of a log: idempotent producers and open transactions.

The state follows from the log's batches alone: every replica builds the same state, so that a new
leader recognizes a retry of a batch that its predecessor appended. Snapshot files save reading the
log from its start.
"""

from __future__ import annotations

import heapq
import logging
import struct
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from klamm.broker.log.errors import AppendError
from klamm.broker.log.files import Files, read_bytes
from klamm.broker.log.names import PRODUCER_SNAPSHOT, parse_segment_file, segment_name
from klamm.protocol.codes import ErrorCode
from klamm.protocol.records import BatchHeader

logger = logging.getLogger(__name__)

NO_PRODUCER: Final = -1
NO_SEQUENCE: Final = -1
NO_OFFSET: Final = -1
_LAST_SEQUENCE: Final = 2**31 - 1
#: A transaction that is open for this much longer than any may be is late.
_LATE_BUFFER_MS: Final = 300_000
#: How many batches of a producer can be recognized when they are sent again.
REMEMBERED_BATCHES: Final = 5

_SNAPSHOT_VERSION: Final = 1
_SNAPSHOT_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
#: producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch,
#: first offset of the open transaction.
_SNAPSHOT_ENTRY: Final = struct.Struct(">qhiqiqiq")


class BatchMetadata(NamedTuple):
    """A batch that was appended, as far as it is needed to recognize a retry."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class CompletedTxn(NamedTuple):
    """A transaction whose marker has been appended."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class EndTransactionMarker(NamedTuple):
    """The content of a transaction marker."""

    is_abort: bool
    coordinator_epoch: int


class VerificationStateEntry:
    """A question to the transaction coordinator that is under way, or answered and not used yet.

    It is compared by identity: a batch has to come with the very verification that was begun for
    its producer, so that no marker can fall between the question and the append (TXN-12).
    """

    __slots__ = ("epoch", "lowest_sequence", "since_ms")

    def __init__(self, epoch: int, lowest_sequence: int, since_ms: int) -> None:
        self.epoch = epoch
        self.lowest_sequence = lowest_sequence
        self.since_ms = since_ms

    def meet(self, epoch: int, sequence: int) -> None:
        """Note the first sequence of another batch that waits for the same verification."""
        if epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)
        elif epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence


@dataclass(slots=True)
class ProducerStateEntry:
    """One producer id on one partition."""

    epoch: int
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=REMEMBERED_BATCHES))
    timestamp: int = -1
    coordinator_epoch: int = -1
    transaction_start: int = NO_OFFSET

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET


def last_sequence_of(first: int, delta: int) -> int:
    """Sequences wrap from 2^31 - 1 to 0, also within a batch."""
    if first == NO_SEQUENCE:
        return NO_SEQUENCE
    last = first + delta
    return last if last <= _LAST_SEQUENCE else last - _LAST_SEQUENCE - 1


class ProducerStateManager:
    """The producers of one log."""

    def __init__(
        self, replica: Path, files: Files, expiration_ms: int, names: Iterable[str]
    ) -> None:
        """`names` are the files in the replica's directory."""
        self._replica = replica
        self._files = files
        self._expiration_ms = expiration_ms
        self._states: dict[int, ProducerStateEntry] = {}
        self._open_transactions: dict[int, int] = {}
        #: Finished, but with a marker that may not be committed yet; in the order of markers.
        self._unsettled: deque[CompletedTxn] = deque()
        #: Heaps of the first offsets of open and of unsettled transactions. An entry that is
        #: neither any more is dropped when it comes to the top.
        self._open_starts: list[tuple[int, int]] = []
        self._unsettled_starts: list[int] = []
        self._is_unsettled: set[int] = set()
        #: Where the earliest transaction begins that a reader may not look past.
        self.first_unstable_offset: int | None = None
        self._verifications: dict[int, VerificationStateEntry] = {}
        found = (parse_segment_file(name) for name in names if name.endswith(PRODUCER_SNAPSHOT))
        self._snapshots = {
            parsed[0] for parsed in found if parsed and parsed[1] == PRODUCER_SNAPSHOT
        }

    def __len__(self) -> int:
        return len(self._states)

    def get(self, producer_id: int) -> ProducerStateEntry | None:
        return self._states.get(producer_id)

    def last_offsets(self) -> dict[int, int]:
        """The offset of the last data record of each producer that has any."""
        known = {pid: state.last_offset for pid, state in list(self._states.items())}
        return {pid: offset for pid, offset in known.items() if offset != NO_OFFSET}

    # -- a batch from a client

    def find_duplicate(self, header: BatchHeader) -> BatchMetadata | None:
        """The batch that `header` repeats, if it is one of the last few of its producer."""
        state = self._states.get(header.producer_id)
        if state is None or state.epoch != header.producer_epoch:
            return None
        first = header.base_sequence
        last = last_sequence_of(first, header.last_offset_delta)
        for batch in state.batches:
            if batch.first_sequence == first and batch.last_sequence == last:
                return batch
        return None

    def check(self, header: BatchHeader, *, sequence: bool = True) -> None:
        """Raise if the batch may not follow what its producer wrote before; change nothing."""
        epoch, first = header.producer_epoch, header.base_sequence
        state = self._states.get(header.producer_id)
        if state is None:
            if sequence:
                self._check_verified_sequence(header)
            return
        if epoch < state.epoch:
            raise AppendError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {header.producer_id} is {epoch}, which is smaller than the "
                f"last seen epoch {state.epoch}",
            )
        if sequence:
            self._check_verified_sequence(header)
            expected = _sequence_after(state.last_sequence) if epoch == state.epoch else 0
            if first != expected:
                raise AppendError(
                    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                    f"Out of order sequence number for producer {header.producer_id}: {first} "
                    f"(incoming seq. number), {expected} (expected), epoch {epoch} after "
                    f"{state.epoch}",
                )
        if state.transaction_start != NO_OFFSET and not header.is_transactional:
            raise AppendError(
                ErrorCode.INVALID_TXN_STATE,
                f"Expected transactional write from producer {header.producer_id}",
            )

    def check_marker(self, header: BatchHeader, coordinator_epoch: int) -> None:
        """Raise if a marker comes from a fenced producer epoch or coordinator (TXN-7)."""
        state = self._states.get(header.producer_id)
        if state is None:
            return
        if header.producer_epoch < state.epoch:
            raise AppendError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {header.producer_id} is {header.producer_epoch}, which is "
                f"smaller than the last seen epoch {state.epoch}",
            )
        if coordinator_epoch < state.coordinator_epoch:
            raise AppendError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"Coordinator epoch {coordinator_epoch} of a marker of producer "
                f"{header.producer_id} is smaller than the last seen {state.coordinator_epoch}",
            )

    # -- verification of transactions

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, now_ms: int
    ) -> VerificationStateEntry | None:
        """What the first batch of a transaction has to be verified with; None if it is open."""
        if producer_id in self._open_transactions:
            return None
        verification = self._verifications.get(producer_id)
        if verification is None:
            verification = VerificationStateEntry(epoch, sequence, now_ms)
            self._verifications[producer_id] = verification
        else:
            verification.meet(epoch, sequence)
        return verification

    def check_verified(
        self, header: BatchHeader, verification: VerificationStateEntry | None
    ) -> None:
        """Raise if a transactional batch begins a transaction that was not verified."""
        if header.producer_id in self._open_transactions:
            return
        if verification is None or self._verifications.get(header.producer_id) is not verification:
            raise AppendError(
                ErrorCode.INVALID_TXN_STATE, "Record was not part of an ongoing transaction"
            )

    def _check_verified_sequence(self, header: BatchHeader) -> None:
        verification = self._verifications.get(header.producer_id)
        if verification is not None and header.base_sequence > verification.lowest_sequence:
            raise AppendError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"Out of order sequence number for producer {header.producer_id}: "
                f"{header.base_sequence} (incoming seq. number), "
                f"{verification.lowest_sequence} (earliest seen sequence)",
            )

    # -- a batch that is in the log

    def update(self, header: BatchHeader, base_offset: int) -> None:
        """Take in a batch of data that has been appended at `base_offset`."""
        state = self._enter(header)
        first, delta = header.base_sequence, header.last_offset_delta
        state.batches.append(
            BatchMetadata(
                first,
                last_sequence_of(first, delta),
                base_offset,
                base_offset + delta,
                header.max_timestamp,
            )
        )
        state.timestamp = header.max_timestamp
        if header.is_transactional and state.transaction_start == NO_OFFSET:
            state.transaction_start = base_offset
            self._open(header.producer_id, base_offset)

    def complete(
        self, header: BatchHeader, base_offset: int, marker: EndTransactionMarker
    ) -> CompletedTxn | None:
        """Take in a transaction marker; None if the transaction had no data here."""
        state = self._enter(header)
        state.coordinator_epoch = marker.coordinator_epoch
        state.timestamp = header.max_timestamp
        start, state.transaction_start = state.transaction_start, NO_OFFSET
        self._open_transactions.pop(header.producer_id, None)
        if start == NO_OFFSET:
            return None
        done = CompletedTxn(header.producer_id, start, base_offset, marker.is_abort)
        self._unsettled.append(done)
        self._is_unsettled.add(start)
        heapq.heappush(self._unsettled_starts, start)
        self._find_first_unstable()
        return done

    def _open(self, producer_id: int, start: int) -> None:
        self._open_transactions[producer_id] = start
        heapq.heappush(self._open_starts, (start, producer_id))
        self._find_first_unstable()

    def _find_first_unstable(self) -> None:
        opened, unsettled = self._open_starts, self._unsettled_starts
        while opened and self._open_transactions.get(opened[0][1]) != opened[0][0]:
            heapq.heappop(opened)
        while unsettled and unsettled[0] not in self._is_unsettled:
            heapq.heappop(unsettled)
        firsts = [start for start, _ in opened[:1]] + unsettled[:1]
        self.first_unstable_offset = min(firsts, default=None)

    def _enter(self, header: BatchHeader) -> ProducerStateEntry:
        """The state of the batch's producer; a new epoch has no earlier batches.

        Any batch or marker ends a verification.
        """
        self._verifications.pop(header.producer_id, None)
        state = self._states.get(header.producer_id)
        if state is None:
            state = self._states[header.producer_id] = ProducerStateEntry(header.producer_epoch)
        elif state.epoch != header.producer_epoch:
            state.batches.clear()
            state.epoch = header.producer_epoch
        return state

    def settle(self, high_watermark: int) -> None:
        """Forget finished transactions whose marker is committed."""
        unsettled = self._unsettled
        if unsettled and unsettled[0].last_offset < high_watermark:
            while unsettled and unsettled[0].last_offset < high_watermark:
                self._is_unsettled.discard(unsettled.popleft().first_offset)
            self._find_first_unstable()

    def stable_end_after(self, completed: CompletedTxn) -> int:
        """The last stable offset once `completed`, which is no longer open, does not count."""
        opened = self._open_starts
        return opened[0][0] if opened else completed.last_offset + 1

    def has_late_transaction(self, now_ms: int, max_timeout_ms: int) -> bool:
        """Whether the earliest open transaction should long have been ended (TXN-20)."""
        opened = self._open_starts
        if not opened:
            return False
        heard_ms = self._states[opened[0][1]].timestamp
        return heard_ms > 0 and now_ms - heard_ms > max_timeout_ms + _LATE_BUFFER_MS

    def __iter__(self) -> Iterator[tuple[int, ProducerStateEntry]]:
        """Producer ids and their states, for DescribeProducers."""
        return iter(list(self._states.items()))

    def expire(self, now_ms: int) -> None:
        """Forget producers that have been silent for too long and have nothing open."""
        expired = [pid for pid, state in self._states.items() if self._is_expired(state, now_ms)]
        for pid in expired:
            del self._states[pid]
        for pid, verification in list(self._verifications.items()):
            if now_ms - verification.since_ms >= self._expiration_ms:
                del self._verifications[pid]

    def _is_expired(self, state: ProducerStateEntry, now_ms: int) -> bool:
        is_idle = now_ms - state.timestamp >= self._expiration_ms
        return is_idle and state.transaction_start == NO_OFFSET

    # -- snapshots

    def clear(self) -> None:
        self._states.clear()
        self._open_transactions.clear()
        self._unsettled.clear()
        self._is_unsettled.clear()
        self._open_starts.clear()
        self._unsettled_starts.clear()
        self._verifications.clear()
        self.first_unstable_offset = None

    def snapshots(self) -> list[int]:
        """The offsets for which there is a snapshot, ascending."""
        return sorted(self._snapshots)

    def take_snapshot(self, end_offset: int) -> None:
        """Write what is known, which is all that can be known from the offsets below."""
        entries = b"".join(
            _SNAPSHOT_ENTRY.pack(
                producer_id,
                state.epoch,
                state.last_sequence,
                state.last_offset,
                state.batches[-1].last_offset - state.batches[-1].first_offset
                if state.batches
                else 0,
                state.timestamp,
                state.coordinator_epoch,
                state.transaction_start,
            )
            for producer_id, state in self._states.items()
        )
        body = _COUNT.pack(len(self._states)) + entries
        head = _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c(body))
        self._files.replace_content(self._snapshot(end_offset), head + body, sync=False)
        self._snapshots.add(end_offset)

    def sync_snapshot(self, offset: int) -> None:
        self._files.sync_path(self._snapshot(offset))

    def load_snapshot(self, up_to: int, now_ms: int) -> int | None:
        """Start from the newest usable snapshot for `up_to`, or else from nothing.

        The response is the offset from which on the log has to be read for the rest; None means
        from its start. Damaged snapshots are deleted.
        """
        for offset in reversed(self.snapshots()):
            if offset > up_to:
                continue
            self.clear()
            try:
                self._read_snapshot(self._snapshot(offset), now_ms)
            except (ValueError, struct.error) as error:
                logger.warning("%s is damaged: %s", self._snapshot(offset), error)
                self.delete_snapshot(offset)
            else:
                return offset
        self.clear()
        return None

    def delete_snapshots_above(self, end_offset: int) -> None:
        for offset in self.snapshots():
            if offset > end_offset:
                self.delete_snapshot(offset)

    def delete_snapshot(self, end_offset: int) -> None:
        if end_offset in self._snapshots:
            self._files.delete(self._snapshot(end_offset))
            self._snapshots.discard(end_offset)

    def _snapshot(self, offset: int) -> str:
        return f"{self._replica}/{segment_name(offset)}{PRODUCER_SNAPSHOT}"

    def _read_snapshot(self, path: str, now_ms: int) -> None:
        content = read_bytes(path)
        version, crc = _SNAPSHOT_HEAD.unpack_from(content)
        body = content[_SNAPSHOT_HEAD.size :]
        if version != _SNAPSHOT_VERSION or crc32c(body) != crc:
            raise ValueError("version or checksum is wrong")
        (count,) = _COUNT.unpack_from(body)
        entries = list(_SNAPSHOT_ENTRY.iter_unpack(body[_COUNT.size :]))
        if len(entries) != count:
            raise ValueError(f"it announces {count} producers and has {len(entries)}")
        for pid, epoch, sequence, offset, delta, timestamp, coordinator, start in entries:
            state = ProducerStateEntry(epoch, timestamp=timestamp, coordinator_epoch=coordinator)
            state.transaction_start = start
            if offset >= 0:
                first = _sequence_before(sequence, delta)
                state.batches.append(
                    BatchMetadata(first, sequence, offset - delta, offset, timestamp)
                )
            if not self._is_expired(state, now_ms):
                self._states[pid] = state
            if start != NO_OFFSET:
                self._open(pid, start)


def _sequence_after(last: int) -> int:
    return 0 if last == _LAST_SEQUENCE else last + 1


def _sequence_before(last: int, delta: int) -> int:
    """The first sequence of a batch that ended with `last`."""
    if last == NO_SEQUENCE:
        return NO_SEQUENCE
    first = last - delta
    return first if first >= 0 else first + _LAST_SEQUENCE + 1
