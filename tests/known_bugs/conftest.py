"""One stage for all tests of the package that need one: starting its nodes takes a while."""

import contextlib
from collections.abc import Iterator

import pytest
from kazoo.exceptions import NoNodeError

from klamm.zookeeper.server import ZooKeeperServer
from tests.known_bugs.stage import Stage
from tests.support.lab import Script


@pytest.fixture(scope="package")
def only_stage(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    with Stage(zookeeper_server, tmp_path_factory.mktemp("stage")) as stage:
        yield stage


@pytest.fixture
def stage(only_stage: Stage) -> Iterator[Stage]:
    """All brokers are there and one node is controller, whatever an earlier test has done."""
    for broker in only_stage.brokers.values():
        if not broker.is_registered:
            broker.register()
    only_stage.wait_registered(100, 101)
    only_stage.holder()
    yield only_stage
    for proxy in only_stage.proxies.values():
        proxy.restore()
    for broker in only_stage.brokers.values():
        broker.script = Script()
        broker.release()
    # What a failing test has left must not fail the next.
    for request in ("reassign_partitions", "preferred_replica_election"):
        with contextlib.suppress(NoNodeError):
            only_stage.zk.delete(f"/admin/{request}")
