"""The clusters that commands are tried on: klamm's own, and Apache Kafka where it can be had."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Protocol

import pytest

from klamm.zookeeper.server import ZooKeeperServer
from tests.support.command_line import Klamm, run_here
from tests.support.mixed_cluster import Kind, MixedCluster


class AnyCluster(Protocol):
    """What the tests need to know of a cluster."""

    @property
    def bootstrap_servers(self) -> str: ...

    @property
    def zookeeper(self) -> str: ...


class KafkaCluster:
    """Three brokers of Apache Kafka."""

    def __init__(self, cluster: MixedCluster) -> None:
        self.bootstrap_servers = cluster.bootstrap
        self.zookeeper = cluster.address


@pytest.fixture(scope="session")
def kafka_cluster(
    zookeeper_server: ZooKeeperServer,
    tmp_path_factory: pytest.TempPathFactory,
    kafka_libs: Path,
) -> Iterator[KafkaCluster]:
    directory = tmp_path_factory.mktemp("kafka")
    with MixedCluster(zookeeper_server.address, directory, kafka_libs) as cluster:
        cluster.add(Kind.KAFKA, 1, 2, 3, auto_create_topics_enable="false")
        yield KafkaCluster(cluster)


@pytest.fixture(
    params=[
        pytest.param("klamm", marks=pytest.mark.real),
        pytest.param("kafka", marks=[pytest.mark.interop, pytest.mark.timeout(300)]),
    ]
)
def cluster(request: pytest.FixtureRequest) -> AnyCluster:
    """A cluster of three that has to be left as it was found, apart from topics and groups."""
    found: AnyCluster = request.getfixturevalue(f"{request.param}_cluster")
    return found


@pytest.fixture
def klamm(cluster: AnyCluster) -> Klamm:
    """The console script, with this cluster's bootstrap servers."""
    return partial(run_here, bootstrap=cluster.bootstrap_servers)


@pytest.fixture
def topic(klamm_topic_prefix: str) -> str:
    """The name of a topic that is this test's alone."""
    return klamm_topic_prefix + "orders"
