"""Errors, delays and lost connections on demand: the broker's side of `Cluster.inject`.

A fault names an API, what becomes of its requests, and which requests it means. The wrapper around
the handlers decides what a fault means for one request; whether it may take effect once more is
decided by `claim`, because all brokers of a cluster share one count. Only a broker that a local
cluster has started with a link for faults (`klamm.node.fault_link`) has the wrapper at all.

The cluster's own requests are spared: those of followers, controllers and coordinators, of the
history, and of the `Cluster` object itself. Otherwise a fault of Fetch would stop replication.
"""

import asyncio
import dataclasses
import difflib
import inspect
import os
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, Self

from klamm.broker.handlers.dispatch import (
    Body,
    Call,
    EncodedResponse,
    Handler,
    Interceptor,
    Result,
)
from klamm.broker.security.denials import response_values, with_body
from klamm.errors import ConfigError
from klamm.net.server import CLOSE, CloseConnection
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.failures import failure, failure_of_items
from klamm.protocol.codec.frames import decode_response
from klamm.protocol.codes import ErrorCode
from klamm.protocol.fast.fetch import (
    FetchPartitionResponse,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
)
from klamm.protocol.fast.fetch_response import encode_fetch_response

#: The client id of the requests with which a local cluster looks after itself.
CLUSTER_CLIENT_ID: Final = "klamm-cluster"
_OF_THE_CLUSTER: Final = re.compile(
    rf"\d+|broker-\d+-fetcher-\d+|klamm-history-\d+|{CLUSTER_CLIENT_ID}"
)
_SIZE_BYTES: Final = 4
_TOPIC_RESOURCE: Final = 2
_FIRST_FETCH_WITH_TOP_LEVEL_ERROR: Final = 7
_NO_SESSION: Final = 0
_SESSIONLESS_EPOCH: Final = -1

