"""An environment is made with the Python that is clearly the fastest, or with the first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tools.fastest_python import fastest, measure, others

SCRIPT = Path(__file__).resolve().parent.parent.parent / "tools" / "fastest_python.py"


def test_a_python_that_is_clearly_faster_replaces_the_first():
    assert fastest("a", ["b", "c"], {"a": 9.0, "b": 6.0, "c": 4.5}.__getitem__) == ("c", 0.5)


def test_a_python_that_is_a_little_faster_does_not():
    assert fastest("a", ["b"], {"a": 10.0, "b": 9.0}.__getitem__) == ("a", 1.0)


def test_one_slow_moment_of_a_python_does_not_count():
    times = {"a": iter([9.0, 9.0, 9.0, 9.0, 9.0]), "b": iter([30.0, 4.5, 30.0, 30.0, 30.0])}
    assert fastest("a", ["b"], lambda python: next(times[python])) == ("b", 0.5)


def test_the_time_of_a_python_is_measured_in_that_python():
    assert 0 < measure(sys.executable) < 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of the PATH with Pythons that only say which interpreter they are."""
    for name, script in {
        "python3.13": "echo /thirteen/python",
        "python3.12": "echo /thirteen/python",
        "python3.11": "exit 1",  # too old, no venv module, or the shim of one that is not there
        "python3": f"echo {os.path.realpath(sys.executable)}",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "python3").write_text("not a program")
    return tmp_path


def test_each_interpreter_is_tried_once(folder: Path):
    path = os.pathsep.join(map(str, (folder, folder / "other", folder / "nowhere")))
    assert list(others(path, sys.executable)) == [str(folder / "python3.13")]


def test_the_python_that_the_user_names_stays(folder: Path):
    run = subprocess.run(
        [sys.executable, SCRIPT],
        env={"PATH": str(folder), "PYTHON": "python3.13"},
        capture_output=True,
        text=True,
    )
    assert (run.stdout.strip(), run.stderr) == (sys.executable, "")
