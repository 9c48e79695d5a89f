"""A cluster on this machine: what can be done to it, what it says, and that nothing is left."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest

from klamm import Cluster
from klamm.errors import ConfigError, KlammError, UnavailableError
from klamm.local.broker_process import ProcessState
from klamm.local.demo.load import NumberedProducer, read_numbers
from klamm.local.running import ConditionNotMetError
from klamm.local.status import read_status
from tests.support.processes import descendants, is_alive
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real


@pytest.fixture
def topic(klamm_cluster: Cluster, klamm_topic_prefix: str) -> str:
    name = klamm_topic_prefix + "orders"
    klamm_cluster.create_topic(name)
    return name


def test_a_killed_leader_is_replaced_and_comes_back(klamm_cluster: Cluster, topic: str):
    leader = klamm_cluster.leader(topic)
    klamm_cluster.kill(leader)
    assert klamm_cluster.broker(leader).state is ProcessState.STOPPED
    successor = klamm_cluster.wait_leader(topic)  # not the dead one that ZooKeeper still names
    assert successor != leader
    klamm_cluster.wait_isr(topic, 0, {1, 2, 3} - {leader})
    klamm_cluster.start(leader)
    klamm_cluster.wait_isr(topic, 0, {1, 2, 3})
    assert klamm_cluster.leader(topic) == successor


def test_a_controlled_shutdown_hands_leadership_over_before_it_ends(
    klamm_cluster: Cluster, topic: str
):
    leader = klamm_cluster.leader(topic)
    klamm_cluster.stop(leader)
    state = klamm_cluster.partition(topic)
    assert state is not None
    assert state.leader not in (None, leader), "at once, without waiting for a session to expire"
    assert klamm_cluster.broker(leader).exit_code == 0
    with pytest.raises(KlammError, match="is not running"):
        klamm_cluster.stop(leader)


def test_a_paused_controller_is_replaced_and_steps_back(klamm_cluster: Cluster):
    controller = klamm_cluster.wait_controller()
    klamm_cluster.pause(controller)
    assert klamm_cluster.broker(controller).state is ProcessState.PAUSED
    klamm_cluster.wait_controller(other_than=controller)
    # The registration belongs to a session of its own, which may end a little later.
    wait_until(lambda: controller not in klamm_cluster.registered())
    status = {each.id: each for each in read_status(klamm_cluster).brokers}
    assert status[controller].state_text == "paused, session lost"
    klamm_cluster.resume(controller)
    klamm_cluster.heal()
    assert klamm_cluster.registered() == {1, 2, 3}


def test_a_broker_that_is_cut_from_zookeeper_is_forgotten_until_it_rejoins(
    klamm_cluster: Cluster,
):
    def known() -> set[int]:
        return {each.node_id for each in klamm_cluster.admin.metadata_of(1, []).brokers}

    klamm_cluster.cut_from_zookeeper(2)
    wait_until(lambda: klamm_cluster.registered() == {1, 3}, "broker 2 to be forgotten")
    wait_until(lambda: known() == {1, 3}, "the others to have heard of it")
    assert klamm_cluster.broker(2).state is ProcessState.RUNNING
    klamm_cluster.rejoin_zookeeper(2)
    wait_until(lambda: klamm_cluster.registered() == {1, 2, 3}, "broker 2 to register again")


@pytest.mark.timeout(180)
@pytest.mark.rule("DUR-1", "DUR-7", "DUR-2", "IDEM-5")
def test_a_leader_that_is_cut_from_zookeeper_acknowledges_nothing_that_is_lost(
    klamm_cluster: Cluster, klamm_topic_prefix: str
):
    topic = klamm_topic_prefix + "orders"
    klamm_cluster.create_topic(topic, config={"min.insync.replicas": "2"})
    writer = NumberedProducer(klamm_cluster.bootstrap_servers, topic)
    wait_until(lambda: len(writer.acknowledged) >= 50, "acknowledged records")
    leader = klamm_cluster.wait_leader(topic)
    # It still reaches its clients and the other brokers; only ZooKeeper does not hear of it.
    klamm_cluster.cut_from_zookeeper(leader)
    successor = klamm_cluster.wait_leader(topic, other_than=leader)

    def known_leader() -> int:
        (asked,) = klamm_cluster.admin.metadata_of(successor, [topic]).topics
        return int(asked.partitions[0].leader_id)

    # The old leader still claims to lead, and its clients wait for replicas that have left it.
    wait_until(lambda: known_leader() == successor, "the new leader to know")
    other = NumberedProducer(klamm_cluster.broker(successor).address, topic)
    wait_until(lambda: len(other.acknowledged) >= 50, "records at the new leader")
    klamm_cluster.rejoin_zookeeper(leader)
    klamm_cluster.wait_isr(topic, 0, {1, 2, 3})
    before = len(writer.acknowledged)
    wait_until(lambda: len(writer.acknowledged) > before, "the first client to find the new leader")
    for each in (writer, other):
        each.stop()
        assert not each.refused
    found = read_numbers(klamm_cluster.bootstrap_servers, topic, 1)[0]
    assert Counter(found) == Counter(writer.acknowledged + other.acknowledged)


def test_brokers_are_added_and_removed(klamm_cluster: Cluster):
    added = klamm_cluster.add_broker(rack="new", config={"num.partitions": 2})
    assert added == 4
    assert klamm_cluster.broker(4).rack == "new"
    assert klamm_cluster.registered() == {1, 2, 3, 4}
    klamm_cluster.remove_broker(4)
    assert klamm_cluster.registered() == {1, 2, 3}
    assert klamm_cluster.broker_ids == [1, 2, 3]
    with pytest.raises(KlammError, match="no broker 4; there are 1, 2, 3"):
        klamm_cluster.kill(4)


def test_what_was_waited_for_in_vain_is_told_with_what_was_there(
    klamm_cluster: Cluster, topic: str
):
    leader = klamm_cluster.leader(topic)
    with pytest.raises(
        ConditionNotMetError, match=rf"a leader other than {leader} of {topic}-0.*ISR"
    ):
        klamm_cluster.wait_leader(topic, other_than=leader, timeout_s=0.1)
    with pytest.raises(TimeoutError, match=r"the ISR 7 of .*at the end: leader \d, leader epoch 0"):
        klamm_cluster.wait_isr(topic, 0, {7}, timeout_s=0.1)
    with pytest.raises(UnavailableError, match=r"controller 9; at the end: it is \d"):
        klamm_cluster.wait_controller(controller=9, timeout_s=0.1)
    with pytest.raises(ConditionNotMetError, match="there is no such partition"):
        klamm_cluster.wait_leader("nothing", timeout_s=0.1)


def test_threads_may_share_it(klamm_cluster: Cluster, topic: str):
    leader = klamm_cluster.leader(topic)
    found: list[int] = []
    waiting = [
        threading.Thread(
            target=lambda: found.append(klamm_cluster.wait_leader(topic, other_than=leader))
        )
        for _ in range(4)
    ]
    for thread in waiting:
        thread.start()
    klamm_cluster.kill(leader)
    for thread in waiting:
        thread.join(60)
    assert len(found) == 4
    assert len(set(found)) == 1


def test_data_that_is_kept_is_found_again(tmp_path: Path):
    with Cluster(1, data_dir=tmp_path / "data") as cluster:
        cluster.create_topic("kept", partitions=2)
        assert repr(cluster).endswith("1 running>")
        with (
            pytest.raises(ConfigError, match="is in use by another cluster"),
            Cluster(1, data_dir=tmp_path / "data"),
        ):
            pass
    with Cluster(1, data_dir=tmp_path / "data") as cluster:
        assert cluster.wait_leader("kept", 1) == 1
    assert repr(cluster).endswith("not running>")


def test_a_broker_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path):
    before = descendants(os.getpid())
    with (
        pytest.raises(UnavailableError, match=r"Broker 1 ended .*nearest is num\.partitions"),
        Cluster(1, config={"num.partition": 3}, data_dir=tmp_path),
    ):
        pass
    assert not descendants(os.getpid()) - before


def test_ports_that_are_taken_are_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"Port {port} is taken"), Cluster(1, base_port=port):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_nothing_outlives_a_python_that_was_killed():
    program = (
        "import sys\n"
        "from klamm import Cluster\n"
        "cluster = Cluster(2).start()\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        assert process.stdout.readline() == b"ready\n"
        children = descendants(process.pid)
        assert len(children) >= 5, "ZooKeeper, two brokers, two candidates"
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_until(lambda: not any(map(is_alive, children)), f"{children} to end", timeout_s=10)
