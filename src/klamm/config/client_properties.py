"""Client properties in Kafka's format: how a client reaches a secured cluster.

    security.protocol=SASL_SSL
    sasl.mechanism=SCRAM-SHA-512
    sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
        username="alice" password="alice-secret";
    ssl.truststore.type=PEM
    ssl.truststore.location=ca.pem

The same record also describes how a broker reaches other brokers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from klamm.config.endpoints import PROTOCOLS
from klamm.config.jaas import JaasEntry
from klamm.config.properties import read_properties
from klamm.config.security import (
    OAUTHBEARER,
    Lookup,
    OAuthSettings,
    TlsSettings,
    checked_mechanism,
    jaas_entry,
    oauth_settings,
    tls_settings,
)
from klamm.errors import ConfigError

_DEFAULTS: Final = {"ssl.endpoint.identification.algorithm": "https"}


@dataclass(frozen=True, slots=True)
class SaslClientSettings:
    """How a client logs in."""

    mechanism: str
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    #: OAUTHBEARER: a file that holds the token, or the endpoint and secret that give one.
    jaas: JaasEntry | None = None
    oauth: OAuthSettings = field(default_factory=OAuthSettings)


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """How a client speaks to a cluster: `security.protocol` and what it needs."""

    protocol: str = "PLAINTEXT"
    tls: TlsSettings | None = None
    sasl: SaslClientSettings | None = None

    @classmethod
    def load(cls, path: Path) -> ClientSecurity:
        """Read a file of client properties, as `--command-config` names it."""
        return cls.from_properties(read_properties(path))

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> ClientSecurity:
        """Read the keys that concern security; the others are left to those that know them."""

        def lookup(key: str) -> str | None:
            return properties.get(key, _DEFAULTS.get(key))

        protocol = (lookup("security.protocol") or "PLAINTEXT").strip().upper()
        mechanism = (lookup("sasl.mechanism") or "GSSAPI").strip()
        return client_security(protocol, mechanism, lookup, lookup("sasl.jaas.config"))


PLAINTEXT: Final = ClientSecurity()


def client_security(
    protocol: str,
    mechanism: str,
    lookup: Lookup,
    jaas_text: str | None,
    *,
    mechanism_key: str = "sasl.mechanism",
    jaas_key: str = "sasl.jaas.config",
) -> ClientSecurity:
    """Put together what a connection of this protocol needs, and refuse what lacks a part."""
    if protocol not in PROTOCOLS:
        raise ConfigError(
            f"Invalid value {protocol} for configuration security.protocol:"
            f" it has to be one of {', '.join(PROTOCOLS)}"
        )
    tls = tls_settings(lookup) if protocol.endswith("SSL") else None
    if not protocol.startswith("SASL"):
        return ClientSecurity(protocol, tls)
    checked_mechanism(mechanism, mechanism_key)
    jaas = jaas_entry(jaas_text, jaas_key)
    if jaas is None:
        raise ConfigError(f"{jaas_key} has to be set for the mechanism {mechanism}")
    username, password = jaas.options.get("username"), jaas.options.get("password")
    if mechanism != OAUTHBEARER and (not username or password is None):
        raise ConfigError(f"{jaas_key} needs username and password for the mechanism {mechanism}")
    sasl = SaslClientSettings(mechanism, username, password, jaas, oauth_settings(lookup))
    return ClientSecurity(protocol, tls, sasl)
