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

from tests.browser.chromium import HOW_TO_GET_IT, Page, find_browser, open_page

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

    def get(self, path: str) -> Any:
        return self._ask(urllib.request.Request(self.base + path))

    def post(self, path: str, body: Any) -> Any:
        data = json.dumps(body).encode()
        return self._ask(urllib.request.Request(self.base + path, data, method="POST"))

    def _ask(self, request: urllib.request.Request) -> Any:
        request.add_header("Authorization", f"Bearer {TOKEN}")
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.loads(response.read())

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
            env={**os.environ, "KLAMM_BOOTSTRAP_SERVER": self.bootstrap_servers},
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

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
