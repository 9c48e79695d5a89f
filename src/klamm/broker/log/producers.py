"""The producer state manager of a log: idempotent producers and open transactions.

The state follows from the log's batches alone: every replica builds the same state, so that a new
leader recognizes a retry of a batch that its predecessor appended. Snapshot files save reading the
log from its start.
"""

from __future__ import annotations

import logging
import os
import struct
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from crc32c import crc32c

from klamm.broker.log.errors import AppendError
from klamm.broker.log.files import Files
from klamm.broker.log.names import PRODUCER_SNAPSHOT, parse_segment_file, segment_name
from klamm.protocol.codes import ErrorCode
from klamm.protocol.records import BatchHeader

logger = logging.getLogger(__name__)

NO_PRODUCER: Final = -1
NO_SEQUENCE: Final = -1
NO_OFFSET: Final = -1
_LAST_SEQUENCE: Final = 2**31 - 1
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
    """What the one record of a control batch says."""

    is_abort: bool
    coordinator_epoch: int


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

    def __init__(self, replica: Path, files: Files, expiration_ms: int) -> None:
        self._replica = replica
        self._files = files
        self._expiration_ms = expiration_ms
        self._states: dict[int, ProducerStateEntry] = {}
        self._open_transactions: dict[int, int] = {}
        #: Finished, but with a marker that may not be committed yet; by first offset.
        self._unsettled: dict[int, CompletedTxn] = {}
        found = map(parse_segment_file, os.listdir(replica))
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
        state = self._states.get(header.producer_id)
        if state is None:
            return
        epoch, first = header.producer_epoch, header.base_sequence
        if epoch < state.epoch:
            raise AppendError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"Epoch of producer {header.producer_id} is {epoch}, which is smaller than the "
                f"last seen epoch {state.epoch}",
            )
        if sequence:
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
            self._open_transactions[header.producer_id] = base_offset

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
        self._unsettled[start] = done
        return done

    def _enter(self, header: BatchHeader) -> ProducerStateEntry:
        """The state of the batch's producer; a new epoch has no earlier batches."""
        state = self._states.get(header.producer_id)
        if state is None:
            state = self._states[header.producer_id] = ProducerStateEntry(header.producer_epoch)
        elif state.epoch != header.producer_epoch:
            state.batches.clear()
            state.epoch = header.producer_epoch
        return state

    def settle(self, high_watermark: int) -> None:
        """Forget finished transactions whose marker is committed."""
        if self._unsettled:
            self._unsettled = {
                start: done
                for start, done in self._unsettled.items()
                if done.last_offset >= high_watermark
            }

    @property
    def first_unstable_offset(self) -> int | None:
        """Where the earliest transaction begins that a reader may not look past."""
        if not (self._open_transactions or self._unsettled):
            return None
        return min([*self._open_transactions.values(), *self._unsettled])

    def stable_end_after(self, completed: CompletedTxn) -> int:
        """The last stable offset once `completed` no longer counts."""
        others = [
            start for pid, start in self._open_transactions.items() if pid != completed.producer_id
        ]
        return min(others, default=completed.last_offset + 1)

    def expire(self, now_ms: int) -> None:
        """Forget producers that have been silent for too long and have nothing open."""
        expired = [pid for pid, state in self._states.items() if self._is_expired(state, now_ms)]
        for pid in expired:
            del self._states[pid]

    def _is_expired(self, state: ProducerStateEntry, now_ms: int) -> bool:
        is_idle = now_ms - state.timestamp >= self._expiration_ms
        return is_idle and state.transaction_start == NO_OFFSET

    # -- snapshots

    def clear(self) -> None:
        self._states.clear()
        self._open_transactions.clear()
        self._unsettled.clear()

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

    def _snapshot(self, offset: int) -> Path:
        return self._replica / (segment_name(offset) + PRODUCER_SNAPSHOT)

    def _read_snapshot(self, path: Path, now_ms: int) -> None:
        content = path.read_bytes()
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
                self._open_transactions[pid] = start


def _sequence_after(last: int) -> int:
    return 0 if last == _LAST_SEQUENCE else last + 1


def _sequence_before(last: int, delta: int) -> int:
    """The first sequence of a batch that ended with `last`."""
    if last == NO_SEQUENCE:
        return NO_SEQUENCE
    first = last - delta
    return first if first >= 0 else first + _LAST_SEQUENCE + 1
