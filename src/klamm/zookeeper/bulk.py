"""Bulk writes: many rows in few transactions, with an outcome for each row.

ZooKeeper performs a transaction as a whole or not at all, and names the first operation that
failed. So rows are packed into large transactions, several of which are in flight at a time; when
one fails, the failed row is removed and the others are sent again in smaller transactions, so that
a transaction with many failing rows is not sent again for each of them.

This module does not know how a transaction is sent: the simulation packs and retries in the same
way as the real store.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple, TypeAlias, TypeVar

from klamm.errors import FencedError
from klamm.zookeeper.store import (
    NO_VERSION,
    Check,
    Create,
    Delete,
    Fence,
    Op,
    PackedReads,
    PackedRows,
    Row,
    RowOutcome,
    SetData,
    Store,
    TransactionResult,
    ZooKeeperCode,
)

#: A transaction is closed when it has reached one of these; the server's limit is 1 MB.
TRANSACTION_BYTES: Final = 512 * 1024
TRANSACTION_ROWS: Final = 1000
#: What an operation takes up besides its path and data: headers, lengths, ACL.
_OVERHEAD_BYTES: Final = 64

#: Transactions under way at a time.
_WINDOW: Final = 8
#: The remaining rows of a failed transaction are sent in this many transactions.
_PIECES: Final = 8


class WrittenBatch(NamedTuple):
    """The result of a transaction, reduced to what bulk writes need."""

    code: ZooKeeperCode
    failed: int | None  # index of the operation that made it fail
    version: list[int]  # after each operation: of the data set or created, else NO_VERSION

    @classmethod
    def of(cls, result: TransactionResult) -> "WrittenBatch":
        """The same, from the full results."""
        version = [
            r.stat.version if r.stat else NO_VERSION if r.path is None else 0
            for r in result.results
        ]
        return cls(result.code, result.failed, version)


Transact: TypeAlias = Callable[[Sequence[Op]], Coroutine[None, None, WrittenBatch]]

_T = TypeVar("_T")


def start(request: Coroutine[None, None, _T]) -> asyncio.Task[_T]:
    """Start one of several requests; the caller awaits the oldest.

    When the session is lost all of them fail, and the caller gets the error from the first.
    """
    task = asyncio.create_task(request)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return task


async def write_rows(
    rows: Iterable[Row], fence: Fence | None, transact: Transact
) -> list[RowOutcome]:
    """Write all rows; see `Store.write_many`."""
    return await _Writer(fence, transact).write(rows)


async def read_batches(
    batches: Iterable[PackedReads], read: Callable[[PackedReads], Coroutine[None, None, bytes]]
) -> AsyncIterator[bytes]:
    """Read all batches; see `Store.read_packed`."""
    under_way: deque[asyncio.Task[bytes]] = deque()
    source = iter(batches)
    try:
        while True:
            for batch in islice(source, _WINDOW - len(under_way)):
                under_way.append(start(read(batch)))
            if not under_way:
                return
            reply = await under_way[0]
            under_way.popleft()
            yield reply
    finally:
        for task in under_way:
            task.cancel()


async def write_batches(
    batches: Iterable[PackedRows],
    transact: Callable[[PackedRows], Coroutine[None, None, bool]],
    write_many: Callable[[list[Row]], Coroutine[None, None, list[RowOutcome]]],
) -> list[list[RowOutcome] | None]:
    """Write all batches; see `Store.write_packed`. `transact` returns whether it succeeded."""
    results: list[list[RowOutcome] | None] = []
    failed: list[tuple[int, list[Row]]] = []
    under_way: deque[tuple[PackedRows, asyncio.Task[bool]]] = deque()

    async def settle() -> None:
        batch, written = under_way[0]
        if not await written:
            failed.append((len(results), batch.rows()))
        under_way.popleft()
        results.append(None)

    try:
        for batch in batches:
            while len(under_way) >= _WINDOW:
                await settle()
            under_way.append((batch, start(transact(batch))))
        while under_way:
            await settle()
    finally:
        for _, written in under_way:
            written.cancel()
    outcomes = iter(await write_many([row for _, rows in failed for row in rows]))
    for at, rows in failed:
        results[at] = list(islice(outcomes, len(rows)))
    return results


def fenced_error(fence: Fence) -> FencedError:
    """The error of a write whose fence does not hold."""
    return FencedError(
        f"{fence.path} is no longer at version {fence.version}: another controller has taken over."
    )


class _Batch:
    """Rows that share a transaction, and where they stood among all rows."""

    __slots__ = ("index", "nodes", "parents", "rows")

    def __init__(self, index: Sequence[int], rows: Sequence[Row]) -> None:
        self.index = index
        self.rows = rows
        self.nodes = {op.path for row in rows for op in row}
        #: Paths that are created or deleted; only for these the order of parents and children
        #: matters.
        self.parents = {
            op.path[: op.path.rindex("/")]
            for row in rows
            for op in row
            if type(op) is Create or type(op) is Delete
        }

    def is_related_to(self, other: "_Batch") -> bool:
        """Whether nodes of one are parents of nodes of the other."""
        return not (self.nodes.isdisjoint(other.parents) and self.parents.isdisjoint(other.nodes))


class _Writer:
    def __init__(self, fence: Fence | None, transact: Transact) -> None:
        self._fence = [] if fence is None else [Check(fence.path, fence.version)]
        self._transact = transact
        self._outcomes: list[RowOutcome] = []
        #: The remaining rows of failed transactions, which are sent before new rows.
        self._again: deque[_Batch] = deque()
        self._under_way: deque[tuple[_Batch, asyncio.Task[WrittenBatch]]] = deque()
        #: The paths of the transactions in flight; no path is in two of them.
        self._busy: set[str] = set()
        #: By row, the places of operations that were left out because they may fail.
        self._left_out: dict[int, list[int]] = {}

    async def write(self, rows: Iterable[Row]) -> list[RowOutcome]:
        new = self._pack(rows)
        waiting = next(new, None)
        try:
            while waiting or self._again or self._under_way:
                batch = self._again[0] if self._again else waiting
                if batch is not None and self._may_send(batch):
                    self._send(batch)
                    if self._again:
                        self._again.popleft()
                    else:
                        waiting = next(new, None)
                else:
                    batch, written = self._under_way[0]
                    self._settle(batch, await written)
                    self._under_way.popleft()
                    self._busy -= batch.nodes
        finally:
            for _, written in self._under_way:
                written.cancel()
        return self._outcomes

    def _pack(self, rows: Iterable[Row]) -> Iterator[_Batch]:
        batch: list[Row] = []
        first, size = 0, 0
        for row in rows:
            row_size = 0
            for op in row:
                path = op.path
                row_size += _OVERHEAD_BYTES + len(path if path.isascii() else path.encode())
                if (type(op) is SetData or type(op) is Create) and op.data is not None:
                    row_size += len(op.data)
            if batch and (size + row_size > TRANSACTION_BYTES or len(batch) >= TRANSACTION_ROWS):
                yield self._new_batch(first, batch)
                first += len(batch)
                batch, size = [], 0
            batch.append(row)
            size += row_size
        if batch:
            yield self._new_batch(first, batch)

    def _new_batch(self, first: int, rows: list[Row]) -> _Batch:
        self._outcomes += [_won(NO_VERSION)] * len(rows)
        return _Batch(range(first, first + len(rows)), rows)

    def _may_send(self, batch: _Batch) -> bool:
        # Transactions are carried out in the order in which they are sent, but one that fails is
        # sent again, after those behind it. So none may be behind one that it depends on.
        return (
            len(self._under_way) < _WINDOW
            and batch.nodes.isdisjoint(self._busy)
            and not any(batch.is_related_to(other) for other, _ in self._under_way)
        )

    def _send(self, batch: _Batch) -> None:
        ops: list[Op] = [*self._fence]
        for row in batch.rows:
            ops += row
        self._under_way.append((batch, start(self._transact(ops))))
        self._busy |= batch.nodes

    def _settle(self, batch: _Batch, written: WrittenBatch) -> None:
        skip = len(self._fence)
        if written.failed is None:
            at = skip - 1
            for i, row in zip(batch.index, batch.rows, strict=True):
                at += len(row)
                self._outcomes[i] = _won(written.version[at])
        elif written.failed < skip:
            raise fenced_error(Fence(self._fence[0].version, self._fence[0].path))
        else:
            self._lose(batch, written.failed - skip, written.code)

    def _lose(self, batch: _Batch, failed: int, code: ZooKeeperCode) -> None:
        """Take the row to blame out, or only its operation if that may fail, and go on."""
        at = 0
        while failed >= len(batch.rows[at]):
            failed -= len(batch.rows[at])
            at += 1
        loser, i = batch.rows[at], batch.index[at]
        rows, index = list(batch.rows[at + 1 :]), list(batch.index[at + 1 :])
        if not _may_fail(loser[failed], code):
            self._outcomes[i] = RowOutcome(code, NO_VERSION, self._original_place(i, failed))
        elif len(loser) > 1:
            self._left_out.setdefault(i, []).append(self._original_place(i, failed))
            rows.insert(0, [*loser[:failed], *loser[failed + 1 :]])
            index.insert(0, i)
        size = max(1, len(batch.rows) // _PIECES)
        pieces = [
            _Batch(index[start : start + size], rows[start : start + size])
            for start in range(0, len(rows), size)
        ]
        if at:
            # The rows before the loser were all acceptable.
            pieces.insert(0, _Batch(batch.index[:at], batch.rows[:at]))
        self._again.extendleft(reversed(pieces))

    def _original_place(self, i: int, place: int) -> int:
        for left_out in sorted(self._left_out.get(i, ())):
            place += left_out <= place
        return place


@lru_cache(maxsize=1024)
def _won(version: int) -> RowOutcome:
    return RowOutcome(ZooKeeperCode.OK, version)


def _may_fail(op: Op, code: ZooKeeperCode) -> bool:
    if type(op) is Create:
        return op.exist_ok and code is ZooKeeperCode.NODE_EXISTS
    return type(op) is Delete and op.missing_ok and code is ZooKeeperCode.NO_NODE


async def delete_subtrees(store: Store, roots: Iterable[str], fence: Fence | None) -> None:
    """Delete nodes with all that is below them; see `Store.delete_recursive`."""
    remaining = list(roots)
    while remaining:
        levels = [remaining]
        while levels[-1]:
            levels.append(await _children_of(store, levels[-1]))
        deletes = (Delete(path, missing_ok=True) for level in reversed(levels) for path in level)
        outcomes = await store.write_many(([delete] for delete in deletes), fence)
        # New children may have been created below nodes that had been listed already.
        root_outcomes = outcomes[len(outcomes) - len(remaining) :]
        remaining = [
            root for root, outcome in zip(remaining, root_outcomes, strict=True) if not outcome.ok
        ]


async def _children_of(store: Store, paths: list[str]) -> list[str]:
    found = []
    async for chunk in store.children_many(paths):
        for path, names in zip(chunk.path, chunk.children, strict=True):
            prefix = path.rstrip("/")
            found += [f"{prefix}/{name}" for name in names or ()]
    return found
