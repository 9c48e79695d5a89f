"""ZooKeeper's requests and replies as bytes, written and read by hand.

A bulk request holds a thousand operations, so nothing here makes an object per field. Replies are
given whole: sixteen bytes of header (xid, zxid, error), then the body. kazoo has dealt with the xid
and the error of the header by then.
"""

from collections.abc import Iterable
from enum import IntEnum
from struct import Struct
from typing import Final

from klamm.zookeeper.store import (
    Check,
    Create,
    Created,
    Delete,
    EventKind,
    Fence,
    Op,
    OpResult,
    SetData,
    Stat,
    TransactionResult,
    Znode,
    ZooKeeperCode,
)

#: The server's limit for one request (jute.maxbuffer), unless its operator changed it.
REQUEST_BYTES_MAX: Final = 0xFFFFF


class Opcode(IntEnum):
    """What a request asks for."""

    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_CHILDREN = 8
    CHECK = 13
    MULTI = 14
    CREATE2 = 15  # as CREATE, and the reply has the stat
    MULTI_READ = 22
    SET_WATCHES = 101
    ADD_WATCH = 106  # since ZooKeeper 3.6


_INT: Final = Struct(">i")
_LONG: Final = Struct(">q")
_STAT: Final = Struct(">qqqqiiiqiiq")
OP_HEADER: Final = Struct(">i?i")  # opcode, whether this is the end, error
_OP_HEADER_AND_INT: Final = Struct(">i?ii")
_EVENT: Final = Struct(">ii")  # kind, state of the session

BODY: Final = 16  # where the body of a reply begins, after its header
_ZXID: Final = 4  # where the zxid is in that header
_VERSION_IN_STAT: Final = 32

NO_DATA: Final = _INT.pack(-1)
_EPHEMERAL, _SEQUENTIAL = 1, 2
_PERSISTENT_RECURSIVE: Final = 1
_FLAGS: Final = [_INT.pack(flags) for flags in range(4)]


def _text(value: str) -> bytes:
    encoded = value.encode()
    return _INT.pack(len(encoded)) + encoded


def _buffer(data: bytes | None) -> bytes:
    return NO_DATA if data is None else _INT.pack(len(data)) + data


#: One entry: every permission, for anyone.
_OPEN_ACL: Final = _INT.pack(1) + _INT.pack(31) + _text("world") + _text("anyone")

#: `zookeeper.set.acl` (SEC-12): the creator may do everything; what holds secrets is for it alone.
_CREATOR: Final = _INT.pack(31) + _text("auth") + _text("")
_CREATOR_ACL: Final = _INT.pack(1) + _CREATOR
_READABLE_ACL: Final = _INT.pack(2) + _CREATOR + _INT.pack(1) + _text("world") + _text("anyone")
_FOR_THE_CREATOR: Final = ("/config/users", "/config/brokers", "/delegation_token/tokens")
_FOR_EVERYBODY: Final = "/consumers"


def node_acl(path: str, *, secured: bool) -> bytes:
    """The ACL that a new node gets; `path` is that below the chroot."""
    if not secured or path.startswith(_FOR_EVERYBODY):
        return _OPEN_ACL
    return _CREATOR_ACL if path.startswith(_FOR_THE_CREATOR) else _READABLE_ACL


HEADERS: Final = {opcode: OP_HEADER.pack(opcode, False, -1) for opcode in Opcode}
_CREATE, _SET_DATA = HEADERS[Opcode.CREATE], HEADERS[Opcode.SET_DATA]
_DELETE, _CHECK = HEADERS[Opcode.DELETE], HEADERS[Opcode.CHECK]
END: Final = OP_HEADER.pack(-1, True, -1)


def full_path(chroot: str, path: str) -> str:
    """The path as the server knows it."""
    return chroot + path if path != "/" else chroot or "/"


def text_bytes(text: str) -> int:
    """How many bytes a text takes up."""
    return len(text) if text.isascii() else len(text.encode())


# --- requests -------------------------------------------------------------------------------------


def encode_read(path: str, watch: bool = False) -> bytes:
    """getData, exists or getChildren."""
    return _text(path) + (b"\1" if watch else b"\0")


def encode_create(
    path: str,
    data: bytes | None,
    ephemeral: bool,
    sequential: bool,
    acl: bytes = _OPEN_ACL,
) -> bytes:
    """create, with an ACL that is open to all unless told otherwise (ZK-22)."""
    flags = _EPHEMERAL * ephemeral | _SEQUENTIAL * sequential
    return _text(path) + _buffer(data) + acl + _FLAGS[flags]


def encode_set(path: str, data: bytes | None, version: int) -> bytes:
    """setData."""
    return _text(path) + _buffer(data) + _INT.pack(version)


