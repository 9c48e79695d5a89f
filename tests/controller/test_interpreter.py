"""The interpreter performs every effect, and the history knows every reason of a decision."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from klamm.controller import announcements, state_store
from klamm.controller.interpreter import _HANDLERS
from klamm.core import effects
from klamm.core.cluster import ClusterState, LeaderAndIsrs, RegisteredBroker, TopicRead
from klamm.core.columns import I32, unpad
from klamm.core.context import Context
from klamm.core.effects import (
    CreateStates,
    DecisionReason,
    Effect,
    Procedure,
    ReadEffect,
    ReadStates,
    ReadStatesAhead,
    ReadTopics,
    ReplicaRequestRows,
    SendRequestBatch,
    StatesRead,
    WriteEffect,
    WriteOutcome,
    WriteStates,
)
from klamm.history.recorder import _KIND_OF
from klamm.protocol.apis import ApiKey
from klamm.protocol.codec.frames import decode_request
from klamm.protocol.codec.headers import RequestHeader
from klamm.protocol.fast.metadata_states import index_of
from klamm.zookeeper import znodes
from klamm.zookeeper.store import Fence
from tests.support.candidate import Node
from tests.support.state_znodes import encode_state


def on_a_node(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a coroutine as a test, with a candidate whose ZooKeeper is in memory."""

    def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        async def main() -> None:
            await test(Node(tmp_path), monkeypatch)

        asyncio.run(main())

    return run


BASES = {Effect, ReadEffect, WriteEffect}
EFFECTS = {
    kind
    for kind in vars(effects).values()
    if isinstance(kind, type) and issubclass(kind, Effect) and kind not in BASES
}


def test_every_effect_has_a_handler():
    assert set(_HANDLERS) == EFFECTS


def test_effects_named_read_or_watch_are_reads_and_those_named_write_or_drop_are_writes():
    for kind in EFFECTS:
        assert issubclass(kind, ReadEffect) == kind.__name__.startswith(("Read", "Watch"))
        if kind.__name__.startswith(("Write", "Create", "Delete", "Drop", "SetUp")):
            assert issubclass(kind, WriteEffect)


def test_the_history_has_a_kind_for_every_reason():
    assert set(_KIND_OF) == set(DecisionReason)


def cluster_of(topics: dict[str, int]) -> tuple[ClusterState, list[I32]]:
    """A cluster with these topics and their numbers of partitions, and the rows of each."""
    cluster = ClusterState()
    rows = []
    for name, count in topics.items():
        cluster.add_topic(name, None)
        rows.append(
            cluster.add_partitions({name: TopicRead(None, {n: [1, 2] for n in range(count)})})
        )
    return cluster, rows


@on_a_node
async def test_states_that_are_read_ahead_are_the_ones_that_are_read(
    node: Node, monkeypatch: pytest.MonkeyPatch
):
    cluster, (first, second) = cluster_of({"a": 2500, "b": 30})
    for name in ("a", "b"):
        await node.store.ensure_path(znodes.partitions_path(name))
    for name, number, isr in (("a", 3, [1]), ("a", 2400, [1, 2]), ("b", 7, [1, 2, 3, 4])):
        await node.store.ensure_path(znodes.partition_path(name, number))
        await node.store.create(znodes.state_path(name, number), encode_state(1, number, isr, 1))
    found: list[StatesRead] = []

    def read(*ahead: I32) -> Procedure[None]:
        for rows in ahead:
            yield ReadStatesAhead(rows)
        reply: StatesRead = yield ReadStates(np.concatenate([first, second]))
        found.append(reply)

    for ahead in ((), (first, second)):
        await node.interpreter.run(read(*ahead), Context(cluster), None)
    plain, early = found
    assert early.states.leader_epoch[early.found].tolist() == [3, 2400, 7]
    assert plain.found.tolist() == early.found.tolist()
    for name in plain.states.__slots__:
        assert np.array_equal(getattr(plain.states, name), getattr(early.states, name)), name


