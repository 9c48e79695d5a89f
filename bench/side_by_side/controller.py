"""Times a ZooKeeper-mode controller by itself: real ZooKeeper, stub brokers that answer at once, N partitions.

  python -m bench.side_by_side.controller --implementation kafka|klamm [--topics 1000 --partitions 100 --rf 3 --brokers 10]

Two controller-capable nodes of the implementation hold no replicas. Steps, each timed from its cause in ZooKeeper to
the moment the stubs have had the last resulting request and the states in ZooKeeper are as they must be:
  load       first node starts on a populated ZooKeeper (from the /controller znode to the end of its announcements)
  failover   /controller deleted; warm nodes race
  failure    one stub broker dies: its leaders move
  return     it comes back
  shutdown   ControlledShutdown of one stub broker (request to response)
  create     topics appear in ZooKeeper (10% of the partitions)
Prints one JSON object.
"""

import argparse
import atexit
import base64
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from bench.side_by_side.cluster import LOG4J, ZooKeeper, cpu_s, klamm_broker, rss_mb, wait_port
from bench.side_by_side.zkraw import (
    ZkRaw,
    check,
    multi,
    multi_read,
    op_create,
    op_get,
    read_results,
)
from klamm.local.network import free_ports
from klamm.processes import tied_command


def topic_id():
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def assignment(topic, partitions, brokers, rf):
    """Round robin with a random start per topic, as Kafka does it."""
    start, shift = random.randrange(len(brokers)), random.randrange(len(brokers))
    out = {}
    for p in range(partitions):
        if p and p % len(brokers) == 0:
            shift += 1
        first = (start + p) % len(brokers)
        out[p] = [brokers[first]] + [
            brokers[(first + 1 + (shift + j) % (len(brokers) - 1)) % len(brokers)]
            for j in range(rf - 1)
        ]
    return out


def populate(port, topics, partitions, brokers, rf, prefix="bench"):
    """Topics with elected leaders, as a running cluster leaves them."""
    for start in range(0, topics, 500):
        ops = []
        for t in range(start, min(start + 500, topics)):
            name = f"{prefix}-{t:05d}"
            a = assignment(name, partitions, brokers, rf)
            body = {
                "partitions": {str(p): r for p, r in a.items()},
                "topic_id": topic_id(),
                "adding_replicas": {},
                "removing_replicas": {},
                "version": 3,
            }
            ops.append(op_create(f"/config/topics/{name}", b'{"version":1,"config":{}}'))
            ops.append(op_create(f"/brokers/topics/{name}", json.dumps(body).encode()))
            ops.append(op_create(f"/brokers/topics/{name}/partitions", b""))
            for p, r in a.items():
                state = {
                    "controller_epoch": 1,
                    "leader": r[0],
                    "version": 1,
                    "leader_epoch": 0,
                    "isr": r,
                }
                ops.append(op_create(f"/brokers/topics/{name}/partitions/{p}", b""))
                ops.append(
                    op_create(
                        f"/brokers/topics/{name}/partitions/{p}/state", json.dumps(state).encode()
                    )
                )
        zk = ZkRaw(port=port)
        for r in zk.pipeline([multi(ops[i : i + 500]) for i in range(0, len(ops), 500)]):
            check(r)
        zk.close()


def states(port, topics, partitions, prefix="bench"):
    zk = ZkRaw(port=port)
    paths = [
        f"/brokers/topics/{prefix}-{t:05d}/partitions/{p}/state"
        for t in range(topics)
        for p in range(partitions)
    ]
    reqs = [multi_read([op_get(p) for p in paths[i : i + 500]]) for i in range(0, len(paths), 500)]
    out = []
    for resp in zk.pipeline(reqs):
        out += [json.loads(d) if d else None for d in read_results(resp)]
    zk.close()
    return out


