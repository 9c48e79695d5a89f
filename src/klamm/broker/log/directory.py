"""One of the broker's log directories, as far as a single log has to know it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from klamm.broker.log.errors import StorageError

logger = logging.getLogger(__name__)


class LogDirectory:
    """A disk that works until it fails, once and for all until the broker starts again."""

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
        self.on_flush = on_flush
        self._on_failure = on_failure

    @property
    def is_online(self) -> bool:
        return self.failure is None

    def fail(self, error: OSError) -> StorageError:
        """Take the directory offline because of `error`; the answer is for the caller to raise."""
        if self.failure is None:
            self.failure = str(error)
            logger.error("log directory %s goes offline: %s", self.path, error)
            self._on_failure(self)
        return self.refusal()

    def refusal(self) -> StorageError:
        return StorageError(f"{self.path} is offline: {self.failure}")
