"""The controller's requests, decoded by a broker partition by partition.

When a broker starts, the controller sends it every partition of the cluster. Decoded as one message
that is about 100 MB of objects; decoded one partition at a time it is next to nothing, and takes
the event loop no longer than it takes to apply it. LeaderAndIsr is walked once when it is decoded,
so that a broken request changes nothing, and once more when its partitions are read. Of
UpdateMetadata, which names all partitions and not only the broker's own, the metadata cache keeps
the states as they arrive; they are only checked.

Measured (`python -m bench protocol`), for 100,000 partitions: LeaderAndIsr is checked in 190 ms and
read in 60 ms, UpdateMetadata is checked in 8 to 35 ms.
"""

import struct
import uuid
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple

from klamm.errors import RemoteProtocolError
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.primitives import Cursor
from klamm.protocol.codec.soundness import check_sound
from klamm.protocol.fast.metadata_states import PackedStates, take_states
from klamm.protocol.schema._kio import entity_reader
from klamm.protocol.schema.fields import wire_fields
from klamm.protocol.schema.lookup import Reader, message_schema

# Controller id, controller epoch and broker epoch; skipped are fields unused in ZooKeeper mode:
# the flag of a KRaft controller and, in LeaderAndIsr, a type.
_LEADER_AND_ISR: Final = struct.Struct(">iiqx")
_LEADER_AND_ISR_WITH_KRAFT: Final = struct.Struct(">ixiqx")
_UPDATE_METADATA: Final = struct.Struct(">iiq")
_UPDATE_METADATA_WITH_KRAFT: Final = struct.Struct(">ixiq")

#: What an item takes at least, so that a forged count is seen before it is counted to.
_PARTITION_BYTES_MIN: Final = 24
_ITEM_BYTES_MIN: Final = 4

_NO_ID: Final = bytes(16)

_FIRST_LEADER_AND_ISR_WITH_KRAFT: Final = 7
_FIRST_UPDATE_METADATA_WITH_KRAFT: Final = 8


class StatesOfTopic:
    """The partitions of a topic, made anew for each iteration, one at a time."""

    __slots__ = ("_at", "_count", "_read", "_view")

    def __init__(self, view: memoryview, at: int, count: int, read: Reader) -> None:
        self._view = view
        self._at = at
        self._count = count
        self._read = read

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        read, view, at = self._read, self._view, self._at
        for _ in range(self._count):
            state, size = read(view, at)
            at += size
            yield state


class LeaderAndIsrTopic(NamedTuple):
    """Partitions of one topic in a LeaderAndIsr; each is that of the declared message."""

    topic_name: str
    #: None if the topic has no id.
    topic_id: uuid.UUID | None
    partition_states: StatesOfTopic


class LeaderAndIsrRequest(NamedTuple):
    """LeaderAndIsr from version 5 on; leaders are those of the declared message."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    topic_states: list[LeaderAndIsrTopic]
    live_leaders: list[Any]


class TopicStates(NamedTuple):
    """Partitions of one topic in an UpdateMetadata; see `metadata_states`."""

    name: str
    #: Empty if the topic has no id.
    id_bytes: bytes
    states: PackedStates


class UpdateMetadataRequest(NamedTuple):
    """UpdateMetadata from version 7 on; brokers are those of the declared message."""

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    topics: list[TopicStates]
    live_brokers: list[Any]


def decode_leader_and_isr(view: memoryview, at: int, version: int) -> LeaderAndIsrRequest:
    """Read the body at `at`; kio's exceptions pass through."""
    has_kraft = version >= _FIRST_LEADER_AND_ISR_WITH_KRAFT
    check_sound(message_schema(ApiKey.LEADER_AND_ISR, version, "request"), view, at)
    items = _item_schemas(ApiKey.LEADER_AND_ISR, version)
    cursor = Cursor(view, at, is_flexible=True)
    controller_id, controller_epoch, broker_epoch = cursor.unpack(
        _LEADER_AND_ISR_WITH_KRAFT if has_kraft else _LEADER_AND_ISR
    )
    topics = _read_topics(cursor, _partition_reader(items["topic_states"]))
    leaders = _read_items(cursor, items["live_leaders"])
    return LeaderAndIsrRequest(controller_id, controller_epoch, broker_epoch, topics, leaders)


def decode_update_metadata(view: memoryview, at: int, version: int) -> UpdateMetadataRequest:
    """Read the body at `at`; kio's exceptions pass through."""
    has_kraft = version >= _FIRST_UPDATE_METADATA_WITH_KRAFT
    cursor = Cursor(view, at, is_flexible=True)
    controller_id, controller_epoch, broker_epoch = cursor.unpack(
        _UPDATE_METADATA_WITH_KRAFT if has_kraft else _UPDATE_METADATA
    )
    topics = _take_topics(cursor)
    items = _item_schemas(ApiKey.UPDATE_METADATA, version)
    brokers = _read_items(cursor, items["live_brokers"])
    cursor.tags()
    return UpdateMetadataRequest(controller_id, controller_epoch, broker_epoch, topics, brokers)


@cache
def _item_schemas(key: ApiKey, version: int) -> Mapping[str, Any]:
    fields = wire_fields(message_schema(key, version, "request"))
    return {each.name: each.struct_type for each in fields if each.is_array}


@cache
def _partition_reader(topic_schema: Any) -> Reader:
    (states,) = (each for each in wire_fields(topic_schema) if each.is_array)
    read: Reader = entity_reader(states.struct_type)
    return read


def _read_topics(cursor: Cursor, read: Reader) -> list[LeaderAndIsrTopic]:
    """Read each partition once, and keep nothing but where they begin."""
    topics = []
    for _ in range(cursor.length()):
        name = cursor.string()
        id_bytes = bytes(cursor.take(len(_NO_ID)))
        count = cursor.length()
        states = StatesOfTopic(cursor.view, cursor.at, count, read)
        for _ in range(count):
            cursor.at += read(cursor.view, cursor.at)[1]
        cursor.tags()
        topic_id = None if id_bytes == _NO_ID else uuid.UUID(bytes=id_bytes)
        topics.append(LeaderAndIsrTopic(name, topic_id, states))
    return topics


def _take_topics(cursor: Cursor) -> list[TopicStates]:
    data = bytes(cursor.view)
    topics = []
    for _ in range(cursor.count(_ITEM_BYTES_MIN)):
        name = cursor.string()
        id_bytes = bytes(cursor.take(len(_NO_ID)))
        count = cursor.count(_PARTITION_BYTES_MIN)
        try:
            states, cursor.at = take_states(data, cursor.at, count)
        except IndexError:
            raise RemoteProtocolError("the message is cut short") from None
        cursor.tags()
        topics.append(TopicStates(name, b"" if id_bytes == _NO_ID else id_bytes, states))
    return topics


def _read_items(cursor: Cursor, schema: Any) -> list[Any]:
    read = entity_reader(schema)
    items = []
    for _ in range(cursor.count(_ITEM_BYTES_MIN)):
        check_sound(schema, cursor.view, cursor.at)
        item, size = read(cursor.view, cursor.at)
        cursor.at += size
        items.append(item)
    return items
