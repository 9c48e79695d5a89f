"""Temporary directories that are removed even if their process is killed: by the next one.

A directory has a file that its process keeps locked. A process that makes a directory removes
those of its kind that are no longer locked.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import Final

_PREFIX: Final = "klamm-{}-"
_LOCK: Final = "lock"


class TemporaryFolder:
    """A directory below the system's one for temporary files, until it is removed."""

    def __init__(self, kind: str) -> None:
        prefix = _PREFIX.format(kind)
        _remove_abandoned(Path(tempfile.gettempdir()), prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        # Locked before it has its name, so that no process finds it unlocked.
        unnamed = self.path / f".{_LOCK}"
        self._lock = unnamed.open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        unnamed.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _remove_abandoned(parent: Path, prefix: str) -> None:
    for lock in parent.glob(f"{prefix}*/{_LOCK}"):
        # A directory may belong to somebody else, or be gone in this moment.
        with contextlib.suppress(OSError), lock.open("r+") as file:
            if os.fstat(file.fileno()).st_uid == os.getuid():
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent, ignore_errors=True)
