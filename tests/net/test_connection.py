"""Connections to other nodes: how long a connection may take to be set up."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

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
