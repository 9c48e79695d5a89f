"""The metadata cache."""

import tracemalloc
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.metadata.cache import (
    BrokerEndpoint,
    BrokerNode,
    CachedBroker,
    ClusterSnapshot,
    MetadataCache,
    MetadataUpdate,
)
from klamm.core.cluster import LEADER_DURING_DELETE
from klamm.names import TopicPartition
from klamm.protocol.fast.control_decode import TopicStates
from klamm.protocol.fast.metadata_states import PartitionMetadata, index_of, unpack_partition
from tests.broker.metadata_states import packed, states_of

ID, OTHER_ID = uuid.UUID(int=1), uuid.UUID(int=2)


def broker(number, *listeners, rack=None):
    endpoints = {
        name: BrokerEndpoint("host", 9000 + number) for name in listeners or ("PLAINTEXT",)
    }
    return CachedBroker(number, endpoints, rack)


def partition(index, leader=1, epoch=0):
    return PartitionMetadata(index, leader, epoch, (1, 2, 3), (1, 2), (3,))


def topic(name, *partitions, topic_id=ID):
    return TopicStates(name, topic_id.bytes if topic_id else b"", states_of(*partitions))


def update(*topics, brokers=(1, 2), controller=1):
    return MetadataUpdate(controller, [broker(each) for each in brokers], topics)


def after(*updates):
    snapshot = ClusterSnapshot()
    for each in updates:
        snapshot = snapshot.after(each).snapshot
    return snapshot


@pytest.mark.rule("UMD-1")
def test_brokers_are_replaced_and_partitions_are_merged():
    snapshot = after(
        update(topic("t", partition(0), partition(1)), brokers=(1, 2)),
        update(topic("t", partition(1, leader=2, epoch=1)), brokers=(2, 3)),
    )
    assert sorted(snapshot.brokers) == [2, 3]
    assert list(snapshot.topic("t").partitions()) == [
        partition(0),
        partition(1, leader=2, epoch=1),
    ]


@pytest.mark.rule("UMD-2", "LIFE-10")
def test_the_controller_is_the_one_of_the_latest_update():
    snapshot = after(update(controller=1), update(controller=2, brokers=(2, 3)))
    assert snapshot.controller("PLAINTEXT") == BrokerNode(2, "host", 9002, None)
    assert after(update(controller=-5)).controller_id == -1
    assert after(update(controller=9)).controller("PLAINTEXT") is None


@pytest.mark.rule("UMD-3")
def test_a_topic_goes_with_its_last_partition():
    snapshot = after(update(topic("t", partition(0), partition(1))))
    gone = partition(0, leader=LEADER_DURING_DELETE)
    change = snapshot.after(update(topic("t", gone)))
    assert change.deleted == (TopicPartition("t", 0),)
    assert [each.partition for each in change.snapshot.topic("t").partitions()] == [1]
    assert change.snapshot.topic_name(ID) == "t"
    gone = partition(1, leader=LEADER_DURING_DELETE)
    change = change.snapshot.after(update(topic("t", gone)))
    assert change.snapshot.topic("t") is None
    assert change.snapshot.topic_name(ID) is None
    assert (change.snapshot.topic_count, change.snapshot.partition_count) == (0, 0)


@pytest.mark.rule("UMD-4")
def test_a_topic_id_is_set_replaced_and_removed():
    snapshot = after(update(topic("t", partition(0), topic_id=ID)))
    assert (snapshot.topic_name(ID), snapshot.topic("t").topic_id) == ("t", ID)
    snapshot = after(
        update(topic("t", partition(0), topic_id=ID)),
        update(topic("t", partition(0), topic_id=OTHER_ID)),
    )
    assert (snapshot.topic_name(ID), snapshot.topic_name(OTHER_ID)) == (None, "t")
    snapshot = snapshot.after(update(topic("t", partition(0), topic_id=None))).snapshot
    assert (snapshot.topic_name(OTHER_ID), snapshot.topic("t").topic_id) == (None, None)


@pytest.mark.rule("UMD-1")
def test_a_topic_with_another_id_keeps_no_partition_of_the_earlier_one():
    earlier = update(topic("t", partition(0), partition(1), partition(2), topic_id=ID))
    snapshot = after(earlier, update(topic("t", partition(0, leader=2), topic_id=OTHER_ID)))
    assert list(snapshot.topic("t").partitions()) == [partition(0, leader=2)]
    assert (snapshot.topic_count, snapshot.partition_count) == (1, 1)
    gone = update(topic("t", partition(0, leader=LEADER_DURING_DELETE), topic_id=OTHER_ID))
    assert after(earlier, gone).topic("t") is None


def test_topics_are_shared_until_an_update_names_them():
    before = after(update(topic("t", partition(0)), topic("u", partition(0), topic_id=OTHER_ID)))
    assert before.shared_topics(before) == {"t", "u"}
    later = before.after(update(topic("t", partition(0)))).snapshot
    assert later.shared_topics(before) == {"u"}
    assert later.shared_topics(ClusterSnapshot()) == set()


