"""Security in a broker's settings: its listeners, the channels between brokers, its promises.

A key that promises protection which klamm does not give refuses the start; a broker that ignored
it would serve everybody. Everything is read from the layers of the configuration, so a dynamic
change is seen by asking again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from klamm.config.broker_keys import KEYS
from klamm.config.client_properties import ClientSecurity, client_security
from klamm.config.endpoints import ListenerEndpoint
from klamm.config.jaas import JaasEntry
from klamm.config.layers import Layers, base_name
from klamm.config.security import (
    MECHANISMS,
    PLAIN,
    Lookup,
    OAuthSettings,
    TlsSettings,
    checked_mechanism,
    jaas_entry,
    oauth_settings,
    tls_settings,
)
from klamm.errors import ConfigError

ACL_AUTHORIZER: Final = "kafka.security.authorizer.AclAuthorizer"
_PRINCIPAL_BUILDER: Final = (
    "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder"
)
#: key: the only value besides none that klamm can keep its promise about.
_ONLY: Final = {
    "authorizer.class.name": ACL_AUTHORIZER,
    "principal.builder.class": _PRINCIPAL_BUILDER,
    "ssl.trustmanager.algorithm": "PKIX",
}
#: Keys that klamm does nothing for, and that would have to do something if they were set.
_NOT_OFFERED: Final = frozenset(
    {
        "client.quota.callback.class",
        "delegation.token.master.key",
        "delegation.token.secret.key",
        "sasl.client.callback.handler.class",
        "sasl.login.callback.handler.class",
        "sasl.login.class",
        "sasl.server.callback.handler.class",
        "security.providers",
        "ssl.engine.factory.class",
        "ssl.provider",
        "zookeeper.ssl.crl.enable",
        "zookeeper.ssl.ocsp.enable",
    }
)
#: Callback handlers of Kafka's own that do what klamm does anyway.
_KNOWN_HANDLERS: Final = frozenset(
    {
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
        "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
        "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
    }
)
_OFF: Final = frozenset({"", "none", "false"})
#: The authorizer's own keys, which are no keys of the broker's configuration in Kafka.
AUTHORIZER_KEYS: Final = frozenset({"allow.everyone.if.no.acl.found", "super.users"})
#: Keys of security that are read here, under their own names or a listener's.
SECURITY_KEYS: Final = frozenset(
    {
        "allow.everyone.if.no.acl.found",
        "authorizer.class.name",
        "connection.failed.authentication.delay.ms",
        "connections.max.reauth.ms",
        "principal.builder.class",
        "sasl.enabled.mechanisms",
        "sasl.jaas.config",
        "sasl.mechanism.inter.broker.protocol",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.sub.claim.name",
        "sasl.oauthbearer.token.endpoint.url",
        "sasl.server.max.receive.size",
        "ssl.allow.dn.changes",
        "ssl.allow.san.changes",
        "ssl.cipher.suites",
        "ssl.client.auth",
        "ssl.enabled.protocols",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.principal.mapping.rules",
        "ssl.protocol",
        "ssl.trustmanager.algorithm",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
        "super.users",
        "klamm.zookeeper.sasl.jaas.config",
        "zookeeper.clientCnxnSocket",
        "zookeeper.set.acl",
        "zookeeper.ssl.cipher.suites",
        "zookeeper.ssl.client.enable",
        "zookeeper.ssl.enabled.protocols",
        "zookeeper.ssl.endpoint.identification.algorithm",
        "zookeeper.ssl.keystore.location",
        "zookeeper.ssl.keystore.password",
        "zookeeper.ssl.keystore.type",
        "zookeeper.ssl.protocol",
        "zookeeper.ssl.truststore.location",
        "zookeeper.ssl.truststore.password",
        "zookeeper.ssl.truststore.type",
    }
)
#: How passwords among the dynamic settings are encrypted.
PASSWORD_ENCODER_KEYS: Final = frozenset(
    {
        "password.encoder.iterations",
        "password.encoder.key.length",
        "password.encoder.keyfactory.algorithm",
        "password.encoder.old.secret",
        "password.encoder.secret",
    }
)
ZOOKEEPER_JAAS: Final = "klamm.zookeeper.sasl.jaas.config"
_STORE_SUFFIXES: Final = {".pem": "PEM", ".p12": "PKCS12", ".pfx": "PKCS12", ".jks": "JKS"}


@dataclass(frozen=True, slots=True)
class MechanismSettings:
    """One SASL mechanism of one listener."""

    name: str
    jaas: JaasEntry | None
    oauth: OAuthSettings
    #: `connections.max.reauth.ms`; 0 for no limit.
    reauth_ms_max: int = 0
    #: PLAIN: the users with their passwords.
    users: dict[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class ListenerSecurity:
    """How a listener knows who connects."""

    tls: TlsSettings | None = None
    mechanisms: tuple[MechanismSettings, ...] = ()
    principal_mapping_rules: str = "DEFAULT"
    failed_delay_ms: int = 100
    receive_bytes_max: int = 524_288

    @property
    def uses_sasl(self) -> bool:
        return bool(self.mechanisms)


def check_promises(name: str, text: str) -> None:
    """Refuse a key that promises what klamm does not do."""
    base = _key_of_mechanism(base_name(name))
    value = text.strip()
    if value.lower() in _OFF or value in _KNOWN_HANDLERS:
        return
    only = _ONLY.get(base)
    if only is not None and value != only:
        raise ConfigError(f"{name} promises something that klamm does not do: it takes {only} only")
    if base in _NOT_OFFERED:
        raise ConfigError(
            f"{name} promises protection that klamm does not implement, and a broker that ignored"
            " it would serve everybody: remove the key"
        )


def _key_of_mechanism(base: str) -> str:
    """The key behind `<mechanism>.<key>`, which follows the prefix of a listener."""
    mechanism, _, rest = base.partition(".")
    return rest if mechanism.upper() in (*MECHANISMS, "GSSAPI") and rest in KEYS else base


def is_security_key(name: str) -> bool:
    """Whether a setting is one that this module reads."""
    return _key_of_mechanism(base_name(name)) in SECURITY_KEYS


def mechanism_key(name: str) -> str | None:
    """The key that `listener.name.<name>.<mechanism>.<key>` gives a value to."""
    base = base_name(name)
    key = _key_of_mechanism(base)
    return key if base != name and key != base else None


def listener_lookup(layers: Layers, listener: str) -> Lookup:
    """The settings in force for one listener."""
    prefix = f"listener.name.{listener.lower()}."

    def lookup(key: str) -> str | None:
        own = layers.text(prefix + key)
        return layers.text(key) if own is None else own

    return lookup


def listener_security(layers: Layers, endpoint: ListenerEndpoint) -> ListenerSecurity:
    """How the listener at `endpoint` knows who connects."""
    lookup = listener_lookup(layers, endpoint.name)
    tls = None
    if endpoint.protocol.endswith("SSL"):
        tls = tls_settings(_server_tls_lookup(layers, endpoint, lookup))
        if tls.keystore is None:
            raise ConfigError(
                f"The listener {endpoint} has the security protocol {endpoint.protocol}, so"
                " ssl.keystore.location or ssl.keystore.key has to be set"
            )
    mechanisms: tuple[MechanismSettings, ...] = ()
    if endpoint.protocol.startswith("SASL"):
        names = (lookup("sasl.enabled.mechanisms") or "").split(",")
        mechanisms = tuple(
            _mechanism(layers, endpoint.name, name.strip(), lookup)
            for name in names
            if name.strip()
        )
        if not mechanisms:
            raise ConfigError(f"sasl.enabled.mechanisms names no mechanism for {endpoint}")
    return ListenerSecurity(
        tls,
        mechanisms,
        lookup("ssl.principal.mapping.rules") or "DEFAULT",
        int(lookup("connection.failed.authentication.delay.ms") or 0),
        int(lookup("sasl.server.max.receive.size") or 524_288),
    )


def _server_tls_lookup(layers: Layers, endpoint: ListenerEndpoint, lookup: Lookup) -> Lookup:
    """On SASL_SSL, `ssl.client.auth` counts only with the listener's prefix (SEC-6)."""
    if not endpoint.protocol.startswith("SASL"):
        return lookup
    prefixed = f"listener.name.{endpoint.name.lower()}.ssl.client.auth"
    return lambda key: layers.text(prefixed) if key == "ssl.client.auth" else lookup(key)


