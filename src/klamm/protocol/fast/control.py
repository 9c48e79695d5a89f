"""The controller's requests, encoded from columns.

After a failover the controller sends every broker the state of every partition. Rows whose lists
have the same lengths have the same layout on the wire, so a numpy dtype describes them and numpy
writes them all at once. The layouts come from the declarations that all messages come from
(`klamm.protocol.schema`).

Measured (`python -m bench protocol`): LeaderAndIsr of 100,000 partitions in 11 ms, UpdateMetadata
in 6 ms; with lists of different lengths 50 to 60 ms. The general encoder takes seconds.

This module needs numpy, which the broker's process does not load: only the controller imports it.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from klamm.errors import RemoteProtocolError
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.encoding import EncodedArray, Values, encode_parts
from klamm.protocol.codec.frames import decode_response
from klamm.protocol.codec.headers import (
    RequestHeader,
    decode_response_header,
    encode_request_header,
)
from klamm.protocol.codec.primitives import Cursor, encode_count, encode_string
from klamm.protocol.schema.fields import FIXED_FORMATS, WireField, wire_fields
from klamm.protocol.schema.lookup import message_schema

I8: TypeAlias = NDArray[np.int8]
I32: TypeAlias = NDArray[np.int32]
I64: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]
Columns: TypeAlias = Mapping[str, NDArray[Any]]

_PADDING: Final = -1
_NO_UUID: Final = bytes(16)
_INT16: Final = struct.Struct(">h")
_INT64: Final = struct.Struct(">q")
_SIZE: Final = struct.Struct(">i")

_DTYPES: Final = {"bool": "?", "int8": "i1", "int32": ">i4"}


class RequestTopics(NamedTuple):
    """The topics of a request: topic `i` owns the rows `bounds[i]:bounds[i + 1]`."""

    names: Sequence[str]
    ids: Sequence[UUID | None]
    bounds: I64


@dataclass(frozen=True, slots=True, eq=False)
class PartitionStates:
    """One row for each partition, those of a topic together.

    Lists of brokers are padded with -1 on the right. LeaderAndIsr does not look at `offline`, and
    UpdateMetadata does not look at the last four.
    """

    partition: I32
    controller_epoch: I32
    leader: I32
    leader_epoch: I32
    isr: I32
    partition_epoch: I32
    replicas: I32
    offline: I32
    adding: I32
    removing: I32
    is_new: Mask
    recovery: I8


@dataclass(frozen=True, slots=True, eq=False)
class StoppedReplicas:
    """One row for each replica that a broker is to stop."""

    partition: I32
    leader_epoch: I32
    is_deleted: Mask


class ControlRequest(NamedTuple):
    """A request that is encoded but for what differs from broker to broker and from try to try."""

    api_key: ApiKey
    api_version: int
    head: bytes  # the body up to the broker epoch
    tail: memoryview  # and after it
    has_broker_epoch: bool

    def chunks(self, header: RequestHeader, broker_epoch: int) -> list[bytes | memoryview]:
        """The whole frame, size first. All brokers share the long chunk."""
        front = encode_request_header(header) + self.head
        if self.has_broker_epoch:
            front += _INT64.pack(broker_epoch)
        return [_SIZE.pack(len(front) + len(self.tail)) + front, self.tail]


def encode_leader_and_isr(
    version: int,
    topics: RequestTopics,
    states: PartitionStates,
    *,
    controller_id: int,
    controller_epoch: int,
    live_leaders: Sequence[Values],
) -> ControlRequest:
    """LeaderAndIsr; `live_leaders` are mappings of broker_id, host_name and port."""
    columns = {
        "partition_index": states.partition,
        "controller_epoch": states.controller_epoch,
        "leader": states.leader,
        "leader_epoch": states.leader_epoch,
        "isr": states.isr,
        "partition_epoch": states.partition_epoch,
        "replicas": states.replicas,
        "adding_replicas": states.adding,
        "removing_replicas": states.removing,
        "is_new": states.is_new,
        "leader_recovery_state": states.recovery,
    }
    values = {
        "controller_id": controller_id,
        "controller_epoch": controller_epoch,
        "live_leaders": live_leaders,
    }
    return _encode(ApiKey.LEADER_AND_ISR, version, values, topics, columns)


def encode_update_metadata(
    version: int,
    topics: RequestTopics,
    states: PartitionStates,
    *,
    controller_id: int,
    controller_epoch: int,
    live_brokers: Sequence[Values],
) -> ControlRequest:
    """UpdateMetadata, of which one encoding serves all brokers.

    `live_brokers` are mappings of id, rack and endpoints, these of port, host, listener and
    security_protocol; for version 0, of v0_host and v0_port.
    """
    columns = {
        "partition_index": states.partition,
        "controller_epoch": states.controller_epoch,
        "leader": states.leader,
        "leader_epoch": states.leader_epoch,
        "isr": states.isr,
        "zk_version": states.partition_epoch,
        "replicas": states.replicas,
        "offline_replicas": states.offline,
    }
    values = {
        "controller_id": controller_id,
        "controller_epoch": controller_epoch,
        "live_brokers": live_brokers,
    }
    return _encode(ApiKey.UPDATE_METADATA, version, values, topics, columns)


def encode_stop_replica(
    version: int,
    topics: RequestTopics,
    replicas: StoppedReplicas,
    *,
    controller_id: int,
    controller_epoch: int,
) -> list[ControlRequest]:
    """StopReplica: one request, or where one flag counts for all of it, one for each flag.

    Deletions come first then (CHAN-29).
    """
    values = {"controller_id": controller_id, "controller_epoch": controller_epoch}
    columns = {
        "partition_index": replicas.partition,
        "leader_epoch": replicas.leader_epoch,
        "delete_partition": replicas.is_deleted,
    }
    key = ApiKey.STOP_REPLICA
    if version >= 3:
        return [_encode(key, version, values, topics, columns)]
    requests = []
    for is_deleted in (True, False):
        chosen = replicas.is_deleted == is_deleted
        if chosen.any():
            some = {"partition_index": replicas.partition[chosen]}
            flagged = values | {"delete_partitions": is_deleted}
            requests.append(_encode(key, version, flagged, _of_rows(topics, chosen), some))
    return requests


def _of_rows(topics: RequestTopics, chosen: Mask) -> RequestTopics:
    """The topics that have chosen rows, when only those are left."""
    before = np.concatenate([[0], np.cumsum(chosen)])[topics.bounds]
    kept = np.flatnonzero(np.diff(before)).tolist()
    return RequestTopics(
        [topics.names[i] for i in kept],
        [topics.ids[i] for i in kept],
        np.append(before[kept], before[-1]).astype(np.int64),
    )


def _encode(
    key: ApiKey, version: int, values: Values, topics: RequestTopics, columns: Columns
) -> ControlRequest:
    schema = message_schema(key, version, "request")
    fields = wire_fields(schema)
    # Of the arrays of a request, the one with the partitions is the first in every version.
    carrier = next(each for each in fields if each.is_array)
    items = _encode_items(carrier.struct_type, topics, columns)
    parts: list[bytes | memoryview] = []
    encode_parts(schema, {**values, carrier.name: items}, parts.append)
    body = memoryview(b"".join(parts))
    before_epoch = _size_before_broker_epoch(fields)
    if before_epoch is None:
        return ControlRequest(key, version, b"", body, has_broker_epoch=False)
    head, tail = body[:before_epoch], body[before_epoch + _INT64.size :]
    return ControlRequest(key, version, bytes(head), tail, has_broker_epoch=True)


def _size_before_broker_epoch(fields: Sequence[WireField]) -> int | None:
    in_place = [each for each in fields if not each.is_tagged]
    names = [each.name for each in in_place]
    if "broker_epoch" not in names:
        return None
    before = in_place[: names.index("broker_epoch")]
    return struct.calcsize(">" + "".join(FIXED_FORMATS[each.kafka_type] for each in before))


def _encode_items(item: Any, topics: RequestTopics, columns: Columns) -> EncodedArray:
    """The array that holds the partitions: of topics, or in old versions, of bare partitions."""
    fields = wire_fields(item)
    is_flexible: bool = item.__flexible__
    inner = next((each for each in fields if each.is_array and each.name not in columns), None)
    if inner is None:
        return _encode_ungrouped(fields, is_flexible, topics, columns)
    rows = (
        _encode_rows(wire_fields(inner.struct_type), is_flexible, columns, topics.bounds)
        if inner.struct_type is not None
        else _encode_indexes(columns["partition_index"], topics.bounds)
    )
    has_ids = any(each.name == "topic_id" for each in fields)
    end = b"\0" if is_flexible else b""
    counts = np.diff(topics.bounds).tolist()
    parts: list[bytes | memoryview] = []
    for name, topic_id, count, states in zip(topics.names, topics.ids, counts, rows, strict=True):
        head = encode_string(name, is_flexible)
        if has_ids:
            head += _NO_UUID if topic_id is None else topic_id.bytes
        parts.append(head + encode_count(count, is_flexible))
        parts += states
        parts.append(end)
    return EncodedArray(len(topics.names), parts)


def _encode_ungrouped(
    fields: Sequence[WireField], is_flexible: bool, topics: RequestTopics, columns: Columns
) -> EncodedArray:
    """Every partition with its topic's name before it."""
    own_fields = [each for each in fields if each.name in columns]
    parts: list[bytes | memoryview] = []
    bounds = topics.bounds.tolist()
    for name, (first, end) in zip(topics.names, pairwise(bounds), strict=True):
        of_topic = {column: values[first:end] for column, values in columns.items()}
        whole = np.array([0, end - first])
        prefix = encode_string(name, is_flexible)
        parts += _encode_rows(own_fields, is_flexible, of_topic, whole, prefix)[0]
    return EncodedArray(bounds[-1], parts)


