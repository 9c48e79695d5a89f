"""Real brokers with many partitions: what each costs, and how long a failure is felt. One JSON object on stdout.

  python -m bench.side_by_side.many --implementation kafka|klamm [--topics 50] [--partitions 100] [--consumers 0]
  python -m bench.side_by_side.many --both

Three brokers, replication factor 3. Seconds: creation until every replica is in sync; produce to every partition once
(acks=all); with --consumers, a group of so many reads all of it; a broker killed: from the loss of its registration until
the survivors' metadata has a live leader for everything; its restart until every replica is in sync again; controlled
shutdown of one. Idle CPU of all brokers is a share of a core, memory that of the largest broker. While one client asks for
the metadata of all topics, over and over, another asks for that of one topic: its waits are in milliseconds.
"""

import argparse
import json
import statistics
import sys
import threading
import time

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.side_by_side.load import cpu_s, ratios, rss_mb, running

PATIENCE_S = 600


def timed(check, timeout=PATIENCE_S):
    began = time.perf_counter()
    while not check():
        if time.perf_counter() - began > timeout:
            return None
        time.sleep(0.05)
    return round(time.perf_counter() - began, 2)


def of(implementation, topics, partitions, consumers):
    found = {}
    with running(implementation) as (cluster, _):
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
        say("metadata_others_ms", others_while_metadata(cluster.bootstrap, names[0]))
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
    cuts = statistics.quantiles(waits, n=100)
    return {"p50": round(cuts[49], 1), "p99": round(cuts[98], 1), "max": round(max(waits), 1)}


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
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--implementation", choices=("kafka", "klamm"))
    p.add_argument("--both", action="store_true")
    p.add_argument("--topics", type=int, default=50)
    p.add_argument("--partitions", type=int, default=100)
    p.add_argument("--consumers", type=int, default=0)
    o = p.parse_args()
    result = {
        i: of(i, o.topics, o.partitions, o.consumers)
        for i in (("kafka", "klamm") if o.both else (o.implementation,))
    }
    if o.both:
        result["klamm : kafka"] = ratios(result["klamm"], result["kafka"])
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
