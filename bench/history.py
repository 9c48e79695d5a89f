"""What the history adds to an event that decides about very many partitions.

Run with `python -m bench.history [PARTITIONS]` from the root of the repository. The event is the
failure of one of three brokers: the real procedures decide, and the states are encoded as they are
for ZooKeeper, but nothing is written or sent. A real event takes longer, so the shares printed are
upper bounds. The spool's thread works beside the event; its time is shown, not added.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from klamm.controller.loop import SystemWorld
from klamm.core import effects
from klamm.core.assignment import assign_replicas
from klamm.core.cluster import ClusterState, LeaderAndIsrs, RegisteredBroker, TopicRead
from klamm.core.context import Context
from klamm.core.effects import Effect
from klamm.core.elections import RECOVERED
from klamm.core.events import BrokerChange, QueuedEvent
from klamm.core.procedures.brokers import on_broker_change
from klamm.core.transitions import PartitionState, ReplicaState
from klamm.history.recorder import History
from tests.support.recorded_controller import history_config
from tests.support.state_znodes import encode_state

PARTITIONS_PER_TOPIC = 100
BROKERS = (1, 2, 3)


def cluster_of(partitions: int) -> ClusterState:
    """A healthy cluster in which every partition has a replica on each broker."""
    cluster = ClusterState()
    cluster.controller_epoch = 1
    cluster.brokers = {id: RegisteredBroker(id, id) for id in BROKERS}
    replicas = assign_replicas(dict.fromkeys(BROKERS), partitions, 3, start=0, shift=0)
    for start in range(0, partitions, PARTITIONS_PER_TOPIC):
        name = f"topic-{start // PARTITIONS_PER_TOPIC}"
        cluster.add_topic(name, None)
        some = replicas[start : start + PARTITIONS_PER_TOPIC].tolist()
        cluster.add_partitions({name: TopicRead(None, dict(enumerate(some)))})
    rows = cluster.all_rows()
    zeros = np.zeros(len(rows), np.int32)
    recovery = np.full(len(rows), RECOVERED, np.int8)
    cluster.record_leadership(
        LeaderAndIsrs(rows, replicas[:, 0], zeros, replicas, recovery, zeros, zeros)
    )
    cluster.set_state(rows, PartitionState.ONLINE)
    cluster.replica_state[rows] = ReplicaState.ONLINE
    return cluster


class Run:
    """The event, with or without a history."""

    def __init__(self, partitions: int, history: History | None) -> None:
        self.context = Context(cluster_of(partitions))
        self.history = history
        self.decisions = 0
        self.recording_s = 0.0

    def __call__(self) -> float:
        """The seconds that the event takes."""
        start = time.perf_counter()
        event = QueuedEvent(BrokerChange(), time.monotonic(), "bench")
        self._record(lambda history: history.begin(event, 1, time.time()))
        procedure = on_broker_change(self.context)
        try:
            effect = next(procedure)
            while True:
                effect = procedure.send(self._perform(effect))
        except StopIteration:
            self._record(lambda history: history.end("done", self.context))
        return time.perf_counter() - start

    def _perform(self, effect: Effect) -> Any:
        cluster = self.context.cluster
        reply: Any = None
        match effect:
            case effects.ReadBrokers():
                reply = {id: cluster.brokers[id] for id in BROKERS[1:]}
            case effects.WriteStates(states):
                reply = np.zeros(len(states), np.int8)
                encode(states)
                self.decisions += len(states)
        self._record(lambda history: history.performed(cluster, effect, reply, 0.0))
        return reply

    def _record(self, call: Any) -> None:
        if self.history is not None:
            start = time.perf_counter()
            call(self.history)
            self.recording_s += time.perf_counter() - start


def encode(states: LeaderAndIsrs) -> None:
    """Make the bytes of the states' znodes."""
    for leader, epoch, isr in zip(
        states.leader.tolist(), states.leader_epoch.tolist(), states.isr.tolist(), strict=True
    ):
        encode_state(leader, epoch, [b for b in isr if b >= 0], 1, RECOVERED)


def main() -> None:
    partitions = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    without = min(Run(partitions, None)() for _ in range(3))
    with tempfile.TemporaryDirectory() as directory:
        best, recording, writing, decisions = float("inf"), 0.0, 0.0, 0
        for _ in range(3):
            history = History(history_config(Path(directory)), SystemWorld())
            run = Run(partitions, history)
            took = run()
            start = time.perf_counter()
            history.spool.close()
            if took < best:
                best, recording, decisions = took, run.recording_s, run.decisions
                writing = time.perf_counter() - start
        size = max(path.stat().st_size for path in Path(directory, "history").iterdir())
    print(f"an event of {decisions:,} decisions, without history {without * 1e3:>7.1f} ms")
    print(f"recording it, inside the loop{recording * 1e3:>26.1f} ms{recording / best:>8.1%}")
    print(f"writing it, in a thread of its own{writing * 1e3:>21.1f} ms")
    print(f"a decision in the spool{size / decisions:>32.1f} bytes")


if __name__ == "__main__":
    main()
