"""Throughput and latency of any cluster, as one JSON object on stdout.

  python -m bench.side_by_side.load --bootstrap HOST:PORT[,...]       a cluster that is running (3 brokers for the RF 3 rows)
  python -m bench.side_by_side.load --implementation kafka|klamm      start three brokers, measure, stop them
  python -m bench.side_by_side.load --both                            both, one after the other, and the ratios klamm : kafka

(a) produce, 1 KB records, default batching, acks=1 and all, RF 1 and 3, 6 partitions: librdkafka and Java's
ProducerPerformance; (b) one record at a time, acks=all, RF 3: latency; (c) consume: librdkafka and Java's
ConsumerPerformance; (d) 100 idle connections and 10 active producers. Figures are for comparing two implementations on
one machine in one run; client, brokers and ZooKeeper share its cores.
"""

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.side_by_side.cluster import Cluster, ZooKeeper, cpu_s, rss_mb

os.environ.setdefault(
    "KAFKA_JVM", "-Xms1g -Xmx1g -XX:+UseG1GC"
)  # a JVM as in production, not one for short tests
KB = os.urandom(1024)
PARTITIONS = 6


def name(prefix):
    return f"{prefix}-{random.randrange(16**8):08x}"


def until(what, check, timeout=60):
    end = time.monotonic() + timeout
    while not check():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.1)


def java(main, *args, timeout):
    """One of Kafka's own tools."""
    done = subprocess.run(
        ["java", "-Xmx512m", "-cp", os.environ["KAFKA_LIBS"] + "/*", main, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    if done.returncode:
        raise RuntimeError(f"{main}: {(done.stdout + done.stderr)[-300:]}")
    return done.stdout


@contextlib.contextmanager
def running(implementation):
    """Three brokers and their ZooKeeper; yields them and the seconds it took until all were registered."""
    directory = tempfile.mkdtemp(prefix="load-")
    began = time.perf_counter()
    zookeeper = ZooKeeper(Path(directory) / "zk")
    try:
        with Cluster(
            directory,
            zookeeper,
            implementation,
            [1, 2, 3],
            {"log.retention.check.interval.ms": 60000},
        ) as cluster:
            cluster.start()
            yield cluster, time.perf_counter() - began
    finally:
        zookeeper.stop()
        shutil.rmtree(directory, ignore_errors=True)


def topic_of(bootstrap, rf):
    topic = name("load")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, rf)], operation_timeout=30)[topic].result(40)
    until(
        "leaders",
        lambda: (
            lambda m: (
                len(m.partitions) == PARTITIONS
                and all(p.leader >= 0 for p in m.partitions.values())
            )
        )(admin.list_topics(topic, 10).topics[topic]),
    )
    return topic


def produce_for(bootstrap, topic, seconds, acks, offset=0):
    """Records acknowledged, seconds, failures."""
    acked = failed = 0

    def delivered(error, _):
        nonlocal acked, failed
        if error:
            failed += 1
        else:
            acked += 1

    producer = Producer({"bootstrap.servers": bootstrap, "acks": acks})
    producer.list_topics(topic, 10)
    began, n = time.perf_counter(), offset
    while time.perf_counter() - began < seconds:
        for _ in range(100):
            try:
                producer.produce(topic, KB, partition=n % PARTITIONS, on_delivery=delivered)
                n += 1
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    producer.flush(120)
    return acked, time.perf_counter() - began, failed


def rate(records, seconds, failed=0):
    found = {
        "records_per_s": round(records / seconds),
        "MB_per_s": round(records * 1024 / seconds / 1e6, 1),
        "MB": records * 1024 / 1e6,
    }
    return {**found, "failed": failed} if failed else found


def java_produce(bootstrap, topic, records, acks):
    out = java(
        "org.apache.kafka.tools.ProducerPerformance",
        "--topic",
        topic,
        "--num-records",
        records,
        "--record-size",
        1024,
        "--throughput",
        -1,
        "--producer-props",
        f"bootstrap.servers={bootstrap}",
        f"acks={acks}",
        timeout=600,
    )
    last = out.strip().splitlines()[-1]
    found = re.search(
        r"([\d.]+) records/sec \(([\d.]+) MB/sec\), ([\d.]+) ms avg latency.*?(\d+) ms 50th.*?(\d+) ms 99th",
        last,
    )
    if not found:
        raise RuntimeError(last)
    per_s, mb, avg, p50, p99 = map(float, found.groups())
    return {
        "records_per_s": round(per_s),
        "MB_per_s": round(mb * 1.048576, 1),
        "p50_ms": p50,
        "p99_ms": p99,
        "MB": records * 1024 / 1e6,
    }


def one_at_a_time(bootstrap, topic, count):
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})
    took = []
    for n in range(count + 50):
        began = time.perf_counter()
        producer.produce(topic, KB, partition=n % PARTITIONS)
        if producer.flush(30):
            raise RuntimeError("no answer in 30 s")
        took.append((time.perf_counter() - began) * 1000)
    took = sorted(took[50:])
    return {
        "p50_ms": round(statistics.median(took), 2),
        "p99_ms": round(took[int(len(took) * 0.99)], 2),
        "max_ms": round(took[-1], 2),
    }


def consume_all(bootstrap, topic, wanted):
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": name("load"), "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, p, 0) for p in range(PARTITIONS)])
    count, began, last = 0, None, time.perf_counter()
    while count < wanted and time.perf_counter() - last < 30:
        for m in consumer.consume(1000, 0.2):
            if not m.error():
                began = began or time.perf_counter()
                count, last = count + 1, time.perf_counter()
    took = last - began
    consumer.close()
    return {**rate(count, took), "complete": count >= wanted}