#: APIs that only brokers and controllers use among themselves.
_BETWEEN_BROKERS: Final = frozenset(
    {
        ApiKey.LEADER_AND_ISR,
        ApiKey.STOP_REPLICA,
        ApiKey.UPDATE_METADATA,
        ApiKey.CONTROLLED_SHUTDOWN,
        ApiKey.ALTER_PARTITION,
        ApiKey.UPDATE_FEATURES,
        ApiKey.ALLOCATE_PRODUCER_IDS,
    }
)
#: Errors that concern a request as a whole: its connection, session, coordinator or controller.
#: They stand at the top of a response that has a place for them there.
_ABOUT_THE_REQUEST: Final = frozenset(
    {
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)


class _Items(NamedTuple):
    """The fields with the topics and partitions of a request, and with the response's results."""

    topics: str
    #: The attribute with a topic's name; empty if the item is the name.
    name: str
    results: str
    partitions: str = ""
    #: The attribute with a partition's index; empty if the item is the index.
    number: str = ""


_ITEMS: Final[Mapping[int, _Items]] = {
    ApiKey.PRODUCE: _Items("topics", "name", "responses", "partitions", "partition"),
    ApiKey.FETCH: _Items("topics", "name", "responses", "partitions", "partition"),
    ApiKey.LIST_OFFSETS: _Items("topics", "name", "topics", "partitions", "partition_index"),
    ApiKey.OFFSET_COMMIT: _Items("topics", "name", "topics", "partitions", "partition_index"),
    ApiKey.TXN_OFFSET_COMMIT: _Items("topics", "name", "topics", "partitions", "partition_index"),
    ApiKey.OFFSET_DELETE: _Items("topics", "name", "topics", "partitions", "partition_index"),
    ApiKey.DELETE_RECORDS: _Items("topics", "name", "topics", "partitions", "partition_index"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _Items("topics", "topic", "topics", "partitions", "partition"),
    ApiKey.ADD_PARTITIONS_TO_TXN: _Items(
        "v3_and_below_topics", "name", "results_by_topic_v3_and_below", "partitions"
    ),
    ApiKey.DESCRIBE_PRODUCERS: _Items("topics", "name", "topics", "partition_indexes"),
    ApiKey.ELECT_LEADERS: _Items(
        "topic_partitions", "topic", "replica_election_results", "partitions"
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _Items(
        "topics", "name", "responses", "partitions", "partition_index"
    ),
    ApiKey.CREATE_TOPICS: _Items("topics", "name", "topics"),
    ApiKey.DELETE_TOPICS: _Items("topics", "name", "responses"),
    ApiKey.CREATE_PARTITIONS: _Items("topics", "name", "results"),
    ApiKey.DESCRIBE_CONFIGS: _Items("resources", "resource_name", "results"),
    ApiKey.ALTER_CONFIGS: _Items("resources", "resource_name", "responses"),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _Items("resources", "resource_name", "responses"),
}
#: Up to DeleteTopics version 5.
_NAMES_TO_DELETE: Final = _Items("topic_names", "", "responses")
#: APIs whose real response is needed, because a request for everything names no topic.
_FROM_THE_RESPONSE: Final = frozenset({ApiKey.METADATA, ApiKey.OFFSET_FETCH})
_WITH_PARTITIONS: Final = frozenset(
    {key for key, items in _ITEMS.items() if items.partitions} | _FROM_THE_RESPONSE
)
#: How a request names its groups or transactional ids, one or several.
_GROUP_FIELDS: Final = ("group_id", "groups", "groups_names", "key", "coordinator_keys")
_WITH_GROUPS: Final = frozenset(
    {
        ApiKey.OFFSET_COMMIT,
        ApiKey.OFFSET_FETCH,
        ApiKey.OFFSET_DELETE,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.FIND_COORDINATOR,
        ApiKey.JOIN_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.DELETE_GROUPS,
    }
)


@dataclass(frozen=True, slots=True)
class Fault:
    """An error, delay or disconnection for requests of one API, or for some of them."""

    id: int
    api: ApiKey
    error: ErrorCode | None = None
    delay_ms: float = 0
    disconnect: bool = False
    topic: str | None = None
    partition: int | None = None
    group: str | None = None
    client_id: str | None = None

    @classmethod
    def parse(
        cls,
        id: int,
        *,
        api: str,
        error: str | None,
        delay_ms: float,
        disconnect: bool,
        topic: str | None,
        partition: int | None,
        group: str | None,
        client_id: str | None,
    ) -> Self:
        """A fault as a person writes it; ConfigError if it could never take effect."""
        key = _api(api)
        name = APIS[key].name
        code = None if error is None else _error(error)
        if code is None and not disconnect and not delay_ms:
            raise ConfigError(f"a fault of {name} needs error=, delay_ms= or disconnect=True")
        if code is not None and disconnect:
            raise ConfigError("error= and disconnect=True exclude each other: no response is sent")
        if not isinstance(delay_ms, int | float) or delay_ms < 0:
            raise ConfigError(f"delay_ms={delay_ms!r} is not a number of milliseconds")
        if topic is not None and key not in _ITEMS.keys() | _FROM_THE_RESPONSE:
            raise ConfigError(f"topic={topic!r}: {name} requests name no topics")
        if partition is not None and (topic is None or key not in _WITH_PARTITIONS):
            raise ConfigError(
                f"partition={partition}: it needs topic=, and an API that names partitions"
            )
        if group is not None and key not in _WITH_GROUPS:
            raise ConfigError(f"group={group!r}: {name} requests name no groups")
        return cls(id, key, code, delay_ms, disconnect, topic, partition, group, client_id)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """A fault from the link; errors are numbers there."""
        error = values["error"]
        return cls(
            **{
                **values,
                "api": ApiKey(values["api"]),
                "error": None if error is None else ErrorCode.of(error),
            }
        )

    def to_json(self) -> dict[str, Any]:
        """The fault for the link."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        what = [] if self.error is None else [self.error.name]
        what += [f"{self.delay_ms:g} ms late"] if self.delay_ms else []
        what += ["disconnect"] if self.disconnect else []
        only = [
            f"{name} {value}"
            for name, value in (
                ("topic", self.topic),
                ("partition", self.partition),
                ("group", self.group),
                ("client", self.client_id),
            )
            if value is not None
        ]
        return f"{APIS[self.api].name}: {', '.join(what)}" + (
            f" ({', '.join(only)})" if only else ""
        )


def _api(name: str) -> ApiKey:
    by_name = {APIS[key].name.lower(): ApiKey(key) for key in APIS}
    key = by_name.get(str(name).replace("_", "").lower())
    if key is None:
        known = [api.name for api in APIS.values() if api.key not in _BETWEEN_BROKERS]
        raise ConfigError(f"api={name!r} is not a Kafka API{_nearest(str(name), known)}")
    if key in _BETWEEN_BROKERS:
        raise ConfigError(f"api={name!r}: only brokers send {APIS[key].name}, clients do not")
    return key


def _error(name: str) -> ErrorCode:
    code = ErrorCode.__members__.get(str(getattr(name, "name", name)).upper())
    if code is None or code is ErrorCode.NONE:
        known = [each.name for each in ErrorCode if each is not ErrorCode.NONE]
        raise ConfigError(f"error={name!r} is not one of Kafka's errors{_nearest(name, known)}")
    return code


def _nearest(name: str, known: Sequence[str]) -> str:
    lowered = {each.lower(): each for each in known}
    near = difflib.get_close_matches(str(name).lower(), lowered, 1)
    return f"; do you mean {lowered[near[0]]}?" if near else ""


#: Asks whether a fault may take effect once more: the fault's id, and the client's.
Claim = Callable[[int, str], Awaitable[bool]]


#: Hands the requests of some APIs to an interceptor: `Dispatcher.intercept`.
Intercept = Callable[[Collection[int], Interceptor], None]


class FaultInjection:
    """The faults that a broker has been told of. Only APIs with a fault are intercepted."""

    def __init__(
        self, claim: Claim, topic_name: Callable[[Any], str | None], intercept: Intercept
    ) -> None:
        """`topic_name` gives the name of a topic id, or None for one that is not known."""
        self._claim = claim
        self._topic_name = topic_name
        self._intercept = intercept
        self._faults: dict[int, list[Fault]] = {}

    def use(self, faults: Iterable[Fault]) -> None:
        """Replace the faults in force."""
        self._faults = {}
        for fault in faults:
            self._faults.setdefault(fault.api, []).append(fault)
        self._intercept(frozenset(self._faults), self.handle)

    def handle(self, handler: Handler, call: Call) -> Result | Awaitable[Result]:
        """Serve a request through the faults that mean it."""
        for fault in reversed(self._faults.get(call.header.api_key, ())):
            if _is_meant(fault, call):
                handler = partial(self._through, fault, handler)
        return handler(call)

    async def _through(self, fault: Fault, handler: Handler, call: Call) -> Result:
        """Serve a request as one fault has it."""
        key = call.header.api_key
        is_for_items = fault.topic is not None or _is_for_items(fault, call)
        if key in _FROM_THE_RESPONSE and is_for_items:
            return await self._change_response(fault, handler, call)
        part = _Part(None, call.body)
        if key in _ITEMS and is_for_items:
            if key == ApiKey.FETCH:
                body: FetchRequest = call.body
                if body.session_epoch > 0:
                    # Such a request names only what has changed. A client that is told that its
                    # session is gone names everything again, as when the broker runs out of them.
                    return _encode_fetch(
                        call, FetchResponse([], ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
                    )
                call = call._replace(body=_sessionless(body))
            part = self._split(fault, call)
            if part.meant is None and not (fault.topic is None and _is_for_all(call)):
                return await _result(handler(call))
        if not await self._claim(fault.id, call.header.client_id or ""):
            return await _result(handler(call))
        await asyncio.sleep(fault.delay_ms / 1000)
        if fault.disconnect:
            raise CloseConnection(f"as injected: {fault}")
        if fault.error is None:
            return await _result(handler(call))
        if part.meant is None:
            return _whole(call, fault.error)
        return await _in_part(call, fault.error, part, handler)

    def _split(self, fault: Fault, call: Call) -> "_Part":
        """The request in two: what the fault means, and the rest."""
        items = _items(call)
        meant, rest = [], []
        for topic in getattr(call.body, items.topics) or ():
            if fault.topic is not None and self._name(topic, items) != fault.topic:
                rest.append(topic)
            elif fault.partition is None or not items.partitions:
                meant.append(topic)
            else:
                partitions = getattr(topic, items.partitions)
                chosen = [p for p in partitions if _index(p, items) == fault.partition]
                others = [p for p in partitions if _index(p, items) != fault.partition]
                if chosen:
                    meant.append(_changed(topic, items.partitions, chosen))
                if others:
                    rest.append(_changed(topic, items.partitions, others))
        return _Part(
            _changed(call.body, items.topics, meant) if meant else None,
            _changed(call.body, items.topics, rest) if rest else None,
        )

    def _name(self, topic: Any, items: _Items) -> str | None:
        if not items.name:
            return str(topic)
        if getattr(topic, "resource_type", _TOPIC_RESOURCE) != _TOPIC_RESOURCE:
            return None
        name: str | None = getattr(topic, items.name, None)
        topic_id = getattr(topic, "topic_id", None)
        return self._topic_name(topic_id) if name is None and topic_id is not None else name

    async def _change_response(self, fault: Fault, handler: Handler, call: Call) -> Result:
        """Serve the request, and put the error where its response names what the fault means."""
        result = await _result(handler(call))
        values = response_values(call, result)
        changed, is_meant = _with_error(values, fault)
        if not is_meant or not await self._claim(fault.id, call.header.client_id or ""):
            return result
        await asyncio.sleep(fault.delay_ms / 1000)
        if fault.disconnect:
            raise CloseConnection(f"as injected: {fault}")
        return result if fault.error is None else changed


class _Part(NamedTuple):
    """A request's body in two; None for a part without topics."""

    meant: Any
    rest: Any


def _is_meant(fault: Fault, call: Call) -> bool:
    """Whether a fault means a request, as far as its topics do not matter."""
    client_id = call.header.client_id or ""
    if fault.client_id is not None:
        if client_id != fault.client_id:
            return False
    elif _OF_THE_CLUSTER.fullmatch(client_id):
        return False
    body = call.body
    if body is None:  # ApiVersions in a version that does not exist
        return False
    if call.header.api_key == ApiKey.FETCH and body.replica_id >= 0:
        return False
    return fault.group is None or fault.group in _groups(body)


def _groups(body: Any) -> set[str]:
    found: set[str] = set()
    for field in _GROUP_FIELDS:
        value = getattr(body, field, None)
        if isinstance(value, str):
            found.add(value)
        elif value is not None:
            found.update(each if isinstance(each, str) else each.group_id for each in value)
    return found


def _is_for_items(fault: Fault, call: Call) -> bool:
    """Whether the error of a fault for the whole API belongs to each topic or partition."""
    if fault.error is None:
        return False
    key, version = call.header.api_key, call.header.api_version
    has_top = key != ApiKey.METADATA and (
        key != ApiKey.FETCH or version >= _FIRST_FETCH_WITH_TOP_LEVEL_ERROR
    )
    return not has_top or fault.error not in _ABOUT_THE_REQUEST


def _is_for_all(call: Call) -> bool:
    """Whether the request means all topics by naming none, as ElectLeaders does."""
    return getattr(call.body, _items(call).topics) is None


def _items(call: Call) -> _Items:
    if call.header.api_key == ApiKey.DELETE_TOPICS and not hasattr(call.body, "topics"):
        return _NAMES_TO_DELETE
    return _ITEMS[call.header.api_key]


def _index(partition: Any, items: _Items) -> int:
    return int(getattr(partition, items.number) if items.number else partition)


def _changed(message: Any, field: str, items: list[Any]) -> Any:
    if isinstance(message, tuple):  # the forms that Produce and Fetch have of their own
        return message._replace(**{field: items})  # type: ignore[attr-defined]
    return dataclasses.replace(message, **{field: tuple(items)})


def _whole(call: Call, code: ErrorCode) -> Result:
    """The response to a request that fails as a whole."""
    key = call.header.api_key
    if key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE):
        call.connection.hold = CLOSE
    if key == ApiKey.FETCH:
        return _encode_fetch(call, FetchResponse([], code))
    return _told(failure(call.header, call.body, code), code)


async def _in_part(call: Call, code: ErrorCode, part: _Part, handler: Handler) -> Result:
    """The error for one part of the request; the other is served."""
    if call.header.api_key == ApiKey.FETCH:
        return await _fetch_in_part(call, code, part, handler)
    told = _told(failure_of_items(call.header, part.meant, code), code)
    if part.rest is None:
        return told
    items = _items(call)
    if call.header.api_key == ApiKey.ADD_PARTITIONS_TO_TXN:
        # A transaction takes all of them or none.
        others: Body = _told(
            failure_of_items(call.header, part.rest, ErrorCode.OPERATION_NOT_ATTEMPTED), code
        )
    else:
        served = await _result(handler(_with_rest(call, items, part.rest)))
        others = response_values(call, served)
    return {**others, items.results: [*others.get(items.results, ()), *told[items.results]]}


def _with_rest(call: Call, items: _Items, rest: Any) -> Call:
    if isinstance(rest, tuple):
        return call._replace(body=rest)
    return with_body(call, **{items.topics: getattr(rest, items.topics)})


def _told(values: Body | None, code: ErrorCode) -> Body:
    if values is None:
        # As Kafka does: a producer that wants no response notices that its connection is gone.
        raise CloseConnection(f"as injected: {code.name}, for a request without a response")
    return values


def _sessionless(body: FetchRequest) -> FetchRequest:
    return body._replace(session_id=_NO_SESSION, session_epoch=_SESSIONLESS_EPOCH)


async def _fetch_in_part(call: Call, code: ErrorCode, part: _Part, handler: Handler) -> Result:
    served = FetchResponse([])
    if part.rest is not None:
        # Without records at hand, the error must not wait for them.
        rest = part.rest._replace(max_wait_ms=0)
        served = _decode_fetch(call, await _result(handler(call._replace(body=rest))))
    failed = [
        FetchTopicResponse(
            topic.name,
            topic.topic_id,
            [FetchPartitionResponse(each.partition, code) for each in topic.partitions],
        )
        for topic in part.meant.topics
    ]
    return _encode_fetch(call, served._replace(topics=[*served.topics, *failed]), code)


def _decode_fetch(call: Call, result: Result) -> FetchResponse:
    assert isinstance(result, EncodedResponse)
    frame = b"".join(
        part
        if isinstance(part, bytes | memoryview)
        else os.pread(part.fileno(), part.size, part.position)
        for part in result.parts or ()
    )
    response: FetchResponse = decode_response(call.header, memoryview(frame)[_SIZE_BYTES:])
    return response


def _encode_fetch(call: Call, response: FetchResponse, code: ErrorCode | None = None) -> Result:
    parts = [each for each in encode_fetch_response(call.header, response) if type(each) is bytes]
    return EncodedResponse(parts, [response.error_code or code or ErrorCode.NONE])


def _with_error(values: dict[str, Any], fault: Fault) -> tuple[Body, bool]:
    """A response of Metadata or OffsetFetch with the fault's error in it, and whether it fits."""
    code = ErrorCode.NONE if fault.error is None else fault.error
    if "groups" in values:
        groups = [_with_error(group, fault) for group in values["groups"]]
        return {**values, "groups": [each for each, _ in groups]}, any(fit for _, fit in groups)
    topics, is_meant = [], False
    for topic in values["topics"]:
        if fault.topic not in (None, topic["name"]):
            topics.append(topic)
            continue
        is_metadata = "brokers" in values
        if fault.partition is None and is_metadata:
            topics.append({**topic, "error_code": code, "partitions": []})
            is_meant = True
            continue
        partitions = []
        for each in topic["partitions"]:
            if fault.partition in (None, each["partition_index"]):
                is_meant = True
                each = {**each, "error_code": code, **_NOTHING_KNOWN[is_metadata]}
            partitions.append(each)
        topics.append({**topic, "partitions": partitions})
    return {**values, "topics": topics}, is_meant


#: Beside the error of a partition, by whether it stands in a response of Metadata.
_NOTHING_KNOWN: Final[Mapping[bool, Body]] = {
    False: {"committed_offset": -1, "committed_leader_epoch": -1, "metadata": ""},
    True: {"leader_id": -1},
}


async def _result(responding: Result | Awaitable[Result]) -> Result:
    return await responding if inspect.isawaitable(responding) else responding
