"""A log directory as its logs see it: online until a disk error takes it offline."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

from klamm.broker.log.errors import StorageError

logger = logging.getLogger(__name__)

#: The process or the machine has no file descriptors left. These are not errors of the disk.
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})


class LogDirectory:
    """A log directory. After a failure it stays offline until the broker restarts."""

    def __init__(
        self,
        path: Path,
        on_failure: Callable[[LogDirectory], None],
        failure: str | None = None,
        *,
        on_flush: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`on_flush` hears how many seconds a flush took, on the thread that waited for it."""
        self.path = path
        self.failure = failure
        self.is_online = failure is None
        self.on_flush = on_flush
        self._on_failure = on_failure

    def fail(self, error: OSError) -> StorageError:
        """Take the directory offline because of `error`, and return the error to raise.

        A lack of file descriptors fails the operation, not the directory: connections that close
        give some back.
        """
        if error.errno in _NO_DESCRIPTOR:
            logger.error("an operation in log directory %s failed: %s", self.path, error)
            return StorageError(f"{self.path}: {error}")
        if self.is_online:
            self.is_online = False
            self.failure = str(error)
            logger.error("log directory %s goes offline: %s", self.path, error)
            self._on_failure(self)
        return self.refusal()

    def refusal(self) -> StorageError:
        return StorageError(f"{self.path} is offline: {self.failure}")
