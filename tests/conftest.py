"""How the tests are run: hypothesis profiles, chosen with `HYPOTHESIS_PROFILE`; one ZooKeeper for
each process, and Spark in one of them only.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from klamm.zookeeper.server import ZooKeeperServer

# No deadlines: a loaded machine is not a bug.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", PATIENT)
settings.register_profile("ci", PATIENT, derandomize=True)
settings.register_profile("nightly", PATIENT, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


class SparkInOneProcess(LoadScopeScheduling):
    """Test by test to whoever is free; but a second Spark would cost a minute of everybody's."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/pipeline/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SparkInOneProcess:
    return SparkInOneProcess(config, log)


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    """A real server for the whole run: each test takes a chroot of its own, and kills another."""
    with ZooKeeperServer() as server:
        yield server
