"""How the tests are run: hypothesis profiles, chosen with `HYPOTHESIS_PROFILE`; one ZooKeeper."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from klamm.zookeeper.server import ZooKeeperServer

# No deadlines: a loaded machine is not a bug.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", PATIENT)
settings.register_profile("ci", PATIENT, derandomize=True)
settings.register_profile("nightly", PATIENT, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    """A real server for the whole run: each test takes a chroot of its own, and kills another."""
    with ZooKeeperServer() as server:
        yield server
