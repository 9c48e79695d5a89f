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
from dataclasses import fields as dataclass_fields
from functools import lru_cache
from itertools import pairwise, repeat
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from klamm.errors import RemoteProtocolError
from klamm.protocol.apis import ApiKey, response_header_version
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


#: Instead of an id, where topics have no field for it.
_NO_FIELD: Final = b""


@lru_cache(maxsize=1 << 16)
def _topic_head(name: str, topic_id: bytes | None, is_flexible: bool) -> bytes:
    """What stands before the partitions of a topic, up to their count."""
    return encode_string(name, is_flexible) + (_NO_UUID if topic_id is None else topic_id)


class TopicTable:
    """Topics that are named in several requests, which share their encoded names and ids."""

    def __init__(self, names: Sequence[str], ids: Sequence[bytes | None]) -> None:
        self.names, self.ids = names, ids
        self._heads: dict[tuple[bool, bool], _Pieces] = {}

    def heads(self, *, has_ids: bool, is_flexible: bool) -> "_Pieces":
        """What stands before the partitions of each topic, up to their count."""
        known = self._heads.get((has_ids, is_flexible))
        if known is None:
            ids = self.ids if has_ids else repeat(_NO_FIELD)
            heads = [*map(_topic_head, self.names, ids, repeat(is_flexible))]
            known = self._heads[has_ids, is_flexible] = _Pieces(heads)
        return known


class RequestTopics(NamedTuple):
    """The topics of a request: `table[which[i]]` owns the rows `bounds[i]:bounds[i + 1]`."""

    table: TopicTable
    which: I64
    bounds: I64

    @classmethod
    def of(cls, names: Sequence[str], ids: Sequence[bytes | None], bounds: I64) -> "RequestTopics":
        """Topics of one request alone."""
        return cls(TopicTable(names, ids), np.arange(len(names)), bounds)

    @property
    def names(self) -> list[str]:
        return [self.table.names[each] for each in self.which.tolist()]

    @property
    def ids(self) -> list[bytes | None]:
        return [self.table.ids[each] for each in self.which.tolist()]


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

    def at(self, rows: I64 | slice) -> "PartitionStates":
        """Some of the rows."""
        return PartitionStates(*(getattr(self, each.name)[rows] for each in dataclass_fields(self)))


@dataclass(frozen=True, slots=True, eq=False)
class StoppedReplicas:
    """One row for each replica that a broker is to stop."""

    partition: I32
    leader_epoch: I32
    is_deleted: Mask


class Chosen(NamedTuple):
    """Rows for one broker, in the order of the request, and whether each is new to the broker."""

    rows: I64
    is_new: Mask


class ControlRequest(NamedTuple):
    """A request that is encoded but for what differs from broker to broker and from try to try."""

    api_key: ApiKey
    api_version: int
    head: bytes  # the body up to the broker epoch
    tail: Sequence[bytes | memoryview]  # and after it
    has_broker_epoch: bool

    def chunks(self, header: RequestHeader, broker_epoch: int) -> list[bytes | memoryview]:
        """The whole frame, size first. All brokers share the chunks but for the first."""
        front = encode_request_header(header) + self.head
        if self.has_broker_epoch:
            front += _INT64.pack(broker_epoch)
        size = len(front) + sum(map(len, self.tail))
        return [_SIZE.pack(size) + front, *self.tail]


class EncodedLeaderAndIsr:
    """Partition states as a LeaderAndIsr has them: requests to several brokers share them."""

    def __init__(self, version: int, states: PartitionStates) -> None:
        self._version = version
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
            # Which rows are new is known of each broker by itself.
            "is_new": np.zeros(len(states.partition), np.bool_),
            "leader_recovery_state": states.recovery,
        }
        self._items = _Items(ApiKey.LEADER_AND_ISR, version, columns)

    def request(
        self,
        topics: RequestTopics,
        chosen: Chosen,
        *,
        controller_id: int,
        controller_epoch: int,
        live_leaders: Sequence[Values],
    ) -> ControlRequest:
        """A request with the chosen rows, which are those of `topics`.

        `live_leaders` are mappings of broker_id, host_name and port.
        """
        values = {
            "controller_id": controller_id,
            "controller_epoch": controller_epoch,
            "live_leaders": live_leaders,
        }
        return _encode(self._items, values, topics, chosen)


def encode_leader_and_isr(
    version: int,
    topics: RequestTopics,
    states: PartitionStates,
    *,
    controller_id: int,
    controller_epoch: int,
    live_leaders: Sequence[Values],
) -> ControlRequest:
    """One LeaderAndIsr; see `EncodedLeaderAndIsr` for several."""
    return EncodedLeaderAndIsr(version, states).request(
        topics,
        Chosen(np.arange(len(states.partition)), states.is_new),
        controller_id=controller_id,
        controller_epoch=controller_epoch,
        live_leaders=live_leaders,
    )


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
    return _encode(_Items(ApiKey.UPDATE_METADATA, version, columns), values, topics)


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
        return [_encode(_Items(key, version, columns), values, topics)]
    requests = []
    for is_deleted in (True, False):
        chosen = replicas.is_deleted == is_deleted
        if chosen.any():
            some = {"partition_index": replicas.partition[chosen]}
            flagged = values | {"delete_partitions": is_deleted}
            requests.append(_encode(_Items(key, version, some), flagged, _of_rows(topics, chosen)))
    return requests


