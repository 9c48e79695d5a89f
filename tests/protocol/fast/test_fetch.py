import uuid
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import LocalProtocolError, RemoteProtocolError
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import decode_request, decode_response, encode_request
from klamm.protocol.codec.headers import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
)
from klamm.protocol.fast.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchPartitionRequest,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    LeaderHint,
    NodeEndpoint,
    SnapshotId,
    decode_fetch_request,
    decode_large_fetch_request,
    encode_fetch_request,
)
from klamm.protocol.fast.fetch_response import decode_fetch_response, encode_fetch_response
from klamm.protocol.schema._kio import entity_reader
from klamm.protocol.schema.lookup import message_schema
from tests.support.messages import encode_struct
from tests.support.recorded_exchanges import EXCHANGES, Exchange, values_of

FETCHES = [each for each in EXCHANGES if each.key == ApiKey.FETCH]
VERSIONS = range(4, 18)

names = st.text(max_size=9)
ids = st.uuids().filter(lambda each: each.int != 0)
int32s = st.integers(-(1 << 31), (1 << 31) - 1)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)


class OnDisk(NamedTuple):
    """Stands for a range of a file."""

    content: bytes

    @property
    def size(self) -> int:
        return len(self.content)


def joined(chunks: list[Any]) -> bytes:
    return b"".join(each if isinstance(each, bytes) else each.content for each in chunks)


def requests() -> st.SearchStrategy[dict[str, Any]]:
    partition = st.fixed_dictionaries(
        {
            "partition": int32s,
            "current_leader_epoch": int32s,
            "fetch_offset": int64s,
            "last_fetched_epoch": int32s,
            "log_start_offset": int64s,
            "partition_max_bytes": int32s,
        }
    )
    topic = st.fixed_dictionaries(
        {"topic": names, "topic_id": ids, "partitions": st.lists(partition, max_size=3)}
    )
    forgotten = st.fixed_dictionaries(
        {"topic": names, "topic_id": ids, "partitions": st.lists(int32s, max_size=3)}
    )
    return st.fixed_dictionaries(
        {
            "replica_id": int32s,
            "max_wait": int32s,
            "min_bytes": int32s,
            "max_bytes": int32s,
            "isolation_level": st.sampled_from([0, 1]),
            "session_id": int32s,
            "session_epoch": int32s,
            "topics": st.lists(topic, max_size=3),
            "forgotten_topics_data": st.lists(forgotten, max_size=2),
            "rack_id": names,
        },
        optional={
            "replica_state": st.fixed_dictionaries({"replica_id": int32s, "replica_epoch": int64s}),
        },
    )


def responses(version: int) -> st.SearchStrategy[FetchResponse]:
    """Answers with only what the version carries, so that reading gives back what was written."""

    def since(first: int, strategy: st.SearchStrategy[Any], otherwise: Any) -> Any:
        return strategy if version >= first else st.just(otherwise)

    records = st.binary(max_size=200)
    partition = st.builds(
        FetchPartitionResponse,
        int32s,
        st.sampled_from([-1, 0, 6]),
        int64s,
        int64s,
        since(5, int64s, -1),
        st.none() | records | records.map(memoryview) | records.map(OnDisk),
        st.none() | st.lists(st.builds(AbortedTransaction, int64s, int64s), max_size=2),
        since(11, int32s, -1),
        since(12, st.none() | st.builds(EpochEndOffset, int32s, int64s), None),
        since(12, st.none() | st.builds(LeaderHint, int32s, int32s), None),
        st.none(),  # only KRaft controllers have snapshots
    )
    topic = st.builds(
        FetchTopicResponse,
        names if version < 13 else st.none(),
        ids if version >= 13 else st.none(),
        st.lists(partition, max_size=3),
    )
    return st.builds(
        FetchResponse,
        st.lists(topic, max_size=3),
        since(7, st.sampled_from([0, 70]), 0),
        since(7, int32s, 0),
        int32s,
        st.just(()),
    )


def as_values(response: FetchResponse) -> dict[str, Any]:
    """The same response for the encoder that works for every message."""

    def given_only(**values: Any) -> dict[str, Any]:
        return {name: value._asdict() for name, value in values.items() if value is not None}

    return {
        "throttle_time": response.throttle_time_ms,
        "error_code": response.error_code,
        "session_id": response.session_id,
        "node_endpoints": [node._asdict() for node in response.node_endpoints],
        "responses": [
            {
                "topic": topic.name,
                "topic_id": topic.topic_id,
                "partitions": [
                    {
                        "partition_index": each.partition,
                        "error_code": each.error_code,
                        "high_watermark": each.high_watermark,
                        "last_stable_offset": each.last_stable_offset,
                        "log_start_offset": each.log_start_offset,
                        "aborted_transactions": None
                        if each.aborted_transactions is None
                        else [aborted._asdict() for aborted in each.aborted_transactions],
                        "preferred_read_replica": each.preferred_read_replica,
                        "records": each.records.content
                        if isinstance(each.records, OnDisk)
                        else each.records,
                    }
                    | given_only(
                        diverging_epoch=each.diverging_epoch, current_leader=each.current_leader
                    )
                    for each in topic.partitions
                ],
            }
            for topic in response.topics
        ],
    }


