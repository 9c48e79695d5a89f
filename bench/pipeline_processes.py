"""The pipeline's commands as processes of their own: how long they take, and how large drivers get.

    python -m bench.pipeline_processes little|brokers|plan [PARTITIONS]

`little` runs snapshot, whatif and plan twice on three brokers with 15 partitions, Spark's start
included. `brokers` takes a snapshot of a million partitions from a broker: a node of klamm knows
them all, and ten stub brokers, which answer the controller only, are said to host them, so sizes
are not asked for. `plan` adds ten brokers to 100 that have ten million partitions.

The driver's memory is that of its Python and its JVM, which with a local master is the executor as
well, at the moment at which both together have most; workers are Spark's Python processes.
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from bench.growth import node
from bench.pipeline import BROKERS, NEW, PER_TOPIC, RACKS, rack_of, sample
from bench.side_by_side.cluster import ZooKeeper, cpu_s, with_children
from bench.side_by_side.controller import Stubs, populate
from klamm.local.cluster import Cluster
from klamm.local.network import free_ports
from klamm.pipeline import arrow

STUBS = list(range(1, 11))
SAMPLE_S = 0.1
PORTION = 1_000_000


@dataclass
class Memory:
    """The most megabytes that the parts of a command had; `driver` is Python and JVM together."""

    driver: int = 0
    python: int = 0
    jvm: int = 0
    workers: int = 0
    cpu: float = 0.0
    _ended: threading.Event = field(default_factory=threading.Event, repr=False)

    def watch(self, pid: int) -> None:
        """Look at the processes of a command again and again, until it ends."""
        while not self._ended.wait(SAMPLE_S):
            python = jvm = workers = 0
            for process in with_children(pid):
                with contextlib.suppress(OSError, IndexError):
                    status = (process / "status").read_text()
                    size = int(status.partition("VmRSS:")[2].split()[0]) // 1024
                    if process.name == str(pid):
                        python = size
                    elif status.startswith("Name:\tjava"):
                        jvm = max(jvm, size)
                    else:
                        workers += size
            self.cpu = max(self.cpu, cpu_s(pid))
            self.python, self.jvm = max(self.python, python), max(self.jvm, jvm)
            self.driver = max(self.driver, python + jvm)
            self.workers = max(self.workers, workers)

    @contextlib.contextmanager
    def watching(self, pid: int) -> Iterator[None]:
        thread = threading.Thread(target=self.watch, args=[pid])
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()


def klamm(*arguments: str) -> None:
    """Run a command and print what it took."""
    memory = Memory()
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "klamm", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    with memory.watching(process.pid):
        _, said = process.communicate()
    seconds = time.perf_counter() - start
    if process.returncode:
        sys.exit(f"klamm {' '.join(arguments)}:\n{said}")
    print(
        f"klamm {arguments[0]:<10}{seconds:>8.1f} s{memory.cpu:>8.1f} s of a core; "
        f"driver {memory.driver:,} MB (Python {memory.python:,}, JVM {memory.jvm:,}), "
        f"workers {memory.workers:,} MB",
        flush=True,
    )


def little(folder: str, partitions: int) -> None:
    with Cluster(3) as cluster:
        cluster.create_topic("orders", partitions=partitions, replication_factor=3)
        for number in (1, 2):
            print(f"round {number}")
            out = f"{folder}/{number}"
            klamm(
                "snapshot", "--bootstrap-server", cluster.bootstrap_servers, "--out", f"{out}/taken"
            )
            taken = ("--snapshot", f"{out}/taken")
            klamm("whatif", *taken, "--fail", "brokers:1", "--out", f"{out}/whatif")
            klamm("plan", *taken, "--out", f"{out}/plan/plan.json")


def brokers(folder: str, partitions: int) -> None:
    with contextlib.ExitStack() as stack:
        zookeeper = ZooKeeper(f"{folder}/zookeeper", heap="6g")
        stack.callback(zookeeper.stop)
        admin = zookeeper.client()
        for path in ("brokers/ids", "brokers/topics", "config/topics", "config/changes"):
            admin.ensure_path(f"/{path}")
        admin.ensure_path("/admin/delete_topics")
        admin.stop()
        populate(zookeeper.port, partitions // PER_TOPIC, PER_TOPIC, STUBS, 3)
        (base,) = free_ports(1)
        stubs = Stubs(zookeeper.address, STUBS, base)
        stack.callback(stubs.stop)
        port, _ = stack.enter_context(node(zookeeper, Path(folder)))
        told = 20 * partitions * len(STUBS)
        stubs.quiet(require=lambda t: t.get("UpdateMetadata", {}).get("bytes", 0) >= told)
        out = f"{folder}/taken"
        address = f"127.0.0.1:{port}"
        klamm("snapshot", "--bootstrap-server", address, "--no-sizes", "--out", out)
    table = pq.read_table(f"{out}/partitions", columns=["leader"])
    assert table.num_rows == partitions, table.num_rows


def plan(folder: str, partitions: int) -> None:
    taken = Path(folder, "taken")
    for name in ("brokers", "topics", "partitions", "meta"):
        (taken / name).mkdir(parents=True)
    rows = [{"id": id, "host": "h", "port": 1, "rack": rack} for id, rack in RACKS.items()]
    pq.write_table(pa.Table.from_pylist(rows, arrow.BROKERS), taken / "brokers" / "0.parquet")
    topics = pa.Table.from_pylist([], arrow.TOPICS)
    pq.write_table(topics, taken / "topics" / "0.parquet")
    meta = {"version": arrow.SNAPSHOT_VERSION, "source": "bench"}
    pq.write_table(pa.Table.from_pylist([meta], arrow.META), taken / "meta" / "0.parquet")
    random = np.random.default_rng(7)
    for number in range(0, partitions, PORTION):
        table = sample(min(PORTION, partitions - number), random)
        names = [f"p{number // PORTION}-{name}" for name in table["topic"].to_pylist()]
        table = table.set_column(0, "topic", pa.array(names))
        pq.write_table(table, taken / "partitions" / f"{number:09d}.parquet")
    added = [word for broker in NEW for word in ("--rack", f"{broker}={rack_of(broker)}")]
    file = Path(folder, "plan", "plan.json")
    klamm(
        *("plan", "--snapshot", str(taken), "--add-brokers", ",".join(map(str, NEW)), *added),
        *("--out", str(file)),
    )
    summary = orjson.loads(file.with_name("summary.json").read_bytes())
    print(
        f"{partitions:,} partitions on {BROKERS} brokers: {summary['replicas_moved']:,} replicas "
        f"moved, at least {summary['lower_bound_replicas']:,}"
    )


WHAT = {"little": (little, 15), "brokers": (brokers, 1_000_000), "plan": (plan, 10_000_000)}


def main() -> None:
    name = sys.argv[1] if len(sys.argv) > 1 else "little"
    if name not in WHAT:
        sys.exit(f"Expected is one of {', '.join(WHAT)}.")
    measure, partitions = WHAT[name]
    folder = tempfile.mkdtemp(prefix="klamm-bench-")
    try:
        measure(folder, int(sys.argv[2]) if len(sys.argv) > 2 else partitions)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
