"""How a client connects to a secured listener: one TLS context, and a login on every connection.

The login is a generator that yields requests and is sent their responses, so that blocking and
asyncio connections carry it out alike.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Generator, Mapping
from functools import cached_property
from typing import Any, Final, TypeAlias

from klamm.config.client_properties import PLAINTEXT, ClientSecurity
from klamm.net.sasl import LoginError, start_login
from klamm.net.tls import client_context
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode

_HANDSHAKE_VERSION: Final = 1
_AUTHENTICATE_VERSION: Final = 1
#: A session is renewed when this part of its life is over.
_RENEWED_AFTER: Final = 0.85
_STEPS_MAX: Final = 10

#: API, version and values of a request; sent back is the body of its response.
LoginStep: TypeAlias = tuple[ApiKey, int, Mapping[str, Any]]


class SecureClient:
    """The security of one client, shared by its connections."""

    def __init__(self, security: ClientSecurity = PLAINTEXT) -> None:
        self.security = security

    @cached_property
    def context(self) -> ssl.SSLContext | None:
        """The TLS context, or None for connections without TLS."""
        tls = self.security.tls
        return None if tls is None else client_context(tls)

    @property
    def logs_in(self) -> bool:
        return self.security.sasl is not None

    def wrap(self, connected: socket.socket, host: str) -> socket.socket:
        """The same socket behind TLS, if the client speaks TLS; the handshake is done here."""
        context = self.context
        return (
            connected if context is None else context.wrap_socket(connected, server_hostname=host)
        )

    def login(self) -> Generator[LoginStep, Any, float | None]:
        """Log in; the result is when, by the monotonic clock, to do it again."""
        sasl = self.security.sasl
        if sasl is None:
            return None
        began = time.monotonic()
        login = start_login(sasl)
        handshake = yield (
            ApiKey.SASL_HANDSHAKE,
            _HANDSHAKE_VERSION,
            {"mechanism": login.mechanism},
        )
        if handshake.error_code:
            raise LoginError(
                f"the broker does not take {login.mechanism} but {', '.join(handshake.mechanisms)}"
            )
        token = login.on_challenge(b"")
        for _ in range(_STEPS_MAX):
            reply = yield (
                ApiKey.SASL_AUTHENTICATE,
                _AUTHENTICATE_VERSION,
                {"auth_bytes": token},
            )
            if reply.error_code:
                code = ErrorCode.of(reply.error_code)
                raise LoginError(f"{code.name}: {reply.error_message or code.message}")
            challenge = bytes(reply.auth_bytes)
            if _is_last(login.mechanism, challenge):
                login.check_complete(challenge)
                life_s = reply.session_lifetime.total_seconds()
                return began + life_s * _RENEWED_AFTER if life_s > 0 else None
            token = login.on_challenge(challenge)
        raise LoginError("the broker does not come to an end with SASL")


def _is_last(mechanism: str, challenge: bytes) -> bool:
    """Whether the server's token ends the exchange, as far as the mechanism says."""
    return challenge.startswith(b"v=") if mechanism.startswith("SCRAM") else not challenge


#: For clusters without security.
INSECURE: Final = SecureClient()
