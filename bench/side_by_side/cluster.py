"""The seam between scenarios and implementations: ZooKeeper and brokers as processes, nothing else.

An implementation is a command that runs one broker in the foreground from a Kafka `server.properties` file:
  kafka   java -cp $KAFKA_LIBS/* kafka.Kafka FILE
  klamm   $KLAMM broker FILE          (default: the klamm of this Python)
Both get the same files, the same signals and the same ZooKeeper.
"""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from kazoo.client import KazooClient

from klamm.local.network import free_ports

LOG4J = """log4j.rootLogger=INFO, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=[%d{ISO8601}] %p %m (%c)%n
"""


def wait_port(port, timeout, alive=lambda: True):
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.5):
            return
        if not alive():
            break
        time.sleep(0.05)
    raise TimeoutError(f"nothing answers on port {port}")


def with_children(pid):
    """A process and all that descend from it."""
    todo, found = [Path(f"/proc/{pid}")], []
    while todo:
        process = todo.pop()
        with contextlib.suppress(OSError):
            todo += [
                Path(f"/proc/{c}")
                for f in process.glob("task/*/children")
                for c in f.read_text().split()
            ]
            found.append(process)
    return found


def rss_mb(pid):
    """Of a process and its children."""
    total = 0
    for process in with_children(pid):
        with contextlib.suppress(OSError, StopIteration):
            total += int(
                next(x for x in (process / "status").open() if x.startswith("VmRSS")).split()[1]
            )
    return total // 1024


def cpu_times(pid):
    """Of a process and its children, so far: what they computed, and the kernel for them."""
    user = kernel = 0
    for process in with_children(pid):
        with contextlib.suppress(OSError):
            fields = (process / "stat").read_text().rsplit(")", 1)[1].split()
            user += int(fields[11])
            kernel += int(fields[12])
    tick = os.sysconf("SC_CLK_TCK")
    return user / tick, kernel / tick


def cpu_s(pid):
    """Of a process and its children, so far."""
    return sum(cpu_times(pid))


class ZooKeeper:
    """A real server out of the jars of the installed pyspark package (or $ZK_JARS)."""

    def __init__(self, directory, heap="512m", tick_ms=500):
        self.dir = Path(directory)
        self.dir.mkdir(parents=True, exist_ok=True)
        (self.port,) = free_ports(1)
        jars = os.environ.get("ZK_JARS")
        if not jars:
            import pyspark

            jars = str(Path(pyspark.__file__).parent / "jars")
        cfg = self.dir / "zoo.cfg"
        cfg.write_text(
            f"tickTime={tick_ms}\ndataDir={self.dir}/data\nclientPort={self.port}\n"
            "admin.enableServer=false\nmaxClientCnxns=0\nminSessionTimeout=1000\nmaxSessionTimeout=60000\n"
        )
        self.proc = subprocess.Popen(
            [
                "java",
                f"-Xmx{heap}",
                "-Djute.maxbuffer=4194304",
                "-cp",
                f"{jars}/*",
                "org.apache.zookeeper.server.ZooKeeperServerMain",
                str(cfg),
            ],
            stdout=open(self.dir / "zk.log", "w"),
            stderr=subprocess.STDOUT,
        )
        wait_port(self.port, 30, lambda: self.proc.poll() is None)
        self.address = f"127.0.0.1:{self.port}"

    def client(self, chroot=""):
        zk = KazooClient(self.address + chroot, timeout=10)
        zk.start(timeout=20)
        return zk

    def stop(self):
        self.proc.terminate()
        self.proc.wait(20)


def command(implementation, properties, directory):
    if implementation == "kafka":
        log4j = Path(directory) / "log4j.properties"
        log4j.write_text(LOG4J)
        jvm = os.environ.get(
            "KAFKA_JVM", "-Xms256m -Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        )  # quick to start
        return [
            "java",
            *jvm.split(),
            f"-Dlog4j.configuration=file:{log4j}",
            "-cp",
            os.environ["KAFKA_LIBS"] + "/*",
            "kafka.Kafka",
            str(properties),
        ]
    return klamm_broker(properties)


def klamm_broker(properties):
    klamm = os.environ.get("KLAMM", f"{sys.executable} -m klamm")
    return [*klamm.split(), "broker", str(properties)]


class Node:
    """One broker process. The configuration is Kafka's; `zookeeper` and `advertised` may point at proxies."""

    def __init__(
        self, implementation, node_id, directory, zookeeper, config=None, advertised_port=None
    ):
        self.implementation, self.id, self.dir = implementation, node_id, Path(directory)
        self.dir.mkdir(parents=True, exist_ok=True)
        (self.port,) = free_ports(1)
        self.proc = None
        shown = advertised_port or self.port
        self.config = {
            "broker.id": node_id,
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{shown}",
            "zookeeper.connect": zookeeper,
            "zookeeper.session.timeout.ms": 3000,
            "log.dirs": str(self.dir / "logs"),
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "group.initial.rebalance.delay.ms": 0,
            "auto.leader.rebalance.enable": "false",
            "controlled.shutdown.retry.backoff.ms": 500,
            **(config or {}),
        }

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def start(self, wait=True):
        properties = self.dir / "server.properties"
        properties.write_text("".join(f"{k}={v}\n" for k, v in self.config.items()))
        self.log = open(self.dir / "broker.log", "a")
        self.proc = subprocess.Popen(
            command(self.implementation, properties, self.dir),
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        if wait:
            wait_port(self.port, 60, self.alive)
        return self

    def alive(self):
        return self.proc is not None and self.proc.poll() is None

    def signal(self, number):
        """To the whole process group: an implementation may use several processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.proc.pid, number)

    def terminate(self, timeout=60):
        """A controlled shutdown, waited for."""
        if self.alive():
            self.proc.terminate()
            self.proc.wait(timeout)

    def kill(self):
        if self.alive():
            self.signal(signal.SIGKILL)
            self.proc.wait(20)

    def pause(self):
        self.signal(signal.SIGSTOP)

    def resume(self):
        self.signal(signal.SIGCONT)


class Cluster:
    """Nodes of one implementation (or a mix, by node) on a chroot of their own."""

    def __init__(self, lab_dir, zookeeper, implementation, ids, config=None, chroot=None):
        self.zookeeper, self.implementation = zookeeper, implementation
        self.chroot = chroot or f"/c{random.randrange(16**8):08x}"
        self.dir = Path(lab_dir)
        self.nodes = {
            i: Node(
                implementation, i, self.dir / f"node{i}", zookeeper.address + self.chroot, config
            )
            for i in ids
        }
        self.zk = zookeeper.client()
        self.zk.ensure_path(self.chroot)
        self.zk.chroot = self.chroot

    @property
    def bootstrap(self):
        return ",".join(n.address for n in self.nodes.values() if n.alive())

    def start(self, ids=None):
        nodes = [self.nodes[i] for i in ids or self.nodes]
        for n in nodes:
            n.start(wait=False)
        end = time.monotonic() + 90
        for n in nodes:
            wait_port(n.port, 90, n.alive)
        while time.monotonic() < end:
            if all(self.zk.exists(f"/brokers/ids/{n.id}") for n in nodes) and self.zk.exists(
                "/controller"
            ):
                return self
            time.sleep(0.1)
        raise TimeoutError("brokers did not register")

    def stop(self):
        for n in self.nodes.values():
            with contextlib.suppress(Exception):
                n.resume()
            n.kill()
        self.zk.stop()
        self.zk.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()
