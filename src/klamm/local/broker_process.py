"""One broker of a local cluster as a process: its files, its signals, its output."""

import signal
import threading
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from klamm.config.properties import format_properties
from klamm.errors import KlammError, UnavailableError
from klamm.local.faults import FaultInjector
from klamm.local.network import HOST
from klamm.processes import Child, last_words, tied_klamm


class ProcessState(StrEnum):
    """The state of a broker's process, as its parent knows it."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"  # on request, or not started yet
    DEAD = "dead"  # without a request


class BrokerProcess:
    """A broker that can be started again after it ended."""

    def __init__(
        self,
        broker: int,
        port: int,
        directory: Path,
        config: Mapping[str, str],
        faults: FaultInjector,
    ) -> None:
        self.id = broker
        self.port = port
        self.directory = directory
        self.config = dict(config)
        self._faults = faults
        self._child: Child | None = None
        self._starting = threading.Lock()
        self._is_paused = False
        self._is_expected_to_end = False

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def rack(self) -> str | None:
        return self.config.get("broker.rack")

    @property
    def log(self) -> Path:
        """The file with the output of the process."""
        return self.directory / "broker.log"

    @property
    def spool(self) -> Path:
        """The folder of its history, written while it is controller."""
        return Path(self.config["klamm.history.dir"])

    @property
    def pid(self) -> int | None:
        """The id of the broker's main process; None if it does not run."""
        return self._child.pid if self._child is not None and self.is_alive else None

    @property
    def is_alive(self) -> bool:
        return self._child is not None and not self._child.ended.is_set()

    @property
    def state(self) -> ProcessState:
        if self.is_alive:
            is_paused = self._is_paused or self._stands_still()
            return ProcessState.PAUSED if is_paused else ProcessState.RUNNING
        if self._child is None or self._is_expected_to_end:
            return ProcessState.STOPPED
        return ProcessState.DEAD

    @property
    def exit_code(self) -> int | None:
        return None if self._child is None else self._child.exit_code

    def start(self) -> None:
        """Start the process; does not wait until the broker serves."""
        with self._starting:
            if self.is_alive:
                raise KlammError(f"Broker {self.id} is running already.")
            self.directory.mkdir(parents=True, exist_ok=True)
            file = self.directory / "server.properties"
            file.write_text(format_properties(self.config), encoding="utf-8")
            self._is_paused = self._is_expected_to_end = False
            with self._faults.attach(self.id) as link:
                self._child = Child(
                    tied_klamm("broker", str(file), f"--faults-fd={link.fileno()}"),
                    self.log,
                    f"broker {self.id}",
                    pass_fds=(link.fileno(),),
                )

    def stop(self, timeout_s: float) -> None:
        """Ask for a controlled shutdown and wait for it."""
        child = self._running()
        self._is_expected_to_end = True
        if self._is_paused:
            self.resume()
        child.send(signal.SIGTERM)
        if not child.ended.wait(timeout_s):
            raise UnavailableError(
                f"Broker {self.id} did not shut down within {timeout_s:g} s: {self.last_words()}"
            )

    def kill(self) -> None:
        """Kill all processes of the broker and wait for the end."""
        if self._child is not None:
            self._is_expected_to_end = True
            self._child.send_to_group(signal.SIGKILL)
            self._child.ended.wait()

    def pause(self) -> None:
        """Suspend the process: its connections stay open and get no response."""
        self._running().send_to_group(signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        """Continue the process."""
        self._running().send_to_group(signal.SIGCONT)
        self._is_paused = False

    def last_words(self) -> str:
        """The last lines of its output, which have the reason for its end."""
        return last_words(self.log)

    def _stands_still(self) -> bool:
        """Whether the process is stopped by SIGSTOP; False where the system does not tell."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] in ("T", "t")

    def _running(self) -> Child:
        if self._child is None or self._child.ended.is_set():
            raise KlammError(f"Broker {self.id} is not running.")
        return self._child
