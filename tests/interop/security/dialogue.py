"""One secured broker of either kind that is asked, and its responses, written down to compare."""

import json
import re
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

import pytest

from klamm.config.jaas import PLAIN_MODULE, SCRAM_MODULE, format_jaas
from klamm.config.properties import format_properties
from klamm.local.certificates import CertificateAuthority
from klamm.net.sasl import ScramLogin
from klamm.net.scram import ScramMechanism, salted_password
from klamm.protocol.acls import (
    CLUSTER_NAME,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from klamm.protocol.apis import APIS
from klamm.protocol.apis import ApiKey as K
from klamm.protocol.codes import ErrorCode
from klamm.protocol.schema.fields import WireField, wire_fields
from klamm.protocol.schema.lookup import message_schema
from tests.interop.test_responses import CHANCE, plain
from tests.support.chroot import Chroot
from tests.support.kafka_process import kafka_command
from tests.support.mixed_cluster import Kind
from tests.support.node_process import NodeProcess
from tests.support.ports import free_port
from tests.support.raw import Raw, batch
from tests.support.tokens import TokenIssuer
from tests.support.waiting import wait_until

PATIENCE_S = 120.0
PASSWORDS = {
    name: f"{name}-secret" for name in ("admin", "broker", "alice", "bob", "carol", "dave", "erin")
}
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
REAUTH_MS = 3000
OAUTHBEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
VALIDATOR = (
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler"
)
#: Chance, or compared by tests of their own; which operations somebody may do is no chance here.
UNEQUAL = CHANCE - {
    "topic_authorized_operations",
    "cluster_authorized_operations",
    "authorized_operations",
}


class SecuredNode(NodeProcess):
    """A broker of either kind, whose settings hold backslashes and spaces."""

    patience_s = PATIENCE_S
    #: The jars of Apache Kafka; None for a broker of klamm.
    libs: Path | None = None

    def command(self, file: Path) -> list[str]:
        file.write_text(format_properties({k: str(v) for k, v in self.config.items()}))
        return super().command(file) if self.libs is None else kafka_command(self.libs, file)


class SecuredSolo(Chroot):
    """A cluster of one broker with a listener of each protocol and an authorizer."""

    def __init__(
        self, zookeeper: str, directory: Path, kind: Kind, libs: Path, tokens: TokenIssuer
    ) -> None:
        super().__init__(zookeeper, f"solo-{kind}")
        directory.mkdir()
        self.directory = directory
        self.kind = kind
        self.authority = CertificateAuthority()
        self.ca = directory / "ca.pem"
        self.ca.write_text(self.authority.certificate)
        self.store = directory / "broker.pem"
        self.store.write_text(self.authority.issue("broker", ("127.0.0.1", "localhost")).keystore)
        (directory / "jwks.json").write_text(json.dumps(tokens.key_set()))
        self.ports = {name: free_port() for name in PROTOCOLS}
        self.node = SecuredNode(1, directory / "node", self._settings())
        self.node.libs = libs if kind is Kind.KAFKA else None

    def _settings(self) -> dict[str, Any]:
        options = {"username": "broker", "password": PASSWORDS["broker"]}
        options |= {f"user_{user}": password for user, password in PASSWORDS.items()}
        jaas = {
            f"listener.name.{listener}.{mechanism}.sasl.jaas.config": line
            for listener in ("sasl_plaintext", "sasl_ssl")
            for mechanism, line in (
                ("plain", format_jaas(PLAIN_MODULE, options)),
                ("scram-sha-256", f"{SCRAM_MODULE} required;"),
                ("scram-sha-512", f"{SCRAM_MODULE} required;"),
                ("oauthbearer", f"{OAUTHBEARER_MODULE} required;"),
            )
        }
        handlers = {
            f"listener.name.{each}.oauthbearer.sasl.server.callback.handler.class": VALIDATOR
            for each in ("sasl_plaintext", "sasl_ssl")
        }
        return {
            "listeners": ",".join(
                f"{each}://127.0.0.1:{port}" for each, port in self.ports.items()
            ),
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "zookeeper.connect": self.address,
            "zookeeper.session.timeout.ms": 6000,
            "offsets.topic.num.partitions": 1,
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.num.partitions": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "log.cleaner.dedupe.buffer.size": 4_000_000,
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:admin;User:broker",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca,
            "listener.name.ssl.ssl.client.auth": "required",
            "listener.name.ssl.ssl.principal.mapping.rules": (
                r"RULE:^CN=([^,]+),OU=closed$/$1/L,RULE:^CN=([^,]+),OU=low$/low-$1/L"
                r",RULE:^CN=([^,]+),OU=up$/up-$1/U,RULE:^UID=.*$//,DEFAULT"
            ),
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_plaintext.scram-sha-256.connections.max.reauth.ms": REAUTH_MS,
            "sasl.oauthbearer.jwks.endpoint.url": f"file:{self.directory}/jwks.json",
            "sasl.oauthbearer.expected.issuer": "klamm-tests",
            "sasl.oauthbearer.expected.audience": "kafka",
            "password.encoder.secret": "encoder-secret",
            **jaas,
            **handlers,
        }

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        self.node.start()
        wait_until(self._serves, f"the broker serves:\n{self.node.log[-2000:]}", PATIENCE_S)

    def close(self) -> None:
        self.node.kill()
        super().close()

    def _serves(self) -> bool:
        assert self.node.is_running, self.node.log[-3000:]
        try:
            with self.talk("admin") as talk:
                return bool(talk.raw.metadata().controller_id == 1)
        except (OSError, EOFError):
            return False

    @contextmanager
    def raw(self, protocol: str, **more: Any) -> Iterator[Raw]:
        with Raw(self.ports[protocol], **more) as raw:
            yield raw

    @contextmanager
    def talk(
        self, user: str | None = None, protocol: str = "SASL_PLAINTEXT", **more: Any
    ) -> Iterator["Talk"]:
        """A connection on which nobody has logged in, or `user` with PLAIN."""
        with self.raw(protocol, **more) as raw:
            talk = Talk(raw)
            if user is not None:
                raw.ask(K.SASL_HANDSHAKE, 1, mechanism="PLAIN")
                token = f"\0{user}\0{PASSWORDS[user]}".encode()
                assert raw.ask(K.SASL_AUTHENTICATE, 1, auth_bytes=token).error_code == 0
            yield talk

    def tls(self, name: Any = None) -> ssl.SSLContext:
        """A context that trusts the broker, with a certificate of this subject if one is given."""
        context = ssl.create_default_context(cafile=str(self.ca))
        if name is not None:
            path = self.directory / "client.pem"
            path.write_text(self.authority.issue(name).keystore)
            context.load_cert_chain(path)
        return context

    def announce(self, entity: str, config: dict[str, Any]) -> None:
        """Write the dynamic settings of an entity, and tell the broker, as Kafka's tool would."""
        path, data = f"/config/{entity}", json.dumps(config).encode()
        if self.zk.exists(path):
            self.zk.set(path, data)
        else:
            self.zk.create(path, data, makepath=True)
        told = json.dumps({"version": 2, "entity_path": entity}).encode()
        self.zk.create("/config/changes/config_change_", told, sequence=True)

    # Permissions

    def put(
        self,
        user: str,
        operation: AclOperation,
        type_: ResourceType,
        name: str = CLUSTER_NAME,
        permission: AclPermission = AclPermission.ALLOW,
        pattern: PatternType = PatternType.LITERAL,
        host: str = "*",
    ) -> None:
        """Add an ACL; it counts when this returns."""
        acl = {
            "resource_type": type_,
            "resource_name": name,
            "resource_pattern_type": pattern,
            "principal": user if ":" in user else f"User:{user}",
            "host": host,
            "operation": operation,
            "permission_type": permission,
        }
        with self.talk("admin") as talk:
            (result,) = talk.raw.ask(K.CREATE_ACLS, 3, creations=[acl]).results
        assert result.error_code == 0, result

    def remove_acls(self, principal: str | None = None) -> None:
        every = {
            "resource_type_filter": ResourceType.ANY,
            "resource_name_filter": None,
            "pattern_type_filter": PatternType.ANY,
            "principal_filter": principal,
            "host_filter": None,
            "operation": AclOperation.ANY,
            "permission_type": AclPermission.ANY,
        }
        with self.talk("admin") as talk:
            talk.raw.ask(K.DELETE_ACLS, 3, filters=[every])

    def create_topic(self, name: str, partitions: int = 1) -> None:
        wanted = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        with self.talk("admin") as talk:
            body = {"topics": [wanted], "timeout": 10_000, "validate_only": False}
            (result,) = talk.raw.ask(K.CREATE_TOPICS, 4, **body).topics
            assert result.error_code == 0, result
            wait_until(
                lambda: (
                    [p.leader_id for p in talk.raw.metadata(name).topics[0].partitions]
                    == [1] * partitions
                ),
                f"{name} has leaders",
                PATIENCE_S,
            )


@dataclass
class Talk:
    """What is said on one connection, and what came of it."""

    raw: Raw

    def __post_init__(self) -> None:
        self.lines: list[str] = []

    def ask(self, api: K, version: int, /, *, note: str = "", **body: Any) -> Any:
        """Send a request and write the response down; None if the connection was closed."""
        asked = f"{api.name} {version} {note or shortened(body)}"
        try:
            response = self.raw.ask(api, version, **body)
        except (ConnectionError, EOFError):
            self.lines.append(f"{asked}: closed")
            return None
        except TimeoutError:
            self.lines.append(f"{asked}: no response")
            return None
        self.lines.append(f"{asked}: {without_request(plain(response, UNEQUAL))}")
        return response

    def token(self, token: bytes, version: int = 2, note: str = "") -> Any:
        return self.ask(K.SASL_AUTHENTICATE, version, auth_bytes=token, note=note)

    def bare(self, token: bytes) -> None:
        """Send a token as a bare frame and write down what comes back."""
        self.raw.socket.sendall(len(token).to_bytes(4) + token)
        try:
            self.lines.append(f"{token!r}: {self.raw.receive()!r}")
        except (ConnectionError, EOFError):
            self.lines.append(f"{token!r}: closed")

    def ends(self) -> None:
        """Write down whether the connection goes on."""
        try:
            self.raw.metadata()
        except (ConnectionError, EOFError):
            self.lines.append("closed")
        else:
            self.lines.append("goes on")

    def scram(self, user: str, password: str, mechanism: ScramMechanism, **more: Any) -> list[Any]:
        """Log in, without the handshake; the responses, of which only the codes are compared."""
        login = ScramLogin(mechanism, user, password, nonce="fixed", **more)
        found = []
        token = login.on_challenge(b"")
        for _ in range(2):
            try:
                response = self.raw.ask(K.SASL_AUTHENTICATE, 2, auth_bytes=token)
            except (ConnectionError, EOFError):
                self.lines.append(f"SCRAM of {user}: closed")
                break
            found.append(response)
            self.lines.append(f"SCRAM of {user}: {response.error_code} {response.error_message!r}")
            if response.error_code or bytes(response.auth_bytes).startswith(b"v="):
                break
            token = login.on_challenge(bytes(response.auth_bytes))
        return found


def without_request(value: Any) -> Any:
    """The same without what Kafka says about the request in an error message."""
    if isinstance(value, dict):
        return {key: without_request(each) for key, each in value.items()}
    if isinstance(value, list):
        return [without_request(each) for each in value]
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, str) and value.startswith("Request Request("):
        return ErrorCode.CLUSTER_AUTHORIZATION_FAILED.message
    if isinstance(value, str) and value.startswith("Unexpected Kafka request of type"):
        return ErrorCode.ILLEGAL_SASL_STATE.message
    return value


