"""The start of a node whose ZooKeeper session is lost on the way."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from klamm.config.broker import BrokerConfig
from klamm.net.server import OS_DEFAULT_BUFFER
from klamm.node import node as module
from klamm.node.node import Node
from klamm.zookeeper import znodes
from klamm.zookeeper.memory import MemoryStore, MemoryZooKeeper


class ExpiringStore(MemoryStore):
    """Loses its first session before request number `at`."""

    at = 0
    requests = 0

    async def _request(self, perform: Callable[[], Any]) -> Any:
        self.requests += 1
        if self.requests == self.at:
            self._zookeeper.expire(self)
        return await super()._request(perform)


class NoCandidate:
    """Stands for the controller's process, which these tests do not start."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None

    async def spawn(self) -> None:
        """Start nothing."""

    async def stop(self) -> None:
        """Stop nothing."""


def start(directory: Path, monkeypatch: pytest.MonkeyPatch, *, lost_at: int) -> int:
    """Start and stop a broker; return how many requests it sent to ZooKeeper by then."""
    config = BrokerConfig.from_properties(
        {
            "broker.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "zookeeper.connect": "nobody:1",
            "log.dirs": str(directory),
            "controlled.shutdown.enable": "false",
        }
    )

    async def run() -> int:
        zookeeper = MemoryZooKeeper()
        monkeypatch.setattr("klamm.zookeeper.memory.MemoryStore", ExpiringStore)
        store = zookeeper.session()
        assert isinstance(store, ExpiringStore)
        store.at = lost_at

        async def open_store(*_: object, **__: object) -> MemoryStore:
            return store

        monkeypatch.setattr(module, "open_store", open_store)
        node = Node(config)
        node._candidate = NoCandidate()  # type: ignore[assignment]
        async with asyncio.timeout(30):
            await node._start()
        asked = store.requests
        owner = await zookeeper.session().exists(znodes.broker_path(1))
        assert owner is not None
        assert owner.ephemeral_owner == store.session_id
        await node._stop()
        return asked

    return asyncio.run(run())


@pytest.mark.rule("LIFE-9")
def test_a_broker_that_loses_its_session_at_any_request_of_its_start_registers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = start(tmp_path / "undisturbed", monkeypatch, lost_at=0)
    assert asked > 10
    for at in range(1, asked):
        start(tmp_path / str(at), monkeypatch, lost_at=at)


def test_the_receive_buffer_of_clients_is_the_systems_until_they_send_in_bulk_unless_it_is_set():
    def of(**settings: str) -> tuple[int, int]:
        given = {"zookeeper.connect": "z:1", "broker.id": "1", **settings}
        return module.receive_buffers(BrokerConfig.from_properties(given))

    assert of() == (OS_DEFAULT_BUFFER, 256 << 10)
    assert of(**{"socket.receive.buffer.bytes": "102400"}) == (102400, OS_DEFAULT_BUFFER)
    assert of(**{"socket.receive.buffer.bytes": "-1"}) == (OS_DEFAULT_BUFFER, OS_DEFAULT_BUFFER)
