"""A laboratory in which the role can be taken from a controller, gently or not.

Two nodes compete; what they say to ZooKeeper passes through proxies, so that a session can be ended
or a connection broken at once, without waiting for a timeout.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode as E
from klamm.zookeeper.server import ZooKeeperServer
from tests.support.killer import KillingProxy
from tests.support.lab import Lab, Node
from tests.support.waiting import wait_until

NOBODY_HERE = 7


class Stage(Lab):
    """Scripted brokers 1 to 4, and the nodes 100 and 101."""

    def __init__(self, server: ZooKeeperServer, directory: Path) -> None:
        super().__init__(server.address, directory)
        self.proxies = {node: KillingProxy(server.host, server.port) for node in (100, 101)}
        self.add_brokers(1, 2, 3, 4)
        for node, proxy in self.proxies.items():
            self.add_node(node, zookeeper_connect=proxy.address + self.chroot)

    def close(self) -> None:
        super().close()
        for proxy in self.proxies.values():
            proxy.close()

    @property
    def epoch(self) -> int:
        return int(self.zk.get("/controller_epoch")[0])

    def holder(self) -> Node:
        """The node that is controller now."""
        return self.nodes[self.wait_controller(100, 101)]

    @contextlib.contextmanager
    def no_controller(self) -> Iterator[None]:
        """Make a broker that does not exist controller, until the block ends."""
        holder = self.holder()
        taken = {"version": 2, "brokerid": NOBODY_HERE, "timestamp": "1"}
        self.zk.set("/controller", json.dumps(taken).encode())
        wait_until(lambda: listed(holder).error_code == E.NOT_CONTROLLER, f"{holder.id} resigns")
        yield
        self.zk.delete("/controller")
        self.holder()

    def settle(self) -> None:
        """The controller has handled what was queued before this question."""
        wait_until(lambda: listed(self.holder()).error_code == E.NONE, "an answer in its turn")

    def reassign(self, topic: str, target: list[int] | None) -> E:
        rows = [{"partition_index": 0, "replicas": target}]
        response = self.holder().ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            0,
            timeout=10_000,
            topics=[{"name": topic, "partitions": rows}],
        )
        code: E = response.responses[0].partitions[0].error_code
        return code

    def request_reassignment(self, topic: str, target: list[int]) -> None:
        rows = [{"topic": topic, "partition": 0, "replicas": target}]
        data = json.dumps({"version": 1, "partitions": rows}).encode()
        self.zk.create("/admin/reassign_partitions", data)

    def lists(self, topic: str) -> tuple[list[int], list[int], list[int]]:
        """Replicas, adding and removing replicas of its first partition."""
        data = self.znode(f"/brokers/topics/{topic}")
        return (
            data["partitions"]["0"],
            data["adding_replicas"].get("0", []),
            data["removing_replicas"].get("0", []),
        )

    def wait_known(self, topic: str, partition: int = 0) -> None:
        """Every registered broker has heard of the partition as ZooKeeper has it."""
        for broker in self.brokers.values():
            if broker.is_registered:
                wait_until(
                    lambda b=broker: (
                        (told := b.told(ApiKey.UPDATE_METADATA, topic, partition))
                        and (state := self.state(topic, partition))
                        and (told[-1].leader, told[-1].leader_epoch, list(told[-1].isr))
                        == (state["leader"], state["leader_epoch"], state["isr"])
                    ),
                    f"broker {broker.id} knows {topic}-{partition}",
                )


def listed(node: Node) -> Any:
    return node.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=None)
