"""Settings of TLS and SASL, under the same keys for listeners, channels between brokers, clients.

A listener's own value stands under `listener.name.<lower case>.<key>`, that of one of its SASL
mechanisms under `listener.name.<lower case>.<mechanism>.<key>`. Nothing is opened here. Passwords
and keys stay out of `repr`, so that no log can show them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from klamm.config.jaas import JaasEntry, parse_jaas
from klamm.errors import ConfigError

#: The text in force for a key, or None if it has neither a value nor a default.
Lookup: TypeAlias = Callable[[str], str | None]

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
#: The environment variable in which an operator lists the URLs that configurations may name for
#: keys and tokens, as Kafka's system property org.apache.kafka.sasl.oauthbearer.allowed.urls does.
ALLOWED_URLS: Final = "KLAMM_SASL_OAUTHBEARER_ALLOWED_URLS"
#: What klamm offers; GSSAPI needs a Kerberos library and is not offered.
MECHANISMS: Final = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512", OAUTHBEARER)
#: Classes of Kafka and of ZooKeeper, in any package: some vendors ship them under a prefix.
_LOGIN_MODULES: Final = re.compile(r"([\w$]+\.)*(Plain|Scram|OAuthBearer|Digest)LoginModule")
TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
STORE_TYPES: Final = ("PEM", "PKCS12", "JKS")


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """A key store or trust store: a file of some type, or PEM text in the setting itself."""

    type: str
    location: str | None = None
    password: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    certificates: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """The settings of a TLS context."""

    keystore: StoreSettings | None
    truststore: StoreSettings | None
    versions: tuple[str, ...] = TLS_VERSIONS
    #: Java's names; empty for the defaults.
    cipher_suites: tuple[str, ...] = ()
    #: `ssl.client.auth`: none, requested or required; for servers.
    client_auth: str = "none"
    #: Whether the server's certificate has to name the host; for clients.
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class OAuthSettings:
    """The source of bearer tokens, or the keys that verify them."""

    jwks_url: str | None = None
    issuer: str | None = None
    audiences: tuple[str, ...] = ()
    clock_skew_s: int = 30
    subject_claim: str = "sub"
    jwks_refresh_ms: int = 3_600_000
    token_url: str | None = None


def tls_settings(lookup: Lookup) -> TlsSettings:
    """Read the `ssl.*` keys."""
    versions = _listed(lookup("ssl.enabled.protocols")) or TLS_VERSIONS
    for version in versions:
        if version not in TLS_VERSIONS:
            raise ConfigError(
                f"Invalid value {version} for configuration ssl.enabled.protocols:"
                f" klamm speaks {' and '.join(TLS_VERSIONS)}"
            )
    protocol = (lookup("ssl.protocol") or "TLSv1.3").strip()
    if protocol not in ("TLS", *TLS_VERSIONS):
        raise ConfigError(
            f"Invalid value {protocol} for configuration ssl.protocol:"
            f" it has to be {' or '.join(TLS_VERSIONS)}"
        )
    if protocol == "TLSv1.2":
        versions = tuple(version for version in versions if version == protocol)
        if not versions:
            raise ConfigError("ssl.protocol=TLSv1.2 leaves nothing of ssl.enabled.protocols")
    algorithm = (lookup("ssl.endpoint.identification.algorithm") or "").strip().lower()
    if algorithm not in ("", "https"):
        raise ConfigError(
            f"Invalid value {algorithm} for configuration ssl.endpoint.identification.algorithm:"
            " it has to be https, or empty to trust any host name"
        )
    return TlsSettings(
        keystore=_keystore(lookup),
        truststore=_truststore(lookup),
        versions=versions,
        cipher_suites=_listed(lookup("ssl.cipher.suites")),
        client_auth=(lookup("ssl.client.auth") or "none").strip(),
        check_hostname=algorithm == "https",
    )


def _keystore(lookup: Lookup) -> StoreSettings | None:
    key, chain = lookup("ssl.keystore.key"), lookup("ssl.keystore.certificate.chain")
    location = _text(lookup("ssl.keystore.location"))
    type_ = _store_type(lookup, "ssl.keystore.type")
    if key is None and chain is None and location is None:
        return None
    if location is not None and (key is not None or chain is not None):
        raise ConfigError("Only one of ssl.keystore.location and ssl.keystore.key should be set.")
    if location is None:
        if type_ != "PEM":
            raise ConfigError("ssl.keystore.key is PEM text and needs ssl.keystore.type=PEM")
        if key is None or chain is None:
            raise ConfigError(
                "ssl.keystore.key and ssl.keystore.certificate.chain belong together:"
                " one of them is missing"
            )
    return StoreSettings(
        type_,
        location,
        password=lookup("ssl.keystore.password"),
        key_password=lookup("ssl.key.password"),
        certificates=chain,
        key=key,
    )


def _truststore(lookup: Lookup) -> StoreSettings | None:
    certificates = lookup("ssl.truststore.certificates")
    location = _text(lookup("ssl.truststore.location"))
    type_ = _store_type(lookup, "ssl.truststore.type")
    if certificates is None and location is None:
        return None
    if certificates is not None and location is not None:
        raise ConfigError(
            "Only one of ssl.truststore.location and ssl.truststore.certificates should be set."
        )
    if certificates is not None and type_ != "PEM":
        raise ConfigError(
            "ssl.truststore.certificates is PEM text and needs ssl.truststore.type=PEM"
        )
    return StoreSettings(
        type_, location, password=lookup("ssl.truststore.password"), certificates=certificates
    )


def _store_type(lookup: Lookup, key: str) -> str:
    type_ = (lookup(key) or "JKS").strip().upper()
    if type_ not in STORE_TYPES:
        raise ConfigError(
            f"Invalid value {type_} for configuration {key}: klamm reads PEM and PKCS12"
        )
    return type_


def oauth_settings(lookup: Lookup) -> OAuthSettings:
    """Read the `sasl.oauthbearer.*` keys."""
    url = _text(lookup("sasl.oauthbearer.jwks.endpoint.url"))
    token_url = _text(lookup("sasl.oauthbearer.token.endpoint.url"))
    _check_allowed(url, "sasl.oauthbearer.jwks.endpoint.url")
    _check_allowed(token_url, "sasl.oauthbearer.token.endpoint.url")
    if url is not None and not url.startswith(("https://", "file:")):
        raise ConfigError(
            f"Invalid value {url} for configuration sasl.oauthbearer.jwks.endpoint.url: keys come"
            " over https, or from a file named file:/path"
        )
    return OAuthSettings(
        jwks_url=url,
        issuer=_text(lookup("sasl.oauthbearer.expected.issuer")),
        audiences=_listed(lookup("sasl.oauthbearer.expected.audience")),
        clock_skew_s=int(lookup("sasl.oauthbearer.clock.skew.seconds") or 30),
        subject_claim=lookup("sasl.oauthbearer.sub.claim.name") or "sub",
        jwks_refresh_ms=int(lookup("sasl.oauthbearer.jwks.endpoint.refresh.ms") or 3_600_000),
        token_url=token_url,
    )


def _check_allowed(url: str | None, key: str) -> None:
    """Refuse a URL that is not on the list of `ALLOWED_URLS`, if there is one (CVE-2025-27817)."""
    allowed = os.environ.get(ALLOWED_URLS)
    if url is not None and allowed is not None and url not in _listed(allowed):
        raise ConfigError(
            f"Invalid value {url} for configuration {key}: it is not among those that"
            f" {ALLOWED_URLS} allows: {allowed or 'none'}"
        )


def checked_mechanism(name: str, key: str) -> str:
    """The mechanism `name`, refused with what klamm offers if klamm does not have it."""
    if name not in MECHANISMS:
        raise ConfigError(
            f"Invalid value {name} for configuration {key}:"
            f" klamm offers {', '.join(MECHANISMS)}, and not GSSAPI"
        )
    return name


def jaas_entry(text: str | None, key: str) -> JaasEntry | None:
    """The login module of `key`; one that is not Kafka's or ZooKeeper's own is refused.

    Nothing of the kind is loaded here, so another module would promise what klamm does not do, and
    some (JNDI, LDAP) fetch what a configuration names (CVE-2023-25194, CVE-2025-27818).
    """
    if text is None:
        return None
    entry = parse_jaas(text, key)
    if _LOGIN_MODULES.fullmatch(entry.module) is None:
        raise ConfigError(
            f"{key} names the login module {entry.module}: klamm has only the PlainLoginModule,"
            " ScramLoginModule and OAuthBearerLoginModule of Kafka, and ZooKeeper's"
            " DigestLoginModule"
        )
    return entry


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(item.strip() for item in (text or "").split(",") if item.strip())


def _text(text: str | None) -> str | None:
    return (text or "").strip() or None