def _encode_indexes(indexes: I32, bounds: I64) -> list[list[memoryview]]:
    """Encode the partitions of each topic in messages that carry only their indexes."""
    data = indexes.astype(">i4").view(np.uint8).data
    edges = (bounds * 4).tolist()
    return [[data[first:end]] for first, end in pairwise(edges)]


def _encode_rows(
    fields: Sequence[WireField],
    is_flexible: bool,
    columns: Columns,
    bounds: I64,
    prefix: bytes = b"",
) -> list[list[memoryview]]:
    """For each topic the bytes of its rows, in as few pieces as their layouts allow."""
    lists = [each.name for each in fields if each.is_array]
    lengths = {name: _list_lengths(columns[name]) for name in lists}
    layout, layouts = _number_layouts([lengths[name] for name in lists], int(bounds[-1]))
    start = np.empty(len(layout), np.int64)  # where a row begins in the block of its layout
    size = np.empty(layouts, np.int64)
    data = []
    for each_layout in range(layouts):
        rows = np.flatnonzero(layout == each_layout) if layouts > 1 else slice(None)
        counts = {name: int(lengths[name][rows][0]) for name in lists}
        chosen = {each.name: columns[each.name][rows] for each in fields}
        block = _fill_block(fields, is_flexible, chosen, counts, prefix)
        start[rows] = np.arange(len(block)) * block.itemsize
        size[each_layout] = block.itemsize
        data.append(block.view(np.uint8).data)
    # Rows that follow each other in a topic and share a layout lie side by side in its block.
    edges = np.union1d(bounds, np.flatnonzero(np.diff(layout)) + 1)
    first = edges[:-1]
    number, begin = layout[first], start[first]
    stop = begin + np.diff(edges) * size[number]
    pieces = [
        data[which][low:high]
        for which, low, high in zip(number.tolist(), begin.tolist(), stop.tolist(), strict=True)
    ]
    of_topic = np.searchsorted(edges, bounds).tolist()
    return [pieces[low:high] for low, high in pairwise(of_topic)]