def _mechanism(layers: Layers, listener: str, name: str, lookup: Lookup) -> MechanismSettings:
    checked_mechanism(name, "sasl.enabled.mechanisms")
    prefix = f"listener.name.{listener.lower()}.{name.lower()}."

    def of_mechanism(key: str) -> str | None:
        own = layers.text(prefix + key)
        return lookup(key) if own is None else own

    jaas = jaas_entry(layers.text(f"{prefix}sasl.jaas.config"), f"{prefix}sasl.jaas.config")
    if jaas is None and name == PLAIN:
        raise ConfigError(
            f"{prefix}sasl.jaas.config has to be set: it holds the users of the mechanism PLAIN"
        )
    reauth_ms = of_mechanism("connections.max.reauth.ms")
    return MechanismSettings(
        name,
        jaas,
        oauth_settings(of_mechanism),
        int(reauth_ms or 0),
        jaas.users if jaas is not None and name == PLAIN else {},
    )


def channel_security(layers: Layers, endpoint: ListenerEndpoint) -> ClientSecurity:
    """How this broker connects to that listener of the other brokers (SEC-18)."""
    lookup = listener_lookup(layers, endpoint.name)
    mechanism = (lookup("sasl.mechanism.inter.broker.protocol") or "").strip()
    jaas_key = f"listener.name.{endpoint.name.lower()}.{mechanism.lower()}.sasl.jaas.config"
    if endpoint.protocol.startswith("SASL"):
        enabled = [each.name for each in listener_security(layers, endpoint).mechanisms]
        if mechanism not in enabled:
            raise ConfigError(
                f"sasl.mechanism.inter.broker.protocol is {mechanism}, which has to be one of"
                f" sasl.enabled.mechanisms of the listener {endpoint.name}: {', '.join(enabled)}"
            )
    return client_security(
        endpoint.protocol,
        mechanism,
        lookup,
        layers.text(jaas_key),
        mechanism_key="sasl.mechanism.inter.broker.protocol",
        jaas_key=jaas_key,
    )


