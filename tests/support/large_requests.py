"""Requests as large as a broker takes, made from the schemas: every API, every array in it.

A request is small but for one array, whose items are repeated, or numbered so that no two are the
same, until the frame has the wanted size. Such requests are valid; what they name need not exist.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.encoding import EncodedArray, encode_parts
from klamm.protocol.codec.headers import RequestHeader, encode_request_header, framed
from klamm.protocol.codec.primitives import encode_string
from klamm.protocol.schema.fields import FIXED_FORMATS, WireField, wire_fields
from klamm.protocol.schema.lookup import message_schema
from tests.support.messages import encode_struct

#: What fields hold where zero, false, null or an empty name would end the request early.
_GIVEN: Final[Mapping[str, Any]] = {
    "validate_only": True,
    "replica_id": -1,
    "max_bytes": 1 << 20,
    "partition_max_bytes": 1 << 10,
    "max_wait": 0,
    "session_epoch": -1,
    "acks": 1,
    "timeout": 1000,
    "session_timeout": 10_000,
    "rebalance_timeout": 10_000,
    "protocol_type": "consumer",
    "generation_id": -1,
    "generation_id_or_member_epoch": -1,
    "member_id": "",
    "group_instance_id": None,
    "broker_epoch": -1,
    "controller_id": 1,
    "replication_factor": 1,
    "num_partitions": 1,
    "resource_type": 2,
    "current_leader_epoch": -1,
    "timestamp": -1,
    "leader_id": 1,
    "auth_bytes": b"",
    "records": b"",
    "error_code": 0,
}
#: Fields that name a topic; in DescribeConfigs and its like a resource.
_TOPICS: Final = frozenset({"name", "topic", "topic_name", "resource_name"})
#: Numbered items of these would become files, znodes or metadata that nobody removes.
_ONLY_REPEATED: Final = frozenset(
    {ApiKey.LEADER_AND_ISR, ApiKey.UPDATE_METADATA, ApiKey.WRITE_TXN_MARKERS}
)


@dataclass(frozen=True, slots=True)
class LargeRequest:
    """A whole frame, and the array in it that makes it large."""

    api: ApiKey
    array: str
    is_numbered: bool
    items: int
    frame: bytes

    def __str__(self) -> str:
        how = "numbered" if self.is_numbered else "repeated"
        return f"{self.api.name} {self.array} {how}"


@dataclass(frozen=True, slots=True)
class Existing:
    """What the requests name: a topic with its id, and the epoch of the cluster's controller."""

    topic: str
    topic_id: uuid.UUID
    controller_epoch: int


def large_requests(
    api: ApiKey, size: int, existing: Existing, items_max: int = 1 << 31
) -> Iterator[LargeRequest]:
    """A request of about `size` bytes for each array of the API's newest version, in both ways."""
    schema = message_schema(api, APIS[api].max_version, "request")
    for path in _arrays(schema):
        for is_numbered in (False,) if api in _ONLY_REPEATED else (False, True):
            yield _large(api, schema, path, is_numbered, size, existing, items_max)


def _arrays(schema: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for each in wire_fields(schema):
        if each.is_array and not each.is_tagged:
            yield (*above, each.name)
            if each.struct_type is not None:
                yield from _arrays(each.struct_type, (*above, each.name))


def _large(
    api: ApiKey,
    schema: Any,
    path: tuple[str, ...],
    is_numbered: bool,
    size: int,
    existing: Existing,
    items_max: int,
) -> LargeRequest:
    counts: list[int] = []

    def fill(inner: Any, left: tuple[str, ...]) -> dict[str, Any]:
        values = _values(inner, existing)
        for each in wire_fields(inner):
            if left and each.name == left[0]:
                if len(left) > 1:
                    values[each.name] = [fill(each.struct_type, left[1:])]
                else:
                    values[each.name], count = _items(
                        each, inner.__flexible__, is_numbered, size, existing, items_max
                    )
                    counts.append(count)
        return values

    header = RequestHeader(api, APIS[api].max_version, 1, "large")
    parts = [encode_request_header(header)]
    encode_parts(schema, fill(schema, path), parts.append)
    return LargeRequest(api, ".".join(path), is_numbered, counts[0], framed(parts))


def _items(
    each: WireField,
    is_flexible: bool,
    is_numbered: bool,
    size: int,
    existing: Existing,
    items_max: int,
) -> tuple[Sequence[Any] | EncodedArray, int]:
    """The items that fill `size` bytes, and their number."""
    if each.struct_type is not None:
        values = _values(each.struct_type, existing)
        name = _varied(each.struct_type)
        if is_numbered and name is not None:
            numbered = isinstance(values[name], str)
            first = encode_struct(each.struct_type, values | {name: "t100000" if numbered else 0})
            count = min(size // len(first), items_max)
            made = b"".join(
                encode_struct(
                    each.struct_type, values | {name: f"t{number}" if numbered else number}
                )
                for number in range(count)
            )
            return EncodedArray(count, [made]), count
        item = encode_struct(each.struct_type, values)
        count = min(size // len(item), items_max)
        return EncodedArray(count, [item * count]), count
    if each.kafka_type in FIXED_FORMATS:
        count = min(size // 4, items_max)
        if is_numbered and each.kafka_type != "int8":
            return range(count), count
        return [0] * count, count
    count = min(size // (len(existing.topic) + 1), items_max)
    if is_numbered:
        texts = (encode_string(f"t{number}", is_flexible) for number in range(count))
        return EncodedArray(count, [b"".join(texts)]), count
    return EncodedArray(count, [encode_string(existing.topic, is_flexible) * count]), count


def _varied(struct_type: Any) -> str | None:
    """The field by which numbered items differ: a name, else a number."""
    fields = [each for each in wire_fields(struct_type) if not (each.is_array or each.is_tagged)]
    for kafka_type in ("string", "int32"):
        for each in fields:
            if each.kafka_type == kafka_type:
                return each.name
    return None


def _values(schema: Any, existing: Existing) -> dict[str, Any]:
    return {each.name: _value(each, existing) for each in wire_fields(schema) if not each.is_tagged}


def _value(each: WireField, existing: Existing) -> Any:
    if each.is_array:
        # One item, so that what is below the large array, or beside it, is not skipped.
        if each.struct_type is not None:
            return [_values(each.struct_type, existing)]
        if each.kafka_type == "string":
            return [existing.topic]
        return [0] if each.kafka_type in FIXED_FORMATS else []
    if each.struct_type is not None:
        return _values(each.struct_type, existing)
    if each.name == "controller_epoch":
        return existing.controller_epoch
    if each.name in _TOPICS and each.kafka_type == "string":
        return existing.topic
    if each.name in _GIVEN:
        return _GIVEN[each.name]
    if each.kafka_type == "uuid":
        return existing.topic_id
    if each.kafka_type == "string":
        return "x"
    return 0 if each.kafka_type in FIXED_FORMATS else b""
