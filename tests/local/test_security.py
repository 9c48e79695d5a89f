"""Secured clusters on this machine: one word, and every client gets what it needs."""

import json
import uuid

import pytest
from confluent_kafka import Consumer, Producer

from klamm import Cluster
from klamm.config.client_properties import ClientSecurity
from klamm.errors import ConfigError
from klamm.local.security import LocalSecurity
from tests.support.command_line import run_here

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def secured():
    with Cluster(
        brokers=2, security="sasl_ssl", config={"auto.leader.rebalance.enable": False}
    ) as c:
        yield c


class Commands:
    """The console script, as the administrator of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def run(self, *arguments: str) -> str:
        config = ("--command-config", str(self._cluster.command_config))
        first, rest = arguments[:2], arguments[2:]
        line = (*first, *config, *rest) if first[0] in ("acls", "users", "quotas") else None
        bootstrap = self._cluster.bootstrap_servers
        given = line or (arguments[0], *config, *arguments[1:])
        return run_here(*given, bootstrap=bootstrap).ok().out


def deliver(config: dict, topic: str) -> list[str]:
    errors: list[str] = []
    producer = Producer({**config, "message.timeout.ms": 10_000, "log_level": 0})
    producer.produce(topic, b"value", on_delivery=lambda error, _: errors.append(str(error)))
    producer.flush(20)
    return errors


def test_the_administrator_may_do_everything_and_others_nothing(secured):
    topic = f"t-{uuid.uuid4().hex[:6]}"
    secured.create_topic(topic)
    assert deliver(secured.client_config("confluent-kafka"), topic) == ["None"]
    (refused,) = deliver(secured.client_config("confluent-kafka", user="alice"), topic)
    assert "TOPIC_AUTHORIZATION_FAILED" in refused
    group = {"group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer({**secured.client_config("confluent-kafka"), **group})
    consumer.subscribe([topic])
    try:
        assert len(consumer.consume(1, timeout=20)) == 1
    finally:
        consumer.close()


def test_each_client_gets_its_own_spelling(secured):
    java = secured.client_config("java")
    assert java["security.protocol"] == "SASL_SSL"
    assert java["sasl.mechanism"] == "SCRAM-SHA-512"
    assert secured.client_config("spark") == {f"kafka.{k}": v for k, v in java.items()}
    assert ClientSecurity.from_properties(java).sasl.username == "admin"
    assert secured.client_config("kafka-python")["sasl_plain_username"] == "admin"
    assert secured.client_config("aiokafka")["ssl_context"].check_hostname
    with pytest.raises(ConfigError, match="is not one of"):
        secured.client_config("cobol")


def test_the_commands_manage_acls_users_and_quotas(secured, tmp_path):
    klamm = Commands(secured)
    password = tmp_path / "password"
    password.write_text("planted-bob-pw\n")
    klamm.run("users", "add", "bob", "--password-file", str(password))
    assert "bob" in klamm.run("users", "list")
    klamm.run(
        *("acls", "add", "--principal", "User:bob", "--operation", "Write"),
        *("--topic", "bobs-", "--prefixed"),
    )
    shown = json.loads(klamm.run("acls", "list", "--json"))
    assert [row["operation"] for row in shown if row["principal"] == "User:bob"] == ["Write"]
    told = klamm.run(
        *("acls", "explain", "--principal", "User:bob", "--operation", "Describe"),
        *("--topic", "bobs-orders"),
    )
    assert "allowed: an ACL allows it, because Write implies Describe" in told
    klamm.run("quotas", "set", "--user", "bob", "producer_byte_rate=1048576")
    quotas = json.loads(klamm.run("quotas", "list", "--json"))
    assert quotas[0]["quotas"] == {"producer_byte_rate": 1048576.0}
    klamm.run("quotas", "remove", "--user", "bob")
    klamm.run("acls", "remove", "--principal", "User:bob", "--topic", "bobs-", "--prefixed")
    klamm.run("users", "remove", "bob")
    assert "bob" not in klamm.run("users", "list")
    for broker in secured.broker_ids:
        assert "planted-bob-pw" not in secured.broker(broker).log.read_text()


def test_the_story_says_who_asked(secured):
    topic = f"story-{uuid.uuid4().hex[:6]}"
    secured.create_topic(topic, assignment=[[1, 2]])
    secured.stop(1)
    secured.wait_leader(topic, leader=2)
    secured.start(1)
    secured.wait_isr(topic, 0, {1, 2})
    klamm = Commands(secured)
    klamm.run("elect", "preferred", "--topic", topic)
    spools = [str(spool) for spool in secured.spools]
    told = klamm.run("story", f"{topic}-0", "--spool", *spools)
    assert "asked by User:admin at 127.0.0.1" in told


def test_passwords_and_certificates_are_kept_for_their_owner_alone(tmp_path):
    first = LocalSecurity("sasl_ssl", tmp_path / "security")
    password = first.password("alice")
    again = LocalSecurity("sasl_ssl", tmp_path / "security")
    assert again.password("alice") == password
    again.keystore("alice")
    for path in (tmp_path / "security").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


def test_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="sasl_ssl"):
        Cluster(security="kerberos")
