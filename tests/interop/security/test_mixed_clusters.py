"""A secured cluster of a klamm broker and one of Apache Kafka, which share users and ACLs."""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, Producer

from klamm.client import acls, topics, users
from klamm.client.admin import Admin
from klamm.config.client_properties import ClientSecurity
from klamm.config.jaas import PLAIN_MODULE, SCRAM_MODULE, format_jaas
from klamm.config.properties import format_properties
from klamm.errors import KlammError
from klamm.local.certificates import CertificateAuthority
from klamm.net.librdkafka import librdkafka_settings
from klamm.net.sasl import LoginError
from klamm.net.scram import ScramMechanism
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
from klamm.protocol.codes import KafkaError
from klamm.zookeeper.server import ZooKeeperServer
from tests.console.conftest import start_console
from tests.interop.security.dialogue import PATIENCE_S, SecuredNode
from tests.support.chroot import Chroot
from tests.support.command_line import Result, run_here
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

KLAMM, KAFKA = 1, 2
PASSWORDS = {"admin": "admin-secret", "broker": "broker-secret", "alice": "alice-secret"}


class SecuredPair(Chroot):
    """Broker 1 is klamm's, broker 2 Apache Kafka's."""

    def __init__(self, zookeeper: str, directory: Path, libs: Path) -> None:
        super().__init__(zookeeper, directory.name)
        authority = CertificateAuthority()
        self.ca = directory / "ca.pem"
        self.ca.write_text(authority.certificate)
        store = directory / "broker.pem"
        store.write_text(authority.issue("broker", ("127.0.0.1", "localhost")).keystore)
        options = {"username": "broker", "password": PASSWORDS["broker"]}
        options |= {f"user_{user}": PASSWORDS[user] for user in ("admin", "broker")}
        scram = f"{SCRAM_MODULE} required;"
        self.nodes: dict[int, SecuredNode] = {}
        for broker in (KLAMM, KAFKA):
            node = self.nodes[broker] = SecuredNode(broker, directory / str(broker), {})
            node.libs = libs if broker == KAFKA else None
            node.config |= {
                "listeners": f"SASL_SSL://127.0.0.1:{node.port}",
                "inter.broker.listener.name": "SASL_SSL",
                "zookeeper.connect": self.address,
                "zookeeper.session.timeout.ms": 6000,
                "offsets.topic.num.partitions": 1,
                "offsets.topic.replication.factor": 2,
                "transaction.state.log.num.partitions": 1,
                "transaction.state.log.replication.factor": 2,
                "transaction.state.log.min.isr": 1,
                "klamm.history.topic": "__klamm_history",
                "group.initial.rebalance.delay.ms": 0,
                "log.cleaner.dedupe.buffer.size": 4_000_000,
                "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
                "super.users": "User:admin;User:broker",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": store,
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": self.ca,
                "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "listener.name.sasl_ssl.plain.sasl.jaas.config": format_jaas(PLAIN_MODULE, options),
                **{
                    f"listener.name.sasl_ssl.scram-sha-{bits}.sasl.jaas.config": scram
                    for bits in (256, 512)
                },
            }

    def __enter__(self) -> "SecuredPair":
        for node in self.nodes.values():
            node.start()
        wait_until(lambda: self.registered() == {KLAMM, KAFKA}, "both register", PATIENCE_S)
        for broker in self.nodes:
            wait_until(lambda broker=broker: self._knows_all(broker), "both know", PATIENCE_S)
        return self

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
        super().close()

    def _knows_all(self, broker: int) -> bool:
        try:
            with self.admin(broker) as admin:
                response = admin.metadata([])
        except KlammError:
            return False
        return len(response.brokers) == 2 and response.controller_id > 0

    def security(self, user: str, mechanism: str) -> ClientSecurity:
        return ClientSecurity.from_properties(self.properties(user, mechanism))

    def properties(self, user: str, mechanism: str) -> dict[str, str]:
        module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
        options = {"username": user, "password": PASSWORDS[user]}
        return {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.ca),
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": format_jaas(module, options),
        }

    def admin(self, broker: int, user: str = "admin", mechanism: str = "PLAIN") -> Admin:
        address = self.nodes[broker].address
        return Admin(address, security=self.security(user, mechanism), timeout_s=10)


@pytest.fixture(scope="module")
def pair(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory, kafka_libs: Path
) -> Iterator[SecuredPair]:
    directory = tmp_path_factory.mktemp("pair")
    with SecuredPair(zookeeper_server.address, directory, kafka_libs) as started:
        yield started


