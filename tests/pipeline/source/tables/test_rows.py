"""The tables of a real cluster, as Spark's tasks read them, but without Spark around them."""

from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from klamm.client.admin import Admin
from klamm.errors import ConfigError, UnavailableError
from klamm.pipeline.source.tables.reader import (
    BrokerShare,
    TableReader,
    read_here,
    shares,
    table_options,
)
from tests.pipeline.source.conftest import produce
from tests.support.cluster import PATIENCE_S, RealCluster
from tests.support.kafka_tools import Tools


def read(
    cluster: RealCluster, table: str, columns: list[str] | None = None
) -> list[dict[str, Any]]:
    options = {"kafka.bootstrap.servers": cluster.bootstrap, "table": table}
    reader = TableReader(table_options(options, columns))
    return [
        row
        for task in reader.partitions()
        for batch in reader.read(task)
        for row in batch.to_pylist()
    ]


@pytest.mark.real
def test_brokers_topics_and_partitions_are_as_zookeeper_has_them(start_cluster, topic):
    cluster = start_cluster(brokers=2, racks={1: "a", 2: "b"})
    cluster.create(topic, partitions=3, factor=2)
    controller = cluster.controller_id()
    assert read(cluster, "brokers") == [
        {
            "id": each,
            "host": "127.0.0.1",
            "port": cluster[each].port,
            "rack": rack,
            "is_controller": each == controller,
        }
        for each, rack in ((1, "a"), (2, "b"))
    ]
    (found,) = (row for row in read(cluster, "topics") if row["topic"] == topic)
    node = cluster.znode(f"/brokers/topics/{topic}")
    assert found == {
        "topic": topic,
        "topic_id": node["topic_id"],
        "partitions": 3,
        "is_internal": False,
    }
    rows = {row["partition"]: row for row in read(cluster, "partitions") if row["topic"] == topic}
    assert rows.keys() == {0, 1, 2}
    for number, row in rows.items():
        state = cluster.state(topic, number)
        assert row["replicas"] == node["partitions"][str(number)]
        assert sorted(row["isr"]) == sorted(state["isr"])
        assert (row["leader"], row["leader_epoch"]) == (state["leader"], state["leader_epoch"])
        assert row["offline"] == []
    sizes = [row for row in read(cluster, "logdirs") if row["topic"] == topic]
    assert {(row["broker"], row["partition"]) for row in sizes} == {
        (broker, number) for broker in (1, 2) for number in range(3)
    }


@pytest.mark.real
def test_settings_say_where_they_come_from(cluster, topic):
    cluster.create(topic, factor=1, config={"retention.ms": "12345"})
    rows = read(cluster, "configs")
    (found,) = (row for row in rows if row["name"] == topic and row["key"] == "retention.ms")
    assert (found["resource"], found["value"], found["source"]) == ("topic", "12345", "topic")
    assert {row["name"] for row in rows if row["resource"] == "broker"} == {"1"}


@pytest.mark.real
def test_log_directories_have_the_bytes_of_their_replicas(cluster, topic):
    cluster.create(topic, factor=1)
    produce(cluster, topic, range(1000))
    (found,) = (row for row in read(cluster, "logdirs") if row["topic"] == topic)
    log = next(cluster[1].directory.rglob(f"{topic}-0/*.log"))
    assert found["bytes"] == log.stat().st_size > 0
    assert (found["broker"], found["partition"], found["is_future"]) == (1, 0, False)


@pytest.mark.real
def test_lag_is_what_a_group_has_left_to_read(cluster, topic):
    cluster.create(topic, partitions=2, factor=1)
    produce(cluster, topic, range(20), partitions=2)
    settings = {"bootstrap.servers": cluster.bootstrap, "enable.auto.commit": False}
    consumer = Consumer(settings | {"group.id": topic})
    consumer.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    consumer.close()
    (found,) = (row for row in read(cluster, "groups") if row["group"] == topic)
    assert (found["state"], found["members"], found["coordinator"]) == ("Empty", 0, 1)
    assert [row for row in read(cluster, "lag") if row["group"] == topic] == [
        {
            "group": topic,
            "topic": topic,
            "partition": 0,
            "committed": 4,
            "end": 10,
            "lag": 6,
            "member_id": None,
            "client_id": None,
            "host": None,
        }
    ]
    member = Consumer(settings | {"group.id": topic, "client.id": "reader"})
    member.subscribe([topic])
    try:
        message = member.poll(PATIENCE_S)
        assert message is not None
        assert message.error() is None
        rows = [row for row in read(cluster, "lag") if row["group"] == topic]
        assert [(row["partition"], row["lag"]) for row in rows] == [(0, 6), (1, None)]
        assert {row["client_id"] for row in rows} == {"reader"}
    finally:
        member.close()


