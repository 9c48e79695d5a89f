"""The calls that change files, behind one object.

This package writes, syncs, renames and deletes through a `Files`. `REAL_FILES` calls the operating
system directly. The simulation uses another one that tears writes, fills the disk or loses what was
not synced. Reads need no such object, because tests can prepare damaged files.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

Buffer = bytes | bytearray | memoryview

_WRITE_OVER: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC


class OpenFile:
    """A file descriptor that is closed when this object is garbage-collected.

    A segment may be deleted, or an index sealed, while a response still sends from its file. The
    file stays open while this object is referenced, so keep the object as long as `fd` is in use.
    """

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd: Final = fd

    def __del__(self) -> None:
        os.close(self.fd)


class Files:
    """The operating system's file calls."""

    open = staticmethod(os.open)
    pwritev = staticmethod(os.pwritev)
    ftruncate = staticmethod(os.ftruncate)
    fsync = staticmethod(os.fsync)
    replace = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)

    def open_file(self, path: Path, *, create: bool = False) -> OpenFile:
        """Open a file for reading and writing."""
        how = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return OpenFile(self.open(path, how, 0o644))

    def write_all(self, fd: int, buffers: Sequence[Buffer], position: int) -> None:
        """Write all of `buffers` at `position`, going on after a short write."""
        left = [memoryview(buffer) for buffer in buffers]
        while left:
            written = self.pwritev(fd, left, position)
            position += written
            while left and written >= len(left[0]):
                written -= len(left.pop(0))
            if left:
                left[0] = left[0][written:]

    def replace_content(self, path: Path, content: bytes, *, sync: bool) -> None:
        """Put `content` at `path` in one step: a reader finds the old or the new, never a part.

        With `sync` that also holds if the machine loses its power.
        """
        beside = path.with_name(path.name + ".tmp")
        file = OpenFile(self.open(beside, _WRITE_OVER, 0o644))
        self.write_all(file.fd, [content], 0)
        if sync:
            self.fsync(file.fd)
        self.replace(beside, path)
        if sync:
            self.sync_directory(path.parent)

    def sync_path(self, path: Path) -> None:
        """Sync a file that is not open here; a deleted file needs no sync."""
        with suppress(FileNotFoundError):
            file = OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            self.fsync(file.fd)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable: creations, renames and deletions."""
        self.sync_path(path)

    def delete(self, path: Path) -> None:
        """Remove a file that may be gone already."""
        with suppress(FileNotFoundError):
            self.unlink(path)


def size_of(path: Path) -> int | None:
    """The size of a file, None if there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


REAL_FILES: Final = Files()
