"""The pytest fixture `klamm_cluster`, registered by installing the package.

    def test_orders_survive_a_broker(klamm_cluster, klamm_topic_prefix):
        topic = klamm_topic_prefix + "orders"
        klamm_cluster.create_topic(topic, partitions=3)
        klamm_cluster.kill(klamm_cluster.leader(topic))
        ...

    @pytest.mark.klamm_cluster(brokers=5, racks=["a", "b", "c"], config={"min.insync.replicas": 2})
    def test_something_that_needs_more(klamm_cluster): ...

One cluster of three serves the whole session. Tests that are marked share a cluster of the kind
they ask for, and pytest orders them so that each kind is started once. After each test, all brokers
are started, resumed and reconnected.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from klamm.local.cluster import Cluster

_MARKER = "klamm_cluster"
_RUNNING = pytest.StashKey["Cluster"]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("klamm").addoption(
        "--klamm-security",
        choices=("ssl", "sasl_plaintext", "sasl_ssl"),
        help="secure every klamm_cluster whose test does not say how",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(brokers=3, racks=None, config=None, security=None): "
        "the cluster that this test is given",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # Unmarked tests get a parameter as well: pytest brings together what has the same one.
    if "klamm_cluster" in metafunc.fixturenames:
        wanted = _Wanted(metafunc.definition.get_closest_marker(_MARKER))
        metafunc.parametrize(
            "klamm_cluster", [wanted], indirect=True, scope="session", ids=[pytest.HIDDEN_PARAM]
        )


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Heal the cluster after each test."""
    cluster = item.config.stash.get(_RUNNING, None)
    if cluster is not None and "klamm_cluster" in getattr(item, "fixturenames", ()):
        cluster.heal()


class _Wanted:
    """The arguments of a marker; tests with equal ones share a cluster."""

    def __init__(self, marker: pytest.Mark | None) -> None:
        self.arguments: dict[str, Any] = {} if marker is None else dict(marker.kwargs)
        unknown = sorted(set(self.arguments) - {"brokers", "racks", "config", "security"})
        if unknown or (marker is not None and marker.args):
            raise pytest.UsageError(
                f"{_MARKER} takes brokers=, racks=, config= and security=, nothing else"
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Wanted) and self.arguments == other.arguments

    def __hash__(self) -> int:
        return hash(repr(sorted(self.arguments.items())))


@pytest.fixture(scope="session")
def klamm_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A running `klamm.Cluster`, of three brokers unless the test is marked."""
    from klamm.local.cluster import Cluster

    # Asked for by name while a test runs, it comes without a parameter.
    wanted = getattr(request, "param", None) or _Wanted(None)
    security = request.config.getoption("--klamm-security")
    with Cluster(**{"security": security, **wanted.arguments}) as cluster:
        request.config.stash[_RUNNING] = cluster
        yield cluster
        del request.config.stash[_RUNNING]


@pytest.fixture
def klamm_topic_prefix(request: pytest.FixtureRequest) -> str:
    """A prefix for topic names that is unique to the test."""
    name = re.sub(r"[^A-Za-z0-9_]+", "-", request.node.name)[:80].strip("-")
    return f"{name}-{uuid.uuid4().hex[:8]}-"
