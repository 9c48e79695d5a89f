import struct
from datetime import timedelta

import pytest

from klamm.errors import LocalProtocolError, RemoteProtocolError
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.frames import (
    Request,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from klamm.protocol.codec.headers import RequestHeader, decode_request_header
from klamm.protocol.fast.fetch import FetchResponse
from klamm.protocol.fast.fetch_response import encode_fetch_response
from tests.support.recorded_exchanges import EXCHANGES, Exchange, kio_bytes, values_of

OF_THEIR_OWN_FORM = (
    ApiKey.PRODUCE,
    ApiKey.FETCH,
    ApiKey.LEADER_AND_ISR,
    ApiKey.UPDATE_METADATA,
)
READ_BY_KIO = [each for each in EXCHANGES if each.key not in OF_THEIR_OWN_FORM]


def comparable(request: Request) -> Request:
    """Partitions that are made when asked for have no equality of their own."""
    if request.header.api_key != ApiKey.LEADER_AND_ISR:
        return request
    topics = [
        topic._replace(partition_states=list(topic.partition_states))
        for topic in request.body.topic_states
    ]
    return request._replace(body=request.body._replace(topic_states=topics))


def sized(frame: bytes) -> bytes:
    return struct.pack(">i", len(frame)) + frame


def request(key: int, version: int, body: bytes = b"", client_id: bytes = b"\0\0") -> bytes:
    return struct.pack(">hhi", key, version, 7) + client_id + body


@pytest.mark.parametrize("exchange", READ_BY_KIO, ids=str)
@pytest.mark.rule("API-3", "API-4", "API-10", "API-12")
def test_recorded_requests_are_read_and_written_again_byte_for_byte(exchange: Exchange):
    header, body = decode_request(exchange.request)
    assert (header.api_key, header.api_version) == (exchange.key, exchange.version)
    assert encode_request(header, values_of(body)) == sized(exchange.request)
    assert exchange.request.endswith(kio_bytes(body))


@pytest.mark.parametrize(
    "exchange", [each for each in EXCHANGES if each.key not in (0, 1)], ids=str
)
@pytest.mark.rule("API-3", "API-4", "API-9")
def test_recorded_responses_are_read_and_written_again_byte_for_byte(exchange: Exchange):
    assert exchange.response is not None
    header, _ = decode_request_header(memoryview(exchange.request))
    body = decode_response(header, exchange.response)
    assert encode_response(header, values_of(body)) == sized(exchange.response)


@pytest.mark.parametrize(
    ("key", "version"),
    [(key, v) for key, api in APIS.items() for v in (api.first_decoded - 1, api.max_version + 1)],
)
@pytest.mark.rule("FRM-4")
def test_versions_outside_the_implemented_range_are_refused(key: int, version: int):
    if key == ApiKey.API_VERSIONS and version > 0:
        return
    with pytest.raises(RemoteProtocolError, match=r"version -?\d+ is not supported"):
        decode_request(request(key, version, bytes(100)))


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.rule("API-6")
def test_old_produce_is_refused_although_it_is_advertised(version: int):
    with pytest.raises(RemoteProtocolError):
        decode_request(request(ApiKey.PRODUCE, version, bytes(100)))


@pytest.mark.parametrize("key", [-1, 38, 58, 68, 69, 71, 74, 75, 80, 1000])
@pytest.mark.rule("API-2", "FRM-4")
def test_unknown_keys_are_refused(key: int):
    with pytest.raises(RemoteProtocolError, match="is not supported"):
        decode_request(request(key, 0, bytes(100)))


@pytest.mark.rule("API-5")
def test_api_versions_from_the_future_is_let_through_unread():
    frame = request(ApiKey.API_VERSIONS, 9, body=b"\0what is this", client_id=b"\0\2me")
    header, body = decode_request(frame)
    assert header == RequestHeader(18, 9, 7, "me")
    assert body is None


@pytest.mark.rule("API-4", "API-5")
def test_api_versions_from_the_future_is_answered_in_version_zero():
    header = RequestHeader(18, 9, 7, "me")
    response = {"error_code": 35, "api_keys": [{"api_key": 18, "min_version": 0, "max_version": 4}]}
    assert encode_response(header, response) == sized(struct.pack(">ihihhh", 7, 35, 1, 18, 0, 4))


@pytest.mark.rule("FRM-5")
def test_bytes_after_the_body_are_ignored():
    for exchange in EXCHANGES:
        whole = decode_request(exchange.request)
        assert comparable(decode_request(exchange.request + b"left over")) == comparable(whole)


@pytest.mark.rule("FRM-5")
def test_unknown_tagged_fields_are_skipped():
    # Metadata 12 for no topics at all, with an unknown tag in the header and one in the body.
    tags = b"\1\x63\2hi"
    body = b"\1" + b"\1\0" + tags
    _, plain = decode_request(request(ApiKey.METADATA, 12, b"\0" + b"\1\1\0\0"))
    _, tagged = decode_request(request(ApiKey.METADATA, 12, tags + body))
    assert plain == tagged


@pytest.mark.parametrize("version", [1, 4])
def test_bytes_of_a_string_that_are_no_utf_8_are_replaced(version):
    header = RequestHeader(ApiKey.INIT_PRODUCER_ID, version, 7, "raw")
    values = {
        "transactional_id": "aqqb",
        "transaction_timeout": 1000,
        "producer_id": -1,
        "producer_epoch": -1,
    }
    frame = encode_request(header, values).replace(b"aqqb", b"a\xff\xfeb")
    _, body = decode_request(frame[4:])
    assert body.transactional_id == "a\ufffd\ufffdb"
    assert body.transaction_timeout == timedelta(seconds=1)


@pytest.mark.rule("FRM-6")
def test_a_null_client_id_counts_as_empty():
    header, _ = decode_request(request(ApiKey.METADATA, 0, bytes(4), client_id=b"\xff\xff"))
    assert header.client_id == ""


@pytest.mark.rule("API-3")
def test_a_client_id_keeps_its_old_form_in_a_flexible_header():
    header, _ = decode_request(request(ApiKey.METADATA, 12, b"\0\1\1\0\0", client_id=b"\0\2ab"))
    assert header.client_id == "ab"


@pytest.mark.rule("API-3a")
def test_controlled_shutdown_zero_has_no_client_id():
    frame = struct.pack(">hhii", ApiKey.CONTROLLED_SHUTDOWN, 0, 7, 3)
    header, body = decode_request(frame)
    assert header == RequestHeader(7, 0, 7, "")
    assert body.broker_id == 3
    assert encode_request(header, {"broker_id": 3, "broker_epoch": 9}) == sized(frame)


@pytest.mark.rule("API-14")
def test_kio_reads_a_zero_topic_id_as_none_and_it_is_written_as_zero_again():
    header = RequestHeader(ApiKey.METADATA, 12, 1, "")
    values = {
        "topics": [{"topic_id": None, "name": "orders"}],
        "include_topic_authorized_operations": False,
    }
    frame = encode_request(header, values)
    assert bytes(16) in frame
    assert decode_request(frame[4:]).body.topics[0].topic_id is None


@pytest.mark.rule("API-14")
def test_a_negative_timeout_survives():
    header = RequestHeader(ApiKey.OFFSET_COMMIT, 3, 1, "")
    values = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time": -1,
        "topics": [],
    }
    frame = encode_request(header, values)
    assert values_of(decode_request(frame[4:]).body)["retention_time"] == -1


