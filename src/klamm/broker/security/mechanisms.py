"""The server's half of the SASL mechanisms PLAIN, SCRAM and OAUTHBEARER (SEC-3, 4, 14).

Each mechanism is a machine for one login: a token of the client goes in, a challenge or the
authenticated user comes out, and `AuthenticationFailed` ends it. The message of a failure is fixed
per mechanism: it repeats nothing that the client sent and does not tell an unknown user from a
wrong password. Nonces, credentials and the verdict on bearer tokens come from the caller.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from klamm.net.scram import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
    decode_name,
    digest,
    mac,
    xor,
)

_NO_PASSWORD: Final = b"\0"
_NAME: Final = r"(?:[^=,\0]|=2C|=3D)+"
#: A client's first message without channel binding; extensions are ignored (RFC 5802).
_CLIENT_FIRST: Final = re.compile(
    rf"(?P<header>n,(?:a=(?P<authzid>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<name>{_NAME}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?P<extensions>(?:,[A-Za-z]+=[\x01-\x2b\x2d-\x7f]+)*))"
)


class AuthenticationFailed(Exception):
    """The login is refused; the message may be shown to the client."""


@dataclass(frozen=True, slots=True)
class Challenge:
    """The login goes on: the client has to answer this token."""

    token: bytes


@dataclass(frozen=True, slots=True)
class Authenticated:
    """The login succeeded; `expires_ms` is when the credential itself ends, if it does."""

    user: str
    token: bytes = b""
    expires_ms: int | None = None


Step: TypeAlias = Challenge | Authenticated


class Mechanism(Protocol):
    """One login under way."""

    def on_token(self, token: bytes) -> Step:
        """Take the client's next token."""


class PlainServer:
    """PLAIN (RFC 4616): `[authzid] NUL user NUL password` in one token."""

    MESSAGE: Final = "Authentication failed: Invalid username or password"

    def __init__(self, users: Mapping[str, str]) -> None:
        self._users = users

    def on_token(self, token: bytes) -> Step:
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise AuthenticationFailed(self.MESSAGE) from None
        if len(parts) != 3:
            raise AuthenticationFailed(self.MESSAGE)
        authzid, user, password = parts
        stored = self._users.get(user)
        # An unknown user costs the same comparison as a known one.
        is_equal = hmac.compare_digest(
            password.encode(), _NO_PASSWORD if stored is None else stored.encode()
        )
        if not user or not password or stored is None or not is_equal:
            raise AuthenticationFailed(self.MESSAGE)
        if authzid not in ("", user):
            raise AuthenticationFailed(self.MESSAGE)
        return Authenticated(user)


