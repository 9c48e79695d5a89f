"""The interface to ZooKeeper: operations, results, events and errors.

`Store` is one client of one ensemble, below one chroot. `klamm.zookeeper.session.open_store` gives
the real one, `klamm.zookeeper.memory.MemoryZooKeeper` the one for simulations; the same contract
tests run on both.

Three guarantees:

* *One order.* Results and events reach the event loop in the order in which ZooKeeper produced
  them: the event about a change of a node arrives before a read returns its new data.
* *Watches are armed by reads* (`watch=True`, `watch_data`), fire once, and survive a reconnection.
  Only a new session begins without any. After a reconnection a watch may fire although nothing
  changed since the last read; the consumer reads again in either case.
* *Connection loss is not seen by callers.* Every request is sent again after reconnecting until it
  gets a response, or the session is lost and it fails with `SessionLostError`. A write whose
  response was lost may therefore fail with NODE_EXISTS, NO_NODE or BAD_VERSION although it took
  effect; callers read the node, as they do after a true conflict.
"""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

from klamm.errors import KlammError

#: As an expected version: any will do.
ANY_VERSION: Final = -1
#: As a version that was read: there is no such node.
NO_VERSION: Final = -1


class ZooKeeperCode(IntEnum):
    """ZooKeeper's result codes, as far as klamm meets them."""

    OK = 0
    #: Also stands for every code that is not listed here.
    SYSTEM_ERROR = -1
    #: In a failed transaction: not tried, because an earlier operation had failed.
    RUNTIME_INCONSISTENCY = -2
    CONNECTION_LOSS = -4
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    OPERATION_TIMEOUT = -7
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_ACL = -114
    AUTH_FAILED = -115
    SESSION_MOVED = -118

    @classmethod
    def _missing_(cls, value: object) -> "ZooKeeperCode":
        return cls.SYSTEM_ERROR


class NodeError(KlammError):
    """A single operation failed, with `code`, on the node at `path`."""

    def __init__(self, code: ZooKeeperCode, path: str) -> None:
        super().__init__(f"{path}: {code.name}")
        self.code = code
        self.path = path


class NoNodeError(NodeError):
    """There is no such node, or no parent for the one to be created."""


class NodeExistsError(NodeError):
    """The node to be created is there already."""


class BadVersionError(NodeError):
    """The node's data version is not the expected one."""


class NotEmptyError(NodeError):
    """The node to be deleted has children."""


_ERRORS: Final = {
    ZooKeeperCode.NO_NODE: NoNodeError,
    ZooKeeperCode.NODE_EXISTS: NodeExistsError,
    ZooKeeperCode.BAD_VERSION: BadVersionError,
    ZooKeeperCode.NOT_EMPTY: NotEmptyError,
}


def node_error(code: ZooKeeperCode, path: str) -> NodeError:
    """The exception that stands for `code` when a single operation fails."""
    return _ERRORS.get(code, NodeError)(code, path)


class Stat(NamedTuple):
    """What ZooKeeper knows about a node, in the order in which it sends it."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    children_version: int
    acl_version: int
    ephemeral_owner: int  # the owning session, 0 for a persistent node
    data_length: int
    children_count: int
    pzxid: int


class Znode(NamedTuple):
    """A node as read. `data` is None where the node was created without any."""

    data: bytes | None
    stat: Stat


class Created(NamedTuple):
    """A node as created; `path` carries the number that a sequential node was given."""

    path: str
    stat: Stat


# --- writes ---------------------------------------------------------------------------------------


class Create(NamedTuple):
    """Create a node. With `exist_ok`, `write_many` skips it if the node exists."""

    path: str
    data: bytes | None = None
    ephemeral: bool = False
    sequential: bool = False
    exist_ok: bool = False


class SetData(NamedTuple):
    """Replace the data of a node whose version is `version`."""

    path: str
    data: bytes | None
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Delete a node. With `missing_ok`, `write_many` skips it if the node is missing."""

    path: str
    version: int = ANY_VERSION
    missing_ok: bool = False


