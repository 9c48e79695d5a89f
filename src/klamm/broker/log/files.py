"""The calls that change files, behind one object.

This package writes, syncs, renames and deletes through a `Files`. `REAL_FILES` calls the operating
system directly. The simulation uses another one that tears writes, fills the disk or loses what was
not synced. Reads need no such object, because tests can prepare damaged files.
"""

from __future__ import annotations

import os
import resource
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

Buffer = bytes | bytearray | memoryview
AnyPath = str | Path

_READ_BYTES: Final = 65_536
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


class LogFile:
    """A file of a log that is opened when it is needed, and closed when too many files are open.

    A broker may have more replicas than a process may have files. Any thread may use the file: hold
    on to what `opened` has returned while its descriptor is in use.
    """

    __slots__ = ("__weakref__", "_file", "_files", "_naming", "name")

    def __init__(self, name: str, files: Files) -> None:
        self.name = name
        self._files = files
        self._file: OpenFile | None = None
        #: Held while the file is renamed or opened by its name.
        self._naming = threading.Lock()

    @property
    def path(self) -> Path:
        return Path(self.name)

    def opened(self, *, create: bool = False) -> OpenFile:
        """The open file; FileNotFoundError if it does not exist and is not to be created."""
        return self._file or self._open(create)

    def _open(self, create: bool) -> OpenFile:
        with self._naming:
            file = self._file
            if file is None:
                file = self._file = self._files.open_file(self.name, create=create)
                self._files.note_open(self)
            return file

    def opened_briefly(self) -> OpenFile:
        """The open file, or one that is closed after its use."""
        if self._file is not None:
            return self._file
        with self._naming:
            return self._files.open_file(self.name)

    def create(self) -> None:
        """Create the file if it does not exist, and leave it closed."""
        if self._file is None:
            with self._naming:
                self._files.open_file(self.name, create=True)

    def close(self) -> None:
        """Close the file as soon as no reader has it; it may be opened again."""
        self._file = None

    def rename(self, name: str) -> None:
        with self._naming:
            self._files.replace(self.name, name)
            self.name = name

    def delete(self) -> None:
        self.close()
        self._files.delete(self.name)

    def sync(self) -> None:
        """Make the content durable; a deleted file needs no sync."""
        file = self._file
        if file is not None:
            self._files.fsync(file.fd)
        else:
            self._files.sync_path(self.name)


class Files:
    """The operating system's file calls, and the log files that are open.

    `open_max` is how many log files may be open at a time, half of what the process may open if it
    is not given. The one that was opened first is closed first: a file that is in use is opened
    again at its next use, which costs microseconds once in `open_max` times.
    """

    def __init__(self, open_max: int | None = None) -> None:
        self._open_max = open_max
        self._open_files: deque[weakref.ref[LogFile]] = deque()

    def note_open(self, file: LogFile) -> None:
        """Note that a log file has been opened; close the oldest if there are too many."""
        if self._open_max is None:
            self._open_max = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2
        self._open_files.append(weakref.ref(file))
        if len(self._open_files) > self._open_max:
            oldest = self._open_files.popleft()()
            if oldest is not None:
                oldest.close()

    open = staticmethod(os.open)
    pwritev = staticmethod(os.pwritev)
    ftruncate = staticmethod(os.ftruncate)
    fsync = staticmethod(os.fsync)
    replace = staticmethod(os.replace)
    unlink = staticmethod(os.unlink)

    def open_file(self, path: AnyPath, *, create: bool = False) -> OpenFile:
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

    def replace_content(self, path: AnyPath, content: bytes, *, sync: bool) -> None:
        """Put `content` at `path` in one step: a reader finds the old or the new, never a part.

        With `sync` that also holds if the machine loses its power.
        """
        beside = f"{path}.tmp"
        file = OpenFile(self.open(beside, _WRITE_OVER, 0o644))
        self.write_all(file.fd, [content], 0)
        if sync:
            self.fsync(file.fd)
        self.replace(beside, path)
        if sync:
            self.sync_directory(os.path.dirname(path))

    def sync_path(self, path: AnyPath) -> None:
        """Sync a file that is not open here; a deleted file needs no sync."""
        with suppress(FileNotFoundError):
            file = OpenFile(self.open(path, os.O_RDONLY | os.O_CLOEXEC))
            self.fsync(file.fd)

    def sync_directory(self, path: AnyPath) -> None:
        """Make the names in a directory durable: creations, renames and deletions."""
        self.sync_path(path)

    def delete(self, path: AnyPath) -> None:
        """Remove a file that may be gone already."""
        with suppress(FileNotFoundError):
            self.unlink(path)


def read_bytes(path: AnyPath) -> bytes:
    """The content of a small file."""
    file = OpenFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    content = os.read(file.fd, _READ_BYTES)
    if len(content) == _READ_BYTES:
        while more := os.read(file.fd, _READ_BYTES):
            content += more
    return content


def size_of(path: AnyPath) -> int | None:
    """The size of a file, None if there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


REAL_FILES: Final = Files()
