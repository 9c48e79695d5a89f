"""The Metadata response as columns, for clients of clusters with very many partitions.

kio makes an object of each partition and lets no other thread run meanwhile. Here the response is
walked once, to find where each partition begins, and numpy reads all numbers of one kind together.

Measured (`python -m bench protocol`), for 100,000 partitions: read in 75 ms, by kio in 240 ms.
This module needs numpy, which the broker's process does not load: only clients import it.
"""

import struct
from array import array
from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from klamm.errors import RemoteProtocolError
from klamm.protocol.apis import APIS, ApiKey
from klamm.protocol.codec.headers import RequestHeader, decode_response_header
from klamm.protocol.codec.primitives import Cursor, decode_uvarint

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_BOOL: Final = struct.Struct(">?")
_ID_BYTES: Final = 16
_NO_ID: Final = bytes(_ID_BYTES)
_NOBODY: Final = -1

#: What an item takes at least, so that a forged count is seen before it is counted to.
_ITEM_BYTES_MIN: Final = 4
#: Of a partition: the error, the index and the leader; the leader's epoch follows where it is sent.
_INDEX_AT: Final = 2
_LEADER_AT: Final = 6
_EPOCH_AT: Final = 10

_FIRST_CONTROLLER: Final = 1
_FIRST_CLUSTER_ID: Final = 2
_FIRST_THROTTLE: Final = 3
_FIRST_OFFLINE: Final = 5
_FIRST_EPOCH: Final = 7
_FIRST_TOPIC_OPERATIONS: Final = 8
_CLUSTER_OPERATIONS: Final = range(8, 11)
_FIRST_TOPIC_ID: Final = 10

Ints = NDArray[np.int32]


class MetadataBroker(NamedTuple):
    """A live broker, at the address for clients."""

    node_id: int
    host: str
    port: int
    rack: str | None


class MetadataTopic(NamedTuple):
    """A topic; its partitions are the next rows of the columns."""

    name: str
    topic_id: UUID | None
    is_internal: bool
    error_code: int
    partitions: int


class MetadataColumns(NamedTuple):
    """A Metadata response: topics as they came, and a row for each of their partitions.

    Rows of replicas are padded with -1 on the right and are at least one slot wide.
    """

    brokers: list[MetadataBroker]
    cluster_id: str | None
    controller_id: int
    topics: list[MetadataTopic]
    partition_index: Ints
    leader_id: Ints
    leader_epoch: Ints  # -1 where the version has none
    replica_nodes: Ints
    isr_nodes: Ints


def decode_metadata_columns(header: RequestHeader, frame: bytes | memoryview) -> MetadataColumns:
    """Decode the response to a Metadata request that klamm sent, in any of its versions."""
    data = bytes(frame)
    view = memoryview(data)
    version = header.api_version
    is_flexible = version >= APIS[ApiKey.METADATA].first_flexible
    cursor = Cursor(view, decode_response_header(header, view), is_flexible)
    if version >= _FIRST_THROTTLE:
        cursor.unpack(_INT32)
    brokers = [_read_broker(cursor, version) for _ in range(cursor.count(_ITEM_BYTES_MIN))]
    cluster_id = cursor.nullable_string() if version >= _FIRST_CLUSTER_ID else None
    controller = cursor.unpack(_INT32)[0] if version >= _FIRST_CONTROLLER else _NOBODY
    walk = _Walk(data, is_flexible, version)
    topics = [_read_topic(cursor, walk, version) for _ in range(cursor.count(_ITEM_BYTES_MIN))]
    if version in _CLUSTER_OPERATIONS:
        cursor.unpack(_INT32)
    cursor.tags()
    return MetadataColumns(brokers, cluster_id, controller, topics, *walk.columns())


def _read_broker(cursor: Cursor, version: int) -> MetadataBroker:
    (node,) = cursor.unpack(_INT32)
    host = cursor.string()
    (port,) = cursor.unpack(_INT32)
    rack = cursor.nullable_string() if version >= _FIRST_CONTROLLER else None
    cursor.tags()
    return MetadataBroker(node, host, port, rack)


