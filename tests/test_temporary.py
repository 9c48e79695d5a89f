"""Temporary directories, and what is left of them when a process is killed."""

import subprocess
import sys

import pytest

from klamm.temporary import TemporaryFolder


@pytest.fixture(autouse=True)
def _own_place(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_the_directory_of_a_killed_process_is_removed_by_the_next(tmp_path):
    killed = subprocess.run(
        [
            sys.executable,
            "-c",
            "import os, signal, tempfile\n"
            f"tempfile.tempdir = {str(tmp_path)!r}\n"
            "from klamm.temporary import TemporaryFolder\n"
            "folder = TemporaryFolder('test')\n"
            "(folder.path / 'data').write_text('x')\n"
            "print(folder.path, flush=True)\n"
            "os.kill(os.getpid(), signal.SIGKILL)\n",
        ],
        capture_output=True,
        text=True,
    )
    (left,) = tmp_path.iterdir()
    assert str(left) == killed.stdout.strip()
    folder = TemporaryFolder("test")
    assert list(tmp_path.iterdir()) == [folder.path]
    folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_directories_in_use_and_those_of_other_kinds_stay(tmp_path):
    in_use = TemporaryFolder("test")
    other = tmp_path / "klamm-other-1"
    other.mkdir()
    (other / "lock").touch()
    unlocked = tmp_path / "klamm-test-without-a-lock"
    unlocked.mkdir()
    TemporaryFolder("test").remove()
    assert set(tmp_path.iterdir()) == {in_use.path, other, unlocked}
    in_use.remove()
