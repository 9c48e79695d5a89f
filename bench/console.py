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
import time
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

from klamm.core.events import AutoRebalance, TopicChange
from klamm.processes import tied_klamm
from tests.support.chromium import Page, find_browser, open_page
from tests.support.large_cluster import LargeCluster, large_cluster
from tests.support.recorded_controller import RecordedController

TOKEN = "bench"
USABLE = (
    "document.querySelector('#health')?.innerText.includes('partition') "
    "&& document.querySelector('canvas.tiles')?.width > 100"
)
#: The brokers whose failures are the decisions that are timed.
FAILED = range(11, 31)
BURST_EVENTS = 5000
#: Notes of each decision that comes onto the page its id, when it came, and whom it is about.
NOTE_DECISIONS = """
window.seen = [];
new MutationObserver(() => {
  for (const each of document.querySelectorAll("[data-event]")) {
    const failed = /Broker (\\d+) disappeared/.exec(each.innerText);
    if (failed && !window.seen.some((known) => known[0] === each.dataset.event)) {
      window.seen.push([each.dataset.event, Date.now(), [Number(failed[1])]]);
    }
  }
}).observe(document.body, {childList: true, subtree: true}); 0
"""
#: The longest time in which the page did nothing else, from here on.
WATCH_FREEZES = """
window.longest = 0;
(() => { let last = performance.now(); const tick = () => { const now = performance.now();
  window.longest = Math.max(window.longest, now - last); last = now; setTimeout(tick, 5); };
  tick(); })(); 0
"""


class Limits:
    """What was measured, beside what it may be."""

    def __init__(self) -> None:
        self.missed: list[str] = []

    def show(self, what: str, value: float, limit: float, unit: str) -> None:
        mark = "" if value <= limit else "   MISSED"
        if mark:
            self.missed.append(what)
        print(f"{what:<58} {value:>9.3f} {unit:<3} (limit {limit:g}){mark}", flush=True)


def environment() -> dict[str, str]:
    """Python may keep what it has compiled, as it does for everybody who starts a console."""
    kept = {name: v for name, v in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "KLAMM_CONSOLE_TOKEN": TOKEN}


class Console:
    """`klamm console` beside a cluster, or with a saved history only."""

    def __init__(self, spool: Path, bootstrap_servers: str | None = None) -> None:
        self.begun = time.perf_counter()
        source = () if bootstrap_servers is None else ("--bootstrap-server", bootstrap_servers)
        self.process = subprocess.Popen(
            tied_klamm("console", *source, "--port", "0", "--json", f"--spool={spool}"),
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
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
        load = os.getloadavg()[0]
        print(
            f"{cluster.partitions:,} partitions on {brokers} brokers, load {load:.1f}", flush=True
        )
        compile_modules(cluster)
        program = find_browser()
        if program is None:
            print("The page itself is not timed: there is no Chromium.", file=sys.stderr)
        else:
            with tempfile.TemporaryDirectory() as folder, open_page(program, Path(folder)) as page:
                measure_page(page, cluster, limits)
                measure_burst(page, limits)
        console = Console(cluster.spool, cluster.bootstrap_servers)
        try:
            measure_api(console, limits)
        finally:
            console.close()
    return 1 if limits.missed else 0


def compile_modules(cluster: LargeCluster) -> None:
    """Let Python compile, as it does once after an installation."""
    Console(cluster.spool, cluster.bootstrap_servers).close()


def measure_page(page: Page, cluster: LargeCluster, limits: Limits) -> None:
    console = Console(cluster.spool, cluster.bootstrap_servers)
    try:
        page.go(console.url)
        page.wait(USABLE, 60)
        cold = time.perf_counter() - console.begun
        limits.show("first page usable after a cold start of the console", cold, 2.0, "s")
        begun = time.perf_counter()
        page.go(console.base + "/")
        page.wait(USABLE, 60)
        limits.show("first page usable after that", time.perf_counter() - begun, 0.5, "s")
        page.wait("document.querySelector('[data-event]')", 60)
        delays = sorted(decision_delays(page, console, cluster))
        limits.show(
            f"a decision is on the page, the slowest of {len(delays)}", delays[-1], 0.5, "s"
        )
        print(f"{'  half of them within':<58} {delays[len(delays) // 2]:>9.3f} s", flush=True)
        limits.show("memory at its highest", console.memory_mb(), 250, "MB")
    finally:
        console.close()


def decision_delays(page: Page, console: Console, cluster: LargeCluster) -> list[float]:
    """From the end of each event to its place on the page; events are failures of brokers."""
    page.evaluate(NOTE_DECISIONS)
    delays = []
    for broker in FAILED:
        cluster.stubs.say(f"kill {broker}")
        id, seen_ms = page.wait(f"window.seen.find((each) => each[2].includes({broker!r}))", 60)[:2]
        event = json.loads(console.ask(f"/api/history/{id}"))
        ended = datetime.fromisoformat(event["at"]).timestamp() + event["total_us"] / 1e6
        delays.append(seen_ms / 1000 - ended)
    return delays


def measure_burst(page: Page, limits: Limits) -> None:
    """How long the page does nothing else while a thousand events a second come."""
    with tempfile.TemporaryDirectory() as folder:
        controller = RecordedController(Path(folder), (1, 2, 3))
        controller.fail_over()
        controller.history.spool.flush()
        console = Console(controller.config.klamm_history_dir)
        try:
            page.go(console.url)
            page.wait("document.querySelector('[data-event]')", 60)
            page.evaluate(WATCH_FREEZES)
            begun, events = time.monotonic(), 0
            while events < BURST_EVENTS:
                for _ in range(100):
                    controller.handle(AutoRebalance())
                    events += 1
                time.sleep(max(0.0, events / 1000 - (time.monotonic() - begun)))
            rate = events / (time.monotonic() - begun)
            controller.create_topic("last", {0: [1, 2, 3]})
            controller.handle(TopicChange())
            controller.history.spool.flush()
            page.wait("document.querySelector('#decisions').innerText.includes('last')", 60)
            longest = page.evaluate("window.longest") / 1000
            limits.show(f"longest freeze at {rate:,.0f} events a second", longest, 0.5, "s")
        finally:
            console.close()
            controller.history.spool.close()


def measure_api(console: Console, limits: Limits) -> None:
    packed = len(console.ask("/api/map", packed=True)) / 1e6
    plain = len(console.ask("/api/map")) / 1e6
    limits.show("the map's data", plain, 1.0, "MB")
    print(f"{'  packed, as it travels':<58} {packed:>9.3f} MB", flush=True)
    warm_up(console)
    single = min(console.timed("/api/whatif", {"brokers": [n]}) for n in (1, 2, 3))
    limits.show("what if one broker fails", single, 0.1, "s")
    every = console.timed("/api/whatif/worst")
    limits.show("what if: all brokers, pairs and racks", every, 2.0, "s")
    limits.show("memory at its highest, with what-if", console.memory_mb(), 250, "MB")


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


if __name__ == "__main__":
    sys.exit(main())
