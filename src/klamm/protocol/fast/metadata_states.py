"""Partitions as the metadata cache keeps them: the bytes of their states in UpdateMetadata.

A broker knows every partition of the cluster and is asked about few of them, so what counts is
memory, and the time that an update takes. The states of a topic stay in one piece, as they arrived,
and are cut when they are asked for.

A state (v6 on) is: index, controller epoch, leader, leader epoch, ISR, version, replicas, offline
replicas, tags. A Metadata response has some of these fields in another order.

Measured (`python -m bench protocol`): 100,000 partitions of an UpdateMetadata are taken in 8 ms if
those of each topic have lists of the same lengths, and in 35 ms if not.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from typing import Any, Final, NamedTuple

from klamm.errors import RemoteProtocolError
from klamm.protocol.codec.primitives import Cursor

#: Counts up to this one take a single byte in the compact form.
_MAX_REPLICAS: Final = 126
#: By that byte, how long the array of ids is with it; null is none.
_ARRAY_BYTES: Final = {count + 1: 1 + 4 * count for count in range(_MAX_REPLICAS + 1)}
_INDEX_LEADER_EPOCH: Final = struct.Struct(">i4xii")
_INDEX_LEADER: Final = struct.Struct(">i4xi")
_INDEX_BYTES: Final = 4
#: Where the leader's id and the ISR are in a state, and how long the version behind the ISR is.
_LEADER: Final = slice(8, 12)
_ISR_AT: Final = 16
_VERSION_BYTES: Final = 4
_NO_TAGS: Final = b"\0"
_NO_ERROR: Final = b"\0\0"
#: From this many on, states are first looked at together.
_MANY: Final = 8


class PartitionMetadata(NamedTuple):
    """The metadata of a partition, decoded from its state."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline_replicas: tuple[int, ...] = ()


class PackedStates:
    """States of one topic in one piece."""

    __slots__ = ("_count", "_data", "_size", "highest")

    def __init__(self, data: bytes, count: int, highest: int, size: int | None = None) -> None:
        """`size` is that of every state; None if they differ."""
        #: The highest partition number; a negative one counts as very high.
        self.highest = highest
        self._data = data
        self._count = count
        self._size = size

    @classmethod
    def of(cls, states: Iterable[bytes]) -> "PackedStates":
        """States put together."""
        pieces = list(states)
        return take_states(b"".join(pieces), 0, len(pieces))[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedStates) and self._data == other._data

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[bytes]:
        data, size = self._data, self._size
        if size is None:
            return _cut(data, self._count)
        return iter([data[at : at + size] for at in range(0, len(data), size)])

    def are_gapless(self) -> bool:
        """Whether these are all partitions from zero on, in their order."""
        if self.highest != self._count - 1:
            return False
        if self._size is None:
            return [*map(index_of, self)] == [*range(self._count)]
        return _index_bytes(self._data, self._size) == _index_bytes_below(self._count)

    def may_have_leader(self, leader: int) -> bool:
        """False only if no partition has this leader."""
        return leader.to_bytes(4, "big", signed=True) in self._data

    def response_records(self) -> list[bytes]:
        """The partitions of a Metadata response from v9 on, with no error."""
        if self._size is None or not self._count:
            return [*map(response_record, self)]
        unpack, pack = _state_and_record(*_list_bytes(self._data))
        return [
            pack(index, leader, replicas, isr, offline)
            for index, leader, isr, replicas, offline in unpack(self._data)
        ]


def take_states(data: bytes, at: int, count: int) -> tuple[PackedStates, int]:
    """Take `count` partition states of an UpdateMetadata (v6 on); also returns their end.

    Unknown tags are left out. Raises IndexError if the states are not all there.
    """
    if count >= _MANY and (alike := _take_alike(data, at, count)):
        return alike
    begin, highest = at, b""
    pieces: list[bytes] = []
    try:
        for _ in range(count):
            index = data[at : at + _INDEX_BYTES]
            if index > highest:
                highest = index
            replicas_at = at + _ISR_AT + _ARRAY_BYTES[data[at + _ISR_AT]] + _VERSION_BYTES
            offline_at = replicas_at + _ARRAY_BYTES[data[replicas_at]]
            tags_at = offline_at + _ARRAY_BYTES[data[offline_at]]
            at = tags_at + len(_NO_TAGS)
            if data[tags_at]:
                pieces += (data[begin:tags_at], _NO_TAGS)
                begin = at = _after_tags(data, tags_at)
    except KeyError:
        raise RemoteProtocolError(
            f"a list of replicas is null, or longer than {_MAX_REPLICAS}"
        ) from None
    states = b"".join([*pieces, data[begin:at]])
    return PackedStates(states, count, int.from_bytes(highest, "big")), at


