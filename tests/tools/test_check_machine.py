"""A machine that lacks something is told so in one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent.parent / "tools" / "check-machine"


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A PATH with the tools of every Unix, and neither Python nor Java."""
    for tool in ("sed", "head", "sh"):
        (tmp_path / tool).symlink_to(_where(tool))
    return tmp_path


def _where(tool: str) -> str:
    found = (Path(folder, tool) for folder in os.environ["PATH"].split(os.pathsep))
    return str(next(path for path in found if path.exists()))


def add(machine: Path, name: str, script: str) -> None:
    path = machine / name
    path.write_text(f"#!{_where('sh')}\n{script}\n")
    path.chmod(0o755)


def add_python(machine: Path) -> None:
    add(machine, "python3", f'exec "{sys.executable}" "$@"')


def add_java(machine: Path, version: str) -> None:
    add(machine, "java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")


def check(machine: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT], env={"PATH": str(machine), **environment}, capture_output=True, text=True
    )


def complaint(machine: Path, **environment: str) -> str:
    result = check(machine, **environment)
    assert result.returncode == 1
    assert result.stdout == ""
    (sentence,) = result.stderr.splitlines()
    return sentence


@pytest.mark.parametrize("version", ["17.0.15", "21", "25-ea"])
def test_a_fit_machine_prints_its_python(machine: Path, version: str):
    add_python(machine)
    add_java(machine, version)
    result = check(machine)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.strip() == str(machine / "python3")


def test_without_python_it_says_what_to_install(machine: Path):
    assert "needs Python 3.11 or newer, and none was found: install it" in complaint(machine)


def test_a_python_that_is_too_old_does_not_count(machine: Path):
    add(machine, "python3", "exit 1")
    assert "needs Python 3.11 or newer" in complaint(machine)


def test_the_python_of_choice_has_to_do(machine: Path):
    add_python(machine)
    assert "PYTHON=nowhere is not a Python 3.11" in complaint(machine, PYTHON="nowhere")


def test_a_python_without_venv_says_what_to_install(machine: Path):
    # What Debian ships without python3-venv: ensurepip cannot be imported.
    add(machine, "python3", 'case "$2" in *ensurepip*) exit 1;; *) exit 0;; esac')
    assert "install it (Debian: python3-venv)" in complaint(machine)


def test_without_java_it_says_what_to_install(machine: Path):
    add_python(machine)
    assert "needs Java 17 or newer, and the PATH has none" in complaint(machine)
    assert "JAVA_HOME=nowhere has none" in complaint(machine, JAVA_HOME="nowhere")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.22", "16"])
def test_a_java_that_is_too_old_is_named_with_its_version(machine: Path, version: str):
    add_python(machine)
    add_java(machine, version)
    assert f"needs Java 17 or newer, and java is {version}" in complaint(machine)


def test_java_home_goes_before_the_path(machine: Path):
    add_python(machine)
    add_java(machine, "11")
    home = machine / "home"
    (home / "bin").mkdir(parents=True)
    add(home / "bin", "java", "echo 'openjdk version \"17.0.1\"' >&2")
    assert check(machine, JAVA_HOME=str(home)).returncode == 0
