"""Each administrative request leaves a record of who asked for what, without secrets."""

import asyncio
import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from klamm.broker.administrative_requests import ADMINISTRATIVE, _described, noted
from klamm.broker.handlers.dispatch import Call, EncodedResponse
from klamm.history.broker_story import request_sentence
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.failures import failure
from klamm.protocol.codec.frames import (
    decode_large_request,
    decode_request,
    encode_request,
    encode_response,
)
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codec.large import dismantle
from klamm.protocol.codes import ErrorCode

SECRET = "correct horse"
ACL = {
    "resource_type": 2,
    "resource_name": "orders",
    "resource_pattern_type": 3,
    "principal": "User:bob",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
FILTER = {
    "resource_type_filter": 2,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}
CONFIG = {"name": "retention.ms", "value": "1000", "config_operation": 0}
PASSWORD = {"name": "ssl.key.password", "value": SECRET, "config_operation": 0}
RESOURCES = [
    {"resource_type": 2, "resource_name": "orders", "configs": [CONFIG]},
    {"resource_type": 4, "resource_name": "1", "configs": [PASSWORD]},
]
BODIES: dict[ApiKey, tuple[dict[str, Any], list[tuple[str, str, str]]]] = {
    ApiKey.CREATE_TOPICS: (
        {
            "topics": [
                {
                    "name": "orders",
                    "num_partitions": 3,
                    "replication_factor": 2,
                    "assignments": [],
                    "configs": [{"name": "retention.ms", "value": "1000"}],
                }
            ],
            "timeout": 1000,
            "validate_only": False,
        },
        [("topic", "orders", "3 partitions, replication factor 2, retention.ms=1000")],
    ),
    ApiKey.DELETE_TOPICS: (
        {"topics": [{"name": "orders", "topic_id": None}], "timeout": 1000},
        [("topic", "orders", "")],
    ),
    ApiKey.DELETE_RECORDS: (
        {
            "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 7}]}],
            "timeout": 1000,
        },
        [("topic", "orders", "0 before 7")],
    ),
    ApiKey.CREATE_PARTITIONS: (
        {
            "topics": [{"name": "orders", "count": 5, "assignments": None}],
            "timeout": 1000,
            "validate_only": True,
        },
        [("topic", "orders", "5 partitions")],
    ),
    ApiKey.ALTER_CONFIGS: (
        {"resources": RESOURCES, "validate_only": False},
        [("topic", "orders", "retention.ms=1000"), ("broker", "1", "ssl.key.password")],
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (
        {"resources": RESOURCES, "validate_only": False},
        [("topic", "orders", "retention.ms=1000"), ("broker", "1", "ssl.key.password")],
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (
        {
            "timeout": 1000,
            "topics": [
                {
                    "name": "orders",
                    "partitions": [
                        {"partition_index": 0, "replicas": [1, 2]},
                        {"partition_index": 1, "replicas": None},
                    ],
                }
            ],
        },
        [("topic", "orders", "0 to 1,2; 1 to where it was")],
    ),
    ApiKey.ELECT_LEADERS: (
        {"election_type": 1, "topic_partitions": None, "timeout": 1000},
        [("cluster", "", "unclean election of all partitions")],
    ),
    ApiKey.CREATE_ACLS: (
        {"creations": [ACL]},
        [("topic", "orders", "ALLOW User:bob at *: READ")],
    ),
    ApiKey.DELETE_ACLS: (
        {"filters": [FILTER]},
        [("topic", "", "ANY anybody at any address: ANY")],
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: (
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": None}],
                    "ops": [
                        {"key": "producer_byte_rate", "value": 1024.0, "remove": False},
                        {"key": "consumer_byte_rate", "value": 0.0, "remove": True},
                    ],
                }
            ],
            "validate_only": False,
        },
        [("quota", "user (default)", "producer_byte_rate = 1024, consumer_byte_rate removed")],
    ),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (
        {
            "deletions": [{"name": "carol", "mechanism": 2}],
            "upsertions": [
                {
                    "name": "bob",
                    "mechanism": 1,
                    "iterations": 4096,
                    "salt": SECRET.encode(),
                    "salted_password": SECRET.encode(),
                }
            ],
        },
        [("user", "bob", "SCRAM-SHA-256 set"), ("user", "carol", "SCRAM-SHA-512 removed")],
    ),
    ApiKey.DELETE_GROUPS: ({"groups_names": ["app"]}, [("group", "app", "")]),
    ApiKey.OFFSET_DELETE: (
        {
            "group_id": "app",
            "topics": [{"name": "orders", "partitions": [{"partition_index": 0}]}],
        },
        [("group", "app", "orders")],
    ),
    ApiKey.UPDATE_FEATURES: (
        {
            "timeout": 1000,
            "feature_updates": [
                {"feature": "metadata.version", "max_version_level": 3, "upgrade_type": 1}
            ],
            "validate_only": False,
        },
        [("feature", "metadata.version", "level 3")],
    ),
    ApiKey.WRITE_TXN_MARKERS: (
        {
            "markers": [
                {
                    "producer_id": 4000,
                    "producer_epoch": 2,
                    "transaction_result": False,
                    "topics": [{"name": "orders", "partition_indexes": [0, 3]}],
                    "coordinator_epoch": 0,
                }
            ]
        },
        [("topic", "orders", "abort of producer 4000 with epoch 2 on 0,3")],
    ),
}


def call(key: ApiKey, client_id: str = "admin-1") -> Call:
    header = RequestHeader(key, APIS[key].max_version, 1, client_id)
    frame = memoryview(encode_request(header, BODIES[key][0]))[4:]
    decoded, body = decode_request(frame)
    connection: Any = SimpleNamespace(
        principal="User:alice", client_host="10.0.0.1", listener="SASL_SSL"
    )
    meter: Any = None
    return Call(connection, decoded, body, frame, meter, 0, 0)


@pytest.mark.parametrize("key", ADMINISTRATIVE)
def test_a_record_says_who_asked_for_what_and_what_was_refused(key: ApiKey):
    asked = call(key)
    refusal = failure(asked.header, asked.body, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    assert refusal is not None
    encoded = EncodedResponse([encode_response(asked.header, refusal)])
    for result in (refusal, encoded):
        record = _described(asked, result)
        assert record["api"] == APIS[key].name
        assert (record["principal"], record["address"]) == ("User:alice", "10.0.0.1")
        assert record["client_id"] == "admin-1"
        found = [(each["type"], each["name"], each["wanted"]) for each in record["subjects"]]
        assert found == BODIES[key][1]
        if key is not ApiKey.ELECT_LEADERS:  # a refusal of all names no partition
            assert {each["error"] for each in record["errors"]} == {"CLUSTER_AUTHORIZATION_FAILED"}
        assert SECRET not in json.dumps(record)


def test_a_record_of_very_many_resources_names_some_and_counts_the_rest():
    names = [f"group-{index}" for index in range(12_345)]
    asked = call(ApiKey.DELETE_GROUPS)
    asked = asked._replace(body=replace(asked.body, groups_names=names))
    refusal = failure(asked.header, asked.body, ErrorCode.GROUP_ID_NOT_FOUND)
    assert refusal is not None
    record = _described(asked, refusal)
    assert [each["name"] for each in record["subjects"]] == names[:10_000]
    assert [each["name"] for each in record["errors"]] == names[:10_000]
    assert record["left_out"] == 2_345
    assert "; and 2345 more; refused: " in request_sentence(record)


def test_a_record_of_one_resource_and_very_much_about_it_is_no_longer_than_others():
    asked = call(ApiKey.ELECT_LEADERS)
    topic = SimpleNamespace(topic="orders", partitions=range(1_005))
    asked = asked._replace(body=SimpleNamespace(election_type=0, topic_partitions=[topic]))
    (subject,) = _described(asked, EncodedResponse(None))["subjects"]
    assert subject["wanted"].startswith("preferred election of 0,1,2,")
    assert subject["wanted"].endswith(",999,and 5 more")


@pytest.mark.parametrize("is_awaited", [False, True])
def test_a_large_request_is_described_before_it_is_taken_apart(is_awaited: bool):
    """Its arrays and those of its response are emptied as soon as it is answered."""
    names = [f"group-{index}" for index in range(5_000)]
    header = RequestHeader(ApiKey.DELETE_GROUPS, APIS[ApiKey.DELETE_GROUPS].max_version, 1, "a")
    frame = memoryview(encode_request(header, {"groups_names": names}))[4:]
    asked = call(ApiKey.DELETE_GROUPS)._replace(body=decode_large_request(frame).body, frame=frame)
    notes: list[Any] = []
    history: Any = SimpleNamespace(note=lambda describe, at: notes.append(describe))
    refusal = failure(asked.header, asked.body, ErrorCode.GROUP_ID_NOT_FOUND)

    async def later(_: Call) -> Any:
        return refusal

    handlers = noted(
        {ApiKey.DELETE_GROUPS: later if is_awaited else lambda _: refusal}, history, "SASL_SSL"
    )

    async def ask() -> Any:
        return await handlers[ApiKey.DELETE_GROUPS](asked)  # type: ignore[misc]

    assert asyncio.run(ask()) is refusal
    dismantle(refusal)
    dismantle(asked.body)
    (record,) = (describe() for describe in notes)
    assert [each["name"] for each in record["subjects"]] == names
    assert [each["name"] for each in record["errors"]] == names


def test_only_administrative_requests_are_noted():
    notes: list[Any] = []
    history: Any = SimpleNamespace(note=lambda describe, at: notes.append(describe()))
    response = {"throttle_time": 0, "results": []}

    async def later(_: Call) -> Any:
        return response

    handlers = noted(
        {
            ApiKey.DELETE_GROUPS: lambda _: response,
            ApiKey.CREATE_PARTITIONS: later,
            ApiKey.METADATA: lambda _: response,
        },
        history,
        "SASL_SSL",
    )
    assert handlers[ApiKey.DELETE_GROUPS](call(ApiKey.DELETE_GROUPS)) == response

    async def ask() -> Any:
        return await handlers[ApiKey.CREATE_PARTITIONS](call(ApiKey.CREATE_PARTITIONS))  # type: ignore[misc]

    assert asyncio.run(ask()) == response
    assert handlers[ApiKey.METADATA](call(ApiKey.DELETE_GROUPS)) == response
    assert [each["api"] for each in notes] == ["DeleteGroups", "CreatePartitions"]
    assert notes[1]["is_trial"]


@pytest.mark.parametrize(
    ("client_id", "listener", "is_noted"),
    [
        ("admin-1", "SASL_SSL", True),
        ("2", "CLIENTS", True),
        ("2", "SASL_SSL", False),
        ("broker-2-txn-marker-sender", "SASL_SSL", False),
    ],
)
def test_markers_of_coordinators_are_no_administration(client_id, listener, is_noted):
    notes: list[Any] = []
    history: Any = SimpleNamespace(note=lambda describe, at: notes.append(describe()))
    handlers = noted({ApiKey.WRITE_TXN_MARKERS: lambda _: {"markers": []}}, history, "SASL_SSL")
    asked = call(ApiKey.WRITE_TXN_MARKERS, client_id)
    asked.connection.listener = listener
    handlers[ApiKey.WRITE_TXN_MARKERS](asked)
    assert [each["api"] for each in notes] == ["WriteTxnMarkers"] * is_noted
