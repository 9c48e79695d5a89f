"""How fast the console is with 100,000 partitions on 100 brokers, and how much memory it takes.

Run with `python -m bench.console [TOPICS PARTITIONS BROKERS]` from the root of the repository. The
cluster is a real node and a real ZooKeeper with stub brokers. The page is timed in a Chromium where
there is one. Each number stands beside its limit; one that is missed fails the run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from klamm.processes import tied_klamm
from tests.support.chromium import find_browser, open_page
from tests.support.large_cluster import LargeCluster, large_cluster

TOKEN = "bench"
USABLE = (
    "document.querySelector('#health')?.innerText.includes('partition') "
    "&& document.querySelector('canvas.tiles')?.width > 100"
)


class Limits:
    """What was measured, beside what it may be."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def show(self, what: str, value: float, limit: float, unit: str) -> None:
        mark = "" if value <= limit else "   MISSED"
        if mark:
            self.missed.append(what)
        print(f"{what:<58} {value:>9.3f} {unit:<3} (limit {limit:g}){mark}", flush=True)


class Console:
    """`klamm console` beside a cluster."""

    def __init__(self, cluster: LargeCluster) -> None:
        self.begun = time.perf_counter()
        self.process = subprocess.Popen(
            tied_klamm(
                *("console", "--bootstrap-server", cluster.bootstrap_servers, "--port", "0"),
                *("--json", f"--spool={cluster.spool}"),
            ),
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "KLAMM_CONSOLE_TOKEN": TOKEN},
        )
        assert self.process.stdout is not None
        self.url: str = json.loads(self.process.stdout.readline())["url"]
        self.base = self.url.partition("/?")[0]

    def ask(self, path: str, body: Any = None, *, packed: bool = False) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data)
        request.add_header("Authorization", f"Bearer {TOKEN}")
        if packed:
            request.add_header("Accept-Encoding", "gzip")
        with urllib.request.urlopen(request, timeout=120) as response:
            content: bytes = response.read()
        return content

    def timed(self, path: str, body: Any = None) -> float:
        begun = time.perf_counter()
        self.ask(path, body)
        return time.perf_counter() - begun

    def memory_mb(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)


def main() -> int:
    topics, partitions, brokers = (*map(int, sys.argv[1:4]),)[:3] or (1000, 100, 100)
    limits = Limits()
    with large_cluster(topics, partitions, brokers) as cluster:
        print(f"{cluster.partitions:,} partitions on {brokers} brokers", flush=True)
        measure_page(cluster, limits)
        console = Console(cluster)
        try:
            measure_api(console, cluster, limits)
        finally:
            console.close()
    return 1 if limits.missed else 0


def measure_page(cluster: LargeCluster, limits: Limits) -> None:
    program = find_browser()
    if program is None:
        print("The page itself is not timed: there is no Chromium.", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as profile, open_page(program, Path(profile)) as page:
        console = Console(cluster)
        try:
            page.go(console.url)
            page.wait(USABLE, 60)
            cold = time.perf_counter() - console.begun
            limits.show("first page usable after a cold start of the console", cold, 2.0, "s")
            begun = time.perf_counter()
            page.go(console.base + "/")
            page.wait(USABLE, 60)
            limits.show("first page usable after that", time.perf_counter() - begun, 0.5, "s")
        finally:
            console.close()


def measure_api(console: Console, cluster: LargeCluster, limits: Limits) -> None:
    packed = len(console.ask("/api/map", packed=True)) / 1e6
    plain = len(console.ask("/api/map")) / 1e6
    limits.show("the map's data", plain, 1.0, "MB")
    print(f"{'  packed, as it travels':<58} {packed:>9.3f} MB", flush=True)
    warm_up(console)
    single = min(console.timed("/api/whatif", {"brokers": [n]}) for n in (1, 2, 3))
    limits.show("what if one broker fails", single, 0.1, "s")
    every = console.timed("/api/whatif/worst")
    limits.show("what if: all brokers, pairs and racks", every, 2.0, "s")
    limits.show("a decision is in the stream", decision_delay(console, cluster), 0.5, "s")
    limits.show("memory at its highest", console.memory_mb(), 250, "MB")


def warm_up(console: Console) -> None:
    """Have the topics' settings read; a stub that is asked instead of the node knows none."""
    for _ in range(10):
        try:
            console.ask("/api/whatif", {"brokers": [1]})
            return
        except urllib.error.HTTPError as error:
            error.close()
            time.sleep(0.5)
    raise SystemExit("The settings of the topics cannot be read.")


def decision_delay(console: Console, cluster: LargeCluster) -> float:
    """From the end of the event to its arrival; the event is the failure of a broker."""
    request = urllib.request.Request(console.base + "/api/events")
    request.add_header("Authorization", f"Bearer {TOKEN}")
    found: list[float] = []

    def listen() -> None:
        with urllib.request.urlopen(request, timeout=60) as response:
            for line in response:
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if event["failure"] and "failed" in event["failure"]:
                        ended = _seconds(event["at"]) + event["total_us"] / 1e6
                        found.append(time.time() - ended)
                        return

    listening = threading.Thread(target=listen)
    listening.start()
    cluster.stubs.say("kill 7")
    listening.join(60)
    return found[0] if found else float("inf")


def _seconds(text: str) -> float:
    from datetime import datetime

    return datetime.fromisoformat(text).timestamp()


if __name__ == "__main__":
    sys.exit(main())
