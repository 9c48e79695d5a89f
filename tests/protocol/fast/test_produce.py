from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import RemoteProtocolError
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import decode_request
from klamm.protocol.codec.headers import (
    RequestHeader,
    decode_request_header,
    decode_response_header,
)
from klamm.protocol.fast.fetch import LeaderHint, NodeEndpoint
from klamm.protocol.fast.produce import (
    ProducePartitionResponse,
    ProduceResponse,
    ProduceTopicResponse,
    RecordError,
    decode_produce_request,
    decode_short_produce_request,
    encode_produce_response,
)
from klamm.protocol.schema._kio import entity_reader
from klamm.protocol.schema.lookup import message_schema
from tests.support.messages import encode_struct
from tests.support.recorded_exchanges import EXCHANGES, Exchange, kio_bytes, values_of

PRODUCES = [each for each in EXCHANGES if each.key == ApiKey.PRODUCE]
VERSIONS = range(3, 12)

names = st.text(max_size=9)
int32s = st.integers(-(1 << 31), (1 << 31) - 1)
int64s = st.integers(-(1 << 63), (1 << 63) - 1)


def requests() -> st.SearchStrategy[dict[str, Any]]:
    partition = st.fixed_dictionaries(
        {"index": int32s, "records": st.none() | st.binary(max_size=200)}
    )
    topic = st.fixed_dictionaries(
        {"name": names, "partition_data": st.lists(partition, max_size=3)}
    )
    return st.fixed_dictionaries(
        {
            "transactional_id": st.none() | names,
            "acks": st.sampled_from([-1, 0, 1]),
            "timeout": int32s,
            "topic_data": st.lists(topic, max_size=3),
        }
    )


def responses() -> st.SearchStrategy[ProduceResponse]:
    partition = st.builds(
        ProducePartitionResponse,
        int32s,
        st.sampled_from([-1, 1, 87]),
        int64s,
        st.just(-1) | st.integers(0, 1 << 40),
        int64s,
        st.lists(st.builds(RecordError, int32s, st.none() | names), max_size=2),
        st.none() | names,
        st.none() | st.builds(LeaderHint, st.integers(0, 9), int32s),
    )
    topic = st.builds(ProduceTopicResponse, names, st.lists(partition, max_size=3))
    node = st.builds(NodeEndpoint, int32s, names, int32s, st.none() | names)
    return st.builds(
        ProduceResponse, st.lists(topic, max_size=3), int32s, st.lists(node, max_size=2)
    )


def as_values(response: ProduceResponse) -> dict[str, Any]:
    """The same response for the encoder that works for every message."""

    def leader(hint: LeaderHint | None) -> dict[str, Any] | None:
        return None if hint is None else hint._asdict()

    return {
        "throttle_time": response.throttle_time_ms,
        "node_endpoints": [node._asdict() for node in response.node_endpoints],
        "responses": [
            {
                "name": topic.name,
                "partition_responses": [
                    {
                        "index": each.partition,
                        "error_code": each.error_code,
                        "base_offset": each.base_offset,
                        "log_append_time": each.log_append_time_ms,
                        "log_start_offset": each.log_start_offset,
                        "record_errors": [
                            {"batch_index": index, "batch_index_error_message": message}
                            for index, message in each.record_errors
                        ],
                        "error_message": each.error_message,
                        "current_leader": leader(each.current_leader),
                    }
                    for each in topic.partitions
                ],
            }
            for topic in response.topics
        ],
    }


def from_kio(body: Any) -> ProduceResponse:
    values = values_of(body)
    return ProduceResponse(
        [
            ProduceTopicResponse(
                topic["name"],
                [
                    ProducePartitionResponse(
                        each["index"],
                        each["error_code"],
                        each["base_offset"],
                        -1 if each["log_append_time"] is None else each["log_append_time"],
                        each.get("log_start_offset", -1),
                        [RecordError(*error.values()) for error in each.get("record_errors", ())],
                        each.get("error_message"),
                    )
                    for each in topic["partition_responses"]
                ],
            )
            for topic in values["responses"]
        ],
        values["throttle_time"],
    )


