"""Who changed what: a record in the history for each administrative request, refused ones too.

A record names the principal, the address and the client id of the requester, what the request was
about, and the errors in its response. Secrets are not among it: of credentials only the user and
the mechanism are kept, and of settings of brokers only their names.
"""

import inspect
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from itertools import chain, islice
from typing import Any, Final

from klamm.broker.handlers.dispatch import Call, EncodedResponse, Handler, Result, is_large
from klamm.broker.security.denials import decoded_again
from klamm.history.broker_history import BrokerHistory
from klamm.names import counted
from klamm.protocol.acls import AclOperation, AclPermission, ResourceType
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.large import dismantle
from klamm.protocol.codes import ErrorCode
from klamm.slices import aside

_TOPIC: Final = 2
_CONFIG_RESOURCES: Final = {_TOPIC: "topic", 4: "broker", 8: "broker logger"}
_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
_ELECTIONS: Final = {0: "preferred", 1: "unclean"}
_PER_NAME: Final = ("name", "topic", "resource_name", "group_id", "user", "feature")
_PER_INDEX: Final = ("partition_index", "partition_id")
#: A record names at most this many resources and errors, and counts the rest: no thread of a broker
#: may be kept from running while one very large record is encoded.
_NAMED_MAX: Final = 10_000

#: The same for what is wanted of one resource.
_LISTED_MAX: Final = 1000

#: What a request is about: the type and the name of each resource, and what is wanted of it.
Subject = tuple[str, str, str]


def _listed(separator: str, items: Iterable[Any]) -> str:
    """The items in a row: the first of them, and how many more there are."""
    left = iter(items)
    shown = list(map(str, islice(left, _LISTED_MAX)))
    if more := sum(1 for _ in left):
        shown.append(f"and {more} more")
    return separator.join(shown)


def _topics_created(body: Any) -> Iterator[Subject]:
    for topic in body.topics:
        wanted = [
            counted(topic.num_partitions, "partition"),
            f"replication factor {topic.replication_factor}",
        ]
        if topic.assignments:
            wanted = [f"{counted(len(topic.assignments), 'partition')} placed by hand"]
        configs = (f"{each.name}={each.value}" for each in topic.configs)
        yield "topic", topic.name, _listed(", ", chain(wanted, configs))


def _topics_deleted(body: Any) -> Iterator[Subject]:
    for name in getattr(body, "topic_names", ()):
        yield "topic", name, ""
    for topic in getattr(body, "topics", ()):
        yield "topic", topic.name or str(topic.topic_id), ""


def _partitions_created(body: Any) -> Iterator[Subject]:
    for topic in body.topics:
        yield "topic", topic.name, counted(topic.count, "partition")


def _records_deleted(body: Any) -> Iterator[Subject]:
    for topic in body.topics:
        wanted = (f"{each.partition_index} before {each.offset}" for each in topic.partitions)
        yield "topic", topic.name, _listed(", ", wanted)


def _configs_altered(body: Any) -> Iterator[Subject]:
    for resource in body.resources:
        is_topic = resource.resource_type == _TOPIC
        wanted = (
            f"{each.name}={each.value}" if is_topic else each.name for each in resource.configs
        )
        kind = _CONFIG_RESOURCES.get(resource.resource_type, str(resource.resource_type))
        yield kind, resource.resource_name, _listed(", ", wanted)


def _partitions_reassigned(body: Any) -> Iterator[Subject]:
    for topic in body.topics:
        wanted = (
            f"{each.partition_index} to "
            + ("where it was" if each.replicas is None else _listed(",", each.replicas))
            for each in topic.partitions
        )
        yield "topic", topic.name, _listed("; ", wanted)


def _leaders_elected(body: Any) -> Iterator[Subject]:
    kind = _ELECTIONS.get(getattr(body, "election_type", 0), "unknown") + " election"
    if body.topic_partitions is None:
        yield "cluster", "", f"{kind} of all partitions"
    for topic in body.topic_partitions or ():
        yield "topic", topic.topic, f"{kind} of {_listed(',', topic.partitions)}"


