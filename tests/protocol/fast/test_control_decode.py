from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import RemoteProtocolError
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import decode_request, encode_request
from klamm.protocol.codec.headers import RequestHeader, decode_request_header
from klamm.protocol.fast.control_decode import TopicStates
from klamm.protocol.fast.metadata_states import PartitionMetadata, unpack_partition
from klamm.protocol.schema._kio import entity_reader
from klamm.protocol.schema.lookup import message_schema
from tests.support.messages import encode_struct, values
from tests.support.recorded_exchanges import EXCHANGES, Exchange

RECORDED = [
    each for each in EXCHANGES if each.key in (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA)
]
VERSIONS = [(4, 5), (4, 6), (4, 7), (6, 7), (6, 8)]


def assert_same(ours: Any, theirs: Any) -> None:
    for name in ours._fields:
        if name == "topics":
            assert [*map(unpacked, ours.topics)] == [*map(kept, theirs.topic_states)]
            continue
        if name == "topic_states":
            assert [*map(states, ours.topic_states)] == [*map(states, theirs.topic_states)]
            continue
        expected = getattr(theirs, name)
        actual = getattr(ours, name)
        assert (tuple(actual) if isinstance(expected, tuple) else actual) == expected


def states(topic: Any) -> tuple[str, Any, list[Any]]:
    found = list(topic.partition_states)
    assert len(found) == len(topic.partition_states)
    return topic.topic_name, topic.topic_id, found


def unpacked(topic: TopicStates) -> tuple[str, bytes, list[PartitionMetadata]]:
    return topic.name, topic.id_bytes, [*map(unpack_partition, topic.states)]


def kept(topic: Any) -> tuple[str, bytes, list[PartitionMetadata]]:
    """What of a topic in UpdateMetadata a broker keeps."""
    states = [
        PartitionMetadata(
            each.partition_index,
            each.leader,
            each.leader_epoch,
            each.replicas,
            each.isr,
            each.offline_replicas,
        )
        for each in topic.partition_states
    ]
    return topic.topic_name, topic.topic_id.bytes if topic.topic_id else b"", states


@pytest.mark.parametrize("exchange", RECORDED, ids=str)
@pytest.mark.rule("API-12", "CHAN-19", "CHAN-22", "CHAN-24")
def test_recorded_requests_are_read_as_kio_reads_them(exchange: Exchange):
    _, at = decode_request_header(memoryview(exchange.request))
    schema = message_schema(exchange.key, exchange.version, "request")
    theirs, _ = entity_reader(schema)(exchange.request, at)
    assert_same(decode_request(exchange.request).body, theirs)


@pytest.mark.parametrize(("key", "version"), VERSIONS)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_requests_are_read_as_kio_reads_them(key, version, data):
    schema = message_schema(key, version, "request")
    given_values = data.draw(values(schema))
    theirs, _ = entity_reader(schema)(encode_struct(schema, given_values), 0)
    frame = encode_request(RequestHeader(key, version, 1, ""), given_values)
    assert_same(decode_request(frame[4:]).body, theirs)


def test_partitions_can_be_asked_for_more_than_once():
    body = decode_request(next(each.request for each in RECORDED if each.key == 4)).body
    for topic in body.topic_states:
        assert list(topic.partition_states) == list(topic.partition_states) != []


@pytest.mark.parametrize("exchange", RECORDED[::2], ids=str)
@pytest.mark.rule("FRM-4")
def test_a_request_that_is_cut_short_is_refused_before_any_topic_is_made(exchange: Exchange):
    for end in range(len(exchange.request)):
        with pytest.raises(RemoteProtocolError):
            decode_request(exchange.request[:end])


def update_metadata(*topics: dict[str, Any]) -> bytes:
    header = RequestHeader(ApiKey.UPDATE_METADATA, 8, 1, "")
    head = {"controller_id": 1, "controller_epoch": 2, "broker_epoch": 3, "live_brokers": []}
    return encode_request(header, head | {"topic_states": topics})[4:]


def orders(**changes: Any) -> dict[str, Any]:
    """A topic of one partition."""
    state = {
        "partition_index": 0,
        "controller_epoch": 2,
        "leader": 1,
        "leader_epoch": 7,
        "isr": [1],
        "zk_version": 9,
        "replicas": [1, 2],
        "offline_replicas": [],
    }
    return {"topic_name": "orders", "topic_id": None, "partition_states": [state | changes]}


@pytest.mark.rule("FRM-5")
def test_unknown_tags_of_topics_and_partitions_are_skipped():
    frame = update_metadata(orders(offline_replicas=[77]), orders(offline_replicas=[77]))
    # Partition and topic end with their numbers of tags, zero.
    assert frame.count(b"\x4d\0\0") == 2
    tagged = frame.replace(b"\x4d\0\0", b"\x4d" + b"\1\x63\2hi" + b"\1\x64\3you")
    topics = decode_request(tagged).body.topics
    assert [*map(unpacked, topics)] == [*map(unpacked, decode_request(frame).body.topics)]


@pytest.mark.parametrize("name", ["isr", "replicas", "offline_replicas"])
def test_more_replicas_than_a_record_holds_are_refused(name):
    decode_request(update_metadata(orders(**{name: [1] * 126})))
    with pytest.raises(RemoteProtocolError, match="longer than 126"):
        decode_request(update_metadata(orders(**{name: [1] * 127})))