def _take_alike(data: bytes, at: int, count: int) -> tuple[PackedStates, int] | None:
    """The same without a look at each, if all lists are as long as those of the first state.

    None if they are not, or if a state has tags.
    """
    try:
        replicas_at = _ISR_AT + _ARRAY_BYTES[data[at + _ISR_AT]] + _VERSION_BYTES
        offline_at = replicas_at + _ARRAY_BYTES[data[at + replicas_at]]
        tags_at = offline_at + _ARRAY_BYTES[data[at + offline_at]]
    except KeyError:
        return None
    size = tags_at + len(_NO_TAGS)
    end = at + size * count
    states = data[at:end]
    if end > len(data) or states[tags_at]:
        return None
    for place in (_ISR_AT, replicas_at, offline_at, tags_at):
        # Compare the byte at this place of each state: all have to be equal.
        if states[place::size] != states[place : place + 1] * count:
            return None
    *higher, lowest = (states[byte::size] for byte in range(_INDEX_BYTES))
    if any(byte.count(0) < count for byte in higher):
        highest = int.from_bytes(max(zip(*higher, lowest, strict=True)), "big")
    else:
        highest = max(lowest)
    return PackedStates(states, count, highest, size), end


def _cut(data: bytes, count: int) -> Iterator[bytes]:
    at = 0
    for _ in range(count):
        replicas_at = at + _ISR_AT + _ARRAY_BYTES[data[at + _ISR_AT]] + _VERSION_BYTES
        offline_at = replicas_at + _ARRAY_BYTES[data[replicas_at]]
        end = offline_at + _ARRAY_BYTES[data[offline_at]] + len(_NO_TAGS)
        yield data[at:end]
        at = end


def _after_tags(data: bytes, at: int) -> int:
    cursor = Cursor(memoryview(data), at, is_flexible=True)
    cursor.tags()
    return cursor.at


def _index_bytes(data: bytes, size: int) -> bytes:
    """The first bytes of the partition numbers in states of `size`, then the second, and so on."""
    return b"".join([data[byte::size] for byte in range(_INDEX_BYTES)])


@lru_cache(maxsize=64)
def _index_bytes_below(count: int) -> bytes:
    return _index_bytes(struct.pack(f">{count}i", *range(count)), _INDEX_BYTES)


# One state


def unpack_partition(state: bytes) -> PartitionMetadata:
    """The fields of a state."""
    index, leader, leader_epoch = _INDEX_LEADER_EPOCH.unpack_from(state)
    isr, at = _array(state, _ISR_AT)
    replicas, at = _array(state, at + _VERSION_BYTES)
    offline, _ = _array(state, at)
    return PartitionMetadata(index, leader, leader_epoch, replicas, isr, offline)


def index_of(state: bytes) -> int:
    """The partition number of a state."""
    return int.from_bytes(state[:_INDEX_BYTES], "big", signed=True)


def index_and_leader(state: bytes) -> tuple[int, int]:
    """The partition number and the leader of a state."""
    index, leader = _INDEX_LEADER.unpack_from(state)
    return index, leader


def with_leader(state: bytes, leader: int) -> bytes:
    """The state with another leader."""
    return state[: _LEADER.start] + leader.to_bytes(4, "big", signed=True) + state[_LEADER.stop :]


def response_record(state: bytes) -> bytes:
    """The partition in a Metadata response from v9 on, with no error."""
    isr, replicas, _ = _list_bytes(state)
    replicas_at = _ISR_AT + isr + _VERSION_BYTES
    fields = (
        _NO_ERROR,
        state[:_INDEX_BYTES],
        state[_LEADER.start : _ISR_AT],
        state[replicas_at : replicas_at + replicas],
        state[_ISR_AT : _ISR_AT + isr],
        state[replicas_at + replicas :],
    )
    return b"".join(fields)


def _list_bytes(state: bytes) -> tuple[int, int, int]:
    """How long the lists of the first state in `state` are: ISR, replicas, offline replicas."""
    isr = _ARRAY_BYTES[state[_ISR_AT]]
    replicas_at = _ISR_AT + isr + _VERSION_BYTES
    replicas = _ARRAY_BYTES[state[replicas_at]]
    return isr, replicas, _ARRAY_BYTES[state[replicas_at + replicas]]


@cache
def _state_and_record(
    isr: int, replicas: int, offline: int
) -> tuple[Callable[[bytes], Iterator[tuple[Any, ...]]], Callable[..., bytes]]:
    """What cuts states whose lists have these sizes, and what packs their parts as records."""
    state = struct.Struct(f">4s4x8s{isr}s{_VERSION_BYTES}x{replicas}s{offline}sx")
    record = struct.Struct(f">2x4s8s{replicas}s{isr}s{offline}sx")
    return state.iter_unpack, record.pack


@cache
def _ids(count: int) -> struct.Struct:
    return struct.Struct(f">{count}i")


def _array(state: bytes, at: int) -> tuple[tuple[int, ...], int]:
    layout = _ids(state[at] - 1)
    return layout.unpack_from(state, at + 1), at + 1 + layout.size
