"""The laboratory as a fixture."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from klamm.zookeeper.server import ZooKeeperServer
from tests.controller.lab import Lab


@pytest.fixture
def lab(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> Iterator[Lab]:
    with Lab(zookeeper_server.address, tmp_path) as lab:
        yield lab
