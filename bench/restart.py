"""How long a broker with many partitions and a large log takes to start.

    python -m bench.restart [--partitions 5000] [--megabytes 1] [--only klamm]

One broker, replication factor 1. One partition is filled by a producer, and the broker is shut
down; the files of all other partitions become copies of it. Then the broker is started, until its
registration and until every partition has its leader: after a controlled shutdown, after SIGKILL,
when it reads the last segment of each partition again, and after another controlled shutdown. The
files are in the page cache. Apache Kafka 3.9.1 does the same first.
"""

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.side_by_side.cluster import Cluster, ZooKeeper
from bench.side_by_side.duel import BOTH
from tools.fetch_kafka import libs

TOPIC = "restart"
PATIENCE_S = 600
CHECKPOINTS = ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--partitions", type=int, default=5000)
    parser.add_argument("--megabytes", type=int, default=1, help="of each partition")
    parser.add_argument("--only", choices=BOTH)
    options = parser.parse_args()
    if options.only != "klamm":
        os.environ.setdefault("KAFKA_LIBS", str(libs()))
    for implementation in (options.only,) if options.only else BOTH:
        measure(implementation, options.partitions, options.megabytes)


def measure(implementation: str, partitions: int, megabytes: int) -> None:
    directory = Path(tempfile.mkdtemp(prefix="restart-"))
    zookeeper = ZooKeeper(directory / "zk")
    try:
        with Cluster(directory, zookeeper, implementation, [1]) as cluster:
            cluster.start()
            node = cluster.nodes[1]
            fill(node.address, partitions, megabytes)
            node.terminate(PATIENCE_S)
            multiply(Path(node.config["log.dirs"]), partitions)
            for how, end in (
                ("controlled shutdown", lambda: node.terminate(PATIENCE_S)),
                ("SIGKILL", node.kill),
                ("controlled shutdown", lambda: node.terminate(PATIENCE_S)),
            ):
                end()
                wait(lambda: not cluster.zk.exists("/brokers/ids/1"))
                registered, leading = start(cluster, partitions)
                print(
                    f"{implementation}, {partitions} partitions of {megabytes} MB, after a {how}: "
                    f"registered in {registered:.2f} s, leads all in {leading:.2f} s",
                    flush=True,
                )
    finally:
        zookeeper.stop()
        shutil.rmtree(directory, ignore_errors=True)


def fill(address: str, partitions: int, megabytes: int) -> None:
    """Create the topic and write into its first partition."""
    admin = AdminClient({"bootstrap.servers": address})
    # Apache Kafka needs more than the minute that a client waits for a response by default.
    waiting = {"operation_timeout": PATIENCE_S, "request_timeout": PATIENCE_S}
    admin.create_topics([NewTopic(TOPIC, partitions, 1)], **waiting)[TOPIC].result(PATIENCE_S)
    wait(lambda: leaders(admin) == partitions)
    producer = Producer({"bootstrap.servers": address, "batch.size": 16_384, "linger.ms": 50})
    for _ in range(megabytes * 1024):
        producer.produce(TOPIC, os.urandom(950), partition=0)
    assert producer.flush(PATIENCE_S) == 0, "not everything was acknowledged"


def multiply(log_dir: Path, partitions: int) -> None:
    """Give every partition the files of the first, and the same offsets in the checkpoints."""
    source = log_dir / f"{TOPIC}-0"
    for partition in range(1, partitions):
        for file in source.iterdir():
            if file.name != "partition.metadata":
                shutil.copyfile(file, log_dir / f"{TOPIC}-{partition}" / file.name)
    for name in CHECKPOINTS:
        lines = (log_dir / name).read_text().splitlines()[2:]
        found = dict(line.rsplit(" ", 1) for line in lines)
        same = dict.fromkeys((f"{TOPIC} {n}" for n in range(partitions)), found[f"{TOPIC} 0"])
        entries = [f"{partition} {offset}" for partition, offset in {**found, **same}.items()]
        (log_dir / name).write_text("\n".join(["0", str(len(entries)), *entries]) + "\n")


def start(cluster: Cluster, partitions: int) -> tuple[float, float]:
    """Seconds until the broker is registered, and until it leads all partitions."""
    began = time.perf_counter()
    node = cluster.nodes[1]
    node.start(wait=False)
    wait(lambda: cluster.zk.exists("/brokers/ids/1"))
    registered = time.perf_counter() - began
    admin = AdminClient({"bootstrap.servers": node.address})
    wait(lambda: leaders(admin) == partitions)
    return registered, time.perf_counter() - began


def leaders(admin: AdminClient) -> int:
    try:
        topic = admin.list_topics(TOPIC, timeout=30).topics[TOPIC]
    except Exception:  # it does not serve yet
        return 0
    return sum(each.leader == 1 for each in topic.partitions.values())


def wait(check) -> None:
    until = time.monotonic() + PATIENCE_S
    while not check():
        if time.monotonic() > until:
            raise TimeoutError
        time.sleep(0.02)


if __name__ == "__main__":
    main()
