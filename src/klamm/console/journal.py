"""Who changed what from a console: a line of JSON for each action, kept beside running moves.

The history of the controllers names the client that asked for an election or a reassignment. What
reaches them through ZooKeeper (topics, settings) or not at all (offsets, records) has no name
there, so the console writes down its own actions.
"""

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

#: What a record holds is not written down, only that one was produced; nor is a password.
_NOT_KEPT: Final = frozenset({"value", "key", "headers", "password"})


class Journal:
    """Appends actions to a file, and reads them with the newest first."""

    def __init__(self, file: Path, user: str) -> None:
        self._file = file
        self._user = user
        self._lock = threading.Lock()

    def note(self, action: str, body: dict[str, Any], error: str | None) -> None:
        """Write down an action that was carried out, or that the cluster refused."""
        kept = {name: value for name, value in body.items() if name not in _NOT_KEPT}
        row = {
            "at": datetime.now(UTC),
            "user": self._user,
            "action": action,
            "with": kept,
            "error": error,
        }
        with self._lock:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("ab") as file:
                file.write(orjson.dumps(row, option=orjson.OPT_UTC_Z) + b"\n")

    def newest(self, limit: int) -> list[dict[str, Any]]:
        """The last actions, of earlier consoles as well."""
        try:
            lines = self._file.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        return [orjson.loads(line) for line in reversed(lines[-limit:])]