def zookeeper_tls(layers: Layers) -> TlsSettings | None:
    """How this broker connects to ZooKeeper; None without TLS (SEC-12)."""

    def is_on(key: str) -> bool:
        return (layers.text(key) or "").strip().lower() == "true"

    def lookup(key: str) -> str | None:
        text = layers.text(f"zookeeper.{key}")
        if text is None and key.endswith("store.type"):
            # ZooKeeper's client tells the type of a store by the name of its file.
            location = layers.text(f"zookeeper.{key.removesuffix('type')}location") or ""
            return _STORE_SUFFIXES.get(PurePath(location).suffix.lower())
        if key == "ssl.enabled.protocols" and text is None:
            is_set = layers.is_set("zookeeper.ssl.protocol")
            return layers.text("zookeeper.ssl.protocol") if is_set else None
        return None if key == "ssl.protocol" else text

    tls = tls_settings(lookup) if is_on("zookeeper.ssl.client.enable") else None
    has_identity = zookeeper_login(layers) is not None or (tls is not None and tls.keystore)
    if is_on("zookeeper.set.acl") and not has_identity:
        raise ConfigError(
            "zookeeper.set.acl is true, so this broker has to authenticate to ZooKeeper: set"
            " zookeeper.ssl.client.enable and zookeeper.ssl.keystore.location, or"
            f" {ZOOKEEPER_JAAS}"
        )
    return tls


def zookeeper_login(layers: Layers) -> tuple[str, str] | None:
    """User and password for DIGEST-MD5 towards ZooKeeper; None without a login.

    Kafka has them in the file that `java.security.auth.login.config` names, in the entry Client.
    """
    entry = jaas_entry(layers.text(ZOOKEEPER_JAAS), ZOOKEEPER_JAAS)
    if entry is None:
        return None
    username, password = entry.options.get("username"), entry.options.get("password")
    if not username or not password:
        raise ConfigError(f"{ZOOKEEPER_JAAS} needs username and password")
    return username, password