def test_a_snapshot_without_some_topics_has_the_others():
    before = after(
        update(topic("t", partition(0), partition(1)), topic("u", partition(0), topic_id=OTHER_ID))
    )
    change = before.without({"t", "never there"})
    assert change.deleted == (TopicPartition("t", 0), TopicPartition("t", 1))
    assert change.topics == {"t"}
    assert [each.name for each in change.snapshot.topics()] == ["u"]
    assert change.snapshot.topic_name(ID) is None
    assert (change.snapshot.topic_count, change.snapshot.partition_count) == (1, 1)
    assert change.snapshot.brokers == before.brokers
    assert change.snapshot.controller_id == before.controller_id


@pytest.mark.rule("UMD-5")
def test_a_snapshot_never_changes():
    before = after(update(topic("t", partition(0)), topic("u", partition(0), topic_id=OTHER_ID)))
    untouched = before.topic("u")
    later = before.after(update(topic("t", partition(0, leader=2), partition(1)))).snapshot
    assert list(before.topic("t").partitions()) == [partition(0)]
    assert len(later.topic("t")) == 2
    assert later.topic("u") is untouched


@pytest.mark.rule("UMD-6")
def test_leaderless_partitions_stay():
    snapshot = after(update(topic("t", partition(0, leader=-1))))
    assert snapshot.partition(TopicPartition("t", 0)).leader == -1


@pytest.mark.rule("UMD-8", "UMD-9", "META-10")
def test_what_was_never_announced_is_unknown():
    snapshot = after(update(topic("t", partition(0))))
    assert snapshot.knows(TopicPartition("t", 0))
    assert not snapshot.knows(TopicPartition("t", 1))
    assert not snapshot.knows(TopicPartition("u", 0))
    assert snapshot.partition(TopicPartition("u", 0)) is None


@pytest.mark.rule("META-1", "FRM-10")
def test_clients_see_the_brokers_that_have_their_listener():
    brokers = [broker(1, "IN", "OUT", rack="a"), broker(2, "IN")]
    snapshot = ClusterSnapshot().after(MetadataUpdate(1, brokers)).snapshot
    assert snapshot.nodes("OUT") == [BrokerNode(1, "host", 9001, "a")]
    assert [node.id for node in snapshot.nodes("IN")] == [1, 2]
    assert snapshot.node(2, "OUT") is None
    assert snapshot.racks("IN") == {1: "a", 2: None}
    assert snapshot.is_alive(2)
    assert not snapshot.is_alive(3)


@pytest.mark.rule("META-3")
def test_partitions_that_come_out_of_order_are_found():
    snapshot = after(
        update(topic("t", partition(5), partition(2))), update(topic("t", partition(0)))
    )
    known = snapshot.topic("t")
    assert [each.partition for each in known.partitions()] == [0, 2, 5]
    assert known.partition(5) == partition(5)
    assert known.partition(1) is None
    assert known.partition(-1) is None


@pytest.mark.rule("UMD-7")
def test_an_update_tells_which_topics_it_was_about():
    cache = MetadataCache()
    change = cache.snapshot.after(update(topic("t", partition(0)), topic("u")))
    assert change.topics == {"t", "u"}
    assert not cache.is_alive(1)
    cache.install(change)
    assert cache.is_alive(1)


ids = st.integers(0, 2**31 - 1)
id_lists = st.lists(ids, max_size=5).map(tuple)
partitions = st.builds(
    PartitionMetadata,
    st.integers(0, 6),
    st.sampled_from([-2, -1, 0, 1, 2**31 - 1]),
    ids,
    id_lists,
    id_lists,
    id_lists,
)


@given(partitions)
def test_packing_loses_nothing(known):
    state = packed(known)
    assert unpack_partition(state) == known
    assert index_of(state) == known.partition


names = st.sampled_from(["a", "b", "c"])
#: Enough partitions with lists of the same lengths to be looked at together, and some of them.
alike = st.builds(
    lambda count, leader, step: [partition(index, leader) for index in range(0, count, step)],
    st.integers(8, 20),
    st.integers(-2, 3),
    st.integers(1, 2),
)
news = st.lists(partitions, max_size=4) | alike
updates = st.lists(st.lists(st.tuples(names, news), max_size=3))


@pytest.mark.rule("UMD-1", "UMD-3")
@given(updates)
def test_merging_agrees_with_a_dictionary(rounds):
    snapshot, expected = ClusterSnapshot(), {}
    for topics in rounds:
        for name, news in topics:
            known = expected.setdefault(name, {})
            for each in news:
                if each.leader == LEADER_DURING_DELETE:
                    known.pop(each.partition, None)
                else:
                    known[each.partition] = each
        snapshot = snapshot.after(update(*(topic(name, *news) for name, news in topics))).snapshot
        found = {
            each.name: {known.partition: known for known in each.partitions()}
            for each in snapshot.topics()
        }
        assert found == {name: known for name, known in expected.items() if known}
        for name, known in found.items():
            for index in range(-1, 21):
                asked = TopicPartition(name, index)
                assert snapshot.partition(asked) == known.get(index)
                assert snapshot.knows(asked) == (index in known)
        assert snapshot.topic_count == len(found)
        assert snapshot.partition_count == sum(map(len, found.values()))


def test_a_partition_takes_less_than_two_hundred_bytes():
    news = [
        topic(f"topic-number-{number}", *map(partition, range(10)), topic_id=uuid.UUID(int=number))
        for number in range(1, 1001)
    ]
    tracemalloc.start()
    try:
        snapshot = after(update(*news))
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert snapshot.partition_count == 10_000
    assert size / snapshot.partition_count < 200
