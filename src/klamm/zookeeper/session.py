"""The store on a real ZooKeeper.

`open_store` connects; `ZooKeeperStore` puts the operations of the `Store` protocol into requests,
for one `ZooKeeperConnection` after another, one per session.
"""

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from klamm.errors import ConfigError, UnavailableError
from klamm.zookeeper import bulk, wire
from klamm.zookeeper.connection import DigestLogin, ZooKeeperConnection
from klamm.zookeeper.store import (
    ANY_VERSION,
    ChildrenChunk,
    Chunk,
    Created,
    EventKind,
    Fence,
    NodeExistsError,
    NoNodeError,
    Op,
    PackedReads,
    PackedRows,
    Row,
    RowOutcome,
    Stat,
    StoreEvent,
    TransactionResult,
    Znode,
    ZooKeeperCode,
)
from klamm.zookeeper.wire import Opcode

_Chunk = TypeVar("_Chunk", Chunk, ChildrenChunk)

#: Bulk reads under way at a time.
_WINDOW: Final = 6
#: Nodes per bulk read: the first, and the most; in between, as many as make for such a reply.
_FIRST_READS: Final = 100
_READS_MAX: Final = 1000
_REPLY_BYTES: Final = 256 * 1024
_REQUEST_BYTES: Final = 512 * 1024


@dataclass(frozen=True, slots=True)
class ZooKeeperAccess:
    """How a client reaches ZooKeeper, and whether its nodes are for others to change."""

    tls: ssl.SSLContext | None = None
    login: DigestLogin | None = None
    #: `zookeeper.set.acl`: what this client creates, only it may change.
    sets_acls: bool = False


OPEN_ACCESS: Final = ZooKeeperAccess()


async def open_store(
    connect: str,
    session_timeout_ms: int = 18_000,
    *,
    connect_timeout_s: float = 18.0,
    max_in_flight: int = 10,
    access: ZooKeeperAccess = OPEN_ACCESS,
) -> "ZooKeeperStore":
    """Connect to `host:port,host:port/chroot`, and create the chroot if it is missing (ZK-1).

    Raises `UnavailableError` if no server responds within `connect_timeout_s`. At most
    `max_in_flight` requests are pending at a time (ZK-23).
    """
    hosts, chroot = split_connect_string(connect)
    store = ZooKeeperStore(hosts, chroot, session_timeout_ms, max_in_flight, access)
    try:
        async with asyncio.timeout(connect_timeout_s):
            await store.open()
    except TimeoutError:
        raise UnavailableError(
            f"No ZooKeeper answered at {connect} within {connect_timeout_s:g} s."
        ) from None
    return store


async def open_existing_store(connect: str) -> "ZooKeeperStore":
    """Connect to a cluster that must be there: a missing chroot is refused, and not created."""
    hosts, chroot = split_connect_string(connect)
    if chroot:
        root = await open_store(hosts)
        try:
            if await root.exists(chroot) is None:
                raise ConfigError(f"There is no Kafka cluster at {connect}: {chroot} is missing.")
        finally:
            await root.close()
    return await open_store(connect)


def split_connect_string(connect: str) -> tuple[str, str]:
    """Hosts and chroot of a connect string; the chroot is empty or begins with a slash."""
    hosts, slash, chroot = connect.partition("/")
    if not hosts or any(not host.strip() for host in hosts.split(",")):
        raise ConfigError(
            f"zookeeper.connect is expected to be like host:2181,host:2181/chroot, not {connect!r}."
        )
    chroot = (slash + chroot).rstrip("/")
    if "//" in chroot:
        raise ConfigError(f"The chroot {chroot!r} of zookeeper.connect has an empty part.")
    return hosts, chroot


