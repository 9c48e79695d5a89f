"""Retries of tools/run_tests.py, on small test suites that are run for real."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.run_tests import RETRIES_MAX, Outcomes, may_be_races

ROOT = Path(__file__).resolve().parents[2]
#: Fails the first time it is run, and passes afterwards.
FLAKY = """
    def test_{name}():
        import pathlib
        marker = pathlib.Path("ran-{name}")
        was_there = marker.exists()
        marker.touch()
        assert was_there
"""


class Suite:
    """A folder with tests, run as `make test` runs those of the project."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pytest.ini").write_text("[pytest]\nmarkers =\n  real: real processes\n")
        self.text = "import pytest\n"

    def add(self, name: str, *, real: bool, body: str | None = None) -> None:
        mark = "\n@pytest.mark.real" if real else "\n"
        code = FLAKY.format(name=name) if body is None else f"\n    def test_{name}():\n{body}\n"
        self.text += mark + code.replace("\n    ", "\n")

    def run(self, *options: str, ci: bool = False) -> subprocess.CompletedProcess[str]:
        (self.folder / "test_it.py").write_text(self.text)
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "CI": str(ci).lower(),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        environment.pop("PYTEST_XDIST_WORKER", None)
        return subprocess.run(
            [sys.executable, "-m", "tools.run_tests", "-q", *options],
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def races(self) -> list[str]:
        file = self.folder / "out" / "races.txt"
        return [line.split()[1] for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def suite(tmp_path: Path) -> Suite:
    return Suite(tmp_path)


def test_a_real_test_that_passes_alone_is_a_race_and_is_written_down(suite: Suite):
    suite.add("flaky", real=True)
    done = suite.run("test_it.py")
    assert done.returncode == 0, done.stdout
    assert "Race: test_it.py::test_flaky" in done.stdout
    assert suite.races() == ["test_it.py::test_flaky"]


def test_a_test_without_real_processes_is_not_retried(suite: Suite):
    suite.add("flaky", real=False)
    assert suite.run().returncode == 1
    assert suite.races() == []


def test_a_test_that_fails_twice_has_failed(suite: Suite):
    suite.add("flaky", real=True)
    suite.add("broken", real=True, body="        assert False")
    assert suite.run().returncode == 1
    assert suite.races() == ["test_it.py::test_flaky"]


def test_the_retry_has_the_options_of_the_first_run(suite: Suite):
    suite.add("flaky", real=True)
    suite.add("other", real=True, body="        assert False")
    done = suite.run("-k", "flaky")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("1 deselected") == 1  # the retry names its tests


def test_in_ci_more_than_two_races_fail_the_run(suite: Suite):
    for name in ("one", "two", "three"):
        suite.add(name, real=True)
    assert suite.run(ci=True).returncode == 1
    assert len(suite.races()) == 3


def test_a_test_that_the_retry_did_not_run_has_not_passed(suite: Suite):
    suite.add("flaky", real=True)
    # A test that is there in the first run only is neither passed nor failed in the second.
    suite.text += "\nimport pathlib\nif pathlib.Path('ran-flaky').exists():\n    del test_flaky\n"
    assert suite.run().returncode != 0
    assert suite.races() == []


def test_many_failures_are_no_coincidence():
    few = {f"test_{number}": True for number in range(RETRIES_MAX)}
    assert may_be_races(Outcomes(failed=few))
    assert not may_be_races(Outcomes(failed=few | {"one more": True}))
    assert not may_be_races(Outcomes(failed={"real": True, "pure": False}))
