"""A broker's disks: real files in memory, and the ways in which disks disappoint.

What a crashed process has written stays, as it does in the page cache. A torn write is one that the
crash came in the middle of. A full disk refuses to grow. The loss of power takes what was not
synced, and is dealt out only where Kafka's promise covers it.
"""

import errno
import os
import random
from collections.abc import Sequence
from pathlib import Path

from klamm.broker.log.files import Buffer, Files
from tests.simulation.loop import Process, ProcessExit


class SimulatedFiles(Files):
    """The files of one broker, over all its lives."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.process: Process
        self.is_torn_next = False
        #: Directories without room.
        self.full: set[Path] = set()
        self._chance = chance
        self._paths: dict[int, Path] = {}
        self._synced: dict[Path, int] = {}

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:  # type: ignore[override]
        fd = os.open(path, flags, mode)
        self._paths[fd] = Path(path)
        return fd

    def pwritev(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:  # type: ignore[override]
        path = self._paths[fd]
        if self.full and not self.full.isdisjoint(path.parents):
            raise OSError(errno.ENOSPC, "No space left on device")
        if self.is_torn_next and path.suffix == ".log":
            self.is_torn_next = False
            content = b"".join(buffers)
            os.pwrite(fd, content[: self._chance.randrange(len(content) + 1)], position)
            self.process.end()
            raise ProcessExit
        if path.suffix == ".log":
            # What was synced is overwritten only after a truncation.
            self._synced[path] = min(self._synced.get(path, 0), position)
        return os.pwritev(fd, buffers, position)

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        """Nothing to wait for; but what is there now would survive the loss of power."""
        self.note_synced(fd)

    def note_synced(self, fd: int) -> None:
        path = self._paths.get(fd)
        if path is not None and path.suffix == ".log":
            self._synced[path] = os.fstat(fd).st_size

    def ftruncate(self, fd: int, size: int) -> None:  # type: ignore[override]
        path = self._paths[fd]
        if path in self._synced:
            self._synced[path] = min(self._synced[path], size)
        os.ftruncate(fd, size)

    def lose_unsynced(self) -> int:
        """The power was off: how many bytes of logs are gone."""
        lost = 0
        for path in sorted({path for path in self._paths.values() if path.suffix == ".log"}):
            if path.exists():
                keep = self._synced.get(path, 0)
                size = path.stat().st_size
                if size > keep:
                    os.truncate(path, keep)
                    lost += size - keep
        return lost