class ZooKeeperStore:
    """A `Store` on a ZooKeeper ensemble."""

    def __init__(
        self,
        hosts: str,
        chroot: str,
        session_timeout_ms: int,
        max_in_flight: int,
        access: ZooKeeperAccess = OPEN_ACCESS,
    ) -> None:
        self._sets_acls = access.sets_acls
        #: Called with the seconds that each response took.
        self.on_response: Callable[[float], None] | None = None
        self._events: asyncio.Queue[StoreEvent | None] = asyncio.Queue()
        self._chroot = chroot
        self._session_timeout_ms = session_timeout_ms
        self._new_connection: Callable[[], ZooKeeperConnection] = lambda: ZooKeeperConnection(
            hosts,
            chroot,
            session_timeout_ms,
            max_in_flight,
            self._events.put_nowait,
            self._responded,
            access.tls,
            access.login,
        )
        self._connection = self._new_connection()

    async def open(self) -> None:
        """Connect for the first time."""
        try:
            await self._connection.open()
            await self._ensure_full_path(self._chroot)
        except BaseException:
            await self.close()
            raise

    # --- the session ---

    @property
    def session_id(self) -> int:
        return self._connection.session_id

    @property
    def session_timeout_ms(self) -> int:
        return self._session_timeout_ms

    async def events(self) -> AsyncIterator[StoreEvent]:
        while (event := await self._events.get()) is not None:
            yield event

    async def renew(self) -> None:
        await self._connection.close()
        self._connection = self._new_connection()
        await self._connection.open()

    async def close(self) -> None:
        await self._connection.close()
        self._events.put_nowait(None)

    # --- single operations ---

    async def get(self, path: str, *, watch: bool = False) -> Znode:
        reply = await self._read(Opcode.GET_DATA, path, EventKind.CHANGED if watch else None)
        return wire.decode_node(reply)

    async def exists(self, path: str, *, watch: bool = False) -> Stat | None:
        request = wire.encode_read(self._full(path), watch)
        kind = EventKind.CREATED if watch else None
        reply = await self._connection.request(Opcode.EXISTS, request, path, watch=kind)
        return None if reply is None else wire.decode_stat(reply)

    async def children(self, path: str, *, watch: bool = False) -> list[str]:
        kind = EventKind.CHILDREN if watch else None
        return wire.decode_children(await self._read(Opcode.GET_CHILDREN, path, kind))

    async def _read(self, opcode: Opcode, path: str, watch: EventKind | None) -> bytes:
        request = wire.encode_read(self._full(path), watch is not None)
        return await self._request(opcode, request, path, watch)

    async def create(
        self,
        path: str,
        data: bytes | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Created:
        acl = wire.node_acl(path, secured=self._sets_acls)
        request = wire.encode_create(self._full(path), data, ephemeral, sequential, acl)
        reply = await self._request(Opcode.CREATE2, request, path)
        return wire.decode_created(reply, self._chroot)

    async def set(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> Stat:
        request = wire.encode_set(self._full(path), data, version)
        return wire.decode_stat(await self._request(Opcode.SET_DATA, request, path))

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        request = wire.encode_version(self._full(path), version)
        await self._request(Opcode.DELETE, request, path)

    async def ensure_path(self, path: str) -> None:
        await self._ensure_full_path(self._full(path))

    async def _ensure_full_path(self, full: str) -> None:
        if full in ("", "/"):
            return
        acl = wire.node_acl(full.removeprefix(self._chroot), secured=self._sets_acls)
        request = wire.encode_create(full, None, ephemeral=False, sequential=False, acl=acl)
        with contextlib.suppress(NodeExistsError):
            try:
                await self._request(Opcode.CREATE2, request, full)
            except NoNodeError:
                await self._ensure_full_path(full[: full.rindex("/")])
                await self._request(Opcode.CREATE2, request, full)

    async def multi(self, ops: Sequence[Op]) -> TransactionResult:
        return wire.decode_multi(await self._transact(ops), self._chroot)

    async def _transact(self, ops: Sequence[Op]) -> bytes:
        request = wire.encode_multi(ops, self._chroot, secured=self._sets_acls)
        return await self._request(Opcode.MULTI, request)

    # --- bulk ---

    def read_many(self, paths: Iterable[str]) -> AsyncIterator[Chunk]:
        def decode(paths: list[str], reply: bytes) -> Chunk:
            return Chunk(paths, *wire.decode_multi_get(reply), wire.decode_zxid(reply))

        return self._read_many(Opcode.GET_DATA, paths, decode)

    def children_many(self, paths: Iterable[str]) -> AsyncIterator[ChildrenChunk]:
        def decode(paths: list[str], reply: bytes) -> ChildrenChunk:
            return ChildrenChunk(paths, wire.decode_multi_children(reply), wire.decode_zxid(reply))

        return self._read_many(Opcode.GET_CHILDREN, paths, decode)

    def read_packed(self, batches: Iterable[PackedReads]) -> AsyncIterator[bytes]:
        async def read(batch: PackedReads) -> bytes:
            return await self._request(Opcode.MULTI_READ, batch.encode_reads(self._chroot))

        return bulk.read_batches(batches, read)

    async def write_packed(
        self, batches: Iterable[PackedRows], fence: Fence
    ) -> list[list[RowOutcome] | None]:
        check = wire.encode_check(fence, self._chroot)

        async def transact(batch: PackedRows) -> bool:
            ops = batch.encode(self._chroot, secured=self._sets_acls)
            reply = await self._request(Opcode.MULTI, check + ops + wire.END)
            if wire.is_carried_out(reply):
                return True
            if wire.decode_multi(reply, self._chroot).failed == 0:
                raise bulk.fenced_error(fence)
            return False

        return await bulk.write_batches(
            batches, transact, lambda rows: self.write_many(rows, fence)
        )

    async def _read_many(
        self, opcode: Opcode, paths: Iterable[str], decode: Callable[[list[str], bytes], _Chunk]
    ) -> AsyncIterator[_Chunk]:
        source = iter(paths)
        size = _FIRST_READS
        under_way: deque[tuple[list[str], asyncio.Task[bytes]]] = deque()
        try:
            while True:
                while len(under_way) < _WINDOW and (batch := _take(source, size)):
                    request = wire.encode_multi_read(opcode, batch, self._chroot)
                    read = bulk.start(self._request(Opcode.MULTI_READ, request))
                    under_way.append((batch, read))
                if not under_way:
                    return
                batch, read = under_way[0]
                reply = await read
                under_way.popleft()
                # Nodes may hold ten bytes or a megabyte: follow what comes.
                size = max(1, min(_READS_MAX, len(batch) * _REPLY_BYTES // len(reply)))
                yield decode(batch, reply)
        finally:
            for _, read in under_way:
                read.cancel()

    async def watch_data(self, paths: Iterable[str], since_zxid: int) -> None:
        await self._connection.watch_data(list(paths), since_zxid)

    async def watch_tree(self, path: str) -> None:
        """Watch a node and everything below it, missing nodes too; the watch stays when it fires.

        It ends with the connection: after `SessionResumed` it has to be set again. A server older
        than 3.6 raises a `NodeError` with UNIMPLEMENTED.
        """
        await self._request(Opcode.ADD_WATCH, wire.encode_add_watch(self._full(path)), path)

    async def write_many(self, rows: Iterable[Row], fence: Fence | None = None) -> list[RowOutcome]:
        async def transact(ops: Sequence[Op]) -> bulk.WrittenBatch:
            reply = await self._transact(ops)
            version = wire.decode_multi_versions(reply)
            if version is None:
                return bulk.WrittenBatch.of(wire.decode_multi(reply, self._chroot))
            return bulk.WrittenBatch(ZooKeeperCode.OK, None, version)

        return await bulk.write_rows(rows, fence, transact)

    async def delete_recursive(self, roots: Iterable[str], fence: Fence | None = None) -> None:
        await bulk.delete_subtrees(self, roots, fence)

    # --- requests ---

    def _responded(self, seconds: float) -> None:
        if self.on_response is not None:
            self.on_response(seconds)

    def _full(self, path: str) -> str:
        return wire.full_path(self._connection.chroot, path)

    async def _request(
        self, opcode: Opcode, request: bytes, path: str = "", watch: EventKind | None = None
    ) -> bytes:
        reply = await self._connection.request(opcode, request, path, watch=watch)
        assert reply is not None, "only `exists` has an empty response"
        return reply


def _take(source: Iterator[str], count: int) -> list[str]:
    """The next paths: at most `count`, and no more than fit into a request."""
    batch: list[str] = []
    size = 0
    for path in source:
        batch.append(path)
        size += 14 + len(path)
        if len(batch) >= count or size > _REQUEST_BYTES:
            break
    return batch
