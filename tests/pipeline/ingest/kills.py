"""Ingest while drivers, executors and tasks are killed, and compare the table with the topic.

    python -m tests.pipeline.ingest.kills --records 20000000 --kills 20 --to delta --seed 7
    python -m tests.pipeline.ingest.kills --to iceberg --s3

A klamm cluster, a producer and `klamm ingest --continuous` run as processes. At random moments one
of them is killed: the driver with everything that it has started, an executor's JVM, or a Python
worker. In the end every offset of the topic must be in the table or among its dead letters, once.
With `--s3` table, dead letters and checkpoint are on a server of object storage, moto's.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import duckdb
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from pyarrow import dataset
from pyiceberg.catalog import load_catalog

from klamm import Cluster
from klamm.pipeline.ingest.location import Location
from klamm.pipeline.ingest.tables.parquet import read_manifest
from tests.support.object_storage import object_storage

TOPIC = "orders"
PARTITIONS = 4
BAD_EVERY = 1000
#: Between two looks at the table.
PAUSE_S = (0.2, 3.0)
#: How long nothing may arrive.
PATIENCE_S = 1200.0
EXECUTOR, WORKER = "CoarseGrainedExecutorBackend", "pyspark.daemon"


def session_members(leader: int) -> dict[int, str]:
    """The processes of a session, with their command lines."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, UnicodeDecodeError):
            continue
        if int(fields[3]) == leader:
            found[int(folder.name)] = command
    return found


