import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.core.columns import unpad
from klamm.errors import RemoteProtocolError
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.frames import decode_response, encode_response
from klamm.protocol.codec.headers import RequestHeader, decode_request_header
from klamm.protocol.fast.metadata import MetadataColumns, decode_metadata_columns
from tests.support.recorded_exchanges import EXCHANGES, Exchange

API = APIS[ApiKey.METADATA]
VERSIONS = range(API.min_version, API.max_version + 1)
RECORDED = [each for each in EXCHANGES if each.key == ApiKey.METADATA]

nodes = st.integers(0, 5)
#: Some lists are so long that their length takes two bytes.
node_lists = st.one_of(st.lists(nodes, max_size=4), st.just([1] * 200))


def responses() -> st.SearchStrategy[dict[str, Any]]:
    partition = st.fixed_dictionaries(
        {
            "error_code": st.sampled_from([0, 5]),
            "partition_index": st.integers(0, 1 << 30),
            "leader_id": st.integers(-1, 5),
            "leader_epoch": st.integers(-1, 1 << 30),
            "replica_nodes": node_lists,
            "isr_nodes": node_lists,
            "offline_replicas": node_lists,
        }
    )
    topic = st.fixed_dictionaries(
        {
            "error_code": st.sampled_from([0, 3]),
            "name": st.text(max_size=9),
            "topic_id": st.uuids(),
            "is_internal": st.booleans(),
            "partitions": st.lists(partition, max_size=4),
        }
    )
    broker = st.fixed_dictionaries(
        {
            "node_id": nodes,
            "host": st.text(max_size=9),
            "port": st.integers(0, 65_535),
            "rack": st.none() | st.text(max_size=3),
        }
    )
    return st.fixed_dictionaries(
        {
            "brokers": st.lists(broker, max_size=3),
            "cluster_id": st.none() | st.text(max_size=9),
            "controller_id": nodes,
            "topics": st.lists(topic, max_size=4),
        }
    )


def assert_same(ours: MetadataColumns, theirs: Any) -> None:
    assert [tuple(each) for each in ours.brokers] == [
        (each.node_id, each.host, each.port, getattr(each, "rack", None)) for each in theirs.brokers
    ]
    assert ours.cluster_id == getattr(theirs, "cluster_id", None)
    assert ours.controller_id == getattr(theirs, "controller_id", -1)
    assert [tuple(each) for each in ours.topics] == [
        (
            topic.name or "",
            getattr(topic, "topic_id", None),
            getattr(topic, "is_internal", False),
            topic.error_code,
            len(topic.partitions),
        )
        for topic in theirs.topics
    ]
    partitions = [each for topic in theirs.topics for each in topic.partitions]
    rows = zip(
        ours.partition_index.tolist(),
        ours.leader_id.tolist(),
        ours.leader_epoch.tolist(),
        map(unpad, ours.replica_nodes),
        map(unpad, ours.isr_nodes),
        strict=True,
    )
    assert list(rows) == [
        (
            each.partition_index,
            each.leader_id,
            getattr(each, "leader_epoch", -1),
            list(each.replica_nodes),
            list(each.isr_nodes),
        )
        for each in partitions
    ]


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=20)
@given(values=responses())
def test_a_response_is_read_as_kio_reads_it(version: int, values: dict[str, Any]):
    header = RequestHeader(ApiKey.METADATA, version, 1, None)
    frame = encode_response(header, values)[4:]
    assert_same(decode_metadata_columns(header, frame), decode_response(header, frame))


@pytest.mark.parametrize("exchange", RECORDED, ids=str)
def test_a_recorded_response_is_read_as_kio_reads_it(exchange: Exchange):
    assert exchange.response is not None
    header, _ = decode_request_header(memoryview(exchange.request))
    ours = decode_metadata_columns(header, exchange.response)
    assert_same(ours, decode_response(header, exchange.response))


@pytest.mark.parametrize("version", [1, 12])
@settings(max_examples=50)
@given(values=responses(), left=st.data())
def test_a_response_that_is_cut_short_is_refused(version: int, values: Any, left: Any):
    header = RequestHeader(ApiKey.METADATA, version, 1, None)
    frame = encode_response(header, values)[4:]
    size = left.draw(st.integers(0, len(frame) - 1))
    with pytest.raises(RemoteProtocolError):
        decode_metadata_columns(header, frame[:size])


@given(junk=st.binary(max_size=200))
def test_junk_is_refused_with_the_error_of_the_peer(junk: bytes):
    header = RequestHeader(ApiKey.METADATA, 12, 1, None)
    with contextlib.suppress(RemoteProtocolError):
        decode_metadata_columns(header, junk)
