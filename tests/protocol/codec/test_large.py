"""Large messages are read as kio reads them, but for the lists."""

import dataclasses
import uuid
from typing import Any

import pytest

from klamm.errors import RemoteProtocolError
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec import large
from klamm.protocol.codec.frames import (
    decode_large_request,
    decode_request,
    encode_large_response,
    encode_request,
    encode_response,
)
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codec.large import dismantle
from klamm.protocol.fast.produce import ManyEntriesError
from tests.support.large_requests import Existing, large_requests

_LAZY = (ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA)
EXISTING = Existing("t", uuid.UUID(int=5), 1)


def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return type(value), {each.name: plain(getattr(value, each.name)) for each in fields}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


# LeaderAndIsr and UpdateMetadata are read lazily, in one way for all sizes.
@pytest.mark.parametrize("key", [key for key in APIS if key not in _LAZY])
def test_every_request_reads_the_same(key: int) -> None:
    for request in large_requests(ApiKey(key), 500, EXISTING):
        frame = memoryview(request.frame)[4:]
        assert plain(decode_large_request(frame)) == plain(decode_request(frame)), str(request)


def test_unknown_tags_are_skipped() -> None:
    header = RequestHeader(ApiKey.LIST_GROUPS, 5, 1, "large")
    frame = encode_request(header, {"states_filter": ["Empty"], "types_filter": []})
    tagged = frame[4:-1] + b"\x01\x63\x02ab"
    assert decode_large_request(tagged).body.states_filter == ["Empty"]


@pytest.mark.parametrize("cut", [1, 3, 9])
def test_a_message_that_is_cut_short_is_refused(cut: int) -> None:
    (request, *_) = large_requests(ApiKey.METADATA, 500, EXISTING)
    with pytest.raises(RemoteProtocolError):
        decode_large_request(request.frame[4:-cut])


def test_more_items_than_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    (request, *_) = large_requests(ApiKey.DESCRIBE_GROUPS, 500, EXISTING)
    monkeypatch.setattr(large, "ITEMS_MAX", 100)
    with pytest.raises(RemoteProtocolError, match="more than 100 items"):
        decode_large_request(request.frame[4:])


def test_a_produce_of_many_entries_is_not_for_the_event_loop() -> None:
    request = next(large_requests(ApiKey.PRODUCE, 20_000, EXISTING))
    with pytest.raises(ManyEntriesError):
        decode_request(request.frame[4:])
    assert len(decode_large_request(request.frame[4:]).body.topics) == request.items


def test_a_response_in_parts_is_the_same_response() -> None:
    header = RequestHeader(ApiKey.DESCRIBE_GROUPS, 5, 1, "large")
    group = {
        "group_id": "g",
        "group_state": "Dead",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
    }
    body = {"groups": [group] * 5000}
    parts = encode_large_response(header, body)
    assert len(parts) > 2
    assert b"".join(parts) == encode_response(header, body)


def test_nothing_is_left_of_what_is_dismantled() -> None:
    (request, *_) = large_requests(ApiKey.LIST_OFFSETS, 5000, EXISTING)
    body = decode_large_request(request.frame[4:]).body
    (first, *_) = body.topics
    dismantle(body)
    assert body.topics == []
    assert first.partitions == []
    response = {"error_code": 0, "topics": [{"name": "t", "partitions": [{"index": 1}]}]}
    dismantle(response)
    assert response["topics"] == []
    by_number = {number: [number] for number in range(5000)}
    first = by_number[0]
    numbers = set(range(5000))
    dismantle(by_number)
    dismantle(numbers)
    assert first == []
    assert len(by_number) < 5000 > len(numbers)
