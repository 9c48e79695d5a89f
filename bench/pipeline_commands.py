"""How long the pipeline's commands take on a large cluster, from ZooKeeper to the last file.

Run with `python -m bench.pipeline_commands [PARTITIONS]` from the root of the repository. A cluster
of PARTITIONS partitions with three replicas each, on 100 brokers in 10 racks, is put into a
ZooKeeper of its own. The commands run one after another in one Spark session, so that its start is
not counted but shown by itself.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa

from bench.pipeline import BROKERS, NEW, RACKS, assign, rack_of, sample
from klamm.cli.main import main as run_klamm
from klamm.core.columns import contains
from klamm.pipeline.arrow import rows_from_arrow
from klamm.pipeline.session import open_session
from klamm.zookeeper import znodes
from klamm.zookeeper.server import ZooKeeperServer
from klamm.zookeeper.session import open_store
from klamm.zookeeper.store import Create, Fence, Row
from tests.support.state_znodes import encode_state


def broker_rows() -> Iterator[Row]:
    for broker in range(BROKERS):
        # Nothing listens there: sizes are not asked for.
        endpoint = znodes.RegisteredEndpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", 1)
        registration = znodes.BrokerRegistration(broker, (endpoint,), RACKS[broker])
        yield [Create(znodes.broker_path(broker), znodes.encode_broker(registration, 0))]


def topic_rows(table: pa.Table) -> Iterator[Row]:
    """The topics of a partition table, whose rows are in the order of topics."""
    topics, replicas = table["topic"].to_pylist(), table["replicas"].to_pylist()
    starts = [row for row, topic in enumerate(topics) if not row or topics[row - 1] != topic]
    for start, end in zip(starts, [*starts[1:], len(topics)], strict=True):
        partitions = dict(enumerate(replicas[start:end]))
        assignment = znodes.encode_topic(znodes.TopicAssignment(None, partitions))
        yield [
            Create(znodes.topic_path(topics[start]), assignment),
            Create(znodes.partitions_path(topics[start])),
        ]


def state_rows(table: pa.Table) -> Iterator[Row]:
    columns = (table[name].to_pylist() for name in ("topic", "partition", "leader", "isr"))
    for topic, partition, leader, isr in zip(*columns, strict=True):
        state = encode_state(leader, 0, isr, 1)
        yield [
            Create(znodes.partition_path(topic, partition)),
            Create(znodes.state_path(topic, partition), state),
        ]


async def fill(address: str, table: pa.Table) -> None:
    store = await open_store(address, 30_000)
    for path in znodes.PERSISTENT_PATHS:
        await store.ensure_path(path)
    await store.create(znodes.CONTROLLER_EPOCH, b"0")
    for rows in (broker_rows(), topic_rows(table), state_rows(table)):
        outcomes = await store.write_many(rows, Fence(0))
        assert all(outcome.ok for outcome in outcomes)
    await store.close()


def cpu_seconds() -> float:
    """What this process and all below it have used: Spark's JVM and workers, ZooKeeper."""
    parents, used = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        process = int(stat.parent.name)
        parents[process] = int(fields[1])
        used[process] = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def is_ours(process: int) -> bool:
        while process not in (0, os.getpid()):
            process = parents.get(process, 0)
        return process != 0

    return sum(seconds for process, seconds in used.items() if is_ours(process))


@contextmanager
def timed(what: str) -> Iterator[None]:
    """Print how long it took, and how much of the processors, which others may be using too."""
    start, cpu = time.perf_counter(), cpu_seconds()
    yield
    seconds, cpu = time.perf_counter() - start, cpu_seconds() - cpu
    print(f"{what:<36}{seconds:>8.1f} s{cpu:>8.1f} s of a core", flush=True)


def moved_anew(table: pa.Table) -> int:
    """What Kafka's own tool would move to old and new brokers: it assigns every topic anew."""
    racks = {broker: rack_of(broker) for broker in (*RACKS, *NEW)}
    anew = assign(racks, len(table), np.random.default_rng(11))
    return int((~contains(rows_from_arrow(table["replicas"]), anew)).sum())


def klamm(*arguments: str) -> None:
    try:
        code = run_klamm(arguments)
    except SystemExit as exit_:
        code = int(exit_.code or 0)
    assert code == 0, arguments


def main(partitions: int) -> None:
    print(f"{partitions:,} partitions of 3 replicas on {BROKERS} brokers in 10 racks")
    with tempfile.TemporaryDirectory() as folder:
        with timed("Spark's start"):
            spark = open_session()
        heap_mb = 512 + partitions * 5 // 2048
        with ZooKeeperServer(heap=f"{heap_mb}m") as server:
            table = sample(partitions, np.random.default_rng(7))
            with timed("a ZooKeeper filled"):
                asyncio.run(fill(server.address, table))
            with timed("klamm snapshot --zookeeper"):
                klamm(
                    "snapshot", "--zookeeper", server.address, "--no-sizes", *out(folder, "taken")
                )
        snapshot = ("--snapshot", f"{folder}/taken")
        with timed("klamm whatif --fail brokers:2"):
            klamm("whatif", *snapshot, "--fail", "brokers:2", *out(folder, "whatif"))
        plan = Path(folder, "plan", "plan.json")
        added = [word for broker in NEW for word in ("--rack", f"{broker}={rack_of(broker)}")]
        with timed("klamm plan --add-brokers (ten)"):
            klamm(
                *("plan", *snapshot, "--add-brokers", ",".join(map(str, NEW)), *added),
                *("--out", str(plan)),
            )
        summary = orjson.loads(plan.with_name("summary.json").read_bytes())
        print(
            f"{summary['replicas_moved']:,} replicas moved, at least "
            f"{summary['lower_bound_replicas']:,}, in {summary['waves']} waves; "
            f"kafka-reassign-partitions --generate would move {moved_anew(table):,}"
        )
        spark.stop()


def out(folder: str, name: str) -> tuple[str, str]:
    return "--out", f"{folder}/{name}"


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000)
