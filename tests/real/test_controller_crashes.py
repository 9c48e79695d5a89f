"""The controller's node dies at any of its writes, and a successor ends in the right state.

A proxy between the node and ZooKeeper counts the writes of an operation and kills the node at one
of them: the first, in the next round the second, until the operation needs no more. Brokers and
clients do what they do in such a case: they send the request again, to the new controller.
"""

import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode as E
from klamm.zookeeper.server import ZooKeeperServer
from tests.support.killer import KillingProxy
from tests.support.lab import Lab, Node
from tests.support.waiting import wait_until

pytestmark = pytest.mark.real


class Arena(Lab):
    """Scripted brokers 1 to 5, and two nodes whose words to ZooKeeper pass through proxies."""

    def __init__(self, server: ZooKeeperServer, directory: Path) -> None:
        super().__init__(server.address, directory)
        self.proxies = {node: KillingProxy(server.host, server.port) for node in (100, 101)}
        self.add_brokers(1, 2, 3, 4, 5)
        for node, proxy in self.proxies.items():
            connect = proxy.address + self.chroot
            self.add_node(node, zookeeper_connect=connect, zookeeper_session_timeout_ms=6000)

    def close(self) -> None:
        super().close()
        for proxy in self.proxies.values():
            proxy.close()

    def insist(self, ask: Callable[[Node], bool]) -> None:
        """Send a request to the present controller until one of them gives a final response."""

        def asked() -> bool:
            holder = self.controller_id()
            try:
                return holder is not None and ask(self.nodes[holder])
            except (OSError, EOFError):
                return False

        wait_until(asked, "a final answer")

    def settle(self) -> None:
        """The controller has handled everything that was queued: an event of ours included."""
        self.insist(lambda node: _listed(node).error_code == E.NONE)


@pytest.fixture(scope="module")
def arena(
    zookeeper_server: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Arena]:
    with Arena(zookeeper_server, tmp_path_factory.mktemp("arena")) as arena:
        yield arena


@dataclass(frozen=True)
class Operation:
    """Something to do with a topic; `begin` says whether it needs to be asked for again."""

    prepare: Callable[[Arena, str], None]
    begin: Callable[[Arena, str], None]
    is_done: Callable[[Arena, str], Any]


# What is asked for


def _listed(node: Node) -> Any:
    return node.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, timeout=1000, topics=None)


def create(arena: Arena, topic: str) -> None:
    replicas = [[1, 2, 3], [2, 3, 1]]
    rows = [{"partition_index": p, "broker_ids": ids} for p, ids in enumerate(replicas)]
    wanted = {"name": topic, "num_partitions": -1, "replication_factor": -1}

    def ask(node: Node) -> bool:
        response = node.ask(
            ApiKey.CREATE_TOPICS,
            7,
            topics=[wanted | {"assignments": rows, "configs": []}],
            timeout=10_000,
            validate_only=False,
        )
        return response.topics[0].error_code in (E.NONE, E.TOPIC_ALREADY_EXISTS)

    arena.insist(ask)


def expand(arena: Arena, topic: str) -> None:
    added = [{"broker_ids": [3, 1, 2]}, {"broker_ids": [1, 3, 2]}]

    def ask(node: Node) -> bool:
        response = node.ask(
            ApiKey.CREATE_PARTITIONS,
            3,
            topics=[{"name": topic, "count": 4, "assignments": added}],
            timeout=10_000,
            validate_only=False,
        )
        return response.results[0].error_code in (E.NONE, E.INVALID_PARTITIONS)

    arena.insist(ask)


def delete(arena: Arena, topic: str) -> None:
    def ask(node: Node) -> bool:
        names = [topic]
        response = node.ask(ApiKey.DELETE_TOPICS, 5, topic_names=names, timeout=10_000)
        code = response.responses[0].error_code
        # A node that has just become controller may not have heard of the topic yet (ADM-26).
        is_gone = not arena.zk.exists(f"/brokers/topics/{topic}")
        return code == E.NONE or (code == E.UNKNOWN_TOPIC_OR_PARTITION and is_gone)

    arena.insist(ask)


def move_by_znode(arena: Arena, topic: str) -> None:
    rows = [{"topic": topic, "partition": 0, "replicas": [3, 4, 5]}]
    data = json.dumps({"version": 1, "partitions": rows}).encode()
    arena.zk.create("/admin/reassign_partitions", data)


