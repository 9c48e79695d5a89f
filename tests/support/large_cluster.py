"""A cluster of very many partitions: a real node and ZooKeeper, and stub brokers that hold them.

The node is controller and broker, and holds no replica. The stubs are registered, take the
controller's requests and answer that all is well, so that the node's metadata are as in a cluster
whose brokers are all up.
"""

import asyncio
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.side_by_side.controller import Stubs, populate
from klamm.client.admin import Admin
from klamm.errors import KlammError
from klamm.local.network import is_free
from klamm.processes import tied_klamm
from klamm.zookeeper import znodes
from klamm.zookeeper.server import ZooKeeperServer
from klamm.zookeeper.session import open_store

NODE = 901


@dataclass(frozen=True)
class LargeCluster:
    """Where it is; `stubs.say("kill 7")` lets a broker fail."""

    bootstrap_servers: str
    spool: Path
    stubs: Stubs
    partitions: int


@contextmanager
def large_cluster(topics: int, partitions: int, brokers: int) -> Iterator[LargeCluster]:
    """Start it, and wait until the node knows all of it."""
    random.seed(4)
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="large-cluster-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        zookeeper = stack.enter_context(ZooKeeperServer(heap="1g"))
        asyncio.run(_make_roots(zookeeper.address))
        ids = list(range(1, brokers + 1))
        populate(int(zookeeper.address.rpartition(":")[2]), topics, partitions, ids, 3)
        base = _free_block(len(ids) + 1)
        stubs = Stubs(zookeeper.address, ids, base)
        for each in (stubs.proc.stdout, stubs.sock, stubs.file):
            stack.enter_context(closing(each))
        stack.callback(stubs.stop)
        port = _free_block(1)
        settings = folder / "server.properties"
        settings.write_text(
            f"broker.id={NODE}\nlisteners=PLAINTEXT://127.0.0.1:{port}\n"
            f"zookeeper.connect={zookeeper.address}\nzookeeper.session.timeout.ms=30000\n"
            f"log.dirs={folder}/logs\nklamm.history.dir={folder}/history\n"
            "auto.leader.rebalance.enable=false\ncontrolled.shutdown.enable=false\n"
        )
        with (folder / "node.log").open("w") as log:
            node = subprocess.Popen(tied_klamm("broker", str(settings)), stdout=log, stderr=log)
        stack.callback(node.wait)
        stack.callback(node.kill)
        address = f"127.0.0.1:{port}"
        _wait_known(address, topics, folder / "node.log")
        yield LargeCluster(address, folder / "history", stubs, topics * partitions)


def _free_block(size: int) -> int:
    """The first port of a block of `size` free ports, chosen at random among such blocks."""
    chance = random.SystemRandom()
    while True:
        base = chance.randrange(20_000, 31_000 - size)
        if all(is_free(port) for port in range(base, base + size)):
            return base


async def _make_roots(address: str) -> None:
    store = await open_store(address)
    try:
        for path in ("/brokers/ids", znodes.TOPICS, "/config/topics", "/admin/delete_topics"):
            await store.ensure_path(path)
    finally:
        await store.close()


def _wait_known(address: str, topics: int, log: Path) -> None:
    deadline = time.monotonic() + 120
    with Admin(address, timeout_s=30) as admin:
        while True:
            try:
                if len(admin.metadata(None).topics) >= topics:
                    return
            except KlammError:
                pass  # it is not up yet
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.5)


if __name__ == "__main__":
    with large_cluster(*map(int, sys.argv[1:4])) as made:
        print(made.bootstrap_servers, made.spool, flush=True)
        sys.stdin.read()
