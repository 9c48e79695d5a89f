"""How long the controller's decisions take by themselves, without ZooKeeper and brokers.

    python bench/controller_core.py [--partitions 100000] [--brokers 10]

The interpreter here accepts every write and sends nothing, so what is timed is choosing leaders,
shrinking ISRs and cutting requests for the brokers from the columns. Reading is timed apart.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from klamm.controller.metrics import gauges
from klamm.core import effects
from klamm.core.assignment import assign_replicas
from klamm.core.cluster import ClusterState, LeaderAndIsrs, RegisteredBroker, TopicRead
from klamm.core.context import Context
from klamm.core.effects import Procedure, StatesRead, WriteOutcome
from klamm.core.events import (
    AlterPartition,
    BrokerChange,
    ControlledShutdown,
    PartitionProposal,
    TopicChange,
)
from klamm.core.procedures.dispatch import handle
from klamm.core.procedures.failover import on_controller_failover

PARTITIONS_PER_TOPIC = 100
REPLICATION_FACTOR = 3


class Bench:
    """A cluster that exists as arguments of effects only."""

    def __init__(self, partitions: int, brokers: int) -> None:
        self.registered = {id: RegisteredBroker(id, epoch=id) for id in range(1, brokers + 1)}
        topics = partitions // PARTITIONS_PER_TOPIC
        racks = dict.fromkeys(self.registered)
        self.topics = {
            f"topic-{n:05}": TopicRead(
                f"id-{n}",
                dict(
                    enumerate(
                        assign_replicas(
                            racks, PARTITIONS_PER_TOPIC, REPLICATION_FACTOR, start=n, shift=n
                        ).tolist()
                    )
                ),
            )
            for n in range(topics)
        }
        self.cluster = ClusterState()
        self.ctx = Context(self.cluster)
        self.read_s = 0.0

    def fail_over(self) -> float:
        self.cluster = ClusterState()
        self.cluster.controller_id, self.cluster.controller_epoch = 1, 1
        self.ctx = Context(self.cluster)
        return self.run(on_controller_failover(self.ctx))

    def run(self, procedure: Procedure[Any]) -> float:
        """Drive a procedure; returns its own seconds, without those of the interpreter here."""
        began = time.perf_counter()
        outside = 0.0
        reply: Any = None
        try:
            while True:
                effect = procedure.send(reply)
                paused = time.perf_counter()
                reply = self.perform(effect)
                outside += time.perf_counter() - paused
        except StopIteration:
            return time.perf_counter() - began - outside

    def perform(self, effect: effects.Effect) -> Any:
        match effect:
            case effects.WriteStates(states) | effects.CreateStates(states):
                return np.full(len(states), WriteOutcome.DONE, np.int8)
            case effects.ReadStates(rows):
                return self._states(rows)
            case effects.ReadBrokers():
                return dict(self.registered)
            case effects.ReadTopicNames():
                return set(self.topics)
            case effects.ReadTopics(names):
                return {name: self.topics[name] for name in names}
            case effects.ReadDeletions():
                return set()
            case effects.ReadUncleanOverrides(names):
                return dict.fromkeys(names)
            case effects.SetUpFeatures():
                return {}
        return None

    def _states(self, rows: np.ndarray) -> StatesRead:
        """Everybody is in sync and led by the preferred replica."""
        known = self.cluster
        size = len(rows)
        return StatesRead(
            np.ones(size, np.bool_),
            LeaderAndIsrs(
                rows,
                known.replicas[rows, 0],
                np.zeros(size, np.int32),
                known.replicas[rows],
                np.zeros(size, np.int8),
                np.ones(size, np.int32),
                np.zeros(size, np.int32),
            ),
        )


def measure(partitions: int, brokers: int) -> None:
    bench = Bench(partitions, brokers)

    def report(what: str, act: Callable[[], float]) -> None:
        print(f"{what:<42} {act() * 1000:10.1f} ms")

    def timed(act: Callable[[], Any]) -> float:
        began = time.perf_counter()
        act()
        return time.perf_counter() - began

    def load() -> None:
        cluster = ClusterState()
        for name, read in bench.topics.items():
            cluster.add_topic(name, read.topic_id)
        cluster.add_partitions(bench.topics)

    def fail() -> float:
        bench.registered.pop(1)
        return bench.run(handle(bench.ctx, BrokerChange()))

    def come_back() -> float:
        bench.registered[1] = RegisteredBroker(1, epoch=1000)
        return bench.run(handle(bench.ctx, BrokerChange()))

    def shut_down() -> float:
        return bench.run(handle(bench.ctx, ControlledShutdown(2, 2)))

    def change_isr() -> float:
        row = int(np.flatnonzero(bench.cluster.leader == 3)[0])
        topic, partition = bench.cluster.name(row)
        proposal = PartitionProposal(
            topic,
            None,
            partition,
            int(bench.cluster.leader_epoch[row]),
            (3,),
            0,
            int(bench.cluster.partition_epoch[row]),
        )
        return bench.run(handle(bench.ctx, AlterPartition(3, 3, 1, [proposal])))

    def create() -> float:
        layout = {n: [3, 4, 5] for n in range(PARTITIONS_PER_TOPIC)}
        for n in range(100):
            bench.topics[f"new-{n}"] = TopicRead(f"new-id-{n}", layout)
        return bench.run(handle(bench.ctx, TopicChange()))

    print(f"{partitions} partitions of {REPLICATION_FACTOR} replicas on {brokers} brokers")
    report("topics into columns", lambda: timed(load))
    report("failover, reading left out", bench.fail_over)
    print(f"{'columns':<42} {bench.cluster.nbytes / 1e6:10.1f} MB")
    report("broker failure", fail)
    report("broker's return", come_back)
    report("controlled shutdown", shut_down)
    report("ISR change of one partition", change_isr)
    report("10,000 new partitions in 100 topics", create)
    report("gauges", lambda: timed(lambda: gauges(bench.cluster)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--brokers", type=int, default=10)
    arguments = parser.parse_args()
    measure(arguments.partitions, arguments.brokers)
