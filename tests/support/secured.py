"""One broker with a listener of each security protocol, its users and its certificates.

`admin` is a super user, `broker` the broker's own; everybody else needs ACLs. Connections between
brokers, and those of the controller, go over SASL_SSL.
"""

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from klamm.client import acls, users
from klamm.client.admin import Admin
from klamm.config.client_properties import ClientSecurity
from klamm.config.jaas import PLAIN_MODULE, SCRAM_MODULE, format_jaas
from klamm.local.certificates import CertificateAuthority
from klamm.net.scram import SCRAM_MECHANISMS
from klamm.net.secure import SecureClient
from klamm.protocol.acls import (
    AccessControlEntry,
    AclBinding,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from klamm.protocol.apis import ApiKey
from klamm.zookeeper.server import ZooKeeperServer
from tests.support.cluster import RealCluster
from tests.support.ports import free_port
from tests.support.raw import Raw
from tests.support.tokens import TokenIssuer
from tests.support.waiting import wait_until

#: No log, error or page may show any of these.
PLANTED = {"admin": "planted-admin-pw", "broker": "planted-broker-pw", "alice": "planted-alice-pw"}
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
REAUTH_MS = 1500


class SecuredBroker:
    """A cluster of one broker, and what clients need to reach each of its listeners."""

    def __init__(self, zookeeper: ZooKeeperServer, directory: Path) -> None:
        self.directory = directory
        self.authority = CertificateAuthority()
        self.ca = self._write("ca.pem", self.authority.certificate)
        hosts = ("127.0.0.1", "localhost")
        self.keystore = self._write("broker.pem", self.authority.issue("broker", hosts).keystore)
        self._tokens = TokenIssuer()
        self.token = self._tokens.token
        self._write("jwks.json", json.dumps(self._tokens.key_set()))
        self.ports = {name: free_port() for name in PROTOCOLS}
        self.cluster = RealCluster(zookeeper, directory, brokers=1, settings=self._settings())
        self.cluster[1].port = self.ports["PLAINTEXT"]

    def __enter__(self) -> "SecuredBroker":
        self.cluster.__enter__()
        for user, mechanism in (
            ("alice", "SCRAM-SHA-256"),
            ("alice", "SCRAM-SHA-512"),
            ("admin", "SCRAM-SHA-256"),
            ("admin", "SCRAM-SHA-512"),
        ):
            with self.admin() as admin:
                users.add(admin, user, PLANTED[user], SCRAM_MECHANISMS[mechanism])
        return self

    def close(self) -> None:
        self.cluster.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def log(self) -> str:
        return self.cluster[1].log

    def _write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(text)
        return path

    def _settings(self) -> dict[str, str]:
        listeners = ",".join(f"{each}://127.0.0.1:{port}" for each, port in self.ports.items())
        jaas = {
            "username": "broker",
            "password": PLANTED["broker"],
            **{f"user_{user}": password for user, password in PLANTED.items()},
        }
        plain = format_jaas(PLAIN_MODULE, jaas)
        return {
            "listeners": listeners,
            "inter.broker.listener.name": "SASL_SSL",
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:admin;User:broker",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(self.keystore),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "listener.name.ssl.ssl.client.auth": "required",
            "ssl.principal.mapping.rules": "RULE:^CN=([^,]+),OU=users$/$1/L,RULE:^CN=(admin)$/$1/",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": plain,
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": plain,
            "listener.name.sasl_plaintext.scram-sha-256.connections.max.reauth.ms": str(REAUTH_MS),
            "sasl.oauthbearer.jwks.endpoint.url": f"file:{self.directory}/jwks.json",
            "sasl.oauthbearer.expected.issuer": "klamm-tests",
            "sasl.oauthbearer.expected.audience": "kafka",
        }

    # Clients

    def properties(
        self, protocol: str, user: str = "admin", mechanism: str = "PLAIN"
    ) -> dict[str, str]:
        """Client properties of a user."""
        found = {"security.protocol": protocol}
        if protocol.endswith("SSL"):
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self.ca)}
        if protocol == "SSL":
            store = self._write(f"user-{user}.pem", self.authority.issue(user).keystore)
            found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(store)}
        if protocol.startswith("SASL"):
            module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
            options = {"username": user, "password": PLANTED[user]}
            found |= {"sasl.mechanism": mechanism, "sasl.jaas.config": format_jaas(module, options)}
        return found

    def security(
        self, protocol: str, user: str = "admin", mechanism: str = "PLAIN"
    ) -> ClientSecurity:
        return ClientSecurity.from_properties(self.properties(protocol, user, mechanism))

    def bootstrap(self, protocol: str) -> str:
        return f"127.0.0.1:{self.ports[protocol]}"

    @contextmanager
    def admin(
        self, protocol: str = "SASL_SSL", user: str = "admin", mechanism: str = "PLAIN"
    ) -> Iterator[Admin]:
        security = self.security(protocol, user, mechanism)
        with Admin(self.bootstrap(protocol), security=security) as admin:
            yield admin

    @contextmanager
    def raw(self, user: str, protocol: str = "SASL_PLAINTEXT") -> Iterator[Raw]:
        """A raw connection that has logged in."""
        with Raw(self.ports[protocol]) as raw:
            steps = SecureClient(self.security(protocol, user)).login()
            try:
                api, version, values = next(steps)
                while True:
                    api, version, values = steps.send(raw.ask(api, version, **values))
            except StopIteration:
                pass
            yield raw

    def tls(self, certificate: Any = None) -> ssl.SSLContext:
        """A context that trusts the broker, with a client's certificate if one is given."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if certificate is not None:
            path = self._write("client.pem", certificate.keystore)
            context.load_cert_chain(path)
        return context

    # Permissions

    def allow(
        self, user: str, operation: AclOperation, type_: ResourceType, name: str
    ) -> AclBinding:
        return self.put(user, operation, type_, name, AclPermission.ALLOW)

    def put(
        self,
        user: str,
        operation: AclOperation,
        type_: ResourceType,
        name: str,
        permission: AclPermission,
        pattern: PatternType = PatternType.LITERAL,
    ) -> AclBinding:
        binding = AclBinding(
            ResourcePattern(type_, name, pattern),
            AccessControlEntry(f"User:{user}", "*", operation, permission),
        )
        with self.admin() as admin:
            acls.add(admin, [binding])
        return binding

    def create_topic(self, name: str) -> str:
        with self.admin() as admin:
            from klamm.client import topics

            topics.create(admin, topics.NewTopic(name, 1, 1))
            wait_until(
                lambda: admin.metadata([name]).topics[0].error_code == 0, f"{name} has a leader"
            )
        return name


def log_in(raw: Raw, mechanism: str, *tokens: bytes) -> Any:
    """Handshake and tokens; the last response."""
    assert raw.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism=mechanism).error_code == 0
    response = None
    for token in tokens:
        response = raw.ask(ApiKey.SASL_AUTHENTICATE, 1, auth_bytes=token)
    return response


def plain(user: str, password: str | None = None) -> bytes:
    return f"\0{user}\0{PLANTED[user] if password is None else password}".encode()
