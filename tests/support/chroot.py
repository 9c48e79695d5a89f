"""A chroot on the ZooKeeper that tests share, and what Kafka keeps below it."""

import uuid
from typing import Any, Self

import orjson
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError


class Chroot:
    """The base of every harness for clusters: an empty chroot, read with kazoo."""

    def __init__(self, zookeeper: str, name: str) -> None:
        self.chroot = f"/{name}-{uuid.uuid4().hex[:8]}"
        self.address = zookeeper + self.chroot
        self.zk = KazooClient(zookeeper, timeout=10)
        self.zk.start()
        self.zk.ensure_path(self.chroot)
        self.zk.chroot = self.chroot

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.zk.stop()
        self.zk.close()

    def znode(self, path: str) -> Any:
        """The JSON of a znode; None if there is no such znode."""
        try:
            return orjson.loads(self.zk.get(path)[0] or b"null")
        except NoNodeError:
            return None

    def registered(self) -> set[int]:
        """The ids of the registered brokers."""
        try:
            return {int(name) for name in self.zk.get_children("/brokers/ids")}
        except NoNodeError:
            return set()

    def controller_id(self) -> int | None:
        node = self.znode("/controller")
        return None if node is None else int(node["brokerid"])

    def state(self, topic: str, partition: int = 0) -> Any:
        """The state of a partition, with the version of its znode as `version`; None if absent."""
        try:
            data, stat = self.zk.get(f"/brokers/topics/{topic}/partitions/{partition}/state")
        except NoNodeError:
            return None
        return {**orjson.loads(data), "version": stat.version}

    def leader(self, topic: str, partition: int = 0) -> int:
        """The leader of a partition; -1 if it has none."""
        state = self.state(topic, partition)
        return -1 if state is None else int(state["leader"])
