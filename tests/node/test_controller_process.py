"""The candidate's process from its broker's first message on."""

import asyncio

from klamm.node.controller_link import MessageKind, ProcessLink
from klamm.node.controller_process import run_candidate


def test_a_candidate_that_is_stopped_before_it_has_its_settings_ends_at_once():
    async def scenario() -> None:
        ends: asyncio.Queue[ProcessLink] = asyncio.Queue()
        server = await asyncio.start_server(
            lambda reader, writer: ends.put_nowait(ProcessLink(reader, writer)), "127.0.0.1"
        )
        port = server.sockets[0].getsockname()[1]
        broker = ProcessLink(*await asyncio.open_connection("127.0.0.1", port))
        candidate = await ends.get()
        broker.tell(MessageKind.STOP)
        async with asyncio.timeout(10):
            await run_candidate(candidate)
        for link in (broker, candidate):
            link.close()
        server.close()
        await server.wait_closed()

    asyncio.run(scenario())
