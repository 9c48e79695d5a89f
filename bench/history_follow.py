"""How soon a failure is in the tables and in the report of `klamm history --follow`.

Run with `python -m bench.history_follow [FAILURES]` from the root of the repository. Three brokers
ship their history to a topic, which a process follows. A broker is killed (SIGKILL), and the tables
are looked at until the loss of its leadership is there; it is started again, and the next one is
killed. Shown are the seconds from the kill to the election of another leader, which comes when the
broker's ZooKeeper session is over, and from there to the tables and to the report.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pyarrow import parquet

from klamm.history.story import DEFAULT_TOPIC
from klamm.local.cluster import Cluster

TOPIC = "orders"
LONG_S = 120.0
LOOK_S = 0.05


@contextlib.contextmanager
def following(cluster: Cluster, out: Path) -> Iterator[None]:
    """`klamm history --follow`, which is killed at the end."""
    command = [sys.executable, "-m", "klamm", "history", "-b", cluster.bootstrap_servers]
    with (out.parent / "output").open("wb") as output:
        process = subprocess.Popen(
            [*command, "--out", str(out), "--follow"],
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def losses(out: Path) -> int:
    """How many losses of leadership the table tells of."""
    if not (out / "unavailability").exists():
        return 0
    column = parquet.read_table(out / "unavailability", columns=["lost_leader"])["lost_leader"]
    return len(column) - column.null_count


def wait(is_so) -> float:
    """The time at which it was so."""
    deadline = time.time() + LONG_S
    while not is_so():
        if time.time() > deadline:
            sys.exit("It did not happen.")
        time.sleep(LOOK_S)
    return time.time()


def main() -> None:
    failures = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        out = Path(directory, "history")
        cluster = stack.enter_context(Cluster(3, config={"klamm.history.topic": DEFAULT_TOPIC}))
        cluster.create_topic(TOPIC, partitions=30)
        wait(lambda: cluster.partition(DEFAULT_TOPIC) is not None)
        stack.enter_context(following(cluster, out))
        report = out / "report.html"
        wait(report.exists)
        for _ in range(failures):
            lost = cluster.leader(TOPIC)
            before = losses(out)
            role = ", the controller" if cluster.controller_id() == lost else ""
            killed = time.time()
            cluster.kill(lost)
            cluster.wait_leader(TOPIC, other_than=lost)
            elected = time.time()
            told = wait(lambda before=before: losses(out) > before)
            shown = wait(lambda told=told: report.stat().st_mtime >= told)
            print(
                f"broker {lost}{role}: another leader {elected - killed:.1f} s after the kill, in "
                f"the tables {told - elected:.1f} s and in the report {shown - elected:.1f} s "
                f"after that",
                flush=True,
            )
            cluster.start(lost)
            for partition in range(30):
                cluster.wait_isr(TOPIC, partition, {1, 2, 3})


if __name__ == "__main__":
    main()
