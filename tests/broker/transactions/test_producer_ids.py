"""Producer ids come in blocks, and the next block comes before the last id is gone."""

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.broker.identity import BrokerIdentity
from klamm.broker.transactions.producer_ids import ProducerIds
from klamm.protocol.apis import ApiKey


class Controller:
    """Gives blocks of ten, one after the other, when it is let."""

    def __init__(self) -> None:
        self.blocks = 0
        self._may_answer = asyncio.Semaphore(0)
        self._has_answered = asyncio.Event()

    async def send(
        self,
        key: ApiKey,
        version: int,
        body: Callable[[], Mapping[str, Any]],
        is_refused: Callable[[Any], bool],
    ) -> Any:
        assert key is ApiKey.ALLOCATE_PRODUCER_IDS
        assert body() == {"broker_id": 1, "broker_epoch": 5}
        await self._may_answer.acquire()
        self._has_answered.set()
        start, self.blocks = self.blocks * 10, self.blocks + 1
        return SimpleNamespace(error_code=0, producer_id_start=start, producer_id_len=10)

    async def give(self) -> None:
        """Answer one request, and let the response arrive."""
        self._has_answered.clear()
        self._may_answer.release()
        await self._has_answered.wait()
        await asyncio.sleep(0)


@pytest.mark.rule("IDEM-2")
def test_ids_are_unique_and_blocks_are_fetched_ahead() -> None:
    async def test() -> None:
        controller = Controller()
        ids = ProducerIds(BrokerIdentity(1, "cluster", broker_epoch=5), controller)  # type: ignore[arg-type]
        assert ids.take() is None, "the controller has not answered"
        await asyncio.sleep(0)
        await controller.give()
        assert [ids.take() for _ in range(9)] == list(range(9))
        assert controller.blocks == 1
        assert ids.take() == 9, "nine of ten are used: the next block is asked for"
        await asyncio.sleep(0)
        assert ids.take() is None
        await controller.give()
        assert ids.take() == 10
        ids.close()

    asyncio.run(test())
