"""States in bulk: the same requests and the same columns as in the plain way, and both stores."""

import json
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from klamm.errors import FencedError
from klamm.zookeeper import wire, znodes
from klamm.zookeeper.bulk_states import (
    StateCreations,
    StateNodes,
    StateWrites,
    decode_state_reply,
    encode_contents,
    rows_that_fit,
)
from klamm.zookeeper.store import Fence, Op, PackedRows, Stat, Store, Znode, ZooKeeperCode
from klamm.zookeeper.wire import Opcode
from klamm.zookeeper.znodes import CONTROLLER_EPOCH
from tests.zookeeper.conftest import ZooKeeper

FENCE = Fence(0)
NAMES = st.text("abc-._", min_size=1, max_size=9)
CHROOTS = st.sampled_from(["", "/kafka"])


@st.composite
def nodes_of(draw: st.DrawFn, size: int | None = None) -> StateNodes:
    """Nodes of several topics, with numbers of different lengths."""
    names, bounds, numbers = [], [0], []
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    for count in counts if size is None else [size]:
        names.append(draw(NAMES))
        numbers += draw(st.lists(st.integers(0, 10**6), min_size=count, max_size=count))
        bounds.append(len(numbers))
    return StateNodes(names, bounds, numbers)


def contents_for(count: int, seed: int, *, versions: bool) -> list[bytes]:
    chance = random.Random(seed)
    columns = [
        np.array([chance.randrange(-1, 12) for _ in range(count)], np.int32) for _ in range(3)
    ]
    isr = np.array([[1, 10, -1] if chance.random() < 0.5 else [3, 2, 1]] * count, np.int32)
    recovery = np.array([chance.randrange(2) for _ in range(count)], np.int8)
    return encode_contents(
        columns[0], columns[1], isr, recovery, 7, columns[2] if versions else None
    )


# --- requests -------------------------------------------------------------------------------------


@given(nodes_of(), CHROOTS)
def test_reads_are_encoded_as_in_the_plain_way(nodes: StateNodes, chroot: str):
    plain = wire.encode_multi_read(Opcode.GET_DATA, nodes.paths(), chroot)
    assert nodes.encode_reads(chroot) == plain


def assert_as_in_the_plain_way(batch: PackedRows, chroot: str, secured: bool) -> None:
    ops: list[Op] = [op for row in batch.rows() for op in row]
    packed = batch.encode(chroot, secured=secured) + wire.END
    assert packed == wire.encode_multi(ops, chroot, secured=secured)


@given(nodes_of(), CHROOTS, st.booleans(), st.integers())
def test_writes_are_encoded_as_in_the_plain_way(
    nodes: StateNodes, chroot: str, secured: bool, seed: int
):
    batch = StateWrites(nodes, contents_for(len(nodes), seed, versions=True))
    assert_as_in_the_plain_way(batch, chroot, secured)


@given(nodes_of(), CHROOTS, st.booleans(), st.integers())
def test_creations_are_encoded_as_in_the_plain_way(
    nodes: StateNodes, chroot: str, secured: bool, seed: int
):
    contents = contents_for(len(nodes), seed, versions=False)
    is_first = [bool((seed >> k) & 1) for k in range(len(nodes.names))]
    assert_as_in_the_plain_way(StateCreations(nodes, contents, is_first), chroot, secured)


@given(st.lists(st.tuples(*[st.integers(-1, 3)] * 3, st.integers(0, 1)), min_size=1), st.booleans())
def test_each_state_keeps_its_own_content(
    rows: list[tuple[int, int, int, int]], with_versions: bool
):
    leader, epoch, version, recovery = np.array(rows, np.int32).T
    isr = np.stack([leader, np.full(len(rows), -1, np.int32)], axis=1)
    contents = encode_contents(
        leader, epoch, isr, recovery.astype(np.int8), 5, version if with_versions else None
    )
    for (leads, in_epoch, at_version, recovers), content in zip(rows, contents, strict=True):
        isr_of_row = (leads, -1)
        (data,) = znodes.encode_states([leads], [in_epoch], [isr_of_row], [recovers], 5)
        end = at_version.to_bytes(4, "big", signed=True) if with_versions else b""
        assert content == len(data).to_bytes(4, "big") + data + end


def test_a_transaction_of_the_longest_names_is_below_the_limit_of_the_server():
    contents = [b"x" * 400] * 2000
    fit = rows_that_fit(contents)
    names = ["n" * 249] * fit
    numbers = [10**6] * fit
    batch = StateCreations(
        StateNodes(names, range(fit + 1), numbers), contents[:fit], [False] * fit
    )
    assert 500_000 < len(batch.encode("/kafka", secured=True)) < wire.REQUEST_BYTES_MAX


