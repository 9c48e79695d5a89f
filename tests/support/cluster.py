"""Brokers as real processes, on a ZooKeeper and below a chroot that the test names.

A broker keeps its port and its directory over a restart, and everything is gone afterwards. Tests
talk to brokers as anybody would: with stock clients, over sockets, through ZooKeeper, by signals.
"""

import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from klamm.zookeeper.server import ZooKeeperServer
from tests.support.chroot import Chroot
from tests.support.node_process import NodeProcess, with_dots
from tests.support.raw import Raw
from tests.support.waiting import PATIENCE_S, wait_until

#: Quick enough for tests; everything else is as it comes.
SETTINGS = {
    "zookeeper.session.timeout.ms": "4000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "300",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.backoff.ms": "100",
    "controlled.shutdown.retry.backoff.ms": "200",
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "auto.leader.rebalance.enable": "false",
}


class BrokerProcess(NodeProcess):
    """One broker of a cluster."""

    def kill(self) -> None:
        """Crash the process that was started; the node's other processes have to follow it."""
        self.signal(signal.SIGKILL)
        self.wait()

    def end(self) -> None:
        """Kill all processes of the broker, if it runs."""
        super().kill()


class RealCluster(Chroot):
    """Some brokers, and what a test asks of them all the time."""

    def __init__(
        self,
        zookeeper: ZooKeeperServer,
        directory: Path,
        brokers: int = 3,
        settings: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
    ) -> None:
        super().__init__(zookeeper.address, directory.name)
        common = {
            **SETTINGS,
            "zookeeper.connect": self.address,
            "offsets.topic.replication.factor": str(min(brokers, 3)),
            "transaction.state.log.replication.factor": str(min(brokers, 3)),
            "transaction.state.log.min.isr": str(min(brokers, 2)),
            **(settings or {}),
        }
        self.brokers = {
            each: BrokerProcess(
                each,
                directory / str(each),
                {**common, **({"broker.rack": racks[each]} if racks else {})},
            )
            for each in range(1, brokers + 1)
        }
        self._admin: AdminClient | None = None

    def __enter__(self) -> "RealCluster":
        try:
            for broker in self.brokers.values():
                broker.start()
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        self._admin = None
        for broker in self.brokers.values():
            broker.end()
        super().close()

    def revive(self) -> None:
        """Resume or start every broker, and wait until all are ready."""
        self.renew_admin()
        for broker in self.brokers.values():
            if broker.is_running:
                broker.signal(signal.SIGCONT)
            else:
                broker.start()
        self.wait_ready()

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    def __getitem__(self, broker_id: int) -> BrokerProcess:
        return self.brokers[broker_id]

    # Waiting

    def wait_ready(self) -> None:
        """All brokers that run are registered, and each of them knows all of them."""
        running = {each.id for each in self.brokers.values() if each.is_running}
        wait_until(lambda: self.registered() >= running, f"brokers {running} register")
        wait_until(lambda: self.controller_id() is not None, "a controller is elected")
        for each in running:
            wait_until(
                lambda each=each: self.known_to(self[each]) >= running,
                f"broker {each} knows brokers {running}",
            )

    @staticmethod
    def known_to(broker: BrokerProcess) -> set[int]:
        """The brokers that a broker knows to be alive; none before it knows the controller."""
        try:
            with Raw(broker.port) as raw:
                metadata = raw.metadata()
        except OSError:
            return set()
        return {int(each.node_id) for each in metadata.brokers if metadata.controller_id >= 0}

    def wait_leader(self, topic: str, partition: int = 0, *, other_than: int = -1) -> int:
        found = wait_until(
            lambda: (
                (leader := self.leader(topic, partition)) >= 0 and leader != other_than and [leader]
            ),
            f"{topic}-{partition} gets a leader other than {other_than}",
        )
        return int(found[0])

    def wait_isr(self, topic: str, isr: set[int], partition: int = 0) -> None:
        wait_until(
            lambda: (state := self.state(topic, partition)) and set(state["isr"]) == isr,
            f"the ISR of {topic}-{partition} becomes {isr}",
        )

    # Clients

    @property
    def admin(self) -> AdminClient:
        """One for all: a request ends with the client that made it."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        return self._admin

    def renew_admin(self) -> None:
        """Start with a client that has no memory: an old one may wait for a dead controller."""
        self._admin = None

    def alter_topic(self, topic: str, **settings: str) -> None:
        """Set settings of a topic, underscores standing for dots."""
        entries = [
            ConfigEntry(key.replace("_", "."), value, incremental_operation=AlterConfigOpType.SET)
            for key, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    def create(
        self,
        topic: str,
        partitions: int = 1,
        factor: int = 3,
        config: Mapping[str, str] | None = None,
        assignment: list[list[int]] | None = None,
    ) -> str:
        """Create a topic and return its name."""
        new = (
            NewTopic(
                topic,
                num_partitions=len(assignment),
                replica_assignment=assignment,
                config=dict(config or {}),
            )
            if assignment
            else NewTopic(topic, partitions, factor, config=dict(config or {}))
        )
        self.admin.create_topics([new])[topic].result(PATIENCE_S)
        count = len(assignment) if assignment else partitions
        for broker in self.brokers.values():
            if broker.is_running:
                wait_until(
                    lambda broker=broker: self._sees(broker, topic, count),
                    f"broker {broker.id} sees {topic}",
                )
        return topic

    @staticmethod
    def _sees(broker: BrokerProcess, topic: str, partitions: int) -> bool:
        with Raw(broker.port) as raw:
            (found,) = raw.metadata(topic).topics
        return len(found.partitions) == partitions and all(
            each.leader_id >= 0 for each in found.partitions
        )

    def producer(self, **settings: Any) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "log_level": 0,
                **with_dots(settings),
            }
        )

    def produce(self, topic: str, values: Iterator[bytes] | list[bytes], **settings: Any) -> None:
        """Produce to partition 0 and see each record acknowledged."""
        failures = []
        producer = self.producer(**settings)
        for value in values:
            producer.produce(
                topic,
                value,
                partition=0,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(PATIENCE_S) == 0
        assert not failures, failures[0]
