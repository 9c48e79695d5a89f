"""A broker asks for leave before it stops: how often, how patiently, and what counts as leave."""

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

import pytest

from klamm.broker.identity import BrokerIdentity
from klamm.broker.metadata.cache import BrokerEndpoint, CachedBroker, MetadataCache, MetadataUpdate
from klamm.config.broker import BrokerConfig
from klamm.node.controlled_shutdown import leave_in_order
from klamm.protocol.codec.frames import decode_request, encode_response
from klamm.protocol.codes import ErrorCode as E

CONTROLLER = 9
REMAINING = [{"topic_name": "t", "partition_index": 0}]
GRANTED: dict[str, Any] = {"error_code": E.NONE, "remaining_partitions": []}
NOT_YET: dict[str, Any] = {"error_code": E.NONE, "remaining_partitions": REMAINING}
REFUSALS: list[dict[str, Any]] = [
    {"error_code": error, "remaining_partitions": []}
    for error in (
        E.STALE_CONTROLLER_EPOCH,
        E.STALE_BROKER_EPOCH,
        E.BROKER_NOT_AVAILABLE,
        E.UNKNOWN_SERVER_ERROR,
    )
]
#: The controller closes the connection instead of answering.
SILENCE: dict[str, Any] = {}


class ScriptedController:
    """Gives one response after the other, and remembers the questions."""

    def __init__(self, responses: Sequence[dict[str, Any]]) -> None:
        self._answers = iter(responses)
        self.asked: list[tuple[int, int]] = []
        self.asked_at: list[float] = []
        self.conversations: list[asyncio.Task[Any]] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversation = asyncio.current_task()
        assert conversation is not None
        self.conversations.append(conversation)
        while size := await reader.read(4):
            request = decode_request(await reader.readexactly(*struct.unpack(">i", size)))
            self.asked.append((int(request.body.broker_id), int(request.body.broker_epoch)))
            self.asked_at.append(asyncio.get_running_loop().time())
            response = next(self._answers)
            if response is SILENCE:
                break
            writer.write(encode_response(request.header, response))
        writer.close()
        await writer.wait_closed()


def ask_for_leave(
    responses: Sequence[dict[str, Any]], *, retries: int = 3, backoff_ms: int = 20
) -> tuple[bool, ScriptedController]:
    config = BrokerConfig.from_properties(
        {
            "broker.id": "1",
            "zookeeper.connect": "localhost",
            "controlled.shutdown.max.retries": str(retries),
            "controlled.shutdown.retry.backoff.ms": str(backoff_ms),
        }
    )

    async def scenario() -> tuple[bool, ScriptedController]:
        controller = ScriptedController(responses)
        server = await asyncio.start_server(controller.serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        metadata = MetadataCache()
        node = CachedBroker(CONTROLLER, {"PLAINTEXT": BrokerEndpoint("127.0.0.1", port)})
        metadata.install(metadata.snapshot.after(MetadataUpdate(CONTROLLER, [node])))
        is_granted = await leave_in_order(config, BrokerIdentity(1, "c", broker_epoch=50), metadata)
        await asyncio.gather(*controller.conversations)
        server.close()
        await server.wait_closed()
        return is_granted, controller

    return asyncio.run(scenario())


@pytest.mark.rule("SHUT-1", "LIFE-13")
def test_leave_that_is_granted_is_asked_for_once_with_id_and_epoch():
    is_granted, controller = ask_for_leave([GRANTED])
    assert is_granted
    assert controller.asked == [(1, 50)]


@pytest.mark.rule("SHUT-1", "SHUT-10", "LIFE-16")
@pytest.mark.parametrize(
    "first",
    [NOT_YET, *REFUSALS, SILENCE],
    ids=["remaining", "moved", "stale", "unknown", "failed", "silence"],
)
def test_anything_else_is_a_reason_to_ask_again_after_a_pause(first: dict[str, Any]):
    is_granted, controller = ask_for_leave([first, GRANTED], backoff_ms=50)
    assert is_granted
    assert len(controller.asked) == 2
    assert controller.asked_at[1] - controller.asked_at[0] >= 0.05


@pytest.mark.rule("SHUT-1")
@pytest.mark.parametrize("retries", [1, 3])
def test_after_so_many_attempts_the_broker_stops_anyway(retries: int):
    is_granted, controller = ask_for_leave([NOT_YET] * 5, retries=retries)
    assert not is_granted
    assert len(controller.asked) == retries
