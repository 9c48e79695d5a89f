"""How long it takes until a cluster of three can be used, and what it takes to be there.

A cluster of Apache Kafka is started beside it if KAFKA_LIBS names its jars. The session of pytest
is one test that asks for the fixture and does nothing with it.
"""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from klamm.client.admin import Admin
from klamm.errors import KlammError
from klamm.local.cluster import Cluster
from klamm.local.network import free_ports
from klamm.zookeeper.server import ZooKeeperServer

RUNS = 3
BROKERS = (1, 2, 3)
JVM = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


def main() -> None:
    report("klamm.Cluster(3)", start_cluster)
    report("klamm up --json", start_up)
    report("pytest with the fixture", start_session)
    if libs := os.environ.get("KAFKA_LIBS"):
        report("Apache Kafka, three brokers", partial(start_kafka, libs))


def report(what: str, run: Callable[[], float]) -> None:
    times = [run() for _ in range(RUNS)]
    print(f"{what:<30} {statistics.median(times):6.2f} s   ({min(times):.2f} to {max(times):.2f})")


def start_cluster() -> float:
    begun = time.perf_counter()
    with Cluster(len(BROKERS)):
        return time.perf_counter() - begun


def start_up() -> float:
    begun = time.perf_counter()
    base_port = free_ports(1)[0]
    command = (sys.executable, "-m", "klamm", "up", "--json", "--base-port", str(base_port))
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        took = time.perf_counter() - begun
        process.terminate()
    assert ready, "it did not start"
    return took


def start_session() -> float:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "test_it.py").write_text("def test_it(klamm_cluster): ...\n")
        begun = time.perf_counter()
        command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
        subprocess.run(command, cwd=directory, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - begun


def start_kafka(libs: str) -> float:
    directory = Path(tempfile.mkdtemp())
    processes = []
    begun = time.perf_counter()
    try:
        with ZooKeeperServer() as zookeeper:
            ports = free_ports(len(BROKERS))
            for broker, port in zip(BROKERS, ports, strict=True):
                file = directory / f"{broker}.properties"
                file.write_text(
                    f"broker.id={broker}\nlisteners=PLAINTEXT://127.0.0.1:{port}\n"
                    f"zookeeper.connect={zookeeper.address}\nlog.dirs={directory}/{broker}\n"
                )
                command = ("java", *JVM, "-cp", f"{libs}/*", "kafka.Kafka", str(file))
                quiet = subprocess.DEVNULL
                processes.append(subprocess.Popen(command, stdout=quiet, stderr=quiet))
            for port in ports:
                wait_usable(f"127.0.0.1:{port}")
            took = time.perf_counter() - begun
            for process in processes:
                process.kill()
                process.wait()
            return took
    finally:
        for process in processes:
            process.kill()
        shutil.rmtree(directory, ignore_errors=True)


def wait_usable(address: str) -> None:
    """The same condition as a cluster of klamm has to meet."""
    with Admin(address) as admin:
        while True:
            try:
                answer = admin.metadata([])
                known = {each.node_id for each in answer.brokers}
                if known == set(BROKERS) and answer.controller_id in known:
                    return
            except KlammError:
                pass
            time.sleep(0.02)


if __name__ == "__main__":
    main()
