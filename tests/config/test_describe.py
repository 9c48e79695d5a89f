"""DescribeConfigs, key by key, against what Apache Kafka 3.9.1 answered for the same settings.

`described_by_kafka.tsv` was recorded from a broker with `_FILE` as its server.properties, a topic
with `_TOPIC`, and the dynamic settings below: resource, its name, key, value, type, source,
read-only, sensitive, synonyms.
"""

from pathlib import Path

import pytest

from klamm.config.broker import BrokerConfig
from klamm.config.definitions import format_value
from klamm.config.describe import (
    DescribedConfig,
    describe_broker,
    describe_broker_defaults,
    describe_topic,
)
from klamm.config.layers import Source
from klamm.config.topic_keys import TOPIC_KEYS

_FILE = {
    "broker.id": "1",
    "listeners": "PLAINTEXT://b1:9092",
    "zookeeper.connect": "zk:2181/kafka",
    "log.dirs": "data",
    "log.retention.hours": "24",
    "log.roll.ms": "7200000",
    "offsets.topic.replication.factor": "1",
    "log.message.timestamp.difference.max.ms": "5000",
    "num.partitions": "3",
    "log.cleaner.min.cleanable.ratio": "0.50",
    "inter.broker.protocol.version": "3.9",
    "log.cleanup.policy": "delete, compact",
}
_DYNAMIC_DEFAULT = {"log.segment.bytes": "2000000", "min.insync.replicas": "2"}
_DYNAMIC_BROKER = {
    "log.segment.bytes": "3000000",
    "custom.thing": "x",
    "leader.replication.throttled.rate": "777",
}
_TOPIC = {"retention.ms": "5000", "min.cleanable.dirty.ratio": "0.25"}
_SOURCES = {
    Source.TOPIC: "DYNAMIC_TOPIC_CONFIG",
    Source.DYNAMIC_BROKER: "DYNAMIC_BROKER_CONFIG",
    Source.DYNAMIC_DEFAULT_BROKER: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    Source.STATIC_BROKER: "STATIC_BROKER_CONFIG",
    Source.DEFAULT: "DEFAULT_CONFIG",
}


@pytest.fixture(scope="module")
def broker() -> BrokerConfig:
    static = BrokerConfig.from_properties(_FILE)
    return static.with_dynamic(default=_DYNAMIC_DEFAULT, broker=_DYNAMIC_BROKER)


def recorded(resource: str, name: str) -> list[str]:
    lines = Path(__file__).with_name("described_by_kafka.tsv").read_text().splitlines()
    return sorted(line for line in lines if line.startswith(f"{resource}\t{name}\t"))


def shown(resource: str, name: str, entries: list[DescribedConfig]) -> list[str]:
    return sorted(
        "\t".join(
            (
                resource,
                name,
                entry.name,
                "null" if entry.value is None else entry.value,
                entry.type.name if entry.type else "UNKNOWN",
                _SOURCES[entry.source],
                str(entry.read_only).lower(),
                str(entry.sensitive).lower(),
                "[" + ", ".join(_synonym(entry)) + "]",
            )
        )
        for entry in entries
    )


def _synonym(entry: DescribedConfig) -> list[str]:
    return [
        f"{each.name}|{'null' if each.value is None else each.value}|{_SOURCES[each.source]}"
        for each in entry.synonyms
    ]


@pytest.mark.rule("CFG-7", "CFG-8")
def test_a_topic_is_described_as_kafka_describes_it(broker: BrokerConfig):
    entries = describe_topic(_TOPIC, broker)
    assert shown("TOPIC", "t", entries) == recorded("TOPIC", "t")
    assert [entry.name for entry in entries] == list(TOPIC_KEYS)


@pytest.mark.rule("CFG-7")
def test_a_broker_is_described_as_kafka_describes_it(broker: BrokerConfig):
    assert shown("BROKER", "1", describe_broker(broker)) == recorded("BROKER", "1")


@pytest.mark.rule("CFG-7")
def test_the_broker_without_a_name_has_the_dynamic_defaults_only(broker: BrokerConfig):
    assert shown("BROKER", "", describe_broker_defaults(broker)) == recorded("BROKER", "")


@pytest.mark.rule("CFG-7")
def test_passwords_are_never_shown():
    config = BrokerConfig.from_properties({**_FILE, "password.encoder.secret": "s3cret"})
    (entry,) = (each for each in describe_broker(config) if each.name == "password.encoder.secret")
    assert entry.sensitive
    assert entry.value is None
    assert [each.value for each in entry.synonyms] == [None]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        (("a", "b"), "a,b"),
        ((), ""),
        (0.5, "0.5"),
        (1.0, "1.0"),
        (0.0005, "5.0E-4"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (12345678.0, "1.2345678E7"),
        (-0.00025, "-2.5E-4"),
        (float("inf"), "Infinity"),
    ],
)
def test_values_are_written_as_java_writes_them(value: object, text: str):
    assert format_value(value) == text
