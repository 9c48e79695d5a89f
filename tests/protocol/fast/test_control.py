from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import RemoteProtocolError
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import decode_response, encode_request, encode_response
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.fast.control import (
    Chosen,
    ControlRequest,
    EncodedLeaderAndIsr,
    FailedPartition,
    PartitionStates,
    RequestTopics,
    StoppedReplicas,
    decode_leader_and_isr_response,
    decode_update_metadata_response,
    encode_leader_and_isr,
    encode_stop_replica,
    encode_update_metadata,
)
from klamm.protocol.schema.lookup import message_schema
from tests.support.messages import encode_struct

int32s = st.integers(-(1 << 31), (1 << 31) - 1)
brokers = st.integers(0, 1 << 20)
names = st.text(max_size=5)

LIVE_LEADERS = [{"broker_id": 1, "host_name": "one", "port": 9092}]
LIVE_BROKERS = [
    {
        "id": 1,
        "v0_host": "one",
        "v0_port": 9092,
        "rack": None,
        "endpoints": [
            {"port": 9092, "host": "one", "listener": "PLAINTEXT", "security_protocol": 0}
        ],
    },
    {"id": 2, "v0_host": "two", "v0_port": 9092, "rack": "b", "endpoints": []},
]

partitions = st.fixed_dictionaries(
    {
        "partition_index": int32s,
        "controller_epoch": int32s,
        "leader": int32s,
        "leader_epoch": int32s,
        "isr": st.lists(brokers, max_size=3),
        "partition_epoch": int32s,
        "replicas": st.lists(brokers, min_size=1, max_size=4),
        "offline_replicas": st.lists(brokers, max_size=2),
        "adding_replicas": st.lists(brokers, max_size=2),
        "removing_replicas": st.lists(brokers, max_size=2),
        "is_new": st.booleans(),
        "leader_recovery_state": st.integers(0, 1),
    }
)
topics = st.lists(
    st.tuples(names, st.none() | st.uuids(), st.lists(partitions, max_size=4)), max_size=4
)

stopped = st.fixed_dictionaries(
    {"partition_index": int32s, "leader_epoch": int32s, "delete_partition": st.booleans()}
)
stopped_topics = st.lists(
    st.tuples(names, st.none() | st.uuids(), st.lists(stopped, max_size=4)), max_size=4
)


def columns_of(given_topics: list[Any]) -> tuple[RequestTopics, dict[str, Any]]:
    rows = [row for _, _, states in given_topics for row in states]
    bounds = np.cumsum([0] + [len(states) for _, _, states in given_topics])
    return (
        RequestTopics.of(
            [name for name, _, _ in given_topics],
            [topic_id and topic_id.bytes for _, topic_id, _ in given_topics],
            bounds.astype(np.int64),
        ),
        {"rows": rows},
    )


def int32(rows: list[Any], name: str) -> Any:
    return np.array([row[name] for row in rows], np.int32)


def padded(rows: list[Any], name: str) -> Any:
    width = max([len(row[name]) for row in rows] + [1])
    return np.array(
        [row[name] + [-1] * (width - len(row[name])) for row in rows], np.int32
    ).reshape(len(rows), width)


def states_of(rows: list[Any]) -> PartitionStates:
    return PartitionStates(
        partition=int32(rows, "partition_index"),
        controller_epoch=int32(rows, "controller_epoch"),
        leader=int32(rows, "leader"),
        leader_epoch=int32(rows, "leader_epoch"),
        isr=padded(rows, "isr"),
        partition_epoch=int32(rows, "partition_epoch"),
        replicas=padded(rows, "replicas"),
        offline=padded(rows, "offline_replicas"),
        adding=padded(rows, "adding_replicas"),
        removing=padded(rows, "removing_replicas"),
        is_new=np.array([row["is_new"] for row in rows], np.bool_),
        recovery=np.array([row["leader_recovery_state"] for row in rows], np.int8),
    )


def grouped(given_topics: list[Any]) -> dict[str, Any]:
    """The same partitions for the encoder that works for every message."""
    named = [
        {"topic_name": name, **row, "zk_version": row.get("partition_epoch", 0)}
        for name, _, rows in given_topics
        for row in rows
    ]
    return {
        "ungrouped_partition_states": named,
        "ungrouped_partitions": named,
        "topics": [
            {"name": name, "partition_indexes": [row["partition_index"] for row in rows]}
            for name, _, rows in given_topics
        ],
        "topic_states": [
            {
                "topic_name": name,
                "topic_id": topic_id,
                "partition_states": [
                    {**row, "zk_version": row.get("partition_epoch", 0)} for row in rows
                ],
            }
            for name, topic_id, rows in given_topics
        ],
    }


