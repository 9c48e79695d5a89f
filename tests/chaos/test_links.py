"""Gates let bytes through, or hold them, or break connections, depending on who is there."""

import asyncio
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress

import pytest

from klamm.local.network import HOST
from tests.chaos.links import Links

PATIENCE_S = 20


def request(client_id: str) -> bytes:
    """As much of a request as tells who it comes from."""
    name = client_id.encode()
    body = struct.pack(">hhih", 18, 3, 1, len(name)) + name
    return struct.pack(">i", len(body)) + body


@asynccontextmanager
async def echo() -> AsyncIterator[int]:
    """A server that sends back whatever it gets; its port."""

    answering: set[asyncio.Task[None] | None] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.current_task())
        with closing(writer), suppress(OSError):
            while data := await reader.read(100):
                writer.write(data)

    server = await asyncio.start_server(answer, HOST, 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.gather(*(task for task in answering if task is not None))


Ask = Callable[[str], Awaitable[bytes]]


def behind_a_gate(scenario: Callable[[Links, Ask], Awaitable[None]]) -> None:
    """Run a scenario with `ask`, which connects to broker 2 and returns what comes back."""

    async def main() -> None:
        links = Links()
        async with asyncio.timeout(PATIENCE_S), echo() as port:
            address = await links.open_gate("broker 2", port)

            async def ask(client_id: str) -> bytes:
                reader, writer = await asyncio.open_connection(*address.split(":"))
                writer.write(request(client_id))
                try:
                    return await reader.readexactly(len(request(client_id)))
                except (OSError, asyncio.IncompleteReadError):
                    return b""
                finally:
                    writer.close()

            await scenario(links, ask)
            await links.close()

    asyncio.run(main())


@pytest.mark.parametrize("client_id", ["1", "broker-1-fetcher-0", "rdkafka", ""])
def test_what_a_gate_has_read_to_know_who_is_there_is_passed_on(client_id: str):
    async def scenario(links: Links, ask: Ask) -> None:
        assert await ask(client_id) == request(client_id)

    behind_a_gate(scenario)


def test_a_broker_that_is_parted_gets_nothing_and_others_do():
    async def scenario(links: Links, ask: Ask) -> None:
        await links.part("broker 1", "broker 2")
        assert await ask("broker-1-fetcher-2") == b""
        assert await ask("1") == b""
        assert await ask("broker-3-fetcher-2") == request("broker-3-fetcher-2")
        assert await ask("somebody") == request("somebody")
        await links.join()
        assert await ask("1") == request("1")

    behind_a_gate(scenario)


def test_what_was_sent_into_silence_arrives_when_the_two_are_joined():
    async def scenario(links: Links, ask: Ask) -> None:
        await links.part("broker 1", "broker 2", silently=True)
        asked = asyncio.ensure_future(ask("1"))
        # What others get afterwards shows that there was time enough.
        assert await ask("3") == request("3")
        assert not asked.done()
        await links.join()
        assert await asked == request("1")

    behind_a_gate(scenario)
