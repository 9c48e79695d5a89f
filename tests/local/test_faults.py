"""Faults of a real cluster, as its clients feel them."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from klamm import Cluster
from klamm.client.admin import Admin
from klamm.errors import ConfigError, KlammError, UnavailableError
from klamm.protocol.apis import ApiKey

pytestmark = pytest.mark.real


@pytest.fixture
def topic(klamm_cluster: Cluster, klamm_topic_prefix: str) -> str:
    name = klamm_topic_prefix + "orders"
    klamm_cluster.create_topic(name, partitions=3)
    return name


class Writer:
    """A stock producer that keeps what became of its records."""

    def __init__(self, cluster: Cluster, **settings: object) -> None:
        self._producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, **settings})
        self.results: list[str | None] = []

    def write(self, topic: str, partition: int = 0) -> str | None:
        self._producer.produce(
            topic,
            b"x",
            partition=partition,
            on_delivery=lambda error, _: self.results.append(error and error.name()),
        )
        assert self._producer.flush(60) == 0
        return self.results[-1]


def test_errors_are_counted_over_all_brokers(klamm_cluster: Cluster, topic: str):
    writer = Writer(klamm_cluster)
    with klamm_cluster.inject(
        "Produce", error="NOT_LEADER_OR_FOLLOWER", times=3, topic=topic
    ) as fault:
        assert klamm_cluster.faults == [fault]
        assert [writer.write(topic, partition) for partition in range(3)] == [None] * 3
        fault.wait_fired()
        assert (fault.fired, fault.remaining, fault.is_active) == (3, 0, False)
        assert {hit.client_id for hit in fault.hits} == {"rdkafka"}
        assert klamm_cluster.faults == [], "it is used up"
    assert repr(fault).endswith("fired 3 of 3, ended>")


def test_an_error_that_is_not_retriable_reaches_the_caller_until_it_is_cleared(
    klamm_cluster: Cluster, topic: str
):
    writer = Writer(klamm_cluster)
    fault = klamm_cluster.inject("Produce", error="MESSAGE_TOO_LARGE", topic=topic)
    assert writer.write(topic) == "MSG_SIZE_TOO_LARGE"
    fault.clear()
    assert writer.write(topic) is None
    assert fault.fired == 1


def test_a_consumer_is_told_and_goes_on(klamm_cluster: Cluster, topic: str):
    Writer(klamm_cluster).write(topic)
    consumer = Consumer(
        {
            "bootstrap.servers": klamm_cluster.bootstrap_servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
        }
    )
    seen = []
    with klamm_cluster.inject("Fetch", error="TOPIC_AUTHORIZATION_FAILED", times=1, topic=topic):
        consumer.subscribe([topic])
        while None not in seen:
            message = consumer.poll(1)
            if message is not None:
                seen.append(message.error() and message.error().name())
    consumer.close()
    assert seen == ["TOPIC_AUTHORIZATION_FAILED", None]


def test_a_late_response_is_late_for_one_client(klamm_cluster: Cluster, topic: str):
    admin = AdminClient(
        {"bootstrap.servers": klamm_cluster.bootstrap_servers, "client.id": "patient"}
    )
    with klamm_cluster.inject("Metadata", delay_ms=60_000, client_id="impatient") as fault:
        assert topic in admin.list_topics(timeout=30).topics
        impatient = AdminClient(
            {"bootstrap.servers": klamm_cluster.bootstrap_servers, "client.id": "impatient"}
        )
        with pytest.raises(KafkaException):
            impatient.list_topics(timeout=1)
        assert fault.fired > 0


def test_a_restarted_broker_knows_the_faults_and_healing_ends_them(
    klamm_cluster: Cluster, topic: str
):
    fault = klamm_cluster.inject("ListGroups", error="COORDINATOR_NOT_AVAILABLE", broker=1)
    klamm_cluster.kill(1)
    klamm_cluster.pause(2)
    klamm_cluster.resume(2)
    klamm_cluster.start(1)
    codes = {}
    for broker in (1, 2):
        with Admin(klamm_cluster.broker(broker).address) as admin:
            codes[broker] = admin.ask_any(ApiKey.LIST_GROUPS, {}).error_code.name
    assert codes == {1: "coordinator_not_available", 2: "none"}
    klamm_cluster.heal()
    assert (klamm_cluster.faults, fault.is_active) == ([], False)
    assert fault.fired  # more than once, if the client lost patience and asked again


def test_a_connection_is_lost_once_and_the_producer_sends_again(klamm_cluster: Cluster, topic: str):
    with klamm_cluster.inject("Produce", disconnect=True, times=1, topic=topic) as fault:
        assert Writer(klamm_cluster).write(topic) is None
        assert fault.fired == 1


def test_what_cannot_be_injected_is_refused(klamm_cluster: Cluster):
    with pytest.raises(ConfigError, match="times=0"):
        klamm_cluster.inject("Produce", error="REQUEST_TIMED_OUT", times=0)
    with pytest.raises(KlammError, match="There is no broker 9"):
        klamm_cluster.inject("Produce", error="REQUEST_TIMED_OUT", broker=9)
    with (
        klamm_cluster.inject("Produce", error="REQUEST_TIMED_OUT", topic="nobody") as fault,
        pytest.raises(UnavailableError, match="there were 0"),
    ):
        fault.wait_fired(timeout_s=0.1)


def test_a_broker_has_no_faults_unless_a_local_cluster_started_it(klamm_cluster: Cluster):
    """The link is inherited: nothing listens for it, and settings do not bring it about."""
    assert not [key for key in klamm_cluster.broker(1).config if "fault" in key]
    command = Path(f"/proc/{klamm_cluster.broker(1).pid}/cmdline").read_bytes()
    assert b"--faults-fd=" in command
