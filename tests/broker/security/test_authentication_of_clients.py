"""Stock clients on every security protocol and mechanism: write, read, and be refused."""

import asyncio
import uuid

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tests.support.secured import PLANTED, SecuredBroker
from tests.support.waiting import wait_until

pytestmark = [
    pytest.mark.real,
    pytest.mark.rule("SEC-3", "SEC-4", "SEC-6"),
    # kafka-python uses what Python is going to drop.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

#: Protocol and mechanism; SSL has none.
WAYS = [
    ("SSL", ""),
    ("SASL_PLAINTEXT", "PLAIN"),
    ("SASL_PLAINTEXT", "SCRAM-SHA-512"),
    ("SASL_SSL", "PLAIN"),
    ("SASL_SSL", "SCRAM-SHA-256"),
    ("SASL_SSL", "SCRAM-SHA-512"),
]
COUNT = 50


@pytest.fixture(scope="module")
def name(secured: SecuredBroker) -> str:
    return secured.create_topic(f"clients-{uuid.uuid4().hex[:6]}")


def confluent(secured: SecuredBroker, protocol: str, mechanism: str) -> dict[str, object]:
    config: dict[str, object] = {
        "bootstrap.servers": secured.bootstrap(protocol),
        "security.protocol": protocol,
    }
    if protocol.endswith("SSL"):
        config["ssl.ca.location"] = str(secured.ca)
    if protocol == "SSL":
        store = secured.properties("SSL")["ssl.keystore.location"]
        config |= {"ssl.certificate.location": store, "ssl.key.location": store}
    if mechanism:
        config |= {"sasl.mechanism": mechanism, "sasl.username": "admin"}
        config["sasl.password"] = PLANTED["admin"]
    return config


def python_names(secured: SecuredBroker, protocol: str, mechanism: str) -> dict[str, object]:
    config: dict[str, object] = {
        "bootstrap_servers": secured.bootstrap(protocol),
        "security_protocol": protocol,
    }
    if mechanism:
        config |= {"sasl_mechanism": mechanism, "sasl_plain_username": "admin"}
        config["sasl_plain_password"] = PLANTED["admin"]
    return config


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_confluent_kafka_writes_and_reads(secured, name, protocol, mechanism):
    config = confluent(secured, protocol, mechanism)
    errors: list[object] = []
    producer = Producer(config)
    for _ in range(COUNT):
        producer.produce(name, b"value", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    assert errors == [None] * COUNT
    group = {"group.id": f"g-{uuid.uuid4().hex[:6]}", "auto.offset.reset": "earliest"}
    consumer = Consumer({**config, **group})
    consumer.subscribe([name])
    try:
        assert len(consumer.consume(COUNT, timeout=30)) == COUNT
    finally:
        consumer.close()


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_kafka_python_writes_and_reads(secured, name, protocol, mechanism):
    from kafka import KafkaConsumer, KafkaProducer

    config = python_names(secured, protocol, mechanism)
    if protocol.endswith("SSL"):
        config["ssl_cafile"] = str(secured.ca)
    if protocol == "SSL":
        store = secured.properties("SSL")["ssl.keystore.location"]
        config |= {"ssl_certfile": store, "ssl_keyfile": store}
    producer = KafkaProducer(**config)
    futures = [producer.send(name, b"value") for _ in range(COUNT)]
    for future in futures:
        future.get(timeout=30)
    producer.close()
    consumer = KafkaConsumer(
        name, auto_offset_reset="earliest", consumer_timeout_ms=30_000, **config
    )
    for _, _ in zip(range(COUNT), consumer, strict=False):
        pass
    consumer.close()


@pytest.mark.parametrize(("protocol", "mechanism"), WAYS)
def test_aiokafka_writes_and_reads(secured, name, protocol, mechanism):
    config = python_names(secured, protocol, mechanism)
    if protocol == "SSL":
        config["ssl_context"] = secured.tls(secured.authority.issue("admin"))
    elif protocol == "SASL_SSL":
        config["ssl_context"] = secured.tls()

    async def write_and_read() -> None:
        async with AIOKafkaProducer(**config) as producer:
            for _ in range(COUNT):
                await producer.send_and_wait(name, b"value")
        async with AIOKafkaConsumer(name, auto_offset_reset="earliest", **config) as consumer:
            for _ in range(COUNT):
                async with asyncio.timeout(30):
                    await consumer.getone()

    asyncio.run(write_and_read())


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
@pytest.mark.rule("SEC-2")
def test_a_wrong_password_is_told_to_the_client(secured, mechanism):
    told: list[str] = []
    config = confluent(secured, "SASL_SSL", mechanism) | {
        "sasl.password": "wrong",
        "error_cb": lambda error: told.append(error.str()),
        "log_level": 0,
    }
    producer = Producer(config)
    wait_until(
        lambda: producer.poll(0.1) or any("uthentication failed" in each for each in told),
        "librdkafka hears of the failure",
    )


def test_a_client_that_does_not_trust_the_authority_is_not_served(secured):
    config = confluent(secured, "SASL_SSL", "PLAIN") | {"log_level": 0}
    del config["ssl.ca.location"]
    with pytest.raises(KafkaException):
        AdminClient(config).list_topics(timeout=5)
