"""What security costs: ACL decisions, SCRAM logins, TLS in three ways, and a whole broker.

    make bench BENCH=security
    python -m bench.security [PART]...

A broker of klamm is measured with and without security, and one of Apache Kafka 3.9.1 beside it,
under the same clients, after a round that warms up. Kafka is left out where its jars are not there
(KAFKA_LIBS). With `BEFORE=DIR,...`, checkouts of older klamms, their brokers are measured too, in
plaintext, in turns. PART is one of decisions, logins, tls, brokers, before and spark.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import uvloop
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.transactions import kafka_libs
from klamm import Cluster
from klamm.broker.security.authorizer import AclAuthorizer
from klamm.broker.security.mechanisms import Challenge, ScramServer
from klamm.config.client_properties import ClientSecurity
from klamm.config.endpoints import ListenerEndpoint
from klamm.config.properties import format_properties
from klamm.config.security import StoreSettings, TlsSettings
from klamm.local.certificates import CertificateAuthority
from klamm.local.security import LocalSecurity
from klamm.net.blocking import BlockingConnection
from klamm.net.sasl import ScramLogin
from klamm.net.scram import ScramMechanism, credential_of, salted_password
from klamm.net.secure import SecureClient
from klamm.net.server import Listener, Server
from klamm.net.tls import client_context, server_context
from klamm.net.tls_connection import TlsAcceptor
from klamm.pipeline.source.options import read_options
from klamm.pipeline.source.reader import TopicReader
from klamm.protocol.acls import (
    AccessControlEntry,
    AclOperation,
    AclPermission,
    PatternType,
    ResourcePattern,
    ResourceType,
)
from klamm.protocol.apis import ApiKey
from klamm.zookeeper.server import ZooKeeperServer, free_port

MB = 1 << 20
UVLOOP, AIOFASTNET = "uvloop's transport", "aiofastnet's transport"
SENT_MB = 512
PIECE = MB
RECORD = 1024
RECORDS = 200_000
#: Reads of the topic by a Spark job, of which the first warms up; runs of each older klamm.
ROUNDS = 3
#: Reads of the topic by the reader alone, of which the best counts.
READS = 10
#: Requests of somebody else while clients log in, and the pause between two.
PINGS = 300
PAUSE_S = 0.01
PING = {"include_cluster_authorized_operations": False}


def main() -> None:
    chosen = sys.argv[1:] or list(PARTS)
    for name in chosen:
        if name not in PARTS:
            sys.exit(f"There is no part {name}; there are: {', '.join(PARTS)}.")
    for name in chosen:
        PARTS[name]()


def ways_of_tls() -> None:
    for way in ("SSLSocket on a file", UVLOOP, AIOFASTNET, "plaintext sendfile"):
        is_there = way != AIOFASTNET or find_spec("aiofastnet") is not None
        print(f"TLS by {way}: {serve(way) if is_there else 'not installed'}", flush=True)
    print(f"TLS by the kernel: {kernel_tls()}")


def brokers() -> None:
    libs = kafka_libs()
    for kind in (None, "sasl_ssl"):
        name = kind or "plaintext"
        print(f"klamm, {name}: {broker(kind)}", flush=True)
        if libs is not None:
            java = ["java", "-Xms512m", "-Xmx1g", "-cp", f"{libs}/*", "kafka.Kafka"]
            print(f"Apache Kafka, {name}: {other_broker(kind, java, {})}", flush=True)


def before() -> None:
    """This klamm and older ones, in turns, in plaintext."""
    given = os.environ.get("BEFORE")
    if given is None:
        return
    here = str(Path(__file__).parents[1])
    for _ in range(ROUNDS):
        for directory in (*given.split(","), here):
            command = [sys.executable, "-m", "klamm", "broker"]
            told = other_broker(None, command, {"PYTHONPATH": f"{directory}/src"})
            print(f"klamm of {directory}, plaintext: {told}", flush=True)


def spark() -> None:
    cpus: list[tuple[float, float]] = []
    for kind in (None, "sasl_ssl"):
        with Cluster(brokers=1, security=kind) as cluster:
            cluster.create_topic("bench", replication_factor=1)
            produce(cluster.client_config("confluent-kafka"), os.urandom(RECORD))
            options = cluster.client_config("spark")
            cpus.append((run_spark(options), min(read_as_spark(options) for _ in range(READS))))
        job, alone = (cpu / RECORDS * 1e6 for cpu in cpus[-1])
        print(
            f"Spark, {kind or 'plaintext'}: {job:.1f} s CPU for a million rows;"
            f" of it the reader {alone:.2f} s",
            flush=True,
        )
    for what, plain, secured in zip(("a Spark job", "its reader alone"), *cpus, strict=True):
        print(f"{what}: CPU over SASL_SSL to that in plaintext {secured / plain:.2f}")


def decisions(count: int = 10_000) -> None:
    authorizer = AclAuthorizer()
    for number in range(count):
        pattern = PatternType.PREFIXED if number % 2 else PatternType.LITERAL
        entry = AccessControlEntry(
            f"User:u{number % 100}", "*", AclOperation.READ, AclPermission.ALLOW
        )
        authorizer.put(ResourcePattern(ResourceType.TOPIC, f"topic-{number}", pattern), [entry])
    for name in ("first", "remembered"):
        began = time.perf_counter()
        for number in range(count):
            authorizer.allows(
                "User:u7", "10.0.0.1", AclOperation.READ, ResourceType.TOPIC, f"topic-{number}"
            )
        taken = (time.perf_counter() - began) / count * 1e6
        print(f"an ACL decision among {count:,} ACLs, {name}: {taken:.1f} us")


def logins(count: int = 200) -> None:
    mechanism = ScramMechanism.SCRAM_SHA_512
    salted = salted_password(mechanism, "secret", b"salt", 4096)
    credential = credential_of(mechanism, salted, b"salt", 4096)
    taken = 0.0
    for _ in range(count):
        server = ScramServer(mechanism, lambda _: credential, nonce="n", decoy_key=b"k")
        client = ScramLogin(mechanism, "alice", "secret", nonce="c")
        first = client.on_challenge(b"")
        began = time.perf_counter()
        challenge = server.on_token(first)
        taken += time.perf_counter() - began
        assert isinstance(challenge, Challenge)
        final = client.on_challenge(challenge.token)
        began = time.perf_counter()
        server.on_token(final)
        taken += time.perf_counter() - began
    print(f"the server's part of a SCRAM-SHA-512 login: {taken / count * 1e6:.0f} us")


# TLS


class Range:
    """Part of a file, as a log hands it out."""

    position = 0
    size = PIECE

    def __init__(self, file: int) -> None:
        self._file = file

    def fileno(self) -> int:
        return self._file


def serve(way: str) -> str:
    """The rate and the server's CPU time for each GB that it sends."""
    authority = CertificateAuthority()
    pair = authority.issue("server", ("127.0.0.1",))
    keystore = StoreSettings("PEM", key=pair.key, certificates=pair.certificate)
    trusted = StoreSettings("PEM", certificates=authority.certificate)
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=run_server, args=(way, keystore, theirs))
    server.start()
    port = ours.recv()
    connected = socket.create_connection(("127.0.0.1", port))
    if way != "plaintext sendfile":
        context = client_context(TlsSettings(None, trusted))
        connected = context.wrap_socket(connected, server_hostname="127.0.0.1")
    buffer = bytearray(MB)
    began = time.perf_counter()
    left = SENT_MB * MB
    request = b"\0\0\0\x02\0\0"
    for _ in range(SENT_MB):
        connected.sendall(request)
        part = PIECE
        while part:
            part -= connected.recv_into(buffer, part)
        left -= PIECE
    taken = time.perf_counter() - began
    connected.close()
    ours.send("stop")
    cpu = ours.recv()
    server.join()
    return f"{SENT_MB / taken:.0f} MB/s, {cpu / SENT_MB * 1024:.2f} s of CPU per GB"


