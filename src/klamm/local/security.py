"""A secured cluster on this machine: its authority, its users, and what clients need of them.

Everything is made when the cluster is, and kept beside its data, readable for its owner alone.
`admin` is a super user; everybody else needs ACLs.
"""

from __future__ import annotations

import json
import os
import secrets
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from klamm.config.client_properties import ClientSecurity
from klamm.config.jaas import PLAIN_MODULE, SCRAM_MODULE, format_jaas
from klamm.errors import ConfigError
from klamm.local.network import HOST
from klamm.net.tls import client_context
from klamm.zookeeper.server import ZooKeeperTls

if TYPE_CHECKING:
    from klamm.local.certificates import CertificateAuthority

ADMIN: Final = "admin"
_BROKER: Final = "klamm-broker"
#: What `Cluster(security=...)` takes, with the security protocol of the listeners.
KINDS: Final = {"ssl": "SSL", "sasl_plaintext": "SASL_PLAINTEXT", "sasl_ssl": "SASL_SSL"}
_MECHANISM: Final = "SCRAM-SHA-512"
_HOSTS: Final = (HOST, "localhost", "::1")


class LocalSecurity:
    """Certificates and passwords of one cluster."""

    def __init__(self, kind: str, directory: Path) -> None:
        if kind not in KINDS:
            raise ConfigError(f"security={kind!r} is not one of {', '.join(KINDS)}")
        self.protocol = KINDS[kind]
        self._directory = directory
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._passwords = self._load_passwords()
        self._authority = self._load_authority()

    # Files

    def _load_passwords(self) -> dict[str, str]:
        path = self._directory / "passwords.json"
        if path.exists():
            loaded: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
            return loaded
        return {}

    def password(self, user: str) -> str:
        """The password of a user, made when it is first asked for."""
        if user not in self._passwords:
            self._passwords[user] = secrets.token_urlsafe(18)
            path = self._directory / "passwords.json"
            write_private(path, json.dumps(self._passwords, indent=2))
        return self._passwords[user]

    def _load_authority(self) -> CertificateAuthority | None:
        if not self.protocol.endswith("SSL"):
            return None
        from klamm.local.certificates import CertificateAuthority

        path = self._directory / "authority.pem"
        authority = CertificateAuthority.load(path) if path.exists() else CertificateAuthority()
        if not path.exists():
            write_private(path, authority.keystore)
            write_private(self._directory / "ca.pem", authority.certificate)
        return authority

    @property
    def _ca(self) -> Path:
        return self._directory / "ca.pem"

    def keystore(self, name: str) -> Path:
        """The PEM key store of a user or a broker, made when it is first asked for."""
        assert self._authority is not None
        path = self._directory / f"{name}.pem"
        if not path.exists():
            hosts = _HOSTS if name == _BROKER else ()
            write_private(path, self._authority.issue(name, hosts).keystore)
        return path

    # Brokers

    def broker_settings(self, listener: str) -> dict[str, str]:
        """What `server.properties` needs, besides the listeners themselves."""
        prefix = f"listener.name.{listener.lower()}."
        settings = {
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": f"User:{ADMIN};User:{_BROKER}",
            "inter.broker.listener.name": listener,
        }
        if self._authority is not None:
            settings |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.keystore(_BROKER)),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self._ca),
            }
        if self.protocol == "SSL":
            settings |= {
                "ssl.client.auth": "required",
                "ssl.principal.mapping.rules": "RULE:^CN=([^,]+).*$/$1/,DEFAULT",
            }
        else:
            options = {
                "username": _BROKER,
                "password": self.password(_BROKER),
                f"user_{_BROKER}": self.password(_BROKER),
                f"user_{ADMIN}": self.password(ADMIN),
            }
            settings |= {
                "sasl.enabled.mechanisms": f"PLAIN,SCRAM-SHA-256,{_MECHANISM}",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                f"{prefix}plain.sasl.jaas.config": format_jaas(PLAIN_MODULE, options),
            }
        return settings

    # Clients

    def admin_security(self) -> ClientSecurity:
        """How klamm itself reaches the cluster, before any user exists in ZooKeeper."""
        return ClientSecurity.from_properties(self.properties(ADMIN, "PLAIN"))

    def properties(self, user: str, mechanism: str = _MECHANISM) -> dict[str, str]:
        """Client properties in Kafka's own spelling."""
        found = {"security.protocol": self.protocol}
        if self._authority is not None:
            found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(self._ca)}
        if self.protocol == "SSL":
            found |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(self.keystore(user)),
            }
        else:
            module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
            options = {"username": user, "password": self.password(user)}
            found |= {
                "sasl.mechanism": mechanism,
                "sasl.jaas.config": format_jaas(module, options),
            }
        return found

    def client_config(
        self, client: str, bootstrap: str, user: str, mechanism: str
    ) -> dict[str, Any]:
        """What one client library needs, in its own spelling."""
        make = _SPELLINGS.get(client)
        if make is None:
            raise ConfigError(f"{client!r} is not one of {', '.join(_SPELLINGS)}")
        return make(self, bootstrap, user, mechanism)

    def _confluent(self, bootstrap: str, user: str, mechanism: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "security.protocol": self.protocol,
        }
        if self._authority is not None:
            found["ssl.ca.location"] = str(self._ca)
        if self.protocol == "SSL":
            store = str(self.keystore(user))
            found |= {"ssl.certificate.location": store, "ssl.key.location": store}
        else:
            found |= {
                "sasl.mechanism": mechanism,
                "sasl.username": user,
                "sasl.password": self.password(user),
            }
        return found

    def _kafka_python(self, bootstrap: str, user: str, mechanism: str) -> dict[str, Any]:
        found = self._python_names(bootstrap, user, mechanism)
        if self._authority is not None:
            found["ssl_cafile"] = str(self._ca)
        if self.protocol == "SSL":
            store = str(self.keystore(user))
            found |= {"ssl_certfile": store, "ssl_keyfile": store}
        return found

    def _aiokafka(self, bootstrap: str, user: str, mechanism: str) -> dict[str, Any]:
        found = self._python_names(bootstrap, user, mechanism)
        if self._authority is not None:
            found["ssl_context"] = self.ssl_context(user)
        return found

    def _python_names(self, bootstrap: str, user: str, mechanism: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "bootstrap_servers": bootstrap.split(","),
            "security_protocol": self.protocol,
        }
        if self.protocol != "SSL":
            found |= {
                "sasl_mechanism": mechanism,
                "sasl_plain_username": user,
                "sasl_plain_password": self.password(user),
            }
        return found

    def ssl_context(self, user: str) -> ssl.SSLContext:
        """The TLS context of a user's connections."""
        tls = ClientSecurity.from_properties(self.properties(user)).tls
        assert tls is not None
        return client_context(tls)

    def _java(self, bootstrap: str, user: str, mechanism: str) -> dict[str, Any]:
        return {"bootstrap.servers": bootstrap, **self.properties(user, mechanism)}

    def _spark(self, bootstrap: str, user: str, mechanism: str) -> dict[str, Any]:
        java = self._java(bootstrap, user, mechanism)
        return {f"kafka.{key}": value for key, value in java.items()}


