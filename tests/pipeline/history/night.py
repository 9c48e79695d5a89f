"""One night of a small cluster: real records of real procedures, in the spools of two controllers.

Times are seconds after the first election. What happened:

    0     broker 1 becomes controller, epoch 1; orders, audit (with one replica) and bulk appear
    60    broker 2 fails: audit-0, which only it had, has no leader
    90    broker 2 is back: audit-0 is led again; at 95 it is in sync everywhere
    120   leaders are rebalanced
    150   orders-0 moves from brokers 1,2,3 to 2,3,4; complete at 170
    200   broker 1 fails, and its term as controller with it: no event says that it ended
    206   broker 3 becomes controller, epoch 2, and elects leaders for what broker 1 led
    240   broker 1 is back; broker 4 fails and returns three times
    300   bulk is deleted
"""

from collections.abc import Sequence
from pathlib import Path

from klamm.core.events import (
    AlterPartition,
    ApiReassignment,
    AutoRebalance,
    BrokerChange,
    PartitionProposal,
    StopReplicaResponseReceived,
    TopicChange,
    TopicDeletion,
)
from tests.support.procedure_store import TOPICS
from tests.support.recorded_controller import RecordedController

START = 1e9


class Cluster:
    """A cluster whose controllers, one after the other, find the same ZooKeeper."""

    def __init__(self, directory: Path, brokers: Sequence[int] = (1, 2, 3, 4)) -> None:
        self._directory = directory
        self._brokers = brokers
        self.controller: RecordedController
        self.spools: list[Path] = []

    def new_controller(self, broker: int, epoch: int, at: float) -> None:
        """Another node becomes controller and finds the same ZooKeeper."""
        directory = self._directory / f"node-{broker}-{epoch}"
        controller = RecordedController(directory, self._brokers, **{"broker.id": str(broker)})
        if self.spools:
            before = self.controller
            before.history.spool.close()
            controller.share_zookeeper_of(before)
        self.controller = controller
        self.spools.append(controller.config.klamm_history_dir)
        self.at(at)
        controller.fail_over(broker, epoch)

    def at(self, seconds: float) -> RecordedController:
        """The controller, at that time or (if it is behind) as soon as it can."""
        self.controller.clock.at = max(self.controller.clock.at, seconds)
        return self.controller

    def create(self, at: float, **topics: dict[int, list[int]]) -> None:
        controller = self.at(at)
        for name, replicas in topics.items():
            controller.create_topic(name, replicas)
        controller.handle(TopicChange(), "watch on /brokers/topics")

    def lose(self, at: float, *brokers: int) -> None:
        controller = self.at(at)
        controller.lose(*brokers)
        controller.handle(BrokerChange(), "watch on /brokers/ids")

    def start(self, at: float, *brokers: int) -> None:
        controller = self.at(at)
        for broker in brokers:
            controller.register(broker)
        controller.handle(BrokerChange(), "watch on /brokers/ids")

    def catch_up(self, at: float) -> None:
        """Every live replica joins the ISR of its partition."""
        controller = self.at(at)
        for topic in controller.children(TOPICS):
            for partition, replicas in controller.topic(topic)["partitions"].items():
                self._join_isr(topic, int(partition), replicas)

    def _join_isr(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        controller = self.controller
        state = controller.state(topic, partition)
        live = controller.registrations
        wanted = [broker for broker in replicas if broker in live]
        if state is None or state[0] not in live or sorted(wanted) == sorted(state[2]):
            return
        leader, leader_epoch, _ = state
        version = controller.version(topic, partition)
        proposal = PartitionProposal(
            topic, None, partition, leader_epoch, tuple(wanted), 0, version
        )
        controller.handle(
            AlterPartition(leader, live[leader].epoch, 3, [proposal]),
            f"AlterPartition from broker {leader}",
        )

    def close(self) -> None:
        self.controller.history.spool.close()


def night(directory: Path) -> Cluster:
    """All of it; the spools are complete when this returns."""
    cluster = Cluster(directory)
    cluster.new_controller(1, epoch=1, at=0)
    cluster.create(
        1,
        orders={p: [1 + (p + k) % 3 for k in range(3)] for p in range(3)},
        audit={0: [2]},
        bulk={0: [3, 4]},
    )
    cluster.lose(60, 2)
    cluster.start(90, 2)
    cluster.catch_up(95)
    cluster.at(120).handle(AutoRebalance(), "timer")
    move = {("orders", 0): [2, 3, 4]}
    cluster.at(150).handle(ApiReassignment(move), "AlterPartitionReassignments")
    cluster.catch_up(170)
    cluster.controller.lose(1)
    cluster.new_controller(3, epoch=2, at=206)
    cluster.start(240, 1)
    cluster.catch_up(242)
    for at in (250, 260, 270):
        cluster.lose(at, 4)
        cluster.start(at + 4, 4)
        cluster.catch_up(at + 5)
    cluster.controller.request_deletion("bulk")
    cluster.at(300).handle(TopicDeletion(), "watch on /admin/delete_topics")
    for broker in (3, 4):
        response = StopReplicaResponseReceived(broker, 0, {("bulk", 0): 0})
        cluster.at(301).handle(response, f"response of broker {broker}")
    cluster.close()
    return cluster