@pytest.mark.rule("FRM-4")
def test_every_way_of_cutting_a_recorded_request_short_is_refused():
    for exchange in EXCHANGES[::3]:
        whole = decode_request(exchange.request)
        for end in range(len(exchange.request)):
            try:
                cut = decode_request(exchange.request[:end])
            except RemoteProtocolError:
                continue
            # A record batch or trailing bytes may be cut without harm to the message around it.
            assert comparable(cut) == comparable(whole), (str(exchange), end)


def test_a_response_to_another_request_is_refused():
    header = RequestHeader(ApiKey.HEARTBEAT, 3, 5, "")
    response = encode_response(header, {})
    assert decode_response(header, response[4:]).error_code == 0
    with pytest.raises(RemoteProtocolError, match="response 5 came where 6 was awaited"):
        decode_response(header._replace(correlation_id=6), response[4:])


def test_responses_cut_short_are_refused():
    header = RequestHeader(ApiKey.HEARTBEAT, 4, 5, "")
    response = encode_response(header, {})[4:]
    for end in range(len(response)):
        with pytest.raises(RemoteProtocolError):
            decode_response(header, response[:end])


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({}, "group_id is missing"),
        ({"group_id": None}, "group_id must not be null"),
        ({"group_id": "g", "generation_id": 1 << 40}, "Heartbeat"),
        ({"group_id": "g", "generation_id": "1"}, "Heartbeat"),
    ],
)
def test_a_message_that_cannot_be_written_is_our_own_fault(values, complaint):
    header = RequestHeader(ApiKey.HEARTBEAT, 0, 1, "")
    with pytest.raises(LocalProtocolError, match=complaint):
        encode_request(header, {"generation_id": 1, "member_id": "m"} | values)


def test_responses_without_records_may_be_cut_from_one_piece():
    header = RequestHeader(ApiKey.FETCH, 17, 1, "")
    (only,) = encode_fetch_response(header, FetchResponse([]))
    assert decode_response(header, only[4:]) == FetchResponse([])