class Check(NamedTuple):
    """Let the transaction fail unless the node's version is `version`."""

    path: str
    version: int


Op: TypeAlias = Create | SetData | Delete | Check
Row: TypeAlias = Sequence[Op]


class OpResult(NamedTuple):
    """The result of one operation of a transaction.

    `path` is set by a create, `stat` by a set. When the transaction failed, `code` is OK for the
    operations before the failed one (they were undone) and RUNTIME_INCONSISTENCY for those after.
    """

    code: ZooKeeperCode
    path: str | None = None
    stat: Stat | None = None


class TransactionResult(NamedTuple):
    """The results of a transaction; either all its operations were carried out or none."""

    results: list[OpResult]
    failed: int | None = None  # index of the operation that made it fail

    @property
    def ok(self) -> bool:
        """Whether the transaction was carried out."""
        return self.failed is None

    @property
    def code(self) -> ZooKeeperCode:
        """OK, or the code of the operation that made it fail."""
        return ZooKeeperCode.OK if self.failed is None else self.results[self.failed].code


class Fence(NamedTuple):
    """The controller's licence to write: `/controller_epoch` still has this data version."""

    version: int
    path: str = "/controller_epoch"


class RowOutcome(NamedTuple):
    """The result of one row of a bulk write.

    `version` is the data version that the row's last operation left behind (NO_VERSION after a
    delete, or when the row lost); `failed` is the index in the row of the operation that lost.
    """

    code: ZooKeeperCode
    version: int = NO_VERSION
    failed: int | None = None

    @property
    def ok(self) -> bool:
        """Whether the row was written."""
        return self.code is ZooKeeperCode.OK


# --- bulk reads -----------------------------------------------------------------------------------


class Chunk(NamedTuple):
    """Some of the nodes of a bulk read, as columns in the order of the given paths.

    A node that does not exist has version NO_VERSION and data None (an existing one may have data
    None too). Everything in the chunk was true at `zxid`, which is what `watch_data` wants.
    """

    path: list[str]
    data: list[bytes | None]
    version: list[int]
    zxid: int


class ChildrenChunk(NamedTuple):
    """Some of the results of a bulk listing: the children's names, None for a missing parent."""

    path: list[str]
    children: list[list[str] | None]
    zxid: int


# --- packed requests ------------------------------------------------------------------------------


class PackedReads(Protocol):
    """Nodes to be read, which encode themselves."""

    def __len__(self) -> int: ...

    def paths(self) -> list[str]:
        """Their paths."""
        ...

    def encode_reads(self, chroot: str) -> bytes:
        """The multiRead of them, as `wire.encode_multi_read` would encode it."""
        ...


class PackedRows(Protocol):
    """Rows to be written, which encode themselves: no more of them than fit a transaction."""

    def rows(self) -> list[Row]:
        """The rows."""
        ...

    def encode(self, chroot: str, *, secured: bool) -> bytes:
        """Their operations, as `wire.encode_multi` would encode them, without its end."""
        ...


# --- events ---------------------------------------------------------------------------------------


class EventKind(Enum):
    """What a watch saw."""

    CREATED = 1
    DELETED = 2
    CHANGED = 3
    CHILDREN = 4


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """A watch has fired, which removes it."""

    kind: EventKind
    path: str


@dataclass(frozen=True, slots=True)
class SessionStarted:
    """A session was opened: the first, or the one after `renew`. It has no watches yet."""

    session_id: int


@dataclass(frozen=True, slots=True)
class SessionSuspended:
    """The connection is lost. The session may live on; requests wait."""


@dataclass(frozen=True, slots=True)
class SessionResumed:
    """The connection is back, with the same session, and the watches are armed again."""


@dataclass(frozen=True, slots=True)
class SessionExpired:
    """The session has expired, with its ephemeral nodes. No further event comes until `renew`."""

    session_id: int


StoreEvent: TypeAlias = (
    WatchEvent | SessionStarted | SessionSuspended | SessionResumed | SessionExpired
)


# --- the store ------------------------------------------------------------------------------------


