"""`klamm up`: ready, watched, stopped in order, and nothing left behind."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from klamm.client.admin import Admin
from tests.support.command_line import interruptible, run_here, run_process
from tests.support.ports import free_base_port
from tests.support.processes import descendants, is_alive
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        interruptible(sys.executable, "-m", "klamm", "up", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def test_it_says_when_it_is_ready_and_ends_with_ctrl_c(tmp_path: Path):
    base = free_base_port(2)
    data = str(tmp_path / "data")
    with running(
        *("--brokers", "2", "--base-port", str(base), "--racks", "a,b", "--json"),
        *("--data-dir", data, "--override", "num.partitions=3"),
    ) as up:
        assert up.stdout is not None
        ready = json.loads(up.stdout.readline())
        assert ready["bootstrap_servers"] == f"127.0.0.1:{base},127.0.0.1:{base + 1}"
        assert [broker["id"] for broker in ready["brokers"]] == [1, 2]
        assert [broker["port"] for broker in ready["brokers"]] == [base, base + 1]
        children = descendants(up.pid)
        assert {broker["pid"] for broker in ready["brokers"]} <= children
        with urllib.request.urlopen(ready["console"], timeout=30) as page:
            assert page.status == 200
        with (
            pytest.raises(urllib.error.HTTPError, match="403") as refused,
            urllib.request.urlopen(ready["console"].partition("?")[0], timeout=30),
        ):
            pass
        refused.value.close()

        klamm = ("--bootstrap-server", ready["bootstrap_servers"])
        rows = run_here("brokers", "list", "--json", *klamm).json()
        assert [row["rack"] for row in rows] == ["a", "b"]
        assert sum(row["controller"] for row in rows) == 1
        run_here("topics", "create", "kept", "--replication-factor", "2", *klamm).ok()
        settings = run_here("brokers", "describe", "1", "--json", *klamm).json()["configs"]
        assert settings["num.partitions"] == "3"

        other = run_here("up", "--brokers", "1", "--base-port", str(base))
        other.failed(f"Port {base} is taken")
        other_base = str(free_base_port(1))
        other = run_here("up", "--brokers", "1", "--base-port", other_base, "--data-dir", data)
        other.failed("is in use by another cluster")

        # A broker that dies is shown, and stays dead.
        os.kill(ready["brokers"][0]["pid"], signal.SIGKILL)
        assert up.stderr is not None
        seen = ""
        while "broker 1 died (by signal 9)" not in seen:
            seen = up.stderr.readline()
            assert seen, "it ended"

        up.send_signal(signal.SIGINT)
        rest, _ = up.communicate(timeout=60)
        assert up.returncode == 0
        assert rest == "", "one line of JSON, and no more"
        wait_until(lambda: not any(map(is_alive, children)), "all children to end")

    # The data is found again.
    with running(
        *("--brokers", "2", "--base-port", str(base), "--data-dir", data, "--json", "--no-console")
    ) as up:
        assert up.stdout is not None
        ready = json.loads(up.stdout.readline())
        assert "console" not in ready
        with Admin(ready["bootstrap_servers"]) as admin:
            assert "kept" in [topic.name for topic in admin.metadata(None).topics]
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0


def test_on_a_terminal_it_shows_the_cluster_and_a_second_ctrl_c_kills(tmp_path: Path):
    base = free_base_port(1)
    ours, theirs = pty.openpty()
    up = subprocess.Popen(
        [sys.executable, "-m", "klamm", "up", "--brokers", "1", "--base-port", str(base)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "100"},
    )
    os.close(theirs)
    shown = ""

    def read_until(pattern: str) -> None:
        nonlocal shown
        deadline = time.monotonic() + 60
        while not re.search(pattern, shown):
            assert time.monotonic() < deadline, shown
            if select.select([ours], [], [], 0.2)[0]:
                shown += os.read(ours, 1 << 16).decode(errors="replace")

    try:
        read_until(r"controller broker 1, \d+ partitions, 0 under-replicated, 0 leaderless")
        assert f"127.0.0.1:{base}" in shown
        run_here("topics", "create", "shown", "-b", f"127.0.0.1:{base}").ok()
        read_until(r"topic shown was created")
        children = descendants(up.pid)
        up.send_signal(signal.SIGINT)
        read_until("Ctrl-C again kills them")
        up.send_signal(signal.SIGINT)
        assert up.wait(30) in (0, 130)
        wait_until(lambda: not any(map(is_alive, children)), "all children to end")
        assert list(tmp_path.iterdir()) == [], "what is temporary is gone"
    finally:
        up.kill()
        up.wait()
        os.close(ours)


def test_it_can_be_stopped_before_it_is_ready(tmp_path: Path):
    up = subprocess.Popen(
        interruptible(
            *(sys.executable, "-m", "klamm", "up", "--json"),
            *("--base-port", str(free_base_port(3))),
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    children = wait_until(lambda: descendants(up.pid), "the first child")
    up.send_signal(signal.SIGINT)
    out, err = up.communicate(timeout=60)
    assert (up.returncode, out, err) == (0, b"", b"Stopped before it was ready.\n")
    wait_until(lambda: not any(map(is_alive, children)), "all children to end")
    assert list(tmp_path.iterdir()) == []


def test_without_java_it_says_so():
    with tempfile.TemporaryDirectory() as empty:
        environment = {"PATH": empty, "JAVA_HOME": "", "TMPDIR": empty}
        base = str(free_base_port(1))
        result = run_process("up", "--brokers", "1", "--base-port", base, environment=environment)
        result.failed("No Java was found")
        assert len(result.err.splitlines()) == 1
        assert list(Path(empty).iterdir()) == []
