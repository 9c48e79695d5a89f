"""A real cluster with its console, and a real browser that looks at it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.chromium import HOW_TO_GET_IT, Page, find_browser, open_page

OUT = Path(__file__).resolve().parent.parent.parent / "out"
TOKEN = "a-token-for-tests"
PATIENCE_S = 60.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.fspath).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.real)


@dataclass
class Process:
    """A `klamm` command that prints one line of JSON when it is ready."""

    popen: subprocess.Popen[str]
    ready: dict[str, Any]

    def end(self) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGINT)
            self.popen.wait(60)
        assert self.popen.stdout is not None
        self.popen.stdout.close()


def start_klamm(*arguments: str, log: Path) -> Process:
    with log.open("a") as errors:
        popen = subprocess.Popen(
            [sys.executable, "-m", "klamm", *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "KLAMM_CONSOLE_TOKEN": TOKEN},
        )
    assert popen.stdout is not None
    line = popen.stdout.readline()
    assert line, f"it ended: {log.read_text()}"
    return Process(popen, json.loads(line))


@dataclass
class Console:
    """A console's address, and its API."""

    base: str
    bootstrap_servers: str
    data_dir: Path
    command_config: str = ""

    def get(self, path: str) -> Any:
        return self._ask(urllib.request.Request(self.base + path))

    def post(self, path: str, body: Any) -> Any:
        data = json.dumps(body).encode()
        return self._ask(urllib.request.Request(self.base + path, data, method="POST"))

    def get_text(self, path: str) -> str:
        return self._read(urllib.request.Request(self.base + path))

    def _ask(self, request: urllib.request.Request) -> Any:
        return json.loads(self._read(request))

    def _read(self, request: urllib.request.Request) -> str:
        request.add_header("Authorization", f"Bearer {TOKEN}")
        with urllib.request.urlopen(request, timeout=30) as response:
            content: bytes = response.read()
        return content.decode()

    def wait(self, path: str, is_so: Callable[[Any], bool]) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while not is_so(found := self.get(path)):
            assert time.monotonic() < deadline, f"{path} stays {found}"
            time.sleep(0.1)
        return found

    def klamm(self, *arguments: str, input: str | None = None) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "klamm", *arguments],
            input=input,
            capture_output=True,
            text=True,
            env={**os.environ, **self._environment()},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _environment(self) -> dict[str, str]:
        secured = {"KLAMM_COMMAND_CONFIG": self.command_config} if self.command_config else {}
        return {"KLAMM_BOOTSTRAP_SERVER": self.bootstrap_servers, **secured}

    def heal(self) -> None:
        """Start what does not run, and wait until every replica is in sync."""
        for broker in self.get("/api/lessons")["brokers"]:
            verb = {"dead": "start", "stopped": "start", "paused": "resume"}.get(broker["state"])
            if verb:
                self.post("/api/lessons/act", {"do": verb, "broker": broker["id"]})
        self.wait("/api/cluster", lambda found: found["level"] == "good")


@pytest.fixture(scope="session")
def browser_program() -> str:
    program = find_browser()
    if program is None:
        pytest.skip(HOW_TO_GET_IT)
    return program


@pytest.fixture(scope="session")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """The console of a cluster of four brokers in two racks, with a few topics."""
    folder = tmp_path_factory.mktemp("console")
    process = start_klamm(
        *("up", "--brokers", "4", "--racks", "a,b", "--base-port", str(_free_base()), "--json"),
        *("--data-dir", str(folder / "data"), "--override", "zookeeper.session.timeout.ms=3000"),
        log=folder / "up.log",
    )
    try:
        url = urlsplit(process.ready["console"])
        made = Console(f"http://{url.netloc}", process.ready["bootstrap_servers"], folder / "data")
        for name, partitions, factor in (("orders", 8, 3), ("payments", 4, 2), ("audit", 2, 3)):
            body = {"topic": name, "partitions": partitions, "replication_factor": factor}
            made.post("/api/topics/create", body)
        made.klamm("produce", "orders", input="\n".join(f'{{"total": {n}}}' for n in range(500)))
        made.klamm("consume", "orders", "--group", "billing", "--count", "200")
        made.klamm("produce", "audit", "--transactional-id", "loader", input="a\nb")
        made.post("/api/users/add", {"user": "alice", "password": "alice-pw"})
        quota = {"user": "alice", "quotas": {"producer_byte_rate": 1048576}}
        made.post("/api/quotas/set", quota)
        yield made
    finally:
        process.end()


@pytest.fixture(scope="session")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    """The console of a secured cluster of one broker, with ACLs."""
    folder = tmp_path_factory.mktemp("secured")
    process = start_klamm(
        *("up", "--brokers", "1", "--secure", "--base-port", str(_free_base()), "--json"),
        *("--data-dir", str(folder / "data")),
        log=folder / "up.log",
    )
    try:
        url = urlsplit(process.ready["console"])
        ready = process.ready
        made = Console(
            f"http://{url.netloc}",
            ready["bootstrap_servers"],
            folder / "data",
            ready["command_config"],
        )
        made.post("/api/topics/create", {"topic": "orders", "partitions": 1})
        acl = {"resource_type": "Topic", "name": "orders", "principal": "User:alice"}
        made.post("/api/acls/add", acl | {"operation": "Read"})
        yield made
    finally:
        process.end()


@pytest.fixture(scope="session")
def tab(browser_program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with open_page(browser_program, tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(tab: Page, console: Console) -> Iterator[Page]:
    """A page that has the console's cookie; a complaint of the browser fails the test."""
    yield from looked_at(tab, console)


@pytest.fixture
def secured_page(tab: Page, secured: Console) -> Iterator[Page]:
    """The same of the console of the secured cluster."""
    yield from looked_at(tab, secured)


def looked_at(tab: Page, console: Console) -> Iterator[Page]:
    tab.resize(1280, 900)
    tab.theme("light")
    tab.go(f"{console.base}/?token={TOKEN}")
    tab.complaints.clear()
    tab.requests.clear()
    yield tab
    assert tab.complaints == []
    elsewhere = [url for url in tab.requests if not url.startswith((console.base, "data:"))]
    assert elsewhere == []


def _free_base() -> int:
    import socket

    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            base = first.getsockname()[1]
        taken = []
        try:
            for port in range(base, base + 4):
                each = socket.socket()
                taken.append(each)
                each.bind(("127.0.0.1", port))
        except (OSError, OverflowError):
            continue
        finally:
            for each in taken:
                each.close()
        return base
