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


def _named(body: Any, name: str) -> list[Any]:
    """What the handler was given of the lists that have to be allowed item by item."""
    lists = {
        "OffsetFetch": ("groups",),
        "FindCoordinator": ("coordinator_keys",),
        "DescribeConfigs": ("resources",),
        "AlterConfigs": ("resources",),
        "IncrementalAlterConfigs": ("resources",),
        "CreateTopics": ("topics",),
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