def in_memory(response: FetchResponse) -> FetchResponse:
    """What the receiver of the response sees."""
    return response._replace(
        topics=[
            topic._replace(
                partitions=[
                    each._replace(records=each.records.content)
                    if isinstance(each.records, OnDisk)
                    else each
                    for each in topic.partitions
                ]
            )
            for topic in response.topics
        ]
    )


@pytest.mark.parametrize("exchange", FETCHES, ids=str)
@pytest.mark.rule("API-12")
def test_recorded_requests_keep_every_field(exchange: Exchange):
    header, at = decode_request_header(memoryview(exchange.request))
    schema = message_schema(1, exchange.version, "request")
    theirs, _ = entity_reader(schema)(exchange.request, at)
    values = values_of(theirs)
    assert encode_request(header, values)[4:] == exchange.request
    ours = decode_request(exchange.request).body
    assert ours.max_wait_ms == values["max_wait"]
    assert ours.session_epoch == values["session_epoch"]
    assert (ours.replica_id == -1) == (exchange.client != "kafka broker")
    assert [topic.name or topic.topic_id for topic in ours.topics] == [
        topic.get("topic") or topic["topic_id"] for topic in values["topics"]
    ]


@pytest.mark.parametrize("exchange", FETCHES, ids=str)
@pytest.mark.rule("LOG-2")
def test_recorded_responses_are_read_and_written_again_byte_for_byte(exchange: Exchange):
    assert exchange.response is not None
    header, _ = decode_request_header(memoryview(exchange.request))
    response = decode_response(header, exchange.response)
    assert joined(encode_fetch_response(header, response))[4:] == exchange.response


@pytest.mark.parametrize("version", VERSIONS)
@given(values=requests())
@settings(max_examples=15, deadline=None)
def test_requests_take_one_form_whatever_the_version(version, values):
    schema = message_schema(1, version, "request")
    request = decode_fetch_request(memoryview(encode_struct(schema, values)), 0, version)
    expected_replica = (
        values["replica_id"]
        if version < 15
        else values.get("replica_state", {"replica_id": -1})["replica_id"]
    )
    assert request.replica_id == expected_replica
    assert request.max_wait_ms == values["max_wait"]
    assert (request.session_id, request.session_epoch) == (
        (values["session_id"], values["session_epoch"]) if version >= 7 else (0, -1)
    )
    assert request.rack_id == (values["rack_id"] if version >= 11 else "")
    assert [(topic.name, topic.topic_id) for topic in request.topics] == [
        (None, topic["topic_id"]) if version >= 13 else (topic["topic"], None)
        for topic in values["topics"]
    ]
    for topic, expected in zip(request.topics, values["topics"], strict=True):
        for ours, theirs in zip(topic.partitions, expected["partitions"], strict=True):
            assert ours.partition == theirs["partition"]
            assert ours.fetch_offset == theirs["fetch_offset"]
            assert ours.partition_max_bytes == theirs["partition_max_bytes"]
            for name, first in (
                ("log_start_offset", 5),
                ("current_leader_epoch", 9),
                ("last_fetched_epoch", 12),
            ):
                assert getattr(ours, name) == (theirs[name] if version >= first else -1)
    assert [list(topic.partitions) for topic in request.forgotten_topics] == (
        [topic["partitions"] for topic in values["forgotten_topics_data"]] if version >= 7 else []
    )


