"""A run that has compared nothing with Apache Kafka does not pass."""

import pytest


def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    seen = {outcome for outcome, reports in reporter.stats.items() if reports}
    if "skipped" in seen and not seen & {"passed", "failed", "error"}:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
