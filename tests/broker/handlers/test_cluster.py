"""Requests about the cluster that arrive before the controller has described it."""

import asyncio
from types import SimpleNamespace

import pytest

from klamm.broker.handlers.cluster import FirstMetadata


def changed(partitions: int) -> SimpleNamespace:
    return SimpleNamespace(snapshot=SimpleNamespace(partition_count=partitions))


async def turns() -> None:
    """Let everything happen that can happen now."""
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("has_topics", "updates", "is_answered"),
    [
        pytest.param(True, [], False, id="nothing was heard"),
        pytest.param(True, [0], False, id="brokers are known, their topics are not"),
        pytest.param(True, [0, 0], False, id="again"),
        pytest.param(True, [0, 12], True, id="partitions are known"),
        pytest.param(False, [0], True, id="there are no topics"),
    ],
)
def test_a_request_waits_for_metadata_that_has_the_partitions(has_topics, updates, is_answered):
    async def look() -> bool:
        return has_topics

    async def scenario() -> None:
        first = FirstMetadata(look)
        response = first.hold(lambda _: {"answered": True})(SimpleNamespace())
        waiting = asyncio.ensure_future(response)
        for partitions in updates:
            first.on_metadata(changed(partitions))
            await turns()
        assert waiting.done() is is_answered
        waiting.cancel()

    asyncio.run(scenario())
