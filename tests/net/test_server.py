"""The server's sockets: the sizes of their buffers, and the limits of their number."""

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import BinaryIO

import pytest
import uvloop

from klamm.broker.security.connection_quotas import ConnectionLimits, ConnectionQuotas
from klamm.broker.security.quotas import QuotaWindow
from klamm.config.endpoints import ListenerEndpoint
from klamm.metrics.requests import RequestMeter
from klamm.net import server as net_server
from klamm.net.responses import MeasuredResponse
from klamm.net.server import (
    BULK_REQUEST_BYTES,
    OS_DEFAULT_BUFFER,
    READ_AHEAD_BYTES,
    CloseConnection,
    Server,
    ServerConnection,
)
from klamm.slices import Delayed
from tests.support.waiting import until

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
def test_the_receive_buffer_is_bounded_when_a_client_sends_a_large_request(runner):
    async def sizes_after(bulk_bytes: int, *requests: bytes) -> list[int]:
        server = Server(
            echo,
            frame_bytes_max=10 * BULK_REQUEST_BYTES,
            idle_max_s=0,
            backlog=5,
            bulk_receive_buffer_bytes=bulk_bytes,
        )
        port = await server.listen(ListenerEndpoint("PLAINTEXT", "127.0.0.1", 0))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sizes = []
        async with asyncio.timeout(10):
            for request in requests:
                writer.write(framed(request))
                await reader.readexactly(4 + len(request))
                (connection,) = server.connections
                assert connection._socket is not None
                sizes.append(connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF))
        writer.close()
        await server.close()
        return sizes

    small, large = bytes(BULK_REQUEST_BYTES), bytes(BULK_REQUEST_BYTES + 1)
    # Linux doubles what is set; it would not choose this size itself.
    size = 50_000
    first, bounded, still = runner(sizes_after(size, small, large, small))
    assert (bounded, still) == (2 * size, 2 * size)
    assert first != 2 * size
    (unbounded,) = runner(sizes_after(OS_DEFAULT_BUFFER, large))
    assert unbounded != 2 * size


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_a_connection_needs_one_descriptor(runner):
    async def scenario() -> None:
        server = Server(
            lambda connection, frame: (_ for _ in ()).throw(AssertionError("nothing is sent")),
            frame_bytes_max=1000,
            idle_max_s=0,
            backlog=50,
        )
        port = await server.listen(ListenerEndpoint("PLAINTEXT", "127.0.0.1", 0))
        before = descriptors()
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        async with asyncio.timeout(10):
            while len(server.connections) < len(clients):  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert descriptors() - before == 2 * len(clients), "both ends are in this process"
            for client in clients:
                client.close()
            while server.connections or descriptors() > before:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert descriptors() == before
        await server.close()

    runner(scenario())


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_a_client_that_reads_late_gets_all_and_leaves_no_descriptor(runner):
    response = bytes(20_000_000)
    meter = RequestMeter("t")

    def dispatch(connection: object, frame: memoryview) -> MeasuredResponse:
        return [response], meter, (0, len(frame), (), 0, 0, 0, 0)

    async def scenario() -> None:
        server = Server(dispatch, frame_bytes_max=1000, idle_max_s=0, backlog=5)
        port = await server.listen(ListenerEndpoint("PLAINTEXT", "127.0.0.1", 0))
        before = descriptors()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(struct.pack(">i", 2) + b"go")
        async with asyncio.timeout(60):
            # A third descriptor is there while the response waits for the client.
            while descriptors() < before + 3:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            assert len(await reader.readexactly(len(response))) == len(response)
            while descriptors() > before + 2:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            # Nobody reads the second response.
            writer.write(struct.pack(">i", 2) + b"go")
            while descriptors() < before + 3:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            writer.transport.abort()
            while server.connections or descriptors() > before:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        await server.close()

    runner(scenario())


class Slow:
    """A socket that takes a thousand bytes at a time and is never full."""

    def __init__(self, real: socket.socket) -> None:
        self._real = real
        self.turns: list[int] = []
        self.turn = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def send(self, data: memoryview, flags: int) -> int:
        self.turns.append(self.turn)
        return self._real.send(data[:1000], flags)


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_others_have_a_turn_after_each_part_of_a_large_response(runner):
    meter = RequestMeter("t")

    def dispatch(connection: object, frame: memoryview) -> MeasuredResponse:
        return [bytes(20_000)], meter, (0, len(frame), (), 0, 0, 0, 0)

    async def scenario() -> None:
        server = Server(dispatch, frame_bytes_max=1000, idle_max_s=0, backlog=5)
        port = await server.listen(ListenerEndpoint("PLAINTEXT", "127.0.0.1", 0))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await until(lambda: server.connections)
        (connection,) = server.connections
        assert connection._socket is not None
        slow = Slow(connection._socket)
        connection._socket = slow  # type: ignore[assignment]

        def count() -> None:
            slow.turn += 1
            asyncio.get_running_loop().call_soon(count)

        count()
        writer.write(struct.pack(">i", 2) + b"go")
        async with asyncio.timeout(60):
            await reader.readexactly(20_000)
        assert len(slow.turns) == len(set(slow.turns)) == 20
        writer.close()
        await server.close()

    runner(scenario())


