"""Who is controller, with real nodes on a real ZooKeeper (section 3)."""

import json
import os
import signal
from pathlib import Path

import pytest
from kazoo.exceptions import NoNodeError

from klamm.protocol.apis import ApiKey
from tests.controller.lab import Lab, Node, wait_until

pytestmark = pytest.mark.real


def candidate_pid(node: Node) -> int:
    """The process of the node's candidate."""
    assert node.process is not None
    task = Path(f"/proc/{node.process.pid}/task/{node.process.pid}/children")
    (child,) = task.read_text().split()
    return int(child)


@pytest.mark.rule(
    "ELEC-1", "ELEC-3", "ELEC-4", "ELEC-5", "ELEC-10", "ZK-5", "ZK-7", "VER-8", "VER-20", "VER-45"
)
def test_the_first_node_takes_the_role_in_one_transaction(lab: Lab):
    lab.start(brokers=1)
    value = lab.json("/controller")
    assert value["version"] == 2
    assert value["brokerid"] == 100
    assert value["kraftControllerEpoch"] == -1
    assert value["timestamp"].isdecimal()
    epoch, stat = lab.zk.get("/controller_epoch")
    assert (epoch, stat.version) == (b"1", 1)
    assert lab.zk.exists("/controller").czxid == stat.mzxid
    assert lab.zk.exists("/controller").ephemeralOwner != 0


@pytest.mark.rule("ELEC-2", "FENCE-10")
def test_a_second_node_does_not_compete(lab: Lab):
    lab.start(brokers=1)
    lab.add_node(101)
    wait_until(lambda: lab.zk.exists("/brokers/ids/101"))
    told = lab.brokers[1].received
    wait_until(lambda: any(b.id == 101 for b in told[-1].body.live_brokers))
    assert lab.controller_id() == 100
    assert lab.zk.get("/controller_epoch")[0] == b"1"


@pytest.mark.rule("ELEC-11", "ELEC-13", "RESIGN-2")
def test_the_role_is_taken_again_when_the_node_is_deleted(lab: Lab):
    lab.start(brokers=1)
    lab.create_topic("t", {0: [1]})
    for epoch in (2, 3):
        lab.zk.delete("/controller")
        wait_until(lambda epoch=epoch: lab.zk.get("/controller_epoch")[0] == str(epoch).encode())
        lab.wait_controller(100)
    assert lab.state("t", 0)["controller_epoch"] == 1  # healthy partitions are not rewritten


@pytest.mark.rule("ELEC-7")
def test_deleting_the_node_again_and_again_always_ends_with_a_controller(lab: Lab):
    lab.start(brokers=1)
    lab.add_node(101)
    wait_until(lambda: lab.zk.exists("/brokers/ids/101"))
    for _ in range(10):
        wait_until(lambda: lab.zk.exists("/controller"))
        try:
            lab.zk.delete("/controller")
        except NoNodeError:
            continue
    lab.wait_controller(100, 101)


@pytest.mark.rule("ZK-6", "ZK-26")
def test_an_unreadable_holder_blocks_the_election_until_it_is_removed(lab: Lab):
    lab.zk.create("/controller", b"not json")
    lab.add_brokers(1)
    lab.add_node(100)
    wait_until(lambda: lab.zk.exists("/brokers/ids/100"))
    assert lab.zk.get("/controller")[0] == b"not json"
    lab.zk.delete("/controller")
    lab.wait_controller(100)


@pytest.mark.rule("ELEC-14")
def test_a_holder_of_another_kind_is_simply_another_controller(lab: Lab):
    held = {"version": 2, "brokerid": 3000, "timestamp": "1", "kraftControllerEpoch": 5}
    lab.zk.create("/controller", json.dumps(held).encode())
    lab.add_brokers(1)
    lab.add_node(100)
    wait_until(lambda: lab.zk.exists("/brokers/ids/100"))
    assert lab.controller_id() == 3000
    lab.zk.delete("/controller")
    lab.wait_controller(100)


@pytest.mark.rule("ELEC-12", "RESIGN-1", "EVT-7")
def test_a_controller_whose_node_names_another_resigns(lab: Lab):
    node = lab.start(brokers=2)
    lab.create_topic("t", {0: [1, 2]})
    held = {"version": 2, "brokerid": 7, "timestamp": "1", "kraftControllerEpoch": -1}
    lab.zk.set("/controller", json.dumps(held).encode())
    wait_until(
        lambda: (
            node.ask(
                ApiKey.CONTROLLED_SHUTDOWN, 2, broker_id=1, broker_epoch=lab.brokers[1].epoch
            ).error_code
            == 11
        )
    )
    lab.brokers[1].leave()
    wait_until(lambda: not lab.zk.exists("/brokers/ids/1"))
    assert lab.state("t", 0)["leader"] == 1  # nobody acts any more


