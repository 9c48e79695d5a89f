"""Kafka's own Java clients at a klamm broker, with every security protocol and mechanism."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm import Cluster
from klamm.config.properties import format_properties
from klamm.protocol.acls import AclOperation, ResourceType
from klamm.zookeeper.server import ZooKeeperServer
from tests.support.kafka_tools import Tools
from tests.support.secured import SecuredBroker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

WAYS = (
    ("SSL", ""),
    ("SASL_PLAINTEXT", "PLAIN"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
    ("SASL_SSL", "PLAIN"),
    ("SASL_SSL", "SCRAM-SHA-256"),
    ("SASL_SSL", "SCRAM-SHA-512"),
    ("SASL_SSL", "OAUTHBEARER"),
)
_OAUTHBEARER_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
_LOGIN_HANDLER = (
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler"
)


@pytest.fixture(scope="module")
def secured(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredBroker]:
    with SecuredBroker(zookeeper_server, tmp_path_factory.mktemp("java-clients")) as started:
        yield started


def properties(secured: SecuredBroker, protocol: str, mechanism: str, token: Path) -> str:
    if mechanism != "OAUTHBEARER":
        return format_properties(secured.properties(protocol, "admin", mechanism or "PLAIN"))
    token.write_text(secured.token(sub="admin"))
    given = secured.properties(protocol, "admin") | {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{_OAUTHBEARER_MODULE} required;",
        "sasl.oauthbearer.token.endpoint.url": f"file:{token}",
        "sasl.login.callback.handler.class": _LOGIN_HANDLER,
    }
    return format_properties(given)


@pytest.mark.rule("SEC-1", "SEC-3", "SEC-6", "SEC-14")
@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_java_clients_produce_and_consume(
    secured: SecuredBroker, kafka_libs: Path, tmp_path: Path, protocol: str, mechanism: str
):
    topic = secured.create_topic(f"java-{protocol}-{mechanism or 'tls'}")
    tools = Tools(kafka_libs, tmp_path, secured.bootstrap(protocol))
    config = tools.file(properties(secured, protocol, mechanism, tmp_path / "token"))
    tools.run(
        *("kafka-console-producer", "--topic", topic, "--producer.config", str(config)),
        stdin="by java\n",
    )
    told = tools.run(
        *("kafka-console-consumer", "--topic", topic, "--consumer.config", str(config)),
        *("--from-beginning", "--max-messages", "1", "--group", topic),
    )
    assert "by java" in told
    listed = tools.run("kafka-topics", "--list", "--command-config", str(config))
    assert topic in listed.splitlines()


@pytest.mark.rule("SEC-9")
def test_java_clients_are_told_what_they_may_not_do(
    secured: SecuredBroker, kafka_libs: Path, tmp_path: Path
):
    topic = secured.create_topic("java-denied")
    secured.allow("alice", AclOperation.DESCRIBE, ResourceType.TOPIC, topic)
    tools = Tools(kafka_libs, tmp_path, secured.bootstrap("SASL_SSL"))
    config = tools.file(format_properties(secured.properties("SASL_SSL", "alice")))
    told = tools.run(
        *("kafka-console-producer", "--topic", topic, "--producer.config", str(config)),
        stdin="by alice\n",
    )
    assert "AuthorizationException" in told


@pytest.mark.parametrize("kind", ["ssl", "sasl_plaintext", "sasl_ssl"])
def test_a_local_cluster_tells_java_clients_what_they_need(
    kafka_libs: Path, tmp_path: Path, kind: str
):
    with Cluster(brokers=1, security=kind) as cluster:
        cluster.create_topic("orders", replication_factor=1)
        tools = Tools(kafka_libs, tmp_path, cluster.bootstrap_servers)
        config = tools.file(format_properties(cluster.client_config("java")))
        assert "orders" in tools.run("kafka-topics", "--list", "--command-config", str(config))
