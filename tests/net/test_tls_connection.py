"""Clients that are slow to say who they are, at real sockets; nobody else waits for them."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from klamm.broker.security import authentication
from klamm.broker.security.authentication import Authentication
from klamm.broker.security.entities import ScramCredentials
from klamm.config.broker_security import ListenerSecurity, MechanismSettings
from klamm.config.endpoints import ListenerEndpoint
from klamm.config.security import OAuthSettings, StoreSettings, TlsSettings
from klamm.local.certificates import CertificateAuthority
from klamm.metrics.requests import RequestMeter
from klamm.net import tls_connection
from klamm.net.server import Server
from klamm.net.tls import client_context
from tests.net.test_server_limits import PING, echo

AUTHORITY = CertificateAuthority()
PAIR = AUTHORITY.issue("broker", ("127.0.0.1",))
TLS = TlsSettings(StoreSettings("PEM", key=PAIR.key, certificates=PAIR.certificate), None)
TRUST = TlsSettings(None, StoreSettings("PEM", certificates=AUTHORITY.certificate))
PATIENCE_S = 20.0


def run(security: ListenerSecurity, test: Callable[[int], Awaitable[None]]) -> None:
    async def main() -> None:
        known = Authentication(ScramCredentials(), frame_bytes_max=100)
        listener = known.listener("L", security, echo, RequestMeter("any"))
        server = Server(echo, frame_bytes_max=100, idle_max_s=0, backlog=10)
        try:
            await test(await server.listen(ListenerEndpoint("L", "127.0.0.1", 0), listener))
        finally:
            await server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Whether the server ends the connection; False if something else comes first."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read(1) == b""
        except ConnectionError:
            return True


def client_hello() -> bytes:
    """The first bytes of a handshake."""
    outgoing = ssl.MemoryBIO()
    tls = client_context(TRUST).wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="127.0.0.1")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


@pytest.mark.rule("SEC-6")
@pytest.mark.parametrize("said", [0, 1, 40], ids=["nothing", "a byte", "half a hello"])
def test_a_tls_handshake_that_is_slow_is_given_up(monkeypatch, said):
    monkeypatch.setattr(tls_connection, "_HANDSHAKE_TIMEOUT_S", 0.2)

    async def test(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(client_hello()[:said])
        assert await is_closed(reader)
        writer.close()
        # A client that shakes hands in time outlives the limit.
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=client_context(TRUST), server_hostname="127.0.0.1"
        )
        for _ in range(2):
            writer.write(PING)
            async with asyncio.timeout(PATIENCE_S):
                assert await reader.readexactly(len(PING)) == PING
            await asyncio.sleep(0.3)  # longer than a handshake may take
        writer.close()

    run(ListenerSecurity(TLS), test)


@pytest.mark.rule("SEC-1")
@pytest.mark.parametrize("said", [b"", b"\0", b"\0\0\0\x0a\0\x12"])
def test_an_authentication_that_is_slow_is_given_up(monkeypatch, said):
    monkeypatch.setattr(authentication, "_AUTHENTICATION_TIMEOUT_S", 0.2)

    async def test(port: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(said)
        assert await is_closed(reader)
        writer.close()

    run(ListenerSecurity(mechanisms=(MechanismSettings("PLAIN", None, OAuthSettings()),)), test)
