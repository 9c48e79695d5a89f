"""The archive of classes and the chatter of a JVM; sessions that use both are in test_session."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from klamm.pipeline.jvm import ClassArchive, log_options

MAGIC = (0xF00BABA8).to_bytes(4, "little")


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KLAMM_CLASS_ARCHIVE", raising=False)
    return tmp_path / "klamm"


def test_one_command_makes_the_archive_and_later_ones_use_it(cache: Path):
    first = ClassArchive.find()
    assert first is not None
    assert first.is_new
    assert f"-XX:ArchiveClassesAtExit={first.path}" in first.options()
    assert ClassArchive.find() is None  # the first is at it
    first.path.write_bytes(bytes(8))  # not complete yet
    assert ClassArchive.find() is None
    first.path.write_bytes(MAGIC + bytes(4))
    found = ClassArchive.find()
    assert found == ClassArchive(first.path, is_new=False)
    assert f"-XX:SharedArchiveFile={first.path}" in found.options()


def test_who_claimed_the_archive_and_died_is_forgotten(cache: Path):
    assert ClassArchive.find() is not None
    (claim,) = cache.glob("*.claim")
    os.utime(claim, (0, 0))
    assert ClassArchive.find() is not None


def test_an_archive_is_not_wanted_or_cannot_be_kept(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    cache.write_text("in the way")
    assert ClassArchive.find() is None
    cache.unlink()
    monkeypatch.setenv("KLAMM_CLASS_ARCHIVE", "no")
    assert ClassArchive.find() is None


def test_a_log_setting_of_the_users_takes_precedence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.delenv("SPARK_CONF_DIR", raising=False)
    path = log_options().removeprefix("-Dlog4j2.configurationFile=file:")
    assert "rootLogger.level = error" in Path(path).read_text()
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert log_options()
    (tmp_path / "log4j2.properties").touch()
    assert log_options() == ""


def test_known_chatter_is_left_out_and_the_rest_passed_on():
    script = """
import subprocess, sys, threading
from klamm.pipeline.jvm import without_chatter
talk = "import sys; sys.stderr.write('WARNING: Using incubator modules: x\\\\nit fails\\\\n')"
with without_chatter():
    subprocess.run([sys.executable, "-c", talk])
for each in threading.enumerate():
    each.name == "stderr" and each.join()
sys.stderr.write("the end\\n")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == "it fails\nthe end\n"
