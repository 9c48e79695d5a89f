"""The `state` znodes of many partitions, from columns to requests and from replies to columns.

A failover reads a million of these nodes and a broker's failure writes hundreds of thousands, so
nothing here makes an object for each field of each node. `wire.py` and `znodes.py` have the plain
way, which takes each node by itself; the tests compare the two, and what does not have the usual
form goes the plain way here too (ADR 22).

This module needs numpy, which the broker's process does not load: only the controller imports it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from struct import Struct
from typing import Final, NamedTuple, TypeAlias

import numpy as np
import orjson
from numpy.typing import NDArray

from klamm.errors import MalformedZnodeError
from klamm.zookeeper import wire, znodes
from klamm.zookeeper.store import Create, Row, RowOutcome, SetData
from klamm.zookeeper.wire import Opcode

I8: TypeAlias = NDArray[np.int8]
I32: TypeAlias = NDArray[np.int32]
I64: TypeAlias = NDArray[np.int64]
U8: TypeAlias = NDArray[np.uint8]

NO_BROKER: Final = -1
_INT: Final = Struct(">i")


class DecodedStates(NamedTuple):
    """States as columns; `at` are the positions of the nodes that exist and can be decoded."""

    at: I64
    leader: I32
    leader_epoch: I32
    isr: I32  # padded with NO_BROKER
    controller_epoch: I32
    recovery: I8
    version: I32
    errors: list[MalformedZnodeError]


# --- replies --------------------------------------------------------------------------------------

#: What stands before the length and the data of a node in a reply: a result of getData.
_RESULT: Final = np.frombuffer(wire.OP_HEADER.pack(Opcode.GET_DATA, False, 0)[:8], np.uint64)[0]
_BEFORE_DATA: Final = 13
_VERSION_AFTER_DATA: Final = 32
_STAT_BYTES: Final = 68
_ZERO: Final = ord("0")


def decode_state_reply(reply: bytes, nodes: "StateNodes") -> DecodedStates:
    """The reply to a bulk read of the nodes."""
    found = _locate(reply, len(nodes))
    columns = None if found is None else _decode(*found)
    return _decode_one_by_one(reply, nodes) if columns is None else columns


def _locate(reply: bytes, count: int) -> tuple[U8, I64, I64] | None:
    """Where the data of each node begins and how long it is; None unless all are objects.

    The data of a state begins with a brace. Other braces may be among the bytes of a stat, so a
    brace counts only where the header of a result stands before it, and the ones that are found
    have to follow each other without a gap.
    """
    octets = np.frombuffer(reply, np.uint8)
    braces = np.flatnonzero(octets == ord("{"))
    braces = braces[braces >= wire.BODY + _BEFORE_DATA]
    before = _windows(octets, 8)[braces - _BEFORE_DATA].view(np.uint64)[:, 0]
    braces = braces[before == _RESULT]
    if len(braces) != count:
        return None
    length = _int32(octets, braces - 4).astype(np.int64)
    ends = braces + length + _STAT_BYTES
    is_whole = (
        braces[0] == wire.BODY + _BEFORE_DATA
        and int(length.min()) > 0
        and np.array_equal(ends[:-1] + _BEFORE_DATA, braces[1:])
        and ends[-1] + wire.OP_HEADER.size == len(reply)
        and bool((octets[braces + length - 1] == ord("}")).all())
    )
    return (octets, braces, length) if is_whole else None


def _windows(octets: U8, width: int) -> U8:
    """Every run of `width` octets, as a view."""
    return np.ndarray((len(octets) - width + 1, width), np.uint8, octets, strides=(1, 1))


def _int32(octets: U8, at: I64) -> I32:
    """The big-endian numbers at these places."""
    return _windows(octets, 4)[at].view(">i4")[:, 0].astype(np.int32)


class _Layout(NamedTuple):
    """Which of the numbers in a text is what, and its sign."""

    fields: tuple[int, ...]  # places of leader, leader_epoch, controller_epoch, recovery or -1
    isr: tuple[int, ...]
    signs: tuple[int, ...]  # in the order of the two above


def _decode(octets: U8, start: I64, length: I64) -> DecodedStates | None:
    """Decode texts that differ only in their digits together; None if one has no usual form.

    JSON that is equal but for the digits of its numbers has the same meaning but for the values of
    those numbers. So one text of each such shape is parsed, with the place of each number in its
    stead, and the numbers of all texts are computed as columns.
    """
    width = -(-int(length.max()) // 8) * 8
    if start[-1] + width > len(octets):
        octets = np.concatenate([octets, np.zeros(width, np.uint8)])
    text = _windows(octets, width)[start]
    text *= np.arange(width, dtype=np.int32) < length.astype(np.int32)[:, None]
    digit = text - np.uint8(_ZERO)
    is_digit = digit < 10
    shape = text - digit * is_digit
    first, group = _group(shape.view(np.uint64))
    layouts = [_layout(shape[row].tobytes().rstrip(b"\0")) for row in first.tolist()]
    if None in layouts:
        return None
    numbers = _numbers(digit, is_digit)
    if numbers is None:
        return None
    value, first_of_row = numbers
    version = _int32(octets, start + length + _VERSION_AFTER_DATA)
    return _columns(layouts, group, value, first_of_row, version)


_FACTORS: Final = np.random.default_rng(1).integers(1 << 63, size=64, dtype=np.uint64) | 1


def _group(words: NDArray[np.uint64]) -> tuple[I64, I64]:
    """The first of each kind of equal rows, and for each row the number of its kind."""
    key = np.zeros(len(words), np.uint64)
    for place in range(words.shape[1]):
        key = (key ^ words[:, place]) * _FACTORS[place % len(_FACTORS)]
        key ^= key >> np.uint64(29)
    _, first, kind = np.unique(key, return_index=True, return_inverse=True)
    if not np.array_equal(words[first][kind], words):  # different rows with the same key
        _, first, kind = np.unique(words, axis=0, return_index=True, return_inverse=True)
    return first, kind.reshape(-1)


@lru_cache(maxsize=4096)
def _layout(shape: bytes) -> _Layout | None:
    """What the numbers of a shape mean; None if a state of this shape needs a closer look."""
    parts: list[bytes] = []
    place = 0
    was_digit = False
    for octet in shape:
        is_digit = octet == _ZERO
        if is_digit and not was_digit:
            place += 1
            parts.append(b"%d" % place)
        elif not is_digit:
            parts.append(bytes([octet]))
        was_digit = is_digit
    try:
        json = orjson.loads(b"".join(parts))
        isr = json["isr"]
        fields = [json["leader"], json["leader_epoch"], json["controller_epoch"]]
        recovery = json.get("leader_recovery_state", 0)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return None
    if type(isr) is not list or not all(type(each) is int for each in (*fields, recovery, *isr)):
        return None
    places = [*fields, recovery, *isr]
    absolute = [abs(each) - 1 for each in places]
    signs = tuple(-1 if each < 0 else 1 for each in places)
    return _Layout(tuple(absolute[:4]), tuple(absolute[4:]), signs)


def _numbers(digit: U8, is_digit: NDArray[np.bool_]) -> tuple[I32, I64] | None:
    """The numbers of all texts, and where those of each text begin among them.

    None if one is written in a way in which JSON has no numbers, or is too large for a column.
    """
    # Texts begin and end with braces, so no number reaches into the next text.
    flat = is_digit.ravel()
    begin = np.flatnonzero(flat[1:] > flat[:-1]) + 1
    size = np.flatnonzero(flat[1:] < flat[:-1]) + 1 - begin
    digits = digit.ravel()
    value = digits[begin].astype(np.int32)
    longest = int(size.max(initial=1))
    if longest > 9 or bool(((value == 0) & (size > 1)).any()):
        return None
    for place in range(1, longest):
        more = np.flatnonzero(size > place)
        value[more] = value[more] * 10 + digits[begin[more] + place]
    rows = np.arange(len(digit), dtype=np.int64) * digit.shape[1]
    return value, np.searchsorted(begin, rows)


def _columns(
    layouts: Sequence[_Layout | None], group: I64, value: I32, first_of_row: I64, version: I32
) -> DecodedStates:
    distinct = {layout: number for number, layout in enumerate(dict.fromkeys(layouts))}
    of_row = np.array([distinct[layout] for layout in layouts])[group]
    count = len(group)
    widest = max(len(layout.isr) for layout in layouts if layout is not None)
    fields = np.zeros((4, count), np.int32)
    isr = np.full((count, max(widest, 1)), NO_BROKER, np.int32)
    for layout, number in distinct.items():
        assert layout is not None, "checked by the caller"
        rows = slice(None) if len(distinct) == 1 else np.flatnonzero(of_row == number)
        base = first_of_row[rows]
        for k, (place, sign) in enumerate(
            zip((*layout.fields, *layout.isr), layout.signs, strict=True)
        ):
            if place < 0:
                continue  # no recovery state: recovered, which is 0
            column = value[base + place] * sign
            if k < 4:
                fields[k, rows] = column
            else:
                isr[rows, k - 4] = column
    leader, leader_epoch, controller_epoch, recovery = fields
    return DecodedStates(
        np.arange(count),
        leader,
        leader_epoch,
        isr,
        controller_epoch,
        recovery.astype(np.int8),
        version,
        [],
    )


def _decode_one_by_one(reply: bytes, nodes: "StateNodes") -> DecodedStates:
    data, version = wire.decode_multi_get(reply)
    states = znodes.decode_states(nodes.paths(), data)
    width = max(map(len, states.isr), default=1)
    isr = np.full((len(states.at), max(width, 1)), NO_BROKER, np.int32)
    for row, members in enumerate(states.isr):
        isr[row, : len(members)] = members
    return DecodedStates(
        np.array(states.at, np.int64),
        np.array(states.leader, np.int32),
        np.array(states.leader_epoch, np.int32),
        isr,
        np.array(states.controller_epoch, np.int32),
        np.array(states.recovery, np.int8),
        np.array(version, np.int32)[states.at],
        states.errors,
    )


# --- requests -------------------------------------------------------------------------------------

#: Nodes of one request: they fit, because names have at most 249 characters.
READ_NODES_MAX: Final = 2000
_WRITE_NODES_MAX: Final = 1000
#: The most that a transaction with the longest names may have; the server takes 1 MB.
_WRITE_BYTES: Final = 900 * 1024
#: What a state takes up in a transaction besides its content: two paths, headers, lengths, ACLs.
_OVERHEAD_BYTES: Final = 2 * (64 + len(znodes.state_path("x" * 249, 2**31 - 1)))


@dataclass(frozen=True, slots=True, eq=False)
class StateNodes:
    """The `state` nodes of partitions: topic `names[i]` has `numbers[bounds[i]:bounds[i + 1]]`."""

    names: Sequence[str]
    bounds: Sequence[int]
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.numbers)

    def by_topic(self) -> Iterator[tuple[str, int, int]]:
        """Each topic with the bounds of its partitions."""
        return zip(self.names, self.bounds, self.bounds[1:], strict=False)

    def paths(self) -> list[str]:
        """The paths, below the chroot."""
        return [
            znodes.state_path(name, number)
            for name, first, end in self.by_topic()
            for number in self.numbers[first:end]
        ]

    def encode_reads(self, chroot: str) -> bytes:
        """A multiRead of all of them."""
        parts: list[bytes] = []
        tails = [_TAILS[number] for number in self.numbers]
        for name, first, end in self.by_topic():
            heads = _Heads(Opcode.GET_DATA, chroot, name)
            parts += [heads[len(tail)] + tail for tail in tails[first:end]]
        parts.append(wire.END)
        return b"\0".join(parts)  # A zero after each path: it is not to be watched.


class _Heads(dict[int, bytes]):
    """What stands before the last parts of a topic's paths, by how long those are."""

    def __init__(self, opcode: Opcode, chroot: str, topic: str) -> None:
        super().__init__()
        self._header = wire.HEADERS[opcode]
        self._stem = wire.full_path(chroot, znodes.partitions_path(topic)).encode() + b"/"

    def parent(self) -> bytes:
        """The header and the path of the node above the topic's partitions."""
        return self._header + _INT.pack(len(self._stem) - 1) + self._stem[:-1]

    def __missing__(self, tail_bytes: int) -> bytes:
        size = _INT.pack(len(self._stem) + tail_bytes)
        head = self[tail_bytes] = self._header + size + self._stem
        return head


