"""Run the tests, and run failed tests of real processes once more, alone.

A test marked `real` watches real processes on a machine that other processes use as well. If such a
test fails among others and passes alone, it has a race: the run passes, prints the race and appends
it to out/races.txt. With CI=true, more than two races fail the run. A test without the mark is
deterministic and is never retried. The second run gets the options of the first one, and a test
counts as passed only if it was run and has passed.

This module is also the pytest plugin that records the outcomes of a run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

TESTS_FAILED: Final = 1
#: More failures than this are no coincidence, and are not retried.
RETRIES_MAX: Final = 12
RACES_MAX_IN_CI: Final = 2
RACES: Final = Path("out") / "races.txt"
_OPTION: Final = "--outcomes"


@dataclass
class Outcomes:
    """What became of a run's tests, by node id."""

    #: The arguments of the command line that name tests, rather than options.
    paths: list[str] = field(default_factory=list)
    passed: list[str] = field(default_factory=list)
    #: node id: whether the test is marked `real`.
    failed: dict[str, bool] = field(default_factory=dict)


class Recorder:
    """Collects the outcomes and writes them to a file at the end of the session."""

    def __init__(self, file: Path, paths: list[str]) -> None:
        self._file = file
        self._outcomes = Outcomes(paths)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._outcomes.failed[report.nodeid] = "real" in report.keywords
        elif report.when == "call" and report.passed:
            self._outcomes.passed.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self._file.write_text(json.dumps(asdict(self._outcomes)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(_OPTION, help="the file that gets the outcome of each test")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption(_OPTION)
    is_worker = hasattr(config, "workerinput")  # of pytest-xdist, which reports to its controller
    if file and not is_worker:
        paths = list(config.known_args_namespace.file_or_dir)
        config.pluginmanager.register(Recorder(Path(file), paths), "outcomes of tests")


def run(arguments: Sequence[str], file: Path) -> tuple[int, Outcomes]:
    """Run pytest; return its exit code and the outcomes."""
    own = ["-p", "tools.run_tests", _OPTION, str(file)]
    code = subprocess.run(
        [sys.executable, "-m", "pytest", *own, *arguments], check=False
    ).returncode
    return code, Outcomes(**json.loads(file.read_text())) if file.exists() else Outcomes()


def may_be_races(outcomes: Outcomes) -> bool:
    """Whether a retry can tell anything: a few failures, all of them of real processes."""
    return 0 < len(outcomes.failed) <= RETRIES_MAX and all(outcomes.failed.values())


def keep_races(races: Sequence[str]) -> None:
    """Print the races and append them to the file."""
    RACES.parent.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with RACES.open("a", encoding="utf-8") as file:
        for test in races:
            print(f"Race: {test} failed among others and passed alone; see {RACES}.")
            file.write(f"{now} {test}\n")


def main(arguments: Sequence[str]) -> int:
    with tempfile.TemporaryDirectory() as directory:
        code, first = run(arguments, Path(directory) / "first.json")
        if code != TESTS_FAILED or not may_be_races(first):
            return code
        failed = sorted(first.failed)
        print(f"\nRunning {len(failed)} failed tests of real processes again, alone.", flush=True)
        options = [each for each in arguments if each not in first.paths]
        alone = [*options, *(["-n", "0"] if "-n" in options else []), *failed]
        code, second = run(alone, Path(directory) / "second.json")
    races = [test for test in failed if test in second.passed and test not in second.failed]
    keep_races(races)
    if len(races) < len(failed):
        return code or TESTS_FAILED
    if os.environ.get("CI") == "true" and len(races) > RACES_MAX_IN_CI:
        print(f"{len(races)} races in one run; in CI at most {RACES_MAX_IN_CI} are accepted.")
        return TESTS_FAILED
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