def _acls_created(body: Any) -> Iterator[Subject]:
    for each in body.creations:
        what = (each.permission_type, each.operation, each.principal, each.host)
        yield _resource(each.resource_type), each.resource_name, _rule(*what)


def _acls_deleted(body: Any) -> Iterator[Subject]:
    for each in body.filters:
        what = (each.permission_type, each.operation, each.principal_filter, each.host_filter)
        kind = _resource(each.resource_type_filter)
        yield kind, each.resource_name_filter or "", _rule(*what)


def _resource(code: int) -> str:
    kinds = ResourceType._value2member_map_
    return str(getattr(kinds.get(code), "name", code)).lower().replace("_", " ")


def _rule(permission: int, operation: int, principal: str | None, host: str | None) -> str:
    said = AclPermission._value2member_map_.get(permission)
    done = AclOperation._value2member_map_.get(operation)
    return " ".join(
        str(each)
        for each in (
            getattr(said, "name", permission),
            principal or "anybody",
            f"at {host or 'any address'}:",
            getattr(done, "name", operation),
        )
    )


def _quotas_altered(body: Any) -> Iterator[Subject]:
    for entry in body.entries:
        entities = (
            f"{each.entity_type} {'(default)' if each.entity_name is None else each.entity_name}"
            for each in entry.entity
        )
        wanted = (f"{op.key} {'removed' if op.remove else f'= {op.value:g}'}" for op in entry.ops)
        yield "quota", _listed(", ", entities), _listed(", ", wanted)


def _users_altered(body: Any) -> Iterator[Subject]:
    for each in body.upsertions:
        yield "user", each.name, f"{_MECHANISMS.get(each.mechanism, each.mechanism)} set"
    for each in body.deletions:
        yield "user", each.name, f"{_MECHANISMS.get(each.mechanism, each.mechanism)} removed"


def _groups_deleted(body: Any) -> Iterator[Subject]:
    for name in body.groups_names:
        yield "group", name, ""


def _offsets_deleted(body: Any) -> Iterator[Subject]:
    yield "group", body.group_id, _listed(", ", (topic.name for topic in body.topics))


def _features_updated(body: Any) -> Iterator[Subject]:
    for each in body.feature_updates:
        yield "feature", each.feature, f"level {each.max_version_level}"


def _markers_written(body: Any) -> Iterator[Subject]:
    for marker in body.markers:
        outcome = "commit" if marker.transaction_result else "abort"
        whose = f"{outcome} of producer {marker.producer_id} with epoch {marker.producer_epoch}"
        for topic in marker.topics:
            yield "topic", topic.name, f"{whose} on {_listed(',', topic.partition_indexes)}"


#: The requests that change a cluster, and what each of them is about.
ADMINISTRATIVE: Final[Mapping[ApiKey, Callable[[Any], Iterator[Subject]]]] = {
    ApiKey.CREATE_TOPICS: _topics_created,
    ApiKey.DELETE_TOPICS: _topics_deleted,
    ApiKey.DELETE_RECORDS: _records_deleted,
    ApiKey.CREATE_ACLS: _acls_created,
    ApiKey.DELETE_ACLS: _acls_deleted,
    ApiKey.ALTER_CONFIGS: _configs_altered,
    ApiKey.CREATE_PARTITIONS: _partitions_created,
    ApiKey.DELETE_GROUPS: _groups_deleted,
    ApiKey.ELECT_LEADERS: _leaders_elected,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _configs_altered,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _partitions_reassigned,
    ApiKey.OFFSET_DELETE: _offsets_deleted,
    ApiKey.ALTER_CLIENT_QUOTAS: _quotas_altered,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _users_altered,
    ApiKey.UPDATE_FEATURES: _features_updated,
    ApiKey.WRITE_TXN_MARKERS: _markers_written,
}
#: How the coordinators of klamm and of Apache Kafka call themselves when they send markers.
_COORDINATOR: Final = re.compile(r"\d+|broker-\d+-txn-marker-sender")