class Driver:
    """One `klamm ingest` after another, each in a session of its own."""

    def __init__(self, command: list[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def ensure(self) -> None:
        """Start it if it is not running."""
        if self._process is not None and self._process.poll() is None:
            return
        if self._process is not None:
            self.kill_all()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, start_new_session=True
            )

    def kill_all(self) -> None:
        """Kill the driver and everything that it has started."""
        assert self._process is not None
        for pid in session_members(self._process.pid):
            kill(pid)
        kill(self._process.pid)
        self._process.wait()

    def kill_one(self, what: str, chance: random.Random) -> bool:
        """Kill an executor or a worker; False if there is none now."""
        assert self._process is not None
        members = session_members(self._process.pid)
        candidates = sorted(pid for pid, command in members.items() if what in command)
        if not candidates:
            return False
        kill(chance.choice(candidates))
        return True

    def stop(self) -> int:
        """Stop it as Ctrl-C does."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(300)


def kill(pid: int) -> None:
    """Kill a process that may be gone already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def produce(bootstrap: str, count: int) -> None:
    """JSON records, one in a thousand of which is not JSON."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)]).values():
        future.result(60)
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 20})
    for number in range(count):
        value = b"bad" if number % BAD_EVERY == 7 else b'{"id":%d,"amount":%d.5}' % (number, number)
        while True:
            try:
                producer.produce(TOPIC, value, b"%d" % number)
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(300) == 0


def run_kills(
    driver: Driver, kills: int, chance: random.Random, count_rows: Callable[[], int], wanted: int
) -> int:
    """Kill at random moments until there were enough kills and everything has arrived.

    Most kills wait until rows have arrived since the last one; some hit a driver that starts.
    """
    done, rows = 0, 0
    deadline = time.monotonic() + PATIENCE_S
    while done < kills or rows < wanted:
        assert time.monotonic() < deadline, f"only {rows} of {wanted} rows have arrived"
        driver.ensure()
        time.sleep(chance.uniform(*PAUSE_S))
        before, rows = rows, count_rows()
        if rows > before:
            deadline = time.monotonic() + PATIENCE_S
        if done >= kills or (rows == before < wanted and chance.random() < 0.99):
            continue
        what = chance.choice(["driver", EXECUTOR, EXECUTOR, WORKER, WORKER])
        if what == "driver":
            driver.kill_all()
        elif not driver.kill_one(what, chance):
            continue
        done += 1
        print(f"kill {done}: {what}, after {rows} rows", flush=True)
    return done


class Lake:
    """Where the table and its dead letters are, and how another engine reads them."""

    def __init__(self, kind: str, folder: Path, root: str) -> None:
        self._kind = kind
        self._root = root
        self._catalog = {}
        if kind == "iceberg":
            self._catalog = {
                "type": "sql",
                "uri": f"sqlite:///{folder}/catalog.db",
                "warehouse": root if "://" in root else f"file://{root}",
            }
            if "://" in root:
                self._catalog["s3.endpoint"] = os.environ["AWS_ENDPOINT_URL"]
                self._catalog["s3.region"] = os.environ["AWS_REGION"]

    def arguments(self) -> list[str]:
        """What `klamm ingest` is told."""
        name = f"lake.kills.{TOPIC}" if self._catalog else f"{self._root}/{TOPIC}"
        told = ["--to", f"{self._kind}:{name}", "--checkpoint", f"{self._root}/checkpoint"]
        for key, value in self._catalog.items():
            told += ["--catalog-property", f"{key}={value}"]
        return told

    def rows(self, name: str, columns: list[str]) -> pa.Table | None:
        """The table as Arrow reads its files; None before it exists."""
        files = self.files(name)
        if not files:
            return None
        store = None
        if "://" in self._root:
            store, _ = Location(self._root).open()
            files = [each.removeprefix("s3://") for each in files]
        return dataset.dataset(files, filesystem=store, format="parquet").to_table(columns=columns)

    def files(self, name: str) -> list[str]:
        """The files of the table as it is now; none before it exists."""
        try:
            match self._kind:
                case "delta":
                    found = list(DeltaTable(f"{self._root}/{name}").file_uris())
                case "iceberg":
                    table = load_catalog("lake", **self._catalog).load_table(f"kills.{name}")
                    found = [each.file.file_path for each in table.scan().plan_files()]
                case _:
                    found = read_manifest(f"{self._root}/{name}")
        except Exception:
            return []
        return [each.removeprefix("file://") for each in found]

    def count(self) -> int:
        """How many rows the table has."""
        rows = self.rows(TOPIC, ["_offset"])
        return 0 if rows is None else rows.num_rows


def compare(lake: Lake, count: int) -> dict[str, int]:
    """Every number once, in the table or, for bad ones, among the dead letters."""
    rows = lake.rows(TOPIC, ["_partition", "_offset", "id"])
    letters = lake.rows(f"{TOPIC}_dead_letters", ["partition", "offset"])
    assert rows is not None
    assert letters is not None
    ((total, distinct, ids),) = duckdb.sql(
        "select count(*), count(distinct (_partition, _offset)), count(distinct id) from rows"
    ).fetchall()
    ((bad, distinct_bad),) = duckdb.sql(
        'select count(*), count(distinct (partition, "offset")) from letters'
    ).fetchall()
    expected_bad = len(range(7, count, BAD_EVERY))
    assert bad == distinct_bad == expected_bad, (bad, distinct_bad, expected_bad)
    assert total == distinct == ids == count - expected_bad, (total, distinct, ids)
    return {"rows": total, "dead_letters": bad, "files": len(lake.files(TOPIC))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--to", choices=("delta", "iceberg", "parquet"), default="delta")
    parser.add_argument("--s3", action="store_true", help="tables and checkpoint on object storage")
    parser.add_argument("--batch", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--master", default="local-cluster[2,1,1024]")
    given = parser.parse_args()
    print(f"seed {given.seed}", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        root = stack.enter_context(object_storage()) if given.s3 else f"{folder}/lake"
        lake = Lake(given.to, folder, root)
        cluster = stack.enter_context(Cluster(brokers=1))
        produce(cluster.bootstrap_servers, given.records)
        driver = Driver(
            [
                *(sys.executable, "-m", "klamm", "ingest", TOPIC, "--continuous", "--every", "0.1"),
                *("--format", "json", *lake.arguments()),
                *("--batch-records", str(given.batch), "--master", given.master),
                *("--bootstrap-server", cluster.bootstrap_servers),
            ],
            folder / "driver.log",
        )
        wanted = given.records - len(range(7, given.records, BAD_EVERY))
        try:
            kills = run_kills(
                driver,
                given.kills,
                random.Random(given.seed),
                lake.count,
                wanted,
            )
            code = driver.stop()
        except BaseException:
            print((folder / "driver.log").read_text()[-5000:], file=sys.stderr)
            driver.kill_all()
            raise
        found = compare(lake, given.records)
    print(json.dumps({"kills": kills, "exit_code": code, **found}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