@pytest.mark.interop
def test_lag_is_what_kafka_consumer_groups_prints(cluster, topic, kafka_libs, tmp_path):
    """Of a group that has only offsets, and of one with a member that committed some of its own."""
    cluster.create(topic, partitions=3, factor=1)
    produce(cluster, topic, range(30), partitions=3)
    settings = {"bootstrap.servers": cluster.bootstrap, "enable.auto.commit": False}
    idle, active = f"{topic}-idle", f"{topic}-active"
    committed = {idle: {0: 10, 1: 4, 2: 0}, active: {1: 7}}
    for group, offsets in committed.items():
        consumer = Consumer(settings | {"group.id": group})
        places = [TopicPartition(topic, number, offset) for number, offset in offsets.items()]
        consumer.commit(offsets=places, asynchronous=False)
        consumer.close()
    member = Consumer(settings | {"group.id": active, "client.id": "reader"})
    member.subscribe([topic])
    tools = Tools(kafka_libs, tmp_path, cluster.bootstrap)
    try:
        assert member.poll(PATIENCE_S) is not None
        for group in committed:
            printed = tools.run("kafka-consumer-groups", "--describe", "--group", group)
            rows = [line.split() for line in printed.splitlines() if line.startswith(group)]
            found = [row for row in read(cluster, "lag") if row["group"] == group]
            assert len(rows) == 3
            assert sorted(map(_as_printed, found)) == sorted(rows)
    finally:
        member.close()


def _as_printed(row: dict[str, Any]) -> list[str]:
    names = ("group", "topic", "partition", "committed", "end", "lag")
    columns = (*names, "member_id", "host", "client_id")
    return ["-" if row[name] is None else str(row[name]) for name in columns]


@pytest.mark.real
def test_settings_that_hold_are_beside_partitions_for_who_names_them(cluster, topic):
    cluster.create(topic, factor=1, config={"min.insync.replicas": "3"})
    rows = read(cluster, "partitions", ["topic", "min_isr", "unclean"])
    assert {"topic": topic, "min_isr": 3, "unclean": False} in rows
    rows = read(cluster, "topics", ["topic", "config"])
    assert {"topic": topic, "config": [("min.insync.replicas", "3")]} in rows


def test_a_broker_that_does_not_answer_has_a_row_that_says_so(monkeypatch):
    options = table_options({"kafka.bootstrap.servers": "127.0.0.1:1", "table": "logdirs"})

    def refuse(*asked: Any) -> None:
        raise UnavailableError("Broker 7 does not answer")

    monkeypatch.setattr(Admin, "ask_broker", refuse)
    (row,) = read_here(options, [BrokerShare(7)]).to_pylist()
    assert {name: value for name, value in row.items() if value is not None} == {
        "broker": 7,
        "error": "NETWORK_EXCEPTION",
    }


def test_tokens_are_asked_for_in_javas_names():
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    options = table_options(
        {
            "table": "topics",
            "kafka.bootstrap.servers": "127.0.0.1:1",
            "kafka.security.protocol": "SASL_PLAINTEXT",
            "kafka.sasl.mechanism": "OAUTHBEARER",
            "kafka.sasl.jaas.config": f'{module} required clientId="me" clientSecret="x";',
            "kafka.sasl.oauthbearer.token.endpoint.url": "https://127.0.0.1/token",
        }
    )
    assert options.security.sasl is not None
    assert options.security.sasl.mechanism == "OAUTHBEARER"
    assert options.security.sasl.oauth.token_url == "https://127.0.0.1/token"
    assert not any(key.startswith("sasl") for key in options.kafka)


@pytest.mark.real
def test_columns_may_be_some_and_in_another_order(cluster, topic):
    cluster.create(topic, factor=1)
    rows = read(cluster, "partitions", ["leader", "topic"])
    assert {"leader": 1, "topic": topic} in rows


def test_topics_are_shared_out_by_their_partitions():
    many = [(f"t{number:05}", 100) for number in range(10_000)]
    tasks = shares(many)
    assert len(tasks) == 20
    assert [name for task in tasks for name in task.topics] == [name for name, _ in many]
    assert len(shares([("large", 200_000), ("next", 1)])) == 2
    assert shares([]) == []
    assert len(shares([(f"{n}", 1) for n in range(2500)])) == 3


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"table": "partition"}, "no table 'partition': expected .*; did you mean 'partitions'"),
        ({"table": "lag", "subscribe": "a"}, "option 'subscribe' does not go with 'table'"),
        (
            {"table": "lag", "kafka.client.rack": "a"},
            r"'client\.rack' does not go with 'table': .* klamm's own client",
        ),
        ({"table": "lag", "kafka.bootstrap.servers": " "}, "must be specified for configuring"),
    ],
)
def test_what_is_wrong_with_a_table_is_said(given, message):
    with pytest.raises(ConfigError, match=message):
        table_options({"kafka.bootstrap.servers": "127.0.0.1:1"} | given)