def noted(
    handlers: Mapping[ApiKey, Handler], history: BrokerHistory, inter_broker_listener: str
) -> dict[ApiKey, Handler]:
    """The same handlers; those of administrative requests leave a record in the history.

    Markers that coordinators send are no administration: those of clients are.
    """

    def is_administration(call: Call) -> bool:
        return (
            call.header.api_key != ApiKey.WRITE_TXN_MARKERS
            or call.connection.listener != inter_broker_listener
            or _COORDINATOR.fullmatch(call.header.client_id) is None
        )

    return {
        key: _noting(handler, history, is_administration) if key in ADMINISTRATIVE else handler
        for key, handler in handlers.items()
    }


def _noting(
    handler: Handler, history: BrokerHistory, is_administration: Callable[[Call], bool]
) -> Handler:
    def handle(call: Call) -> Result | Awaitable[Result]:
        if not is_administration(call):
            return handler(call)
        at = time.time()
        result = handler(call)
        if inspect.isawaitable(result):
            return _note_later(call, result, at)
        if is_large(call, result):
            return _note_large(call, result, at)
        history.note(partial(_described, call, result), at)
        return result

    async def _note_later(call: Call, result: Awaitable[Result], at: float) -> Result:
        response = await result
        if is_large(call, response):
            return await _note_large(call, response, at)
        history.note(partial(_described, call, response), at)
        return response

    async def _note_large(call: Call, response: Result, at: float) -> Result:
        # Now, because a large request is taken apart when it is answered.
        described = await aside(_described, call, response)
        history.note(lambda: described, at)
        return response

    return handle


def _described(call: Call, result: Result) -> dict[str, Any]:
    """The fields of a record. Slow: not for the event loop."""
    connection, header = call.connection, call.header
    subjects = ADMINISTRATIVE[ApiKey(header.api_key)](call.body)
    named = [
        {"type": kind, "name": name, "wanted": wanted}
        for kind, name, wanted in islice(subjects, _NAMED_MAX)
    ]
    refused = []
    if not isinstance(result, EncodedResponse):
        refused = list(islice(_errors(result, ""), _NAMED_MAX))
    elif result.parts is not None:
        response = decoded_again(call, result)
        refused = list(islice(_errors(response, ""), _NAMED_MAX))
        dismantle(response)
    return {
        "kind": "request",
        "api": APIS[header.api_key].name,
        "principal": connection.principal,
        "address": connection.client_host,
        "client_id": header.client_id,
        "listener": connection.listener,
        "is_trial": bool(getattr(call.body, "validate_only", False)),
        "subjects": named,
        "errors": refused,
        "left_out": sum(1 for _ in subjects),
    }


def _errors(response: Any, name: str) -> Iterator[dict[str, str]]:
    """Each error in a response, or in a part of it, with the name of what it is about."""
    values = response if isinstance(response, Mapping) else _values(response)
    name = next((str(values[each]) for each in _PER_NAME if values.get(each)), name)
    index = next((values[each] for each in _PER_INDEX if each in values), None)
    about = name if index is None else f"{name}-{index}"
    if code := values.get("error_code", 0):
        yield {"name": about, "error": ErrorCode.of(code).name}
    for value in values.values():
        if isinstance(value, list | tuple) and value and _has_fields(value[0]):
            for each in value:
                yield from _errors(each, name)


def _has_fields(value: Any) -> bool:
    return isinstance(value, Mapping) or is_dataclass(value)


def _values(message: Any) -> dict[str, Any]:
    kind: Any = type(message)
    return {name: getattr(message, name) for name in _field_names(kind)}


@cache
def _field_names(kind: Any) -> list[str]:
    return [each.name for each in fields(kind)]