class ScramServer:
    """SCRAM without channel binding (RFC 5802)."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        credential: Callable[[str], ScramCredential | None],
        *,
        nonce: str,
        decoy_key: bytes,
    ) -> None:
        """`decoy_key` makes up the salts of users that do not exist, the same one every time."""
        self._mechanism = mechanism
        self._find = credential
        self._nonce = nonce
        self._decoy_key = decoy_key
        self._user: str | None = None
        self._credential: ScramCredential | None = None
        self._header = ""
        self._first_bare = ""
        self._server_first = ""
        self.message = (
            "Authentication failed during authentication due to invalid credentials with SASL"
            f" mechanism {mechanism.mechanism_name}"
        )

    def on_token(self, token: bytes) -> Step:
        try:
            text = token.decode()
        except UnicodeDecodeError:
            raise AuthenticationFailed(self.message) from None
        if self._user is None:
            return Challenge(self._on_client_first(text).encode())
        return self._on_client_final(text)

    def _on_client_first(self, text: str) -> str:
        found = _CLIENT_FIRST.fullmatch(text)
        if found is None:
            raise AuthenticationFailed(self.message)
        user = decode_name(found["name"])
        authzid = decode_name(found["authzid"] or "")
        # A delegation token would be another way to log in, and is not offered.
        if not user or "tokenauth=true" in found["extensions"].split(","):
            raise AuthenticationFailed(self.message)
        if authzid not in ("", user):
            raise AuthenticationFailed(self.message)
        self._user = user
        self._credential = self._find(user)
        self._header, self._first_bare = found["header"], found["bare"]
        self._nonce = found["nonce"] + self._nonce
        salt, iterations = self._salt(user)
        self._server_first = f"r={self._nonce},s={base64.b64encode(salt).decode()},i={iterations}"
        return self._server_first

    def _salt(self, user: str) -> tuple[bytes, int]:
        if self._credential is not None:
            if self._credential.iterations < ITERATIONS_MIN:
                raise AuthenticationFailed(self.message)
            return self._credential.salt, self._credential.iterations
        return mac(self._mechanism, self._decoy_key, user.encode())[:20], ITERATIONS_MIN

    def _on_client_final(self, text: str) -> Step:
        without_proof, _, proof_text = text.rpartition(",p=")
        fields = without_proof.split(",")
        header = base64.b64encode(self._header.encode()).decode()
        if len(fields) < 2 or fields[0] != f"c={header}" or fields[1] != f"r={self._nonce}":
            raise AuthenticationFailed(self.message)
        try:
            proof = base64.b64decode(proof_text, validate=True)
        except (binascii.Error, ValueError):
            raise AuthenticationFailed(self.message) from None
        credential = self._credential
        if credential is None or self._user is None or len(proof) != self._mechanism.key_bytes:
            raise AuthenticationFailed(self.message)
        message = f"{self._first_bare},{self._server_first},{without_proof}".encode()
        client_key = xor(proof, mac(self._mechanism, credential.stored_key, message))
        if not hmac.compare_digest(digest(self._mechanism, client_key), credential.stored_key):
            raise AuthenticationFailed(self.message)
        signature = mac(self._mechanism, credential.server_key, message)
        return Authenticated(self._user, b"v=" + base64.b64encode(signature))


_NO_BEARER: Final = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism"
    " OAUTHBEARER"
)


class TokenRefused(Exception):
    """A bearer token that is not believed; the reason is for the log and holds none of it."""


@dataclass(frozen=True, slots=True)
class TokenClaims:
    """The claims of a valid token: its principal and its expiry."""

    subject: str
    expires_ms: int


class OAuthBearerServer:
    """OAUTHBEARER (RFC 7628): a failure is told as JSON first, then the client says 0x01."""

    MESSAGE: Final = '{"status":"invalid_token"}'

    def __init__(self, validate: Callable[[str], TokenClaims]) -> None:
        self._validate = validate
        self._is_refused = False

    def on_token(self, token: bytes) -> Step:
        if self._is_refused:
            raise AuthenticationFailed(self.MESSAGE)
        authzid, bearer = _bearer_token(token)
        try:
            claims = self._validate(bearer)
        except TokenRefused:
            self._is_refused = True
            return Challenge(self.MESSAGE.encode())
        if authzid not in ("", claims.subject):
            raise AuthenticationFailed(self.MESSAGE)
        return Authenticated(claims.subject, expires_ms=claims.expires_ms)


def _bearer_token(message: bytes) -> tuple[str, str]:
    """Authorization id and bearer token of the client's first message.

    A message that is none fails at once: only a token that is not believed is told as JSON.
    """
    try:
        header, *pairs = message.decode().split("\x01")
    except UnicodeDecodeError:
        raise AuthenticationFailed(_NO_BEARER) from None
    if len(pairs) < 3 or pairs[-2:] != ["", ""]:
        raise AuthenticationFailed(_NO_BEARER)
    binding, _, rest = header.partition(",")
    authzid, comma, after = rest.partition(",")
    if binding != "n" or not comma or after or (authzid and not authzid.startswith("a=")):
        raise AuthenticationFailed(_NO_BEARER)
    found = [pair.removeprefix("auth=") for pair in pairs[:-2] if pair.startswith("auth=")]
    scheme, _, bearer = found[0].partition(" ") if len(found) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not bearer.strip():
        raise AuthenticationFailed(_NO_BEARER)
    name = decode_name(authzid[2:])
    if name is None:
        raise AuthenticationFailed(_NO_BEARER)
    return name, bearer.strip()
