"""Two clusters on one machine, whose rows take turns, and the figures of all rounds.

A noisy minute would look like a difference if one implementation ran to its end before the other.
Here both clusters are up, each row alternates between them, what was written is synced before the
next turn, and a figure is the median of the rounds, shown with the least and the most.
"""

import contextlib
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.side_by_side.cluster import Cluster, ZooKeeper, cpu_times, rss_mb
from tools.fetch_kafka import libs

#: A JVM as in production, not one for short tests.
os.environ.setdefault("KAFKA_JVM", "-Xms1g -Xmx1g -XX:+UseG1GC")

BOTH = ("kafka", "klamm")
#: Figures of processor time, by whose it is.
BROKERS = "CPU of brokers"
KERNEL = "CPU of brokers, the kernel's part"
CLIENT = "CPU of the client"
#: What a row measures: figures by their name, unit included.
Figures = dict[str, float]
Row = Callable[[str], Figures]


@contextlib.contextmanager
def running(
    implementation: str,
    config: Mapping[str, Any] | None = None,
    within: Path | None = None,
) -> Iterator[Cluster]:
    """Three brokers and their ZooKeeper; their files go when they end, or with `within`."""
    directory = Path(tempfile.mkdtemp(prefix="klamm-bench-", dir=within))
    zookeeper = ZooKeeper(directory / "zookeeper")
    try:
        with Cluster(directory, zookeeper, implementation, (1, 2, 3), dict(config or {})) as found:
            yield found.start()
    finally:
        zookeeper.stop()
        if within is None:
            shutil.rmtree(directory, ignore_errors=True)


class Duel:
    """Both clusters, and what was measured of them so far."""

    def __init__(self, clusters: Mapping[str, Cluster], rounds: int) -> None:
        self.bootstrap = {name: each.bootstrap for name, each in clusters.items()}
        self._rounds = rounds
        self._pids = {
            name: [node.proc.pid for node in each.nodes.values()] for name, each in clusters.items()
        }
        #: By row, figure and implementation, what each round has given.
        self.found: dict[str, dict[str, dict[str, list[float]]]] = {}

    def note(self, row: str, implementation: str, figures: Figures) -> None:
        """Keep what one round of a row has given."""
        print(implementation, row, {k: round(v, 2) for k, v in figures.items()}, file=sys.stderr)
        for figure, value in figures.items():
            by_figure = self.found.setdefault(row, {}).setdefault(figure, {})
            by_figure.setdefault(implementation, []).append(round(value, 2))

    def measure(self, row: str, action: Row, prepare: Callable[[], None] = lambda: None) -> None:
        """Run a row on both clusters in turns; `prepare` comes before each turn.

        The action gets the bootstrap servers. Processor time is a figure too, the brokers' and that
        of the client with its children: for a GB if the action says how many MB it moved, else the
        cores in use. Where both together are all cores of the machine, the client is a limit.
        """
        for number in range(self._rounds):
            for implementation in BOTH if number % 2 == 0 else reversed(BOTH):
                os.sync()
                prepare()
                before, client_before = self._cpu_times(implementation), _own_cpu_s()
                began = time.perf_counter()
                figures = action(self.bootstrap[implementation])
                took = time.perf_counter() - began
                after, client = self._cpu_times(implementation), _own_cpu_s() - client_before
                megabytes = figures.pop("MB", 0)
                unit, share = ("s/GB", megabytes / 1000) if megabytes else ("cores", took)
                figures[f"{BROKERS}, {unit}"] = (sum(after) - sum(before)) / share
                figures[f"{KERNEL}, {unit}"] = (after[1] - before[1]) / share
                figures[f"{CLIENT}, {unit}"] = client / share
                self.note(row, implementation, figures)

    def note_memory(self, when: str) -> None:
        """Keep the memory of the largest broker of each cluster."""
        for implementation, pids in self._pids.items():
            self.note("memory", implementation, {f"{when}, MB": max(map(rss_mb, pids))})

    def _cpu_times(self, implementation: str) -> tuple[float, float]:
        """Processor time of the brokers since they started: their own, and the kernel's for them."""
        user, kernel = zip(*map(cpu_times, self._pids[implementation]), strict=True)
        return sum(user), sum(kernel)

    def print(self) -> None:
        """Print all figures as JSON, and tables for a document."""
        print(json.dumps(self.found, indent=1))
        print("\n| | klamm | Apache Kafka | ratio |\n| --- | --- | --- | --- |")
        for row, figures in self.found.items():
            for figure, values in figures.items():
                klamm, kafka = values["klamm"], values["kafka"]
                base = statistics.median(kafka)
                ratio = f"{statistics.median(klamm) / base:.2f}" if base else ""
                print(f"| {row}, {figure} | {_spread(klamm)} | {_spread(kafka)} | {ratio} |")
        self._print_limits()

    def _print_limits(self) -> None:
        """Print what throughputs leave to gain: the cores that klamm's brokers and the client use,
        and what the ratio would be if the client had more of them.

        That is, if the brokers did nothing but what the kernel does for them, or nothing at all.
        """
        rows = []
        for row, figures in self.found.items():
            if "MB/s" not in figures or f"{CLIENT}, s/GB" not in figures:
                continue
            rate, brokers, kernel, client = (
                statistics.median(figures[each]["klamm"])
                for each in ("MB/s", *(f"{part}, s/GB" for part in (BROKERS, KERNEL, CLIENT)))
            )
            ratio = rate / statistics.median(figures["MB/s"]["kafka"])
            used = brokers + client
            rows.append(
                f"| {row} | {rate * used / 1000:.2f} | {rate * client / 1000:.2f} | {ratio:.2f} "
                f"| {ratio * used / (kernel + client):.2f} | {ratio * used / client:.2f} |"
            )
        if rows:
            print(
                "\n| MB/s, klamm to Kafka | cores in use | of them the client's "
                "| ratio | with only the kernel's part | without brokers |\n"
                "| --- | --- | --- | --- | --- | --- |"
            )
            print("\n".join(rows))


def _own_cpu_s() -> float:
    """Processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _spread(values: list[float]) -> str:
    """The median, with the least and the most if there are several."""
    middle = f"{statistics.median(values):g}"
    return middle if len(values) == 1 else f"{middle} ({min(values):g} to {max(values):g})"


@contextlib.contextmanager
def duel(rounds: int, config: Mapping[str, Any] | None = None) -> Iterator[Duel]:
    """Start both clusters; print what was measured when all is done."""
    if "KAFKA_LIBS" not in os.environ:
        os.environ["KAFKA_LIBS"] = str(libs())
    with contextlib.ExitStack() as stack:
        clusters = {name: stack.enter_context(running(name, config)) for name in BOTH}
        contest = Duel(clusters, rounds)
        yield contest
        contest.print()