def header_of(request: ControlRequest, correlation_id: int) -> RequestHeader:
    return RequestHeader(request.api_key, request.api_version, correlation_id, "1")


def frame_of(request: ControlRequest) -> bytes:
    return b"".join(request.chunks(header_of(request, 9), broker_epoch=77))


@pytest.mark.parametrize("version", range(8))
@given(given_topics=topics)
@settings(max_examples=12, deadline=None)
@pytest.mark.rule("CHAN-18", "CHAN-19", "CHAN-20", "CHAN-21", "CHAN-32")
def test_leader_and_isr_from_columns_equals_leader_and_isr_from_mappings(version, given_topics):
    topic_rows, columns = columns_of(given_topics)
    request = encode_leader_and_isr(
        version,
        topic_rows,
        states_of(columns["rows"]),
        controller_id=3,
        controller_epoch=5,
        live_leaders=LIVE_LEADERS,
    )
    header = RequestHeader(ApiKey.LEADER_AND_ISR, version, 9, "1")
    assert frame_of(request) == encode_request(
        header,
        {
            "controller_id": 3,
            "controller_epoch": 5,
            "broker_epoch": 77,
            "live_leaders": LIVE_LEADERS,
            **grouped(given_topics),
        },
    )


@pytest.mark.parametrize("version", range(8))
@given(data=st.data(), given_topics=topics)
@settings(max_examples=12, deadline=None)
@pytest.mark.rule("CHAN-18")
def test_a_request_with_some_of_shared_states_equals_one_that_was_encoded_for_them_alone(
    version, data, given_topics
):
    rows = [row for _, _, states in given_topics for row in states]
    chosen = data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    numbered = iter(range(len(rows)))
    some = [
        (name, topic_id, [row for row in states if chosen[next(numbered)]])
        for name, topic_id, states in given_topics
    ]
    named = [at for at, (_, _, states) in enumerate(some) if states]
    some_topics, some_columns = columns_of([some[at] for at in named])
    all_topics, _ = columns_of(given_topics)
    of_all = RequestTopics(all_topics.table, np.array(named, np.int64), some_topics.bounds)
    options = {"controller_id": 3, "controller_epoch": 5, "live_leaders": LIVE_LEADERS}
    alone = states_of(some_columns["rows"])
    shared = EncodedLeaderAndIsr(version, states_of(rows))
    request = shared.request(of_all, Chosen(np.flatnonzero(chosen), alone.is_new), **options)
    expected = encode_leader_and_isr(version, some_topics, alone, **options)
    assert frame_of(request) == frame_of(expected)
    assert (of_all.names, of_all.ids) == (some_topics.names, some_topics.ids)


@pytest.mark.parametrize("version", range(9))
@given(given_topics=topics)
@settings(max_examples=12, deadline=None)
@pytest.mark.rule("CHAN-22", "CHAN-24", "CHAN-27", "CHAN-32")
def test_update_metadata_from_columns_equals_update_metadata_from_mappings(version, given_topics):
    topic_rows, columns = columns_of(given_topics)
    request = encode_update_metadata(
        version,
        topic_rows,
        states_of(columns["rows"]),
        controller_id=3,
        controller_epoch=5,
        live_brokers=LIVE_BROKERS,
    )
    header = RequestHeader(ApiKey.UPDATE_METADATA, version, 9, "1")
    assert frame_of(request) == encode_request(
        header,
        {
            "controller_id": 3,
            "controller_epoch": 5,
            "broker_epoch": 77,
            "live_brokers": LIVE_BROKERS,
            **grouped(given_topics),
        },
    )


@pytest.mark.parametrize("version", range(5))
@given(given_topics=stopped_topics)
@settings(max_examples=12, deadline=None)
@pytest.mark.rule("CHAN-28", "CHAN-29", "CHAN-32")
def test_stop_replica_from_columns_equals_stop_replica_from_mappings(version, given_topics):
    topic_rows, columns = columns_of(given_topics)
    rows = columns["rows"]
    replicas = StoppedReplicas(
        partition=int32(rows, "partition_index"),
        leader_epoch=int32(rows, "leader_epoch"),
        is_deleted=np.array([row["delete_partition"] for row in rows], np.bool_),
    )
    requests = encode_stop_replica(
        version, topic_rows, replicas, controller_id=3, controller_epoch=5
    )
    header = RequestHeader(ApiKey.STOP_REPLICA, version, 9, "1")
    head = {"controller_id": 3, "controller_epoch": 5, "broker_epoch": 77}
    if version >= 3:
        expected = [head | grouped(given_topics)]
    else:
        expected = []
        for flag in (True, False):
            some = [
                (name, topic_id, [row for row in rows if row["delete_partition"] == flag])
                for name, topic_id, rows in given_topics
            ]
            some = [each for each in some if each[2]]
            if some:
                expected.append(head | {"delete_partitions": flag} | grouped(some))
    assert [frame_of(each) for each in requests] == [
        encode_request(header, values) for values in expected
    ]


