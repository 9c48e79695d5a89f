"""How the tests are run, and the fixtures that several packages share.

`HYPOTHESIS_PROFILE` chooses the profile. Each process of a run has one ZooKeeper; one process has
Spark. Tests that leave a cluster as they found it share `cluster`; `breakable` and `start_cluster`
are for the others.
"""

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from klamm.zookeeper.server import ZooKeeperServer
from tests.support.cluster import RealCluster
from tests.support.lab import Lab

# No deadlines: a loaded machine is not a bug.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("dev", PATIENT)
settings.register_profile("quick", PATIENT, max_examples=20)
settings.register_profile("ci", PATIENT, derandomize=True)
settings.register_profile("nightly", PATIENT, max_examples=5_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


class SparkInOneProcess(LoadScopeScheduling):
    """Give tests to idle workers, but all Spark tests to one: Spark takes long to start."""

    def _split_scope(self, nodeid: str) -> str:
        return "spark" if nodeid.startswith("tests/pipeline/") else nodeid


def pytest_xdist_auto_num_workers() -> int:
    """One more than there are cores: tests of real processes wait about a third of their time."""
    return (os.cpu_count() or 1) + 1


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SparkInOneProcess:
    return SparkInOneProcess(config, log)


#: Fixtures that start processes: a test that uses one of them is a test of real processes.
_STARTS_PROCESSES = frozenset({"zookeeper_server", "spark", "klamm_cluster"})


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        if _STARTS_PROCESSES & set(item.fixturenames):
            item.add_marker(pytest.mark.real)
        # Pytest finds this out when the test runs, and some run rarely.
        found = item._fixtureinfo.name2fixturedefs
        if unknown := {*item.fixturenames} - {*found, "request"}:
            raise pytest.UsageError(f"{item.nodeid} has no fixture {', '.join(sorted(unknown))}")


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    """A real server for the whole run: each test takes a chroot of its own, and kills another."""
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="session")
def kafka_libs() -> Path:
    """The folder of Apache Kafka's jars."""
    if not shutil.which("java"):
        pytest.skip("there is no java to run Apache Kafka with")
    if "KAFKA_LIBS" not in os.environ:
        pytest.skip("no jars of Apache Kafka: KAFKA_LIBS is unset, or Maven could not bring them")
    return Path(os.environ["KAFKA_LIBS"])


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
