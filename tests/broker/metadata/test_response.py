"""Metadata responses about all topics, against those of the encoder for all messages."""

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.broker.metadata.cache import (
    BrokerEndpoint,
    CachedBroker,
    ClusterSnapshot,
    MetadataUpdate,
)
from klamm.broker.metadata.response import Operations, encode_all_topics
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import encode_response
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode as E
from klamm.protocol.fast.control_decode import TopicStates
from klamm.protocol.fast.metadata_states import PartitionMetadata
from tests.broker.metadata_states import states_of

OPERATIONS = Operations(topic=0b1010, cluster=0b0110)
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


def expected(header, snapshot):
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
                "topic_authorized_operations": OPERATIONS.topic,
            }
            for topic in snapshot.topics()
        ],
        "cluster_authorized_operations": OPERATIONS.cluster,
    }
    return encode_response(header, values)


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
updates = st.builds(MetadataUpdate, st.integers(-1, 4), st.lists(brokers), st.lists(topics))


@pytest.mark.rule("META-1", "META-2", "META-3", "META-4")
@given(updates, st.integers(0, 12))
def test_the_bytes_are_those_of_the_general_encoder(update, version):
    snapshot = ClusterSnapshot().after(update).snapshot
    header = RequestHeader(ApiKey.METADATA, version, 7, "client")
    frame = encode_all_topics(header, snapshot, "OUT", CLUSTER_ID, OPERATIONS)
    assert frame == expected(header, snapshot)


@pytest.mark.rule("META-4")
@pytest.mark.parametrize(("version", "error"), [(5, 5), (6, 72), (12, 72)])
def test_a_leader_without_the_clients_listener_is_not_named(version, error):
    broker = CachedBroker(1, {"IN": BrokerEndpoint("host", 9092)})
    states = states_of(PartitionMetadata(0, 1, 3, (1,), (1,)))
    topic = TopicStates("orders", uuid.UUID(int=1).bytes, states)
    snapshot = ClusterSnapshot().after(MetadataUpdate(1, [broker], [topic])).snapshot
    header = RequestHeader(ApiKey.METADATA, version, 7, "client")
    frame = encode_all_topics(header, snapshot, "OUT", CLUSTER_ID, OPERATIONS)
    shown = error.to_bytes(2, "big") + bytes(4) + b"\xff" * 4
    assert shown in frame
