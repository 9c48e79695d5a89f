"""What is chosen for a session, and for how long."""

from pathlib import Path

import pytest
from pyspark.errors import PySparkException

from klamm.pipeline.session import LITTLE_BYTES, are_little, told_by_task
from tests.support.command_line import run_process


def test_folders_are_little_together_or_not(tmp_path: Path):
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "b").write_bytes(bytes(LITTLE_BYTES // 2))
    (tmp_path / "a" / "deep" / "c").write_bytes(bytes(LITTLE_BYTES // 2))
    assert are_little([tmp_path / "a", tmp_path / "b"])
    (tmp_path / "a" / "d").write_bytes(b"x")
    assert not are_little([tmp_path / "a", tmp_path / "b"])


def test_what_is_not_here_may_be_large(tmp_path: Path):
    assert not are_little([tmp_path / "nowhere"])
    assert not are_little([Path("s3://bucket/snapshot")])


@pytest.mark.real
def test_without_java_it_says_so(tmp_path: Path):
    (tmp_path / "snapshot").mkdir()
    run_process(
        *("whatif", "--snapshot", str(tmp_path / "snapshot")),
        *("--fail", "brokers:1", "--out", str(tmp_path / "out")),
        environment={"JAVA_HOME": str(tmp_path)},
    ).failed("Spark needs Java 17 or newer")


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        ("OSError: [Errno 28] No space left on device: 'x'", "OSError: [Errno 28] No space left"),
        ("klamm.errors.UnavailableError: Nothing was to be had", "Nothing was to be had"),
        ("klamm.pipeline.ingest.expectations.ExpectationError: 3 rows", "3 rows"),
    ],
)
def test_what_a_task_raised_is_told_without_the_way_to_it(raised, told):
    text = f"Job aborted\nTraceback (most recent call last):\n  File x\n{raised}\n\tat org.apache.x"
    assert str(told_by_task(PySparkException(text))).startswith(told)