@pytest.mark.rule("SEC-18")
def test_brokers_of_both_kinds_replicate_over_sasl_ssl(pair):
    with pair.admin(KLAMM) as admin:
        topics.create(admin, topics.NewTopic("replicated", 4, 2))

        def all_in_sync() -> bool:
            found = admin.metadata(["replicated"]).topics[0].partitions
            return len(found) == 4 and all(len(each.isr_nodes) == 2 for each in found)

        wait_until(all_in_sync, "every replica is in sync", PATIENCE_S)
    config = librdkafka_settings(pair.security("admin", "PLAIN"))
    config["bootstrap.servers"] = pair.nodes[KLAMM].address
    errors: list[object] = []
    producer = Producer({**config, "acks": "all"})
    for number in range(200):
        producer.produce("replicated", str(number), on_delivery=lambda e, _: errors.append(e))
    assert producer.flush(60) == 0
    assert errors == [None] * 200
    consumer = Consumer({**config, "group.id": "both", "auto.offset.reset": "earliest"})
    consumer.subscribe(["replicated"])
    try:
        assert len(consumer.consume(200, timeout=60)) == 200
    finally:
        consumer.close()


@pytest.mark.rule("SEC-4", "SEC-4a")
@pytest.mark.parametrize("mechanism", ScramMechanism)
def test_a_user_made_at_either_is_known_to_both(pair, mechanism):
    with pair.admin(KLAMM) as admin:
        users.add(admin, "alice", PASSWORDS["alice"], mechanism)

    def may_log_in(broker: int) -> bool:
        try:
            with pair.admin(broker, "alice", mechanism.mechanism_name) as admin:
                admin.metadata([])
        except LoginError:
            return False
        return True

    for broker in pair.nodes:
        wait_until(lambda broker=broker: may_log_in(broker), "alice logs in", PATIENCE_S)
    with pair.admin(KLAMM) as admin:
        users.remove(admin, "alice", mechanism)
    for broker in pair.nodes:
        wait_until(lambda broker=broker: not may_log_in(broker), "alice is gone", PATIENCE_S)


@pytest.fixture(scope="module")
def command_config(pair: SecuredPair) -> Path:
    """Client properties of the administrator, as Kafka's own tools read them."""
    path = pair.ca.with_name("admin.properties")
    path.write_text(format_properties(pair.properties("admin", "PLAIN")))
    return path


#: Commands in an order in which each finds what it needs; a name in capitals is filled in.
COMMANDS = (
    "topics create told --partitions 2 --replication-factor 2",
    "topics list --json",
    "topics describe told",
    "topics alter told --partitions 3",
    "brokers list",
    "brokers describe 2",
    "controller show",
    "configs alter --topic told --set retention.ms=3600000",
    "configs describe --topic told",
    "produce told",
    "produce told --transactional-id teller",
    "consume told --exit --group tellers",
    "groups list",
    "groups describe tellers",
    "groups reset-offsets tellers --topic told --to-earliest",
    "groups delete tellers",
    "transactions list",
    "transactions describe teller",
    "transactions hanging --topic told",
    "acls add --principal User:alice --operation Read --topic told",
    "acls list",
    "acls explain --principal User:alice --operation Read --topic told",
    "acls remove --principal User:alice --operation Read --topic told",
    "users add carol --password-file PASSWORD",
    "users list",
    "users remove carol",
    "quotas set --user carol producer_byte_rate=1048576",
    "quotas list",
    "quotas remove --user carol producer_byte_rate",
    "reassign generate --topics told --brokers 1,2",
    "reassign execute PLAN",
    "reassign verify PLAN",
    "reassign cancel PLAN",
    "reassign list",
    "elect preferred --all",
    "controller move 1 --attempts 60",
    "controller move 1 --attempts 60 --zookeeper ZOOKEEPER",
    "story told-0",
    "snapshot --bootstrap-server BOOTSTRAP --out OUT/by-brokers",
    "snapshot --zookeeper ZOOKEEPER --out OUT/by-zookeeper",
    "history --out OUT/history",
    "ingest told --to parquet:OUT/lake",
    "topics delete told",
)


