"""format("klamm") side by side with Spark's own Kafka connector, on the same topics.

    make bench-spark SPARK_BENCH="--records 1000000"

The newest connector that Maven Central had was that of Spark 4.0.0, so both run under pyspark 4.0.0
in an environment of their own, `.setup/spark-connector`, made on first use. Brokers are klamm's;
with `--bootstrap-server` any others. Shown are rows a second, and the CPU seconds of Spark and its
Python workers for a million rows; the brokers' own are not counted.

`--what small` reads 10 records of each of `--partitions` partitions (10,000), and `--what latency`
shows how old the records of a steady stream are when their micro-batch is done. Many partitions
take the connector very long: `--limit` gives a side up after some seconds, its start and first
count included, which are shown as well.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.side_by_side.cluster import Node, ZooKeeper
from tools.spark_wheel import DEPENDENCIES

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".setup" / "spark-connector"
SPARK = "4.0.0"
#: What the connector needs and Spark does not bring.
JARS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK}",
    f"org.apache.spark:spark-token-provider-kafka-0-10_2.13:{SPARK}",
    "org.apache.kafka:kafka-clients:3.9.0",
    "org.apache.commons:commons-pool2:2.12.0",
)
PARTITIONS = 2
SIZES = (100, 1000)
CODECS = ("none", "lz4")
WHAT = ("read", "stream", "write")
APART = ("small", "latency")
SIDES = ("klamm", "connector")
SMALL_RECORDS = 10


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--records", type=int, default=2_000_000, help="of each size")
    parser.add_argument("--rounds", type=int, default=2, help="of each, of which the last counts")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, choices=SIZES)
    parser.add_argument("--codecs", nargs="+", default=CODECS, choices=CODECS)
    parser.add_argument("--what", nargs="+", default=WHAT, choices=WHAT + APART)
    parser.add_argument("--partitions", type=int, default=10_000, help="of --what small")
    parser.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES)
    parser.add_argument("--limit", type=float, help="seconds after which a side is given up")
    parser.add_argument("--bootstrap-server", help="a cluster that runs already")
    asked = parser.parse_args()
    python, jars = connector()
    with ExitStack() as stack:
        bootstrap = asked.bootstrap_server or stack.enter_context(one_broker())
        all_sides = {"connector": (python, "kafka", jars), "klamm": (python, "klamm", ())}
        sides = {name: all_sides[name] for name in asked.sides}
        if "small" in asked.what:
            records = asked.partitions * SMALL_RECORDS
            topic = fill(bootstrap, 100, records, "none", asked.partitions)
            print(f"{asked.partitions:,} partitions with {SMALL_RECORDS} records each", flush=True)
            for name, side in sides.items():
                figures = run(*side, bootstrap, topic, ["read"], records, asked.rounds, asked.limit)
                show(name, figures, records)
            delete(bootstrap, topic)
        if "latency" in asked.what:
            topic = fill(bootstrap, 1000, 1, "none")
            print("A steady stream of 500 records of 1 KB a second", flush=True)
            for name, side in sides.items():
                show_latency(name, run(*side, bootstrap, topic, ["latency"], 1, 1))
            delete(bootstrap, topic)
        what = [each for each in asked.what if each in WHAT]
        for size in asked.sizes if what else ():
            for codec in asked.codecs:
                topic = fill(bootstrap, size, asked.records, codec)
                print(f"{asked.records:,} records of {size} bytes, {codec}", flush=True)
                for name, side in sides.items():
                    figures = run(*side, bootstrap, topic, what, asked.records, asked.rounds)
                    show(name, figures, asked.records)
                delete(bootstrap, topic)


def connector():
    """An environment with the pyspark that the connector fits, and the connector's jars."""
    python, libs = HOME / "venv" / "bin" / "python", HOME / "jars"
    if not (HOME / ".complete").exists():
        if shutil.which("mvn") is None:
            sys.exit("The connector comes from Maven Central: install Maven.")
        print(f"Making {HOME.relative_to(ROOT)} (once).", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", HOME / "venv"], check=True)
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run([*pip, f"pyspark=={SPARK}", "pandas<3", *DEPENDENCIES], check=True)
        for jar in JARS:
            subprocess.run(
                [
                    *("mvn", "-q", "dependency:copy", f"-Dartifact={jar}"),
                    f"-DoutputDirectory={libs}",
                ],
                cwd=HOME,
                check=True,
            )
        (HOME / ".complete").touch()
    return python, tuple(sorted(libs.glob("*.jar")))


class one_broker:
    """A broker of klamm, for as long as the comparison takes."""

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="klamm-bench-")
        self._zookeeper = ZooKeeper(f"{self._folder.name}/zookeeper")
        self._node = Node("klamm", 1, f"{self._folder.name}/1", self._zookeeper.address).start()
        return self._node.address

    def __exit__(self, *_):
        self._node.terminate()
        self._zookeeper.stop()
        self._folder.cleanup()


