"""The laboratory as fixtures: one for a test that disturbs others, or one for a whole module."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from klamm.zookeeper.server import ZooKeeperServer
from tests.controller.lab import Lab


@pytest.fixture
def lab(zookeeper_server: ZooKeeperServer, tmp_path: Path) -> Iterator[Lab]:
    """For one test alone."""
    with Lab(zookeeper_server.address, tmp_path) as lab:
        yield lab


@pytest.fixture(scope="module")
def new_lab(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[], Lab]]:
    """For the tests of a module that do not disturb each other: starting a node takes its time."""
    with contextlib.ExitStack() as labs:
        yield lambda: labs.enter_context(
            Lab(zookeeper_server.address, tmp_path_factory.mktemp("lab"))
        )