@pytest.mark.parametrize("broker", [KLAMM, KAFKA])
def test_every_command_speaks_to_a_secured_cluster(
    pair: SecuredPair, command_config: Path, tmp_path: Path, broker: int
):
    address = pair.nodes[broker].address
    plan, password = tmp_path / "plan.json", tmp_path / "password"
    password.write_text("carol-secret")
    names = {
        "PLAN": str(plan),
        "PASSWORD": str(password),
        "ZOOKEEPER": pair.address,
        "BOOTSTRAP": address,
        "OUT": str(tmp_path),
    }
    given = ("--command-config", str(command_config))
    for line in COMMANDS:
        words = [re.sub(r"[A-Z]{3,}", lambda w: names.get(w[0], w[0]), w) for w in line.split()]
        ran = wait_until(
            lambda words=words: _passed(run_here(*words, *given, bootstrap=address, stdin=b"a\n")),
            line,
            PATIENCE_S,
        )
        if words[:2] == ["reassign", "generate"]:
            plan.write_text(ran.out)
    for source in ("by-brokers", "by-zookeeper"):
        sizes = pq.read_table(tmp_path / source / "partitions")["bytes"].to_pylist()
        assert any(sizes), "no broker told its sizes"


def _passed(ran: Result) -> Result | None:
    """What a command has printed; a cluster that just changed may need another attempt."""
    print(ran.err)
    return ran if ran.code == 0 else None


@pytest.mark.parametrize("broker", [KLAMM, KAFKA])
def test_the_console_adds_explains_and_removes_acls(
    pair: SecuredPair, command_config: Path, tmp_path: Path, broker: int
):
    address = pair.nodes[broker].address
    given = ("--command-config", str(command_config))
    console = start_console(
        *("--bootstrap-server", address, *given, "--allow-changes"),
        *("--state-dir", str(tmp_path / "state")),
        log=tmp_path / "console.log",
    )
    acl = {
        "principal": f"User:watched-{broker}",
        "permission": "Deny",
        "operation": "Write",
        "resource_type": "Topic",
        "name": "orders",
        "pattern": "Literal",
        "host": "*",
    }
    try:
        assert console.get("/api/security")["authorizer"]
        console.post("/api/acls/add", acl)
        console.wait("/api/acls", lambda found: acl in found)
        said = run_here("acls", "list", "--json", *given, bootstrap=address).json()
        assert console.get("/api/acls") == said
        asked = f"principal={acl['principal']}&operation=Write&topic=orders"
        assert not console.get(f"/api/acls/explain?{asked}")["allowed"]
        console.post("/api/acls/remove", acl)
        console.wait("/api/acls", lambda found: acl not in found)
    finally:
        assert console.end() == 0


@pytest.mark.rule("SEC-7", "SEC-8")
@pytest.mark.parametrize("maker", [KLAMM, KAFKA])
@pytest.mark.parametrize("pattern", [PatternType.LITERAL, PatternType.PREFIXED])
def test_an_acl_made_at_one_is_obeyed_by_the_other(pair, maker, pattern):
    topic = f"shared-{maker}-{pattern.name.lower()}"
    with pair.admin(KLAMM) as admin:
        topics.create(admin, topics.NewTopic(topic, 1, 2))
        users.add(admin, "alice", PASSWORDS["alice"], ScramMechanism.SCRAM_SHA_256)

    def may_describe(broker: int) -> bool:
        try:
            with pair.admin(broker, "alice", "SCRAM-SHA-256") as admin:
                answer = admin.metadata_of(broker, [topic])
        except (LoginError, KafkaError):
            return False
        return bool(answer.topics[0].error_code == 0)

    binding = AclBinding(
        ResourcePattern(ResourceType.TOPIC, topic, pattern),
        AccessControlEntry("User:alice", "*", AclOperation.READ, AclPermission.ALLOW),
    )
    creation = {
        "resource_type": binding.pattern.type,
        "resource_name": topic,
        "resource_pattern_type": pattern,
        "principal": "User:alice",
        "host": "*",
        "operation": AclOperation.READ,
        "permission_type": AclPermission.ALLOW,
    }
    with pair.admin(maker) as admin:
        response = admin.ask_broker(maker, ApiKey.CREATE_ACLS, {"creations": [creation]})
        assert response.results[0].error_code == 0
        for broker in pair.nodes:
            wait_until(lambda broker=broker: may_describe(broker), "the ACL counts", PATIENCE_S)
        assert binding in acls.describe(admin)
        filters = {
            "resource_type_filter": ResourceType.TOPIC,
            "resource_name_filter": topic,
            "pattern_type_filter": pattern,
            "principal_filter": None,
            "host_filter": None,
            "operation": AclOperation.ANY,
            "permission_type": AclPermission.ANY,
        }
        admin.ask_broker(maker, ApiKey.DELETE_ACLS, {"filters": [filters]})
        for broker in pair.nodes:
            wait_until(
                lambda broker=broker: not may_describe(broker), "the ACL is gone", PATIENCE_S
            )
