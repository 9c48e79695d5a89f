"""The pytest fixtures `klamm_cluster` and `klamm_chaos`, registered by installing the package.

    def test_orders_survive_a_broker(klamm_cluster, klamm_topic_prefix):
        topic = klamm_topic_prefix + "orders"
        klamm_cluster.create_topic(topic, partitions=3)
        klamm_cluster.kill(klamm_cluster.leader(topic))
        ...

    @pytest.mark.klamm_cluster(brokers=5, racks=["a", "b", "c"], config={"min.insync.replicas": 2})
    def test_something_that_needs_more(klamm_cluster): ...

    def test_orders_survive_failovers(klamm_cluster, klamm_chaos):
        ...  # brokers fail and come back meanwhile; --klamm-chaos-seed repeats it

One cluster of three serves the whole session. Tests that are marked share a cluster of the kind
they ask for, and pytest orders them so that each kind is started once. After each test, injected
faults end and all brokers are started, resumed and reconnected. A failing test shows the story of
its topics and the tail of the brokers' logs.
"""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from klamm.local.chaos import Chaos
    from klamm.local.cluster import Cluster
    from klamm.local.failure_story import FailureStory

_MARKER = "klamm_cluster"
_CHAOS_MARKER = "klamm_chaos"
_SEED_VARIABLE = "KLAMM_CHAOS_SEED"
_OLDEST_PYTEST = "8.4"
#: The cluster that runs, by the config of the session; attributes of older pytests differ.
_running: dict[pytest.Config, Cluster] = {}
#: What each test that runs on a cluster is shown if it fails.
_stories: dict[str, FailureStory] = {}
#: Lines for the end of the run.
_seeds: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("klamm")
    group.addoption(
        "--klamm-security",
        choices=("ssl", "sasl_plaintext", "sasl_ssl"),
        help="secure every klamm_cluster whose test does not say how",
    )
    group.addoption(
        "--klamm-chaos-seed",
        type=int,
        metavar="N",
        help=f"repeat the failovers of klamm_chaos; default: ${_SEED_VARIABLE}, or a random one",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_MARKER}(brokers=3, racks=None, config=None, security=None): "
        "the cluster that this test is given",
    )
    config.addinivalue_line(
        "markers",
        f"{_CHAOS_MARKER}(actions=('kill', 'stop', 'pause'), seed=None): "
        "what klamm_chaos does to brokers during this test",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    # Unmarked tests get a parameter as well: pytest brings together what has the same one.
    if "klamm_cluster" in metafunc.fixturenames:
        hidden = getattr(pytest, "HIDDEN_PARAM", None)
        if hidden is None:
            raise pytest.UsageError(
                f"klamm_cluster needs pytest {_OLDEST_PYTEST} or newer, and this is "
                f"{pytest.__version__}: pip install --upgrade pytest"
            )
        wanted = _Wanted(metafunc.definition.get_closest_marker(_MARKER))
        metafunc.parametrize(
            "klamm_cluster", [wanted], indirect=True, scope="session", ids=[hidden]
        )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note where the logs end before the test and its fixtures do anything."""
    cluster = _running.get(item.config)
    if cluster is not None and _uses_cluster(item):
        from klamm.local.failure_story import FailureStory

        _stories[item.nodeid] = FailureStory.from_now_on(cluster)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Add to the report of a failure what happened to the cluster during the test."""
    outcome = yield
    report = outcome.get_result()
    cluster = _running.get(item.config)
    if report.failed and cluster is not None and _uses_cluster(item):
        from klamm.local.failure_story import FailureStory

        # The first test of a cluster starts it.
        story = _stories.get(item.nodeid) or FailureStory(cluster)
        report.sections.extend(story.sections())


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Heal the cluster after each test."""
    cluster = _running.get(item.config)
    if cluster is not None and _uses_cluster(item):
        cluster.heal()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Take the seed from a report, which may come from another process."""
    if report.when == "teardown":
        _stories.pop(report.nodeid, None)
        _seeds.extend(str(text) for name, text in report.user_properties if name == _CHAOS_MARKER)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the seeds, which repeat the failovers."""
    if _seeds:
        terminalreporter.section("klamm_chaos")
        for line in _seeds:
            terminalreporter.line(line)
        _seeds.clear()


def _uses_cluster(item: pytest.Item) -> bool:
    return "klamm_cluster" in getattr(item, "fixturenames", ())


class _Wanted:
    """The arguments of a marker; tests with equal ones share a cluster."""

    def __init__(self, marker: pytest.Mark | None) -> None:
        known = {"brokers", "racks", "config", "security"}
        self.arguments = _arguments(marker, known, "brokers=, racks=, config= and security=")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Wanted) and self.arguments == other.arguments

    def __hash__(self) -> int:
        return hash(repr(sorted(self.arguments.items())))


def _arguments(marker: pytest.Mark | None, known: set[str], listed: str) -> dict[str, Any]:
    if marker is None:
        return {}
    if marker.args or not set(marker.kwargs) <= known:
        raise pytest.UsageError(f"{marker.name} takes {listed}, nothing else")
    return dict(marker.kwargs)


@pytest.fixture(scope="session")
def klamm_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A running `klamm.Cluster`, of three brokers unless the test is marked."""
    from klamm.local.cluster import Cluster

    # Asked for by name while a test runs, it comes without a parameter.
    wanted = getattr(request, "param", None) or _Wanted(None)
    security = request.config.getoption("--klamm-security")
    with Cluster(**{"security": security, **wanted.arguments}) as cluster:
        _running[request.config] = cluster
        yield cluster
        del _running[request.config]


@pytest.fixture
def klamm_chaos(request: pytest.FixtureRequest, klamm_cluster: Cluster) -> Iterator[Chaos]:
    """Brokers that fail over one after another while the test runs, and are healthy afterwards.

    `klamm_chaos.failovers` lists what has happened; `wait_failovers(3)` waits for three of them.
    """
    from klamm.local.chaos import Chaos

    marker = request.node.get_closest_marker(_CHAOS_MARKER)
    arguments = _arguments(marker, {"actions", "seed"}, "actions= and seed=")
    seed = request.config.getoption("--klamm-chaos-seed")
    if seed is None:
        seed = arguments.get("seed", _seed_of_environment())
    chaos = Chaos(klamm_cluster, **{**arguments, "seed": seed})
    # Shown with a failure of this test, and in full at the end of the run.
    print(f"klamm_chaos: seed {chaos.seed}; repeat with --klamm-chaos-seed={chaos.seed}")
    try:
        with chaos:
            yield chaos
    finally:
        for each in chaos.failovers:
            print(f"klamm_chaos: {each}")
        request.node.user_properties.append((_CHAOS_MARKER, f"{request.node.nodeid}: {chaos}"))


def _seed_of_environment() -> int | None:
    text = os.environ.get(_SEED_VARIABLE)
    if not text:
        return None
    if not text.isdecimal():
        raise pytest.UsageError(f"{_SEED_VARIABLE}={text}: a number is expected")
    return int(text)


@pytest.fixture
def klamm_topic_prefix(request: pytest.FixtureRequest) -> str:
    """A prefix for topic names that is unique to the test."""
    name = re.sub(r"[^A-Za-z0-9_]+", "-", request.node.name)[:80].strip("-")
    return f"{name}-{uuid.uuid4().hex[:8]}-"
