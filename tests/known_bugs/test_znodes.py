"""Znodes that are half written or far too large."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode as E
from klamm.zookeeper import znodes
from tests.known_bugs.stage import Stage
from tests.support.candidate import Node, running
from tests.support.lab import topic_znode
from tests.support.waiting import wait_until

NO_DATA = pytest.mark.parametrize("data", [None, b""], ids=["null", "empty"])


# Without data


@pytest.mark.rule("ZK-6", "ELEC-2", "ELEC-7")
@pytest.mark.parametrize("data", [None, b"", b"{", b"[1]", b"{}", b'{"brokerid":"one"}'], ids=repr)
def test_a_controller_node_that_names_nobody_is_in_the_way_and_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: bytes | None
):
    async def scenario(node: Node) -> None:
        await node.store.create(znodes.CONTROLLER, data)
        await node.controller.enter_election()
        await node.until(lambda: any(znodes.CONTROLLER in line for line in caplog.messages))
        assert not node.controller.is_active
        assert (await node.store.get(znodes.CONTROLLER)).data == data
        await node.store.delete(znodes.CONTROLLER)
        await node.until(lambda: node.controller.context is not None)
        assert node.controller.is_active

    async def main() -> None:
        async with running(tmp_path) as node:
            await scenario(node)

    asyncio.run(main())


@pytest.mark.real
@pytest.mark.rule("ZK-13", "TOPIC-11", "TOPIC-18", "ADM-8", "FAILOVER-6")
@NO_DATA
def test_a_topic_that_was_created_empty_comes_online_with_its_data(
    stage: Stage, data: bytes | None
):
    path = f"/brokers/topics/begun-{data!r:.4}".replace("'", "")
    stage.zk.create(path, data)
    stage.settle()
    # The name is taken, although no broker has heard of such a topic.
    wanted = {"name": path.rpartition("/")[2], "num_partitions": 1, "replication_factor": 1}
    response = stage.holder().ask(
        ApiKey.CREATE_TOPICS,
        7,
        topics=[wanted | {"assignments": [], "configs": []}],
        timeout=1000,
        validate_only=False,
    )
    assert response.topics[0].error_code == E.TOPIC_ALREADY_EXISTS
    with stage.no_controller():
        pass
    stage.zk.set(path, topic_znode({0: [1, 2]}))
    stage.wait_state(path.rpartition("/")[2], 0, lambda s: s["leader"] == 1)


@pytest.mark.real
@pytest.mark.rule("REASG-1", "PREF-9", "ISR-2", "LOGDIR-3")
@NO_DATA
def test_requests_without_data_ask_for_nothing_and_block_nothing(stage: Stage, data: bytes | None):
    name = f"asked-{data!r:.4}".replace("'", "")
    stage.create_topic(name, {0: [1, 2]})
    before = stage.state(name, 0)
    stage.zk.create("/admin/preferred_replica_election", data)
    stage.zk.create("/isr_change_notification/isr_change_", data, sequence=True)
    stage.zk.create("/log_dir_event_notification/log_dir_event_", data, sequence=True)
    stage.zk.create("/admin/reassign_partitions", data)
    wait_until(lambda: not stage.zk.exists("/admin/preferred_replica_election"))
    for parent in ("/isr_change_notification", "/log_dir_event_notification"):
        wait_until(lambda p=parent: not stage.zk.get_children(p), parent)
    stage.settle()
    sentence = "/admin/reassign_partitions: JSON is expected, not b''"
    wait_until(lambda: sentence in stage.holder().log, sentence)
    assert stage.zk.exists("/admin/reassign_partitions")
    assert stage.state(name, 0) == before
    # Its author deletes it again, and the next request is noticed.
    stage.zk.delete("/admin/reassign_partitions")
    stage.request_reassignment(name, [2, 1])
    wait_until(lambda: stage.lists(name) == ([2, 1], [], []))
    wait_until(lambda: not stage.zk.exists("/admin/reassign_partitions"))


@pytest.fixture
def stranger(stage: Stage) -> Iterator[KazooClient]:
    """A session of its own, to register with."""
    client = KazooClient(stage.address, timeout=10)
    client.start()
    yield client
    client.stop()
    client.close()


@pytest.mark.real
@pytest.mark.rule("ZK-8", "ZK-10", "BRK-1")
@NO_DATA
def test_a_registration_without_data_is_nobody_until_it_has_some(
    stage: Stage, stranger: KazooClient, data: bytes | None
):
    """Brokers register in one transaction for this reason; others may not."""
    stranger.create("/brokers/ids/9", data, ephemeral=True)
    name = f"hosted-{data!r:.4}".replace("'", "")
    stage.create_topic(name, {0: [9, 1]})
    assert stage.state(name, 0)["isr"] == [1]
    other = stage.brokers[4]
    stranger.set("/brokers/ids/9", other.registration())
    # All registrations are read when a broker comes or goes.
    other.leave()
    wait_until(lambda: not stage.zk.exists("/brokers/ids/4"))
    response = wait_until(
        lambda: (
            (told := stage.alter_partition(stage.holder(), name, 0, [1, 9]))
            and told.error_code == E.NONE
            and told
        )
    )
    assert list(response.isr) == [1, 9]


@pytest.mark.real
@pytest.mark.rule("ZK-16", "PSM-13", "FAILOVER-11", "DEL-33")
@NO_DATA
def test_a_state_without_data_is_none_and_its_topic_can_still_be_deleted(
    stage: Stage, data: bytes | None
):
    name = f"blank-{data!r:.4}".replace("'", "")
    stage.create_topic(name, {0: [1, 2], 1: [2, 1]})
    path = f"/brokers/topics/{name}/partitions/0/state"
    with stage.no_controller():
        stage.zk.set(path, data)
    stage.settle()
    assert not stage.zk.get(path)[0]
    assert stage.state(name, 1)["leader"] == 2
    stage.zk.create(f"/admin/delete_topics/{name}")
    wait_until(lambda: not stage.zk.exists(f"/brokers/topics/{name}"))


@pytest.mark.real
@pytest.mark.rule("LEAD-4", "LEAD-5", "ZK-18")
@NO_DATA
def test_a_topic_configuration_without_data_configures_nothing(stage: Stage, data: bytes | None):
    name = f"plain-{data!r:.4}".replace("'", "")
    stage.create_topic(name, {0: [4, 1]})
    stage.alter_partition(stage.holder(), name, 0, [4])
    stage.zk.create(f"/config/topics/{name}", data)
    stage.brokers[4].leave()
    stage.wait_state(name, 0, lambda s: s["leader"] == -1)
    assert f"/config/topics/{name}" not in stage.holder().log
    stage.brokers[4].register()
    stage.wait_state(name, 0, lambda s: s["leader"] == 4)


# Written by halves


@pytest.mark.real
@pytest.mark.rule("PSM-12", "PSM-13", "FAILOVER-11")
def test_a_topic_of_which_only_some_nodes_were_made_is_completed(stage: Stage):
    with stage.no_controller():
        stage.zk.create("/brokers/topics/begun", topic_znode({0: [1, 2], 1: [2, 1], 2: [1, 2]}))
        stage.zk.ensure_path("/brokers/topics/begun/partitions/0")
        state = {"version": 1, "leader": 2, "leader_epoch": 3, "controller_epoch": 1, "isr": [2, 1]}
        path = "/brokers/topics/begun/partitions/1/state"
        stage.zk.create(path, json.dumps(state).encode(), makepath=True)
    for partition, leader, epoch in ((0, 1, 0), (1, 2, 3), (2, 1, 0)):
        found = stage.wait_state("begun", partition, lambda s: s["leader"] >= 0)
        assert (found["leader"], found["leader_epoch"]) == (leader, epoch)


@pytest.mark.real
@pytest.mark.rule("DEL-26", "DEL-16")
def test_what_is_left_of_a_deletion_is_removed(stage: Stage):
    """KAFKA-6650 is the kind; here only the last two of the three nodes are left."""
    with stage.no_controller():
        stage.zk.create("/config/topics/remains", b'{"version":1,"config":{}}')
        stage.zk.create("/admin/delete_topics/remains")
    wait_until(lambda: not stage.zk.exists("/admin/delete_topics/remains"))
    assert not stage.zk.exists("/config/topics/remains")


# Written in excess


@pytest.mark.real
@pytest.mark.rule("TOPIC-5", "REASG-1", "REASG-B7", "FAILOVER-6")
def test_a_topic_of_ten_thousand_partitions_is_created_moved_taken_over_and_deleted(stage: Stage):
    partitions = 10_000
    path = "/brokers/topics/vast"
    stage.zk.create(path, topic_znode({n: [1, 2] for n in range(partitions)}))
    stage.wait_state("vast", partitions - 1, lambda s: s["leader"] == 1)
    for broker in (stage.brokers[1], stage.brokers[2]):
        wait_until(lambda b=broker: b.told(ApiKey.LEADER_AND_ISR, "vast", partitions - 1))
    # All of them in one request, half a megabyte long.
    rows = [{"topic": "vast", "partition": n, "replicas": [2, 1]} for n in range(partitions)]
    data = json.dumps({"version": 1, "partitions": rows}, separators=(",", ":")).encode()
    stage.zk.create("/admin/reassign_partitions", data)
    wait_until(lambda: not stage.zk.exists("/admin/reassign_partitions"))
    znode, stat = stage.zk.get(path)
    assert set(map(tuple, json.loads(znode)["partitions"].values())) == {(2, 1)}
    assert stat.version < 20  # not once for each
    with stage.no_controller():
        pass
    stage.zk.create("/admin/delete_topics/vast")
    wait_until(lambda: not stage.zk.exists(path))
