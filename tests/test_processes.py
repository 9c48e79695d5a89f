"""Processes that are forked: what they keep, how they are shown, and how they end."""

import os
import signal
import subprocess
import sys

import pytest

from klamm.processes import Forked

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def run_python(code: str, *, stdin: str = "given") -> str:
    """What a fresh interpreter prints: one without threads, unlike that of the tests."""
    done = subprocess.run(
        [sys.executable, "-c", code], input=stdin, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_the_exit_code_of_a_forked_process_is_known_once_it_has_ended():
    ended = Forked(os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3"], os.environ))
    assert ended.wait() == 3
    assert ended.poll() == 3
    ended.kill()  # nobody is hit


def test_a_forked_process_is_signalled_while_it_runs():
    reading, writing = os.pipe()
    process = Forked(
        os.posix_spawn(
            "/bin/cat", ["cat"], os.environ, file_actions=[(os.POSIX_SPAWN_DUP2, reading, 0)]
        )
    )
    os.close(reading)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    os.close(writing)


@linux_only
def test_a_forked_process_shows_its_own_command_line():
    shown = run_python(
        "from pathlib import Path\n"
        "from klamm.processes import set_command_line\n"
        "set_command_line('klamm', 'controller')\n"
        "print(Path('/proc/self/cmdline').read_text().rstrip(chr(0)))\n"
    )
    assert shown == "klamm\0controller\n"


@linux_only
def test_a_command_line_is_cut_where_there_is_no_room():
    shown = run_python(
        "from pathlib import Path\n"
        "from klamm.processes import set_command_line\n"
        "room = len(Path('/proc/self/cmdline').read_bytes())\n"
        "set_command_line('x' * 100_000)\n"
        "print(room, len(Path('/proc/self/cmdline').read_bytes().rstrip(bytes(1))))\n"
    )
    room, shown_bytes = map(int, shown.split())
    assert shown_bytes == room - 1


def test_a_forked_process_keeps_its_output_and_what_it_is_told_to():
    printed = run_python(
        "import os\n"
        "from klamm.processes import keep_descriptors\n"
        "opened = [os.open('/dev/null', os.O_RDONLY) for _ in range(5)]\n"
        "keep_descriptors(opened[2])\n"
        "def is_open(fd):\n"
        "    try:\n"
        "        return bool(os.fstat(fd))\n"
        "    except OSError:\n"
        "        return False\n"
        "print([is_open(fd) for fd in opened], os.read(0, 1))\n"
    )
    assert printed == "[False, False, True, False, False] b''\n"
