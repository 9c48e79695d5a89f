"""A node as a real process: its port, its directory, its `server.properties` and its signals.

`NodeProcess` is the base of every process harness: the brokers of `tests.support.cluster`, the
controllers of `tests.support.lab`, and the brokers of both kinds of `tests.support.mixed_cluster`.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any, Self

from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S


class NodeProcess:
    """One node. It keeps its port, its directory and its settings over a restart."""

    #: How long to wait for the process to end.
    patience_s = PATIENCE_S

    def __init__(self, node_id: int, directory: Path, config: Mapping[str, Any]) -> None:
        self.id = node_id
        self.port = free_port()
        self.directory = directory
        self.log_dir = directory / "logs"
        self.config: dict[str, Any] = {
            "broker.id": node_id,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": self.log_dir,
            **config,
        }
        self.process: subprocess.Popen[bytes] | None = None

    def command(self, file: Path) -> list[str]:
        """The command line that runs the node with this `server.properties`."""
        return [sys.executable, "-m", "klamm", "broker", str(file)]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> str:
        """What the process has printed, in all of its runs."""
        return (self.directory / "output").read_text(errors="replace")

    def start(self, **changed: Any) -> Self:
        """Start the process, with changed settings (an underscore stands for a dot)."""
        self.config |= with_dots(changed)
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self.directory / "server.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in self.config.items()))
        with (self.directory / "output").open("ab") as output:
            self.process = subprocess.Popen(
                self.command(file), stdout=output, stderr=output, start_new_session=True
            )
        return self

    def restart_if_dead(self) -> None:
        if not self.is_running:
            self.start()

    def run_to_its_end(self) -> tuple[int, str]:
        """Start a node that cannot start; return its exit code and what it printed."""
        return self.start().wait(), self.log

    def signal(self, number: Signals) -> None:
        """Send a signal to the process that was started, and to no other."""
        assert self.process is not None
        self.process.send_signal(number)

    def signal_group(self, number: Signals) -> None:
        """Send a signal to all processes of the node."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def stop(self) -> int:
        """Ask for a controlled shutdown, wait for it, and return the exit code."""
        self.signal(SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Kill all processes of the node, if it runs."""
        if self.is_running:
            self.signal_group(SIGKILL)
            self.wait()

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(self.patience_s)


def with_dots(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments as Kafka's keys: `log_dirs` is `log.dirs`."""
    return {key.replace("_", "."): value for key, value in settings.items()}