def shortened(body: Any) -> str:
    text = str(body)
    return text if len(text) < 300 else f"{text[:300]}..."


# Requests that say a little of everything

#: By field, what a request says; anything else is said by its type.
NAMES: dict[str, Any] = {
    "replica_id": -1,
    "replica_state": {"replica_id": -1, "replica_epoch": -1},
    "acks": -1,
    "timeout": 1000,
    "max_wait": 0,
    "num_partitions": 1,
    "replication_factor": 1,
    "assignments": [],
    "configs": [],
    "count": 3,
    "resource_type": int(ResourceType.TOPIC),
    "resource_type_filter": int(ResourceType.TOPIC),
    "resource_pattern_type": int(PatternType.LITERAL),
    "pattern_type_filter": int(PatternType.LITERAL),
    "operation": int(AclOperation.READ),
    "permission_type": int(AclPermission.ALLOW),
    "principal": "User:nobody",
    "principal_filter": "User:nobody",
    "host": "*",
    "host_filter": "*",
    "entity_type": "user",
    "match_type": 0,
    "match": "nobody",
    "key_type": 0,
    "mechanism": 1,
    "iterations": 4096,
    "isolation_level": 0,
    "current_leader_epoch": -1,
    "leader_epoch": 0,
    "last_fetched_epoch": -1,
    "log_start_offset": -1,
    "timestamp": -1,
    "session_id": 0,
    "session_epoch": -1,
    "session_timeout": 10_000,
    "rebalance_timeout": 10_000,
    "retention_time": -1,
    "protocol_type": "consumer",
    "transaction_timeout": 1000,
    "member_id": "",
    "group_instance_id": None,
    "forgotten_topics_data": [],
    "election_type": 0,
    "validate_only": True,
    "broker_id": 99,
    "broker_epoch": 0,
    "controller_id": 99,
    "controller_epoch": -1,
    "cluster_id": None,
    "client_software_name": "raw",
    "client_software_version": "1",
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": True,
    "include_cluster_authorized_operations": True,
    "include_authorized_operations": True,
    "endpoint_type": 1,
    "configuration_keys": None,
    "topic_id": None,
    "records": batch(b"x", timestamp=1),
    "states_filter": [],
    "types_filter": [],
    "state_filters": [],
    "producer_id_filters": [],
    "duration_filter": -1,
    "config_operation": 0,
    "strict": False,
    "remove": False,
    "max_version_level": 1,
    "upgrade_type": 1,
}
BY_TYPE: dict[str, Any] = {
    "bool": False,
    "string": "named",
    "bytes": b"",
    "records": None,
    "uuid": None,
    "float64": 1.0,
}


