"""What is packed for a session of a follower is what the encoders for everything make of it."""

import uuid
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import decode_response
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode
from klamm.protocol.fast.fetch import (
    FIRST_WITH_TOPIC_IDS,
    FetchPartitionRequest,
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    encode_fetch_request,
)
from klamm.protocol.fast.fetch_response import encode_fetch_response
from klamm.protocol.fast.steady_fetch import RESULTS_MAX, SteadyFetchFormat


@dataclass(frozen=True)
class Records:
    """Records that lie in a file."""

    size: int


versions = st.integers(FIRST_WITH_TOPIC_IDS, 17)
int32, offsets = st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
topic_ids = st.uuids(allow_nil=False)
requested = st.builds(
    FetchPartitionRequest, int32, int32, offsets, st.integers(-1, 2**31 - 1), offsets, int32
)
topics = st.lists(
    st.builds(FetchTopic, st.none(), topic_ids, st.lists(requested, max_size=5)), max_size=3
)
results = st.tuples(
    int32,
    st.just(ErrorCode.NONE),
    offsets,
    offsets,
    offsets,
    st.just(b"") | st.builds(Records, st.integers(1, 1 << 24)),
).map(lambda fields: FetchPartitionResponse(*fields))


def header(version: int, correlation_id: int) -> RequestHeader:
    return RequestHeader(ApiKey.FETCH, version, correlation_id, "broker-1-fetcher-2")


def request(session_epoch: int, named: list[FetchTopic]) -> FetchRequest:
    return FetchRequest(1, 25, 500, 1, 10 << 20, 0, 4711, session_epoch, named, [], "")


@given(versions, int32, int32, topics, topics)
def test_a_request_is_packed_as_it_is_encoded(version, correlation_id, epoch, before, named):
    form = SteadyFetchFormat(header(version, 1), request(1, before))
    expected = encode_fetch_request(header(version, correlation_id), request(epoch, named))
    assert form.request(correlation_id, epoch, named) == expected


@given(versions, int32, topic_ids, st.lists(results, min_size=1, max_size=5))
def test_a_response_is_packed_as_it_is_encoded(version, correlation_id, topic_id, entries):
    form = SteadyFetchFormat(header(version, 1), request(1, []))
    expected = encode_fetch_response(
        header(version, correlation_id),
        FetchResponse([FetchTopicResponse(None, topic_id, entries)], session_id=4711),
    )
    with_records = [
        (entry, entry.records if isinstance(entry.records, Records) else None) for entry in entries
    ]
    assert form.response(correlation_id, topic_id.bytes, with_records) == expected


def test_responses_are_packed_up_to_the_largest_number_of_partitions():
    entries = [FetchPartitionResponse(n, ErrorCode.NONE, n, n, 0) for n in range(RESULTS_MAX)]
    form = SteadyFetchFormat(header(17, 1), request(1, []))
    (packed,) = form.response(5, uuid.UUID(int=7).bytes, [(entry, None) for entry in entries])
    assert isinstance(packed, bytes)
    (topic,) = decode_response(header(17, 5), packed[4:]).topics
    assert [entry.partition for entry in topic.partitions] == list(range(RESULTS_MAX))


def test_what_was_packed_is_read_again():
    topic_id = uuid.UUID(int=7)
    form = SteadyFetchFormat(header(17, 1), request(1, []))
    named = [FetchTopic(None, topic_id, [FetchPartitionRequest(3, 5, 100, 5, 0, 1 << 20)])]
    read = form.read(form.request(9, 2, named)[4:])
    assert read == (9, 2, [(topic_id.bytes, (3, 5, 100, 5, 0, 1 << 20, 0))])