def cancel(arena: Arena, topic: str) -> None:
    rows = [{"partition_index": 0, "replicas": None}]

    def ask(node: Node) -> bool:
        response = node.ask(
            ApiKey.ALTER_PARTITION_REASSIGNMENTS,
            0,
            timeout=10_000,
            topics=[{"name": topic, "partitions": rows}],
        )
        if response.error_code != E.NONE:
            return False
        code = response.responses[0].partitions[0].error_code
        return code in (E.NONE, E.NO_REASSIGNMENT_IN_PROGRESS)

    arena.insist(ask)


def catch_up(arena: Arena, topic: str) -> None:
    """All replicas of a partition that moves are in sync, and its leader says so."""

    def ask(node: Node) -> bool:
        if not set(arena.state(topic, 0)["isr"]).isdisjoint({4, 5}):
            return True
        return arena.alter_partition(node, topic, 0, [1, 2, 3, 4, 5]).error_code == E.NONE

    arena.insist(ask)


def lose_broker(arena: Arena, topic: str) -> None:
    arena.brokers[1].leave()


def elect_by_znode(arena: Arena, topic: str) -> None:
    rows = [{"topic": topic, "partition": 0}]
    data = json.dumps({"version": 1, "partitions": rows}).encode()
    arena.zk.create("/admin/preferred_replica_election", data)


# What was there before


def nothing(arena: Arena, topic: str) -> None:
    # The failure of a broker may have been the test before.
    if not arena.brokers[1].is_registered:
        arena.brokers[1].register()
        arena.wait_controller()


def there(arena: Arena, topic: str) -> None:
    nothing(arena, topic)
    arena.create_topic(topic, {0: [1, 2, 3], 1: [2, 3, 1]})


def moving(arena: Arena, topic: str) -> None:
    there(arena, topic)
    move_by_znode(arena, topic)
    wait_until(lambda: has_begun_to_move(arena, topic))


def strayed(arena: Arena, topic: str) -> None:
    """The same replicas in another order: 3 is preferred, and 1 leads."""
    there(arena, topic)
    rows = [{"partition_index": 0, "replicas": [3, 1, 2]}]
    topics = [{"name": topic, "partitions": rows}]
    arena.insist(
        lambda node: (
            node.ask(
                ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, timeout=10_000, topics=topics
            ).error_code
            == E.NONE
        )
    )


# What has to come of it


def led(arena: Arena, topic: str, **leaders: Any) -> bool:
    """Every partition is led by its first replica, in sync with the others."""
    partitions = arena.znode(f"/brokers/topics/{topic}")["partitions"]
    states = {p: arena.state(topic, int(p)) for p in partitions}
    return all(
        state is not None and state["leader"] == partitions[p][0] and state["isr"] == partitions[p]
        for p, state in states.items()
    )


def is_created(arena: Arena, topic: str) -> bool:
    return bool(arena.zk.exists(f"/brokers/topics/{topic}")) and led(arena, topic)


def is_expanded(arena: Arena, topic: str) -> bool:
    return len(arena.znode(f"/brokers/topics/{topic}")["partitions"]) == 4 and led(arena, topic)


def is_deleted(arena: Arena, topic: str) -> bool:
    paths = (f"/brokers/topics/{topic}", f"/config/topics/{topic}", f"/admin/delete_topics/{topic}")
    return not any(arena.zk.exists(path) for path in paths)


def has_begun_to_move(arena: Arena, topic: str) -> bool:
    znode = arena.znode(f"/brokers/topics/{topic}")
    return (
        znode["partitions"]["0"] == [3, 4, 5, 1, 2]
        and znode["adding_replicas"] == {"0": [4, 5]}
        and znode["removing_replicas"] == {"0": [1, 2]}
        and arena.state(topic, 0)["leader_epoch"] >= 1
        and all(arena.brokers[b].told(ApiKey.LEADER_AND_ISR, topic, 0) for b in (4, 5))
    )


def rests_on(arena: Arena, topic: str, replicas: list[int]) -> bool:
    znode = arena.znode(f"/brokers/topics/{topic}")
    state = arena.state(topic, 0)
    return (
        znode["partitions"]["0"] == replicas
        and not znode["adding_replicas"]
        and not znode["removing_replicas"]
        and state["leader"] in replicas
        and sorted(state["isr"]) == sorted(replicas)
        and not arena.zk.exists("/admin/reassign_partitions")
    )