# --- replies --------------------------------------------------------------------------------------


def reply_of(data: Sequence[bytes | None], missing: set[int], seed: int) -> bytes:
    """A reply whose stats hold bytes of any kind, braces among them."""
    chance = random.Random(seed)

    def stat() -> Stat:
        long = [chance.choice([0x7B7B7B7B, 0x7B, chance.randrange(1 << 40)]) for _ in range(6)]
        short = [chance.randrange(1000) for _ in range(5)]
        return Stat(*long[:4], *short[:3], long[4], *short[3:], long[5])

    found = [None if i in missing else Znode(each, stat()) for i, each in enumerate(data)]
    return wire.encode_multi_get_reply(found, 9)


def assert_decoded_as_in_the_plain_way(
    data: Sequence[bytes | None], missing: set[int], seed: int = 1
) -> None:
    reply = reply_of(data, missing, seed)
    nodes = StateNodes(["t"], [0, len(data)], range(len(data)))
    columns = decode_state_reply(reply, nodes)
    content, version = wire.decode_multi_get(reply)
    states = znodes.decode_states(nodes.paths(), content)
    assert columns.at.tolist() == states.at
    assert columns.leader.tolist() == states.leader
    assert columns.leader_epoch.tolist() == states.leader_epoch
    assert [[b for b in isr if b != -1] for isr in columns.isr.tolist()] == states.isr
    assert columns.controller_epoch.tolist() == states.controller_epoch
    assert columns.recovery.tolist() == states.recovery
    assert columns.version.tolist() == [version[i] for i in states.at]
    assert list(map(str, columns.errors)) == list(map(str, states.errors))


BIG = st.one_of(st.integers(0, 12), st.integers(0, 2**31 - 1))


@st.composite
def states(draw: st.DrawFn) -> bytes:
    """A sound state, as Kafka writes it or with other spaces, orders and keys."""
    fields = {
        "controller_epoch": draw(BIG),
        "leader": draw(st.integers(-1, 2000)),
        "version": 1,
        "leader_epoch": draw(BIG),
        "isr": draw(st.lists(st.integers(0, 2000), max_size=4)),
    }
    if draw(st.booleans()):
        fields["leader_recovery_state"] = draw(st.integers(0, 1))
    if draw(st.integers(0, 9)) == 0:
        fields[draw(st.sampled_from(["leader1", "x", "isr2"]))] = draw(
            st.sampled_from([1, "7", {"a": [1]}, 1.5, None, True])
        )
        fields = dict(draw(st.permutations(list(fields.items()))))
    return json.dumps(fields, separators=draw(st.sampled_from([(",", ":"), (", ", ": ")]))).encode()


#: What is not a state, or is written in a way that is not JSON.
ODD = [
    None,
    b"",
    b"{",
    b"7",
    b"[]",
    b"{}",
    b"null",
    b'{"leader":1,"isr":[1]}',
    b'{"leader":01,"leader_epoch":1,"isr":[1],"controller_epoch":1}',
    b'{"leader":1.5,"leader_epoch":1,"isr":[1],"controller_epoch":1}',
    b'{"leader":1e1,"leader_epoch":1,"isr":[1],"controller_epoch":1}',
    b'{"leader":"1","leader_epoch":1,"isr":[1],"controller_epoch":1}',
    b'{"leader":1,"leader_epoch":true,"isr":[1],"controller_epoch":1}',
    b'{"leader":1,"leader_epoch":1,"isr":["1"],"controller_epoch":1}',
    b'{"leader":1,"leader_epoch":1,"isr":{"1":1},"controller_epoch":1}',
    b'{"\\u006ceader":1,"leader_epoch":1,"isr":[1],"controller_epoch":1}',
    b'{"leader":1,"leader_epoch":1,"isr":[1],"controller_epoch":1}\0',
    b'{"leader":1,"leader_epoch":1,"isr":[1],"controller_epoch":1} ',
    b'{"leader":1,"leader":2,"leader_epoch":1,"isr":[1],"controller_epoch":1}',
]


@given(st.lists(states(), min_size=1, max_size=30), st.integers())
def test_sound_states_are_decoded_as_in_the_plain_way(data: list[bytes], seed: int):
    assert_decoded_as_in_the_plain_way(data, set(), seed)


