"""The fixture that comes with the package, in a project of somebody else."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from klamm.pytest_plugin import _seed_of_environment

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


@pytest.mark.klamm_chaos(actions=["stop"])
def test_brokers_fail_over_meanwhile(klamm_cluster, klamm_chaos, klamm_topic_prefix):
    klamm_cluster.create_topic(klamm_topic_prefix + "orders")
    klamm_chaos.wait_failovers(1)
    assert klamm_chaos.failovers[0].action == "stop"


def test_this_one_fails(klamm_cluster, klamm_topic_prefix):
    assert klamm_cluster.registered() == {1, 2, 3}, "healthy again"
    topic = klamm_topic_prefix + "orders"
    klamm_cluster.create_topic(topic)
    klamm_cluster.inject("Produce", error="NOT_LEADER_OR_FOLLOWER")
    assert klamm_cluster.leader(topic) is None


def test_faults_end_with_their_test(klamm_cluster):
    assert klamm_cluster.faults == []
"""


@pytest.mark.real
def test_a_session_has_one_cluster_which_is_healed_after_each_test(tmp_path: Path):
    (tmp_path / "test_user.py").write_text(PROJECT)
    command = (sys.executable, "-m", "pytest", "-v", "-W", "error", "-p", "no:cacheprovider")
    result = subprocess.run(
        [*command, "--klamm-chaos-seed=7", "test_user.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert result.returncode == 1, result.stdout
    assert "1 failed, 5 passed" in result.stdout
    names = [line.split("::")[1].split()[0] for line in result.stdout.splitlines() if "::" in line]
    assert names[:6] == [
        "test_brokers_can_be_killed",
        "test_and_the_next_test_finds_them_running",
        "test_brokers_fail_over_meanwhile",
        "test_this_one_fails",
        "test_faults_end_with_their_test",
        "test_a_cluster_of_ones_own",
    ], "in the order of the clusters, and under their own names"
    shown = result.stdout
    assert re.search(r"- klamm story test_this_one_fails-\w+-orders-0 -", shown)
    assert re.search(r"test_this_one_fails-\w+-orders-0 was created with leader", shown)
    assert "klamm log of broker 3, running" in shown
    assert "klamm story test_brokers_can_be_killed" not in shown, "only topics of the failed test"
    assert "test_brokers_fail_over_meanwhile: seed 7, " in shown


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


def test_a_pytest_that_is_too_old_is_named(tmp_path: Path):
    (tmp_path / "conftest.py").write_text("import pytest\ndel pytest.HIDDEN_PARAM\n")
    (tmp_path / "test_user.py").write_text("def test_it(klamm_cluster): ...\n")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert f"klamm_cluster needs pytest 8.4 or newer, and this is {pytest.__version__}" in (
        result.stdout
    )


def test_the_seed_of_the_environment_has_to_be_a_number(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("KLAMM_CHAOS_SEED", "seven")
    with pytest.raises(pytest.UsageError, match="KLAMM_CHAOS_SEED=seven: a number is expected"):
        _seed_of_environment()
    monkeypatch.setenv("KLAMM_CHAOS_SEED", "7")
    assert _seed_of_environment() == 7


SECURED = """
import pytest
from confluent_kafka import Producer


@pytest.mark.klamm_cluster(brokers=1)
def test_clients_are_given_what_they_need(klamm_cluster):
    klamm_cluster.create_topic("orders")
    config = klamm_cluster.client_config("confluent-kafka")
    assert config["security.protocol"] == "SASL_SSL"
    errors = []
    producer = Producer(config)
    producer.produce("orders", b"value", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert errors == [None]
"""


@pytest.mark.real
def test_an_option_secures_every_cluster(tmp_path: Path):
    (tmp_path / "test_user.py").write_text(SECURED)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider")
    result = subprocess.run(
        [*command, "--klamm-security", "sasl_ssl", "test_user.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert result.returncode == 0, result.stdout