def _read_topic(cursor: Cursor, walk: "_Walk", version: int) -> MetadataTopic:
    (error,) = cursor.unpack(_INT16)
    name = cursor.nullable_string() or ""
    id_bytes = bytes(cursor.take(_ID_BYTES)) if version >= _FIRST_TOPIC_ID else _NO_ID
    is_internal = cursor.unpack(_BOOL)[0] if version >= _FIRST_CONTROLLER else False
    count = cursor.count(_ITEM_BYTES_MIN)
    try:
        cursor.at = walk.pass_over(cursor.at, count)
    except (IndexError, struct.error):
        raise RemoteProtocolError("the message is cut short") from None
    if version >= _FIRST_TOPIC_OPERATIONS:
        cursor.unpack(_INT32)
    cursor.tags()
    topic_id = None if id_bytes == _NO_ID else UUID(bytes=id_bytes)
    return MetadataTopic(name, topic_id, is_internal, error, count)


class _Walk:
    """Finds where partitions and their lists begin; reads the numbers of all at the end."""

    def __init__(self, data: bytes, is_flexible: bool, version: int) -> None:
        self._data = data
        self._is_flexible = is_flexible
        self._has_epoch = version >= _FIRST_EPOCH
        self._lists = 3 if version >= _FIRST_OFFLINE else 2
        self._starts = array("q")
        self._replicas = array("q")
        self._isrs = array("q")
        self._replica_counts = array("q")
        self._isr_counts = array("q")

    def pass_over(self, at: int, count: int) -> int:
        """Note `count` partitions that begin at `at`; where they end."""
        data = self._data
        fixed = _EPOCH_AT + (4 if self._has_epoch else 0)
        note_start = self._starts.append
        note_replicas, note_isr = self._replicas.append, self._isrs.append
        note_replica_count, note_isr_count = self._replica_counts.append, self._isr_counts.append
        is_usual = self._is_flexible and self._lists == 3
        for _ in range(count):
            note_start(at)
            at += fixed
            if is_usual:
                # Lengths are nearly always of one byte, and there are nearly never tags.
                replicas = data[at]
                isr_at = at + 4 * replicas - 3
                isr = data[isr_at]
                offline_at = isr_at + 4 * isr - 3
                offline = data[offline_at]
                end = offline_at + 4 * offline - 3
                are_short = 0 < replicas < 0x80 and 0 < isr < 0x80 and 0 < offline < 0x80
                if are_short and data[end] == 0:
                    note_replicas(at + 1)
                    note_isr(isr_at + 1)
                    note_replica_count(replicas - 1)
                    note_isr_count(isr - 1)
                    at = end + 1
                    continue
            at = self._pass_lists(at)
        return at

    def _pass_lists(self, at: int) -> int:
        """The same for the lists of one partition in any form."""
        notes = ((self._replicas, self._replica_counts), (self._isrs, self._isr_counts))
        for n in range(self._lists):
            count, at = self._length(at)
            if count < 0 or at + 4 * count > len(self._data):
                raise RemoteProtocolError(f"{count} items are announced where fewer fit")
            if n < len(notes):
                notes[n][0].append(at)
                notes[n][1].append(count)
            at += 4 * count
        if not self._is_flexible:
            return at
        cursor = Cursor(memoryview(self._data), at, is_flexible=True)
        cursor.tags()
        return cursor.at

    def _length(self, at: int) -> tuple[int, int]:
        if not self._is_flexible:
            return _INT32.unpack_from(self._data, at)[0], at + 4
        count, at = decode_uvarint(memoryview(self._data), at)
        return count - 1, at

    def columns(self) -> tuple[Ints, Ints, Ints, Ints, Ints]:
        """Index, leader, epoch, replicas and ISR of all partitions."""
        # An int32 at each byte: a column is read from the places where its numbers begin.
        words = np.ndarray((max(len(self._data) - 3, 0),), ">i4", self._data, strides=(1,))
        starts = np.array(self._starts, np.int64)
        epochs = np.full(len(starts), _NOBODY, np.int32)
        try:
            if self._has_epoch:
                epochs = words[starts + _EPOCH_AT].astype(np.int32)
            return (
                words[starts + _INDEX_AT].astype(np.int32),
                words[starts + _LEADER_AT].astype(np.int32),
                epochs,
                _rows(words, self._replicas, self._replica_counts),
                _rows(words, self._isrs, self._isr_counts),
            )
        except IndexError:
            raise RemoteProtocolError("the message is cut short") from None


def _rows(words: NDArray[np.int32], places: Sequence[int], counts: Sequence[int]) -> Ints:
    """Lists that begin at `places`, as rows."""
    begins, lengths = np.array(places, np.int64), np.array(counts, np.int64)
    width = int(lengths.max(initial=1))
    rows = np.full((len(begins), width), _NOBODY, np.int32)
    for slot in range(width):
        has = np.flatnonzero(lengths > slot)
        rows[has, slot] = words[begins[has] + 4 * slot]
    return rows
