"""Brokers of both kinds give the same ACLs to the same znodes, and refuse the same settings."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from klamm.config.jaas import PLAIN_MODULE, format_jaas
from klamm.local.security import zookeeper_stores
from klamm.protocol.apis import ApiKey as K
from klamm.zookeeper.server import ZooKeeperServer, ZooKeeperTls
from tests.interop.security.dialogue import PATIENCE_S, SecuredNode
from tests.support.mixed_cluster import Kind
from tests.support.raw import Raw
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> ZooKeeperTls:
    return zookeeper_stores(tmp_path_factory.mktemp("stores"))


@pytest.fixture
def kazoo(stores: ZooKeeperTls) -> Iterator[KazooClient]:
    with ZooKeeperServer(tls=stores) as server:
        client = KazooClient(
            server.address,
            use_ssl=True,
            ca=str(stores.truststore),
            certfile=str(stores.keystore),
            keyfile=str(stores.keystore),
        )
        client.start(30)
        yield client
        client.stop()
        client.close()


def _node(kind: Kind, directory: Path, libs: Path, config: dict[str, Any]) -> SecuredNode:
    node = SecuredNode(1, directory / kind, config)
    node.libs = libs if kind is Kind.KAFKA else None
    return node


@pytest.mark.rule("SEC-12")
def test_znodes_have_the_same_acls(
    kazoo: KazooClient, stores: ZooKeeperTls, kafka_libs: Path, tmp_path: Path
):
    found = {}
    given = dict(line.split("=", 1) for line in stores.broker_settings())
    address = kazoo.hosts[0]
    for kind in Kind:
        connect = f"{address[0]}:{address[1]}/{kind}"
        config = {**given, "zookeeper.connect": connect, "zookeeper.set.acl": "true"}
        config |= {
            "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
            "super.users": "User:ANONYMOUS",
            "log.cleaner.dedupe.buffer.size": 4_000_000,
        }
        node = _node(kind, tmp_path, kafka_libs, config).start()
        try:
            wait_until(lambda node=node: _serves(node), "the broker serves", PATIENCE_S)
            _fill(node)
            found[kind] = dict(_permissions(kazoo, f"/{kind}"))
        finally:
            node.kill()
    kafka, klamm = found[Kind.KAFKA], found[Kind.KLAMM]
    both = kafka.keys() & klamm.keys()
    assert len(both) > 30
    assert {path: klamm[path] for path in both} == {path: kafka[path] for path in both}
    only_kafkas = {path for path in kafka.keys() - klamm.keys() if "delegation" not in path}
    assert only_kafkas == set()


def _serves(node: SecuredNode) -> bool:
    assert node.is_running, node.log[-3000:]
    try:
        with Raw(node.port) as raw:
            return bool(raw.metadata().controller_id == 1)
    except OSError:
        return False


def _fill(node: SecuredNode) -> None:
    """A topic with a setting, an ACL of each kind, a user and a quota."""
    topic = {
        "name": "t",
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": "retention.ms", "value": "100000"}],
    }
    acl = {
        "resource_type": 2,
        "resource_name": "t",
        "resource_pattern_type": 3,
        "principal": "User:u",
        "host": "*",
        "operation": 3,
        "permission_type": 3,
    }
    upsertion = {
        "name": "u",
        "mechanism": 1,
        "iterations": 4096,
        "salt": b"salt",
        "salted_password": b"x" * 32,
    }
    quotas = [
        {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
            "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
        }
        for entity in ((("user", "u"), ("client-id", "c")), (("client-id", "c"),))
    ]
    with Raw(node.port) as raw:
        raw.ask(K.CREATE_TOPICS, 4, topics=[topic], timeout=10_000, validate_only=False)
        raw.ask(K.CREATE_ACLS, 3, creations=[acl, {**acl, "resource_pattern_type": 4}])
        raw.ask(K.ALTER_USER_SCRAM_CREDENTIALS, 0, deletions=[], upsertions=[upsertion])
        raw.ask(K.ALTER_CLIENT_QUOTAS, 1, entries=quotas, validate_only=False)
        wait_until(
            lambda: raw.metadata("t").topics[0].partitions, "the topic has a leader", PATIENCE_S
        )


def _permissions(kazoo: KazooClient, path: str) -> Iterator[tuple[str, list[str]]]:
    acls, _ = kazoo.get_acls(path)
    shown = re.sub(r"_\d{10}$", "_N", "/" + path.partition("/")[2].partition("/")[2])
    yield shown, sorted(f"{each.id.scheme}:{each.id.id}:{each.perms}" for each in acls)
    try:
        children = kazoo.get_children(path)
    except NoNodeError:
        return
    for child in children:
        yield from _permissions(kazoo, f"{path}/{child}")


#: Settings that promise what they cannot keep: neither kind starts with them.
REFUSED = {
    "both ways to name the listener between brokers": {
        "security.inter.broker.protocol": "PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
    },
    "a mechanism between brokers that is not enabled": {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": format_jaas(
            PLAIN_MODULE, {"user_a": "b"}
        ),
    },
    "TLS without a key store": {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:1",
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": "/nowhere/broker.pem",
    },
    "SASL without JAAS": {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:1",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
    },
    "ACLs in ZooKeeper without an identity": {"zookeeper.set.acl": "true"},
}


@pytest.mark.rule("SEC-18")
@pytest.mark.parametrize("what", REFUSED)
def test_settings_that_cannot_be_kept_refuse_the_start(
    zookeeper_server: ZooKeeperServer, kafka_libs: Path, tmp_path: Path, what: str
):
    for kind in Kind:
        config = {
            "zookeeper.connect": f"{zookeeper_server.address}/{tmp_path.name}",
            **REFUSED[what],
        }
        node = _node(kind, tmp_path, kafka_libs, config)
        try:
            code, told = node.run_to_its_end()
        finally:
            node.kill()
        assert code != 0, f"{kind} starts:\n{told[-2000:]}"
