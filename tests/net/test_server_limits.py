"""Limits on connections, at a real server socket (SEC-19)."""

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from klamm.broker.security.connection_quotas import ConnectionLimits, ConnectionQuotas
from klamm.broker.security.quotas import QuotaWindow
from klamm.config.endpoints import ListenerEndpoint
from klamm.net.server import Listener, Server

pytestmark = pytest.mark.rule("SEC-19")

PING = struct.pack(">i", 4) + b"ping"


class NoMeter:
    def note(self, unsent: object) -> None:
        """Ignore the measurement."""


def echo(connection: object, frame: memoryview) -> tuple[list[bytes], NoMeter, tuple[()]]:
    return [struct.pack(">i", len(frame)) + bytes(frame)], NoMeter(), ()


def run(limits: ConnectionLimits, test: Callable[[int], Awaitable[None]]) -> None:
    async def main() -> None:
        quotas = ConnectionQuotas(limits, inter_broker="INTERNAL", window=QuotaWindow())
        server = Server(echo, frame_bytes_max=100, idle_max_s=0, backlog=10, quotas=quotas)
        listener = Listener("A", echo, 100)
        port = await server.listen(ListenerEndpoint("A", "127.0.0.1", 0), listener)
        try:
            await test(port)
        finally:
            await server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def ask(connected: socket.socket, patience_s: float = 10.0) -> bytes:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(connected, PING)
    async with asyncio.timeout(patience_s):
        return await loop.sock_recv(connected, 100)


async def connect(port: int) -> socket.socket:
    connected = socket.socket()
    connected.setblocking(False)
    await asyncio.get_running_loop().sock_connect(connected, ("127.0.0.1", port))
    return connected


def test_an_address_with_too_many_connections_is_closed_at_once():
    async def test(port: int) -> None:
        with await connect(port) as first:
            assert await ask(first) == PING
            with await connect(port) as second:
                try:
                    assert await ask(second) in (b"", PING)
                    assert await asyncio.get_running_loop().sock_recv(second, 1) == b""
                except ConnectionError:
                    pass  # that is an end as well
            assert await ask(first) == PING
        with await connect(port) as third:
            assert await ask(third) == PING, "there is room again"

    run(ConnectionLimits(per_ip=1), test)


def test_beyond_the_total_a_connection_waits_for_its_place():
    async def test(port: int) -> None:
        first = await connect(port)
        assert await ask(first) == PING
        with await connect(port) as second:
            waiting = asyncio.create_task(ask(second))
            done, _ = await asyncio.wait([waiting], timeout=0.3)
            assert not done
            first.close()
            assert await waiting == PING

    run(ConnectionLimits(total=1), test)