def encode_version(path: str, version: int) -> bytes:
    """delete or check."""
    return _text(path) + _INT.pack(version)


def encode_multi(ops: Iterable[Op], chroot: str, *, secured: bool = False) -> bytes:
    """A transaction; `secured` gives new nodes the ACLs of `zookeeper.set.acl`."""
    parts: list[bytes] = []
    pack = _INT.pack
    for op in ops:
        path = (chroot + op.path if op.path != "/" else chroot or "/").encode()
        if type(op) is SetData:
            data = op.data
            size = NO_DATA if data is None else pack(len(data))
            parts += (_SET_DATA, pack(len(path)), path, size, data or b"", pack(op.version))
        elif type(op) is Create:
            flags = _FLAGS[_EPHEMERAL * op.ephemeral | _SEQUENTIAL * op.sequential]
            acl = node_acl(op.path, secured=secured)
            parts += (_CREATE, pack(len(path)), path, _buffer(op.data), acl, flags)
        elif type(op) is Delete:
            parts += (_DELETE, pack(len(path)), path, pack(op.version))
        elif type(op) is Check:
            parts += (_CHECK, pack(len(path)), path, pack(op.version))
    parts.append(END)
    return b"".join(parts)


def encode_check(fence: Fence, chroot: str) -> bytes:
    """The first operation of a transaction that is carried out only while the fence holds."""
    return _CHECK + encode_version(full_path(chroot, fence.path), fence.version)


def encode_multi_read(opcode: Opcode, paths: Iterable[str], chroot: str) -> bytes:
    """Many reads in one request. The server ignores watch flags in here, so there are none."""
    header = HEADERS[opcode]
    parts: list[bytes] = []
    pack = _INT.pack
    for path in paths:
        encoded = (chroot + path if path != "/" else chroot or "/").encode()
        parts += (header, pack(len(encoded)), encoded, b"\0")
    parts.append(END)
    return b"".join(parts)


def encode_set_watches(
    since_zxid: int, data: Iterable[str], exist: Iterable[str], children: Iterable[str]
) -> bytes:
    """Arm watches on nodes that were read at `since_zxid`; what changed since fires at once."""
    parts = [_LONG.pack(since_zxid)]
    for paths in (data, exist, children):
        encoded = [_text(path) for path in paths]
        parts.append(_INT.pack(len(encoded)))
        parts += encoded
    return b"".join(parts)


def encode_add_watch(path: str) -> bytes:
    """Watch a node and everything below it until the connection ends."""
    return _text(path) + _INT.pack(_PERSISTENT_RECURSIVE)


# --- replies --------------------------------------------------------------------------------------


def decode_zxid(reply: bytes) -> int:
    """The last transaction that the server had carried out when it replied."""
    zxid: int = _LONG.unpack_from(reply, _ZXID)[0]
    return zxid


def _decode_text(reply: bytes, offset: int) -> tuple[str, int]:
    (length,) = _INT.unpack_from(reply, offset)
    end = offset + 4 + length
    return reply[offset + 4 : end].decode(), end


def decode_stat(reply: bytes, offset: int = BODY) -> Stat:
    """The reply to exists and setData."""
    return Stat._make(_STAT.unpack_from(reply, offset))


def decode_node(reply: bytes) -> Znode:
    """The reply to getData."""
    (length,) = _INT.unpack_from(reply, BODY)
    start = BODY + 4
    if length < 0:
        return Znode(None, decode_stat(reply, start))
    return Znode(reply[start : start + length], decode_stat(reply, start + length))


def decode_children(reply: bytes) -> list[str]:
    """The reply to getChildren."""
    # A controller lists all topics whenever one is created. Lengths below 256 are three zeros and
    # a byte, and no name has a zero, so names are cut at zeros, and their lengths compared.
    nothing, *names = reply[BODY + _INT.size :].split(b"\0\0\0")
    (count,) = _INT.unpack_from(reply, BODY)
    is_cut_well = not nothing and len(names) == count
    if is_cut_well and all(name and name[0] == len(name) - 1 for name in names):
        return [name[1:].decode() for name in names]
    return _decode_names(reply, BODY)[0]


def _decode_names(reply: bytes, offset: int) -> tuple[list[str], int]:
    (count,) = _INT.unpack_from(reply, offset)
    offset += 4
    names = []
    for _ in range(count):
        name, offset = _decode_text(reply, offset)
        names.append(name)
    return names, offset


def decode_created(reply: bytes, chroot: str) -> Created:
    """The reply to create2."""
    path, offset = _decode_text(reply, BODY)
    return Created(path[len(chroot) :], decode_stat(reply, offset))


