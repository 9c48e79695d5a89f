"""How long the controller's own broker keeps a client waiting while it takes over a large cluster.

    python -m bench.takeover [--topics 1000] [--partitions 100]

A node on a populated ZooKeeper loses and regains the role; meanwhile one client asks it for its
versions again and again on one connection. Prints the longest and the 99th percentile of the waits.
"""

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.side_by_side.cluster import ZooKeeper, wait_port
from bench.side_by_side.controller import Stubs, populate
from klamm.local.network import free_ports
from tests.support.pings import Pings


def report(name: str, pings: Pings) -> None:
    waits = pings.waits_ms
    late = statistics.quantiles(waits, n=100)[98]
    print(f"{name:10} longest {max(waits):7.1f} ms   p99 {late:6.1f} ms   of {len(waits)}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=100)
    options = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="takeover-"))
    zookeeper = ZooKeeper(directory / "zk", heap="2g")
    admin = zookeeper.client()
    brokers = list(range(1, 11))
    (base,) = free_ports(1)
    node = None
    try:
        for path in ("/brokers/ids", "/brokers/topics", "/config/topics"):
            admin.ensure_path(path)
        populate(zookeeper.port, options.topics, options.partitions, brokers, 3)
        stubs = Stubs(zookeeper.address, brokers, base)
        (port,) = free_ports(1)
        file = directory / "server.properties"
        file.write_text(
            f"broker.id=101\nlisteners=PLAINTEXT://127.0.0.1:{port}\n"
            f"zookeeper.connect={zookeeper.address}\nzookeeper.session.timeout.ms=30000\n"
            f"log.dirs={directory}/logs\nauto.leader.rebalance.enable=false\n"
            "controlled.shutdown.enable=false\n"
        )
        command = [str(Path(sys.executable).parent / "klamm"), "broker", str(file)]
        with (directory / "log").open("w") as log:
            node = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        wait_port(port, 60)
        stubs.quiet(seconds=3)
        with Pings(port) as pings:
            time.sleep(3)
        report("at rest", pings)
        for name, cause in (
            ("failover", lambda: admin.delete("/controller")),
            ("failure", lambda: stubs.say("kill 1")),
            ("return", lambda: stubs.say("start 1")),
        ):
            stubs.say("reset")  # or it would be quiet before anything has happened
            with Pings(port) as pings:
                cause()
                stubs.quiet(seconds=3)
            report(name, pings)
        stubs.stop()
    finally:
        if node is not None:
            os.killpg(node.pid, signal.SIGKILL)
        admin.stop()
        zookeeper.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
