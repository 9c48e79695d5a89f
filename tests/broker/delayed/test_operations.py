"""When delayed produce, fetch and DeleteRecords requests are complete."""

import pytest

from klamm.broker.delayed.operations import (
    DelayedDeleteRecords,
    DelayedFetch,
    DelayedProduce,
)
from klamm.broker.delayed.purgatory import DelayedOperationPurgatory
from klamm.broker.fetch.sessions import RequestedPartition
from klamm.broker.replication.partition import LeaderAndIsrPartitionState, Partition
from klamm.broker.replication.replica_log import FetchPosition, Reader
from klamm.names import TopicPartition
from klamm.protocol.codes import ErrorCode as E
from tests.support.memory_log import MemoryLog

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
T0 = 1_000_000


class Broker:
    """Broker 1 leads two partitions of brokers 1 and 2."""

    def __init__(self, segment_batches=1000):
        self.hosted = {}
        for name in (A, B):
            partition = Partition(name, 1, is_alive=lambda _: True, replica_lag_time_max_ms=30_000)
            log = MemoryLog(segment_batches=segment_batches)
            partition.become_leader(LeaderAndIsrPartitionState(1, 0, (1, 2), 0, (1, 2)), log, T0)
            self.hosted[name] = partition

    def find(self, name):
        return self.hosted.get(name, E.UNKNOWN_TOPIC_OR_PARTITION)

    def append(self, name, payload=b""):
        partition = self.hosted[name]
        partition.log.append_as_leader(payload, partition.leader_epoch)
        partition.on_append(T0)

    def follow(self, name, start_offset=0):
        """The follower fetches from the log's end."""
        partition = self.hosted[name]
        end = partition.log.end_offset
        partition.record_follower_fetch(Reader(2), end, start_offset, end, T0)

    def lose(self, name):
        partition = self.hosted[name]
        partition.become_follower(LeaderAndIsrPartitionState(2, 1, (2,), 1, (1, 2)), partition.log)


class TestProduce:
    @pytest.mark.rule("PROD-7")
    def test_it_is_complete_when_every_partition_is_committed(self):
        broker = Broker()
        broker.append(A)
        broker.append(B)
        operation = DelayedProduce({A: 1, B: 1}, broker.find)
        assert not operation.try_complete_all()
        broker.follow(A)
        assert not operation.try_complete(A)
        broker.follow(B)
        assert operation.try_complete(B)
        assert operation.errors == {A: E.NONE, B: E.NONE}

    @pytest.mark.rule("PROD-7", "PROD-3")
    def test_a_lost_partition_completes_with_its_own_error(self):
        broker = Broker()
        broker.append(A)
        broker.append(B)
        operation = DelayedProduce({A: 1, B: 1}, broker.find)
        broker.lose(A)
        del broker.hosted[B]
        assert operation.try_complete_all()
        assert operation.errors == {
            A: E.NOT_LEADER_OR_FOLLOWER,
            B: E.UNKNOWN_TOPIC_OR_PARTITION,
        }

    @pytest.mark.rule("PROD-8", "PROD-9")
    def test_partitions_that_are_not_committed_at_the_deadline_time_out(self):
        broker = Broker()
        broker.append(A)
        broker.append(B)
        broker.follow(A)
        operation = DelayedProduce({A: 1, B: 1}, broker.find)
        operation.try_complete_all()
        operation.on_expiration()
        assert operation.errors == {A: E.NONE, B: E.REQUEST_TIMED_OUT}
        assert broker.hosted[B].log.end_offset == 1

    @pytest.mark.rule("HW-5")
    def test_it_leaves_the_purgatory_when_the_high_watermark_rises(self):
        broker = Broker()
        purgatory = DelayedOperationPurgatory()
        broker.append(A)
        operation = DelayedProduce({A: 1}, broker.find)
        purgatory.watch(operation, T0 + 1000)
        assert purgatory.check(A) == []
        broker.follow(A)
        assert purgatory.check(A) == [operation]


def requested(name, position, max_bytes=1 << 20):
    return {name: RequestedPartition(name, None, name.partition, position, max_bytes)}


