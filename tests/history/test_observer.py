"""The observer on a real ZooKeeper, as a command; the cluster is what the test writes there."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from klamm.history.observer import Changes, last_event
from klamm.history.spool import read_spool
from klamm.local.loop_thread import LoopThread
from klamm.local.network import Proxy
from klamm.names import TopicPartition
from klamm.zookeeper.server import ZooKeeperServer
from tests.support.chroot import Chroot
from tests.support.command_line import run_here, run_process
from tests.support.lab import topic_znode
from tests.support.observing import Observing
from tests.support.state_znodes import encode_state


def test_changes_are_noted_by_what_they_concern():
    changes = Changes()
    for path in (
        "/controller_epoch",
        "/brokers/ids/3",
        "/admin/delete_topics/old",
        "/brokers/topics/orders",
        "/brokers/topics/orders/partitions",
        "/brokers/topics/orders/partitions/7",
        "/brokers/topics/orders/partitions/7/state",
        "/brokers/seqid",
    ):
        changes.note(path)
    assert changes == Changes(
        controller=True,
        brokers=True,
        deletions=True,
        topics={"orders"},
        states={TopicPartition("orders", 7)},
    )


class WrittenCluster(Chroot):
    """A cluster that exists in ZooKeeper only."""

    def __init__(self, zookeeper: str, cluster_id: str = "one") -> None:
        super().__init__(zookeeper, "observed")
        self.zk.create(
            "/cluster/id", json.dumps({"version": "1", "id": cluster_id}).encode(), makepath=True
        )
        self.zk.create("/controller_epoch", b"1")
        self.zk.create("/controller", b'{"version":2,"brokerid":1,"timestamp":"1"}')
        self.zk.ensure_path("/admin/delete_topics")
        for broker in (1, 2):
            self.register(broker)
        self.zk.create("/brokers/topics/orders", topic_znode({0: [1, 2]}), makepath=True)
        state = encode_state(1, 0, [1, 2], controller_epoch=1)
        self.zk.create("/brokers/topics/orders/partitions/0/state", state, makepath=True)

    def register(self, broker: int) -> None:
        registration = {
            "version": 5,
            "endpoints": [f"PLAINTEXT://127.0.0.1:{broker}"],
            "host": "127.0.0.1",
            "port": broker,
            "jmx_port": -1,
            "timestamp": "1",
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "features": {},
        }
        self.zk.create(f"/brokers/ids/{broker}", json.dumps(registration).encode(), makepath=True)

    def elect(self, leader: int, epoch: int, isr: list[int]) -> None:
        state = encode_state(leader, epoch, isr, controller_epoch=1)
        self.zk.set("/brokers/topics/orders/partitions/0/state", state)


@pytest.fixture
def written(zookeeper_server: ZooKeeperServer) -> Iterator[WrittenCluster]:
    with WrittenCluster(zookeeper_server.address) as cluster:
        yield cluster


Observe = Callable[[str, Path], Observing]


@pytest.fixture
def observe() -> Iterator[Observe]:
    """Starts observers; those that a test has not stopped are killed."""
    started: list[Observing] = []

    def start(zookeeper: str, spool: Path) -> Observing:
        started.append(Observing(zookeeper, spool))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.communicate()


def kinds(spool: Path) -> list[str]:
    rows = [row for batch in read_spool(spool) for row in batch.to_pylist()]
    return [decision["kind"] for row in rows for decision in row["decisions"]]


def test_a_failure_is_in_the_spool_and_in_the_story(
    written: WrittenCluster, tmp_path: Path, observe: Observe
):
    spool = tmp_path / "spool"
    observing = observe(written.address, spool)
    assert "Broker 1 became controller" in observing.said()
    written.zk.delete("/brokers/ids/1")
    assert "Broker 1 disappeared" in observing.said()
    written.elect(2, 1, [2])
    assert "orders-0 got leader 2 (was 1)" in observing.said()
    written.elect(2, 2, [2, 1])
    assert "1 joined" in observing.said()
    observing.stop()
    assert kinds(spool) == ["clean", "isr_changed"]
    told = run_here("story", "orders-0", "--spool", str(spool)).ok().out
    assert "broker 1 had disappeared; orders-0 got leader 2 (was 1), leader epoch 1" in told


def test_znodes_that_make_no_sense_do_not_end_it(
    written: WrittenCluster, tmp_path: Path, observe: Observe
):
    observing = observe(written.address, tmp_path)
    observing.said()
    written.zk.create("/brokers/ids/nobody", b"not a broker")
    written.zk.set("/controller", b"not a controller")
    written.zk.set("/controller", b'{"version":2,"brokerid":1,"timestamp":"1"}')
    written.elect(2, 1, [2, 1])
    assert "orders-0" in observing.said()
    observing.stop()


def test_a_second_observer_goes_on_behind_a_gap(
    written: WrittenCluster, tmp_path: Path, observe: Observe
):
    first = observe(written.address, tmp_path)
    first.said()
    first.stop()
    assert last_event(tmp_path, "one") == (1, 1)
    second = observe(written.address, tmp_path)
    assert "epoch 1 #3: Broker 1 became controller" in second.said()
    second.stop()


def test_the_spool_of_another_cluster_is_refused(
    zookeeper_server: ZooKeeperServer, written: WrittenCluster, tmp_path: Path, observe: Observe
):
    first = observe(written.address, tmp_path)
    first.said()
    first.stop()
    with WrittenCluster(zookeeper_server.address, "two") as other:
        refused = run_process("observe", "--zookeeper", other.address, "--spool", str(tmp_path))
    refused.failed("has the history of cluster one, not of two")


def test_a_chroot_that_is_missing_is_named_and_not_created(
    zookeeper_server: ZooKeeperServer, written: WrittenCluster, tmp_path: Path
):
    missing = f"{written.address}/nobody"
    refused = run_process("observe", "--zookeeper", missing, "--spool", str(tmp_path))
    refused.failed("/nobody is missing")
    assert written.zk.exists("/nobody") is None


def test_a_lost_connection_loses_no_change(
    zookeeper_server: ZooKeeperServer, written: WrittenCluster, tmp_path: Path, observe: Observe
):
    """What changes while the observer is cut off is found when it is back."""
    loop, proxy = LoopThread("proxy"), Proxy(zookeeper_server.host, zookeeper_server.port)
    observing = observe(loop.call(proxy.start) + written.chroot, tmp_path)
    observing.said()
    loop.call(proxy.cut)
    written.elect(2, 1, [2, 1])
    loop.call(proxy.restore)
    assert "orders-0" in observing.said()
    written.elect(1, 2, [2, 1])
    assert "orders-0 went back to its preferred leader 1" in observing.said()
    observing.stop()
    loop.call(proxy.close)
    loop.close()
