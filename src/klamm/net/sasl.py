"""The client's half of SASL: PLAIN, SCRAM and OAUTHBEARER as machines without a socket.

`start_login` gives the machine for a client's settings. Its first message is asked for with an
empty challenge; the server's challenges go in, the client's messages come out.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
import secrets
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Final, Protocol

from klamm.config.client_properties import SaslClientSettings
from klamm.errors import ConfigError, KlammError, UnavailableError
from klamm.net.scram import (
    ITERATIONS_MIN,
    SCRAM_MECHANISMS,
    ScramMechanism,
    credential_of,
    digest,
    encode_name,
    mac,
    salted_password,
    xor,
)

_TOKEN_BYTES_MAX: Final = 64 * 1024
_TOKEN_TIMEOUT_S: Final = 10
#: A server that asks for more would keep the client busy for its own ends.
_ITERATIONS_MAX: Final = 1_000_000


class LoginError(KlammError):
    """The login failed: the broker refused it, or the broker could not prove who it is."""


class Login(Protocol):
    """One login under way."""

    mechanism: str

    def on_challenge(self, challenge: bytes) -> bytes:
        """The client's next message; the first challenge is empty."""

    def check_complete(self, token: bytes) -> None:
        """Refuse the server's last token if it does not prove what the mechanism demands."""


def start_login(settings: SaslClientSettings) -> Login:
    """The machine that logs in as these settings say."""
    user, password = settings.username or "", settings.password or ""
    scram = SCRAM_MECHANISMS.get(settings.mechanism)
    if scram is not None:
        return ScramLogin(scram, user, password, nonce=secrets.token_urlsafe(24))
    if settings.mechanism == "PLAIN":
        return PlainLogin(user, password)
    return OAuthBearerLogin(read_token(settings))


class PlainLogin:
    """PLAIN (RFC 4616)."""

    mechanism = "PLAIN"

    def __init__(self, user: str, password: str) -> None:
        self._message = f"\0{user}\0{password}".encode()

    def on_challenge(self, challenge: bytes) -> bytes:
        return self._message

    def check_complete(self, token: bytes) -> None:
        """PLAIN proves nothing about the server."""


class ScramLogin:
    """SCRAM (RFC 5802) without channel binding; the server has to prove that it knows the user."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str, *, nonce: str) -> None:
        self.mechanism = mechanism.mechanism_name
        self._scram = mechanism
        self._password = password
        self._nonce = nonce
        self._first_bare = f"n={encode_name(user)},r={nonce}"
        self._is_begun = False
        self._signature: bytes | None = None

    def on_challenge(self, challenge: bytes) -> bytes:
        if not self._is_begun:
            self._is_begun = True
            return f"n,,{self._first_bare}".encode()
        if self._signature is not None:
            raise LoginError("SCRAM: the broker sent more challenges than the exchange has")
        return self._on_server_first(challenge.decode("utf-8", "replace"))

    def _on_server_first(self, text: str) -> bytes:
        try:
            fields = dict(part.split("=", 1) for part in text.split(","))
            nonce, iterations = fields["r"], int(fields["i"])
            salt = base64.b64decode(fields["s"], validate=True)
        except (ValueError, KeyError, binascii.Error):
            raise LoginError("SCRAM: the broker's first message cannot be read") from None
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise LoginError("SCRAM: the broker did not extend the client's nonce")
        if not ITERATIONS_MIN <= iterations <= _ITERATIONS_MAX:
            raise LoginError(
                f"SCRAM: the broker asks for {iterations} iterations; accepted are"
                f" {ITERATIONS_MIN} to {_ITERATIONS_MAX}"
            )
        salted = salted_password(self._scram, self._password, salt, iterations)
        credential = credential_of(self._scram, salted, salt, iterations)
        without_proof = f"c=biws,r={nonce}"
        message = f"{self._first_bare},{text},{without_proof}".encode()
        client_key = mac(self._scram, salted, b"Client Key")
        proof = xor(client_key, mac(self._scram, digest(self._scram, client_key), message))
        self._signature = mac(self._scram, credential.server_key, message)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check_complete(self, token: bytes) -> None:
        expected = b"v=" + base64.b64encode(self._signature or b"")
        if self._signature is None or not hmac.compare_digest(token.split(b",")[0], expected):
            raise LoginError("SCRAM: the broker's signature is wrong: it does not know the user")


class OAuthBearerLogin:
    """OAUTHBEARER (RFC 7628); a JSON status from the server is answered with 0x01."""

    mechanism = "OAUTHBEARER"

    def __init__(self, token: str) -> None:
        self._token = token

    def on_challenge(self, challenge: bytes) -> bytes:
        if challenge:
            return b"\x01"
        return f"n,,\x01auth=Bearer {self._token}\x01\x01".encode()

    def check_complete(self, token: bytes) -> None:
        """A bearer token proves nothing about the server."""


def read_token(settings: SaslClientSettings) -> str:
    """Get a bearer token from the file or the https endpoint that the settings name."""
    key = "sasl.oauthbearer.token.endpoint.url"
    url = settings.oauth.token_url
    if url is None:
        raise ConfigError(f"{key} has to be set for OAUTHBEARER: file:/path or https://...")
    if url.startswith("file:"):
        try:
            return Path(urllib.request.url2pathname(url[5:])).read_text().strip()
        except OSError as error:
            raise ConfigError(f"{key}: {url} cannot be read: {error.strerror}") from error
    if not url.startswith("https://"):
        raise ConfigError(f"{key}: {url} is neither file:/path nor https://...")
    return _ask_for_token(settings, url)


def _ask_for_token(settings: SaslClientSettings, url: str) -> str:
    """The client credentials grant of RFC 6749."""
    options = settings.jaas.options if settings.jaas is not None else {}
    client_id, secret = options.get("clientId"), options.get("clientSecret")
    if not client_id or not secret:
        raise ConfigError("sasl.jaas.config needs clientId and clientSecret for OAUTHBEARER")
    form = {"grant_type": "client_credentials"}
    if "scope" in options:
        form["scope"] = options["scope"]
    credentials = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
    request = urllib.request.Request(
        url,
        data=urllib.parse.urlencode(form).encode(),
        headers={"Authorization": f"Basic {credentials}", "Accept": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=_TOKEN_TIMEOUT_S) as response:
            token = json.loads(response.read(_TOKEN_BYTES_MAX))["access_token"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UnavailableError(f"{url} gave no token: {type(error).__name__}") from None
    return str(token)