class Gate:
    """Responds to each request with its bytes, once it is open."""

    def __init__(self) -> None:
        self.begun: list[bytes] = []
        self.finished: list[bytes] = []
        self.is_open = asyncio.Event()
        self._meter = RequestMeter("t")

    def __call__(self, connection: object, frame: memoryview) -> Awaitable[MeasuredResponse]:
        self.begun.append(bytes(frame))
        return self._respond(bytes(frame))

    async def _respond(self, frame: bytes) -> MeasuredResponse:
        await self.is_open.wait()
        self.finished.append(frame)
        return [framed(frame)], self._meter, (0, len(frame), (), 0, 0, 0, 0)


async def serving(gate: Gate) -> tuple[Server, int]:
    """A server in front of the gate, and its port."""
    server = Server(gate, frame_bytes_max=2 * READ_AHEAD_BYTES, idle_max_s=0, backlog=5)
    return server, await server.listen(ListenerEndpoint("PLAINTEXT", "127.0.0.1", 0))


def framed(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_requests_that_come_before_the_response_wait_and_are_served_in_order(runner):
    async def scenario() -> None:
        gate = Gate()
        server, port = await serving(gate)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        requests = [b"first", b"second", bytes(READ_AHEAD_BYTES + 1), b"last"]
        writer.write(framed(requests[0]))
        await until(lambda: len(gate.begun) == 1)
        for each in requests[1:]:
            writer.write(framed(each))
        (connection,) = server.connections
        await until(lambda: connection._is_paused)
        assert gate.begun == requests[:1]
        gate.is_open.set()
        for each in requests:
            assert await asyncio.wait_for(reader.readexactly(4 + len(each)), 20) == framed(each)
        writer.close()
        await server.close()

    runner(scenario())


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_small_requests_are_read_ahead_while_one_waits(runner):
    async def scenario() -> None:
        gate = Gate()
        server, port = await serving(gate)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        requests = [b"%04d" % n * 20 for n in range(5000)]
        # Many packets, which take far more of a socket's buffer than they hold.
        for each in requests:
            writer.write(framed(each))
            await writer.drain()
        (connection,) = await found(server)
        await until(lambda: len(connection.incoming.whole) == len(requests) - 1)
        assert not connection._is_paused
        assert gate.begun == requests[:1]
        gate.is_open.set()
        for each in requests:
            assert await asyncio.wait_for(reader.readexactly(4 + len(each)), 20) == framed(each)
        assert connection.incoming.size == 0
        writer.close()
        await server.close()

    runner(scenario())


def test_others_have_a_turn_between_the_requests_of_one_client(monkeypatch):
    monkeypatch.setattr(net_server, "SLICE_S", -1.0)
    order: list[bytes] = []

    def dispatch(connection: object, frame: memoryview) -> MeasuredResponse:
        order.append(bytes(frame))
        return echo(connection, frame)

    async def scenario() -> None:
        server = Server(dispatch, frame_bytes_max=1000, idle_max_s=0, backlog=5)
        port = await server.listen(ListenerEndpoint("PLAINTEXT", "127.0.0.1", 0))
        with (
            socket.create_connection(("127.0.0.1", port)) as first,
            socket.create_connection(("127.0.0.1", port)) as second,
        ):
            await until(lambda: len(server.connections) == 2)
            first.sendall(framed(b"one") * 50)
            second.sendall(framed(b"two"))
            await until(lambda: len(order) == 51)
        await server.close()

    asyncio.run(scenario())
    assert order.index(b"two") < 10


def test_the_size_of_a_frame_is_judged_when_the_requests_before_it_are_done():
    async def scenario(is_raised: bool) -> bytes:
        gate = Gate()
        server, port = await serving(gate)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        (connection,) = await found(server)
        connection.incoming.size_max = 10
        writer.write(framed(b"login") + framed(b"a" * 20) + framed(b"b"))
        await until(lambda: connection._is_paused)
        if is_raised:
            connection.incoming.size_max = 20
        gate.is_open.set()
        if is_raised:
            writer.write_eof()
        received = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        await server.close()
        return received

    assert asyncio.run(scenario(True)) == framed(b"login") + framed(b"a" * 20) + framed(b"b")
    assert asyncio.run(scenario(False)) == framed(b"login")


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_a_client_that_has_said_all_gets_its_responses_before_the_connection_is_closed(runner):
    async def scenario() -> None:
        gate = Gate()
        server, port = await serving(gate)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"one") + framed(b"two"))
        writer.write_eof()
        (connection,) = await found(server)
        await until(lambda: connection._has_ended)
        gate.is_open.set()
        assert await asyncio.wait_for(reader.read(), 20) == framed(b"one") + framed(b"two")
        await until(lambda: not server.connections)
        writer.close()
        await server.close()

    runner(scenario())


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_a_request_is_finished_although_its_client_has_gone(runner):
    async def scenario() -> None:
        gate = Gate()
        server, port = await serving(gate)
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(framed(b"one"))
        await until(lambda: len(gate.begun) == 1)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()  # with a reset
        await until(lambda: not server.connections)
        gate.is_open.set()
        await until(lambda: gate.finished == [b"one"])
        await server.close()

    runner(scenario())


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_connection_whose_request_fails_unexpectedly_is_closed(runner, is_cancelled):
    async def fail() -> MeasuredResponse:
        await asyncio.sleep(0)
        if is_cancelled:
            raise asyncio.CancelledError
        raise ValueError("a mistake of ours")

    async def scenario() -> bytes:
        server = Server(lambda *_: fail(), frame_bytes_max=1000, idle_max_s=0, backlog=5)
        port = await server.listen(ListenerEndpoint("PLAINTEXT", "127.0.0.1", 0))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"request"))
        received = b""
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                received = await reader.read()
        writer.close()
        await server.close()
        return received

    assert runner(scenario()) == b""


