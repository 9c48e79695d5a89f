"""Bulk reads and writes against the same ZooKeeper through plain kazoo, one request each.

Run with `python -m bench.zookeeper [--topics 1000] [--partitions 100] [--singles 5000]` from the
root of the repository; `--topics 10000` is the cluster of a million partitions, for which the
server takes 3 GB of heap. The server is our own, without syncing to the disk for either side.
"""

import argparse
import asyncio
import time
from collections.abc import Iterator

import numpy as np
from kazoo.client import KazooClient

from klamm.zookeeper import znodes
from klamm.zookeeper.server import ZooKeeperServer
from klamm.zookeeper.session import open_store
from klamm.zookeeper.store import Create, Fence, Row, SetData, Store
from klamm.zookeeper.znodes import TopicAssignment
from tests.support.state_znodes import encode_state

BROKERS = 30
FACTOR = 3
FENCE = Fence(0)


class Cluster:
    """The names and contents of the znodes of a cluster, made as they are needed."""

    def __init__(self, topics: int, partitions: int) -> None:
        self.topics = [f"topic-{i:05d}" for i in range(topics)]
        self.partitions = partitions
        self.size = topics * partitions

    def replicas(self, partition: int) -> list[int]:
        return [(partition + i) % BROKERS for i in range(FACTOR)]

    def assignment(self) -> bytes:
        partitions = {p: self.replicas(p) for p in range(self.partitions)}
        return znodes.encode_topic(TopicAssignment(None, partitions))

    def state_paths(self) -> Iterator[str]:
        for topic in self.topics:
            for partition in range(self.partitions):
                yield znodes.state_path(topic, partition)

    def topic_rows(self) -> Iterator[Row]:
        assignment = self.assignment()
        for topic in self.topics:
            yield [
                Create(znodes.topic_path(topic), assignment),
                Create(znodes.partitions_path(topic)),
            ]

    def state_rows(self) -> Iterator[Row]:
        for topic in self.topics:
            for partition in range(self.partitions):
                replicas = self.replicas(partition)
                yield [
                    Create(znodes.partition_path(topic, partition)),
                    Create(
                        znodes.state_path(topic, partition),
                        encode_state(replicas[0], 0, replicas, 1),
                    ),
                ]

    def election_rows(self) -> Iterator[Row]:
        for i, path in enumerate(self.state_paths()):
            replicas = self.replicas(i % self.partitions)
            yield [SetData(path, encode_state(replicas[1], 1, replicas[1:], 1), 0)]


class Clock:
    """Prints what was done since the last look, and how fast."""

    def __init__(self) -> None:
        self._start = time.perf_counter()

    def rate(self, what: str, count: int, plain: float | None = None) -> float:
        elapsed = time.perf_counter() - self._start
        rate = count / elapsed
        ratio = f"{rate / plain:>8.1f} x" if plain else ""
        print(f"{what:<44}{count:>10,}{elapsed:>9.2f} s{rate:>12,.0f}/s{ratio}", flush=True)
        self._start = time.perf_counter()
        return rate


def plain_kazoo(address: str, paths: list[str], data: bytes) -> tuple[float, float]:
    """Reads and writes per second, all under way at once, as kazoo offers them."""
    client = KazooClient(hosts=address)
    client.start()
    clock = Clock()
    for result in [client.get_async(path) for path in paths]:
        result.get()
    reads = clock.rate("kazoo get_async", len(paths))
    for result in [client.set_async(path, data) for path in paths]:
        result.get()
    writes = clock.rate("kazoo set_async", len(paths))
    client.stop()
    client.close()
    return reads, writes


async def load(store: Store) -> int:
    """Read everything that a new controller reads, into columns."""
    topics = sorted(await store.children(znodes.TOPICS))
    paths: list[str] = []
    replicas: list[list[int]] = []
    async for chunk in store.read_many(map(znodes.topic_path, topics)):
        for path, data in zip(chunk.path, chunk.data, strict=True):
            assignment = znodes.decode_topic(path[len(znodes.TOPICS) + 1 :], data)
            for partition, brokers in assignment.partitions.items():
                paths.append(f"{path}/partitions/{partition}/state")
                replicas.append(list(brokers))
    count = len(paths)
    replica_column = np.array(replicas, np.int32)
    leader, leader_epoch, version = (np.full(count, -1, np.int32) for _ in range(3))
    isr = np.full(replica_column.shape, -1, np.int32)
    start = 0
    async for chunk in store.read_many(paths):
        states = znodes.decode_states(chunk.path, chunk.data)
        rows = np.array(states.at) + start
        leader[rows] = states.leader
        leader_epoch[rows] = states.leader_epoch
        version[rows] = np.array(chunk.version)[states.at]
        isr[rows] = [(*members, -1, -1, -1)[:FACTOR] for members in states.isr]
        start += len(chunk.path)
    assert (leader >= 0).all()
    return count


async def measure(server: ZooKeeperServer, cluster: Cluster, singles: int) -> None:
    store = await open_store(server.address, 30_000)
    for path in znodes.PERSISTENT_PATHS:
        await store.ensure_path(path)
    await store.create(znodes.CONTROLLER_EPOCH, b"0")
    clock = Clock()
    outcomes = await store.write_many(cluster.topic_rows(), FENCE)
    outcomes += await store.write_many(cluster.state_rows(), FENCE)
    assert all(outcome.ok for outcome in outcomes)
    clock.rate("fenced bulk creates (znodes)", 2 * cluster.size + 2 * len(cluster.topics))

    # Nodes of their own, so that no version of the cluster's changes.
    await store.create("/single")
    data = encode_state(1, 1, [1, 2, 3], 1)
    paths = [f"/single/topic-00000-partitions-{i}-state" for i in range(singles)]
    await store.write_many([Create(path, data)] for path in paths)
    reads, writes = await asyncio.to_thread(plain_kazoo, server.address, paths, data)

    for _ in range(2):  # the first warms the server up
        clock = Clock()
        count = 0
        async for chunk in store.read_many(cluster.state_paths()):
            count += len(chunk.data)
        clock.rate("bulk reads", count, reads)
    clock = Clock()
    outcomes = await store.write_many(cluster.election_rows(), FENCE)
    assert all(outcome.version == 1 for outcome in outcomes)
    clock.rate("fenced bulk sets", len(outcomes), writes)
    clock.rate("loaded into columns (partitions)", await load(store))
    await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=100, help="of each topic")
    parser.add_argument("--singles", type=int, default=5000, help="plain requests for comparison")
    options = parser.parse_args()
    cluster = Cluster(options.topics, options.partitions)
    heap_mb = 512 + cluster.size * 5 // 2048
    with ZooKeeperServer(heap=f"{heap_mb}m") as server:
        asyncio.run(measure(server, cluster, options.singles))


if __name__ == "__main__":
    main()
