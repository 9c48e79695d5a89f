"""Brokers as real processes, on a ZooKeeper and below a chroot that the test names.

A broker keeps its port and its directory over a restart, and everything is gone afterwards. Tests
talk to brokers as anybody would: with stock clients, over sockets, through ZooKeeper, by signals.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from klamm.zookeeper.server import ZooKeeperServer
from tests.broker.raw import Raw

PATIENCE_S = 30.0

#: Quick enough for tests; everything else is as it comes.
SETTINGS = {
    "zookeeper.session.timeout.ms": "4000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "4",
    "replica.lag.time.max.ms": "3000",
    "replica.fetch.backoff.ms": "100",
    "controlled.shutdown.retry.backoff.ms": "200",
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "auto.leader.rebalance.enable": "false",
}


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """Look until there is something, and return it; a test that waits in vain says for what."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s} s in vain: {what}")
        time.sleep(0.02)


def free_port() -> int:
    """A port that was free a moment ago, from below those that clients get."""
    while True:
        port = random.randint(20_000, 31_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class BrokerProcess:
    """One broker: its file, its directory, and a process while it runs."""

    def __init__(self, broker_id: int, directory: Path, settings: Mapping[str, str]) -> None:
        self.id = broker_id
        self.port = free_port()
        self.directory = directory
        self.log_dir = directory / "logs"
        self.settings = {
            "broker.id": str(broker_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "log.dirs": str(self.log_dir),
            **settings,
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def output(self) -> str:
        return (self.directory / "output").read_text(errors="replace")

    def start(self, **changed: str) -> None:
        self.settings.update({key.replace("_", "."): value for key, value in changed.items()})
        self.directory.mkdir(parents=True, exist_ok=True)
        file = self.directory / "server.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        with (self.directory / "output").open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "klamm", "broker", str(file)],
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """A crash."""
        self.signal(signal.SIGKILL)
        self.wait()

    def stop(self) -> int:
        """A controlled shutdown; the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        assert self._process is not None
        return self._process.wait(timeout=PATIENCE_S)

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def end(self) -> None:
        if self._process is not None and self._process.poll() is None:
            # The whole group: a candidate must not outlive the test either.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(timeout=PATIENCE_S)


class RealCluster:
    """Some brokers, and what a test asks of them all the time."""

    def __init__(
        self,
        zookeeper: ZooKeeperServer,
        directory: Path,
        brokers: int = 3,
        settings: Mapping[str, str] | None = None,
        racks: Mapping[int, str] | None = None,
    ) -> None:
        self.chroot = f"/{directory.name}-{random.getrandbits(32):08x}"
        self._zookeeper = zookeeper
        common = {
            **SETTINGS,
            "zookeeper.connect": f"{zookeeper.address}{self.chroot}",
            "offsets.topic.replication.factor": str(min(brokers, 3)),
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
        self._client: KazooClient | None = None
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._admin = None
        for broker in self.brokers.values():
            broker.end()
        if self._client is not None:
            self._client.stop()
            self._client.close()
            self._client = None

    def revive(self) -> None:
        """Let every broker run again, whatever was done to it."""
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

    # ZooKeeper

    @property
    def zookeeper(self) -> KazooClient:
        if self._client is None:
            self._client = KazooClient(self._zookeeper.address)
            self._client.start()
            self._client.ensure_path(self.chroot)
            self._client.chroot = self.chroot
        return self._client

    def znode(self, path: str) -> Any:
        """A node's JSON; None if there is no such node."""
        try:
            return orjson.loads(self.zookeeper.get(path)[0] or b"null")
        except NoNodeError:
            return None

    def registered(self) -> set[int]:
        try:
            return {int(name) for name in self.zookeeper.get_children("/brokers/ids")}
        except NoNodeError:
            return set()

    def state(self, topic: str, partition: int = 0) -> Any:
        return self.znode(f"/brokers/topics/{topic}/partitions/{partition}/state")

    def leader(self, topic: str, partition: int = 0) -> int:
        state = self.state(topic, partition)
        return -1 if state is None else int(state["leader"])

    def controller(self) -> int:
        node = self.znode("/controller")
        return -1 if node is None else int(node["brokerid"])

    # Waiting

    def wait_ready(self) -> None:
        """All brokers that run are registered, and each of them knows all of them."""
        running = {each.id for each in self.brokers.values() if each.is_running}
        wait_until(lambda: self.registered() >= running, f"brokers {running} register")
        wait_until(lambda: self.controller() >= 0, "a controller is elected")
        for each in running:
            wait_until(
                lambda each=each: self._known_to(self[each]) >= running,
                f"broker {each} knows brokers {running}",
            )

    @staticmethod
    def _known_to(broker: BrokerProcess) -> set[int]:
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
                **{key.replace("_", "."): value for key, value in settings.items()},
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
