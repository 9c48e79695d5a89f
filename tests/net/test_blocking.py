"""The blocking connection, against a peer that sends what each test gives it."""

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from klamm.errors import RemoteProtocolError, UnavailableError
from klamm.net.blocking import BlockingConnection
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import encode_response
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import KafkaError

TIMEOUT_S = 10.0
OFFERED = {"error_code": 0, "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 3}]}


def versions(correlation_id: int) -> bytes:
    return encode_response(RequestHeader(ApiKey.API_VERSIONS, 0, correlation_id, "test"), OFFERED)


@contextlib.contextmanager
def peer(*responses: bytes, times: int = 1) -> Iterator[BlockingConnection]:
    """A connection to a peer that sends one of these for each request, then closes."""

    def serve() -> None:
        for _ in range(times):
            accepted, _ = listener.accept()
            with accepted:
                for response in responses:
                    (size,) = struct.unpack(">i", accepted.recv(4, socket.MSG_WAITALL))
                    accepted.recv(size, socket.MSG_WAITALL)
                    accepted.sendall(response)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        connection = BlockingConnection(*listener.getsockname(), "test")
        try:
            yield connection
        finally:
            connection.close()
            thread.join()


def test_a_response_is_read_after_the_request_was_sent():
    with peer(versions(1), versions(2), versions(3)) as connection:
        assert connection.version(ApiKey.API_VERSIONS, TIMEOUT_S) == 3
        for _ in range(2):
            header = connection.begin(ApiKey.API_VERSIONS, 0, {}, TIMEOUT_S)
            response = connection.finish(header)
            assert [each.api_key for each in response.api_keys] == [ApiKey.API_VERSIONS]


def test_a_response_to_another_request_is_refused():
    with peer(versions(1), versions(7)) as connection:
        header = connection.begin(ApiKey.API_VERSIONS, 0, {}, TIMEOUT_S)
        with pytest.raises(RemoteProtocolError, match="7"):
            connection.finish(header)
        with pytest.raises(UnavailableError, match="the connection was closed"):
            connection.finish(header)


def test_a_connection_that_was_closed_while_it_was_idle_is_opened_again():
    with peer(versions(1), times=2) as connection:
        assert connection.version(ApiKey.API_VERSIONS, TIMEOUT_S) == 3
        assert connection._socket is not None
        assert connection._socket.recv(1, socket.MSG_PEEK) == b""  # the peer has closed it
        connection._correlation_id = 0
        assert connection.version(ApiKey.API_VERSIONS, TIMEOUT_S) == 3


def test_a_peer_that_is_no_broker_is_unavailable():
    with (
        peer(b"HTTP/1.1 400 Bad Request") as connection,
        pytest.raises(UnavailableError, match="not a Kafka broker"),
    ):
        connection.version(ApiKey.API_VERSIONS, TIMEOUT_S)


def test_a_peer_that_closes_the_connection_is_unavailable():
    with peer(versions(1), versions(2)[:9]) as connection:
        header = connection.begin(ApiKey.API_VERSIONS, 0, {}, TIMEOUT_S)
        with pytest.raises(UnavailableError, match="it closed the connection"):
            connection.finish(header)


def test_an_api_that_the_broker_does_not_offer_is_refused_by_name():
    with peer(versions(1)) as connection, pytest.raises(KafkaError, match="has no Fetch"):
        connection.version(ApiKey.FETCH, TIMEOUT_S)
