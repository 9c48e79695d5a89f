"""The life of a node: registration, roles, failing disks."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from klamm.client.admin import Admin
from klamm.client.brokers import with_log_dirs
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from tests.node.metrics_page import read_metrics
from tests.support.cluster import RealCluster
from tests.support.ports import free_port
from tests.support.raw import Raw, batch
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real

Start = Callable[..., RealCluster]


@pytest.mark.rule("LIFE-6", "LIFE-7", "LIFE-2", "LIFE-3")
def test_a_broker_registers_itself(cluster: RealCluster) -> None:
    node = cluster.znode("/brokers/ids/1")
    assert node["version"] == 5
    assert node["endpoints"] == [f"PLAINTEXT://127.0.0.1:{cluster[1].port}"]
    assert (node["host"], node["port"], node["rack"]) == ("127.0.0.1", cluster[1].port, "a")
    meta = (cluster[1].log_dir / "meta.properties").read_text()
    assert f"cluster.id={cluster.znode('/cluster/id')['id']}" in meta
    assert "broker.id=1" in meta


@pytest.mark.rule("LIFE-3", "LIFE-5", "LIFE-8")
def test_a_registration_that_was_removed_by_hand_comes_back_with_a_new_epoch(
    cluster: RealCluster, topic: str
) -> None:
    cluster.create(topic, assignment=[[2, 3]])
    path = "/brokers/ids/2"
    _, before = cluster.zk.get(path)
    for _ in range(2):
        _, removed = cluster.zk.get(path)
        cluster.zk.delete(path)
        wait_until(
            lambda removed=removed: (
                (stat := cluster.zk.exists(path)) and stat.czxid > removed.czxid
            ),
            "broker 2 registers again",
        )
    _, after = cluster.zk.get(path)
    assert after.owner_session_id == before.owner_session_id, "its session was not lost"
    cluster.wait_isr(topic, {2, 3})
    cluster.produce(topic, [b"after"], acks="all")


def test_a_second_broker_with_the_same_id_address_or_directory_fails(
    cluster: RealCluster, tmp_path: Path
) -> None:
    def start(**settings: str) -> str:
        changed = {key.replace("_", "."): value for key, value in settings.items()}
        merged = {
            **cluster[1].config,
            "log.dirs": str(tmp_path / f"of-{len(list(tmp_path.iterdir()))}"),
            "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}",
            "zookeeper.session.timeout.ms": "1000",
            **changed,
        }
        file = tmp_path / "server.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in merged.items()))
        command = [sys.executable, "-m", "klamm", "broker", str(file)]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert ended.returncode == 1
        return ended.stderr

    assert "broker.id=1 is taken" in start()
    address = f"PLAINTEXT://127.0.0.1:{cluster[2].port}"
    assert f"127.0.0.1:{cluster[2].port} is registered by broker 2" in start(
        broker_id="9", advertised_listeners=address
    )
    assert "in use by another process" in start(broker_id="9", log_dirs=str(cluster[2].log_dir))
    assert cluster.registered() == {1, 2, 3}


@pytest.mark.rule("TXN-1")
def test_a_node_that_is_only_controller_has_no_data(start_cluster: Start, topic: str) -> None:
    cluster = start_cluster(brokers=2)
    cluster[2].stop()
    cluster[2].start(klamm_roles="controller")
    cluster.wait_ready()
    cluster.create(topic, factor=1, partitions=3)
    assert {cluster.leader(topic, each) for each in range(3)} == {1}
    with Raw(cluster[2].port) as raw:
        served = raw.ask(ApiKey.API_VERSIONS, 0)
        keys = {each.api_key for each in served.api_keys}
        assert ApiKey.METADATA in keys
        assert ApiKey.CREATE_TOPICS in keys
        assert ApiKey.PRODUCE not in keys
        assert len(raw.metadata(topic).topics[0].partitions) == 3
        # Tools send these to every broker there is.
        assert raw.ask(ApiKey.LIST_GROUPS, 4, states_filter=[]).groups == ()
        assert raw.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=None).results == ()
        described = raw.ask(
            ApiKey.DESCRIBE_GROUPS, groups=["g"], include_authorized_operations=False
        )
        assert described.groups[0].error_code == ErrorCode.NOT_COORDINATOR
        with Admin(cluster[2].address) as admin:
            assert with_log_dirs(admin) == [1]
        # Java's producers ask any broker for an id, and give up where nobody knows of ids.
        wait_until(
            lambda: (
                raw.ask(
                    ApiKey.INIT_PRODUCER_ID, 1, transactional_id=None, transaction_timeout=1
                ).producer_id
                >= 0
            ),
            "an id for a producer",
        )
        # The coordinators' topic wants two brokers with data: one asks again until there are.
        found = raw.ask(ApiKey.FIND_COORDINATOR, 1, key="writer", key_type=1)
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        refused = raw.ask(
            ApiKey.INIT_PRODUCER_ID, 1, transactional_id="writer", transaction_timeout=1
        )
        assert refused.error_code == ErrorCode.NOT_COORDINATOR
        listed = raw.ask(ApiKey.LIST_TRANSACTIONS)
        assert (listed.error_code, listed.transaction_states) == (0, ())
    with Raw(cluster[2].port) as raw:
        raw.send(
            ApiKey.HEARTBEAT, group_id="g", generation_id=1, member_id="m", group_instance_id=None
        )
        assert raw.is_closed_by_peer()


@pytest.mark.rule("REC-7", "LISR-1", "LISR-12", "UMD-9", "BMET-8")
def test_a_failed_log_directory_takes_its_replicas_offline(
    start_cluster: Start, tmp_path: Path
) -> None:
    cluster = start_cluster(brokers=2, settings={"controlled.shutdown.enable": "false"})
    first, second = tmp_path / "first", tmp_path / "second"
    cluster[1].stop()
    port = free_port()
    cluster[1].start(log_dirs=f"{first},{second}", klamm_metrics_port=str(port))
    cluster.wait_ready()
    names = [cluster.create(f"t{each}", assignment=[[1, 2]]) for each in range(4)]
    for name in names:
        cluster.produce(name, [b"x"], acks="all")
    lost = next(name for name in names if (first / f"{name}-0").exists())
    kept = next(name for name in names if (second / f"{name}-0").exists())
    # Pulled away from under the broker: the next segment cannot be created.
    (first / f"{lost}-0").rename(tmp_path / "elsewhere")
    cluster.alter_topic(lost, segment_ms="1")
    with Raw(cluster[1].port) as raw:
        wait_until(
            lambda: (
                raw.produce(lost, batch(b"y"), acks=1).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            ),
            "the directory fails",
        )
        assert raw.produce(kept, batch(b"y")).error_code == ErrorCode.NONE
        described = raw.ask(ApiKey.DESCRIBE_LOG_DIRS, topics=None).results
        assert {Path(each.log_dir): each.error_code for each in described} == {
            first: ErrorCode.KAFKA_STORAGE_ERROR,
            second: ErrorCode.NONE,
        }
    assert cluster.wait_leader(lost, other_than=1) == 2
    assert cluster.leader(kept) == 1
    shown = read_metrics(port)
    assert shown["kafka_log_LogManager_OfflineLogDirectoryCount"] == 1
    offline = "kafka_log_LogManager_LogDirectoryOffline"
    assert shown[f'{offline}{{logDirectory="{first}"}}'] == 1
    assert shown[f'{offline}{{logDirectory="{second}"}}'] == 0


def test_a_node_waits_for_zookeeper_as_long_as_its_configuration_says(tmp_path: Path) -> None:
    port = free_port()
    file = tmp_path / "server.properties"
    file.write_text(
        f"broker.id=1\nlog.dirs={tmp_path / 'logs'}\nzookeeper.connect=127.0.0.1:{port}\n"
        f"listeners=PLAINTEXT://127.0.0.1:{free_port()}\nzookeeper.connection.timeout.ms=300\n"
    )
    command = [sys.executable, "-m", "klamm", "broker", str(file)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert f"No ZooKeeper answered at 127.0.0.1:{port} within 0.3 s." in ended.stderr
