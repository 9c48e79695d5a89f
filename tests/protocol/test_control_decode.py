from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import RemoteProtocolError
from klamm.protocol._kio import entity_reader
from klamm.protocol.apis import ApiKey
from klamm.protocol.encoding import encode_struct
from klamm.protocol.frames import decode_request, encode_request
from klamm.protocol.headers import RequestHeader, decode_request_header
from klamm.protocol.schemas import message_schema

from .exchanges import EXCHANGES, Exchange
from .test_encoding import values

RECORDED = [
    each for each in EXCHANGES if each.key in (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA)
]
VERSIONS = [(4, 5), (4, 6), (4, 7), (6, 7), (6, 8)]


def assert_same(ours: Any, theirs: Any) -> None:
    for name in ours._fields:
        if name == "topic_states":
            assert len(ours.topic_states) == len(theirs.topic_states)
        expected = getattr(theirs, name)
        actual = getattr(ours, name)
        assert (tuple(actual) if isinstance(expected, tuple) else actual) == expected


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


def test_topics_can_be_asked_for_more_than_once():
    body = decode_request(next(each.request for each in RECORDED if each.key == 4)).body
    assert list(body.topic_states) == list(body.topic_states) != []


@pytest.mark.parametrize("exchange", RECORDED[::2], ids=str)
@pytest.mark.rule("FRM-4")
def test_a_request_that_is_cut_short_is_refused_before_any_topic_is_made(exchange: Exchange):
    for end in range(len(exchange.request)):
        with pytest.raises(RemoteProtocolError):
            decode_request(exchange.request[:end])


@pytest.mark.rule("FRM-5")
def test_unknown_tags_in_a_topic_are_skipped():
    header = RequestHeader(ApiKey.UPDATE_METADATA, 8, 1, "")
    topic = {"topic_name": "orders", "topic_id": None, "partition_states": []}
    head = {"controller_id": 1, "controller_epoch": 2, "broker_epoch": 3, "live_brokers": []}
    frame = encode_request(header, head | {"topic_states": [topic]})[4:]
    # After the topic's empty list of partitions stands its number of tags, zero.
    before, after = frame.split(b"orders" + bytes(16) + b"\1\0")
    tagged = before + b"orders" + bytes(16) + b"\1\1\x63\2hi" + after
    (read,) = decode_request(tagged).body.topic_states
    assert (read.topic_name, read.partition_states) == ("orders", ())
