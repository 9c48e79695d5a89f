"""The election of the controller, with real nodes on a real ZooKeeper (section 3)."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoNodeError

from klamm.protocol.apis import ApiKey
from tests.support.lab import Lab, Node
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def rivals(new_lab: Callable[[], Lab]) -> Lab:
    """Scripted brokers 1 and 2, and the nodes 100 and 101."""
    lab = new_lab()
    lab.add_brokers(1, 2)
    for node in (100, 101):
        lab.add_node(node, zookeeper_session_timeout_ms=2000)
    return lab


@pytest.fixture
def lab(rivals: Lab) -> Lab:
    """All are there, whatever an earlier test has done to them, and one node is controller."""
    for node in rivals.nodes.values():
        node.restart_if_dead()
    for broker in rivals.brokers.values():
        if not broker.is_registered:
            broker.register()
    rivals.wait_registered(1, 2, 100, 101)
    rivals.wait_controller()
    return rivals


def holder_and_rival(lab: Lab) -> tuple[Node, Node]:
    holder = lab.wait_controller()
    return lab.nodes[holder], lab.nodes[201 - holder]


def epoch(lab: Lab) -> int:
    return int(lab.zk.get("/controller_epoch")[0])


def held_by(broker: int, kraft_epoch: int = -1) -> bytes:
    value = {
        "version": 2,
        "brokerid": broker,
        "timestamp": "1",
        "kraftControllerEpoch": kraft_epoch,
    }
    return json.dumps(value).encode()


@pytest.mark.rule("ELEC-1", "ELEC-2", "ELEC-14", "ZK-6")
@pytest.mark.rule("ELEC-3", "ELEC-4", "ELEC-5", "ELEC-10", "ZK-5", "ZK-7")
@pytest.mark.rule("VER-8", "VER-20", "VER-45")
def test_the_first_election_waits_while_the_node_is_there_and_is_one_transaction(
    new_lab: Callable[[], Lab],
):
    lab = new_lab()
    lab.zk.create("/controller", b"not json")
    lab.add_brokers(1)
    node = lab.add_node(100)
    wait_until(lambda: "no controller can be elected until it is removed" in node.log)
    lab.zk.set("/controller", held_by(3000, kraft_epoch=5))
    wait_until(lambda: "controller is 3000" in node.log)
    assert lab.controller_id() == 3000
    assert lab.zk.get("/controller_epoch")[0] == b"0"
    lab.zk.delete("/controller")
    lab.wait_controller(100)
    value = lab.znode("/controller")
    assert (value["version"], value["brokerid"], value["kraftControllerEpoch"]) == (2, 100, -1)
    assert value["timestamp"].isdecimal()
    content, stat = lab.zk.get("/controller_epoch")
    assert (content, stat.version) == (b"1", 1)
    assert lab.zk.exists("/controller").czxid == stat.mzxid
    assert lab.zk.exists("/controller").ephemeralOwner != 0


@pytest.mark.rule("ELEC-2")
def test_a_second_node_does_not_compete(lab: Lab):
    holder, rival = holder_and_rival(lab)
    before = epoch(lab)
    rival.stop()
    rival.restart_if_dead()
    lab.wait_registered(rival.id)
    told = lab.brokers[1].received
    wait_until(lambda: any(b.id == rival.id for b in told[-1].body.live_brokers))
    assert (lab.controller_id(), epoch(lab)) == (holder.id, before)


@pytest.mark.rule("ELEC-11", "ELEC-13", "RESIGN-2", "FAILOVER-24", "ZK-17")
def test_the_role_is_taken_again_when_the_node_is_deleted(lab: Lab):
    lab.create_topic("again", {0: [1]})
    created_in = epoch(lab)
    for expected in (created_in + 1, created_in + 2):
        lab.zk.delete("/controller")
        wait_until(lambda expected=expected: epoch(lab) == expected)
        lab.wait_controller()
    # Healthy partitions are not rewritten.
    assert lab.state("again", 0)["controller_epoch"] == created_in


@pytest.mark.rule("ELEC-7")
def test_deleting_the_node_again_and_again_always_ends_with_a_controller(lab: Lab):
    for _ in range(10):
        wait_until(lambda: lab.zk.exists("/controller"))
        try:
            lab.zk.delete("/controller")
        except NoNodeError:
            continue
    lab.wait_controller(100, 101)


@pytest.mark.rule("ELEC-12", "RESIGN-1", "EVT-7")
def test_a_controller_whose_node_names_another_resigns(lab: Lab):
    node, _ = holder_and_rival(lab)
    lab.create_topic("orphan", {0: [1, 2]})
    lab.zk.set("/controller", held_by(7))

    def leave() -> Any:
        epoch = lab.brokers[1].epoch
        return node.ask(ApiKey.CONTROLLED_SHUTDOWN, 2, broker_id=1, broker_epoch=epoch)

    wait_until(lambda: leave().error_code == 11)
    lab.brokers[1].leave()
    wait_until(lambda: not lab.zk.exists("/brokers/ids/1"))
    assert lab.state("orphan", 0)["leader"] == 1  # nobody acts any more
    lab.zk.delete("/controller")
    lab.wait_state("orphan", 0, lambda s: s["leader"] == 2)


@pytest.mark.rule("FAILOVER-24", "BRK-5")
def test_another_node_takes_over_when_the_controller_is_killed(lab: Lab):
    holder, rival = holder_and_rival(lab)
    lab.create_topic("inherited", {0: [1, 2]})
    before = epoch(lab)
    holder.kill()
    lab.wait_controller(rival.id)
    lab.brokers[1].leave()
    state = lab.wait_state("inherited", 0, lambda s: s["leader"] == 2)
    assert (state["leader_epoch"], state["isr"]) == (1, [2])
    assert state["controller_epoch"] == before + 1


@pytest.mark.rule("ELEC-15", "ELEC-16", "ELEC-17", "LIFE-9")
def test_a_controller_that_slept_through_its_session_comes_back_as_a_candidate(lab: Lab):
    holder, rival = holder_and_rival(lab)
    lab.create_topic("slept", {0: [1, 2]})
    before = lab.zk.exists(f"/brokers/ids/{holder.id}").czxid
    holder.signal_group(signal.SIGSTOP)
    lab.wait_controller(rival.id)
    lab.brokers[1].leave()
    state = lab.wait_state("slept", 0, lambda s: s["leader"] == 2)
    holder.signal_group(signal.SIGCONT)
    after = wait_until(lambda: lab.zk.exists(f"/brokers/ids/{holder.id}"))
    assert after.czxid > before
    assert lab.controller_id() == rival.id
    assert lab.state("slept", 0) == state


@pytest.mark.rule("ELEC-17")
def test_stopping_the_main_process_alone_stops_its_candidate_too(lab: Lab):
    holder, rival = holder_and_rival(lab)
    assert holder.process is not None
    os.kill(holder.process.pid, signal.SIGSTOP)
    lab.wait_controller(rival.id)
    os.kill(holder.process.pid, signal.SIGCONT)
    lab.wait_registered(holder.id)
    assert lab.controller_id() == rival.id


def test_a_candidate_that_dies_is_replaced_and_gives_up_the_role(lab: Lab):
    holder, _ = holder_and_rival(lab)
    registered = lab.zk.exists(f"/brokers/ids/{holder.id}").czxid
    before = epoch(lab)
    first = holder.candidate_pid()
    assert first is not None
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: holder.candidate_pid() not in (None, first))
    # The registration ended with the same session, and is made anew.
    wait_until(
        lambda: (stat := lab.zk.exists(f"/brokers/ids/{holder.id}")) and stat.czxid > registered
    )
    wait_until(lambda: epoch(lab) > before)
    lab.wait_controller(100, 101)


def test_nothing_of_a_node_survives_the_death_of_its_main_process(lab: Lab):
    _, rival = holder_and_rival(lab)
    child = rival.candidate_pid()
    assert child is not None
    assert rival.process is not None
    os.kill(rival.process.pid, signal.SIGKILL)
    rival.process.wait()
    wait_until(lambda: not Path(f"/proc/{child}").exists() or _is_zombie(child))


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@pytest.mark.rule("RESIGN-7", "LIFE-15")
def test_an_orderly_stop_gives_up_role_and_registration_at_once(lab: Lab):
    holder, rival = holder_and_rival(lab)
    before = epoch(lab)
    rival.stop()
    assert holder.stop() == 0
    assert not lab.zk.exists("/controller")
    assert not lab.zk.exists(f"/brokers/ids/{holder.id}")
    assert epoch(lab) == before


@pytest.mark.rule("FENCE-1", "FENCE-2", "FENCE-4", "EVT-8")
def test_a_controller_whose_epoch_moved_on_writes_nothing_more_until_it_is_elected_again(lab: Lab):
    lab.create_topic("fenced", {0: [1, 2]})
    moved_on = epoch(lab) + 5
    lab.zk.set("/controller_epoch", str(moved_on).encode())
    lab.brokers[1].leave()
    # The write is refused; the node finds that its licence has gone, stands down and runs again.
    state = lab.wait_state("fenced", 0, lambda s: s["leader"] == 2)
    assert state["controller_epoch"] == moved_on + 1 == epoch(lab)
