"""A console as a process, beside the cluster that tests share."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from klamm import Cluster
from tests.cli.conftest import kafka_cluster
from tests.support.waiting import wait_until

__all__ = ["kafka_cluster"]


@dataclass
class RunningConsole:
    """`klamm console --json`, with the link that it printed."""

    process: subprocess.Popen[str]
    url: str

    @property
    def base(self) -> str:
        return self.url.partition("/?")[0]

    @property
    def token(self) -> str:
        return parse_qs(urlsplit(self.url).query)["token"][0]

    def ask(
        self, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and JSON of a response; the token goes along unless headers are given."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data)
        for name, value in (headers or {"Authorization": f"Bearer {self.token}"}).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                content = response.read()
                is_json = response.headers["content-type"] == "application/json"
                return response.status, json.loads(content) if is_json else content
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def get(self, path: str) -> Any:
        status, response = self.ask(path)
        assert status == 200, response
        return response

    def post(self, path: str, body: Any) -> Any:
        status, response = self.ask(path, body)
        assert status == 200, response
        return response

    def wait(self, path: str, is_so: Callable[[Any], bool]) -> Any:
        wait_until(lambda: is_so(self.get(path)), f"{path} to be so")
        return self.get(path)

    def end(self) -> int:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def start_console(*arguments: str, log: Path) -> RunningConsole:
    with log.open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "klamm", "console", "--port", "0", "--json", *arguments],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "KLAMM_CONSOLE_TOKEN"},
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, log.read_text()
    return RunningConsole(process, json.loads(line)["url"])


@pytest.fixture(scope="session")
def console(
    klamm_cluster: Cluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningConsole]:
    """A console that may change the shared cluster."""
    folder = tmp_path_factory.mktemp("console")
    spools = [f"--spool={klamm_cluster.broker(each).spool}" for each in klamm_cluster.broker_ids]
    started = start_console(
        *("--bootstrap-server", klamm_cluster.bootstrap_servers, "--allow-changes"),
        *("--state-dir", str(folder / "state"), *spools),
        log=folder / "console.log",
    )
    yield started
    assert started.end() == 0, (folder / "console.log").read_text()
