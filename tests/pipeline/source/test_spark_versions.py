"""Every version of Spark that the source is for, each in an environment of its own.

`make spark-versions` runs these. Environments are made on first use, in `.setup/spark-versions`.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.spark import connector
from tests.pipeline.source.conftest import produce
from tools.spark_wheel import DEPENDENCIES, build

pytestmark = [pytest.mark.real, pytest.mark.spark_versions, pytest.mark.timeout(1800)]

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENTS = ROOT / ".setup" / "spark-versions"
VERSIONS = ("4.0.0", "4.1.4", "4.2.1", "4.3.0")


def environment(version: str) -> Path:
    """A Python with this pyspark and without klamm."""
    folder = ENVIRONMENTS / f"v{version}"
    python = folder / "bin" / "python"
    complete = folder / ".complete"
    if not complete.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        subprocess.run([*pip, f"pyspark=={version}", "pandas<3", *DEPENDENCIES], check=True)
        complete.touch()
    return python


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the wheel `pyspark-klamm` is installed, without anything else."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index")
    subprocess.run([*pip, "--target", folder / "installed", build(folder)], check=True)
    return folder / "installed"


def run(python: Path, installed: Path, script: str, *arguments: str) -> Any:
    finished = subprocess.run(
        [python, Path(__file__).with_name(script), *arguments],
        env={key: value for key, value in os.environ.items() if not key.startswith("PYSPARK")}
        | {"PYTHONPATH": str(installed), "SPARK_LOCAL_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert finished.returncode == 0, finished.stderr[-4000:]
    return json.loads(finished.stdout.splitlines()[-1])


def test_reading_and_writing_work_and_what_is_lacking_is_said(
    version, installed, cluster, topic, tmp_path
):
    for name in (topic, f"{topic}-copy"):
        cluster.create(name, partitions=2, factor=1)
    arguments = (cluster.bootstrap, topic, str(tmp_path))
    found = run(environment(version), installed, "version_job.py", *arguments)
    assert found["read"]
    assert found["headers"]
    assert found["columns"] == ["offset", "value"]
    assert found["copied"]
    assert found["all copied"]
    assert found["partitions"] == 2
    assert "did you mean 'startingOffsets'" in found["unknown"]
    if version < "4.2":
        assert f"maxOffsetsPerTrigger needs pyspark 4.2; this is {version}" in found["limited"]
    else:
        assert found["limited"] is None
        assert found["batches"] == 2
    if version < "4.1":
        assert f"pushFilters needs pyspark 4.1; this is {version}" in found["filtered"]
    else:
        assert found["kept"] == 10


@pytest.mark.skipif(shutil.which("mvn") is None, reason="Spark's connector comes by Maven")
def test_a_query_changes_between_sparks_own_format_and_this_one(
    installed, cluster, topic, tmp_path
):
    python, jars = connector()
    cluster.create(topic, partitions=2, factor=1)
    for turn, form in enumerate(("klamm", "kafka", "klamm", "kafka")):
        produce(cluster, topic, range(turn * 50, (turn + 1) * 50), partitions=2)
        arguments = (form, cluster.bootstrap, topic, str(tmp_path), ",".join(map(str, jars)))
        assert run(python, installed, "format_job.py", *arguments) == [*range((turn + 1) * 50)]


def test_the_wheel_has_the_source_and_not_the_rest(installed):
    names = {path.name for path in (installed / "klamm").iterdir()}
    assert {"pipeline", "protocol", "client", "net", "errors.py"} <= names
    assert not names & {"broker", "controller", "core", "local", "cli", "zookeeper"}
    (metadata,) = installed.glob("pyspark_klamm-*.dist-info/METADATA")
    needed = [
        line for line in metadata.read_text().splitlines() if line.startswith("Requires-Dist")
    ]
    assert needed
    assert not any("pyspark" in line for line in needed)
