"""Authentication at the listeners: TLS contexts and principals, SASL exchanges, failed logins.

`Authentication` makes what the server needs to know about each listener. On SASL listeners every
frame passes the gate, which serves nothing but the exchange until it is complete.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import ssl
import struct
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from klamm.broker.handlers.dispatch import Body, Call, Handler, Result
from klamm.broker.security.entities import ScramCredentials
from klamm.broker.security.key_source import KeySource
from klamm.broker.security.mechanisms import Mechanism, OAuthBearerServer, PlainServer, ScramServer
from klamm.broker.security.principals import (
    ANONYMOUS,
    USER_TYPE,
    Principal,
    parse_mapping_rules,
    principal_of_name,
    subject_of,
)
from klamm.broker.security.sasl import (
    EnabledMechanism,
    SaslSession,
    SaslState,
    TokenReply,
    Verdict,
)
from klamm.broker.security.tokens import TokenValidator, refuse_every_token
from klamm.config.broker_security import ListenerSecurity, MechanismSettings
from klamm.config.security import OAUTHBEARER, PLAIN, TlsSettings
from klamm.errors import ConfigError
from klamm.metrics.requests import RequestMeter
from klamm.net.responses import MeasuredResponse
from klamm.net.scram import SCRAM_MECHANISMS
from klamm.net.server import CLOSE, CloseConnection, Dispatch, Listener, ServerConnection
from klamm.net.tls import read_names, server_context
from klamm.net.tls_connection import TlsAcceptor
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.failures import whole_failure
from klamm.protocol.codec.frames import decode_request, encode_response
from klamm.protocol.codes import ErrorCode

log = logging.getLogger("klamm.broker.security")

#: How long a client may take from its connection to its authentication.
_AUTHENTICATION_TIMEOUT_S: Final = 30.0
_API_KEY: Final = struct.Struct(">h")
_SIZE: Final = struct.Struct(">i")
TOO_LATE: Final = "SaslAuthenticate request received after successful authentication"


def wall_ms() -> int:
    """The wall clock in milliseconds."""
    return time.time_ns() // 1_000_000


@dataclass(slots=True)
class _Exchange:
    """The authentication of one connection under way."""

    session: SaslSession
    failed_delay_s: float
    deadline: asyncio.TimerHandle
    frame_bytes_max: int


class Authentication:
    """What listeners need to authenticate their clients."""

    def __init__(self, credentials: ScramCredentials, *, frame_bytes_max: int) -> None:
        self._credentials = credentials
        self._frame_bytes_max = frame_bytes_max
        self._decoy_key = secrets.token_bytes(32)
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._sources: dict[str, KeySource] = {}

    async def start(self, security: ListenerSecurity) -> None:
        """Load the keys that the mechanisms of a listener need."""
        for mechanism in security.mechanisms:
            url = mechanism.oauth.jwks_url
            if mechanism.name == OAUTHBEARER and url is not None and url not in self._sources:
                self._sources[url] = KeySource(url, mechanism.oauth.jwks_refresh_ms)
                await self._sources[url].start()

    def close(self) -> None:
        for source in self._sources.values():
            source.close()

    def use_tls(self, listener: str, settings: TlsSettings) -> None:
        """Use another context for new connections; ConfigError leaves the old one in force."""
        self._contexts[listener] = server_context(settings)

    def check_tls(
        self, listener: str, old: TlsSettings, new: TlsSettings, *, dn: bool, san: bool
    ) -> None:
        """Refuse stores that cannot be used, or whose certificate has another subject (SEC-17).

        `dn` and `san` allow another subject and other names.
        """
        server_context(new)
        if old.keystore is None or new.keystore is None:
            return
        held, wanted = read_names(old.keystore), read_names(new.keystore)
        for what, is_allowed, key in (("subject", dn, "dn"), ("names", san, "san")):
            if not is_allowed and getattr(held, what) != getattr(wanted, what):
                raise ConfigError(
                    f"the certificate of the new key store of {listener} has another {what} than"
                    f" the present one; ssl.allow.{key}.changes=true would allow it"
                )

    def listener(
        self, name: str, security: ListenerSecurity, dispatch: Dispatch, meter: RequestMeter
    ) -> Listener:
        """What the server needs for the listener `name`."""
        if security.tls is not None:
            self.use_tls(name, security.tls)
        if not security.uses_sasl:
            rules = parse_mapping_rules(security.principal_mapping_rules)

            def principal_of(certificate: bytes | None) -> str | None:
                if certificate is None:
                    return str(ANONYMOUS)
                principal = principal_of_name(subject_of(certificate), rules)
                return None if principal is None else str(principal)

            return Listener(
                name,
                dispatch,
                self._frame_bytes_max,
                None if security.tls is None else lambda: self._contexts[name],
                principal_of,
                open=None if security.tls is None else TlsAcceptor,
            )
        mechanisms = {
            each.name: EnabledMechanism(self._starter(each), each.reauth_ms_max)
            for each in security.mechanisms
        }

        def begin(connection: ServerConnection) -> None:
            connection.authentication = _Exchange(
                SaslSession(mechanisms),
                security.failed_delay_ms / 1000,
                asyncio.get_running_loop().call_later(
                    _AUTHENTICATION_TIMEOUT_S, _close_unauthenticated, connection
                ),
                self._frame_bytes_max,
            )

        return Listener(
            name,
            _Gate(dispatch, meter),
            min(security.receive_bytes_max, self._frame_bytes_max),
            None if security.tls is None else lambda: self._contexts[name],
            on_connected=begin,
            open=None if security.tls is None else TlsAcceptor,
        )

    def _starter(self, settings: MechanismSettings) -> Callable[[], Mechanism]:
        if settings.name == PLAIN:
            return lambda: PlainServer(settings.users)
        if settings.name == OAUTHBEARER:
            validate = self._validator(settings)
            return lambda: OAuthBearerServer(validate)
        scram = SCRAM_MECHANISMS[settings.name]
        return lambda: ScramServer(
            scram,
            lambda user: self._credentials.find(user, scram),
            nonce=secrets.token_urlsafe(24),
            decoy_key=self._decoy_key,
        )

    def _validator(self, settings: MechanismSettings) -> Any:
        oauth = settings.oauth
        if oauth.jwks_url is None:
            return refuse_every_token
        return TokenValidator(
            self._sources[oauth.jwks_url].keys,
            wall_ms,
            oauth.issuer,
            oauth.audiences,
            oauth.clock_skew_s,
            oauth.subject_claim,
        )


def _close_unauthenticated(connection: ServerConnection) -> None:
    if connection.authentication.session.state is not SaslState.COMPLETE:
        log.info("closing the connection of %s: it did not authenticate in time", connection.peer)
        connection.close()


class _Gate:
    """The dispatch of a SASL listener (SEC-1)."""

    def __init__(self, dispatch: Dispatch, meter: RequestMeter) -> None:
        self._dispatch = dispatch
        self._meter = meter

    def __call__(
        self, connection: ServerConnection, frame: memoryview
    ) -> MeasuredResponse | Awaitable[MeasuredResponse]:
        session: SaslSession = connection.authentication.session
        if session.state is SaslState.BARE_TOKENS:
            return self._bare_token(connection, session, frame)
        if len(frame) < _API_KEY.size:
            raise CloseConnection("a frame without a request")
        (api_key,) = _API_KEY.unpack_from(frame)
        match session.judge(api_key, wall_ms()):
            case Verdict.CLOSE:
                raise CloseConnection("the request is not allowed in this state of SASL")
            case Verdict.ILLEGAL:
                return self._illegal(frame)
            case Verdict.ILLEGAL_THEN_CLOSE:
                connection.hold = CLOSE
                return self._illegal(frame)
        response = self._dispatch(connection, frame)
        if api_key != ApiKey.API_VERSIONS or session.state is not SaslState.INITIAL:
            return response
        if isinstance(response, tuple):
            return _noted(session, response)
        return _noted_later(session, response)

    def _illegal(self, frame: memoryview) -> MeasuredResponse:
        header, body = decode_request(frame)
        response = whole_failure(header, body, ErrorCode.ILLEGAL_SASL_STATE)
        if response is None:
            raise CloseConnection("a request without a response is not allowed before SASL is done")
        if header.api_key == ApiKey.SASL_AUTHENTICATE:
            response = {**response, "error_message": TOO_LATE}
        return self._measured([encode_response(header, response)], len(frame))

    def _bare_token(
        self, connection: ServerConnection, session: SaslSession, frame: memoryview
    ) -> MeasuredResponse | Awaitable[MeasuredResponse]:
        reply = session.on_token(bytes(frame), wall_ms())
        if reply is None or reply.close:
            return _close_late(connection.authentication.failed_delay_s)
        _note_progress(connection, session)
        return self._measured([_SIZE.pack(len(reply.token)) + reply.token], len(frame))

    def _measured(self, parts: list[bytes], size: int) -> MeasuredResponse:
        now = time.perf_counter_ns()
        return parts, self._meter, (0, size, (), now, now, now, now)


def _noted(session: SaslSession, response: MeasuredResponse) -> MeasuredResponse:
    """Tell the exchange what ApiVersions was answered with."""
    _, _, (_, _, codes, *_) = response
    session.on_api_versions_answered(ErrorCode.of(next(iter(codes), 0)))
    return response


async def _noted_later(
    session: SaslSession, responding: Awaitable[MeasuredResponse]
) -> MeasuredResponse:
    return _noted(session, await responding)


async def _close_late(delay_s: float) -> MeasuredResponse:
    await asyncio.sleep(delay_s)
    raise CloseConnection("authentication failed")


def _note_progress(connection: ServerConnection, session: SaslSession) -> None:
    """Give a connection whose exchange is complete its principal and the usual frame size."""
    if session.state is SaslState.COMPLETE:
        exchange: _Exchange = connection.authentication
        exchange.deadline.cancel()
        connection.principal = str(Principal(USER_TYPE, session.user or ""))
        connection.incoming.size_max = exchange.frame_bytes_max


class SaslHandlers:
    """SaslHandshake and SaslAuthenticate; on listeners without SASL both are illegal (SEC-1)."""

    def handlers(self) -> Mapping[ApiKey, Handler]:
        return {
            ApiKey.SASL_HANDSHAKE: self._handshake,
            ApiKey.SASL_AUTHENTICATE: self._authenticate,
        }

    def _handshake(self, call: Call) -> Body:
        exchange: _Exchange | None = call.connection.authentication
        if exchange is None:
            return {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": []}
        reply = exchange.session.on_handshake(
            call.header.api_version, call.body.mechanism, wall_ms()
        )
        if reply is None:
            raise CloseConnection("an unknown mechanism in a re-authentication")
        if reply.close:
            call.connection.hold = CLOSE
        return {"error_code": reply.error, "mechanisms": list(reply.mechanisms)}

    def _authenticate(self, call: Call) -> Result | Awaitable[Result]:
        connection = call.connection
        exchange: _Exchange | None = connection.authentication
        if exchange is None:
            code = ErrorCode.ILLEGAL_SASL_STATE
            return {"error_code": code, "error_message": TOO_LATE, "auth_bytes": b""}
        reply = exchange.session.on_token(bytes(call.body.auth_bytes), wall_ms())
        if reply is None:
            raise CloseConnection("another mechanism in a re-authentication")
        if reply.close:
            log.info("authentication of %s failed", connection.peer)
            return self._refuse(connection, reply, exchange.failed_delay_s)
        _note_progress(connection, exchange.session)
        return _token_body(reply)

    async def _refuse(
        self, connection: ServerConnection, reply: TokenReply, delay_s: float
    ) -> Result:
        """Hold the response back, so that guessing takes its time, then close (SEC-2)."""
        await asyncio.sleep(delay_s)
        connection.hold = CLOSE
        return _token_body(reply)


def _token_body(reply: TokenReply) -> Body:
    return {
        "error_code": reply.error,
        "error_message": reply.message,
        "auth_bytes": reply.token,
        "session_lifetime": reply.session_lifetime_ms,
    }
