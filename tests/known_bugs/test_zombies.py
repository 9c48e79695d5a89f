"""Brokers that missed something: orders out of order, and leaders that do not know they are not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.replication.isr import AlterPartitionResult
from klamm.broker.replication.partition import LeaderAndIsrPartitionState, Partition, Role, Step
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode as E
from tests.support.memory_log import MemoryLog
from tests.support.replication_model import MAX_LAG_MS, Broker, Cluster

#: What a controller told broker 1 about a partition, in the order in which it decided.
DECIDED = [
    LeaderAndIsrPartitionState(1, 0, (1, 2, 3), 0, (1, 2, 3)),
    LeaderAndIsrPartitionState(2, 1, (2, 3), 1, (1, 2, 3)),
    LeaderAndIsrPartitionState(2, 2, (2, 3, 1), 3, (1, 2, 3)),
    LeaderAndIsrPartitionState(1, 3, (2, 3, 1), 4, (1, 2, 3)),
    LeaderAndIsrPartitionState(3, 4, (3, 1), 6, (1, 2, 3)),
    LeaderAndIsrPartitionState(1, 5, (3, 1), 7, (1, 2, 3)),
]


def obey(partition: Partition, log: MemoryLog, order: LeaderAndIsrPartitionState) -> E:
    """What a broker does with an order."""
    error, step = partition.decide(order, None)
    if step is Step.LEAD:
        partition.become_leader(order, log, 0)
    elif step is Step.FOLLOW:
        partition.become_follower(order, log)
    return error


# LeaderAndIsr out of order


@pytest.mark.rule("LISR-5", "LISR-6", "FENCE-12", "CHAN-3")
@given(arrivals=st.lists(st.sampled_from(DECIDED), min_size=1, max_size=12))
def test_orders_may_arrive_in_any_order_and_more_than_once(
    arrivals: list[LeaderAndIsrPartitionState],
) -> None:
    """KAFKA-2721: a request that is sent again after a reconnect may come late."""
    log = MemoryLog()
    partition = Partition(
        TopicPartition("t", 0), 1, is_alive=lambda _: True, replica_lag_time_max_ms=MAX_LAG_MS
    )
    latest = -1
    for order in arrivals:
        error = obey(partition, log, order)
        assert error is (E.NONE if order.leader_epoch > latest else E.STALE_CONTROLLER_EPOCH)
        latest = max(latest, order.leader_epoch)
        final = DECIDED[latest]
        role = Role.LEADER if final.leader == 1 else Role.FOLLOWER
        assert (partition.role, partition.leader, partition.leader_epoch) == (
            role,
            final.leader,
            latest,
        )
        assert partition.isr == (final.isr if role is Role.LEADER else ())


@pytest.mark.rule("STOP-1", "FENCE-13")
def test_a_stop_that_was_overtaken_by_a_later_order_stops_nothing() -> None:
    """KAFKA-9539: without an epoch of its own, a late StopReplica deleted a replica in use."""
    log = MemoryLog()
    partition = Partition(
        TopicPartition("t", 0), 1, is_alive=lambda _: True, replica_lag_time_max_ms=MAX_LAG_MS
    )
    obey(partition, log, DECIDED[3])
    assert partition.check_stop(DECIDED[2].leader_epoch) is E.FENCED_LEADER_EPOCH
    assert partition.check_stop(DECIDED[3].leader_epoch) is E.NONE


# A zombie that leads


def produce(broker: Broker, payload: bytes) -> int:
    """Append as a leader; returns the offset that has to be committed."""
    assert broker.partition.check_append(acks_all=True) is E.NONE
    broker.log.append_as_leader(payload, broker.partition.leader_epoch, 1)
    broker.partition.on_append(broker.cluster.now_ms)
    return broker.log.end_offset


@pytest.fixture
def cut_off() -> Cluster:
    """1 leads, has shared one record with the others, and is cut off; 2 was elected."""
    cluster = Cluster()
    for number in cluster.brokers:
        cluster.deliver(number)
    produce(cluster.brokers[1], b"shared")
    for number in (2, 3, 2, 3):
        cluster.brokers[number].send_fetch()
        cluster.brokers[number].take_response()
    assert cluster.brokers[1].log.high_watermark == 1
    cluster.cut_off.add(1)
    cluster.lost(1)
    for number in (2, 3):
        cluster.deliver(number)
    return cluster


@pytest.mark.rule("HW-1")
def test_a_leader_that_is_cut_off_acknowledges_nothing_that_others_do_not_have(cut_off: Cluster):
    zombie = cut_off.brokers[1]
    needed = produce(zombie, b"lost")
    # Its followers are silent, so it wants to go on alone; nobody lets it.
    cut_off.now_ms += 2 * MAX_LAG_MS
    zombie.shrink()
    for _ in range(3):
        zombie.propose()
        zombie.take_altered()
        cut_off.now_ms += MAX_LAG_MS
    assert zombie.partition.check_committed(needed) is None
    assert zombie.log.high_watermark == 1


@pytest.mark.rule("ISR-13", "TRUNC-2")
def test_a_leader_that_comes_back_is_fenced_and_follows(cut_off: Cluster):
    zombie, successor = cut_off.brokers[1], cut_off.brokers[2]
    needed = produce(zombie, b"lost")
    kept = produce(successor, b"kept")
    cut_off.now_ms += 2 * MAX_LAG_MS
    zombie.shrink()
    # Back, but the controller's news are still on their way: the proposal is refused.
    cut_off.cut_off.clear()
    zombie.propose()
    assert zombie.altered == {zombie.partition.name: AlterPartitionResult(E.FENCED_LEADER_EPOCH)}
    zombie.take_altered()
    assert zombie.partition.check_committed(needed) is None
    cut_off.settle()
    assert zombie.partition.role is Role.FOLLOWER
    assert zombie.partition.check_committed(needed) is E.NOT_LEADER_OR_FOLLOWER
    assert successor.log.high_watermark >= kept
    assert zombie.log.batches == successor.log.batches


@pytest.mark.rule("EPOCH-1")
def test_who_follows_the_new_leader_does_not_help_the_old_one_to_commit(cut_off: Cluster):
    zombie, follower = cut_off.brokers[1], cut_off.brokers[3]
    needed = produce(zombie, b"lost")
    assert zombie.partition.check_epoch(follower.partition.leader_epoch) is E.UNKNOWN_LEADER_EPOCH
    assert follower.partition.check_epoch(zombie.partition.leader_epoch) is E.FENCED_LEADER_EPOCH
    assert zombie.partition.check_committed(needed) is None
