"""Rows 7 to 10: groups of stock clients, their offsets, and a coordinator that dies."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, TopicPartition

from klamm.broker.groups.coordinator import group_partition
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import ErrorCode
from tests.real.clients import CLIENTS, Client, Record
from tests.support.cluster import RealCluster
from tests.support.raw import Raw
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = [pytest.mark.real, pytest.mark.timeout(180)]

clients = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)


@clients
@pytest.mark.rule(
    "GRP-2", "GRP-3", "GRP-10", "GRP-12", "GRP-14", "GRP-20", "OFF-1", "OFF-4", "OFF-5"
)
def test_a_group_goes_on_where_it_stopped(cluster: RealCluster, topic: str, client: Client) -> None:
    cluster.create(topic)
    first = [Record(None, b"%d" % each) for each in range(10)]
    client.produce(cluster.bootstrap, topic, first)
    assert client.read_group(cluster.bootstrap, topic, topic, 10) == first
    more = [Record(None, b"more")]
    client.produce(cluster.bootstrap, topic, more)
    assert client.read_group(cluster.bootstrap, topic, topic, 1) == more


class Member:
    """A consumer of a group in a thread of its own, which always polls."""

    def __init__(self, cluster: RealCluster, topic: str, **settings: Any) -> None:
        self.consumed: list[bytes] = []
        self.assigned: set[int] = set()
        self.errors: list[KafkaError] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": topic,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 300,
                "auto.commit.interval.ms": 200,
                "log_level": 0,
                **{key.replace("_", "."): value for key, value in settings.items()},
            }
        )
        self._consumer.subscribe([topic])
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            message = self._consumer.poll(0.1)
            self.assigned = {each.partition for each in self._consumer.assignment()}
            if message is not None:
                if message.error() is None:
                    self.consumed.append(message.value())
                else:
                    self.errors.append(message.error())
        self._consumer.close()

    def leave(self) -> None:
        self._stopped.set()
        self._thread.join(PATIENCE_S)
        self.assigned = set()


@contextmanager
def members(*running: Member) -> Iterator[None]:
    try:
        yield
    finally:
        for member in running:
            member.leave()


def share(running: list[Member], partitions: int) -> Callable[[], bool]:
    """Whether the members have divided all partitions among them, none of them idle."""

    def is_shared() -> bool:
        parts = [member.assigned for member in running]
        return all(parts) and sorted(each for part in parts for each in part) == list(
            range(partitions)
        )

    return is_shared


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@pytest.mark.rule("GRP-8", "GRP-11", "GRP-13", "GRP-16", "GRP-17", "GRP-20")
def test_members_come_and_go(cluster: RealCluster, topic: str, strategy: str) -> None:
    cluster.create(topic, partitions=6)
    running = [Member(cluster, topic, partition_assignment_strategy=strategy)]
    try:
        wait_until(share(running, 6), "one member has all")
        running.append(Member(cluster, topic, partition_assignment_strategy=strategy))
        wait_until(share(running, 6), "two members share")
        running.append(Member(cluster, topic, partition_assignment_strategy=strategy))
        wait_until(share(running, 6), "three members share")
        running.pop(0).leave()
        wait_until(share(running, 6), "the other two take over")
    finally:
        for member in running:
            member.leave()


MEMBER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2],
                     "session.timeout.ms": 2000, "heartbeat.interval.ms": 300, "log_level": 0})
consumer.subscribe([sys.argv[2]])
while True:
    consumer.poll(0.1)
    if consumer.assignment():
        print("assigned", flush=True)
"""


