"""Events from a metadata log: one that is made by hand, and one of Apache Kafka."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from klamm.core.effects import WriteOutcome
from klamm.errors import RemoteProtocolError
from klamm.history.kraft.replay import MetadataPosition, MetadataReplay, MetadataSnapshot
from klamm.history.records import EventRecord
from klamm.protocol.fast.fetch import LeaderHint, SnapshotId
from klamm.protocol.records import iterate_batches
from klamm.protocol.schema.metadata_records import MetadataRecordType as T
from tests.support.metadata_log import (
    LogBuilder,
    changed_broker,
    changed_partition,
    created_partition,
    created_topic,
    registered,
    topic_id,
    value_of,
)

RECOVERING = 1


def told(records: Iterable[EventRecord]) -> list[tuple[Any, ...]]:
    """What was decided: kind, partition, leader before and after, ISR."""
    found: list[tuple[Any, ...]] = []
    for record in records:
        for each in record.decisions:
            assert (each.outcome == WriteOutcome.DONE).all()
            for at in range(len(each)):
                isr = each.isr[at]
                found.append(
                    (
                        each.kinds[each.kind[at]],
                        f"{each.topics[each.topic[at]]}-{each.partition[at]}",
                        int(each.old_leader[at]),
                        int(each.leader[at]),
                        isr[isr >= 0].tolist(),
                    )
                )
    return found


def changes(records: Iterable[EventRecord]) -> list[tuple[int, str]]:
    return [(each.broker, each.change) for record in records for each in record.broker_changes]


class Cluster:
    """A log whose replay goes on with each batch: brokers 1 to 3, and orders-0 on 1, 2 and 3."""

    def __init__(self) -> None:
        self.log = LogBuilder()
        self.replay = MetadataReplay("cluster")
        self.replay.apply(self.log.elect(101, 1))
        for broker in (1, 2, 3):
            self.tell(registered(broker, broker))
            self.tell(changed_broker(broker, fenced=-1))
        self.first = self.tell(created_topic(1, "orders"), created_partition(1, 0, [1, 2, 3]))

    def tell(self, *values: bytes) -> list[EventRecord]:
        return self.replay.apply(self.log.append(*values))


def test_a_log_begins_with_the_election_of_its_first_controller():
    log = LogBuilder()
    (record,) = MetadataReplay("cluster").apply(log.elect(101, 1))
    assert (record.controller, record.controller_epoch, record.seq) == (101, 1, 1)
    assert (record.kind, record.term, record.cluster_id) == ("ControllerChange", "began", "cluster")
    assert record.at == 1_700_000_000_000_000
    assert record.cause.endswith("(offset 0)")


def test_a_broker_starts_when_it_is_unfenced_and_not_when_it_registers():
    log, replay = LogBuilder(), MetadataReplay(None)
    replay.apply(log.elect(101, 1))
    assert changes(replay.apply(log.append(registered(1, 7)))) == []
    (record,) = replay.apply(log.append(value_of(T.UNFENCE_BROKER, id=1, epoch=7)))
    ((change),) = record.broker_changes
    assert (change.broker, change.change, change.epoch) == (1, "started", 7)
    assert changes(replay.apply(log.append(value_of(T.FENCE_BROKER, id=1, epoch=7)))) == [
        (1, "failed")
    ]


def test_a_new_topic_has_first_leaders_and_no_elections():
    cluster = Cluster()
    (record,) = cluster.first
    assert told([record]) == [("created", "orders-0", -1, 1, [1, 2, 3])]
    ((change),) = record.topic_changes
    assert (change.topic, change.change, change.partitions) == ("orders", "created", 1)


def test_a_fenced_leader_is_a_failure_and_its_partition_gets_another_one():
    cluster = Cluster()
    records = cluster.tell(
        changed_partition(1, 0, leader=2, isr=[2, 3]), changed_broker(1, fenced=1)
    )
    lost, elected = records
    assert changes(records) == [(1, "failed")]
    assert [each.broker for each in lost.lost] == [1]
    assert told(records) == [("clean", "orders-0", 1, 2, [2, 3])]
    assert elected.cause.startswith("broker 1 had been fenced (offset ")
    assert elected.caused_by == lost.seq
    assert [each.leader_epoch.tolist() for each in elected.decisions] == [[1]]


def test_a_controlled_shutdown_is_no_failure():
    cluster = Cluster()
    asked = cluster.tell(
        changed_broker(1, shutting_down=1), changed_partition(1, 0, leader=2, isr=[2, 3])
    )
    assert changes(asked) == [(1, "shutting_down")]
    assert told(asked) == [("controlled_shutdown", "orders-0", 1, 2, [2, 3])]
    gone = cluster.tell(changed_broker(1, fenced=1))
    assert changes(gone) == [(1, "failed")]
    assert not any(record.lost for record in gone)


def test_a_follower_that_shuts_down_goes_offline_and_one_that_lags_leaves_the_isr():
    cluster = Cluster()
    lagging = cluster.tell(changed_partition(1, 0, isr=[1, 2]))
    assert told(lagging) == [("isr_changed", "orders-0", 1, 1, [1, 2])]
    leaving = cluster.tell(changed_broker(2, shutting_down=1), changed_partition(1, 0, isr=[1]))
    assert told(leaving) == [("replica_offline", "orders-0", 1, 1, [1])]
    assert leaving[-1].cause.startswith("broker 2 asked to shut down (offset ")


def test_only_an_election_that_leaves_the_leader_recovering_is_unclean():
    cluster = Cluster()
    cluster.tell(changed_partition(1, 0, isr=[1]))
    unclean = cluster.tell(
        changed_broker(1, fenced=1),
        changed_partition(1, 0, leader=2, isr=[2], leader_recovery_state=RECOVERING),
    )
    assert told(unclean) == [("unclean", "orders-0", 1, 2, [2])]
    # A leader from among the eligible leader replicas (KIP-966) was not in the ISR either.
    eligible = Cluster()
    eligible.tell(changed_partition(1, 0, isr=[1], eligible_leader_replicas=[2]))
    clean = eligible.tell(changed_broker(1, fenced=1), changed_partition(1, 0, leader=2, isr=[2]))
    assert told(clean) == [("clean", "orders-0", 1, 2, [2])]


def test_a_partition_without_a_replica_in_sync_has_no_leader_until_one_is_back():
    cluster = Cluster()
    cluster.tell(changed_partition(1, 0, isr=[1]))
    gone = cluster.tell(changed_broker(1, fenced=1), changed_partition(1, 0, leader=-1))
    assert told(gone) == [("none", "orders-0", 1, -1, [1])]
    back = cluster.tell(changed_broker(1, fenced=-1), changed_partition(1, 0, leader=1))
    assert told(back) == [("clean", "orders-0", -1, 1, [1])]


def test_a_reassignment_that_ends_with_another_leader_is_one_decision():
    cluster = Cluster()
    cluster.tell(registered(4, 4), changed_broker(4, fenced=-1))
    (began,) = cluster.tell(
        changed_partition(
            1, 0, replicas=[4, 1, 2, 3], adding_replicas=[4], removing_replicas=[1, 2, 3]
        )
    )
    assert [(each.phase, each.adding, each.removing) for each in began.moves] == [
        ("started", (4,), (1, 2, 3))
    ]
    ended = cluster.tell(
        changed_partition(
            1, 0, replicas=[4], adding_replicas=[], removing_replicas=[], isr=[4], leader=4
        )
    )
    assert [each.phase for record in ended for each in record.moves] == ["completed"]
    assert told(ended) == [("reassignment", "orders-0", 1, 4, [4])]


def test_a_leader_that_is_named_again_has_a_new_epoch():
    cluster = Cluster()
    assert told(cluster.tell(changed_partition(1, 0, leader=1))) == [
        ("epoch_raised", "orders-0", 1, 1, [1, 2, 3])
    ]


def test_a_change_of_directories_is_no_event():
    cluster = Cluster()
    assert cluster.tell(changed_partition(1, 0, directories=[topic_id(9)] * 3)) == []


def test_removed_topics_are_deleted_and_may_come_back():
    cluster = Cluster()
    (record,) = cluster.tell(value_of(T.REMOVE_TOPIC, topic_id=topic_id(1)))
    assert [(each.topic, each.change) for each in record.topic_changes] == [("orders", "deleted")]
    again = cluster.tell(created_topic(2, "orders"), created_partition(2, 0, [2]))
    assert told(again) == [("created", "orders-0", -1, 2, [2])]


def test_another_leader_of_the_quorum_is_another_term():
    cluster = Cluster()
    (began,) = cluster.replay.apply(cluster.log.elect(102, 5))
    assert (began.controller, began.controller_epoch, began.seq) == (102, 5, 1)
    assert began.term == "began"
    assert changes([began]) == [(1, "present"), (2, "present"), (3, "present")]


def test_transactions_are_told_at_their_end_or_never():
    cluster = Cluster()
    begin, end = value_of(T.BEGIN_TRANSACTION), value_of(T.END_TRANSACTION)
    assert cluster.tell(begin, created_topic(2, "bills")) == []
    assert cluster.tell(created_partition(2, 0, [2])) == []
    assert told(cluster.tell(end)) == [("created", "bills-0", -1, 2, [2])]
    assert cluster.tell(begin, changed_partition(2, 0, leader=2)) == []
    assert cluster.tell(value_of(T.ABORT_TRANSACTION)) == []
    assert told(cluster.tell(changed_partition(2, 0, leader=2)))


def config(name: str, value: str | None, *, type_: int = 2) -> bytes:
    return value_of(
        T.CONFIG, resource_type=type_, resource_name=name, name="min.insync.replicas", value=value
    )


def test_the_min_isr_of_topics_is_known():
    cluster = Cluster()
    cluster.tell(created_topic(2, "bills"), created_partition(2, 0, [2]))
    assert cluster.replay.min_isr == {}
    assert cluster.tell(config("bills", "2"), config("1", "7", type_=4)) == []
    assert cluster.replay.min_isr == {"bills": 2}
    cluster.tell(config("", "3", type_=4))
    assert cluster.replay.min_isr == {"bills": 2, "orders": 3}
    cluster.tell(config("bills", None), value_of(T.REMOVE_TOPIC, topic_id=topic_id(1)))
    assert cluster.replay.min_isr == {"bills": 3}


def test_idle_batches_are_no_events():
    cluster = Cluster()
    before = cluster.replay.position
    assert cluster.replay.apply(cluster.log.idle()) == []
    assert cluster.replay.position == before._replace(offset=before.offset + 1)


def test_records_of_unknown_types_are_counted_and_skipped():
    cluster = Cluster()
    assert cluster.tell(value_of(99), value_of(99), value_of(T.PRODUCER_IDS)) == []
    assert cluster.replay.unknown == {"type 99": 2}
    assert cluster.replay.skipped["ProducerIdsRecord"] == 1


def test_a_change_of_what_was_never_created_is_an_error():
    cluster = Cluster()
    with pytest.raises(RemoteProtocolError, match="orders-7, which no record before it"):
        cluster.tell(changed_partition(1, 7, leader=2))
    with pytest.raises(RemoteProtocolError, match="which no record before it has created"):
        cluster.tell(changed_partition(8, 0, leader=2))


def snapshot_of(log: LogBuilder, *values: bytes) -> MetadataSnapshot:
    content = log.snapshot(*values)
    return MetadataSnapshot(SnapshotId(log.offset, log.epoch), iterate_batches(content))


def state(leader: int = 1) -> list[bytes]:
    return [
        *(registered(broker, broker, fenced=False) for broker in (1, 2, 3)),
        created_topic(1, "orders"),
        created_partition(1, 0, [1, 2, 3], leader=leader, leader_epoch=4, partition_epoch=9),
    ]


def test_a_log_that_begins_with_a_snapshot_tells_what_is_there():
    log = LogBuilder(epoch=3, offset=500)
    replay = MetadataReplay("cluster", LeaderHint(101, 3))
    (record,) = replay.load(snapshot_of(log, *state(leader=-1)))
    assert (record.term, record.controller, record.controller_epoch) == ("began", 101, 3)
    assert record.at == log.at_ms * 1000
    assert changes([record]) == [(1, "present"), (2, "present"), (3, "present")]
    assert told([record]) == [("none", "orders-0", -1, -1, [1, 2, 3])]
    assert told(replay.apply(log.append(changed_partition(1, 0, leader=2)))) == [
        ("clean", "orders-0", -1, 2, [1, 2, 3])
    ]


def test_a_snapshot_in_between_leaves_a_gap_and_tells_what_changed():
    cluster = Cluster()
    epoch, seq = cluster.replay.position[1:]
    cluster.log.offset = 900
    values = [registered(1, 1, fenced=False), created_topic(5, "bills")]
    values.append(created_partition(5, 0, [1]))
    records = cluster.replay.load(snapshot_of(cluster.log, *values))
    assert (records[0].controller_epoch, records[0].seq) == (epoch, seq + 2)
    assert changes(records) == [(2, "failed"), (3, "failed")]
    gone = [each for record in records for each in record.topic_changes]
    assert [(each.topic, each.change) for each in gone] == [
        ("orders", "deleted"),
        ("bills", "created"),
    ]


def replayed(log: LogBuilder, replay: MetadataReplay) -> list[EventRecord]:
    return [record for batch in log.batches for record in replay.apply(batch)]


def test_a_later_run_goes_on_with_the_next_number():
    cluster = Cluster()
    before = cluster.replay.position
    news = cluster.tell(changed_partition(1, 0, leader=2, isr=[2, 3]), changed_broker(1, fenced=1))
    again = replayed(cluster.log, MetadataReplay("cluster", resumed_at=before))
    assert [(each.seq, each.kind, each.cause, each.caused_by) for each in again] == [
        (each.seq, each.kind, each.cause, each.caused_by) for each in news
    ]
    np.testing.assert_array_equal(again[1].decisions[0].isr, news[1].decisions[0].isr)


def test_a_later_run_counts_on_when_the_log_has_lost_its_beginning():
    cluster = Cluster()
    before = MetadataPosition(cluster.log.offset + 1, 1, 40)
    loaded = snapshot_of(cluster.log, *state())
    replay = MetadataReplay("cluster", resumed_at=before)
    assert replay.load(loaded) == []
    assert replay.apply(cluster.log.idle()) == []
    (record,) = replay.apply(cluster.log.append(changed_partition(1, 0, isr=[1])))
    assert (record.controller_epoch, record.seq) == (1, 41)


@pytest.mark.parametrize(("epoch", "expected"), [(1, 42), (0, 2)])
def test_what_no_run_has_read_shows_as_a_gap(epoch: int, expected: int):
    log = LogBuilder(offset=500)
    replay = MetadataReplay("cluster", resumed_at=MetadataPosition(100, epoch, 40))
    (record,) = replay.load(snapshot_of(log, *state()))
    assert (record.controller_epoch, record.seq) == (1, expected)
