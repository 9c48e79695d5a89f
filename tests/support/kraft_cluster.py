"""Clusters of Apache Kafka in KRaft mode: controllers that form a quorum, and brokers."""

import contextlib
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from klamm.client import topics
from klamm.client.admin import Admin
from klamm.client.elections import ElectionType, elect
from klamm.client.reassignments import alter
from klamm.errors import KlammError
from klamm.history.kraft.quorum import MetadataQuorum
from klamm.names import TopicPartition
from klamm.protocol.fast.fetch import LeaderHint
from tests.support.kafka_process import JVM, kafka_command
from tests.support.node_process import NodeProcess, with_dots
from tests.support.waiting import wait_until

#: Java brokers on a busy machine take their time.
PATIENCE_S = 180.0
CLUSTER_ID = "a2xhbW0ta3JhZnQtdGVzdA"


class KraftNode(NodeProcess):
    """A controller or a broker."""

    patience_s = PATIENCE_S

    def __init__(self, role: str, libs: Path, directory: Path, node_id: int) -> None:
        super().__init__(node_id, directory / f"node{node_id}", {})
        self._libs = libs
        self.role = role
        name = "CONTROLLER" if role == "controller" else "PLAINTEXT"
        del self.config["broker.id"]
        self.config |= {
            "node.id": node_id,
            "process.roles": role,
            "listeners": f"{name}://127.0.0.1:{self.port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
            "auto.leader.rebalance.enable": "false",
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "log.cleaner.dedupe.buffer.size": 4_000_000,
            "replica.lag.time.max.ms": 3000,
        }

    def command(self, file: Path) -> list[str]:
        return kafka_command(self._libs, file)

    @property
    def metadata_log(self) -> Path:
        """The directory of the metadata log."""
        return self.log_dir / "__cluster_metadata-0"

    def format(self) -> None:
        """What `kafka-storage format` does."""
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self.directory / "format.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in self.config.items()))
        subprocess.run(
            [
                *("java", *JVM, "-cp", f"{self._libs}/*", "kafka.tools.StorageTool"),
                *("format", "-t", CLUSTER_ID, "-c", str(file)),
            ],
            check=True,
            capture_output=True,
            timeout=PATIENCE_S,
        )