async def found(server: Server) -> list[ServerConnection]:
    await until(lambda: bool(server.connections))
    return list(server.connections)


class Range:
    """Part of a file."""

    def __init__(self, file: BinaryIO, position: int, size: int) -> None:
        self._file, self.position, self.size = file, position, size

    def fileno(self) -> int:
        return self._file.fileno()


@pytest.mark.parametrize("size", [1000, 1_000_000])
def test_ranges_of_files_are_sent_between_the_other_parts(tmp_path, size):
    content = os.urandom(size)
    path = tmp_path / "file"
    path.write_bytes(content)
    meter = RequestMeter("t")

    def dispatch(connection: object, frame: memoryview) -> MeasuredResponse:
        parts = [b"head", Range(file, 10, size - 10), b"middle", Range(file, 0, 10), b"end"]
        return parts, meter, (0, len(frame), (), 0, 0, 0, 0)

    async def scenario() -> None:
        server = Server(dispatch, frame_bytes_max=1000, idle_max_s=0, backlog=5)
        port = await server.listen(ListenerEndpoint("PLAINTEXT", "127.0.0.1", 0))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"go"))
        expected = b"head" + content[10:] + b"middle" + content[:10] + b"end"
        assert await asyncio.wait_for(reader.readexactly(len(expected)), 20) == expected
        # A file that was cut off cannot be sent: the connection is closed.
        os.truncate(path, size // 2)
        writer.write(framed(b"go"))
        rest = await asyncio.wait_for(reader.read(), 20)
        assert len(rest) < len(expected)
        writer.close()
        await server.close()

    with path.open("rb") as file:
        asyncio.run(scenario())


@pytest.mark.parametrize("runner", [asyncio.run, uvloop.run])
def test_others_have_a_turn_between_the_parts_of_a_long_response(runner, monkeypatch):
    monkeypatch.setattr(net_server, "SENDING_S", -1.0)
    turns = []
    flush = ServerConnection._writable
    monkeypatch.setattr(
        ServerConnection, "_writable", lambda self: (turns.append(self), flush(self))[1]
    )
    meter = RequestMeter("t")
    parts = [bytes([number]) * 20_000 for number in range(5)]

    def dispatch(connection: object, frame: memoryview) -> MeasuredResponse:
        return parts, meter, (0, len(frame), (), 0, 0, 0, 0)

    async def scenario() -> None:
        server = Server(dispatch, frame_bytes_max=1000, idle_max_s=0, backlog=5)
        port = await server.listen(ListenerEndpoint("PLAINTEXT", "127.0.0.1", 0))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"go"))
        assert await reader.readexactly(100_000) == b"".join(parts)
        writer.close()
        await server.close()

    runner(scenario())
    assert len(turns) >= len(parts) - 1


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


