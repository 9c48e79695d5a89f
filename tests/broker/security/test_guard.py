"""Every API before an authorizer: what is denied never reaches a handler, and is told so."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.broker.handlers.dispatch import Call
from klamm.broker.security.authorizer import AclAuthorizer
from klamm.broker.security.guard import Guard
from klamm.broker.security.requirements import REQUIREMENTS, Need, Scope
from klamm.net.server import CloseConnection
from klamm.protocol.acls import (
    AccessControlEntry,
    AclOperation,
    AclPermission,
    ResourcePattern,
    ResourceType,
)
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.frames import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.codes import ErrorCode
from klamm.protocol.schema.lookup import message_schema
from tests.support.messages import values

VERSIONS = [
    (key, version)
    for key, api in APIS.items()
    for version in range(api.first_decoded, api.max_version + 1)
]
#: The handler itself asks for each name: test_guard_on_a_broker.py shows what it answers.
BY_HANDLER = {
    name
    for name, row in REQUIREMENTS.items()
    if not row.needs or any(need.scope is Scope.HANDLER for need in row.needs)
}


def call_of(key: int, version: int, given_values: dict[str, Any]) -> Call:
    header = RequestHeader(key, version, 1, "")
    frame = memoryview(encode_request(header, given_values))[4:]
    connection = SimpleNamespace(principal="User:nobody", client_host="10.0.0.1", hold=0.0)
    return Call(connection, header, decode_request(frame).body, frame, None, 0, 0)  # type: ignore[arg-type]


@pytest.mark.rule("SEC-9")
@pytest.mark.parametrize("key", APIS)
def test_every_api_has_a_row(key):
    assert APIS[key].name in REQUIREMENTS


@pytest.mark.rule("SEC-9")
@pytest.mark.parametrize(("key", "version"), VERSIONS)
@given(data=st.data())
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
def test_what_is_denied_reaches_no_handler_and_is_answered(key, version, data):
    name = APIS[key].name
    if name in BY_HANDLER:
        return
    call = call_of(key, version, data.draw(values(message_schema(key, version, "request"))))
    if _is_refused_by_the_handler(name, version, call.body):
        return
    reached: list[Any] = []

    def handler(served: Call) -> dict[str, Any]:
        reached.append(served.body)
        return {"groups": [], "topics": [], "results": [], "responses": []} | {
            "coordinators": [],
            "transaction_states": [],
            "unknown_state_filters": [],
            "error_code": ErrorCode.NONE,
        }

    guard = Guard(AclAuthorizer(), lambda topic_id: "topic")
    guarded = guard.protect({ApiKey(key): handler})[ApiKey(key)]
    try:
        response = guarded(call)
    except CloseConnection:
        return
    for body in reached:
        assert not _named(body, name), "something that was denied reached the handler"
    assert isinstance(response, dict)
    decode_response(call.header, encode_response(call.header, response)[4:])


def _is_refused_by_the_handler(name: str, version: int, body: Any) -> bool:
    """Whether the request has a fault that Kafka looks for before it asks who may do that."""
    match name:
        case "FindCoordinator":
            return getattr(body, "key_type", 0) not in (0, 1)
        case "SyncGroup":
            return version >= 5 and None in (body.protocol_type, body.protocol_name)
        case "CreateTopics" | "CreatePartitions":
            return len({topic.name for topic in body.topics}) < len(body.topics)
        case "DeleteTopics":
            topics = getattr(body, "topics", ())
            return any(None not in (topic.name, topic.topic_id) for topic in topics)
        case _:
            return False


def _named(body: Any, name: str) -> list[Any]:
    """What the handler was given of the lists that have to be allowed item by item."""
    lists = {
        "OffsetFetch": ("groups",),
        "FindCoordinator": ("coordinator_keys",),
        "DescribeConfigs": ("resources",),
        "AlterConfigs": ("resources",),
        "IncrementalAlterConfigs": ("resources",),
        "CreateTopics": ("topics",),
        "CreatePartitions": ("topics",),
        "DeleteTopics": ("topics", "topic_names"),
        "OffsetForLeaderEpoch": ("topics",),
        "ListGroups": (),
    }.get(name)
    if lists is None:
        needs = REQUIREMENTS[name].needs
        if any(need.scope is Scope.WHOLE for need in needs):
            return ["the whole request"]
        lists = tuple(need.names for need in needs if need.scope is Scope.EACH)
    return [item for field in lists for item in getattr(body, field, ())]


@pytest.mark.rule("SEC-9")
def test_the_allowed_part_is_served_and_the_rest_is_told():
    authorizer = AclAuthorizer()
    entry = AccessControlEntry("User:nobody", "*", AclOperation.DESCRIBE, AclPermission.ALLOW)
    authorizer.put(ResourcePattern(ResourceType.TOPIC, "mine"), [entry])
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    asked = [{"name": name, "partitions": [partition]} for name in ("theirs", "mine")]
    call = call_of(
        ApiKey.LIST_OFFSETS, 7, {"replica_id": -1, "isolation_level": 0, "topics": asked}
    )

    def handler(served: Call) -> dict[str, Any]:
        assert [topic.name for topic in served.body.topics] == ["mine"]
        assert [t.name for t in decode_request(served.frame).body.topics] == ["mine"]
        return {"topics": [{"name": "mine", "partitions": []}]}

    guarded = Guard(authorizer, lambda _: None).protect({ApiKey.LIST_OFFSETS: handler})
    response = guarded[ApiKey.LIST_OFFSETS](call)
    assert [topic["name"] for topic in response["topics"]] == ["mine", "theirs"]
    (denied,) = response["topics"][1]["partitions"]
    assert denied["error_code"] == ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.rule("SEC-9")
def test_an_api_without_a_row_is_not_served(monkeypatch):
    others = {name: row for name, row in REQUIREMENTS.items() if name != "Heartbeat"}
    monkeypatch.setattr("klamm.broker.security.guard.REQUIREMENTS", others)
    guard = Guard(AclAuthorizer(super_users=frozenset({"User:nobody"})), lambda _: None)
    guarded = guard.protect({ApiKey.HEARTBEAT: lambda call: {"error_code": 0}})
    call = call_of(ApiKey.HEARTBEAT, 0, {"group_id": "g", "generation_id": 0, "member_id": ""})
    with pytest.raises(CloseConnection):
        guarded[ApiKey.HEARTBEAT](call)


def as_markdown() -> str:
    """The table as `docs/security.md` shows it."""
    lines = ["| API | needs | if denied |", "| --- | --- | --- |"]
    for name, row in REQUIREMENTS.items():
        needs = "; ".join(_shown_need(need) for need in row.needs) or "nothing"
        denied = "; ".join(_shown_denial(need) for need in row.needs)
        note = f" ({row.note})" if row.note else ""
        lines.append(f"| {name} | {needs}{note} | {denied} |")
    return "\n".join(lines) + "\n"


def _shown_need(need: Need) -> str:
    operations = " or ".join(operation.word for operation in need.operations)
    return f"{operations} on {need.resource.word}"


def _shown_denial(need: Need) -> str:
    if need.scope is Scope.FILTERED:
        return "left out"
    each = "" if need.scope is Scope.WHOLE else " each"
    return f"{need.denied.name} ({int(need.denied)}){each}"


def test_the_document_shows_the_table():
    page = Path(__file__).parents[3] / "docs" / "security.md"
    assert page.read_text(encoding="utf-8").endswith(as_markdown())


def answered(key: ApiKey, version: int, body: dict[str, Any], *rights: Any) -> Any:
    """What a user with these rights is told where the handler serves everything it is given."""
    authorizer = AclAuthorizer()
    for operation, type_, name in rights:
        entry = AccessControlEntry("User:nobody", "*", operation, AclPermission.ALLOW)
        authorizer.put(ResourcePattern(type_, name), [entry])
    call = call_of(key, version, body)

    def handler(served: Call) -> dict[str, Any]:
        return {"topics": [], "results": [], "responses": [], "coordinators": []}

    response = Guard(authorizer, lambda _: None).protect({key: handler})[key](call)
    return decode_response(call.header, encode_response(call.header, response)[4:])


NEW_TOPIC = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.rule("SEC-9")
def test_messages_of_denials_are_kafkas():
    creation = {"topics": [{"name": "t", **NEW_TOPIC}], "timeout": 1, "validate_only": False}
    (topic,) = answered(ApiKey.CREATE_TOPICS, 7, creation).topics
    assert (topic.error_code, topic.error_message) == (DENIED, "Authorization failed.")
    assert topic.topic_config_error_code == DENIED
    may_see = (AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, "t")
    (topic,) = answered(ApiKey.CREATE_TOPICS, 7, creation, may_see).topics
    assert (topic.error_code, topic.topic_config_error_code) == (DENIED, ErrorCode.NONE)
    growth = {**creation, "topics": [{"name": "t", "count": 2, "assignments": None}]}
    (topic,) = answered(ApiKey.CREATE_PARTITIONS, 3, growth).results
    assert topic.error_message == "The topic authorization is failed."
    (topic,) = answered(ApiKey.DELETE_TOPICS, 5, {"topic_names": ["t"], "timeout": 1}).responses
    assert (topic.error_code, topic.error_message) == (DENIED, None)
    change = {"resource_type": 2, "resource_name": "t", "configs": []}
    changes = {"resources": [change], "validate_only": False}
    (resource,) = answered(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, changes).responses
    assert (resource.error_code, resource.error_message) == (DENIED, None)


@pytest.mark.rule("SEC-9")
def test_a_denied_reassignment_is_told_for_each_partition_too():
    partition = {"partition_index": 3, "replicas": None}
    body = {"timeout": 1, "topics": [{"name": "t", "partitions": [partition]}]}
    told = answered(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, body)
    assert told.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert told.responses[0].partitions[0].error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    body = {"timeout": 1, "topics": [{"name": "t", "partition_indexes": [3]}]}
    told = answered(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, body)
    assert told.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert told.topics[0].partitions[0].partition_index == 3


@pytest.mark.rule("SEC-9")
def test_a_denied_group_has_no_offsets_in_any_version():
    for version in (1, 2, 7):
        topics = [{"name": "t", "partition_indexes": [0]}]
        body = {"group_id": "g", "topics": topics, "require_stable": False}
        assert answered(ApiKey.OFFSET_FETCH, version, body).topics == ()
