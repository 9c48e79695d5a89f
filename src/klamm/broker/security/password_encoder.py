"""Passwords in dynamic settings, encrypted as Kafka's brokers store them (SEC-20).

keyFactoryAlgorithm:PBKDF2WithHmacSHA512,cipherAlgorithm:AES/CBC/PKCS5Padding,keyLength:128,
salt:...,iterations:4096,encryptedPassword:...,initializationVector:...,passwordLength:12
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from klamm.config.broker import BrokerConfig
from klamm.config.broker_security import mechanism_key
from klamm.config.layers import key_of
from klamm.errors import ConfigError

_CIPHER: Final = "AES/CBC/PKCS5Padding"
_HASHES: Final = {
    "PBKDF2WithHmacSHA512": "sha512",
    "PBKDF2WithHmacSHA256": "sha256",
    "PBKDF2WithHmacSHA1": "sha1",
}
_SALT_BYTES: Final = 256
_ITERATIONS_MAX: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class PasswordEncoder:
    """Encrypts with `password.encoder.secret`; decrypts also what the old secret encrypted."""

    secret: str = field(repr=False)
    old_secret: str | None = field(default=None, repr=False)
    key_factory: str = "PBKDF2WithHmacSHA512"
    key_bits: int = 128
    iterations: int = 4096

    def __post_init__(self) -> None:
        if self.key_factory not in _HASHES:
            raise ConfigError(
                f"Invalid value {self.key_factory} for configuration"
                f" password.encoder.keyfactory.algorithm: klamm has {', '.join(_HASHES)}"
            )
        if self.key_bits not in (128, 192, 256):
            raise ConfigError(
                f"Invalid value {self.key_bits} for configuration password.encoder.key.length:"
                " AES has 128, 192 and 256"
            )

    def encode(self, password: str) -> str:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
        from cryptography.hazmat.primitives.padding import PKCS7

        salt, vector = os.urandom(_SALT_BYTES), os.urandom(16)
        plain = password.encode()
        key = _derive(self.secret, self.key_factory, salt, self.iterations, self.key_bits)
        padder = PKCS7(128).padder()
        encryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).encryptor()
        padded = padder.update(plain) + padder.finalize()
        fields = {
            "keyFactoryAlgorithm": self.key_factory,
            "cipherAlgorithm": _CIPHER,
            "keyLength": str(self.key_bits),
            "salt": base64.b64encode(salt).decode(),
            "iterations": str(self.iterations),
            "encryptedPassword": base64.b64encode(encryptor.update(padded)).decode(),
            "initializationVector": base64.b64encode(vector).decode(),
            "passwordLength": str(len(password)),
        }
        return ",".join(f"{name}:{value}" for name, value in fields.items())

    def decode(self, text: str) -> str:
        """The password; the error says nothing of what was stored."""
        for secret in (self.secret, self.old_secret):
            password = None if secret is None else _decoded(text, secret)
            if password is not None:
                return password
        raise ConfigError(
            "a stored password cannot be decrypted with password.encoder.secret or"
            " password.encoder.old.secret"
        )


def _decoded(text: str, secret: str) -> str | None:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.padding import PKCS7

    try:
        fields = dict(part.split(":", 1) for part in text.split(","))
        iterations = int(fields["iterations"])
        if fields["cipherAlgorithm"] != _CIPHER or not 1 <= iterations <= _ITERATIONS_MAX:
            return None
        salt, vector, encrypted = (
            base64.b64decode(fields[name], validate=True)
            for name in ("salt", "initializationVector", "encryptedPassword")
        )
        bits = int(fields["keyLength"])
        key = _derive(secret, fields["keyFactoryAlgorithm"], salt, iterations, bits)
        decryptor = Cipher(algorithms.AES(key), modes.CBC(vector)).decryptor()
        unpadder = PKCS7(128).unpadder()
        plain = unpadder.update(decryptor.update(encrypted) + decryptor.finalize())
        plain += unpadder.finalize()
        password = plain.decode()
        return password if len(password) == int(fields["passwordLength"]) else None
    except (ValueError, KeyError, binascii.Error):
        return None


def _derive(secret: str, key_factory: str, salt: bytes, iterations: int, bits: int) -> bytes:
    return hashlib.pbkdf2_hmac(
        _HASHES[key_factory], secret.encode(), salt, iterations, dklen=bits // 8
    )


# Settings in a broker's znode


def encoder_of(config: BrokerConfig) -> PasswordEncoder | None:
    """The encoder that a broker's configuration asks for, if it has a secret."""
    text = config.layers.text
    secret = text("password.encoder.secret")
    if secret is None:
        return None
    return PasswordEncoder(
        secret,
        text("password.encoder.old.secret"),
        text("password.encoder.keyfactory.algorithm") or "PBKDF2WithHmacSHA512",
        int(text("password.encoder.key.length") or 128),
        int(text("password.encoder.iterations") or 4096),
    )


def encode_settings(settings: Mapping[str, str], config: BrokerConfig) -> dict[str, str]:
    """The settings as a znode holds them: passwords encrypted."""
    encoder = encoder_of(config)
    if encoder is None and any(map(_is_password, settings)):
        raise ConfigError(
            "password.encoder.secret has to be set in server.properties before a password can be"
            " a dynamic setting"
        )
    return {
        name: encoder.encode(text) if encoder is not None and _is_password(name) else text
        for name, text in settings.items()
    }


def decode_settings(
    settings: Mapping[str, str], config: BrokerConfig
) -> tuple[dict[str, str], list[str]]:
    """The settings that a znode holds, and a sentence about each that cannot be decrypted."""
    encoder = encoder_of(config)
    readable: dict[str, str] = {}
    complaints: list[str] = []
    for name, text in settings.items():
        try:
            if not _is_password(name):
                readable[name] = text
            elif encoder is None:
                complaints.append(f"{name}: without password.encoder.secret it cannot be read")
            else:
                readable[name] = encoder.decode(text)
        except ConfigError as error:
            complaints.append(f"{name}: {error}")
    return readable, complaints


def _is_password(name: str) -> bool:
    key = key_of(name)
    of_mechanism = mechanism_key(name)
    return (key is not None and key.sensitive) or of_mechanism == "sasl.jaas.config"