def run_server(way: str, keystore: StoreSettings, pipe: Connection) -> None:
    with tempfile.TemporaryFile() as file, asyncio.Runner(loop_factory=uvloop.new_event_loop) as r:
        file.write(os.urandom(PIECE))
        file.flush()
        r.run(serve_until_told(way, keystore, pipe, file.fileno()))


async def serve_until_told(way: str, keystore: StoreSettings, pipe: Connection, file: int) -> None:
    context = server_context(TlsSettings(keystore, None))
    if way in (UVLOOP, AIOFASTNET):
        data = os.pread(file, PIECE, 0)

        class Answers(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                self.transport = transport

            def data_received(self, received: bytes) -> None:
                for _ in range(len(received) // 6):
                    self.transport.write(os.pread(file, len(data), 0))  # type: ignore[attr-defined]

        loop = asyncio.get_running_loop()
        create = loop.create_server
        if way == AIOFASTNET:
            create = partial(import_module("aiofastnet").create_server, loop)
        server = await create(Answers, "127.0.0.1", 0, ssl=context)
        pipe.send(server.sockets[0].getsockname()[1])
    else:
        meter = type("Nothing", (), {"note": lambda self, unsent: None})()

        def answer(connection: object, frame: memoryview) -> tuple[object, object, object]:
            return [Range(file)], meter, ()

        is_tls = way != "plaintext sendfile"
        listener = Listener(
            "L",
            answer,
            MB,
            (lambda: context) if is_tls else None,  # type: ignore[arg-type]
            open=TlsAcceptor if is_tls else None,
        )
        serving = Server(answer, frame_bytes_max=MB, idle_max_s=0, backlog=5)  # type: ignore[arg-type]
        pipe.send(await serving.listen(ListenerEndpoint("L", "127.0.0.1", 0), listener))
    begin = cpu_s()
    await asyncio.to_thread(pipe.recv)
    pipe.send(cpu_s() - begin)


def kernel_tls() -> str:
    """What kernel TLS lacks on this machine."""
    protocols = Path("/proc/sys/net/ipv4/tcp_available_ulp")
    lacking = []
    if not hasattr(ssl, "OP_ENABLE_KTLS"):
        lacking.append("Python's ssl module does not offer it before 3.12")
    if not protocols.exists() or "tls" not in protocols.read_text().split():
        lacking.append("the kernel's module tls is not loaded")
    return "; ".join(lacking) or "available"


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# A whole broker


def broker(kind: str | None) -> str:
    """Produce and consume through a broker of klamm."""
    with Cluster(brokers=1, security=kind) as cluster:
        cluster.create_topic("bench", replication_factor=1)
        pid = cluster.broker(1).pid
        assert pid is not None
        told = load(cluster.client_config("confluent-kafka"), pid)
        return told if kind is None else f"{told}; {stall(cluster.client_config('java'))}"


def run_spark(options: dict[str, str]) -> float:
    """The CPU seconds of a job of Spark's that reads the topic, its JVM and its workers."""
    job = Path(__file__).with_name("_spark_job.py")
    bootstrap = options["kafka.bootstrap.servers"]
    done = subprocess.run(
        [sys.executable, job, "klamm", bootstrap, "bench", "-", str(RECORDS), str(ROUNDS), "read"],
        env={**os.environ, "KAFKA_OPTIONS": json.dumps(options)},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(done.stderr[-3000:])
    return float(json.loads(done.stdout.splitlines()[-1])["read"]["cpu"])


def read_as_spark(options: dict[str, str]) -> float:
    """The CPU seconds in which a task of Spark's would read the topic, without Spark."""
    given = {key.lower(): value for key, value in options.items()}
    reader = TopicReader(read_options({**given, "subscribe": "bench"}, streaming=False))
    cpu = time.process_time()
    rows = sum(batch.num_rows for each in reader.partitions() for batch in reader.read(each))
    assert rows == RECORDS, rows
    return time.process_time() - cpu


def stall(properties: dict[str, str]) -> str:
    """How long others wait for an answer while clients log in with SCRAM, and while none does."""
    security = ClientSecurity.from_properties(properties)
    host, _, port = properties["bootstrap.servers"].partition(":")
    connection = BlockingConnection(host, int(port), "bench", SecureClient(security))

    def p99_ms() -> float:
        taken = []
        for _ in range(PINGS):
            began = time.perf_counter()
            connection.send(ApiKey.DESCRIBE_CLUSTER, PING, 10)
            taken.append(time.perf_counter() - began)
            time.sleep(PAUSE_S)
        return sorted(taken)[PINGS * 99 // 100] * 1000

    alone = p99_ms()
    stopped = multiprocessing.Event()
    counted = multiprocessing.Value("i", 0)
    logging_in = multiprocessing.Process(
        target=log_in_until, args=(host, int(port), security, stopped, counted)
    )
    logging_in.start()
    began = time.perf_counter()
    beside = p99_ms()
    taken = time.perf_counter() - began
    stopped.set()
    logging_in.join()
    connection.close()
    return (
        f"99% of answers to others within {alone:.1f} ms, and {beside:.1f} ms beside "
        f"{counted.value / taken:.0f} SCRAM logins a second"
    )


def log_in_until(
    host: str, port: int, security: ClientSecurity, stopped: Any, counted: Any
) -> None:
    while not stopped.wait(PAUSE_S):
        connection = BlockingConnection(host, port, "bench", SecureClient(security))
        connection.send(ApiKey.DESCRIBE_CLUSTER, PING, 10)
        connection.close()
        counted.value += 1


def other_broker(kind: str | None, command: list[str], environment: dict[str, str]) -> str:
    """Produce and consume through the broker that `command` starts, with the same settings."""
    with (
        tempfile.TemporaryDirectory(prefix="klamm-bench-") as folder,
        ZooKeeperServer() as zookeeper,
        contextlib.ExitStack() as stack,
    ):
        directory = Path(folder)
        port = free_port()
        protocol = "PLAINTEXT" if kind is None else "SASL_SSL"
        settings = {
            "broker.id": "1",
            "listeners": f"{protocol}://127.0.0.1:{port}",
            "log.dirs": str(directory / "log"),
            "zookeeper.connect": zookeeper.address,
            "offsets.topic.replication.factor": "1",
        }
        config: dict[str, object] = {"bootstrap.servers": f"127.0.0.1:{port}"}
        if kind is not None:
            security = LocalSecurity(kind, directory / "security")
            settings |= security.broker_settings(protocol)
            settings["sasl.enabled.mechanisms"] = "PLAIN"
            config = security.client_config(
                "confluent-kafka", f"127.0.0.1:{port}", "admin", "PLAIN"
            )
        file = directory / "server.properties"
        file.write_text(format_properties(settings))
        output = stack.enter_context((directory / "output").open("wb"))
        process = subprocess.Popen(
            [*command, str(file)], stdout=output, stderr=output, env={**os.environ, **environment}
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        admin = AdminClient({**config, "log_level": 0})
        deadline = time.monotonic() + 240
        while True:
            try:
                admin.create_topics([NewTopic("bench", 1, 1)])["bench"].result(30)
                break
            except (KafkaException, TimeoutError) as error:
                if "already exists" in str(error):
                    break  # an earlier attempt took longer than it was waited for
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
        return load(config, process.pid)


def load(config: dict[str, object], pid: int) -> str:
    value = os.urandom(RECORD)
    volume_gb = RECORD * RECORDS / 1e9
    told = []
    produce(config, value)
    consume(config, value)
    for name, work in (("produce", produce), ("consume", consume)):
        cpu, began = process_cpu_s(pid), time.perf_counter()
        work(config, value)
        taken, cpu = time.perf_counter() - began, process_cpu_s(pid) - cpu
        told.append(f"{name} {volume_gb * 1000 / taken:.0f} MB/s, {cpu / volume_gb:.1f} s CPU/GB")
    return "; ".join(told)


def produce(config: dict[str, object], value: bytes) -> None:
    producer = Producer({**config, "linger.ms": 5, "batch.size": 500_000, "acks": 1})
    for _ in range(RECORDS):
        while True:
            try:
                producer.produce("bench", value)
                break
            except BufferError:
                producer.poll(0.01)
    assert producer.flush(120) == 0


def consume(config: dict[str, object], _: bytes) -> None:
    consumer = Consumer({**config, "group.id": "bench", "fetch.message.max.bytes": 4 * MB})
    consumer.assign([TopicPartition("bench", 0, 0)])
    left = RECORDS
    while left > 0:
        left -= len(consumer.consume(10_000, timeout=5))
    consumer.close()


def process_cpu_s(pid: int) -> float:
    """The CPU time of a process and of those that it started."""
    text = subprocess.run(
        ["ps", "-o", "pid=,ppid=", "-A"], capture_output=True, text=True, check=True
    ).stdout
    parents = {int(p): int(pp) for p, pp in (line.split() for line in text.splitlines())}
    family = {pid} | {child for child, parent in parents.items() if parent == pid}
    ticks = 0
    for each in family:
        path = Path(f"/proc/{each}/stat")
        if path.exists():
            ticks += sum(map(int, path.read_text().rpartition(")")[2].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


PARTS = {
    "decisions": decisions,
    "logins": logins,
    "tls": ways_of_tls,
    "brokers": brokers,
    "before": before,
    "spark": spark,
}

if __name__ == "__main__":
    assert ssl.OPENSSL_VERSION_INFO >= (3,), "measured with OpenSSL 3"
    main()
