import uuid
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.errors import LocalProtocolError
from klamm.protocol.codec.soundness import check_sound
from klamm.protocol.schema._kio import entity_reader
from klamm.protocol.schema.lookup import message_schema
from tests.support.messages import encode_struct, values
from tests.support.recorded_exchanges import SCHEMAS, kio_bytes, schema_id, values_of


@pytest.mark.parametrize("schema", SCHEMAS, ids=schema_id)
@given(data=st.data())
@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.rule("API-1", "API-3a")
def test_kio_reads_what_klamm_writes_and_writes_the_same(schema, data):
    message = message_schema(*schema)
    given_values = data.draw(values(message))
    written = encode_struct(message, given_values)
    read, size = entity_reader(message)(written, 0)
    assert size == len(written) == check_sound(message, memoryview(written), 0)
    # A tagged struct that equals its default is left out by kio, and written by klamm when given.
    again = encode_struct(message, values_of(read))
    assert kio_bytes(read) == again
    assert entity_reader(message)(again, 0)[0] == read


def partition_response() -> dict[str, Any]:
    return {
        "partition_index": 0,
        "leader_id": 1,
        "leader_epoch": 3,
        "replica_nodes": [1, 2],
        "isr_nodes": [1],
    }


def test_a_version_takes_what_it_carries_and_leaves_the_rest():
    topic = {"name": "orders", "is_internal": False, "partitions": [partition_response()]}
    response = {
        "brokers": [],
        "cluster_id": "c",
        "controller_id": 1,
        "topics": [topic | {"topic_id": uuid.UUID(int=5)}],
    }
    for version in range(13):
        message = message_schema(3, version, "response")
        read, _ = entity_reader(message)(encode_struct(message, response), 0)
        assert read.topics[0].partitions[0].leader_id == 1
        assert getattr(read, "cluster_id", "c") == "c"
        assert getattr(read, "throttle_time", timedelta()) == timedelta()
        assert getattr(read.topics[0], "topic_id", uuid.UUID(int=5)) == uuid.UUID(int=5)


def test_long_arrays_have_long_counts():
    message = message_schema(3, 12, "response")
    partition = partition_response() | {"replica_nodes": [*range(200)]}
    response = {
        "brokers": [],
        "controller_id": 1,
        "topics": [{"name": "t", "is_internal": False, "partitions": [partition] * 300}],
    }
    read, _ = entity_reader(message)(encode_struct(message, response), 0)
    assert len(read.topics[0].partitions) == 300
    assert read.topics[0].partitions[299].replica_nodes == tuple(range(200))


def test_a_version_that_nobody_declared_is_our_own_fault():
    with pytest.raises(LocalProtocolError, match="no schema for API 3 version 99"):
        message_schema(3, 99, "request")
    with pytest.raises(LocalProtocolError, match="no schema for API 58"):
        message_schema(58, 0, "request")
