"""The fixture that comes with the package, in a project of somebody else."""

import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = """
import pytest

used = []


def test_brokers_can_be_killed(klamm_cluster, klamm_topic_prefix):
    used.append((klamm_cluster, klamm_topic_prefix))
    klamm_cluster.create_topic(klamm_topic_prefix + "orders")
    klamm_cluster.kill(1)


@pytest.mark.klamm_cluster(brokers=1, config={"num.partitions": 4})
def test_a_cluster_of_ones_own(klamm_cluster):
    used.append((klamm_cluster, ""))
    assert klamm_cluster.broker_ids == [1]


def test_and_the_next_test_finds_them_running(klamm_cluster, klamm_topic_prefix):
    (first, prefix) = used[0]
    assert klamm_cluster is first
    assert klamm_cluster.registered() == {1, 2, 3}
    assert klamm_topic_prefix != prefix
"""


@pytest.mark.real
def test_a_session_has_one_cluster_which_is_healed_after_each_test(tmp_path: Path):
    (tmp_path / "test_user.py").write_text(PROJECT)
    command = (sys.executable, "-m", "pytest", "-v", "-W", "error", "-p", "no:cacheprovider")
    result = subprocess.run(
        [*command, "test_user.py"], cwd=tmp_path, capture_output=True, text=True, timeout=110
    )
    assert result.returncode == 0, result.stdout
    names = [line.split("::")[1].split()[0] for line in result.stdout.splitlines() if "::" in line]
    assert names[:3] == [
        "test_brokers_can_be_killed",
        "test_and_the_next_test_finds_them_running",
        "test_a_cluster_of_ones_own",
    ], "in the order of the clusters, and under their own names"


def test_a_marker_takes_only_what_a_cluster_can_be_given(tmp_path: Path):
    (tmp_path / "test_user.py").write_text(
        "import pytest\n@pytest.mark.klamm_cluster(broker=1)\ndef test_it(klamm_cluster): ...\n"
    )
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert "takes brokers=, racks=, config= and security=" in result.stdout
