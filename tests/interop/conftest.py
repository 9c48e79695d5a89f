"""Where Apache Kafka comes from; and a run that has compared nothing does not pass."""

import os
import shutil
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def kafka_libs() -> Path:
    """The folder of Apache Kafka's jars."""
    if not shutil.which("java"):
        pytest.skip("there is no java to run Apache Kafka with")
    if "KAFKA_LIBS" not in os.environ:
        pytest.skip("no jars of Apache Kafka: KAFKA_LIBS is unset, or Maven could not bring them")
    return Path(os.environ["KAFKA_LIBS"])


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    seen = {outcome for outcome, reports in reporter.stats.items() if reports}
    if "skipped" in seen and not seen & {"passed", "failed", "error"}:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
