"""Connections to other nodes: how long they may take, and the bytes of responses."""

import asyncio
import contextlib
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
import uvloop

from klamm.errors import UnavailableError
from klamm.net.connection import ClientConnection, SetupTimeout
from klamm.protocol.apis import ApiKey


def about(seconds: float) -> object:
    return pytest.approx(seconds, rel=0.21)


def test_the_setup_timeout_doubles_with_each_failure_up_to_its_limit():
    timeout = SetupTimeout(10.0, 30.0)
    waits = []
    for _ in range(4):
        waits.append(timeout.next_s())
        timeout.on_failure()
    assert waits == [about(10.0), about(20.0), about(30.0), about(30.0)]
    timeout.on_success()
    assert timeout.next_s() == about(10.0)


def test_the_setup_timeout_does_not_overflow_after_many_failures():
    timeout = SetupTimeout(1.0, 5.0)
    for _ in range(100_000):
        timeout.on_failure()
    assert timeout.next_s() == about(5.0)


@pytest.fixture
def full_listener() -> Iterator[int]:
    """The port of a listener whose queue of connections is full: new ones get no response."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def test_a_connection_that_is_not_set_up_is_given_up_later_each_time(full_listener: int):
    async def scenario() -> list[float]:
        connection = ClientConnection("test", 5.0, 0.05, 0.2)
        waits = []
        for _ in range(3):
            begin = time.monotonic()
            with pytest.raises(UnavailableError, match="Timeout"):
                await connection.send("127.0.0.1", full_listener, ApiKey.API_VERSIONS, 0, {})
            waits.append(time.monotonic() - begin)
        return waits

    first, second, third = asyncio.run(scenario())
    assert first >= 0.04
    assert second >= 0.08
    assert third >= 0.16


@contextlib.asynccontextmanager
async def responder(sizes: Sequence[int]) -> AsyncIterator[int]:
    """The port of a server whose responses have these sizes, each sent in two pieces."""

    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for number, size in enumerate(sizes):
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(length)
            frame = struct.pack(">i", size) + bytes([number]) * size
            for piece in (frame[: size // 2], frame[size // 2 :]):
                writer.write(piece)
                await writer.drain()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        done.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        await asyncio.wait_for(done.wait(), 20)


async def ask(connection: ClientConnection, port: int) -> memoryview:
    """Send a request of a few bytes; return all bytes of the response."""
    return await connection.exchange(
        "127.0.0.1",
        port,
        ApiKey.API_VERSIONS,
        0,
        lambda _: [struct.pack(">i", 3), b"ask"],
        lambda _, response: response,
    )


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("reuses_buffer", [False, True])
def test_responses_of_any_size_are_whole(runner, reuses_buffer):
    sizes = [1, 10, 16 * 1024 - 4, 16 * 1024, 100_000, 50_000, 5_000_000, 7]

    async def scenario() -> None:
        async with responder(sizes) as port:
            connection = ClientConnection("test", 20.0, 20.0, reuses_buffer=reuses_buffer)
            kept = []
            for number, size in enumerate(sizes):
                response = await ask(connection, port)
                assert response == bytes([number]) * size
                kept.append(response)
            if not reuses_buffer:
                assert [bytes(each[:1]) for each in kept] == [bytes([n]) for n in range(len(sizes))]
            connection.close()

    runner(scenario())


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_every_request_without_a_response_is_given_up(runner):
    async def scenario() -> None:
        async with responder([]) as port:
            connection = ClientConnection("test", 0.2, 20.0)
            await connection._connected("127.0.0.1", port)
            # A connection is for one request at a time, but a second must not hide the first.
            asked = [asyncio.ensure_future(ask(connection, port)) for _ in range(2)]
            async with asyncio.timeout(20):
                failures = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(each) for each in failures] == [UnavailableError] * 2

    runner(scenario())
