"""Clusters of real brokers of both kinds, which share a ZooKeeper.

A broker is a process that reads a `server.properties`; its kind says which program that is, and may
change between two starts, since both keep their data in the same files.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterable
from enum import StrEnum
from pathlib import Path
from typing import Any

from kazoo.exceptions import NoNodeError

from klamm.errors import UnavailableError
from klamm.protocol.apis import ApiKey
from tests.support.kafka_process import kafka_command
from tests.support.lab import Lab, Node
from tests.support.node_process import with_dots
from tests.support.waiting import wait_until

#: Java brokers on a busy machine take their time.
PATIENCE_S = 180.0


class Kind(StrEnum):
    KAFKA = "kafka"
    KLAMM = "klamm"


class MixedBroker(Node):
    """A broker of either kind."""

    patience_s = PATIENCE_S

    def __init__(
        self,
        kind: Kind,
        libs: Path,
        directory: Path,
        zookeeper: str,
        node_id: int,
        config: dict[str, Any],
    ) -> None:
        super().__init__(directory, zookeeper, node_id)
        self.kind = kind
        self._libs = libs
        for only_for_scripted_clusters in ("klamm.roles", "auto.create.topics.enable"):
            del self.config[only_for_scripted_clusters]
        self.config |= {
            "zookeeper.session.timeout.ms": 6000,
            "offsets.topic.num.partitions": 4,
            "group.initial.rebalance.delay.ms": 0,
            "controlled.shutdown.retry.backoff.ms": 500,
            "log.cleaner.dedupe.buffer.size": 4_000_000,
            **config,
        }

    def command(self, file: Path) -> list[str]:
        if self.kind is Kind.KLAMM:
            return super().command(file)
        return kafka_command(self._libs, file)


class MixedCluster(Lab):
    """Brokers of both kinds on a chroot of their own."""

    def __init__(self, address: str, directory: Path, libs: Path, **config: Any) -> None:
        super().__init__(address, directory)
        self.libs = libs
        self._config = with_dots(config)

    def add(self, kind: Kind, *ids: int, **config: Any) -> None:
        """Start brokers and wait until they serve."""
        own = with_dots(config)
        for broker_id in ids:
            self.nodes[broker_id] = MixedBroker(
                kind, self.libs, self.directory, self.address, broker_id, self._config | own
            )
        self.start_brokers(*ids)

    def add_controller_only(self, broker_id: int, **config: Any) -> None:
        self.add(Kind.KLAMM, broker_id, klamm_roles="controller", **config)

    def broker(self, broker_id: int) -> MixedBroker:
        node = self.nodes[broker_id]
        assert isinstance(node, MixedBroker)
        return node

    def start_brokers(self, *ids: int) -> None:
        for broker_id in ids:
            self.broker(broker_id).start()
        for broker_id in ids:
            wait_until(
                lambda id=broker_id: self.zk.exists(f"/brokers/ids/{id}") and self._answers(id),
                f"broker {broker_id}",
                PATIENCE_S,
            )

    def restart(self, broker_id: int, kind: Kind | None = None) -> None:
        """Stop in order, and start again, perhaps as another kind."""
        broker = self.broker(broker_id)
        assert broker.stop() in (0, 143)
        broker.kind = kind or broker.kind
        self.start_brokers(broker_id)

    def remove(self, broker_id: int) -> None:
        assert self.broker(broker_id).stop() in (0, 143)
        del self.nodes[broker_id]
        self.wait_gone(broker_id)

    def kill(self, broker_id: int) -> None:
        self.broker(broker_id).kill()
        self.wait_gone(broker_id)

    def wait_gone(self, broker_id: int) -> None:
        wait_until(
            lambda: not self.zk.exists(f"/brokers/ids/{broker_id}"),
            f"the registration of {broker_id} to vanish",
            PATIENCE_S,
        )

    @property
    def bootstrap(self) -> str:
        return ",".join(
            self.broker(id).address for id in sorted(self.nodes) if self.broker(id).is_running
        )

    def move_controller(self, broker_id: int) -> None:
        """As an operator would; then every broker has heard of it."""
        if self.controller_id() == broker_id:
            return
        done = subprocess.run(
            [
                *(sys.executable, "-m", "klamm", "controller", "move", str(broker_id)),
                *("--zookeeper", self.address, "--attempts", "60"),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, done.stderr

    def wait_in_sync(self, topic: str, partitions: Iterable[int] | None = None) -> None:
        """Wait until every replica of the topic is in the ISR."""
        assignment = self.znode(f"/brokers/topics/{topic}")["partitions"]
        for partition in partitions if partitions is not None else map(int, assignment):
            self.wait_isr(topic, partition, assignment[str(partition)])

    def wait_isr(self, topic: str, partition: int, isr: Iterable[int]) -> None:
        wanted = sorted(isr)
        wait_until(
            lambda: (self.state(topic, partition) or {"isr": []})["isr"],
            timeout_s=PATIENCE_S,
        )
        wait_until(
            lambda: sorted((self.state(topic, partition) or {"isr": []})["isr"]) == wanted,
            f"ISR {wanted} of {topic}-{partition}; it is {self.state(topic, partition)}",
            PATIENCE_S,
        )

    def topic(self, name: str) -> dict[str, Any]:
        """All that ZooKeeper holds about a topic, without what differs from run to run."""
        root = f"/brokers/topics/{name}"
        topic = self.znode(root)
        if topic is None:
            return {}
        has_id = topic.pop("topic_id", None) is not None
        try:
            numbers = self.zk.get_children(f"{root}/partitions")
        except NoNodeError:
            numbers = []
        states = {int(number): self.state(name, int(number)) or {} for number in numbers}
        for state in states.values():
            state.pop("controller_epoch", None)
        return {"has id": has_id, "topic": topic, "states": states}

    def _answers(self, broker_id: int) -> bool:
        with contextlib.suppress(OSError, EOFError, UnavailableError):
            self.nodes[broker_id].ask(ApiKey.API_VERSIONS, 0)
            return True
        if not self.broker(broker_id).is_running:
            raise AssertionError(f"broker {broker_id} ended:\n{self.nodes[broker_id].log[-3000:]}")
        return False
