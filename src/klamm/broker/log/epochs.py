"""The leader epoch cache: the start offset of each epoch, which shows where logs diverge."""

from __future__ import annotations

import logging
from bisect import bisect_right
from pathlib import Path
from typing import Final, NamedTuple

from klamm.broker.log.checkpoints import LEADER_EPOCHS, decode_checkpoint, encode_checkpoint
from klamm.broker.log.directory import LogDirectory
from klamm.broker.log.files import Files, read_bytes

logger = logging.getLogger(__name__)

NO_EPOCH: Final = -1
NO_OFFSET: Final = -1


class EpochEntry(NamedTuple):
    """An epoch and the offset of the first record written under it."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """An epoch and its end offset; both -1 if undefined."""

    epoch: int
    end_offset: int


UNDEFINED_END: Final = EpochEnd(NO_EPOCH, NO_OFFSET)


class LeaderEpochCache:
    """The epochs of one log, strictly increasing in epoch and in start offset.

    Every change is in the checkpoint file before the call returns, but synced only by `sync`,
    which precedes each move of the recovery point: what lies beyond that point is read again
    after a power cut, and the epochs of its batches with it.
    """

    def __init__(self, replica: Path, files: Files, directory: LogDirectory) -> None:
        self._path = f"{replica}/{LEADER_EPOCHS}"
        self._files = files
        self.directory = directory
        self._entries: list[EpochEntry] = []
        self.latest = NO_EPOCH
        self._latest_start = NO_OFFSET

    def load(self) -> bool:
        """Read the epochs as last written; return whether the file could be read."""
        try:
            lines = decode_checkpoint(read_bytes(self._path))
            entries = [EpochEntry(int(epoch), int(start)) for epoch, start in lines]
        except FileNotFoundError:
            return False
        except ValueError as error:
            logger.warning("%s is damaged and ignored: %s", self._path, error)
            return False
        for entry in entries:
            self._add(entry)
        return True

    @property
    def entries(self) -> tuple[EpochEntry, ...]:
        return tuple(self._entries)

    def assign(self, epoch: int, start_offset: int) -> None:
        """Record that `epoch` starts at `start_offset`. Cheap if that is known already."""
        if epoch == self.latest and start_offset >= self._latest_start:
            return
        if epoch < 0:
            return
        self._add(EpochEntry(epoch, start_offset))
        self._write()

    def assign_if_newer(self, epoch: int, start_offset: int) -> None:
        """Record an epoch that was found in the log, unless this or a later one is known."""
        if epoch > self.latest:
            self.assign(epoch, start_offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> EpochEnd:
        """The end offset of `epoch`, or of the latest epoch before it."""
        if epoch == NO_EPOCH or epoch > self.latest:
            return UNDEFINED_END
        if epoch == self.latest:
            return EpochEnd(epoch, log_end_offset)
        after = bisect_right(self._entries, epoch, key=_epoch_of)
        at = self._entries[after - 1].epoch if after else epoch
        return EpochEnd(at, self._entries[after].start_offset)

    def truncate_from(self, offset: int) -> None:
        """Forget epochs that began at or after `offset`, one without any record included."""
        kept = [entry for entry in self._entries if entry.start_offset < offset]
        self._replace(kept)

    def truncate_before(self, offset: int) -> None:
        """Forget the epochs before `offset`; the epoch at `offset` starts there."""
        after = bisect_right(self._entries, offset, key=_start_of)
        if not after:
            return
        in_force = EpochEntry(self._entries[after - 1].epoch, offset)
        self._replace([in_force, *self._entries[after:]])

    def clear(self) -> None:
        self._replace([])

    def sync(self) -> None:
        """Make the checkpoint durable. Slow: it waits for the disk."""
        self._files.sync_path(self._path)

    def _add(self, new: EpochEntry) -> None:
        entries = self._entries
        while entries and (
            entries[-1].epoch >= new.epoch or entries[-1].start_offset >= new.start_offset
        ):
            entries.pop()
        entries.append(new)
        self.latest, self._latest_start = new

    def _replace(self, entries: list[EpochEntry]) -> None:
        if entries == self._entries:
            return
        self._entries = entries
        self.latest, self._latest_start = entries[-1] if entries else (NO_EPOCH, NO_OFFSET)
        self._write()

    def _write(self) -> None:
        lines = (f"{entry.epoch} {entry.start_offset}" for entry in self._entries)
        try:
            self._files.replace_content(self._path, encode_checkpoint(lines), sync=False)
        except OSError as error:
            raise self.directory.fail(error) from error


def _epoch_of(entry: EpochEntry) -> int:
    return entry.epoch


def _start_of(entry: EpochEntry) -> int:
    return entry.start_offset
