"""What happened between two looks at a cluster, in sentences."""

from dataclasses import replace

from klamm.client.topics import PartitionDescription
from klamm.local.broker_process import ProcessState
from klamm.local.status import BrokerStatus, ClusterStatus, describe_changes
from klamm.names import TopicPartition


def broker(
    number: int, state: ProcessState = ProcessState.RUNNING, exit_code: int | None = None
) -> BrokerStatus:
    return BrokerStatus(number, f"127.0.0.1:{9091 + number}", None, 100, state, exit_code)


def partition(number: int, leader: int, isr: tuple[int, ...]) -> PartitionDescription:
    return PartitionDescription("orders", number, leader, 0, (1, 2, 3), isr, ())


def status(*partitions: PartitionDescription, controller: int | None = 1) -> ClusterStatus:
    by_name = {TopicPartition(each.topic, each.partition): each for each in partitions}
    return ClusterStatus((broker(1), broker(2)), controller, True, by_name)


WELL = status(partition(0, 1, (1, 2, 3)))


def test_nothing_happened():
    assert list(describe_changes(WELL, WELL)) == []
    assert (WELL.under_replicated, WELL.leaderless) == (0, 0)


def test_a_broker_dies_and_its_partitions_change():
    after = replace(
        status(partition(0, 2, (2, 3)), controller=2),
        brokers=(broker(1, ProcessState.DEAD, -9), broker(2)),
    )
    assert list(describe_changes(WELL, after)) == [
        "broker 1 died (by signal 9)",
        "broker 2 became controller (was 1)",
        "orders-0: leader 1 → 2, ISR 1,2,3 → 2,3",
    ]
    assert after.under_replicated == 1


def test_a_partition_without_a_leader_is_told_as_such():
    after = status(partition(0, -1, (1,)), controller=None)
    assert list(describe_changes(WELL, after)) == [
        "nobody is controller (was 1)",
        "orders-0: leader 1 → none, ISR 1,2,3 → 1",
    ]
    assert after.leaderless == 1


def test_a_paused_broker_loses_its_session_and_comes_back():
    paused = replace(WELL, brokers=(broker(1, ProcessState.PAUSED), broker(2)))
    expired = replace(
        paused, brokers=(replace(paused.brokers[0], has_lost_session=True), broker(2))
    )
    assert list(describe_changes(WELL, paused)) == ["broker 1 is paused"]
    assert list(describe_changes(paused, expired)) == ["broker 1 lost its ZooKeeper session"]
    assert expired.brokers[0].state_text == "paused, session lost"
    assert list(describe_changes(expired, WELL)) == [
        "broker 1 is running",
        "broker 1 is registered again",
    ]


def test_topics_come_and_go():
    assert list(describe_changes(status(), WELL)) == ["topic orders was created"]
    assert list(describe_changes(WELL, status())) == ["topic orders was deleted"]


def test_many_changes_at_once_are_counted():
    before = status(*(partition(number, 1, (1, 2, 3)) for number in range(100)))
    after = status(*(partition(number, 2, (2, 3)) for number in range(100)))
    told = list(describe_changes(before, after))
    assert len(told) == 7
    assert told[-1] == "and 94 more partitions changed"


def test_what_cannot_be_seen_is_not_told():
    unknown = ClusterStatus((broker(1), broker(2)), None, False, {}, is_known=False)
    assert list(describe_changes(WELL, unknown)) == ["ZooKeeper ended"]
