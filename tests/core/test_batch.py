"""Batches of requests: one entry for each broker and partition."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.core.batch import BrokerRequestBatch
from klamm.core.cluster import ClusterState, RegisteredBroker, TopicRead
from klamm.core.columns import I32
from klamm.core.effects import SendRequestBatch

ROWS = 40


def cluster_of(brokers: tuple[int, ...] = (1, 2, 3)) -> ClusterState:
    cluster = ClusterState(capacity=ROWS)
    cluster.brokers = {id: RegisteredBroker(id, id) for id in brokers}
    cluster.add_topic("t", None)
    cluster.add_partitions({"t": TopicRead(None, {n: [1, 2, 3] for n in range(ROWS)})})
    return cluster


def column(*values: int) -> I32:
    return np.array(values, np.int32)


def sent(batch: BrokerRequestBatch) -> SendRequestBatch | None:
    return next(batch.send(), None)


@pytest.mark.rule("CHAN-13")
def test_an_empty_batch_is_not_sent() -> None:
    assert sent(BrokerRequestBatch(cluster_of())) is None


@pytest.mark.rule("CHAN-16", "LEAD-2")
def test_unknown_and_negative_brokers_are_dropped() -> None:
    batch = BrokerRequestBatch(cluster_of())
    batch.leader_and_isr(column(0, 0, 0), column(1, 9, -1))
    batch.stop_replica(column(0), column(9), delete=True)
    batch.update_metadata(column(0), [1, 9])
    announced = sent(batch)
    assert announced is not None
    assert list(announced.leader_and_isr) == [1]
    assert announced.stop_replica == {}
    assert announced.metadata_brokers == [1, 2, 3]


@pytest.mark.rule("CHAN-16")
def test_a_batch_for_nobody_is_not_sent() -> None:
    batch = BrokerRequestBatch(cluster_of())
    batch.stop_replica(column(0), column(9), delete=True)
    assert sent(batch) is None
    batch = BrokerRequestBatch(cluster_of(()))
    batch.leader_and_isr(column(0), column(1))
    assert sent(batch) is None


@pytest.mark.rule("CHAN-15")
def test_a_later_entry_replaces_an_earlier_one_but_new_stays_new() -> None:
    batch = BrokerRequestBatch(cluster_of())
    batch.leader_and_isr(column(4, 3), column(1, 1), is_new=True)
    batch.leader_and_isr(column(3, 5), column(1, 1))
    announced = sent(batch)
    assert announced is not None
    told = announced.leader_and_isr[1]
    assert told.rows.tolist() == [3, 4, 5]
    assert told.flag.tolist() == [True, True, False]


@pytest.mark.rule("CHAN-15", "CHAN-28")
def test_a_deletion_stays_one_and_the_last_epoch_counts() -> None:
    cluster = cluster_of()
    cluster.has_leadership[0] = True
    cluster.leader_epoch[0] = 7
    batch = BrokerRequestBatch(cluster)
    batch.stop_replica(column(0, 1), column(2, 2), delete=True)
    cluster.leader_epoch[0] = 8
    batch.stop_replica(column(0), column(2), delete=False)
    announced = sent(batch)
    assert announced is not None
    told = announced.stop_replica[2]
    assert told.rows.tolist() == [0, 1]
    assert told.flag.tolist() == [True, True]
    assert told.leader_epoch.tolist() == [8, -1]


@pytest.mark.rule("CHAN-17")
def test_whoever_is_told_of_leadership_everybody_hears_the_metadata() -> None:
    batch = BrokerRequestBatch(cluster_of())
    batch.leader_and_isr(column(2), column(1))
    batch.update_metadata(column(7), [2])
    announced = sent(batch)
    assert announced is not None
    assert announced.metadata_rows.tolist() == [2, 7]
    assert announced.metadata_brokers == [1, 2, 3]


entries = st.lists(
    st.tuples(st.integers(0, ROWS - 1), st.sampled_from([-1, 1, 2, 3, 9]), st.booleans()),
    max_size=60,
)


@given(st.lists(entries, max_size=4))
@pytest.mark.rule("CHAN-15", "CHAN-16")
def test_a_batch_is_what_a_dictionary_would_be(calls: list[list[tuple[int, int, bool]]]) -> None:
    expected: dict[int, dict[int, bool]] = {}
    batch = BrokerRequestBatch(cluster_of())
    for call in calls:
        for is_new in (False, True):
            chosen = [(row, broker) for row, broker, flag in call if flag == is_new]
            batch.leader_and_isr(
                column(*(row for row, _ in chosen)),
                column(*(broker for _, broker in chosen)),
                is_new=is_new,
            )
            for row, broker in chosen:
                if broker in (1, 2, 3):
                    mine = expected.setdefault(broker, {})
                    mine[row] = mine.get(row, False) or is_new
    announced = sent(batch)
    told = {} if announced is None else announced.leader_and_isr
    assert {
        broker: dict(zip(t.rows.tolist(), t.flag.tolist(), strict=True))
        for broker, t in told.items()
    } == expected
    named = {row for call in calls for row, _, _ in call}
    assert set([] if announced is None else announced.metadata_rows.tolist()) == named
