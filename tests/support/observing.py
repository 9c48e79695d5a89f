"""`klamm observe` as a process, and what it says."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.support.command_line import interruptible


class Observing:
    """`klamm observe` as a process."""

    def __init__(self, zookeeper: str, spool: Path) -> None:
        self.process = subprocess.Popen(
            interruptible(
                *(sys.executable, "-m", "klamm", "observe"),
                *("--zookeeper", zookeeper, "--spool", str(spool)),
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def said(self) -> str:
        """The next sentence about the cluster."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def stop(self) -> None:
        """Ctrl-C, which ends it with success."""
        self.process.send_signal(signal.SIGINT)
        _, error = self.process.communicate(timeout=30)
        assert self.process.returncode == 0, error
