"""One broker for all tests that leave it as they found it."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from klamm.pipeline.source.cluster import SourceCluster
from klamm.zookeeper.server import ZooKeeperServer
from tests.support.cluster import RealCluster
from tests.support.waiting import PATIENCE_S


@pytest.fixture(scope="session")
def cluster(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    with RealCluster(zookeeper_server, tmp_path_factory.mktemp("topics"), brokers=1) as started:
        yield started


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    name = "".join(each if each.isalnum() else "-" for each in request.node.name)
    return f"{name[:150]}-{time.monotonic_ns()}"


def produce(
    cluster: RealCluster, topic: str, values: range, *, partitions: int = 1, **settings: Any
) -> None:
    """Each number as a value with the same key, in turn to each partition; all acknowledged."""
    failures = []
    timestamp = settings.pop("timestamp", None)
    headers = settings.pop("headers", None)
    producer = cluster.producer(**settings)
    for number in values:
        producer.produce(
            topic,
            b"%d" % number,
            b"%d" % number,
            partition=number % partitions,
            on_delivery=lambda error, _: failures.append(error) if error else None,
            timestamp=0 if timestamp is None else timestamp(number),
            headers=headers,
        )
    assert producer.flush(PATIENCE_S) == 0
    assert not failures, failures[0]


@pytest.fixture
def forget_topics(monkeypatch):
    """Makes the next answers about topics those of a broker that was just started: empty."""
    left = 0
    describe, offsets = SourceCluster._describe, SourceCluster._list_offsets

    def forgetful(cluster, names):
        nonlocal left
        left -= 1
        return {} if left >= 0 else describe(cluster, names)

    def unknowing(cluster, wanted):
        if left >= 0:
            raise KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))
        return offsets(cluster, wanted)

    def forget(responses: int) -> None:
        nonlocal left
        left = responses

    monkeypatch.setattr(SourceCluster, "_describe", forgetful)
    monkeypatch.setattr(SourceCluster, "_list_offsets", unknowing)
    return forget