@on_a_node
async def test_what_was_read_ahead_for_nothing_does_not_reach_the_next_procedure(
    node: Node, monkeypatch: pytest.MonkeyPatch
):
    cluster, (first, second) = cluster_of({"a": 3, "b": 2})

    def give_up() -> Procedure[None]:
        yield ReadStatesAhead(first)

    async def read(rows: I32) -> int:
        counts: list[int] = []

        def procedure() -> Procedure[None]:
            reply: StatesRead = yield ReadStates(rows)
            counts.append(len(reply.found))

        await node.interpreter.run(procedure(), Context(cluster), None)
        return counts[0]

    await node.interpreter.run(give_up(), Context(cluster), None)
    assert await read(second) == 2


async def with_topic(node: Node) -> tuple[ClusterState, LeaderAndIsrs]:
    """A cluster with one topic, and first states for its five partitions."""
    cluster, (rows,) = cluster_of({"a": 5})
    await node.store.ensure_path(znodes.topic_path("a"))
    await node.store.create(znodes.CONTROLLER_EPOCH, b"1")
    node.interpreter.fence = Fence(0)
    numbers = np.arange(5, dtype=np.int32)
    states = LeaderAndIsrs(
        row=rows,
        leader=numbers,
        leader_epoch=numbers + 10,
        isr=np.stack([numbers, numbers + 1], axis=1),
        recovery=np.zeros(5, np.int8),
        controller_epoch=np.ones(5, np.int32),
        version=np.zeros(5, np.int32),
    )
    return cluster, states


@pytest.mark.parametrize("at_once", [1, 2, 100])
def test_states_are_the_same_however_many_are_encoded_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
):
    monkeypatch.setattr(state_store, "_ENCODED_TOGETHER", at_once)

    async def main() -> None:
        node = Node(tmp_path)
        cluster, states = await with_topic(node)
        found: list[StatesRead] = []

        def work() -> Procedure[None]:
            yield CreateStates(states)
            changed = replace(states, leader_epoch=states.leader_epoch * 2)
            outcomes = yield WriteStates(changed, DecisionReason.OFFLINE_ELECTION)
            assert outcomes.tolist() == [WriteOutcome.DONE] * 5
            reply: StatesRead = yield ReadStates(states.row)
            found.append(reply)

        await node.interpreter.run(work(), Context(cluster), None)
        (read,) = found
        assert read.found.all()
        assert read.states.leader.tolist() == [0, 1, 2, 3, 4]
        assert read.states.leader_epoch.tolist() == [20, 22, 24, 26, 28]
        assert [unpad(isr) for isr in read.states.isr] == [[n, n + 1] for n in range(5)]
        assert read.states.version.tolist() == [1] * 5

    asyncio.run(main())


@pytest.mark.rule("ISR-17")
@on_a_node
async def test_a_write_that_finds_its_own_traces_is_done(
    node: Node, monkeypatch: pytest.MonkeyPatch
):
    """As one does that is sent again because its response was lost with the connection."""
    cluster, states = await with_topic(node)
    others = replace(states, isr=np.where(states.row[:, None] < 2, states.isr, 7).astype(np.int32))
    found: list[list[int]] = []

    def work() -> Procedure[None]:
        for write in (
            CreateStates(states),
            CreateStates(states),
            CreateStates(others),
            WriteStates(states, DecisionReason.ISR_CHANGE),
            WriteStates(states, DecisionReason.ISR_CHANGE),
            WriteStates(others, DecisionReason.ISR_CHANGE),
        ):
            outcomes = yield write
            found.append(outcomes.tolist())

    await node.interpreter.run(work(), Context(cluster), None)
    done = [WriteOutcome.DONE] * 5
    assert found[:3] == [done, done, [*done[:2], *[WriteOutcome.EXISTS] * 3]]
    assert found[3:] == [done, done, [*done[:2], *[WriteOutcome.BAD_VERSION] * 3]]


@on_a_node
async def test_topics_that_are_read_ahead_are_the_ones_that_are_read(
    node: Node, monkeypatch: pytest.MonkeyPatch
):
    for name in ("a", "b", "c"):
        await node.store.ensure_path(znodes.topic_path(name))
        await node.store.set(
            znodes.topic_path(name), b'{"version":1,"partitions":{"0":[%d]}}' % ord(name)
        )
    found: list[dict[str, TopicRead]] = []

    def read(*effects: ReadTopics) -> Procedure[None]:
        for effect in effects:
            reply: dict[str, TopicRead] = yield effect
            found.append(reply)

    # What the last one begins is dropped.
    steps = [ReadTopics(["a"], ["b"]), ReadTopics(["b"], ["c"]), ReadTopics(["c"], ["a", "b"])]
    await node.interpreter.run(read(*steps), Context(ClusterState()), None)
    await node.interpreter.run(read(ReadTopics(["a", "b"])), Context(ClusterState()), None)
    assert [{name: topic.replicas[0] for name, topic in reply.items()} for reply in found] == [
        {"a": [97]},
        {"b": [98]},
        {"c": [99]},
        {"a": [97], "b": [98]},
    ]