def echo(connection: object, frame: memoryview) -> MeasuredResponse:
    """Send the frame back."""
    data = struct.pack(">i", len(frame)) + bytes(frame)
    return [data], RequestMeter("Echo"), (0, len(frame), (), 0, 0, 0, 0)


@contextlib.asynccontextmanager
async def limited_server(limits: ConnectionLimits) -> AsyncIterator[int]:
    quotas = ConnectionQuotas(limits, inter_broker="INTERNAL", window=QuotaWindow(11, 1000))
    server = Server(echo, frame_bytes_max=1000, idle_max_s=0, backlog=5, quotas=quotas)
    yield await server.listen(ListenerEndpoint("PLAINTEXT", "127.0.0.1", 0))
    await server.close()


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Send a frame; returns the response, or nothing if the connection is closed."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        writer.write(struct.pack(">i", 2) + b"hi")
        await reader.readexactly(4)
        return await reader.readexactly(2)
    return b""


@pytest.mark.rule("SEC-19")
def test_a_connection_beyond_the_limit_of_its_address_is_closed():
    async def scenario() -> None:
        async with limited_server(ConnectionLimits(per_ip=1)) as port:
            first = await asyncio.open_connection("127.0.0.1", port)
            assert await ask(*first) == b"hi"
            second = await asyncio.open_connection("127.0.0.1", port)
            assert await ask(*second) == b""
            assert await ask(*first) == b"hi"
            for _, writer in (first, second):
                writer.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


@pytest.mark.rule("SEC-19")
def test_a_connection_beyond_the_limit_of_the_broker_is_served_when_another_is_closed():
    async def scenario() -> None:
        async with limited_server(ConnectionLimits(total=1)) as port:
            first = await asyncio.open_connection("127.0.0.1", port)
            assert await ask(*first) == b"hi"
            second = await asyncio.open_connection("127.0.0.1", port)
            waiting = asyncio.create_task(ask(*second))
            assert await ask(*first) == b"hi"
            assert not waiting.done()
            first[1].close()
            assert await waiting == b"hi"
            second[1].close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


class DelayedEcho:
    """Sends each frame back when an event has come; `events` has those that are waited for."""

    def __init__(self) -> None:
        self.events: list[asyncio.Future[None]] = []

    def __call__(self, connection: object, frame: memoryview) -> Delayed[MeasuredResponse]:
        event = asyncio.get_running_loop().create_future()
        self.events.append(event)

        def respond() -> MeasuredResponse:
            if frame == b"bad":
                raise CloseConnection("as the request wants it")
            parts = [struct.pack(">i", len(frame)), bytes(frame)]
            return parts, RequestMeter("t"), (0, len(frame), (), 0, 0, 0, 0)

        return Delayed(event, respond)


def on_a_server_that_delays(
    scenario: Callable[
        [DelayedEcho, asyncio.StreamReader, asyncio.StreamWriter, Server], Awaitable[None]
    ],
) -> None:
    async def main() -> None:
        echo = DelayedEcho()
        server = Server(echo, frame_bytes_max=1000, idle_max_s=0, backlog=5)
        port = await server.listen(ListenerEndpoint("PLAINTEXT", "127.0.0.1", 0))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(30):
            await scenario(echo, reader, writer, server)
            writer.close()
            await server.close()

    uvloop.run(main())


def test_requests_behind_a_delayed_one_wait_for_its_response():
    async def scenario(echo, reader, writer, server):
        writer.write(framed(b"one") + framed(b"two"))
        for number, content in enumerate((b"one", b"two")):
            await until(lambda count=number + 1: len(echo.events) == count)
            echo.events[number].set_result(None)
            assert await reader.readexactly(4 + len(content)) == framed(content)

    on_a_server_that_delays(scenario)


def test_a_delayed_request_is_given_up_when_the_server_closes_its_connection():
    async def scenario(echo, reader, writer, server):
        writer.write(framed(b"one"))
        await until(lambda: echo.events)
        (connection,) = server.connections
        connection.close()
        assert await reader.read() == b""
        assert echo.events[0].cancelled()

    on_a_server_that_delays(scenario)


def test_a_delayed_request_that_cannot_be_answered_closes_its_connection():
    async def scenario(echo, reader, writer, server):
        writer.write(framed(b"bad"))
        await until(lambda: echo.events)
        echo.events[0].set_result(None)
        assert await reader.read() == b""

    on_a_server_that_delays(scenario)
