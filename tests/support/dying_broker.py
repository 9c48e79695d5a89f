"""A broker that kills itself at a write of transactions, for tests of crashes.

    python -m tests.support.dying_broker server.properties

Counting begins when a file `die` is beside `server.properties`. It holds the number of the write at
which the process dies, and whether it dies `before` or `after` the batch is in the log. Counted are
batches of `__transaction_state` and markers.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from klamm.broker.log.log import Log
from klamm.cli.main import main
from klamm.names import TRANSACTION_STATE
from klamm.protocol.records import Batch, decode_batch_header

BEFORE, AFTER = "before", "after"


class DyingLog:
    """Counts the writes of transactions, once there is a file that says so."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._writes = 0

    def append(self, log: Log, records: Any, **options: Any) -> Any:
        header = records.header if isinstance(records, Batch) else decode_batch_header(records)
        is_counted = log.partition.topic == TRANSACTION_STATE or header.is_control
        when = self._count() if is_counted else ""
        if when == BEFORE:
            _die()
        result = _append(log, records, **options)
        if when == AFTER:
            _die()
        return result

    def _count(self) -> str:
        """When to die at this write; empty: not at all."""
        if not self._file.exists():
            return ""
        number, when = self._file.read_text().split()
        self._writes += 1
        return when if self._writes == int(number) else ""


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


_append = Log.append_as_leader

if __name__ == "__main__":
    properties = Path(sys.argv[1])
    dying = DyingLog(properties.with_name("die"))
    sys.argv = ["klamm", "broker", str(properties)]
    with patch.object(Log, "append_as_leader", lambda log, *a, **o: dying.append(log, *a, **o)):
        raise SystemExit(main())
