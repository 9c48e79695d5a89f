"""The scripted brokers and the controller that tests of this folder share."""

from collections.abc import Callable

import pytest

from tests.support.lab import Lab, Node


@pytest.fixture(scope="module")
def shared(new_lab: Callable[[], Lab]) -> Lab:
    """Scripted brokers 1 to 3 and controller 100, which holds no data."""
    lab = new_lab()
    lab.start(brokers=3)
    return lab


@pytest.fixture(scope="module")
def node(shared: Lab) -> Node:
    return shared.nodes[100]