def _of_rows(topics: RequestTopics, chosen: Mask) -> RequestTopics:
    """The topics that have chosen rows, when only those are left."""
    before = np.concatenate([[0], np.cumsum(chosen)])[topics.bounds]
    kept = np.flatnonzero(np.diff(before))
    bounds = np.append(before[kept], before[-1]).astype(np.int64)
    return RequestTopics(topics.table, topics.which[kept], bounds)


def _encode(
    items: "_Items", values: Values, topics: RequestTopics, chosen: Chosen | None = None
) -> ControlRequest:
    parts: list[bytes | memoryview] = []
    encoded = items.encode(topics, chosen)
    encode_parts(items.schema, {**values, items.carrier: encoded}, parts.append)
    # The partitions are the one long part, which is not copied.
    first = encoded.parts[0] if encoded.parts else None
    long = next((at for at, part in enumerate(parts) if part is first), len(parts))
    start, rest = b"".join(parts[:long]), parts[long:]
    before_epoch = _size_before_broker_epoch(wire_fields(items.schema))
    if before_epoch is None:
        return ControlRequest(items.key, items.version, b"", [start, *rest], has_broker_epoch=False)
    head, after = start[:before_epoch], start[before_epoch + _INT64.size :]
    return ControlRequest(items.key, items.version, head, [after, *rest], has_broker_epoch=True)


def _size_before_broker_epoch(fields: Sequence[WireField]) -> int | None:
    in_place = [each for each in fields if not each.is_tagged]
    names = [each.name for each in in_place]
    if "broker_epoch" not in names:
        return None
    before = in_place[: names.index("broker_epoch")]
    return struct.calcsize(">" + "".join(FIXED_FORMATS[each.kafka_type] for each in before))


class _Items:
    """The array that holds the partitions: of topics, or in old versions, of bare partitions."""

    def __init__(self, key: ApiKey, version: int, columns: Columns) -> None:
        self.key, self.version = key, version
        self.schema = message_schema(key, version, "request")
        # Of the arrays of a request, the one with the partitions is the first in every version.
        carrier = next(each for each in wire_fields(self.schema) if each.is_array)
        self.carrier = carrier.name
        item = carrier.struct_type
        fields = wire_fields(item)
        self._is_flexible: bool = item.__flexible__
        self._has_ids = any(each.name == "topic_id" for each in fields)
        self._columns = columns
        inner = next((each for each in fields if each.is_array and each.name not in columns), None)
        #: The fields of a partition; without any it is a bare index.
        self._fields: Sequence[WireField] = ()
        #: Unless each partition stands by itself, with the name of its topic before it.
        self._blocks: _Blocks | None = None
        if inner is None:
            self._fields = [each for each in fields if each.name in columns]
        elif inner.struct_type is not None:
            self._fields = wire_fields(inner.struct_type)
            self._blocks = _Blocks(self._fields, self._is_flexible, columns)
        else:
            self._blocks = _Blocks.of_indexes(columns["partition_index"])

    def encode(self, topics: RequestTopics, chosen: Chosen | None) -> EncodedArray:
        """Encode the chosen rows, or all, which are those of the topics."""
        if self._blocks is None:
            return self._encode_ungrouped(topics, chosen)
        heads = topics.table.heads(has_ids=self._has_ids, is_flexible=self._is_flexible)
        items = _assemble(heads, topics, self._is_flexible, self._blocks, chosen)
        return EncodedArray(len(topics.which), [items])

    def _encode_ungrouped(self, topics: RequestTopics, chosen: Chosen | None) -> EncodedArray:
        """Every partition with its topic's name before it."""
        columns = self._columns
        if chosen is not None:
            columns = {name: column[chosen.rows] for name, column in columns.items()}
            columns["is_new"] = chosen.is_new
        parts: list[bytes | memoryview] = []
        bounds = topics.bounds.tolist()
        for name, (first, end) in zip(topics.names, pairwise(bounds), strict=True):
            of_topic = {column: values[first:end] for column, values in columns.items()}
            prefix = encode_string(name, self._is_flexible)
            blocks = _Blocks(self._fields, self._is_flexible, of_topic, prefix)
            parts.append(blocks.joined())
        return EncodedArray(bounds[-1], parts)