@pytest.mark.rule("ELEC-9", "FAILOVER-24", "BRK-5")
def test_another_node_takes_over_when_the_controller_is_killed(lab: Lab):
    lab.start(brokers=3)
    lab.add_node(101)
    wait_until(lambda: lab.zk.exists("/brokers/ids/101"))
    lab.create_topic("t", {0: [1, 2, 3]})
    lab.nodes[100].kill()
    lab.wait_controller(101)
    lab.brokers[1].leave()
    state = lab.wait_state("t", 0, lambda s: s["leader"] == 2)
    assert (state["leader_epoch"], state["isr"], state["controller_epoch"]) == (1, [2, 3], 2)


@pytest.mark.rule("ELEC-15", "ELEC-16", "ELEC-17", "LIFE-9", "FENCE-4", "VER-9")
def test_a_controller_that_slept_through_its_session_comes_back_as_a_candidate(lab: Lab):
    node = lab.start(brokers=2)
    lab.add_node(101)
    wait_until(lambda: lab.zk.exists("/brokers/ids/101"))
    lab.create_topic("t", {0: [1, 2]})
    before = lab.zk.exists("/brokers/ids/100").czxid
    node.signal(signal.SIGSTOP)
    lab.wait_controller(101)
    lab.brokers[1].leave()
    lab.wait_state("t", 0, lambda s: s["leader"] == 2)
    node.signal(signal.SIGCONT)
    after = wait_until(lambda: lab.zk.exists("/brokers/ids/100"))
    assert after.czxid > before
    assert lab.controller_id() == 101
    state = lab.state("t", 0)
    assert (state["leader"], state["leader_epoch"], state["controller_epoch"]) == (2, 1, 2)


@pytest.mark.rule("ELEC-17")
def test_stopping_the_main_process_alone_stops_its_candidate_too(lab: Lab):
    node = lab.start(brokers=1)
    lab.add_node(101)
    wait_until(lambda: lab.zk.exists("/brokers/ids/101"))
    assert node.process is not None
    os.kill(node.process.pid, signal.SIGSTOP)
    lab.wait_controller(101)
    os.kill(node.process.pid, signal.SIGCONT)
    wait_until(lambda: lab.zk.exists("/brokers/ids/100"))
    assert lab.controller_id() == 101


def test_a_candidate_that_dies_is_replaced_and_gives_up_the_role(lab: Lab):
    node = lab.start(brokers=1)
    registered = lab.zk.exists("/brokers/ids/100").czxid
    first = candidate_pid(node)
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: candidate_pid(node) != first if node.process else None)
    lab.wait_controller(100)
    again = wait_until(lambda: lab.zk.exists("/brokers/ids/100"))
    assert again.czxid > registered
    wait_until(lambda: lab.zk.get("/controller_epoch")[0] == b"2")


def test_nothing_of_a_node_survives_the_death_of_its_main_process(lab: Lab):
    node = lab.start(brokers=1)
    child = candidate_pid(node)
    assert node.process is not None
    os.kill(node.process.pid, signal.SIGKILL)
    node.process.wait()
    wait_until(lambda: not Path(f"/proc/{child}").exists() or _is_zombie(child))


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.rule("RESIGN-7", "LIFE-15")
def test_an_orderly_stop_gives_up_role_and_registration_at_once(lab: Lab):
    node = lab.start(brokers=1)
    assert node.terminate() == 0
    assert not lab.zk.exists("/controller")
    assert not lab.zk.exists("/brokers/ids/100")
    assert lab.zk.get("/controller_epoch")[0] == b"1"


@pytest.mark.rule("FENCE-1", "FENCE-2", "FENCE-4", "EVT-8")
def test_a_controller_whose_epoch_moved_on_writes_nothing_more_until_it_is_elected_again(lab: Lab):
    lab.start(brokers=2)
    lab.create_topic("t", {0: [1, 2]})
    lab.zk.set("/controller_epoch", b"5")
    lab.brokers[1].leave()
    # The write is refused; the node finds that its licence has gone, stands down and runs again.
    state = lab.wait_state("t", 0, lambda s: s["leader"] == 2)
    assert state["controller_epoch"] == 6
    assert lab.zk.get("/controller_epoch")[0] == b"6"
