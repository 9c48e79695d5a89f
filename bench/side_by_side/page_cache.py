"""A page cache without free memory beside it, as a machine has that has run for a while.

A virtual machine returns memory that is free to its host, and a copy into memory that the host has
to give first takes several times as long as one into memory that is there. Which of two clusters
meets such memory is chance: the processor time of a broker for the same records varied threefold.
With a large file in the page cache there is no free memory, and what brokers write takes the place
of parts of that file.
"""

import os
import shutil
from pathlib import Path

#: Memory that brokers, clients and the kernel need beside the page cache.
_LEFT_FREE_BYTES = 6 << 30
#: The file takes no more than this share of the disk's free space: rows need some, too.
_DISK_SHARE = 0.3
_PIECE_BYTES = 1 << 20


class PageCache:
    """Keeps the page cache full with a file in `directory`."""

    def __init__(self, directory: Path) -> None:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        room = int(shutil.disk_usage(directory).free * _DISK_SHARE)
        size = max(0, min(memory - _LEFT_FREE_BYTES, room))
        self._path = directory / "page-cache"
        piece = os.urandom(_PIECE_BYTES)
        with open(self._path, "wb", buffering=0) as file:
            for _ in range(size // _PIECE_BYTES):
                file.write(piece)
            os.fsync(file.fileno())

    def fill(self) -> None:
        """Read the file, so that no memory is free; what is there already takes a second."""
        piece = bytearray(_PIECE_BYTES)
        with open(self._path, "rb", buffering=0) as file:
            while file.readinto(piece):
                pass