class Stubs:
    """The stub brokers in a process of their own."""

    def __init__(self, zookeeper, brokers, base):
        self.control = base
        self.proc = subprocess.Popen(
            tied_command(
                sys.executable,
                str(Path(__file__).parent / "stub_brokers.py"),
                "--zookeeper",
                zookeeper,
                "--ids",
                f"{brokers[0]}-{brokers[-1]}",
                "--port",
                str(base),
                "--control",
                str(base),
            ),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.proc.stdout.readline().startswith("stubs ready")
        import socket

        self.sock = socket.create_connection(("127.0.0.1", base))
        self.file = self.sock.makefile("rw")

    def say(self, line):
        self.file.write(line + "\n")
        self.file.flush()
        return self.file.readline().strip()

    def quiet(self, seconds=2.0, timeout=1200, require=None):
        """Waits until no request has arrived for a while; returns the tally."""
        end = time.time() + timeout
        while time.time() < end:
            t = json.loads(self.say("tally"))
            last = max((e["last"] for e in t.values()), default=0)
            if last and time.time() - last > seconds and (require is None or require(t)):
                return t, last
            time.sleep(0.1)
        raise TimeoutError(f"never quiet: {t}")

    def stop(self):
        self.say("quit")
        self.proc.wait(20)


def node_command(implementation, properties, directory, heap):
    if implementation == "kafka":
        log4j = Path(directory) / "log4j.properties"
        log4j.write_text(LOG4J.replace("rootLogger=INFO", "rootLogger=WARN"))
        return [
            "java",
            "-Xms1g",
            f"-Xmx{heap}",
            "-XX:+UseG1GC",
            f"-Dlog4j.configuration=file:{log4j}",
            "-Djute.maxbuffer=4194304",
            "-cp",
            os.environ["KAFKA_LIBS"] + "/*",
            "kafka.Kafka",
            str(properties),
        ]
    return klamm_broker(properties)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--implementation", default="klamm")
    a.add_argument("--topics", type=int, default=1000)
    a.add_argument("--partitions", type=int, default=100)
    a.add_argument("--rf", type=int, default=3)
    a.add_argument("--brokers", type=int, default=10)
    a.add_argument("--heap", default="3g")
    a.add_argument("--zk-heap", default="3g")
    a.add_argument("--skip", default="")
    args = a.parse_args()
    random.seed(4)
    d = Path(tempfile.mkdtemp(prefix="controller-bench-"))
    out = {
        "implementation": args.implementation,
        "partitions": args.topics * args.partitions,
        "rf": args.rf,
        "brokers": args.brokers,
    }
    brokers = list(range(1, args.brokers + 1))
    zks = ZooKeeper(d / "zk", heap=args.zk_heap)
    atexit.register(shutil.rmtree, d, ignore_errors=True)
    atexit.register(zks.proc.kill)  # runs first
    kz = zks.client()
    for p in (
        "/brokers/ids",
        "/brokers/topics",
        "/config/topics",
        "/config/changes",
        "/admin/delete_topics",
    ):
        kz.ensure_path(p)
    t = time.time()
    populate(zks.port, args.topics, args.partitions, brokers, args.rf)
    out["populate_s"] = round(time.time() - t, 2)
    (base,) = free_ports(1)
    stubs = Stubs(zks.address, brokers, base)
    nodes = {}

    def start(i):
        (port,) = free_ports(1)
        nd = d / f"node{i}"
        nd.mkdir()
        f = nd / "server.properties"
        f.write_text(
            f"broker.id={i}\nlisteners=PLAINTEXT://127.0.0.1:{port}\nzookeeper.connect={zks.address}\n"
            f"zookeeper.session.timeout.ms=30000\nlog.dirs={nd}/logs\nauto.leader.rebalance.enable=false\n"
            "controlled.shutdown.enable=false\n"
        )
        p = subprocess.Popen(
            node_command(args.implementation, f, nd, args.heap),
            stdout=open(nd / "log", "w"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        nodes[i] = (p, port)

    elected = {}

    @kz.DataWatch("/controller")
    def _(data, stat):
        if data:
            elected["at"] = time.time()
            elected["id"] = json.loads(data)["brokerid"]

    def measure(name, cause, done=None, require=None):
        stubs.say("reset")
        pids = {"zookeeper": zks.proc.pid, "stubs": stubs.proc.pid}
        pids |= {f"node {i}": p.pid for i, (p, _) in nodes.items()}
        before = {who: cpu_s(pid) for who, pid in pids.items()}
        t0 = time.time()
        cause()
        # What `done` reads would be in the way of a controller that only pauses between two batches.
        tally, last = stubs.quiet(10.0 if done else 2.0, require=require)
        spent = {who: round(cpu_s(pid) - before[who], 2) for who, pid in pids.items()}
        t1 = last
        if done:
            while not done():
                if time.time() - t0 > 1200:
                    raise TimeoutError(f"{name}: the state in ZooKeeper never became right")
                time.sleep(0.05)
                t1 = time.time()
            tally, last = stubs.quiet()
            t1 = max(t1, last)
        out[name] = {
            "s": round(t1 - t0, 3),
            "cpu_s": spent,
            "requests": {k: [v["requests"], v["bytes"] // 1000] for k, v in tally.items()},
            "rss_mb": rss_mb(nodes[elected["id"]][0].pid),
        }
        print(name, json.dumps(out[name]), file=sys.stderr, flush=True)

    try:

        def full(t):
            """Every broker has been told of every partition, and of its own replicas."""
            told = args.topics * args.partitions * args.brokers
            return (
                t.get("LeaderAndIsr", {}).get("requests", 0) >= args.brokers
                and t.get("UpdateMetadata", {}).get("bytes", 0) >= 20 * told
            )

        t0 = time.time()
        start(101)
        measure("start_and_load", lambda: None, require=full)
        out["load"] = round(out["start_and_load"]["s"] - (elected["at"] - t0), 3)
        print("load (from election)", out["load"], file=sys.stderr, flush=True)
        stubs.say("reset")
        start(102)
        wait_port(nodes[102][1], 60)
        # The second node is registered and at rest when the first failover begins.
        stubs.quiet(require=lambda t: "UpdateMetadata" in t)
        for k in (1, 2):
            measure(f"failover{k}", lambda: kz.delete("/controller"), require=full)
        ids_gone = lambda: all(
            s["leader"] != victim and victim not in s["isr"]
            for s in states(zks.port, args.topics, args.partitions)
        )
        victim = brokers[0]
        measure("failure", lambda: stubs.say(f"kill {victim}"), done=ids_gone)
        measure(
            "return",
            lambda: stubs.say(f"start {victim}"),
            require=lambda t: t.get("LeaderAndIsr", {}).get("requests", 0) >= 1,
        )
        victim = brokers[1]
        if "shutdown" not in args.skip:
            epoch = kz.exists(f"/brokers/ids/{victim}").czxid
            port = nodes[elected["id"]][1]
            took = {}

            def shutdown():
                import socket

                s = socket.create_connection(("127.0.0.1", port))
                body = struct.pack(">hhih", 7, 2, 1, -1) + struct.pack(">iq", victim, epoch)
                s.sendall(struct.pack(">i", len(body)) + body)
                t0 = time.time()
                n = struct.unpack(">i", s.recv(4, 0x100))[0]
                data = s.recv(n, 0x100)
                took["s"] = round(time.time() - t0, 3)
                took["error"], took["remaining"] = struct.unpack_from(">hi", data, 4)

            measure("shutdown", shutdown)
            out["shutdown"]["response"] = took
            print("shutdown response", took, file=sys.stderr, flush=True)
        more = max(1, args.topics // 10)

        ops = []
        for t in range(more):
            name = f"new-{t:05d}"
            body = {
                "partitions": {
                    str(p): r
                    for p, r in assignment(name, args.partitions, brokers[2:], args.rf).items()
                },
                "topic_id": topic_id(),
                "adding_replicas": {},
                "removing_replicas": {},
                "version": 3,
            }
            ops.append(op_create(f"/config/topics/{name}", b'{"version":1,"config":{}}'))
            ops.append(op_create(f"/brokers/topics/{name}", json.dumps(body).encode()))
        requests = [multi(ops[i : i + 200]) for i in range(0, len(ops), 200)]

        def create():
            zk = ZkRaw(port=zks.port)
            for r in zk.pipeline(requests):
                check(r)
            zk.close()

        measure(
            "create",
            create,
            done=lambda: all(
                s and s["leader"] >= 0 for s in states(zks.port, more, args.partitions, "new")
            ),
        )
        out["create"]["partitions"] = more * args.partitions
        print(json.dumps(out))
    finally:
        for p, _ in nodes.values():
            try:
                os.killpg(p.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            stubs.stop()
        except Exception:
            stubs.proc.terminate()
        kz.stop()


if __name__ == "__main__":
    main()