def test_lists_too_long_for_a_count_of_one_byte_are_written_all_the_same():
    row = {
        "partition_index": 0,
        "controller_epoch": 1,
        "leader": 2,
        "leader_epoch": 3,
        "isr": [*range(200)],
        "partition_epoch": 4,
        "replicas": [*range(300)],
        "offline_replicas": [],
        "adding_replicas": [],
        "removing_replicas": [],
        "is_new": True,
        "leader_recovery_state": 1,
    }
    rows = [row | {"partition_index": number} for number in range(150)]
    given_topics = [("t", UUID(int=1), [row]), ("longer", UUID(int=2), rows)]
    topic_rows, columns = columns_of(given_topics)
    request = encode_leader_and_isr(
        7,
        topic_rows,
        states_of(columns["rows"]),
        controller_id=3,
        controller_epoch=5,
        live_leaders=[],
    )
    values = {"controller_id": 3, "controller_epoch": 5, "live_leaders": []}
    expected = encode_struct(
        message_schema(4, 7, "request"), {**values, "broker_epoch": 77, **grouped(given_topics)}
    )
    assert frame_of(request).endswith(expected)


@pytest.mark.rule("CHAN-22")
def test_the_long_part_of_a_request_is_shared_by_all_brokers():
    topic_rows, columns = columns_of([("t", None, [])])
    request = encode_update_metadata(
        8,
        topic_rows,
        states_of(columns["rows"]),
        controller_id=3,
        controller_epoch=5,
        live_brokers=LIVE_BROKERS,
    )
    one = request.chunks(header_of(request, 1), broker_epoch=10)
    two = request.chunks(header_of(request, 2), broker_epoch=20)
    assert one[0] != two[0]
    assert one[1] is two[1]


def answer(version: int, errors: dict[tuple[Any, int], int]) -> tuple[RequestHeader, bytes]:
    header = RequestHeader(ApiKey.LEADER_AND_ISR, version, 9, "1")
    topics_of: dict[Any, list[Any]] = {}
    for (topic, partition), code in errors.items():
        topics_of.setdefault(topic, []).append(
            {"topic_name": topic, "partition_index": partition, "error_code": code}
        )
    values = {
        "error_code": 11,
        "partition_errors": [each for rows in topics_of.values() for each in rows],
        "topics": [
            {"topic_id": topic, "partition_errors": rows} for topic, rows in topics_of.items()
        ],
    }
    return header, encode_response(header, values)[4:]


@pytest.mark.parametrize("version", range(8))
def test_only_failures_are_taken_from_a_response(version):
    names = ["a", "b"] if version < 5 else [UUID(int=1), UUID(int=2)]
    errors = {(name, partition): 0 for name in names for partition in range(200)}
    errors[names[1], 7] = 56
    outcome = decode_leader_and_isr_response(*answer(version, errors))
    assert outcome.error_code == 11
    assert outcome.failed == [FailedPartition(names[1], 7, 56)]


@pytest.mark.parametrize("version", [4, 7])
def test_a_response_cut_short_is_refused(version):
    header, frame = answer(version, {("a" if version < 5 else UUID(int=1), 0): 0})
    for end in range(len(frame)):
        with pytest.raises(RemoteProtocolError):
            decode_leader_and_isr_response(header, frame[:end])


@pytest.mark.parametrize("version", range(9))
def test_the_error_of_an_update_metadata_response_is_read(version):
    header = RequestHeader(ApiKey.UPDATE_METADATA, version, 9, "1")
    frame = encode_response(header, {"error_code": 77})[4:]
    assert decode_update_metadata_response(header, frame) == 77
    assert decode_response(header, frame).error_code == 77
    for end in range(len(frame)):
        with pytest.raises(RemoteProtocolError):
            decode_update_metadata_response(header, frame[:end])