def fill(bootstrap, size, records, codec, partitions=PARTITIONS):
    """A topic with records that compress about as well as JSON does."""
    topic = f"bench-{size}-{codec}-{time.time_ns()}"
    create(bootstrap, topic, partitions)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20, "log_level": 0}
    )
    words = b'{"order": %d, "customer": "c-%d", "state": "shipped", "note": "%s"}'
    note = b"lorem ipsum dolor " * (size // 18)
    for number in range(records):
        value = (words % (number, number * 7919 % 99991, note))[:size]
        produce(producer, topic, value, number % partitions)
    flush(producer)
    return topic


def produce(producer, topic, value, partition):
    """Hand a record to librdkafka, waiting while its queue is full."""
    while True:
        try:
            producer.produce(topic, value, partition=partition)
            return
        except BufferError:
            producer.poll(0.1)


def flush(producer):
    """Wait until all records are delivered."""
    if producer.flush(120):
        sys.exit("The topic could not be filled.")


def create(bootstrap, topic, partitions=PARTITIONS):
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(120)
    deadline = time.monotonic() + 120
    while not _is_led(admin, topic, partitions):
        if time.monotonic() > deadline:
            sys.exit("The topic has no leaders.")
        time.sleep(0.5)


def _is_led(admin, topic, partitions):
    found = admin.list_topics(topic, timeout=30).topics[topic].partitions.values()
    return len(found) == partitions and all(each.leader >= 0 for each in found)


def delete(bootstrap, topic):
    """Make room: gigabytes that wait to be written to the disk would slow down what follows."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(30)


def run(python, form, jars, bootstrap, topic, what, records, rounds, limit=None):
    """The figures of one side; none if it takes longer than `limit` seconds."""
    target = f"{topic}-{form}"
    create(bootstrap, target)
    command = [python, ROOT / "bench" / "_spark_job.py", form, bootstrap, topic, target]
    numbers = [str(records), str(rounds), ",".join(what)]
    more = [",".join(map(str, jars))] if jars else []
    environment = {key: value for key, value in os.environ.items() if key != "SPARK_HOME"}
    began = time.monotonic()
    try:
        finished = subprocess.run(
            [*map(str, command), *numbers, *more],
            env=environment | {"PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=limit,
        )
    except subprocess.TimeoutExpired:
        print(f"  {form}: given up after {limit:g} s", flush=True)
        return {}
    if finished.returncode:
        sys.exit(finished.stderr[-3000:])
    if limit is not None:
        print(f"  {form}: {time.monotonic() - began:.1f} s in all", flush=True)
    delete(bootstrap, target)
    return json.loads(finished.stdout.splitlines()[-1])


def show_latency(name, figures):
    ages = figures["latency"]
    line = ", ".join(f"{key} {value * 1000:,.0f} ms" for key, value in ages.items())
    print(f"  {name:10} {line}", flush=True)


def show(name, figures, records):
    for what, figure in figures.items():
        rate = records / figure["seconds"]
        per_million = figure["cpu"] / records * 1e6
        line = f"  {name:10} {what:7} {rate:12,.0f} rows/s {per_million:8.2f} CPU s/million"
        print(line, flush=True)


if __name__ == "__main__":
    main()