class KraftCluster:
    """Controllers 101, 102, ... and brokers 1, 2, ...; the brokers start with `start_brokers`."""

    def __init__(
        self, directory: Path, libs: Path, *, controllers: int = 1, brokers: int = 3, **config: Any
    ) -> None:
        self.controllers = [
            KraftNode("controller", libs, directory, 101 + each) for each in range(controllers)
        ]
        self.brokers = {
            each: KraftNode("broker", libs, directory, each) for each in range(1, brokers + 1)
        }
        voters = ",".join(f"{each.id}@{each.address}" for each in self.controllers)
        for node in self.nodes:
            node.config |= {"controller.quorum.voters": voters, **with_dots(config)}

    @property
    def nodes(self) -> list[KraftNode]:
        return [*self.controllers, *self.brokers.values()]

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                node.format()
            for node in self.controllers:
                node.start()
            self.start_brokers(*self.brokers)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.kill()

    @property
    def bootstrap(self) -> str:
        return ",".join(each.address for each in self.brokers.values() if each.is_running)

    def start_brokers(self, *ids: int) -> None:
        for each in ids:
            self.brokers[each].start()
        for each in ids:
            wait_until(lambda id=each: self._has_started(id), f"broker {each}", PATIENCE_S)

    def _has_started(self, broker: int) -> bool:
        node = self.brokers[broker]
        assert node.is_running, f"broker {broker} has ended: {node.log[-2000:]}"
        return broker in self._live()

    def wait_gone(self, broker: int) -> None:
        """Wait until the controller has fenced a broker."""
        wait_until(lambda: broker not in self._live(), f"broker {broker} to be fenced", PATIENCE_S)

    def wait_isr(self, topic: str, partition: int, isr: Iterable[int]) -> None:
        wanted = set(isr)
        wait_until(lambda: self._isr(topic, partition) == wanted, f"ISR {wanted}", PATIENCE_S)

    @property
    def controller_addresses(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", each.port) for each in self.controllers]

    def wait_leader(self) -> LeaderHint:
        """Wait until all controllers listen and have a leader that brokers have heard of."""
        for each in self.controllers:
            wait_until(lambda port=each.port: _listens(port), f"controller {each.id}", PATIENCE_S)
        quorum = MetadataQuorum(self.controller_addresses)

        def find() -> LeaderHint | None:
            with contextlib.suppress(KlammError):
                quorum.check()
            return quorum.leader()

        try:
            leader = wait_until(find, "a leader of the quorum", PATIENCE_S)
        finally:
            quorum.close()
        wait_until(lambda: self._live() >= self._running(), "brokers to be known", PATIENCE_S)
        return leader

    def _running(self) -> set[int]:
        return {id for id, each in self.brokers.items() if each.is_running}

    def _live(self) -> set[int]:
        try:
            with Admin(self.bootstrap, timeout_s=5) as admin:
                return {each.node_id for each in admin.metadata([]).brokers}
        except KlammError:
            return set()

    def _isr(self, topic: str, partition: int) -> set[int]:
        try:
            with Admin(self.bootstrap, timeout_s=5) as admin:
                (found,) = admin.metadata([topic]).topics
        except KlammError:
            return set()
        for each in found.partitions:
            if each.partition_index == partition:
                return set(each.isr_nodes)
        return set()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def live_through(cluster: KraftCluster) -> None:
    """A story of three brokers in which everything happens that a history tells of."""
    with Admin(cluster.bootstrap, timeout_s=PATIENCE_S) as admin:
        topics.create(admin, topics.NewTopic("orders", assignment=[[1, 2], [2, 3], [3, 1]]))
        topics.create(admin, topics.NewTopic("audit", assignment=[[1]]))
        unclean = {"unclean.leader.election.enable": "true"}
        topics.create(admin, topics.NewTopic("risky", assignment=[[3, 1]], config=unclean))
    cluster.wait_isr("orders", 0, [1, 2])
    # A failure: another leader for orders-0, none for audit-0.
    cluster.brokers[1].kill()
    cluster.wait_gone(1)
    cluster.start_brokers(1)
    cluster.wait_isr("orders", 0, [1, 2])
    cluster.wait_isr("risky", 0, [1, 3])
    with Admin(cluster.bootstrap, timeout_s=PATIENCE_S) as admin:
        elect(admin, ElectionType.PREFERRED, [("orders", 0)])
        alter(admin, {TopicPartition("orders", 2): [3, 2]})
    cluster.wait_isr("orders", 2, [2, 3])
    # A controlled shutdown: another leader for orders-1.
    assert cluster.brokers[2].stop() in (0, 143)
    cluster.wait_gone(2)
    cluster.start_brokers(2)
    cluster.wait_isr("orders", 1, [2, 3])
    # The last replica in sync fails, and the other one is elected in its place.
    cluster.brokers[1].kill()
    cluster.wait_gone(1)
    cluster.wait_isr("risky", 0, [3])
    cluster.brokers[3].kill()
    cluster.wait_gone(3)
    cluster.start_brokers(1)
    cluster.wait_isr("risky", 0, [1])
    cluster.start_brokers(3)
    cluster.wait_isr("risky", 0, [1, 3])
    # Another term of the controller.
    assert cluster.controllers[0].stop() in (0, 143)
    cluster.controllers[0].start()
    cluster.wait_leader()
    with Admin(cluster.bootstrap, timeout_s=PATIENCE_S) as admin:
        topics.add_partitions(admin, "orders", 4, [[1, 2]])
        topics.delete(admin, "audit")
    cluster.wait_isr("orders", 3, [1, 2])
