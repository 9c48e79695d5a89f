"""The states of a transaction and the records of `__transaction_state` as bytes (TXN-2).

Every key and value opens with the version of its schema. Version 0 is written; of values, version 1
(the same fields in flexible form, with tagged fields) is read too.
"""

import struct
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from klamm.errors import RemoteProtocolError
from klamm.names import TopicPartition
from klamm.protocol.codec.primitives import Cursor, encode_count, encode_string

NO_PRODUCER_ID: Final = -1
NO_PRODUCER_EPOCH: Final = -1
NO_TIMESTAMP: Final = -1
#: Strings of version 0 have a signed 16-bit length.
MAX_ID_BYTES: Final = 2**15 - 1

_VERSION: Final = 0
_FLEXIBLE_VERSION: Final = 1
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
#: Producer id, epoch, timeout, status.
_HEAD: Final = struct.Struct(">qhib")
#: Last update and start.
_TIMES: Final = struct.Struct(">qq")
#: The smallest size of a topic among the partitions: an empty name and no partition.
_TOPIC_SIZE_MIN: Final = 2


class TransactionState(IntEnum):
    """The status in the log; the last two are never written."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """Kafka's name for the state, as DescribeTransactions shows it."""
        return "".join(word.capitalize() for word in self.name.split("_"))


S = TransactionState

#: target: the states it may be entered from.
ENTERED_FROM: Final = {
    S.EMPTY: frozenset({S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT}),
    S.ONGOING: frozenset({S.ONGOING, S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT}),
    S.PREPARE_COMMIT: frozenset({S.ONGOING}),
    # A fence is decided in memory and written as the abort that follows it.
    S.PREPARE_ABORT: frozenset({S.ONGOING, S.PREPARE_EPOCH_FENCE}),
    S.COMPLETE_COMMIT: frozenset({S.PREPARE_COMMIT}),
    S.COMPLETE_ABORT: frozenset({S.PREPARE_ABORT}),
    S.DEAD: frozenset({S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT}),
    S.PREPARE_EPOCH_FENCE: frozenset({S.ONGOING}),
}
#: States in which the outcome is decided and markers are being written.
PREPARED: Final = frozenset({S.PREPARE_COMMIT, S.PREPARE_ABORT})
#: States in which no transaction is open.
IDLE: Final = frozenset({S.EMPTY, S.COMPLETE_COMMIT, S.COMPLETE_ABORT})


class TransactionRecord(NamedTuple):
    """A key and its value; None is a tombstone."""

    key: bytes
    value: bytes | None


class StoredTransaction(NamedTuple):
    """The stored state of a transactional id."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: tuple[TopicPartition, ...]
    last_update_ms: int
    start_ms: int


def is_storable(transactional_id: str) -> bool:
    """Whether the id fits into a key; newer requests can carry longer ones."""
    try:
        return len(transactional_id.encode()) <= MAX_ID_BYTES
    except UnicodeEncodeError:
        return False


def encode_key(transactional_id: str) -> bytes:
    """The key of everything that is written about a transactional id."""
    return _INT16.pack(_VERSION) + encode_string(transactional_id, False)


def encode_value(stored: StoredTransaction) -> bytes:
    """The value in version 0."""
    parts = [
        _INT16.pack(_VERSION),
        _HEAD.pack(
            stored.producer_id, stored.producer_epoch, stored.timeout_ms, stored.state.value
        ),
    ]
    if stored.state is S.EMPTY:
        parts.append(encode_count(-1, False))
    else:
        topics = by_topic(stored.partitions)
        parts.append(encode_count(len(topics), False))
        for topic, partitions in topics.items():
            parts += (encode_string(topic, False), encode_count(len(partitions), False))
            parts += map(_INT32.pack, partitions)
    parts.append(_TIMES.pack(stored.last_update_ms, stored.start_ms))
    return b"".join(parts)


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partitions of each topic, in the order in which they come."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics


def decode_key(key: bytes) -> str:
    """The transactional id of a record; RemoteProtocolError for any other key."""
    cursor = Cursor(memoryview(key), 0, False)
    (version,) = cursor.unpack(_INT16)
    if version != _VERSION:
        raise RemoteProtocolError(f"key of unknown version {version} in the transaction log")
    return cursor.string()


def decode_value(value: bytes) -> StoredTransaction:
    """Decode a value; RemoteProtocolError for an unknown version or status."""
    cursor = Cursor(memoryview(value), 0, False)
    (version,) = cursor.unpack(_INT16)
    if version not in (_VERSION, _FLEXIBLE_VERSION):
        raise RemoteProtocolError(f"value of unknown version {version} in the transaction log")
    cursor.is_flexible = version == _FLEXIBLE_VERSION
    producer_id, epoch, timeout_ms, status = cursor.unpack(_HEAD)
    partitions = _decode_partitions(cursor)
    last_update_ms, start_ms = cursor.unpack(_TIMES)
    cursor.tags()
    try:
        state = TransactionState(status)
    except ValueError:
        raise RemoteProtocolError(f"unknown status {status} in the transaction log") from None
    return StoredTransaction(
        producer_id, epoch, timeout_ms, state, partitions, last_update_ms, start_ms
    )


def _decode_partitions(cursor: Cursor) -> tuple[TopicPartition, ...]:
    count = cursor.length()
    if count <= 0:
        return ()
    if count * _TOPIC_SIZE_MIN > len(cursor.view) - cursor.at:
        raise RemoteProtocolError(f"{count} topics are announced where fewer fit")
    partitions: list[TopicPartition] = []
    for _ in range(count):
        topic = cursor.string()
        for _ in range(cursor.count(_INT32.size)):
            partitions.append(TopicPartition(topic, cursor.unpack(_INT32)[0]))
        cursor.tags()
    return tuple(partitions)
