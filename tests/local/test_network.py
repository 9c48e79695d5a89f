"""The proxy between a broker and ZooKeeper."""

import socket

import pytest

from klamm.local.loop_thread import LoopThread
from klamm.local.network import Proxy


def test_a_loop_that_ends_with_an_open_connection_logs_nothing(caplog: pytest.LogCaptureFixture):
    with socket.create_server(("127.0.0.1", 0)) as server:
        loop_thread = LoopThread("proxy")
        proxy = Proxy("127.0.0.1", server.getsockname()[1])
        host, port = loop_thread.call(proxy.start).split(":")

        async def stop_listening() -> None:
            assert proxy._server is not None
            proxy._server.close()

        with socket.create_connection((host, int(port))) as client:
            client.sendall(b"hello")
            forwarded, _ = server.accept()
            assert forwarded.recv(5) == b"hello"
            loop_thread.call(stop_listening)
            loop_thread.close()
            forwarded.close()
    assert caplog.records == []
