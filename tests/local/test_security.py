"""Secured clusters on this machine: one word, and every client gets what it needs."""

import asyncio
import json
import uuid
import warnings
from contextlib import closing
from itertools import islice

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer

from klamm import Cluster
from klamm.client import users
from klamm.client.admin import Admin
from klamm.config.client_properties import ClientSecurity
from klamm.errors import ConfigError
from klamm.local.security import LocalSecurity
from klamm.net.scram import ScramMechanism
from klamm.pipeline.source.options import read_options
from klamm.pipeline.source.reader import TopicReader
from tests.support.command_line import run_here
from tests.support.waiting import wait_until

with warnings.catch_warnings():
    # kafka-python reads its schemas in a way that Python 3.11 would rather not see.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer, KafkaProducer

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
    assert deliver(secured.client_config(), topic) == ["None"]
    (refused,) = deliver(secured.client_config("confluent-kafka", user="alice"), topic)
    assert "TOPIC_AUTHORIZATION_FAILED" in refused
    group = {"group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer({**secured.client_config("confluent-kafka"), **group})
    consumer.subscribe([topic])
    try:
        assert len(consumer.consume(1, timeout=20)) == 1
    finally:
        consumer.close()


@pytest.mark.parametrize("kind", ["ssl", "sasl_plaintext"])
def test_each_client_writes_and_reads_with_another_protocol(kind):
    with Cluster(brokers=1, security=kind) as cluster:
        _write_and_read_with_each_client(cluster)


def test_each_client_writes_and_reads_with_what_it_is_given(secured):
    _write_and_read_with_each_client(secured)


def _write_and_read_with_each_client(secured: Cluster) -> None:
    topic = f"each-{uuid.uuid4().hex[:6]}"
    secured.create_topic(topic, replication_factor=1)
    assert deliver(secured.client_config("confluent-kafka"), topic) == ["None"]
    with closing(KafkaProducer(**secured.client_config("kafka-python"))) as producer:
        producer.send(topic, b"by kafka-python").get(20)
    asyncio.run(_send_by_aiokafka(secured.client_config("aiokafka"), topic))
    with closing(
        KafkaConsumer(
            topic,
            **secured.client_config("kafka-python"),
            auto_offset_reset="earliest",
            consumer_timeout_ms=20_000,
        )
    ) as consumer:
        seen = {record.value for record in islice(consumer, 3)}
    assert seen == {b"value", b"by kafka-python", b"by aiokafka"}
    options = {k.lower(): v for k, v in secured.client_config("spark").items()}
    reader = TopicReader(read_options({**options, "subscribe": topic}, streaming=False))
    rows = sum(batch.num_rows for each in reader.partitions() for batch in reader.read(each))
    assert rows == 3


async def _send_by_aiokafka(config: dict, topic: str) -> None:
    async with AIOKafkaProducer(**config) as producer:
        await producer.send_and_wait(topic, b"by aiokafka")


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
    added = json.loads(klamm.run("users", "add", "bob", "--password-file", str(password), "--json"))
    assert added == [{"user": "bob", "mechanism": "SCRAM-SHA-512", "iterations": 4096}]
    assert "bob" in klamm.run("users", "list")
    allowed = klamm.run(
        *("acls", "add", "--principal", "User:bob", "--operation", "Write"),
        *("--topic", "bobs-", "--prefixed", "--json"),
    )
    shown = json.loads(klamm.run("acls", "list", "--json"))
    assert [row["operation"] for row in shown if row["principal"] == "User:bob"] == ["Write"]
    assert json.loads(allowed) == shown
    for resource in (("--topic", "bobs-orders"), ("--resource", "Topic:bobs-orders")):
        told = klamm.run(
            *("acls", "explain", "--principal", "User:bob", "--operation", "Describe", *resource)
        )
        assert "allowed: an ACL allows it, because Write implies Describe" in told
    entity = {"user": "bob", "client": None, "ip": None}
    given = klamm.run("quotas", "set", "--user", "bob", "producer_byte_rate=1048576", "--json")
    assert json.loads(given) == [{**entity, "quotas": {"producer_byte_rate": 1048576.0}}]
    quotas = json.loads(klamm.run("quotas", "list", "--json"))
    assert quotas[0]["quotas"] == {"producer_byte_rate": 1048576.0}
    taken = klamm.run("quotas", "remove", "--user", "bob", "--json")
    assert json.loads(taken) == [{**entity, "removed": ["producer_byte_rate"]}]
    klamm.run("acls", "remove", "--principal", "User:bob", "--topic", "bobs-", "--prefixed")
    taken = klamm.run("users", "remove", "bob", "--json")
    assert json.loads(taken) == [{"user": "bob", "mechanism": "SCRAM-SHA-512"}]
    assert "bob" not in klamm.run("users", "list")
    for broker in secured.broker_ids:
        assert "planted-bob-pw" not in secured.broker(broker).log.read_text()


def test_every_broker_knows_a_user_once_that_is_acknowledged(secured):
    """As with Kafka's brokers, which read the credentials in ZooKeeper when they describe them."""
    security = ClientSecurity.load(secured.command_config)
    with closing(Admin(secured.bootstrap_servers, security=security)) as admin:
        for number in range(10):
            user = f"at-once-{number}"
            users.add(admin, user, "planted-pw")
            for broker in secured.broker_ids:
                assert users.is_known(admin, broker, user, ScramMechanism.SCRAM_SHA_512)


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
    # The spool is written a moment after the decision.
    wait_until(
        lambda: (
            "asked by User:admin at 127.0.0.1"
            in klamm.run("story", f"{topic}-0", "--spool", *spools)
        )
    )


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