@on_a_node
async def test_a_large_batch_is_encoded_elsewhere_and_no_differently(
    node: Node, monkeypatch: pytest.MonkeyPatch
):
    cluster, (first, second) = cluster_of({"a": 40, "b": 30})
    rows = np.concatenate([first, second])
    cluster.brokers = {id: RegisteredBroker(id, id) for id in (1, 2)}
    cluster.has_leadership[rows] = True
    cluster.isr[rows, 0] = 1
    cluster.isr[rows[::3], 1] = 2
    entries = {
        1: ReplicaRequestRows(rows[::2], rows[::2] % 3 == 0),
        2: ReplicaRequestRows(second, np.zeros(len(second), np.bool_)),
    }
    batch = SendRequestBatch(entries, rows, [1, 2], {})
    sent: list[bytes] = []

    def note(broker: int, request: Any) -> None:
        header = RequestHeader(request.api_key, request.api_version, 1, "")
        sent.append(b"%d:" % broker + b"".join(request.encode(header)))

    monkeypatch.setattr(node.channels, "send", note)
    await node.request_sender.announce(cluster, batch)
    at_once, sent = sent, []
    monkeypatch.setattr(announcements, "_LARGE_BATCH_ROWS", 1)
    await node.request_sender.announce(cluster, batch)
    # What it says is what the cluster was when it was announced.
    cluster.isr[rows] = 7
    cluster.leader[rows] = 7
    assert await node.request_sender.wait_queued()
    assert len(sent) == 4
    assert sent == at_once


@on_a_node
async def test_batches_behind_a_large_one_are_queued_behind_it(
    node: Node, monkeypatch: pytest.MonkeyPatch
):
    cluster, (rows,) = cluster_of({"a": 10})
    cluster.brokers = {1: RegisteredBroker(1, 1)}
    cluster.has_leadership[rows] = True
    sent: list[ApiKey] = []
    monkeypatch.setattr(node.channels, "send", lambda _, request: sent.append(request.api_key))
    monkeypatch.setattr(announcements, "_LARGE_BATCH_ROWS", 10)
    none = np.zeros(1, np.int32)
    stopped = {1: ReplicaRequestRows(rows[:1], none > 0, none)}
    await node.request_sender.announce(cluster, SendRequestBatch({}, rows, [1], {}))
    await node.request_sender.announce(cluster, SendRequestBatch({}, rows[:0], [], stopped))
    assert sent == []
    assert await node.request_sender.wait_queued()
    assert sent == [ApiKey.UPDATE_METADATA, ApiKey.STOP_REPLICA]
    assert not await node.request_sender.wait_queued()


@pytest.mark.rule("CHAN-22")
@on_a_node
async def test_the_metadata_of_very_many_partitions_is_sent_in_several_requests(
    node: Node, monkeypatch: pytest.MonkeyPatch
):
    cluster, (rows,) = cluster_of({"a": 10})
    cluster.brokers = {id: RegisteredBroker(id, id) for id in (1, 2)}
    cluster.has_leadership[rows] = True
    told: dict[int, list[int]] = {1: [], 2: []}

    def note(broker: int, request: Any) -> None:
        header = RequestHeader(request.api_key, request.api_version, 1, "")
        body = decode_request(b"".join(request.encode(header))[4:]).body
        told[broker] += [index_of(each) for topic in body.topics for each in topic.states]

    monkeypatch.setattr(node.channels, "send", note)
    monkeypatch.setattr(announcements, "_METADATA_ROWS_MAX", 4)
    await node.request_sender.announce(cluster, SendRequestBatch({}, rows, [1, 2], {}))
    assert told == {1: list(range(10)), 2: list(range(10))}
