"""Brokers with many partitions: what they cost, and how long a failure is felt.

    make bench BENCH=many
    python -m bench.many [--topics 50] [--partitions 100] [--consumers 0] [--only klamm]

Three brokers, replication factor 3, Apache Kafka 3.9.1 first and klamm after it. Seconds: creation
until every replica is in sync; one record to every partition (acks=all); with --consumers, a group
of so many reads them all; a broker is killed: from the loss of its registration until the metadata
has a live leader for everything; its restart until every replica is in sync; a controlled shutdown,
and the restart after it. Idle CPU of all brokers is a share of a core, memory that of the largest
broker. While one client asks for the metadata of all topics over and over, another asks for that of
one topic: its waits are in milliseconds.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.side_by_side.cluster import cpu_s, rss_mb
from bench.side_by_side.duel import BOTH, running
from tools.fetch_kafka import libs

PATIENCE_S = 600


def timed(check, timeout=PATIENCE_S):
    began = time.perf_counter()
    while not check():
        if time.perf_counter() - began > timeout:
            return None
        time.sleep(0.05)
    return round(time.perf_counter() - began, 2)


def of(implementation, topics, partitions, consumers, directory):
    found = {}
    os.sync()
    with running(implementation, {"log.retention.check.interval.ms": 60000}, directory) as cluster:
        names = [f"many-{n}" for n in range(topics)]
        pids = {i: n.proc.pid for i, n in cluster.nodes.items()}
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

        def state(alive):
            """Partitions without a live leader, replicas out of sync."""
            try:
                metadata = admin.list_topics(timeout=30)
            except (
                Exception
            ):  # while a broker is down, its connection may be the one that was tried
                return topics * partitions, topics * partitions * 3
            every = [
                p
                for t in metadata.topics.values()
                if t.topic in names
                for p in t.partitions.values()
            ]
            if len(every) < topics * partitions:
                return topics * partitions, topics * partitions * 3
            return sum(p.leader not in alive for p in every), sum(
                len(p.replicas) - len(p.isrs) for p in every
            )

        def say(key, value):
            found[key] = value
            print(f"{implementation} {key}: {value}", file=sys.stderr, flush=True)

        began = time.perf_counter()
        new = [NewTopic(each, partitions, 3) for each in names]
        for future in admin.create_topics(new, operation_timeout=60).values():
            future.result(PATIENCE_S)
        timed(lambda: state({1, 2, 3}) == (0, 0))
        say("create_s", round(time.perf_counter() - began, 2))
        time.sleep(5)
        before = sum(map(cpu_s, pids.values()))
        time.sleep(10)
        say("idle_cores", round((sum(map(cpu_s, pids.values())) - before) / 10, 3))
        say("rss_mb", max(map(rss_mb, pids.values())))
        began = time.perf_counter()
        produce_to_each(cluster.bootstrap, names, partitions)
        say("produce_to_each_s", round(time.perf_counter() - began, 2))
        for which, wait_ms in others_while_metadata(cluster.bootstrap, names[0]).items():
            say(f"metadata_others_{which}_ms", wait_ms)
        if consumers:
            say("consumers_s", consume(cluster.bootstrap, names, partitions, consumers))
        cluster.nodes[3].kill()
        timed(lambda: not cluster.zk.exists("/brokers/ids/3"))
        say("failure_s", timed(lambda: state({1, 2})[0] == 0))
        began = time.perf_counter()
        cluster.nodes[3].start()
        timed(lambda: state({1, 2, 3})[1] == 0)
        say("restart_to_in_sync_s", round(time.perf_counter() - began, 2))
        time.sleep(3)
        began = time.perf_counter()
        cluster.nodes[2].terminate(PATIENCE_S)
        say("controlled_shutdown_s", round(time.perf_counter() - began, 2))
        began = time.perf_counter()
        cluster.nodes[2].start()
        timed(lambda: state({1, 2, 3})[1] == 0)
        say("clean_restart_to_in_sync_s", round(time.perf_counter() - began, 2))
        say("rss_mb_after", max(rss_mb(n.proc.pid) for n in cluster.nodes.values()))
    return found


def produce_to_each(bootstrap, names, partitions):
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    for name in names:
        for partition in range(partitions):
            producer.produce(name, b"x" * 100, partition=partition)
        producer.poll(0)
    assert producer.flush(PATIENCE_S) == 0, "not everything was acknowledged"


def others_while_metadata(bootstrap, topic, rounds=20):
    """Half, 99% and all of the waits of one client, beside another that asks for all topics."""
    busy, idle = (
        AdminClient({"bootstrap.servers": bootstrap}),
        AdminClient({"bootstrap.servers": bootstrap}),
    )
    idle.list_topics(topic, 30)
    waits, done = [], threading.Event()

    def ask():
        while not done.is_set():
            began = time.perf_counter()
            idle.list_topics(topic, 30)
            waits.append((time.perf_counter() - began) * 1000)
            time.sleep(0.005)

    other = threading.Thread(target=ask)
    other.start()
    for _ in range(rounds):
        busy.list_topics(timeout=30)
    done.set()
    other.join()
    waits.sort()
    shares = {"p50": waits[len(waits) // 2], "p99": waits[len(waits) * 99 // 100], "max": waits[-1]}
    return {which: round(wait_ms, 1) for which, wait_ms in shares.items()}


def consume(bootstrap, names, partitions, count):
    """Seconds until a group of `count` members has read one record from each partition."""
    config = {
        "bootstrap.servers": bootstrap,
        "group.id": "many",
        "auto.offset.reset": "earliest",
        "partition.assignment.strategy": "roundrobin",
        "session.timeout.ms": 60000,
        "max.poll.interval.ms": 600000,
        "fetch.wait.max.ms": 500,
    }
    members = [Consumer(config) for _ in range(count)]
    began = time.perf_counter()
    for member in members:
        member.subscribe(names)
    seen = set()
    while len(seen) < len(names) * partitions:
        if time.perf_counter() - began > PATIENCE_S:
            return None
        for member in members:
            for record in member.consume(200, 0.002):
                if record.error() is None:
                    seen.add((record.topic(), record.partition()))
    took = round(time.perf_counter() - began, 2)
    closing = [threading.Thread(target=member.close) for member in members]
    for each in closing:
        each.start()
    for each in closing:
        each.join()
    return took


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--topics", type=int, default=50)
    parser.add_argument("--partitions", type=int, default=100)
    parser.add_argument("--consumers", type=int, default=0)
    parser.add_argument("--only", choices=BOTH)
    o = parser.parse_args()
    if o.only != "klamm":
        os.environ.setdefault("KAFKA_LIBS", str(libs()))
    # The files of both clusters are removed at the end: for minutes after tens of thousands were
    # deleted, ext4 takes up to a millisecond of processor time to create a file, because it looks
    # for an inode that was not in use just before.
    with tempfile.TemporaryDirectory(prefix="klamm-bench-") as directory:
        found = {
            each: of(each, o.topics, o.partitions, o.consumers, Path(directory))
            for each in ((o.only,) if o.only else BOTH)
        }
    print(json.dumps(found, indent=1))
    if not o.only:
        print("\n| | klamm | Apache Kafka | ratio |\n| --- | --- | --- | --- |")
        for row, klamm in found["klamm"].items():
            kafka = found["kafka"][row]
            ratio = f"{klamm / kafka:.2f}" if klamm and kafka else ""
            print(f"| {row} | {klamm} | {kafka} | {ratio} |")


if __name__ == "__main__":
    main()