@pytest.mark.rule("GRP-18")
def test_a_member_that_dies_is_missed(cluster: RealCluster, topic: str) -> None:
    cluster.create(topic, partitions=2)
    process = subprocess.Popen(
        [sys.executable, "-c", MEMBER, cluster.bootstrap, topic], stdout=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"assigned\n"
        survivor = Member(cluster, topic)
        with members(survivor):
            wait_until(lambda: len(survivor.assigned) == 1, "they share")
            process.send_signal(signal.SIGKILL)
            wait_until(lambda: len(survivor.assigned) == 2, "the survivor has all")


@pytest.mark.rule("GRP-19")
def test_a_static_member_returns_without_a_rebalance(cluster: RealCluster, topic: str) -> None:
    cluster.create(topic, partitions=2)
    stays = Member(cluster, topic, group_instance_id="stays")
    goes = Member(cluster, topic, group_instance_id="goes")
    with members(stays):
        wait_until(share([stays, goes], 2), "they share")
        generation = _describe(cluster, topic)
        before = goes.assigned
        goes.leave()
        returns = Member(cluster, topic, group_instance_id="goes")
        with members(returns):
            wait_until(lambda: returns.assigned == before, "it has its partition again")
            assert _describe(cluster, topic) == generation, "the other was not disturbed"
            with members(Member(cluster, topic, group_instance_id="goes")):
                wait_until(
                    lambda: any(
                        error.code() in (KafkaError.FENCED_INSTANCE_ID, KafkaError._FATAL)
                        for error in returns.errors
                    ),
                    "the older of two with one instance id is fenced",
                )


def _describe(cluster: RealCluster, group: str) -> set[str]:
    found = cluster.admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    return {member.member_id for member in found.members if member.group_instance_id == "stays"}


@pytest.mark.rule("GRP-21", "GRP-22", "OFF-1", "OFF-2", "OFF-3", "OFF-5", "GRP-6", "GRP-7", "OFF-7")
def test_groups_are_administered(cluster: RealCluster, topic: str) -> None:
    cluster.create(topic, partitions=2)
    admin = cluster.admin
    wanted = ConsumerGroupTopicPartitions(
        topic, [TopicPartition(topic, 0, 5), TopicPartition(topic, 1, 7)]
    )
    admin.alter_consumer_group_offsets([wanted])[topic].result(PATIENCE_S)
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(topic)])[topic]
    assert {each.partition: each.offset for each in found.result(PATIENCE_S).topic_partitions} == {
        0: 5,
        1: 7,
    }
    listed = admin.list_consumer_groups().result(PATIENCE_S).valid
    assert topic in {each.group_id for each in listed}
    described = admin.describe_consumer_groups([topic])[topic].result(PATIENCE_S)
    assert described.state.name == "EMPTY"
    with _coordinator(cluster, topic) as raw:
        errors = _commit(raw, topic, {0: "x" * 5000, 1: "", 9: ""})
        assert errors == {
            0: ErrorCode.OFFSET_METADATA_TOO_LARGE,
            1: ErrorCode.NONE,
            9: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert _commit(raw, topic, {0: ""}, generation=4) == {0: ErrorCode.UNKNOWN_MEMBER_ID}
        assert _commit(raw, f"{topic}-new", {0: ""}, generation=4) == {
            0: ErrorCode.ILLEGAL_GENERATION
        }
    with members(Member(cluster, topic)):
        wait_until(lambda: _state(cluster, topic) == "STABLE", "the group is stable")
        with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups([topic])[topic].result(PATIENCE_S)
    wait_until(lambda: _state(cluster, topic) == "EMPTY", "the member has left")
    admin.delete_consumer_groups([topic])[topic].result(PATIENCE_S)
    with pytest.raises(Exception, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups([topic])[topic].result(PATIENCE_S)


def _state(cluster: RealCluster, group: str) -> str:
    found = cluster.admin.describe_consumer_groups([group])[group].result(PATIENCE_S)
    return str(found.state.name)


def _coordinator(cluster: RealCluster, group: str) -> Raw:
    leader = cluster.leader("__consumer_offsets", group_partition(group, 4))
    return Raw(cluster[leader].port)


def _commit(raw: Raw, group: str, metadata: dict[int, str], generation: int = -1) -> dict[int, int]:
    topic = group.removesuffix("-new")
    response = raw.ask(
        ApiKey.OFFSET_COMMIT,
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id="",
        group_instance_id=None,
        topics=[
            {
                "name": topic,
                "partitions": [
                    {
                        "partition_index": index,
                        "committed_offset": 1,
                        "committed_leader_epoch": -1,
                        "committed_metadata": text,
                    }
                    for index, text in metadata.items()
                ],
            }
        ],
    )
    return {
        int(each.partition_index): int(each.error_code) for each in response.topics[0].partitions
    }


@pytest.mark.rule("GRP-1", "GRP-3", "GRP-4", "GRP-5", "LISR-13", "OFF-8", "OFF-9", "OFF-10")
def test_a_group_outlives_its_coordinator(
    start_cluster: Callable[..., RealCluster], topic: str
) -> None:
    cluster = start_cluster()
    cluster.create(topic, partitions=2)
    first, second = Member(cluster, topic), Member(cluster, topic)
    with members(first, second):
        wait_until(share([first, second], 2), "they share")
        cluster.produce(topic, [b"before"])
        wait_until(lambda: first.consumed + second.consumed == [b"before"], "it is consumed")
        _wait_committed(cluster, topic, 1)
        partition = group_partition(topic, 4)
        coordinator = cluster.leader("__consumer_offsets", partition)
        cluster[coordinator].kill()
        cluster.wait_leader("__consumer_offsets", partition, other_than=coordinator)
        cluster.wait_leader(topic, 0, other_than=coordinator)
        cluster.produce(topic, [b"after"])
        wait_until(
            lambda: sorted(first.consumed + second.consumed) == [b"after", b"before"],
            "the group goes on, and nothing comes twice",
            timeout_s=2 * PATIENCE_S,
        )
        wait_until(share([first, second], 2), "they still share")


def _wait_committed(cluster: RealCluster, topic: str, offset: int) -> None:
    def committed() -> int:
        wanted = ConsumerGroupTopicPartitions(topic, [TopicPartition(topic, 0)])
        found = cluster.admin.list_consumer_group_offsets([wanted])[topic].result(PATIENCE_S)
        return int(found.topic_partitions[0].offset)

    wait_until(lambda: committed() == offset, "the offset is committed")


@pytest.mark.rule("STOP-4", "GRP-2", "UMD-3")
def test_groups_go_with_the_topic_that_holds_them(
    start_cluster: Callable[..., RealCluster], topic: str
) -> None:
    cluster = start_cluster(brokers=1)
    cluster.create(topic, factor=1)
    cluster.produce(topic, [b"x"])
    CLIENTS[0].read_group(cluster.bootstrap, topic, topic, 1)
    offsets = "__consumer_offsets"
    cluster.admin.delete_topics([offsets])[offsets].result(PATIENCE_S)
    with Raw(cluster[1].port) as raw:

        def heartbeat() -> int:
            response = raw.ask(
                ApiKey.HEARTBEAT,
                group_id=topic,
                generation_id=1,
                member_id="x",
                group_instance_id=None,
            )
            return int(response.error_code)

        wait_until(lambda: heartbeat() == ErrorCode.NOT_COORDINATOR, "the group is unloaded")
    wait_until(lambda: cluster.znode(f"/brokers/topics/{offsets}") is None, "the topic is gone")
    # It comes again with the next who looks for a coordinator, without any memory.
    assert len(CLIENTS[0].read_group(cluster.bootstrap, topic, topic, 1)) == 1


@pytest.mark.rule("GRP-4", "GRP-3")
def test_other_brokers_are_no_coordinators(cluster: RealCluster, topic: str) -> None:
    cluster.create(topic)
    CLIENTS[0].produce(cluster.bootstrap, topic, [Record(None, b"x")])
    CLIENTS[0].read_group(cluster.bootstrap, topic, topic, 1)
    coordinator = cluster.leader("__consumer_offsets", group_partition(topic, 4))
    other = next(each for each in cluster.brokers if each != coordinator)
    with Raw(cluster[other].port) as raw:
        response = raw.ask(
            ApiKey.HEARTBEAT, group_id=topic, generation_id=1, member_id="x", group_instance_id=None
        )
        assert response.error_code == ErrorCode.NOT_COORDINATOR
        found = raw.ask(ApiKey.FIND_COORDINATOR, key_type=0, coordinator_keys=[topic, "another"])
        assert found.coordinators[0].node_id == coordinator
        assert found.coordinators[0].port == cluster[coordinator].port
        assert len(found.coordinators) == 2
        old = raw.ask(ApiKey.FIND_COORDINATOR, 0, key=topic)
        assert old.node_id == coordinator