def _list_lengths(rows: I32) -> I64:
    # Slot by slot: numpy is slow to reduce a short inner axis.
    length = np.zeros(len(rows), np.int64)
    for slot in range(rows.shape[1]):
        length += rows[:, slot] != _PADDING
    return length


def _number_layouts(lengths: Sequence[I64], rows: int) -> tuple[I64, int]:
    """A number for each row, equal where all lists are equally long, and how many there are."""
    key = np.zeros(rows, np.int64)
    for column in lengths:
        key = key * (int(column.max(initial=0)) + 1) + column
    if rows == 0 or key.min() == key.max():
        return np.zeros(rows, np.int64), min(rows, 1)
    distinct, layout = np.unique(key, return_inverse=True)
    return layout.astype(np.int64), len(distinct)


def _fill_block(
    fields: Sequence[WireField],
    is_flexible: bool,
    columns: Columns,
    counts: Mapping[str, int],
    prefix: bytes,
) -> NDArray[Any]:
    """Rows of one layout, as the wire has them."""
    constants = {"prefix": prefix}
    layout: list[tuple[Any, ...]] = [("prefix", f"V{len(prefix)}")]
    for each in fields:
        if each.is_array:
            constants[f"count of {each.name}"] = encode_count(counts[each.name], is_flexible)
            layout.append((f"count of {each.name}", f"V{len(constants[f'count of {each.name}'])}"))
        shape = (counts[each.name],) if each.is_array else ()
        layout.append((each.name, _DTYPES[each.kafka_type], shape))
    if is_flexible:
        constants["tags"] = b"\0"
        layout.append(("tags", "V1"))
    block = np.empty(len(columns[fields[0].name]), np.dtype(layout))
    for name, constant in constants.items():
        block[name] = np.void(constant)
    for each in fields:
        column = columns[each.name]
        block[each.name] = column[:, : counts[each.name]] if each.is_array else column
    return block


