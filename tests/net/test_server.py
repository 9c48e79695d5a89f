"""The server's sockets: the sizes of their buffers."""

import asyncio
import contextlib
import socket

import pytest
import uvloop

from klamm.config.endpoints import ListenerEndpoint
from klamm.net.server import OS_DEFAULT_BUFFER, Server

SIZE = 64 * 1024


async def buffers_of_an_accepted_socket(send_bytes: int, receive_bytes: int) -> tuple[int, int]:
    server = Server(
        lambda connection, frame: (_ for _ in ()).throw(AssertionError("nothing is sent")),
        frame_bytes_max=1000,
        idle_max_s=0,
        backlog=5,
        send_buffer_bytes=send_bytes,
        receive_buffer_bytes=receive_bytes,
    )
    port = await server.listen(ListenerEndpoint("PLAINTEXT", "127.0.0.1", 0))
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(10):
        while not server.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    (connection,) = server.connections
    accepted = connection._socket
    assert accepted is not None
    sizes = [
        accepted.getsockopt(socket.SOL_SOCKET, option)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF)
    ]
    writer.close()
    await server.close()
    return sizes[0], sizes[1]


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_accepted_sockets_have_buffers_of_the_configured_size(runner):
    # Linux doubles what is asked for, to have room for its own bookkeeping.
    assert runner(buffers_of_an_accepted_socket(SIZE, SIZE // 2)) == (2 * SIZE, SIZE)


def test_a_size_of_minus_one_leaves_the_choice_to_the_operating_system():
    chosen = asyncio.run(buffers_of_an_accepted_socket(OS_DEFAULT_BUFFER, OS_DEFAULT_BUFFER))
    assert chosen != (2 * SIZE, SIZE)


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_connections_are_refused_before_file_descriptors_run_out(runner):
    async def scenario() -> None:
        server = Server(
            lambda connection, frame: (_ for _ in ()).throw(AssertionError("nothing is sent")),
            frame_bytes_max=1000,
            idle_max_s=0,
            backlog=5,
            send_buffer_bytes=OS_DEFAULT_BUFFER,
            receive_buffer_bytes=OS_DEFAULT_BUFFER,
        )
        port = await server.listen(ListenerEndpoint("PLAINTEXT", "127.0.0.1", 0))
        _, kept = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(10):
            while not server.connections:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            server.descriptor_max = 0
            reader, refused = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        assert len(server.connections) == 1
        refused.close()
        kept.close()
        await server.close()

    runner(scenario())
