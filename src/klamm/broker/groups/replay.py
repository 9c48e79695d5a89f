"""The replay of a `__consumer_offsets` partition: it rebuilds groups from batches."""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from klamm.broker.groups.offsets import PlacedOffset
from klamm.broker.groups.records import (
    GroupKey,
    OffsetKey,
    StoredGroup,
    decode_group_value,
    decode_key,
    decode_offset_value,
)
from klamm.errors import RemoteProtocolError
from klamm.names import TopicPartition

NO_PRODUCER: Final = -1
#: The key of a control record: its version, and 0 for abort or 1 for commit.
_CONTROL_KEY: Final = struct.Struct(">hh")
_COMMIT: Final = 1


@dataclass(frozen=True, slots=True)
class ReplayBatch:
    """The parts of a batch that a replay needs."""

    records: Sequence[tuple[bytes | None, bytes | None]]  # key and value
    producer_id: int = NO_PRODUCER
    is_transactional: bool = False
    is_control: bool = False


@dataclass(slots=True)
class ReplayedGroup:
    """The state of one group that a replay has found."""

    stored: StoredGroup | None = None  # None: no members ever, only offsets
    offsets: dict[TopicPartition, PlacedOffset] = field(default_factory=dict)
    open_transactions: dict[int, dict[TopicPartition, PlacedOffset]] = field(default_factory=dict)


class Replay:
    """Folds batches, in the order of the log, into the groups they describe."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch  # of the leader on whose behalf the log is read
        self.ignored = 0  # records that could not be understood
        self._batches = 0
        #: Markers that were appended while the log was read: producer id, whether it committed.
        self.late_markers: list[tuple[int, bool]] = []
        self._groups: dict[str, StoredGroup] = {}
        self._offsets: dict[OffsetKey, PlacedOffset] = {}
        self._transactions: dict[int, dict[OffsetKey, PlacedOffset]] = {}  # by producer id

    def read(self, batch: ReplayBatch) -> None:
        """Apply one batch."""
        self._batches += 1
        if batch.is_control:
            self._end_transaction(batch)
            return
        offsets = (
            self._transactions.setdefault(batch.producer_id, {})
            if batch.is_transactional
            else self._offsets
        )
        for key, value in batch.records:
            try:
                self._read_record(key, value, offsets)
            except RemoteProtocolError:
                # One unreadable record must not lose the other groups.
                self.ignored += 1

    def groups(self) -> Iterator[tuple[str, ReplayedGroup]]:
        """The groups that are left at the end of the log."""
        groups = {group_id: ReplayedGroup(stored) for group_id, stored in self._groups.items()}
        # What a coordinator writes from now on comes later than all of the log.
        first = self._batches + 1
        for key, (batch, committed) in self._offsets.items():
            group = groups.setdefault(key.group_id, ReplayedGroup())
            name = TopicPartition(key.topic, key.partition)
            group.offsets[name] = PlacedOffset(batch - first, committed)
        for producer_id, offsets in self._transactions.items():
            for key, (batch, committed) in offsets.items():
                group = groups.setdefault(key.group_id, ReplayedGroup())
                pending = group.open_transactions.setdefault(producer_id, {})
                name = TopicPartition(key.topic, key.partition)
                pending[name] = PlacedOffset(batch - first, committed)
        yield from groups.items()

    def _read_record(
        self, key: bytes | None, value: bytes | None, offsets: dict[OffsetKey, PlacedOffset]
    ) -> None:
        if key is None:
            raise RemoteProtocolError("a record of the offsets topic without a key")
        match decode_key(key):
            case OffsetKey() as offset_key:
                if value is None:
                    offsets.pop(offset_key, None)
                else:
                    offsets[offset_key] = PlacedOffset(self._batches, decode_offset_value(value))
            case GroupKey(group_id):
                if value is None:
                    self._groups.pop(group_id, None)
                else:
                    self._groups[group_id] = decode_group_value(value)
            case None:
                self.ignored += 1

    def _end_transaction(self, batch: ReplayBatch) -> None:
        offsets = self._transactions.pop(batch.producer_id, {})
        key = batch.records[0][0] if batch.records else None
        if key is None or len(key) < _CONTROL_KEY.size:
            self.ignored += 1
            return
        if _CONTROL_KEY.unpack_from(key)[1] != _COMMIT:
            return
        for offset_key, placed in offsets.items():
            previous = self._offsets.get(offset_key)
            # An offset that was committed after this one, outside the transaction, stays.
            if previous is None or previous.number < placed.number:
                self._offsets[offset_key] = placed