def sample(key: K, version: int, **changed: Any) -> dict[str, Any]:
    """A request that names one of everything."""
    return _sample(message_schema(key, version, "request"), changed)


def _sample(schema: Any, changed: dict[str, Any]) -> dict[str, Any]:
    return {each.name: _value(each, changed) for each in wire_fields(schema) if not each.is_tagged}


def _value(each: WireField, changed: dict[str, Any]) -> Any:
    if each.name in changed:
        return changed[each.name]
    if each.name in NAMES and (NAMES[each.name] is None) <= each.is_nullable:
        return NAMES[each.name]
    if each.struct_type is not None:
        one: Any = _sample(each.struct_type, changed)
    else:
        one = BY_TYPE.get(each.kafka_type, 0)
    return [one] if each.is_array else one


def versions(skipped: Iterable[K] = ()) -> list[tuple[K, int]]:
    """Every version of every API that is decoded, apart from those skipped."""
    return [
        (K(key), version)
        for key, api in APIS.items()
        if key not in skipped
        for version in range(api.first_decoded, api.max_version + 1)
    ]


Both = dict[Kind, SecuredSolo]
Dialogue = Callable[[SecuredSolo], list[str]]
SASL = (K.API_VERSIONS, K.SASL_HANDSHAKE, K.SASL_AUTHENTICATE)