class _Pieces:
    """Byte strings of any lengths, each of which is written to any number of places."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.size = np.fromiter(map(len, pieces), np.int64, len(pieces))
        self._start = np.cumsum(self.size) - self.size
        self._octets = np.frombuffer(b"".join(pieces), np.uint8)

    def write(self, out: NDArray[np.uint8], at: I64, which: I64) -> None:
        """Write piece `which[k]` to `at[k]`."""
        size, start = self.size[which], self._start[which]
        for each in np.unique(size).tolist():
            mine = np.flatnonzero(size == each)
            _runs(out, each)[at[mine]] = _runs(self._octets, each)[start[mine]]


def _runs(octets: NDArray[np.uint8], size: int) -> NDArray[Any]:
    """A view of every run of `size` octets, each an item that numpy copies as a whole."""
    item = np.dtype((np.void, size))
    return np.ndarray(len(octets) - size + 1, item, octets, strides=(1,))


class _Blocks:
    """Rows as the wire has them; those of one layout stand together in a block."""

    def __init__(
        self,
        fields: Sequence[WireField],
        is_flexible: bool,
        columns: Columns,
        prefix: bytes = b"",
    ) -> None:
        lists = [each.name for each in fields if each.is_array]
        lengths = {name: _list_lengths(columns[name]) for name in lists}
        count = len(columns[fields[0].name])
        #: By row: the number of its layout, and its place in the block of that layout.
        self._layout, layouts = _number_layouts([lengths[name] for name in lists], count)
        self._place = np.empty(count, np.int64)
        self._blocks: list[NDArray[Any]] = []
        for number in range(layouts):
            rows = np.flatnonzero(self._layout == number) if layouts > 1 else slice(None)
            counts = {name: int(lengths[name][rows][0]) for name in lists}
            chosen = {each.name: columns[each.name][rows] for each in fields}
            block = _fill_block(fields, is_flexible, chosen, counts, prefix)
            self._place[rows] = np.arange(len(block))
            self._blocks.append(block)

    @classmethod
    def of_indexes(cls, indexes: I32) -> "_Blocks":
        """Rows that consist of a partition's index."""
        self = cls.__new__(cls)
        self._layout, self._place = np.zeros(len(indexes), np.int64), np.arange(len(indexes))
        self._blocks = [indexes.astype(">i4")]
        return self

    def sizes(self, chosen: Chosen | None) -> I64:
        """How many bytes each row takes up."""
        if not self._blocks:
            return np.zeros(0, np.int64)
        layout = self._layout if chosen is None else self._layout[chosen.rows]
        return np.array([block.itemsize for block in self._blocks])[layout]

    def write(self, out: NDArray[np.uint8], at: I64, chosen: Chosen | None) -> None:
        """Write each row to its place in `out`."""
        layout, place = self._layout, self._place
        if chosen is not None:
            layout, place = layout[chosen.rows], place[chosen.rows]
        for number, block in enumerate(self._blocks):
            mine = np.flatnonzero(layout == number)
            if not len(mine):
                continue
            rows = _take(block, place[mine])
            if chosen is not None and chosen.is_new.any():
                rows["is_new"] = chosen.is_new[mine]
            _runs(out, block.itemsize)[at[mine]] = rows.view(np.dtype((np.void, block.itemsize)))

    def joined(self) -> memoryview:
        """All rows, one after the other."""
        sizes = self.sizes(None)
        out = np.empty(int(sizes.sum()), np.uint8)
        self.write(out, np.cumsum(sizes) - sizes, None)
        return out.data


def _take(block: NDArray[Any], place: I64) -> NDArray[Any]:
    """A copy of rows of a block."""
    # As items without fields, which numpy copies as a whole.
    item = np.dtype((np.void, block.itemsize))
    return block.view(item)[place].view(block.dtype)


def _assemble(
    heads: _Pieces,
    topics: RequestTopics,
    is_flexible: bool,
    blocks: _Blocks,
    chosen: Chosen | None,
) -> memoryview:
    """For each topic its head, the number of its rows, the rows, and no tags."""
    bounds = topics.bounds
    numbers, which_count = np.unique(np.diff(bounds), return_inverse=True)
    counts = _Pieces([encode_count(each, is_flexible) for each in numbers.tolist()])
    head_bytes, count_bytes = heads.size[topics.which], counts.size[which_count]
    sizes = blocks.sizes(chosen)
    before = np.concatenate([[0], np.cumsum(sizes)])  # bytes of rows before each row
    first = before[bounds[:-1]]
    topic_bytes = head_bytes + count_bytes + before[bounds[1:]] - first + is_flexible
    starts = np.cumsum(topic_bytes) - topic_bytes
    out = np.empty(int(topic_bytes.sum()), np.uint8)
    heads.write(out, starts, topics.which)
    counts.write(out, starts + head_bytes, which_count)
    shift = np.repeat(starts + head_bytes + count_bytes - first, np.diff(bounds))
    blocks.write(out, before[:-1] + shift, chosen)
    if is_flexible:
        out[starts + topic_bytes - 1] = 0
    return out.data


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


def decode_update_metadata_response(header: RequestHeader, frame: bytes | memoryview) -> int:
    """The error code, which is all that the response has: one comes for each broker and event."""
    view = memoryview(frame).toreadonly()
    flexible = response_header_version(header.api_key, header.api_version) > 0
    cursor = Cursor(view, decode_response_header(header, view), is_flexible=flexible)
    (error_code,) = cursor.unpack(_INT16)
    cursor.tags()
    return int(error_code)
