"""librdkafka's clients: a client's security in its spelling, and its records as JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from klamm.config.client_properties import ClientSecurity, SaslClientSettings
from klamm.config.security import MECHANISMS, OAUTHBEARER, StoreSettings, TlsSettings
from klamm.errors import ConfigError
from klamm.net.sasl import read_token
from klamm.net.tls import read_key_pair, read_trusted


def librdkafka_settings(security: ClientSecurity) -> dict[str, Any]:
    """The settings that confluent-kafka's clients take."""
    settings: dict[str, Any] = {"security.protocol": security.protocol.lower()}
    if security.tls is not None:
        settings |= _tls(security.tls)
    if security.sasl is not None:
        settings |= _sasl(security.sasl)
    return settings


def _tls(tls: TlsSettings) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "ssl.endpoint.identification.algorithm": "https" if tls.check_hostname else "none"
    }
    if tls.truststore is not None:
        settings["ssl.ca.pem"] = read_trusted(tls.truststore)
    if tls.keystore is not None:
        pair = read_key_pair(tls.keystore)
        settings |= {"ssl.certificate.pem": pair.chain, "ssl.key.pem": pair.key}
        if pair.key_password is not None:
            settings["ssl.key.password"] = pair.key_password
    return settings


def _sasl(sasl: SaslClientSettings) -> dict[str, Any]:
    settings: dict[str, Any] = {"sasl.mechanism": sasl.mechanism}
    if sasl.mechanism == OAUTHBEARER:
        settings["oauth_cb"] = lambda _: _token_with_expiry(sasl)
    else:
        settings |= {"sasl.username": sasl.username, "sasl.password": sasl.password}
    return settings


def _token_with_expiry(sasl: SaslClientSettings) -> tuple[str, float]:
    token = read_token(sasl)
    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return token, float(claims["exp"])


#: What `security_from_librdkafka` understands.
SECURITY_SETTINGS = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.ca.pem",
        "ssl.certificate.location",
        "ssl.certificate.pem",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
        "ssl.key.pem",
        "ssl.keystore.location",
        "ssl.keystore.password",
    }
)


def security_from_librdkafka(settings: Mapping[str, str]) -> ClientSecurity | None:
    """klamm's security from librdkafka's settings; None if klamm does not support them."""
    protocol = settings.get("security.protocol", "plaintext").upper()
    tls = sasl = None
    if protocol.endswith("SSL"):
        tls = _tls_from(settings)
    if protocol.startswith("SASL"):
        mechanism = settings.get("sasl.mechanism", settings.get("sasl.mechanisms", "GSSAPI"))
        user, password = settings.get("sasl.username"), settings.get("sasl.password")
        if mechanism not in MECHANISMS or mechanism == OAUTHBEARER or not user or password is None:
            return None
        sasl = SaslClientSettings(mechanism, user, password)
    return ClientSecurity(protocol, tls, sasl)


def _tls_from(settings: Mapping[str, str]) -> TlsSettings:
    keystore = truststore = None
    ca = settings.get("ssl.ca.pem")
    if ca is not None:
        truststore = StoreSettings("PEM", certificates=ca)
    elif "ssl.ca.location" in settings:
        truststore = StoreSettings("PEM", settings["ssl.ca.location"])
    key = _text_of(settings, "ssl.key")
    chain = _text_of(settings, "ssl.certificate")
    if key is not None and chain is not None:
        password = settings.get("ssl.key.password")
        keystore = StoreSettings("PEM", key=key, certificates=chain, key_password=password)
    elif "ssl.keystore.location" in settings:
        keystore = StoreSettings(
            "PKCS12", settings["ssl.keystore.location"], settings.get("ssl.keystore.password")
        )
    check = settings.get("ssl.endpoint.identification.algorithm", "https") == "https"
    return TlsSettings(keystore, truststore, check_hostname=check)


def _text_of(settings: Mapping[str, str], key: str) -> str | None:
    """PEM text that stands in a setting or in the file that a setting names."""
    text = settings.get(f"{key}.pem")
    location = settings.get(f"{key}.location")
    if text is not None or location is None:
        return text
    try:
        return Path(location).read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{key}.location: {location} cannot be read: {error.strerror}") from error


def record_as_json(message: Any) -> dict[str, Any]:
    """A record as `klamm consume --json` prints it; bytes that are not UTF-8 are in base64."""
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": message.timestamp()[1],
        "key": _text(message.key()),
        "value": _text(message.value()),
        "headers": [[name, _text(value)] for name, value in message.headers() or []],
    }


def _text(data: bytes | None) -> str | None:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(data).decode()