class _Tails(dict[int, bytes]):
    """The last parts of the paths of states, by partition number."""

    def __missing__(self, number: int) -> bytes:
        tail = self[number] = b"%d/state" % number
        return tail


_TAILS: Final = _Tails()
_STATE_BYTES: Final = len(b"/state")


@dataclass(frozen=True, slots=True, eq=False)
class StateWrites:
    """States that replace those of the nodes, each on condition of a version: one transaction."""

    nodes: StateNodes
    #: Data and version of each node, as `encode_contents` makes them.
    contents: Sequence[bytes]

    def encode(self, chroot: str, *, secured: bool) -> bytes:
        """The operations of the transaction; ACLs are not their concern."""
        parts: list[bytes] = []
        tails = [_TAILS[number] for number in self.nodes.numbers]
        for name, first, end in self.nodes.by_topic():
            heads = _Heads(Opcode.SET_DATA, chroot, name)
            parts += [
                heads[len(tail)] + tail + content
                for tail, content in zip(tails[first:end], self.contents[first:end], strict=True)
            ]
        return b"".join(parts)

    def rows(self) -> list[Row]:
        """The same in the plain way."""
        return [
            (SetData(path, content[4:-4], _INT.unpack(content[-4:])[0]),)
            for path, content in zip(self.nodes.paths(), self.contents, strict=True)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class StateCreations:
    """The first states of the nodes, with the nodes above them: one transaction.

    `is_first[i]` says whether topic `names[i]` still needs the node above its partitions, which
    is a row of its own, before those of the partitions.
    """

    nodes: StateNodes
    #: The data of each node, as `encode_contents` makes it.
    contents: Sequence[bytes]
    is_first: Sequence[bool]

    def encode(self, chroot: str, *, secured: bool) -> bytes:
        """The operations of the transaction."""
        acl = wire.node_acl(znodes.TOPICS, secured=secured) + _INT.pack(0)  # neither flag is set
        empty = wire.NO_DATA + acl
        parts: list[bytes] = []
        tails = [_TAILS[number] for number in self.nodes.numbers]
        for (name, first, end), is_first in zip(self.nodes.by_topic(), self.is_first, strict=True):
            heads = _Heads(Opcode.CREATE, chroot, name)
            if is_first:
                parts.append(heads.parent() + empty)
            for tail, content in zip(tails[first:end], self.contents[first:end], strict=True):
                number = tail[:-_STATE_BYTES]
                parts += (heads[len(number)], number, empty, heads[len(tail)], tail, content, acl)
        return b"".join(parts)

    def of_states(self, outcomes: list[RowOutcome] | None) -> list[RowOutcome] | None:
        """The outcomes of the rows of partitions, from those of all rows."""
        if outcomes is None:
            return None
        found: list[RowOutcome] = []
        at = 0
        for (_, first, end), is_first in zip(self.nodes.by_topic(), self.is_first, strict=True):
            at += is_first
            found += outcomes[at : at + end - first]
            at += end - first
        return found

    def rows(self) -> list[Row]:
        """The same in the plain way."""
        rows: list[Row] = []
        for (name, first, end), is_first in zip(self.nodes.by_topic(), self.is_first, strict=True):
            if is_first:
                rows.append((Create(znodes.partitions_path(name), exist_ok=True),))
            for number, content in zip(
                self.nodes.numbers[first:end], self.contents[first:end], strict=True
            ):
                rows.append(
                    (
                        Create(znodes.partition_path(name, number), exist_ok=True),
                        Create(znodes.state_path(name, number), content[4:]),
                    )
                )
        return rows


def encode_contents(
    leader: I32,
    leader_epoch: I32,
    isr: I32,
    recovery: I8,
    controller_epoch: int,
    version: I32 | None = None,
) -> list[bytes]:
    """States as data with its length before it and, unless it is None, the version behind it."""
    columns = [leader, leader_epoch, recovery, *isr.T, *([] if version is None else [version])]
    # Hundreds of thousands of states are of a few thousand kinds: each kind is encoded once.
    table = np.stack(columns, axis=1, dtype=np.int64)
    first, kind = _group(table.view(np.uint64))
    data = znodes.encode_states(
        leader[first].tolist(),
        leader_epoch[first].tolist(),
        map(tuple, isr[first].tolist()),
        recovery[first].tolist(),
        controller_epoch,
    )
    contents = [_INT.pack(len(each)) + each for each in data]
    if version is not None:
        ends = map(_INT.pack, version[first].tolist())
        contents = [content + end for content, end in zip(contents, ends, strict=True)]
    return [contents[each] for each in kind.tolist()]


def rows_that_fit(contents: Sequence[bytes]) -> int:
    """How many such states a transaction takes, whatever their topics are called."""
    each = _OVERHEAD_BYTES + max(map(len, contents), default=0)
    return max(1, min(_WRITE_NODES_MAX, _WRITE_BYTES // each))
