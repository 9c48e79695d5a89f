"""SCRAM (RFC 5802): the arithmetic that client and server share, and a stored credential.

Kafka uses it without channel binding, with SHA-256 and SHA-512. The server needs two HMACs for a
login; the slow part, PBKDF2, is the client's.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from klamm.errors import ConfigError

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
_FIELDS: Final = ("salt", "stored_key", "server_key", "iterations")


class ScramMechanism(IntEnum):
    """The mechanisms, with the numbers that AlterUserScramCredentials gives them."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def mechanism_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        return self.name.removeprefix("SCRAM_").replace("_", "").lower()

    @property
    def key_bytes(self) -> int:
        return hashlib.new(self.hash_name).digest_size


SCRAM_MECHANISMS: Final = {each.mechanism_name: each for each in ScramMechanism}


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a broker stores of a user's password; the keys stay out of `repr`."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


def salted_password(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> bytes:
    """Hi() of RFC 5802; like Kafka, it takes the password's bytes as they are."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_of(
    mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """The credential that a salted password comes to."""
    return ScramCredential(
        salt=salt,
        stored_key=digest(mechanism, mac(mechanism, salted, b"Client Key")),
        server_key=mac(mechanism, salted, b"Server Key"),
        iterations=iterations,
    )


def format_credential(credential: ScramCredential) -> str:
    """The text that Kafka keeps in `/config/users/<user>` under the mechanism's name."""
    salt, stored_key, server_key = (
        base64.b64encode(each).decode()
        for each in (credential.salt, credential.stored_key, credential.server_key)
    )
    return (
        f"salt={salt},stored_key={stored_key},server_key={server_key}"
        f",iterations={credential.iterations}"
    )


def parse_credential(text: str) -> ScramCredential:
    """Read what a znode holds; the error says what is wrong and repeats nothing of the text."""
    parts = [part.partition("=") for part in text.split(",")]
    values = {name.strip(): value.strip() for name, _, value in parts}
    if len(parts) != len(_FIELDS) or set(values) != set(_FIELDS):
        raise ConfigError(f"a SCRAM credential has exactly the fields {', '.join(_FIELDS)}")
    try:
        return ScramCredential(
            salt=base64.b64decode(values["salt"], validate=True),
            stored_key=base64.b64decode(values["stored_key"], validate=True),
            server_key=base64.b64decode(values["server_key"], validate=True),
            iterations=int(values["iterations"]),
        )
    except (binascii.Error, ValueError):
        raise ConfigError(
            "the keys of a SCRAM credential are base64 and its iterations a number"
        ) from None


def digest(mechanism: ScramMechanism, data: bytes) -> bytes:
    """Hash data with the function of the mechanism."""
    return hashlib.new(mechanism.hash_name, data).digest()


def mac(mechanism: ScramMechanism, key: bytes, data: bytes) -> bytes:
    """The HMAC of data with the function of the mechanism."""
    return hmac.digest(key, data, mechanism.hash_name)


def xor(left: bytes, right: bytes) -> bytes:
    """The bitwise exclusive or of two byte strings."""
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def encode_name(name: str) -> str:
    """A user name as it stands in a message: `=` and `,` are escaped."""
    return name.replace("=", "=3D").replace(",", "=2C")


def decode_name(text: str) -> str | None:
    """The user name in a message, or None where an `=` is not part of `=2C` or `=3D`."""
    if "=" in text.replace("=2C", "").replace("=3D", ""):
        return None
    return text.replace("=2C", ",").replace("=3D", "=")