def java_consume(bootstrap, topic, wanted):
    out = java(
        "org.apache.kafka.tools.ConsumerPerformance",
        "--bootstrap-server",
        bootstrap,
        "--topic",
        topic,
        "--messages",
        wanted,
        "--timeout",
        30000,
        timeout=300,
    )
    columns = out.strip().splitlines()[-1].split(", ")
    return {
        "records_per_s": round(float(columns[-1])),
        "MB_per_s": round(float(columns[-2]) * 1.048576, 1),
        "MB": wanted * 1024 / 1e6,
    }


def crowd(bootstrap, topic, seconds):
    """Ten producers, each with its own connections, among a hundred connections that said hello and wait."""
    with contextlib.ExitStack() as stack:
        for n in range(100):
            host, port = bootstrap.split(",")[n % len(bootstrap.split(","))].rsplit(":", 1)
            s = stack.enter_context(socket.create_connection((host, int(port)), 10))
            hello = struct.pack(">hhih4s", 18, 0, n, 4, b"idle")
            s.sendall(struct.pack(">i", len(hello)) + hello)
            s.recv(65536)
        totals, lock = [0, 0], threading.Lock()

        def work(n):
            acked, _, failed = produce_for(bootstrap, topic, seconds, "all", n)
            with lock:
                totals[0] += acked
                totals[1] += failed

        threads = [threading.Thread(target=work, args=(n,)) for n in range(10)]
        began = time.perf_counter()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return rate(totals[0], time.perf_counter() - began, totals[1])


class Cost:
    """CPU seconds of the brokers while a row was measured."""

    def __init__(self, cluster):
        self.pids = [n.proc.pid for n in cluster.nodes.values()] if cluster else []

    def __call__(self, row, action, megabytes=lambda r: r["MB"]):
        before = sum(map(cpu_s, self.pids))
        result = action()
        if self.pids and result.get("MB"):
            result["broker_cpu_s_per_GB"] = round(
                (sum(map(cpu_s, self.pids)) - before) / result["MB"] * 1000, 2
            )
        result.pop("MB", None)
        print(row, json.dumps(result), file=sys.stderr, flush=True)
        return result


def measure(bootstrap, options, cluster=None):
    found, cost = {"produce": {}, "consume": {}}, Cost(cluster)
    produce_for(bootstrap, topic_of(bootstrap, 3), min(5, options.seconds), "all")  # warm up
    for rf in (1, 3):
        for acks in ("1", "all"):
            row = f"rf{rf} acks={acks}"
            topic = topic_of(bootstrap, rf)
            total = [0]

            def produce():
                acked, took, failed = produce_for(bootstrap, topic, options.seconds, acks)
                total[0] = acked
                return rate(acked, took, failed)

            found["produce"][f"{row} librdkafka"] = cost(row, produce)
            if not options.no_java:
                found["produce"][f"{row} java"] = cost(
                    f"{row} java",
                    lambda: java_produce(
                        bootstrap, topic_of(bootstrap, rf), options.java_records, acks
                    ),
                )
    found["consume"]["librdkafka"] = cost(
        "consume", lambda: consume_all(bootstrap, topic, total[0])
    )
    if not options.no_java:
        found["consume"]["java"] = cost(
            "consume java", lambda: java_consume(bootstrap, topic, total[0])
        )
    found["one at a time acks=all rf3"] = cost(
        "singles", lambda: one_at_a_time(bootstrap, topic_of(bootstrap, 3), options.singles)
    )
    found["100 idle, 10 active, acks=all rf3"] = cost(
        "crowd", lambda: crowd(bootstrap, topic_of(bootstrap, 3), options.seconds)
    )
    return found


def of(implementation, options):
    with running(implementation) as (cluster, ready):
        idle = [rss_mb(n.proc.pid) for n in cluster.nodes.values()]
        found = measure(cluster.bootstrap, options, cluster)
        found["ready_s"] = round(ready, 2)
        found["rss_mb"] = {
            "idle": max(idle),
            "after load": max(rss_mb(n.proc.pid) for n in cluster.nodes.values()),
        }
        return found


def ratios(a, b):
    """klamm : kafka for every figure both have; more is better for rates, less for ms, CPU and memory."""
    if isinstance(a, dict) and isinstance(b, dict):
        return {k: r for k in a if k in b and (r := ratios(a[k], b[k])) not in (None, {})}
    if isinstance(a, bool) or not isinstance(a, (int, float)) or not b:
        return None
    return round(a / b, 3)


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--bootstrap")
    p.add_argument("--implementation", choices=("kafka", "klamm"))
    p.add_argument("--both", action="store_true")
    p.add_argument("--seconds", type=float, default=8, help="of producing, per row")
    p.add_argument("--singles", type=int, default=1000, help="records sent one at a time")
    p.add_argument("--java-records", type=int, default=200_000)
    p.add_argument(
        "--no-java", action="store_true", help="leave Java's tools out (they need $KAFKA_LIBS)"
    )
    options = p.parse_args()
    if options.both:
        result = {i: of(i, options) for i in ("kafka", "klamm")}
        result["klamm : kafka"] = ratios(result["klamm"], result["kafka"])
    elif options.implementation:
        result = {options.implementation: of(options.implementation, options)}
    elif options.bootstrap:
        result = measure(options.bootstrap, options)
    else:
        p.error("one of --bootstrap, --implementation, --both")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