def agree(both: Both, dialogue: Dialogue) -> None:
    """Hold the same dialogue with both, and compare them line by line."""
    heard = {kind: dialogue(cluster) for kind, cluster in both.items()}
    differences = [
        f"  kafka: {kafka}\n  klamm: {klamm}"
        for kafka, klamm in zip_longest(heard[Kind.KAFKA], heard[Kind.KLAMM])
        if kafka != klamm
    ]
    if differences:
        pytest.fail("\n".join(differences), pytrace=False)
    assert heard[Kind.KLAMM], "nothing was asked"


def handshake(talk: Talk, mechanism: str = "PLAIN", version: int = 1) -> Any:
    return talk.ask(K.SASL_HANDSHAKE, version, mechanism=mechanism)


def plain_token(user: str, password: str | None = None, authzid: str = "") -> bytes:
    return f"{authzid}\0{user}\0{PASSWORDS[user] if password is None else password}".encode()


def upsertion(
    user: str, mechanism: int, password: str = "pw", iterations: int = 4096, salt: bytes = b"salt"
) -> dict[str, Any]:
    known = mechanism in ScramMechanism._value2member_map_
    kind = ScramMechanism(mechanism) if known else ScramMechanism.SCRAM_SHA_256
    return {
        "name": user,
        "mechanism": mechanism,
        "iterations": iterations,
        "salt": salt,
        "salted_password": salted_password(kind, password, salt, max(iterations, 1)),
    }


def exists(cluster: SecuredSolo, topic: str) -> bool:
    with cluster.talk("admin") as talk:
        return bool(talk.raw.metadata(topic).topics[0].error_code == 0)


def alter_broker(
    cluster: SecuredSolo, settings: dict[str, str | None], lines: list[str], broker: str = "1"
) -> int:
    configs = [
        {"name": key, "value": value, "config_operation": 1 if value is None else 0}
        for key, value in settings.items()
    ]
    with cluster.talk("admin") as talk:
        response = talk.raw.ask(
            K.INCREMENTAL_ALTER_CONFIGS,
            1,
            resources=[{"resource_type": 4, "resource_name": broker, "configs": configs}],
            validate_only=False,
        )
    code = int(response.responses[0].error_code)
    shown = {k: None if v is None else re.sub(r"/\S+/", "", str(v)) for k, v in settings.items()}
    lines.append(f"{shown}: {code}")
    return code
