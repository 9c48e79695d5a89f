"""The SASL state of one connection: which request may come now, and what it is answered with.

A pure machine (SEC-1, 2, 5). `judge` says what becomes of a request, `on_handshake` and `on_token`
take the two requests of the exchange. Time is handed in; sockets, frames and the delay before a
failed response are the caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from klamm.broker.security.mechanisms import (
    Authenticated,
    AuthenticationFailed,
    Challenge,
    Mechanism,
)
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode

#: Re-authentications that follow one another faster than this are refused.
REAUTHENTICATION_PAUSE_MS: Final = 1000


class SaslState(Enum):
    """The states of a SASL exchange."""

    #: Nothing came yet, or only ApiVersions requests that failed.
    INITIAL = "initial"
    #: ApiVersions was answered; the handshake has to follow.
    HANDSHAKE = "handshake"
    #: Tokens travel in SaslAuthenticate requests.
    AUTHENTICATE = "authenticate"
    #: Tokens travel as bare frames, because the handshake was of version 0.
    BARE_TOKENS = "bare tokens"
    COMPLETE = "complete"
    FAILED = "failed"


class Verdict(Enum):
    """The decision about a request."""

    #: The request is served.
    SERVE = "serve"
    #: The request is answered with ILLEGAL_SASL_STATE, and the connection goes on.
    ILLEGAL = "illegal"
    #: The request is answered with ILLEGAL_SASL_STATE, and the connection is closed.
    ILLEGAL_THEN_CLOSE = "illegal, then close"
    #: The connection is closed without a response.
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class HandshakeReply:
    """The response to SaslHandshake, and whether the connection is closed after it."""

    error: ErrorCode
    mechanisms: tuple[str, ...]
    close: bool


@dataclass(frozen=True, slots=True)
class TokenReply:
    """The response to a token; None in place of a reply closes without a response."""

    error: ErrorCode
    message: str
    token: bytes
    session_lifetime_ms: int

    @property
    def close(self) -> bool:
        return self.error is not ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class EnabledMechanism:
    """A mechanism of a listener: how a login starts, and how long a session may last."""

    start: Callable[[], Mechanism]
    #: `connections.max.reauth.ms`; 0 for no limit.
    session_ms_max: int = 0


class SaslSession:
    """The exchange on one connection."""

    def __init__(self, mechanisms: Mapping[str, EnabledMechanism]) -> None:
        self._mechanisms = mechanisms
        self.state = SaslState.INITIAL
        self.user: str | None = None
        self.mechanism: str | None = None
        self.expires_ms: int | None = None
        self._login: Mechanism | None = None
        self._chosen: str | None = None
        self._reauthentication_began_ms: int | None = None

    def judge(self, api_key: int, now_ms: int) -> Verdict:
        """Decide about a request before it is decoded any further than its header."""
        match self.state:
            case SaslState.COMPLETE:
                return self._judge_complete(api_key, now_ms)
            case SaslState.INITIAL:
                is_expected = api_key in (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE)
                return Verdict.SERVE if is_expected else Verdict.CLOSE
            case SaslState.HANDSHAKE:
                return Verdict.SERVE if api_key == ApiKey.SASL_HANDSHAKE else Verdict.CLOSE
            case SaslState.AUTHENTICATE:
                is_expected = api_key == ApiKey.SASL_AUTHENTICATE
                return Verdict.SERVE if is_expected else Verdict.ILLEGAL_THEN_CLOSE
            case _:
                return Verdict.CLOSE

    def _judge_complete(self, api_key: int, now_ms: int) -> Verdict:
        if api_key == ApiKey.SASL_HANDSHAKE:
            return Verdict.SERVE if self._may_reauthenticate(now_ms) else Verdict.ILLEGAL
        if self.expires_ms is not None and now_ms >= self.expires_ms:
            return Verdict.CLOSE
        return Verdict.ILLEGAL if api_key == ApiKey.SASL_AUTHENTICATE else Verdict.SERVE

    def _may_reauthenticate(self, now_ms: int) -> bool:
        began_ms = self._reauthentication_began_ms
        return self.expires_ms is not None and (
            began_ms is None or now_ms - began_ms >= REAUTHENTICATION_PAUSE_MS
        )

    def on_api_versions_answered(self, error: ErrorCode) -> None:
        """Note the response to ApiVersions: after one success, no second one is served."""
        if self.state is SaslState.INITIAL and error is ErrorCode.NONE:
            self.state = SaslState.HANDSHAKE

    def on_handshake(self, version: int, mechanism: str, now_ms: int) -> HandshakeReply | None:
        """Choose the mechanism; only call it after `judge` said SERVE.

        None closes the connection without a response: in a re-authentication, Kafka does not
        tell which mechanisms there are.
        """
        names = tuple(self._mechanisms)
        enabled = self._mechanisms.get(mechanism)
        is_again = self.state is SaslState.COMPLETE
        if is_again:
            self._reauthentication_began_ms = now_ms
        if enabled is None:
            self.state = SaslState.FAILED
            if is_again:
                return None
            return HandshakeReply(ErrorCode.UNSUPPORTED_SASL_MECHANISM, names, close=True)
        self._chosen = mechanism
        self._login = enabled.start()
        self.state = SaslState.AUTHENTICATE if version >= 1 else SaslState.BARE_TOKENS
        return HandshakeReply(ErrorCode.NONE, names, close=False)

    def on_token(self, token: bytes, now_ms: int) -> TokenReply | None:
        """Take a token of the client; None closes the connection without a response."""
        assert self._login is not None
        assert self._chosen is not None
        if self.mechanism is not None and self._chosen != self.mechanism:
            self.state = SaslState.FAILED
            return None
        try:
            step = self._login.on_token(token)
            if isinstance(step, Authenticated) and self.user not in (None, step.user):
                raise AuthenticationFailed("Cannot change principals during re-authentication")
        except AuthenticationFailed as error:
            self.state = SaslState.FAILED
            message = str(error)
            if self.user is not None:
                message = message.replace("during authentication", "during re-authentication")
            return TokenReply(ErrorCode.SASL_AUTHENTICATION_FAILED, message, b"", 0)
        if isinstance(step, Challenge):
            return TokenReply(ErrorCode.NONE, "", step.token, 0)
        return self._complete(step, self._chosen, now_ms)

    def _complete(self, login: Authenticated, mechanism: str, now_ms: int) -> TokenReply:
        limits = [
            limit
            for limit in (
                self._mechanisms[mechanism].session_ms_max or None,
                None if login.expires_ms is None else login.expires_ms - now_ms,
            )
            if limit is not None
        ]
        lifetime_ms = max(0, min(limits)) if limits else 0
        self.state = SaslState.COMPLETE
        self.user = login.user
        self.mechanism = mechanism
        self.expires_ms = now_ms + lifetime_ms if limits else None
        self._login = None
        return TokenReply(ErrorCode.NONE, "", login.token, lifetime_ms)