def one_form(request: FetchRequest) -> FetchRequest:
    """The request with partitions of one type, whichever codec has read them."""
    return request._replace(
        topics=[
            FetchTopic(
                topic.name,
                topic.topic_id,
                [
                    FetchPartitionRequest(
                        *(getattr(each, field) for field in FetchPartitionRequest._fields)
                    )
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ],
        forgotten_topics=[
            topic._replace(partitions=list(topic.partitions)) for topic in request.forgotten_topics
        ],
    )


@pytest.mark.parametrize("version", range(12, 18))
@given(values=requests(), count=st.sampled_from([0, 1, 15, 20, 126, 127, 200]))
@settings(max_examples=15, deadline=None)
def test_requests_read_by_hand_are_as_those_read_by_kio(version, values, count):
    if values["topics"]:
        values["topics"][0]["partitions"] = (values["topics"][0]["partitions"] * 200)[:count]
    encoded = memoryview(encode_struct(message_schema(1, version, "request"), values))
    by_hand = decode_fetch_request(encoded, 0, version)
    assert one_form(by_hand) == one_form(decode_large_fetch_request(encoded, 0, version))


@pytest.mark.parametrize("version", range(12, 18))
@given(values=requests(), data=st.data())
@settings(max_examples=15, deadline=None)
def test_requests_that_are_cut_short_are_refused(version, values, data):
    header = RequestHeader(ApiKey.FETCH, version, 1, "client")
    frame = encode_request(header, values)[4:]
    _, at = decode_request_header(memoryview(frame))
    with pytest.raises(RemoteProtocolError):
        decode_request(frame[: data.draw(st.integers(at, len(frame) - 1))])


@pytest.mark.parametrize("version", range(12, 18))
@given(values=requests())
@settings(max_examples=15, deadline=None)
def test_requests_of_a_follower_are_written_as_by_the_encoder_for_everything(version, values):
    header = RequestHeader(ApiKey.FETCH, version, 7, "follower")
    values["replica_state"] = {"replica_id": 2, "replica_epoch": 12}
    encoded = encode_request(header, values)
    _, at = decode_request_header(memoryview(encoded)[4:])
    request = decode_large_fetch_request(memoryview(encoded)[4:], at, version)
    assert encode_fetch_request(header, request) == encoded


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_responses_are_written_as_by_the_encoder_for_everything_and_read_back(version, data):
    response = data.draw(responses(version))
    header = RequestHeader(ApiKey.FETCH, version, 5, "")
    frame = joined(encode_fetch_response(header, response))
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    at = decode_response_header(header, memoryview(frame)[4:])
    schema = message_schema(1, version, "response")
    assert frame[4 + at :] == encode_struct(schema, as_values(response))
    assert decode_response(header, frame[4:]) == in_memory(response)


def test_leaders_are_hinted_at_with_their_endpoints():
    header = RequestHeader(ApiKey.FETCH, 16, 5, "")
    response = FetchResponse(
        [FetchTopicResponse(None, None, [FetchPartitionResponse(0, 6)])],
        node_endpoints=[NodeEndpoint(1, "a", 9092, None), NodeEndpoint(2, "b", 9093, "r")],
    )
    (frame,) = encode_fetch_response(header, response)
    assert isinstance(frame, bytes)
    schema = message_schema(1, 16, "response")
    assert frame[9:] == encode_struct(schema, as_values(response))
    (older,) = encode_fetch_response(header._replace(api_version=15), response)
    assert older[9:] == encode_struct(message_schema(1, 15, "response"), as_values(response))


@pytest.mark.parametrize("version", range(12, 18))
def test_the_snapshot_of_a_kraft_controller_is_read(version):
    partition = FetchPartitionResponse(0, 0, log_start_offset=5)
    values = as_values(FetchResponse([FetchTopicResponse("t", uuid.UUID(int=1), [partition])]))
    values["responses"][0]["partitions"][0]["snapshot_id"] = {"end_offset": 8, "epoch": 3}
    encoded = encode_struct(message_schema(1, version, "response"), values)
    (topic,) = decode_fetch_response(memoryview(encoded), 0, version).topics
    assert topic.partitions[0].snapshot_id == SnapshotId(8, 3)


def test_what_lies_in_files_stands_between_the_chunks():
    header = RequestHeader(ApiKey.FETCH, 12, 5, "")
    first, second = OnDisk(b"first"), OnDisk(b"second")
    partitions = [
        FetchPartitionResponse(0, 0, records=first),
        FetchPartitionResponse(1, 0, records=b"inline"),
        FetchPartitionResponse(2, 0, records=second),
    ]
    chunks = encode_fetch_response(
        header, FetchResponse([FetchTopicResponse("t", None, partitions)])
    )
    assert [type(each) for each in chunks] == [bytes, OnDisk, bytes, OnDisk, bytes]
    assert chunks[1] is first
    assert chunks[3] is second
    assert b"inline" in chunks[2]


def test_records_of_a_response_are_not_copied():
    header = RequestHeader(ApiKey.FETCH, 4, 5, "")
    response = FetchResponse(
        [FetchTopicResponse("t", None, [FetchPartitionResponse(0, 0, records=b"batch")])]
    )
    frame = joined(encode_fetch_response(header, response))[4:]
    assert decode_response(header, frame).topics[0].partitions[0].records.obj is frame


def test_a_topic_without_a_name_cannot_be_answered_where_names_are_used():
    response = FetchResponse([FetchTopicResponse(None, None, [])])
    with pytest.raises(LocalProtocolError, match="needs topic names"):
        encode_fetch_response(RequestHeader(ApiKey.FETCH, 12, 5, ""), response)
