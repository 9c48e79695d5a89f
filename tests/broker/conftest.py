"""One cluster for tests that leave it as they found it; those that break things start others."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from klamm.zookeeper.server import ZooKeeperServer
from tests.broker.cluster import RealCluster


@pytest.fixture(scope="session")
def cluster(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    """Three brokers in racks a, b and c."""
    with RealCluster(
        zookeeper_server,
        tmp_path_factory.mktemp("cluster"),
        racks={1: "a", 2: "b", 3: "c"},
        settings={
            "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector"
        },
    ) as started:
        yield started


@pytest.fixture(scope="module")
def shared_breakable(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealCluster]:
    with RealCluster(zookeeper_server, tmp_path_factory.mktemp("breakable")) as started:
        yield started


@pytest.fixture
def breakable(shared_breakable: RealCluster) -> Iterator[RealCluster]:
    """Three brokers of which a test may kill, stop and pause any; all run again afterwards."""
    yield shared_breakable
    shared_breakable.revive()


@pytest.fixture
def start_cluster(
    zookeeper_server: ZooKeeperServer, tmp_path: Path
) -> Iterator[Callable[..., RealCluster]]:
    """Starts a cluster that a test may do anything to."""
    with ExitStack() as stack:

        def start(**arguments: Any) -> RealCluster:
            return stack.enter_context(RealCluster(zookeeper_server, tmp_path, **arguments))

        yield start


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    name = str(request.node.name).replace("[", "-").replace("]", "")
    return "".join(each if each.isalnum() or each in "._-" else "_" for each in name)[:200]
