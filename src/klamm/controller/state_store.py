"""The `state` znodes of the cluster's rows: reads them into columns, and writes them from columns.

`klamm.zookeeper.bulk_states` has the bytes; this module knows which row is which node.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from typing import Final

import numpy as np

from klamm.core.cluster import NO_TOPIC, ClusterState, LeaderAndIsrs
from klamm.core.columns import I8, I32, I64, NO_BROKER, Mask, widen
from klamm.core.effects import StatesRead, WriteOutcome
from klamm.errors import MalformedZnodeError
from klamm.zookeeper.bulk import start
from klamm.zookeeper.bulk_states import (
    READ_NODES_MAX,
    DecodedStates,
    StateCreations,
    StateNodes,
    StateWrites,
    decode_state_reply,
    encode_contents,
    rows_that_fit,
)
from klamm.zookeeper.store import NO_VERSION, Fence, RowOutcome, Store, ZooKeeperCode

#: States whose contents are encoded together: few enough that the first transaction leaves at once.
_ENCODED_TOGETHER: Final = 25_000

_OUTCOME: Final = {
    ZooKeeperCode.OK: WriteOutcome.DONE,
    ZooKeeperCode.BAD_VERSION: WriteOutcome.BAD_VERSION,
    ZooKeeperCode.NO_NODE: WriteOutcome.NO_NODE,
    ZooKeeperCode.NODE_EXISTS: WriteOutcome.EXISTS,
}


def outcome_codes(outcomes: Sequence[RowOutcome] | None, count: int) -> I8:
    """What came of the rows of a write, as `WriteOutcome`; None: all of them were written."""
    if outcomes is None:
        return np.full(count, WriteOutcome.DONE, np.int8)
    codes = (_OUTCOME.get(outcome.code, WriteOutcome.FAILED) for outcome in outcomes)
    return np.fromiter(codes, np.int8, count)


class StateStore:
    """Reads and writes states; `complain` gets what cannot be read."""

    def __init__(self, store: Store, complain: Callable[[MalformedZnodeError], None]) -> None:
        self._store = store
        self._complain = complain
        #: Reads that were begun and that nobody has waited for yet.
        self._early: list[asyncio.Task[StatesRead]] = []
        #: Set when all requests of the read that was begun last were sent.
        self._asked: asyncio.Event | None = None

    def nodes(self, cluster: ClusterState, rows: I32) -> StateNodes:
        """The nodes of rows; those of a topic stand together, if its rows do."""
        topic_of = cluster.topic_of[rows]
        starts = np.flatnonzero(np.diff(topic_of, prepend=NO_TOPIC))
        names = [cluster.topic_at(index).name for index in topic_of[starts].tolist()]
        return StateNodes(names, [*starts.tolist(), len(rows)], cluster.partition[rows].tolist())

    def read_ahead(self, cluster: ClusterState, rows: I32) -> None:
        """Begin to read rows; the next `read` is of all rows that were begun, and gets them."""
        before, self._asked = self._asked, asyncio.Event()
        asked = self._asked

        async def read() -> StatesRead:
            # One after the other, so that topics are read in between; but the first requests of one
            # follow the last of the one before, so that ZooKeeper does not wait for us.
            if before is not None:
                await before.wait()
            return await self._read(cluster, rows, asked)

        self._early.append(start(read()))

    def cancel(self) -> None:
        """Forget what was begun to be read."""
        for task in self._early:
            task.cancel()
        self._early, self._asked = [], None

    async def read(self, cluster: ClusterState, rows: I32) -> StatesRead:
        """Read the states of rows."""
        if not self._early:
            return await self._read(cluster, rows)
        parts = [await task for task in self._early]
        self._early, self._asked = [], None
        width = max(part.states.isr.shape[1] for part in parts)
        some = [replace(part.states, isr=widen(part.states.isr, width)) for part in parts]
        states = LeaderAndIsrs(
            **{
                column.name: np.concatenate([getattr(each, column.name) for each in some])
                for column in fields(LeaderAndIsrs)
            }
        )
        assert np.array_equal(states.row, rows), "the rows that were begun are the ones to be read"
        return StatesRead(np.concatenate([part.found for part in parts]), states)

    async def _read(
        self, cluster: ClusterState, rows: I32, asked: asyncio.Event | None = None
    ) -> StatesRead:
        """Read the states of rows; `asked` is set when the last request is on its way."""
        count = len(rows)
        found = np.zeros(count, np.bool_)
        width = max(cluster.width, 1)
        states = LeaderAndIsrs(
            rows,
            np.full(count, NO_BROKER, np.int32),
            np.zeros(count, np.int32),
            np.full((count, width), NO_BROKER, np.int32),
            np.zeros(count, np.int8),
            np.zeros(count, np.int32),
            np.full(count, NO_VERSION, np.int32),
        )
        pending: deque[StateNodes] = deque()

        def batches() -> Iterator[StateNodes]:
            for first in range(0, count, READ_NODES_MAX):
                pending.append(self.nodes(cluster, rows[first : first + READ_NODES_MAX]))
                yield pending[-1]
            if asked is not None:
                asked.set()

        at = 0
        async for reply in self._store.read_packed(batches()):
            nodes = pending.popleft()
            columns = decode_state_reply(reply, nodes)
            for error in columns.errors:
                self._complain(error)
            if len(columns.at):
                position = columns.at + at
                states = _fill(states, position, columns)
                found[position] = True
            at += len(nodes)
        return StatesRead(found, states)

    async def write(self, cluster: ClusterState, states: LeaderAndIsrs, fence: Fence) -> I8:
        """Replace states, each on condition of its version."""
        if not len(states):
            return np.empty(0, np.int8)
        sizes: list[int] = []

        def batches() -> Iterator[StateWrites]:
            for nodes, contents in self._batches(cluster, states, with_version=True):
                sizes.append(len(nodes))
                yield StateWrites(nodes, contents)

        results = await self._store.write_packed(batches(), fence)
        codes = [outcome_codes(*each) for each in zip(results, sizes, strict=True)]
        return await self._check_refused(
            cluster, states.accepted(), np.concatenate(codes), WriteOutcome.BAD_VERSION
        )

    async def create(self, cluster: ClusterState, states: LeaderAndIsrs, fence: Fence) -> I8:
        """Create first states, and the nodes above them."""
        order = np.lexsort((cluster.partition[states.row], cluster.topic_of[states.row]))
        states = states.at(order.astype(np.int32))
        sent: list[StateCreations] = []
        seen: set[str] = set()

        def is_first(name: str) -> bool:
            # A topic that has a leader already has the node above its partitions, and creating it
            # again fails the transaction.
            is_known = name in seen or cluster.has_leadership[cluster.topics[name].rows].any()
            seen.add(name)
            return not is_known

        def batches() -> Iterator[StateCreations]:
            for nodes, contents in self._batches(cluster, states, with_version=False):
                are_first = [is_first(name) for name in nodes.names]
                sent.append(StateCreations(nodes, contents, are_first))
                yield sent[-1]

        results = await self._store.write_packed(batches(), fence)
        written = [
            outcome_codes(batch.of_states(result), len(batch.nodes))
            for batch, result in zip(sent, results, strict=True)
        ]
        outcomes = np.empty(len(states), np.int8)
        codes = await self._check_refused(
            cluster, states, np.concatenate(written), WriteOutcome.EXISTS
        )
        outcomes[order] = codes
        return outcomes

    async def _check_refused(
        self, cluster: ClusterState, expected: LeaderAndIsrs, codes: I8, refusal: WriteOutcome
    ) -> I8:
        """The outcomes, where a write that was refused because of itself is done.

        If the connection is lost before a response, the write is sent again and finds its own
        traces. A leader whose new ISR was refused would wait for a LeaderAndIsr that never comes.
        """
        refused = np.flatnonzero(codes == refusal).astype(np.int32)
        if len(refused):
            wanted = expected.decided_in(cluster.controller_epoch).at(refused)
            reply = await self._read(cluster, wanted.row)
            codes[refused[reply.found & _are_equal(reply.states, wanted)]] = WriteOutcome.DONE
        return codes

    def _batches(
        self, cluster: ClusterState, states: LeaderAndIsrs, *, with_version: bool
    ) -> Iterator[tuple[StateNodes, list[bytes]]]:
        """The nodes and the contents of each transaction.

        Contents are encoded for some transactions at a time, while ZooKeeper works on earlier ones.
        """
        for begin in range(0, len(states), _ENCODED_TOGETHER):
            some = slice(begin, begin + _ENCODED_TOGETHER)
            contents = encode_contents(
                states.leader[some],
                states.leader_epoch[some],
                states.isr[some],
                states.recovery[some],
                cluster.controller_epoch,
                states.version[some] if with_version else None,
            )
            rows = states.row[some]
            at_most = rows_that_fit(contents)
            for first in range(0, len(rows), at_most):
                end = first + at_most
                yield self.nodes(cluster, rows[first:end]), contents[first:end]


def _are_equal(some: LeaderAndIsrs, others: LeaderAndIsrs) -> Mask:
    """Which states are the same in both, versions included."""
    width = max(some.isr.shape[1], others.isr.shape[1])
    same: Mask = (widen(some.isr, width) == widen(others.isr, width)).all(axis=1)
    for column in fields(LeaderAndIsrs):
        if column.name != "isr":
            same &= getattr(some, column.name) == getattr(others, column.name)
    return same


def _fill(states: LeaderAndIsrs, position: I64, columns: DecodedStates) -> LeaderAndIsrs:
    """Copy decoded states into the columns; a longer ISR widens them."""
    width = max(columns.isr.shape[1], states.isr.shape[1])
    states = replace(states, isr=widen(states.isr, width))
    states.leader[position] = columns.leader
    states.leader_epoch[position] = columns.leader_epoch
    states.isr[position] = widen(columns.isr, width)
    states.recovery[position] = columns.recovery
    states.controller_epoch[position] = columns.controller_epoch
    states.version[position] = columns.version
    return states
