"""A whole candidate in one process: real loop, interpreter and channels, ZooKeeper in memory."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from klamm.config.ibp import Ibp
from klamm.controller.announcements import RequestBatchSender
from klamm.controller.channels import ControllerChannels
from klamm.controller.interpreter import Interpreter
from klamm.controller.loop import Controller
from klamm.controller.metrics import ControllerMetrics
from klamm.core.context import Settings
from klamm.history.recorder import History
from klamm.zookeeper import znodes
from klamm.zookeeper.memory import MemoryZooKeeper
from tests.support.recorded_controller import Clock, history_config


class World(Clock):
    random = random.Random(7)


class Node:
    """A candidate with its history and its metrics."""

    def __init__(self, directory: Path) -> None:
        self.world = World()
        self.zookeeper = MemoryZooKeeper()
        self.store = self.zookeeper.session()
        self.channels = ControllerChannels(1, "PLAINTEXT")
        self.history = History(history_config(directory), self.world)
        self.request_sender = RequestBatchSender(1, self.channels, Ibp.parse("3.9"), "PLAINTEXT")
        self.interpreter = Interpreter(
            1,
            self.store,
            self.channels,
            self.request_sender,
            self.history,
            random.Random(7).randbytes,
            feature_version=2,
        )
        self.controller = Controller(
            1,
            Settings(),
            self.store,
            self.channels,
            self.interpreter,
            self.history,
            self.world,
            lambda: None,
        )
        self.metrics = ControllerMetrics(self.controller, self.channels, self.world)

    def samples(self) -> dict[str, float]:
        """The metrics, by name and labels as they are written."""
        found = {}
        for line in self.metrics.render().splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                assert name not in found
                found[name] = float(value)
        return found

    def __getitem__(self, name: str) -> float:
        return self.samples()[name]

    async def register(self, broker: int, port: int) -> None:
        endpoint = znodes.RegisteredEndpoint("PLAINTEXT", "PLAINTEXT", "127.0.0.1", port)
        data = znodes.encode_broker(znodes.BrokerRegistration(broker, (endpoint,)), 0)
        await self.store.create(znodes.broker_path(broker), data)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110 - a page of text announces nothing
                await asyncio.sleep(0.001)


@asynccontextmanager
async def running(directory: Path) -> AsyncIterator[Node]:
    node = Node(directory)
    for path in znodes.PERSISTENT_PATHS:
        await node.store.ensure_path(path)
    tasks = [
        asyncio.create_task(node.controller.run()),
        asyncio.create_task(node.controller.follow_session()),
    ]
    try:
        yield node
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        node.channels.close_all()
        await node.history.close()
        await node.store.close()
