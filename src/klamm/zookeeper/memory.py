"""ZooKeeper in memory, for simulations: the same contract, no threads, no clock, no chance.

`MemoryZooKeeper` is the ensemble; each `session` is a `Store` on it. Sessions do not expire by
themselves: the simulation calls `expire`, and cuts and restores connections with `disconnect` and
`reconnect`. A session that expires while it is cut off does not know until it is back, which is how
a controller comes to believe in itself after its time.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final, TypeVar

from klamm.errors import SessionLostError
from klamm.zookeeper import bulk, wire
from klamm.zookeeper.store import (
    ANY_VERSION,
    NO_VERSION,
    Check,
    ChildrenChunk,
    Chunk,
    Create,
    Created,
    Delete,
    EventKind,
    Fence,
    NodeError,
    NodeExistsError,
    Op,
    OpResult,
    PackedReads,
    PackedRows,
    Row,
    RowOutcome,
    SessionExpired,
    SessionResumed,
    SessionStarted,
    SessionSuspended,
    SetData,
    Stat,
    StoreEvent,
    TransactionResult,
    WatchEvent,
    Znode,
    ZooKeeperCode,
    node_error,
)

_T = TypeVar("_T")

_CHUNK_NODES: Final = 1000


@dataclass(slots=True)
class _Znode:
    data: bytes | None
    czxid: int
    mzxid: int
    pzxid: int
    ephemeral_owner: int = 0
    version: int = 0
    children: dict[str, None] = field(default_factory=dict)
    children_created: int = 0

    def stat(self) -> Stat:
        return Stat(
            self.czxid,
            self.mzxid,
            0,
            0,
            self.version,
            # Every creation and every deletion counts.
            2 * self.children_created - len(self.children),
            0,
            self.ephemeral_owner,
            len(self.data or b""),
            len(self.children),
            self.pzxid,
        )


@dataclass(slots=True)
class _Watches:
    """The watches of one session, by full path."""

    data: dict[str, None] = field(default_factory=dict)
    exist: dict[str, None] = field(default_factory=dict)  # on nodes that did not exist
    children: dict[str, None] = field(default_factory=dict)

    def pop(self, kind: EventKind, path: str) -> bool:
        """Whether such a change is watched for; if so, no longer."""
        if kind is EventKind.CREATED:
            kinds = [self.exist]
        elif kind is EventKind.CHANGED:
            kinds = [self.data]
        elif kind is EventKind.DELETED:
            kinds = [self.data, self.children]
        else:
            kinds = [self.children]
        armed = [watches.pop(path, 0) is None for watches in kinds]
        return any(armed)


class MemoryZooKeeper:
    """The nodes, and the sessions on them."""

    def __init__(self) -> None:
        self.zxid = 0
        self._nodes: dict[str, _Znode] = {"/": _Znode(b"", 0, 0, 0)}
        self._sessions: dict[int, MemoryStore] = {}
        self._last_session_id = 0

    def session(self, chroot: str = "", session_timeout_ms: int = 18_000) -> "MemoryStore":
        """Open a session below a chroot, which is created if it is missing."""
        parts = chroot.split("/")[1:]
        for i in range(len(parts)):
            path = "/" + "/".join(parts[: i + 1])
            if path not in self._nodes:
                self._transact([Create(path)], session_id=0)
        return MemoryStore(self, chroot, session_timeout_ms)

    def expire(self, store: "MemoryStore") -> None:
        """Expire a session. Its client learns it at once, or when it reconnects."""
        session_id = store.session_id
        self._end_session(session_id)
        if store.is_connected:
            store._disconnected()
            store._expired(session_id)

    def disconnect(self, store: "MemoryStore") -> None:
        """Cut the connection; requests wait from now on."""
        if store.is_connected:
            store._disconnected()

    def reconnect(self, store: "MemoryStore") -> None:
        """Restore the connection; if the session has expired meanwhile, the client learns it
        now.
        """
        if store.is_connected or store.is_ended:
            return
        if store.session_id in self._sessions:
            store._reconnected()
        else:
            store._expired(store.session_id)

    def _start_session(self, store: "MemoryStore") -> int:
        self._last_session_id += 1
        self._sessions[self._last_session_id] = store
        return self._last_session_id

    def _end_session(self, session_id: int) -> None:
        if self._sessions.pop(session_id, None) is None:
            return
        owned = [path for path, node in self._nodes.items() if node.ephemeral_owner == session_id]
        self._transact([Delete(path) for path in owned], session_id)

    def _transact(self, ops: Iterable[Op], session_id: int) -> TransactionResult:
        transaction = _Transaction(self._nodes, self.zxid + 1, session_id)
        results: list[OpResult] = []
        failed = None
        for op in ops:
            if failed is not None:
                results.append(OpResult(ZooKeeperCode.RUNTIME_INCONSISTENCY))
                continue
            try:
                results.append(transaction.apply(op))
            except NodeError as error:
                failed = len(results)
                results = [OpResult(ZooKeeperCode.OK) for _ in results]
                results.append(OpResult(error.code))
        self.zxid += 1  # a failed transaction has its number too
        if failed is not None:
            transaction.undo()
            return TransactionResult(results, failed)
        for kind, path in transaction.changes:
            self._fire(kind, path)
        return TransactionResult(results)

    def _fire(self, kind: EventKind, path: str) -> None:
        for store in list(self._sessions.values()):
            if store.is_connected:
                store._changed(kind, path)


class _Transaction:
    """Operations carried out on the nodes, which can be taken back."""

    def __init__(self, nodes: dict[str, _Znode], zxid: int, session_id: int) -> None:
        self._nodes = nodes
        self._zxid = zxid
        self._session_id = session_id
        self._undo: list[Callable[[], object]] = []
        #: What watches would see.
        self.changes: list[tuple[EventKind, str]] = []

    def undo(self) -> None:
        for take_back in reversed(self._undo):
            take_back()

    def apply(self, op: Op) -> OpResult:
        match op:
            case Create():
                return OpResult(ZooKeeperCode.OK, self._create(op))
            case SetData():
                return OpResult(ZooKeeperCode.OK, None, self._set(op))
            case Delete():
                self._delete(op)
            case Check():
                self._expect(op.path, op.version)
        return OpResult(ZooKeeperCode.OK)

    def _expect(self, path: str, version: int) -> _Znode:
        node = self._nodes.get(path)
        if node is None:
            raise node_error(ZooKeeperCode.NO_NODE, path)
        if version not in (ANY_VERSION, node.version):
            raise node_error(ZooKeeperCode.BAD_VERSION, path)
        return node

    def _create(self, op: Create) -> str:
        parent_path, _, name = op.path.rpartition("/")
        parent = self._nodes.get(parent_path or "/")
        if parent is None:
            raise node_error(ZooKeeperCode.NO_NODE, op.path)
        if op.sequential:
            name += f"{parent.children_created:010d}"
        path = f"{parent_path}/{name}"
        if path in self._nodes:
            raise node_error(ZooKeeperCode.NODE_EXISTS, op.path)
        if parent.ephemeral_owner:
            raise node_error(ZooKeeperCode.NO_CHILDREN_FOR_EPHEMERALS, op.path)
        zxid = self._zxid
        owner = self._session_id if op.ephemeral else 0
        self._nodes[path] = _Znode(op.data, zxid, zxid, zxid, owner)
        self._touch(parent_path or "/", parent)
        parent.children[name] = None
        parent.children_created += 1

        def take_back() -> None:
            del self._nodes[path]
            del parent.children[name]
            parent.children_created -= 1

        self._undo.append(take_back)
        self.changes.append((EventKind.CREATED, path))
        self.changes.append((EventKind.CHILDREN, parent_path or "/"))
        return path

    def _set(self, op: SetData) -> Stat:
        node = self._expect(op.path, op.version)
        before = node.data, node.mzxid, node.version

        def take_back() -> None:
            node.data, node.mzxid, node.version = before

        self._undo.append(take_back)
        node.data, node.mzxid, node.version = op.data, self._zxid, node.version + 1
        self.changes.append((EventKind.CHANGED, op.path))
        return node.stat()

    def _delete(self, op: Delete) -> None:
        node = self._expect(op.path, op.version)
        if node.children:
            raise node_error(ZooKeeperCode.NOT_EMPTY, op.path)
        parent_path, _, name = op.path.rpartition("/")
        parent = self._nodes[parent_path or "/"]
        self._touch(parent_path or "/", parent)
        del self._nodes[op.path]
        del parent.children[name]

        def take_back() -> None:
            self._nodes[op.path] = node
            parent.children[name] = None

        self._undo.append(take_back)
        self.changes.append((EventKind.DELETED, op.path))
        self.changes.append((EventKind.CHILDREN, parent_path or "/"))

    def _touch(self, path: str, parent: _Znode) -> None:
        before = parent.pzxid

        def take_back() -> None:
            parent.pzxid = before

        self._undo.append(take_back)
        parent.pzxid = self._zxid


class MemoryStore:
    """A `Store` on a `MemoryZooKeeper`."""

    def __init__(self, zookeeper: MemoryZooKeeper, chroot: str, session_timeout_ms: int) -> None:
        self.session_timeout_ms = session_timeout_ms
        self._zookeeper = zookeeper
        self._chroot = chroot
        self._events: asyncio.Queue[StoreEvent | None] = asyncio.Queue()
        self._connected = asyncio.Event()
        self._start()

    def _start(self) -> None:
        self._watches = _Watches()
        self._seen_zxid = 0
        self._ended = False
        self._session_id = self._zookeeper._start_session(self)
        self._connected.set()
        self._events.put_nowait(SessionStarted(self._session_id))

    # --- the session ---

    @property
    def is_connected(self) -> bool:
        """Whether requests are carried out, rather than waiting or failing."""
        return self._connected.is_set() and not self._ended

    @property
    def is_ended(self) -> bool:
        """Whether the store was closed, or knows that its session has expired."""
        return self._ended

    @property
    def session_id(self) -> int:
        return self._session_id

    async def events(self) -> AsyncIterator[StoreEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    async def renew(self) -> None:
        self._give_up_session()
        await asyncio.sleep(0)
        self._start()

    async def close(self) -> None:
        self._give_up_session()
        self._events.put_nowait(None)

    def _give_up_session(self) -> None:
        """End the session; its requests fail from now on."""
        self._zookeeper._end_session(self._session_id)
        self._ended = True
        self._connected.set()

    def _disconnected(self) -> None:
        self._connected.clear()
        # What changed up to here has been reported.
        self._seen_zxid = self._zookeeper.zxid
        self._events.put_nowait(SessionSuspended())

    def _expired(self, session_id: int) -> None:
        self._ended = True
        self._connected.set()
        self._events.put_nowait(SessionExpired(session_id))

    def _reconnected(self) -> None:
        self._connected.set()
        self._events.put_nowait(SessionResumed())
        nodes = self._zookeeper._nodes
        for path in list(self._watches.data):
            self._catch_up(path, self._seen_zxid)
        for path in list(self._watches.exist):
            if path in nodes:
                self._changed(EventKind.CREATED, path)
        for path in list(self._watches.children):
            node = nodes.get(path)
            if node is None:
                self._changed(EventKind.DELETED, path)
            elif node.pzxid > self._seen_zxid:
                self._changed(EventKind.CHILDREN, path)

    def _catch_up(self, path: str, since_zxid: int) -> None:
        """Let a data watch fire if it would have since."""
        node = self._zookeeper._nodes.get(path)
        if node is None:
            self._changed(EventKind.DELETED, path)
        elif node.mzxid > since_zxid:
            self._changed(EventKind.CHANGED, path)

    def _changed(self, kind: EventKind, path: str) -> None:
        """Report a change to the consumer if there is a watch for it, and remove the watch."""
        if self._watches.pop(kind, path):
            self._events.put_nowait(WatchEvent(kind, path[len(self._chroot) :] or "/"))

    # --- single operations ---

    async def get(self, path: str, *, watch: bool = False) -> Znode:
        def perform() -> Znode:
            node = self._find(path)
            if watch:
                self._watches.data[self._full(path)] = None
            return Znode(node.data, node.stat())

        return await self._request(perform)

    async def exists(self, path: str, *, watch: bool = False) -> Stat | None:
        def perform() -> Stat | None:
            node = self._zookeeper._nodes.get(self._full(path))
            if watch:
                watches = self._watches.exist if node is None else self._watches.data
                watches[self._full(path)] = None
            return None if node is None else node.stat()

        return await self._request(perform)

    async def children(self, path: str, *, watch: bool = False) -> list[str]:
        def perform() -> list[str]:
            node = self._find(path)
            if watch:
                self._watches.children[self._full(path)] = None
            return list(node.children)

        return await self._request(perform)

    async def create(
        self,
        path: str,
        data: bytes | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Created:
        def perform() -> Created:
            result = self._transact([Create(path, data, ephemeral, sequential)])
            if not result.ok:
                raise node_error(result.code, path)
            created = result.results[0].path
            assert created is not None
            return Created(created, self._zookeeper._nodes[self._full(created)].stat())

        return await self._request(perform)

    async def set(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> Stat:
        result = await self._single(SetData(path, data, version))
        assert result.stat is not None
        return result.stat

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._single(Delete(path, version))

    async def ensure_path(self, path: str) -> None:
        parts = path.split("/")[1:]
        for i in range(len(parts)):
            with contextlib.suppress(NodeExistsError):
                await self._single(Create("/" + "/".join(parts[: i + 1])))

    async def multi(self, ops: Sequence[Op]) -> TransactionResult:
        return await self._request(lambda: self._transact(ops))

    def _transact(self, ops: Sequence[Op]) -> TransactionResult:
        full = [op._replace(path=self._full(op.path)) for op in ops]
        result = self._zookeeper._transact(full, self._session_id)
        skip = len(self._chroot)
        results = [r if r.path is None else r._replace(path=r.path[skip:]) for r in result.results]
        return TransactionResult(results, result.failed)

    async def _single(self, op: Op) -> OpResult:
        result = await self.multi([op])
        if not result.ok:
            raise node_error(result.code, op.path)
        return result.results[0]

    # --- bulk ---

    async def read_many(self, paths: Iterable[str]) -> AsyncIterator[Chunk]:
        for batch in _chunks(paths):
            yield await self._request(partial(self._read, batch))

    def _read(self, paths: list[str]) -> Chunk:
        nodes = self._nodes_at(paths)
        data = [None if node is None else node.data for node in nodes]
        version = [NO_VERSION if node is None else node.version for node in nodes]
        return Chunk(paths, data, version, self._zookeeper.zxid)

    async def children_many(self, paths: Iterable[str]) -> AsyncIterator[ChildrenChunk]:
        for batch in _chunks(paths):
            yield await self._request(partial(self._read_children, batch))

    def _read_children(self, paths: list[str]) -> ChildrenChunk:
        children = [None if node is None else list(node.children) for node in self._nodes_at(paths)]
        return ChildrenChunk(paths, children, self._zookeeper.zxid)

    async def watch_data(self, paths: Iterable[str], since_zxid: int) -> None:
        full = [self._full(path) for path in paths]

        def perform() -> None:
            for path in full:
                self._watches.data[path] = None
                self._catch_up(path, since_zxid)

        await self._request(perform)

    async def write_many(self, rows: Iterable[Row], fence: Fence | None = None) -> list[RowOutcome]:
        async def transact(ops: Sequence[Op]) -> bulk.WrittenBatch:
            return bulk.WrittenBatch.of(await self.multi(ops))

        return await bulk.write_rows(rows, fence, transact)

    async def read_packed(self, batches: Iterable[PackedReads]) -> AsyncIterator[bytes]:
        for batch in batches:
            yield await self._request(partial(self._read_packed, batch))

    def _read_packed(self, batch: PackedReads) -> bytes:
        nodes = [
            None if node is None else Znode(node.data, node.stat())
            for node in self._nodes_at(batch.paths())
        ]
        return wire.encode_multi_get_reply(nodes, self._zookeeper.zxid)

    async def write_packed(
        self, batches: Iterable[PackedRows], fence: Fence
    ) -> list[list[RowOutcome] | None]:
        async def transact(batch: PackedRows) -> bool:
            rows = batch.rows()
            ops = [Check(fence.path, fence.version), *(op for row in rows for op in row)]
            result = await self.multi(ops)
            if result.failed == 0:
                raise bulk.fenced_error(fence)
            return result.ok

        return await bulk.write_batches(
            batches, transact, lambda rows: self.write_many(rows, fence)
        )

    async def delete_recursive(self, roots: Iterable[str], fence: Fence | None = None) -> None:
        await bulk.delete_subtrees(self, roots, fence)

    # --- requests ---

    def _full(self, path: str) -> str:
        return self._chroot + path if path != "/" else self._chroot or "/"

    def _find(self, path: str) -> _Znode:
        node = self._zookeeper._nodes.get(self._full(path))
        if node is None:
            raise node_error(ZooKeeperCode.NO_NODE, path)
        return node

    def _nodes_at(self, paths: Iterable[str]) -> list[_Znode | None]:
        return [self._zookeeper._nodes.get(self._full(path)) for path in paths]

    async def _request(self, perform: Callable[[], _T]) -> _T:
        """Carry out a request when it is its turn and there is a connection.

        Its response, or its error, does not overtake events that were sent before it.
        """
        session_id = self._session_id
        await asyncio.sleep(0)
        await self._connected.wait()
        self._check_session(session_id)
        try:
            return perform()
        finally:
            await asyncio.sleep(0)

    def _check_session(self, session_id: int) -> None:
        """Fail a request of a session that is gone, even if there is a new one."""
        if self._ended or self._session_id != session_id:
            raise SessionLostError(f"ZooKeeper session {session_id:#x} is gone.")


def _chunks(paths: Iterable[str]) -> Iterator[list[str]]:
    source = iter(paths)
    while batch := list(islice(source, _CHUNK_NODES)):
        yield batch