class FailedPartition(NamedTuple):
    """A partition with an error; the topic is a name or an id, as in the response's version."""

    topic: str | UUID | None
    partition: int
    error_code: int


class LeaderAndIsrOutcome(NamedTuple):
    """The errors of a LeaderAndIsr response."""

    error_code: int
    failed: list[FailedPartition]


_PARTITION_ERROR: Final = np.dtype([("partition", ">i4"), ("error_code", ">i2"), ("tags", "u1")])


def decode_leader_and_isr_response(
    header: RequestHeader, frame: bytes | memoryview
) -> LeaderAndIsrOutcome:
    """The partitions that failed, without looking at those that did not one by one."""
    if header.api_version < 5:
        response = decode_response(header, frame)
        return LeaderAndIsrOutcome(
            int(response.error_code),
            [
                FailedPartition(each.topic_name, each.partition_index, int(each.error_code))
                for each in response.partition_errors
                if each.error_code
            ],
        )
    view = memoryview(frame).toreadonly()
    cursor = Cursor(view, decode_response_header(header, view), is_flexible=True)
    (error_code,) = cursor.unpack(_INT16)
    failed: list[FailedPartition] = []
    for _ in range(cursor.count(item_size=18)):
        topic_id = bytes(cursor.take(16))
        count = cursor.count(item_size=_PARTITION_ERROR.itemsize)
        errors = np.frombuffer(cursor.take(count * _PARTITION_ERROR.itemsize), _PARTITION_ERROR)
        cursor.tags()
        if errors["tags"].any():
            raise RemoteProtocolError(
                "a LeaderAndIsr response has tagged fields, of which none exist"
            )
        failed += [
            FailedPartition(UUID(bytes=topic_id), int(each["partition"]), int(each["error_code"]))
            for each in errors[errors["error_code"] != 0]
        ]
    cursor.tags()
    return LeaderAndIsrOutcome(error_code, failed)
