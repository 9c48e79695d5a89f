"""What a cluster can be asked to be, and what it says when it does not run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from klamm import Cluster
from klamm.errors import ConfigError, KlammError
from klamm.local.running import ClusterOptions


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"brokers": "3"}, "brokers='3' is no number; expected is a number, as in brokers=3"),
        ({"brokers": 2.0}, "brokers=2.0 is no number"),
        ({"brokers": True}, "brokers=True is no number"),
        ({"brokers": None}, "brokers=None is no number"),
        ({"brokers": 0}, "A cluster has one broker or more"),
        ({"brokers": [1, 1]}, "each with its id: [1, 1]"),
        ({"brokers": ["1"]}, "brokers: '1' is not the id of a broker"),
        ({"brokers": [-1]}, "brokers: -1 is not the id of a broker"),
        ({"racks": "abc"}, "expected is a list"),
        ({"config": "num.partitions=3"}, "is not a dict of settings"),
        ({"base_port": "9092"}, "base_port='9092' is not a number"),
        ({"security": "tls"}, "is not one of ssl, sasl_plaintext, sasl_ssl"),
    ],
)
def test_what_no_cluster_can_be_is_refused_before_anything_starts(options, said):
    with pytest.raises(ConfigError) as refused:
        Cluster(**options)
    assert said in str(refused.value)


def test_racks_are_given_in_turn_or_by_id():
    def options(racks):
        return ClusterOptions.checked(3, racks, None, None, None, None, True, None, False)

    assert [options(["a", "b"]).rack_of(each) for each in (1, 2, 3)] == ["a", "b", "a"]
    assert [options({2: "z"}).rack_of(each) for each in (1, 2)] == [None, "z"]
    assert options(None).rack_of(1) is None


@pytest.mark.parametrize(
    "use",
    [
        lambda cluster: cluster.bootstrap_servers,
        lambda cluster: cluster.zookeeper,
        lambda cluster: cluster.data_dir,
        lambda cluster: cluster.admin,
        lambda cluster: cluster.broker_ids,
        lambda cluster: cluster.controller_id(),
        lambda cluster: cluster.kill(1),
        lambda cluster: cluster.start(1),
        lambda cluster: cluster.heal(),
        lambda cluster: cluster.create_topic("orders"),
        lambda cluster: cluster.leader("orders"),
        lambda cluster: cluster.client_config("java"),
        lambda cluster: cluster.inject("Produce", error="REQUEST_TIMED_OUT"),
    ],
)
def test_a_cluster_that_was_not_started_says_so(use):
    cluster = Cluster(1)
    with pytest.raises(KlammError, match="has not been started: call start"):
        use(cluster)
    cluster.close()
    assert repr(cluster) == "<Cluster of brokers [1], not running>"


@pytest.mark.real
def test_a_cluster_that_was_closed_says_so_and_one_that_was_not_ends_in_silence(tmp_path: Path):
    script = f"""
from klamm import Cluster
from klamm.errors import KlammError
cluster = Cluster(1, data_dir={str(tmp_path / "kept")!r}).start()
cluster.close()
try:
    cluster.bootstrap_servers
except KlammError as error:
    print(error)
cluster.start()
Cluster(1).start()
"""
    result = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=110,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "The cluster is closed; start() runs it again.\n"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"], "nothing temporary is left"
    log = (tmp_path / "kept" / "broker-1" / "broker.log").read_text()
    assert log.count("controlled shutdown succeeded") == 2
