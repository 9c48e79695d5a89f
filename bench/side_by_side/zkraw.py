"""A minimal pipelined ZooKeeper connection: just what populating and checking a big cluster needs."""

import socket
import struct

OPEN_ACL = struct.pack(">ii", 1, 31)
END = struct.pack(">i?i", -1, True, -1)


def ustr(s):
    b = s.encode()
    return struct.pack(">i", len(b)) + b


OPEN_ACL += ustr("world") + ustr("anyone")


def op_create(path, data, flags=0):
    return (
        struct.pack(">i?i", 1, False, -1)
        + ustr(path)
        + struct.pack(">i", len(data))
        + data
        + OPEN_ACL
        + struct.pack(">i", flags)
    )


def op_get(path):
    return struct.pack(">i?i", 4, False, -1) + ustr(path) + b"\0"


def multi(ops, opcode=14, xid=1):
    body = struct.pack(">ii", xid, opcode) + b"".join(ops) + END
    return struct.pack(">i", len(body)) + body


def multi_read(ops, xid=1):
    return multi(ops, 22, xid)


class ZkRaw:
    def __init__(self, host="127.0.0.1", port=2181, timeout_ms=30000):
        self.sock = socket.create_connection((host, port))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buf = bytearray()
        body = struct.pack(">iqiqi", 0, 0, timeout_ms, 0, 16) + b"\0" * 16
        self.sock.sendall(struct.pack(">i", len(body)) + body)
        self.response()

    def _read(self, n):
        while len(self.buf) < n:
            x = self.sock.recv(1 << 20)
            if not x:
                raise EOFError("ZooKeeper closed the connection")
            self.buf += x
        r = bytes(self.buf[:n])
        del self.buf[:n]
        return r

    def response(self):
        return self._read(struct.unpack(">i", self._read(4))[0])

    def pipeline(self, requests, window=16):
        """Sends every request, at most `window` unanswered at a time; returns the responses in order."""
        out, sent = [], 0
        for r in requests[:window]:
            self.sock.sendall(r)
            sent += 1
        for _ in requests:
            out.append(self.response())
            if sent < len(requests):
                self.sock.sendall(requests[sent])
                sent += 1
        return out

    def close(self):
        self.sock.close()


def check(resp):
    err = struct.unpack(">iqi", resp[:16])[2]
    if err:
        raise RuntimeError(f"ZooKeeper error {err}")


def read_results(resp):
    """The data of each getData in a multiRead response (None where it failed)."""
    off = 16
    while True:
        kind, done, err = struct.unpack_from(">i?i", resp, off)
        off += 9
        if done:
            return
        if kind == -1:
            off += 4
            yield None
            continue
        (n,) = struct.unpack_from(">i", resp, off)
        off += 4
        yield resp[off : off + n]
        off += n + 68
