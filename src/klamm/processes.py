"""Child processes that live, stop and die with their parent."""

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_M_MMAP_THRESHOLD: Final = -3
_STANDARD_STREAMS: Final = (0, 1, 2)
#: Where /proc/self/stat has the addresses of the command line, after the name of the program.
_ARGUMENTS_BEGIN: Final = 45
_ARGUMENTS_END: Final = 46
#: How often a child checks whether its parent is stopped; a process cannot catch SIGSTOP.
_LOOK_INTERVAL_S: Final = 0.1
_PATIENCE_S: Final = 10.0
_LAST_WORDS: Final = 3

#: Runs in a fresh interpreter, which then becomes another program. Between fork and exec there
#: would be no need for that, but there a parent that has threads may hang.
_BECOME: Final = """\
import os, sys
from klamm.processes import die_with_parent
die_with_parent(int(sys.argv[1]))
os.execv(sys.argv[2], sys.argv[2:])
"""
#: The same for the console script, which needs no second interpreter.
_BECOME_KLAMM: Final = """\
import sys
from klamm.processes import die_with_parent
die_with_parent(int(sys.argv[1]))
from klamm.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent dies, however that dies.

    Only Linux can do this; elsewhere the watcher of `follow_parent` notices.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have died before the kernel was told.
    if os.getppid() != parent_pid:
        os._exit(1)


def follow_parent(parent_pid: int) -> None:
    """Stop when the parent is stopped: a signal to it counts for all of its processes.

    The parent sends SIGCONT when it goes on (`continue_with`).
    """

    def watch() -> None:
        pause = threading.Event()
        while not pause.wait(_LOOK_INTERVAL_S):
            if os.getppid() != parent_pid:
                os._exit(1)
            if _is_stopped(parent_pid):
                os.kill(os.getpid(), signal.SIGSTOP)

    threading.Thread(target=watch, name="parent watcher", daemon=True).start()


def _is_stopped(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] == "T"


def return_large_blocks(size: int) -> None:
    """Have glibc return blocks from this size on to the system as soon as they are freed."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, size)


def keep_descriptors(*kept: int) -> None:
    """Close what a forked process has inherited, but its output and these descriptors."""
    inherited = {int(name) for name in os.listdir("/dev/fd")}
    for descriptor in inherited - {*_STANDARD_STREAMS, *kept}:
        with contextlib.suppress(OSError):  # the one that has listed them
            os.close(descriptor)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, _STANDARD_STREAMS[0])
    os.close(nothing)


def set_command_line(*arguments: str) -> None:
    """Have `ps` show this command line for a process that was forked, as far as there is room.

    The room is what the command line of its parent takes. Only Linux tells where it is.
    """
    with contextlib.suppress(OSError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        begin, end = int(fields[_ARGUMENTS_BEGIN]), int(fields[_ARGUMENTS_END])
        if room := end - begin:
            shown = "\0".join(arguments).encode()[: room - 1]
            ctypes.memmove(begin, shown.ljust(room, b"\0"), room)


def raise_file_limit() -> None:
    """Let this process open as many files as it may: a broker has one or two for a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit than it says
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def tied_command(program: str, *arguments: str) -> list[str]:
    """The command line of a program that dies with this process."""
    return [*_interpreter(_BECOME), program, *arguments]


def tied_klamm(*arguments: str) -> list[str]:
    """The command line of the console script, dying with this process."""
    return [*_interpreter(_BECOME_KLAMM), *arguments]


def _interpreter(code: str) -> list[str]:
    # Files of the current directory must not be imported as modules (-P).
    return [sys.executable, "-P", "-c", code, str(os.getpid())]


def last_words(output: Path) -> str:
    """The last lines that a process printed, which have the reason for its end."""
    with contextlib.suppress(OSError):
        lines = output.read_text(encoding="utf-8", errors="replace").splitlines()
        # SLF4J's warning about a missing logger is not the reason.
        said = [line.strip() for line in lines if line.strip() and not line.startswith("SLF4J")]
        if said:
            return " / ".join(said[-_LAST_WORDS:])
    return "it said nothing."


class Forked:
    """A process that this one has forked; the calls are those of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._exit_code: int | None = None
        self._waiting = threading.Lock()

    def poll(self) -> int | None:
        """The exit code; None while the process runs. Negative, a signal ended it."""
        if self._exit_code is None and self._waiting.acquire(blocking=False):
            try:
                self._reap(os.WNOHANG)
            finally:
                self._waiting.release()
        return self._exit_code

    def wait(self) -> int:
        """Wait for the end; the exit code."""
        with self._waiting:
            if self._exit_code is None:
                self._reap(0)
        assert self._exit_code is not None
        return self._exit_code

    def _reap(self, options: int) -> None:
        pid, status = os.waitpid(self.pid, options)
        if pid:
            self._exit_code = os.waitstatus_to_exitcode(status)

    def send_signal(self, number: int) -> None:
        """Send a signal, if the process is still there."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Child:
    """A process in a group of its own; a tied command line ends with this process.

    Ctrl-C does not reach it: the parent ends its children in its own order.
    """

    def __init__(
        self,
        command: Sequence[str],
        output: Path,
        name: str,
        *,
        pass_fds: Sequence[int] = (),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._pass_fds, self._env = pass_fds, env
        self.ended = threading.Event()
        started: Future[subprocess.Popen[bytes]] = Future()
        # Linux takes the end of the thread that forked for the death of the parent. So the child
        # gets a thread of its own, which stays for as long as the child does.
        threading.Thread(
            target=self._run, args=(command, output, started), name=name, daemon=True
        ).start()
        self._popen = started.result()

    def _run(
        self, command: Sequence[str], output: Path, started: "Future[subprocess.Popen[bytes]]"
    ) -> None:
        try:
            with output.open("ab") as log:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    pass_fds=self._pass_fds,
                    env=self._env,
                )
        except OSError as error:
            started.set_exception(error)
            return
        started.set_result(process)
        process.wait()
        self.ended.set()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative, a signal ended it."""
        return self._popen.returncode

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process itself, if it is still there."""
        if not self.ended.is_set():
            self._popen.send_signal(number)

    def send_to_group(self, number: signal.Signals) -> None:
        """Send a signal to the process and all that it started."""
        if not self.ended.is_set():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def end(self, number: signal.Signals) -> None:
        """Send a signal and wait; SIGKILL follows if that takes more than ten seconds."""
        self.send(number)
        if not self.ended.wait(_PATIENCE_S):
            self.send_to_group(signal.SIGKILL)
            self.ended.wait()
