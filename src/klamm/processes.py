"""Processes that belong together: a child lives, stops and dies with the process that started it."""

import ctypes
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
#: How often a child looks whether its parent was stopped; SIGSTOP cannot be told to anybody.
_LOOK_INTERVAL_S: Final = 0.1


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