class Store(Protocol):
    """One client of ZooKeeper. Paths are absolute, below the chroot, which they do not show.

    Single operations raise `NodeError`s. All operations raise `SessionLostError` once the session
    is gone and until `renew`, and when the store is closed.
    """

    @property
    def session_id(self) -> int:
        """The id of the current session, or of the one just lost."""
        ...

    @property
    def session_timeout_ms(self) -> int:
        """The session timeout that was requested."""
        ...

    def events(self) -> AsyncIterator[StoreEvent]:
        """Everything that happens to the session and its watches, in order, for one consumer.

        Begins with `SessionStarted`; ends when the store is closed.
        """
        ...

    async def renew(self) -> None:
        """Open a new session; the consumer's word that it has dealt with the loss of the old one.

        No new session is opened before (ELEC-15). Called while the session is alive, it ends
        that one first. Waits for as long as ZooKeeper is out of reach.
        """
        ...

    async def close(self) -> None:
        """End the session, so that its ephemeral nodes go at once."""
        ...

    async def get(self, path: str, *, watch: bool = False) -> Znode:
        """Read a node. The watch sees its next change or deletion; a missing node gets none."""
        ...

    async def exists(self, path: str, *, watch: bool = False) -> Stat | None:
        """Look whether a node exists. The watch also sees the creation of a missing one."""
        ...

    async def children(self, path: str, *, watch: bool = False) -> list[str]:
        """Names of the children, in no particular order. The watch sees the next change of them."""
        ...

    async def create(
        self,
        path: str,
        data: bytes | None = None,
        *,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> Created:
        """Create a node whose parent exists."""
        ...

    async def set(self, path: str, data: bytes | None, version: int = ANY_VERSION) -> Stat:
        """Replace the data of a node."""
        ...

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete a node without children."""
        ...

    async def ensure_path(self, path: str) -> None:
        """Create the node and its parents, without data, as far as they are missing."""
        ...

    async def multi(self, ops: Sequence[Op]) -> TransactionResult:
        """Carry out all of `ops` or none. Failure is a value: the caller wants the single codes."""
        ...

    def read_many(self, paths: Iterable[str]) -> AsyncIterator[Chunk]:
        """Read many nodes. `paths` is drawn on as chunks are consumed; later chunks are under way
        while the caller works on one."""
        ...

    def children_many(self, paths: Iterable[str]) -> AsyncIterator[ChildrenChunk]:
        """List the children of many nodes, in the manner of `read_many`."""
        ...

    async def watch_data(self, paths: Iterable[str], since_zxid: int) -> None:
        """Arm data watches on nodes that were read at `since_zxid`, without reading them again.

        What changed in the meantime fires at once: CHANGED, or DELETED for a missing node.
        """
        ...

    async def write_many(self, rows: Iterable[Row], fence: Fence | None = None) -> list[RowOutcome]:
        """Write many rows, each of which is carried out as a whole or not at all.

        Rows share transactions, each behind one check of `fence`. A row that loses comes back as
        a value and holds up no other. Rows about the same node, or about a node and its parent,
        take effect in the order given. Raises `FencedError` when a check fails: transactions sent
        before it stand, nothing is sent after it.
        """
        ...

    def read_packed(self, batches: Iterable[PackedReads]) -> AsyncIterator[bytes]:
        """Read many nodes in the manner of `read_many`, one request for each batch.

        The replies come as ZooKeeper sent them (`wire.decode_multi_get`), in order.
        """
        ...

    async def write_packed(
        self, batches: Iterable[PackedRows], fence: Fence
    ) -> list[list[RowOutcome] | None]:
        """Write many rows, each batch in one transaction behind a check of `fence`.

        The result is None for a batch that was written as a whole. The rows of the others are
        written after all batches were sent, as by `write_many`, and their results returned. So a
        node is in one batch only, and its parent in the same batch or in an earlier one.
        """
        ...

    async def delete_recursive(self, roots: Iterable[str], fence: Fence | None = None) -> None:
        """Delete nodes with everything below them; missing ones are ignored."""
        ...