def assert_same(ours: Any, theirs: Any) -> None:
    assert ours.transactional_id == theirs.transactional_id
    assert ours.acks == theirs.acks
    assert ours.timeout_ms == values_of(theirs)["timeout"]
    assert [
        (topic.name, [(each.partition, each.records) for each in topic.partitions])
        for topic in ours.topics
    ] == [
        (topic.name, [(each.index, each.records) for each in topic.partition_data])
        for topic in theirs.topic_data
    ]


@pytest.mark.parametrize("exchange", PRODUCES, ids=str)
def test_recorded_requests_are_read_as_kio_reads_them(exchange: Exchange):
    view = memoryview(exchange.request)
    header, at = decode_request_header(view)
    theirs, size = entity_reader(message_schema(0, exchange.version, "request"))(view, at)
    assert at + size == len(view)
    assert_same(decode_request(exchange.request).body, theirs)
    assert header.api_key == ApiKey.PRODUCE
    assert exchange.request.endswith(kio_bytes(theirs))


@pytest.mark.parametrize("exchange", [each for each in PRODUCES if each.response], ids=str)
def test_recorded_responses_are_written_again_byte_for_byte(exchange: Exchange):
    assert exchange.response is not None
    header, _ = decode_request_header(memoryview(exchange.request))
    view = memoryview(exchange.response)
    at = decode_response_header(header, view)
    body, _ = entity_reader(message_schema(0, exchange.version, "response"))(view, at)
    assert encode_produce_response(header, from_kio(body))[4:] == exchange.response


@pytest.mark.parametrize("version", VERSIONS)
@given(values=requests())
@settings(max_examples=15, deadline=None)
def test_requests_are_read_as_kio_reads_them(version, values):
    schema = message_schema(0, version, "request")
    written = encode_struct(schema, values)
    theirs, _ = entity_reader(schema)(written, 0)
    assert_same(decode_produce_request(memoryview(written), 0, version), theirs)
    assert_same(decode_short_produce_request(memoryview(written), 0, version), theirs)


@pytest.mark.parametrize("version", VERSIONS)
@given(name=names, acks=st.sampled_from([-1, 0, 1]), records=st.none() | st.binary(max_size=200))
@settings(max_examples=15, deadline=None)
def test_a_request_for_one_partition_is_read_as_any_other(version, name, acks, records):
    partition = {"index": 3, "records": records}
    values = {
        "transactional_id": None,
        "acks": acks,
        "timeout": 1500,
        "topic_data": [{"name": name, "partition_data": [partition]}],
    }
    written = memoryview(encode_struct(message_schema(0, version, "request"), values))
    plain = decode_produce_request(written, 0, version)
    assert decode_short_produce_request(written, 0, version) == plain
    for end in range(len(written)):
        assert outcome(decode_short_produce_request, written[:end], version) == outcome(
            decode_produce_request, written[:end], version
        )


def outcome(decode: Any, view: memoryview, version: int) -> Any:
    """What was read, or that it was refused."""
    try:
        return decode(view, 0, version)
    except RemoteProtocolError:
        return RemoteProtocolError


@pytest.mark.parametrize("version", VERSIONS)
@given(response=responses())
@settings(max_examples=15, deadline=None)
def test_responses_are_written_as_by_the_encoder_for_everything(version, response):
    header = RequestHeader(ApiKey.PRODUCE, version, 5, "")
    frame = encode_produce_response(header, response)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    at = decode_response_header(header, memoryview(frame)[4:])
    schema = message_schema(0, version, "response")
    assert frame[4 + at :] == encode_struct(schema, as_values(response))


def test_records_are_not_copied():
    frame = next(each.request for each in PRODUCES)
    (topic,) = decode_request(frame).body.topics
    assert topic.partitions[0].records.obj is frame


@pytest.mark.parametrize("version", [8, 9])
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_a_forged_count_or_length_is_refused_at_once(version, data):
    schema = message_schema(0, version, "request")
    values = {
        "transactional_id": None,
        "acks": 1,
        "timeout": 1,
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": b"abc"}]}],
    }
    body = bytearray(encode_struct(schema, values))
    at = data.draw(st.integers(0, len(body) - 1))
    body[at:at] = b"\xff\xff\xff\xff\x07" if version == 9 else b"\x7f\xff\xff\xff"
    try:
        decode_produce_request(memoryview(bytes(body)), 0, version)
    except RemoteProtocolError:
        return
    # Otherwise the bytes became part of a number, or of what follows the message.
