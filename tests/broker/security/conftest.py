"""The broker that the tests of this package share."""

from collections.abc import Iterator

import pytest

from klamm.zookeeper.server import ZooKeeperServer
from tests.support.secured import SecuredBroker


@pytest.fixture(scope="session")
def secured(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SecuredBroker]:
    """One broker with a listener of each security protocol."""
    with SecuredBroker(zookeeper_server, tmp_path_factory.mktemp("secured")) as started:
        yield started