def is_moved(arena: Arena, topic: str) -> bool:
    return rests_on(arena, topic, [3, 4, 5])


def is_cancelled(arena: Arena, topic: str) -> bool:
    return rests_on(arena, topic, [3, 1, 2])


def is_rescued(arena: Arena, topic: str) -> bool:
    states = [arena.state(topic, partition) for partition in (0, 1)]
    return all((s["leader"], s["isr"]) == (2, [2, 3]) for s in states)


def is_led_by_preferred(arena: Arena, topic: str) -> bool:
    is_asked_for = arena.zk.exists("/admin/preferred_replica_election")
    return arena.state(topic, 0)["leader"] == 3 and not is_asked_for


OPERATIONS = {
    "creation": Operation(nothing, create, is_created),
    "expansion": Operation(there, expand, is_expanded),
    "deletion": Operation(there, delete, is_deleted),
    "move-begun": Operation(there, move_by_znode, has_begun_to_move),
    "move-completed": Operation(moving, catch_up, is_moved),
    "move-cancelled": Operation(moving, cancel, is_cancelled),
    "broker-failure": Operation(there, lose_broker, is_rescued),
    "preferred-election": Operation(strayed, elect_by_znode, is_led_by_preferred),
}


def check_brokers_know(arena: Arena, topic: str) -> None:
    """What brokers heard last about a topic is what ZooKeeper says."""
    znode = arena.znode(f"/brokers/topics/{topic}")
    if znode is None:
        for broker in arena.brokers.values():
            wait_until(
                lambda b=broker: b.told(ApiKey.UPDATE_METADATA, topic, 0)[-1].leader == -2,
                f"broker {broker.id} forgets {topic}",
            )
        return
    for partition, replicas in znode["partitions"].items():
        state = arena.state(topic, int(partition))
        for broker in (arena.brokers[b] for b in replicas if arena.brokers[b].is_registered):
            for api in (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA):
                wait_until(
                    lambda b=broker, api=api, p=partition, s=state: (
                        (told := b.told(api, topic, int(p)))
                        and (told[-1].leader, told[-1].leader_epoch, list(told[-1].isr))
                        == (s["leader"], s["leader_epoch"], s["isr"])
                    ),
                    f"broker {broker.id} knows {topic}-{partition} by {api.name}",
                )


def kill_at_every_write(arena: Arena, name: str, *, is_heard: bool) -> int:
    """Returns how many writes the operation has; the node died at each of them."""
    operation = OPERATIONS[name]
    for write in itertools.count(1):
        topic = f"{name}-{'after' if is_heard else 'before'}-{write}"
        for node in arena.nodes.values():
            node.restart_if_dead()
        arena.wait_controller()
        for broker in arena.brokers.values():
            broker.received.clear()
        operation.prepare(arena, topic)
        arena.settle()
        victim = arena.nodes[arena.wait_controller()]
        proxy = arena.proxies[victim.id]
        proxy.arm(write, victim.kill, is_heard=is_heard)
        operation.begin(arena, topic)
        wait_until(
            lambda topic=topic: operation.is_done(arena, topic),
            f"{topic}, {victim.id} is controller",
        )
        arena.settle()
        proxy.disarm()
        arena.wait_controller()
        check_brokers_know(arena, topic)
        if operation is OPERATIONS["move-begun"]:
            catch_up(arena, topic)
            wait_until(lambda topic=topic: is_moved(arena, topic))
        if not proxy.has_killed.is_set():
            return write - 1
    raise AssertionError("unreachable")


@pytest.mark.rule("REASG-31", "DEL-16", "DEL-26", "FAILOVER-18", "FAILOVER-19", "FAILOVER-20")
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_node_that_dies_before_it_hears_of_a_write_has_a_successor_that_completes_the_work(
    arena: Arena, operation: str
):
    writes = kill_at_every_write(arena, operation, is_heard=True)
    assert writes >= (1 if operation == "broker-failure" else 2)


@pytest.mark.crash
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_node_that_dies_before_a_write_has_a_successor_that_completes_the_work(
    arena: Arena, operation: str
):
    writes = kill_at_every_write(arena, operation, is_heard=False)
    assert writes >= (1 if operation == "broker-failure" else 2)