def decode_multi_get(reply: bytes) -> tuple[list[bytes | None], list[int]]:
    """Data and versions of the nodes of a multiRead; (None, -1) for one that cannot be read."""
    data: list[bytes | None] = []
    version: list[int] = []
    unpack, unpack_version = _OP_HEADER_AND_INT.unpack_from, _INT.unpack_from
    offset, end = BODY, len(reply) - OP_HEADER.size
    while offset < end:
        opcode, _, _, length = unpack(reply, offset)
        offset += 13
        if opcode == -1:  # an error, whose code stood in the place of the length
            data.append(None)
            version.append(-1)
            continue
        if length < 0:
            data.append(None)
        else:
            data.append(reply[offset : offset + length])
            offset += length
        version.append(unpack_version(reply, offset + _VERSION_IN_STAT)[0])
        offset += 68
    return data, version


def decode_multi_children(reply: bytes) -> list[list[str] | None]:
    """The children of the nodes of a multiRead; None for one that cannot be read."""
    children: list[list[str] | None] = []
    offset, end = BODY, len(reply) - OP_HEADER.size
    while offset < end:
        opcode = _INT.unpack_from(reply, offset)[0]
        offset += OP_HEADER.size
        if opcode == -1:
            children.append(None)
            offset += 4
        else:
            names, offset = _decode_names(reply, offset)
            children.append(names)
    return children


_DONE: Final = OpResult(ZooKeeperCode.OK)
_NOT_TRIED: Final = OpResult(ZooKeeperCode.RUNTIME_INCONSISTENCY)


def decode_multi(reply: bytes, chroot: str) -> TransactionResult:
    """The results of a transaction."""
    results: list[OpResult] = []
    failed = None
    offset, end = BODY, len(reply) - OP_HEADER.size
    while offset < end:
        opcode = _INT.unpack_from(reply, offset)[0]
        offset += OP_HEADER.size
        if opcode == Opcode.SET_DATA:
            results.append(OpResult(ZooKeeperCode.OK, None, decode_stat(reply, offset)))
            offset += _STAT.size
        elif opcode == Opcode.CREATE:
            path, offset = _decode_text(reply, offset)
            results.append(OpResult(ZooKeeperCode.OK, path[len(chroot) :]))
        elif opcode == -1:
            error = _INT.unpack_from(reply, offset)[0]
            offset += 4
            if error == ZooKeeperCode.OK:
                results.append(_DONE)
            elif error == ZooKeeperCode.RUNTIME_INCONSISTENCY:
                results.append(_NOT_TRIED)
            else:
                failed = len(results)
                results.append(OpResult(ZooKeeperCode(error)))
        else:  # delete and check have no result
            results.append(_DONE)
    return TransactionResult(results, failed)


def decode_multi_versions(reply: bytes) -> list[int] | None:
    """The data version that each operation of a transaction left behind, -1 where that means
    nothing; None if the transaction failed."""
    version: list[int] = []
    unpack = _INT.unpack_from
    offset, end = BODY, len(reply) - OP_HEADER.size
    while offset < end:
        opcode = unpack(reply, offset)[0]
        offset += 9
        if opcode == 5:  # SET_DATA
            version.append(unpack(reply, offset + _VERSION_IN_STAT)[0])
            offset += 68
        elif opcode == 1:  # CREATE
            version.append(0)
            offset += 4 + unpack(reply, offset)[0]
        elif opcode == -1:
            return None
        else:
            version.append(-1)
    return version


def is_carried_out(reply: bytes) -> bool:
    """Whether a transaction was carried out; its results are errors, without exception, if not."""
    opcode: int = _INT.unpack_from(reply, BODY)[0]
    return opcode != -1


def encode_multi_get_reply(nodes: Iterable[Znode | None], zxid: int) -> bytes:
    """The reply to a multiRead, as the server encodes it; None stands for a missing node."""
    parts = [_INT.pack(0), _LONG.pack(zxid), _INT.pack(0)]
    for node in nodes:
        if node is None:
            code = ZooKeeperCode.NO_NODE
            parts.append(_OP_HEADER_AND_INT.pack(-1, False, code, code))
        else:
            parts += (
                OP_HEADER.pack(Opcode.GET_DATA, False, 0),
                _buffer(node.data),
                _STAT.pack(*node.stat),
            )
    parts.append(END)
    return b"".join(parts)


def decode_event(event: bytes, offset: int) -> tuple[EventKind, str]:
    """What a watch saw, and where."""
    kind, _ = _EVENT.unpack_from(event, offset)
    return EventKind(kind), _decode_text(event, offset + _EVENT.size)[0]