def fetch(broker, reader, min_bytes=1, offset=0, **options):
    position = FetchPosition(offset, 0)
    partitions = requested(A, position) | requested(B, position)
    return DelayedFetch(reader, partitions, min_bytes, broker.find, **options)


class TestFetch:
    @pytest.mark.rule("FETCH-6", "FETCH-7", "REPL-6")
    def test_a_follower_waits_for_an_append_and_a_consumer_for_the_high_watermark(self):
        broker = Broker()
        follower, consumer = fetch(broker, Reader(2)), fetch(broker, Reader())
        assert not follower.try_complete_all()
        assert not consumer.try_complete_all()
        broker.append(A)
        assert follower.try_complete(A)
        assert not consumer.try_complete(A)
        broker.follow(A)
        assert consumer.try_complete(A)

    @pytest.mark.rule("FETCH-6")
    def test_bytes_add_up_over_partitions(self):
        broker = Broker()
        broker.append(A)
        size = len(broker.hosted[A].log.batches[0].encode())
        operation = fetch(broker, Reader(2), min_bytes=2 * size)
        assert not operation.try_complete(A)
        assert not operation.try_complete(A)  # a second check does not count twice
        broker.append(B)
        assert operation.try_complete(B)

    @pytest.mark.rule("FETCH-6")
    def test_one_partition_counts_with_no_more_than_it_may_return(self):
        broker = Broker()
        broker.append(A, b"x" * 1000)
        partitions = requested(A, FetchPosition(0), 10)
        operation = DelayedFetch(Reader(2), partitions, 500, broker.find)
        assert not operation.try_complete(A)

    @pytest.mark.rule("FETCH-6")
    def test_it_does_not_wait_for_a_partition_that_is_lost_or_gone(self):
        broker = Broker()
        broker.lose(A)
        assert fetch(broker, Reader(2)).try_complete(A)
        del broker.hosted[B]
        assert fetch(broker, Reader()).try_complete(B)

    @pytest.mark.rule("FETCH-6")
    def test_it_does_not_wait_for_more_once_the_end_is_in_a_later_segment(self):
        broker = Broker(segment_batches=1)
        broker.append(A)
        operation = fetch(broker, Reader(2), min_bytes=1 << 20)
        assert not operation.try_complete(A)
        broker.append(A)
        assert operation.try_complete(A)

    @pytest.mark.rule("FETCH-6", "TRUNC-1")
    def test_it_does_not_wait_once_the_logs_have_diverged(self):
        broker = Broker()
        broker.append(A)
        position = FetchPosition(1, 0, last_fetched_epoch=0)
        operation = DelayedFetch(Reader(2), requested(A, position, 100), 1, broker.find)
        assert not operation.try_complete(A)
        broker.hosted[A].log.truncate_to(0, now_ms=T0)
        broker.hosted[A].log.epochs.assign(0, 0)
        assert operation.try_complete(A)

    def test_data_of_a_throttled_partition_does_not_complete_a_fetch(self):
        broker = Broker()
        broker.append(A)
        operation = fetch(broker, Reader(2), is_throttled=lambda partition: partition.name == A)
        assert not operation.try_complete(A)
        broker.append(B)
        assert operation.try_complete(B)


class TestDelete:
    @pytest.mark.rule("BADM-9")
    def test_it_waits_for_the_low_watermark(self):
        broker = Broker()
        for name in (A, B):
            broker.append(name)
            broker.follow(name)
            broker.hosted[name].log.raise_start_offset(1)
        operation = DelayedDeleteRecords({A: 1, B: 1}, broker.find)
        assert not operation.try_complete_all()
        broker.follow(A, start_offset=1)
        assert not operation.try_complete(A)
        operation.on_expiration()
        assert operation.errors == {A: E.NONE, B: E.REQUEST_TIMED_OUT}
        assert operation.low_watermarks == {A: 1, B: -1}

    @pytest.mark.rule("BADM-9")
    def test_lost_leadership_ends_the_wait(self):
        broker = Broker()
        operation = DelayedDeleteRecords({A: 1}, broker.find)
        assert not operation.try_complete(A)
        broker.lose(A)
        assert operation.try_complete(A)
        assert operation.errors == {A: E.NOT_LEADER_OR_FOLLOWER}
