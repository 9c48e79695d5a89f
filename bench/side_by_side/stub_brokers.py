"""Stub brokers: registered in ZooKeeper, they accept the controller's requests, answer 'no error' and keep a tally.

They let any ZooKeeper-mode Kafka controller be timed by itself: the same stubs, the same partitions, only the
controller differs. Control socket (line protocol): 'tally' -> JSON, 'reset', 'kill ID' (drops its registration and
its connections), 'start ID' (registers it again), 'quit'.
"""

import argparse
import asyncio
import json
import struct
import time

from kazoo.client import KazooClient

LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA, CONTROLLED_SHUTDOWN, API_VERSIONS = 4, 5, 6, 7, 18
NAMES = {
    4: "LeaderAndIsr",
    5: "StopReplica",
    6: "UpdateMetadata",
    7: "ControlledShutdown",
    18: "ApiVersions",
}


class Stub:
    def __init__(self, broker_id, port):
        self.id, self.port, self.server, self.zk = broker_id, port, None, None
        self.writers = set()
        self.reset()

    def reset(self):
        self.count, self.bytes, self.first, self.last = {}, {}, None, {}

    async def start(self, zk_connect):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", self.port, limit=1 << 26)
        self.zk = KazooClient(zk_connect, timeout=30)
        await asyncio.to_thread(self.zk.start)
        data = {
            "version": 5,
            "host": "127.0.0.1",
            "port": self.port,
            "jmx_port": -1,
            "timestamp": str(int(time.time() * 1000)),
            "endpoints": [f"PLAINTEXT://127.0.0.1:{self.port}"],
            "listener_security_protocol_map": {"PLAINTEXT": "PLAINTEXT"},
            "features": {},
            "rack": None,
        }
        path = f"/brokers/ids/{self.id}"
        await asyncio.to_thread(
            self.zk.create, path, json.dumps(data).encode(), None, True, False, True
        )

    async def kill(self):
        await asyncio.to_thread(self.zk.stop)
        self.server.close()
        for w in self.writers:
            w.close()

    async def serve(self, reader, writer):
        self.writers.add(writer)
        try:
            while True:
                (n,) = struct.unpack(">i", await reader.readexactly(4))
                body = await reader.readexactly(n)
                key, version, corr = struct.unpack_from(">hhi", body)
                now = time.time()
                name = NAMES.get(key, str(key))
                self.count[name] = self.count.get(name, 0) + 1
                self.bytes[name] = self.bytes.get(name, 0) + n
                self.first = self.first or now
                self.last[name] = now
                reply = self.reply(key, version, corr)
                writer.write(struct.pack(">i", len(reply)) + reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    @staticmethod
    def reply(key, version, corr):
        head = struct.pack(">i", corr)
        if key == LEADER_AND_ISR:
            return head + (b"\0\0\0\1\0" if version >= 4 else b"\0\0\0\0\0\0")
        if key == UPDATE_METADATA:
            return head + (b"\0\0\0\0" if version >= 6 else b"\0\0")
        if key == STOP_REPLICA:
            return head + (b"\0\0\0\1\0" if version >= 2 else b"\0\0\0\0\0\0")
        if key == API_VERSIONS:
            keys = [(4, 0, 7), (5, 0, 4), (6, 0, 8), (18, 0, 3)]
            if version >= 3:
                return (
                    head
                    + b"\0\0"
                    + bytes([len(keys) + 1])
                    + b"".join(struct.pack(">hhh", *k) + b"\0" for k in keys)
                    + b"\0\0\0\0\0"
                )
            return (
                head
                + b"\0\0"
                + struct.pack(">i", len(keys))
                + b"".join(struct.pack(">hhh", *k) for k in keys)
                + (b"\0\0\0\0" if version >= 1 else b"")
            )
        return head + b"\0\0"


async def main():
    a = argparse.ArgumentParser()
    a.add_argument("--zookeeper", default="127.0.0.1:2181")
    a.add_argument("--ids", required=True, help="e.g. 1-10")
    a.add_argument("--port", type=int, default=21000, help="first port")
    a.add_argument("--control", type=int, default=20999)
    args = a.parse_args()
    lo, hi = map(int, args.ids.split("-"))
    stubs = {i: Stub(i, args.port + i) for i in range(lo, hi + 1)}
    for s in stubs.values():
        await s.start(args.zookeeper)
    done = asyncio.Event()

    async def control(reader, writer):
        while line := await reader.readline():
            word, *rest = line.decode().split()
            if word == "tally":
                t = {}
                for s in stubs.values():
                    for k in s.count:
                        e = t.setdefault(k, {"requests": 0, "bytes": 0, "last": 0})
                        e["requests"] += s.count[k]
                        e["bytes"] += s.bytes[k]
                        e["last"] = max(e["last"], s.last[k])
                out = json.dumps(t)
            elif word == "reset":
                for s in stubs.values():
                    s.reset()
                out = "ok"
            elif word == "kill":
                t0 = time.time()
                await stubs[int(rest[0])].kill()
                out = repr(t0)
            elif word == "start":
                await stubs[int(rest[0])].start(args.zookeeper)
                out = "ok"
            elif word == "quit":
                out = "ok"
                done.set()
            else:
                out = "?"
            writer.write(out.encode() + b"\n")
            await writer.drain()

    await asyncio.start_server(control, "127.0.0.1", args.control)
    print("stubs ready", flush=True)
    await done.wait()
    for s in stubs.values():
        if s.zk.connected:
            await asyncio.to_thread(s.zk.stop)
    import os

    os._exit(0)  # connections still open are no concern


if __name__ == "__main__":
    asyncio.run(main())
