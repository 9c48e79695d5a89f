"""Metadata responses, against those of the encoder for all messages."""

import uuid
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.metadata.cache import (
    BrokerEndpoint,
    CachedBroker,
    ClusterSnapshot,
    MetadataUpdate,
)
from klamm.broker.metadata.response import FoundTopic, MetadataEncoder
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.failures import error_codes
from klamm.protocol.codec.frames import encode_response
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode as E
from klamm.protocol.fast.control_decode import TopicStates
from klamm.protocol.fast.metadata_states import PartitionMetadata
from tests.broker.metadata_states import states_of

TOPIC_OPERATIONS, CLUSTER_OPERATIONS = 0b1010, 0b0110
CLUSTER_ID = "c" * 22


def shown_partition(snapshot, partition, version):
    error, leader = E.NONE, partition.leader
    if not snapshot.is_alive(leader):
        error, leader = E.LEADER_NOT_AVAILABLE, -1
    elif snapshot.node(leader, "OUT") is None:
        error, leader = E.LISTENER_NOT_FOUND if version >= 6 else E.LEADER_NOT_AVAILABLE, -1
    return {
        "error_code": error,
        "partition_index": partition.partition,
        "leader_id": leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": partition.offline_replicas,
    }


def encoded(header, snapshot, unknown=()):
    encoder = MetadataEncoder(header, snapshot, "OUT", CLUSTER_ID, CLUSTER_OPERATIONS)
    for topic in snapshot.topics():
        encoder.add(FoundTopic(topic.name, topic=topic), TOPIC_OPERATIONS)
    for each in unknown:
        encoder.add(each)
    return encoder.frame(), encoder.errors


def expected(header, snapshot, unknown=()):
    nodes = snapshot.nodes("OUT")
    values = {
        "brokers": [
            {"node_id": node.id, "host": node.host, "port": node.port, "rack": node.rack}
            for node in nodes
        ],
        "cluster_id": CLUSTER_ID,
        "controller_id": snapshot.controller_id,
        "topics": [
            {
                "error_code": E.NONE,
                "name": topic.name,
                "topic_id": topic.topic_id,
                "is_internal": topic.name == "__consumer_offsets",
                "partitions": [
                    shown_partition(snapshot, partition, header.api_version)
                    for partition in topic.partitions()
                ],
                "topic_authorized_operations": TOPIC_OPERATIONS,
            }
            for topic in snapshot.topics()
        ]
        + [
            {
                "error_code": each.error,
                "name": each.name,
                "topic_id": each.topic_id,
                "is_internal": each.name == "__consumer_offsets",
                "partitions": [],
                "topic_authorized_operations": -(1 << 31),
            }
            for each in unknown
        ],
        "cluster_authorized_operations": CLUSTER_OPERATIONS,
    }
    return encode_response(header, values), Counter(error_codes(values))


ids = st.integers(0, 4)
id_lists = st.lists(ids, max_size=4, unique=True).map(tuple)
brokers = st.builds(
    lambda number, listeners, rack: CachedBroker(
        number, {name: BrokerEndpoint(f"host-{number}", 9092) for name in listeners}, rack
    ),
    ids,
    st.sets(st.sampled_from(["IN", "OUT"])),
    st.sampled_from([None, "", "rack"]),
)
topics = st.builds(
    TopicStates,
    st.sampled_from(["orders", "__consumer_offsets", "a" * 200]),
    st.one_of(st.just(b""), st.uuids().map(lambda topic_id: topic_id.bytes)),
    st.lists(
        st.builds(PartitionMetadata, ids, st.integers(-1, 4), ids, id_lists, id_lists, id_lists),
        max_size=5,
    ).map(lambda partitions: states_of(*partitions)),
)
unknown_topics = st.builds(
    FoundTopic,
    st.sampled_from(["bills", "__consumer_offsets", ""]),
    st.sampled_from([E.UNKNOWN_TOPIC_OR_PARTITION, E.TOPIC_AUTHORIZATION_FAILED]),
    st.one_of(st.none(), st.uuids()),
    st.none(),
)
updates = st.builds(MetadataUpdate, st.integers(-1, 4), st.lists(brokers), st.lists(topics))


@pytest.mark.rule("META-1", "META-2", "META-3", "META-4")
@given(updates, st.lists(unknown_topics, max_size=3), st.integers(0, 12))
def test_the_bytes_and_errors_are_those_of_the_general_encoder(update, unknown, version):
    snapshot = ClusterSnapshot().after(update).snapshot
    header = RequestHeader(ApiKey.METADATA, version, 7, "client")
    assert encoded(header, snapshot, unknown) == expected(header, snapshot, unknown)


def test_a_topic_that_is_asked_for_by_an_unknown_id_has_no_name():
    snapshot = ClusterSnapshot()
    header = RequestHeader(ApiKey.METADATA, 12, 7, "client")
    unknown = [FoundTopic(None, E.UNKNOWN_TOPIC_ID, uuid.UUID(int=5))]
    assert encoded(header, snapshot, unknown) == expected(header, snapshot, unknown)


@pytest.mark.rule("META-4")
@pytest.mark.parametrize(("version", "error"), [(5, 5), (6, 72), (12, 72)])
def test_a_leader_without_the_clients_listener_is_not_named(version, error):
    broker = CachedBroker(1, {"IN": BrokerEndpoint("host", 9092)})
    states = states_of(PartitionMetadata(0, 1, 3, (1,), (1,)))
    topic = TopicStates("orders", uuid.UUID(int=1).bytes, states)
    snapshot = ClusterSnapshot().after(MetadataUpdate(1, [broker], [topic])).snapshot
    header = RequestHeader(ApiKey.METADATA, version, 7, "client")
    frame, errors = encoded(header, snapshot)
    assert errors == {E.NONE: 1, error: 1}
    shown = error.to_bytes(2, "big") + bytes(4) + b"\xff" * 4
    assert shown in frame