_SPELLINGS: Final[Mapping[str, Callable[[LocalSecurity, str, str, str], dict[str, Any]]]] = {
    "confluent-kafka": LocalSecurity._confluent,
    "kafka-python": LocalSecurity._kafka_python,
    "aiokafka": LocalSecurity._aiokafka,
    "java": LocalSecurity._java,
    "spark": LocalSecurity._spark,
}


def write_private(path: Path, text: str) -> Path:
    """Write a file that only its owner can read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def zookeeper_stores(directory: Path) -> ZooKeeperTls:
    """The certificates of a ZooKeeper server and of its clients, made where they are missing."""
    from klamm.local.certificates import CertificateAuthority

    directory = directory.absolute()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    stores = ZooKeeperTls(directory / "zookeeper.pem", directory / "ca.pem")
    if not stores.keystore.exists():
        authority = CertificateAuthority("klamm local ZooKeeper authority")
        write_private(stores.truststore, authority.certificate)
        write_private(stores.keystore, authority.issue("zookeeper", _HOSTS).keystore)
    return stores


def plaintext_config(client: str, bootstrap: str) -> dict[str, Any]:
    """The same for a cluster without security."""
    if client not in _SPELLINGS:
        raise ConfigError(f"{client!r} is not one of {', '.join(_SPELLINGS)}")
    if client in ("kafka-python", "aiokafka"):
        return {"bootstrap_servers": bootstrap.split(",")}
    return {("kafka." if client == "spark" else "") + "bootstrap.servers": bootstrap}