@given(
    st.lists(st.one_of(states(), st.sampled_from(ODD)), min_size=1, max_size=10),
    st.sets(st.integers(0, 9)),
    st.integers(),
)
@example([b'{"isr":[],"leader":-1,"leader_epoch":0,"controller_epoch":3}'], set(), 0)
def test_states_that_are_missing_or_unsound_are_decoded_as_in_the_plain_way(
    data: list[bytes | None], missing: set[int], seed: int
):
    assert_decoded_as_in_the_plain_way(data, missing, seed)


# --- on both stores -------------------------------------------------------------------------------


async def controller(zk: ZooKeeper) -> Store:
    store = (await zk.client()).store
    await store.create(CONTROLLER_EPOCH, b"0")
    for path in ("/brokers", "/brokers/topics", "/brokers/topics/a", "/brokers/topics/b"):
        await store.create(path)
    return store


def batches_of(versions: Sequence[int] | None = None, size: int = 50) -> list[PackedRows]:
    """Two topics of 100 partitions: their creation, or writes that expect these versions."""
    found: list[PackedRows] = []
    for name in ("a", "b"):
        for first in range(0, 100, size):
            numbers = range(first, first + size)
            nodes = StateNodes([name], [0, size], numbers)
            leader = np.arange(first, first + size, dtype=np.int32)
            zeros, isr = np.zeros(size, np.int32), leader[:, None]
            version = None if versions is None else np.array(versions, np.int32)[leader]
            contents = encode_contents(leader, zeros, isr, zeros.astype(np.int8), 1, version)
            found.append(
                StateCreations(nodes, contents, [first == 0])
                if version is None
                else StateWrites(nodes, contents)
            )
    return found


async def versions_of(store: Store) -> list[list[int]]:
    nodes = [StateNodes([name], [0, 100], range(100)) for name in ("a", "b")]
    replies = [reply async for reply in store.read_packed(nodes)]
    return [
        decode_state_reply(reply, asked).version.tolist()
        for reply, asked in zip(replies, nodes, strict=True)
    ]


@pytest.mark.rule("FENCE-3")
async def test_batches_are_written_whole_and_read_back(zk: ZooKeeper):
    store = await controller(zk)
    assert await store.write_packed(batches_of(), FENCE) == [None] * 4
    assert await store.write_packed(batches_of([0] * 100), FENCE) == [None] * 4
    assert await versions_of(store) == [[1] * 100] * 2
    (reply,) = [r async for r in store.read_packed([StateNodes(["b"], [0, 2], [7, 100])])]
    columns = decode_state_reply(reply, StateNodes(["b"], [0, 2], [7, 100]))
    assert (columns.at.tolist(), columns.leader.tolist()) == ([0], [7])


@pytest.mark.rule("FENCE-5")
async def test_only_rows_that_lose_are_not_written(zk: ZooKeeper):
    store = await controller(zk)
    await store.write_packed(batches_of(), FENCE)
    expected = [0] * 100
    expected[60] = 5
    first, second, *others = await store.write_packed(batches_of(expected), FENCE)
    assert first is None
    assert second is not None
    assert [k for k, outcome in enumerate(second) if not outcome.ok] == [10]
    assert second[10].code is ZooKeeperCode.BAD_VERSION
    assert others[0] is None
    assert [v for v in (await versions_of(store))[0] if v == 0] == [0]


async def test_nodes_that_exist_above_new_states_do_no_harm(zk: ZooKeeper):
    store = await controller(zk)
    await store.create("/brokers/topics/a/partitions")
    await store.create("/brokers/topics/a/partitions/70")
    await store.create("/brokers/topics/b/partitions")
    await store.create("/brokers/topics/b/partitions/3")
    await store.create("/brokers/topics/b/partitions/3/state", b"taken")
    batches = batches_of()
    results = await store.write_packed(batches, FENCE)
    outcomes = [
        batch.of_states(result)
        for batch, result in zip(batches, results, strict=True)
        if isinstance(batch, StateCreations)
    ]
    lost = [
        (at, k, outcome.code)
        for at, of_batch in enumerate(outcomes)
        for k, outcome in enumerate(of_batch or ())
        if not outcome.ok
    ]
    assert lost == [(2, 3, ZooKeeperCode.NODE_EXISTS)]
    assert [len(versions) for versions in await versions_of(store)] == [100, 99]


@pytest.mark.rule("FENCE-4")
async def test_a_lost_fence_stops_batches(zk: ZooKeeper):
    store = await controller(zk)
    await store.set(CONTROLLER_EPOCH, b"1")
    with pytest.raises(FencedError, match="/controller_epoch is no longer at version 0"):
        await store.write_packed(batches_of(), FENCE)
    assert await store.children("/brokers/topics/a") == []
