"""The results of a log's operations: of an append, a read, and a search by time."""

from __future__ import annotations

import os
from typing import Final, NamedTuple

from klamm.broker.log.files import OpenFile


class AppendResult(NamedTuple):
    """The result of a leader's append; for a duplicate, that of the original append."""

    first_offset: int
    last_offset: int
    log_append_time: int
    log_start_offset: int
    is_duplicate: bool = False


class Slice(NamedTuple):
    """A range of a segment's file. It stays readable for as long as it is referred to.

    The last batch may be cut short. A log that is truncated meanwhile leaves less in the file
    than `size` says, so a sender has to be prepared for its end.
    """

    file: OpenFile | None
    position: int
    size: int

    def fileno(self) -> int:
        """For `os.sendfile`; there is none for an empty slice."""
        if self.file is None:
            raise ValueError("an empty slice has no file")
        return self.file.fd

    def bytes(self) -> bytes:
        return os.pread(self.file.fd, self.size, self.position) if self.file else b""


EMPTY_SLICE: Final = Slice(None, 0, 0)


class TimestampedOffset(NamedTuple):
    """A record found by its time."""

    timestamp: int
    offset: int
    leader_epoch: int
