"""A few random kills of every kind on every kind of table: `make spark-test`."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.spark_heavy, pytest.mark.timeout(1500)]

ROOT = Path(__file__).resolve().parents[3]
WAYS = [
    ["--to", "delta"],
    ["--to", "iceberg"],
    ["--to", "parquet"],
    ["--to", "delta", "--s3"],
    ["--to", "iceberg", "--s3"],
    ["--to", "parquet", "--s3"],
]


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_each_offset_is_in_the_table_once_whatever_is_killed(way):
    """`make ingest-kills` does the same with more records and more kills."""
    given = ["--records", "30000", "--batch", "5000", "--kills", "3", "--seed", "7"]
    finished = subprocess.run(
        [sys.executable, "-m", "tests.pipeline.ingest.kills", *given, *way],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1400,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr[-4000:]
    assert '"kills": 3' in finished.stdout
