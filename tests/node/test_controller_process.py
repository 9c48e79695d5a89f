"""The candidate's process from its broker's first message on."""

import asyncio
import json
import os
import socket
import sys

from klamm.node.controller_link import MessageKind, ProcessLink
from klamm.node.controller_process import run_candidate
from tests.support.ports import free_port


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


def test_a_process_that_finds_no_zookeeper_says_so_in_one_line():
    async def scenario() -> tuple[int, str]:
        here, there = socket.socketpair()
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "klamm.node.controller_process"),
            *(str(there.fileno()), str(os.getpid())),
            pass_fds=[there.fileno()],
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        there.close()
        broker = ProcessLink(*await asyncio.open_unix_connection(sock=here))
        properties = {
            "zookeeper.connect": f"127.0.0.1:{free_port()}",
            "zookeeper.connection.timeout.ms": "200",
        }
        hello = {"properties": properties, "broker_id": 1, "cluster_id": "c"}
        broker.tell(MessageKind.HELLO, json.dumps(hello).encode())
        async with asyncio.timeout(60):
            said, _ = await process.communicate()
        broker.close()
        assert process.returncode is not None
        return process.returncode, said.decode()

    code, said = asyncio.run(scenario())
    assert code == 1
    (line,) = said.splitlines()
    assert "No ZooKeeper answered at 127.0.0.1:" in line
