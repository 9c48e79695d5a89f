"""What goes on in the cluster meanwhile: each activity is a thread, and ends when it is told to."""

import itertools
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import NewTopic

from tests.support.cluster import RealCluster
from tests.support.raw import Raw

WIDE: Final = "wide"
ROLLING: Final = "rolling"
PROBE: Final = "probe"
GROUP: Final = "soak"
#: The broker that is stopped and killed; the others live through the whole run.
VICTIM: Final = 3
_RECORD: Final = bytes(1000)
_PATIENCE_S: Final = 60


class Activities:
    """Runs functions until the end, and keeps what made one of them fail."""

    def __init__(self, cluster: RealCluster, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.over = threading.Event()
        #: Set while the cluster is measured: no broker fails then.
        self.is_measured = threading.Event()
        self.failures: list[str] = []
        #: How often each thing was done.
        self.done: dict[str, int] = {}
        #: When a record was sent, and how many milliseconds its acknowledgement took.
        self.latencies: list[tuple[float, float]] = []
        self._threads: list[threading.Thread] = []

    def start(self, partitions: int) -> None:
        activities: Mapping[str, Callable[[], None]] = {
            "produce": lambda: self._produce(partitions),
            "probe": self._probe,
            "consume": self._consume,
            "connect": self._connect,
            "topics": self._make_and_delete,
            "faults": self._fail,
        }
        for name, activity in activities.items():
            thread = threading.Thread(target=self._run, args=(name, activity), name=name)
            thread.start()
            self._threads.append(thread)

    def stop(self) -> None:
        self.over.set()
        for thread in self._threads:
            thread.join()

    def _run(self, name: str, activity: Callable[[], None]) -> None:
        try:
            activity()
        except Exception as error:
            self.failures.append(f"{name}: {error!r}")

    def _count(self, what: str, times: int = 1) -> None:
        self.done[what] = self.done.get(what, 0) + times

    def _producer(self) -> Producer:
        return self.cluster.producer(linger_ms=50, message_timeout_ms=120_000)

    def _produce(self, partitions: int) -> None:
        """Records for every partition in turn, and many for a topic whose segments roll."""
        producer = self._producer()
        for number in itertools.cycle(range(partitions)):
            if self.over.wait(0.01):
                break
            producer.produce(f"{WIDE}-{number // 100}", _RECORD, partition=number % 100)
            for _ in range(3):
                producer.produce(ROLLING, _RECORD, partition=self.random.randrange(3))
            producer.poll(0)
            self._count("records produced", 4)
        producer.flush(_PATIENCE_S)

    def _probe(self) -> None:
        """One record after the other to a topic of the brokers that live through the run."""
        producer = self.cluster.producer(linger_ms=0, message_timeout_ms=120_000)
        while not self.over.wait(0.05):
            acknowledged = threading.Event()
            begun = time.monotonic()
            producer.produce(PROBE, b"probe", on_delivery=lambda *_, a=acknowledged: a.set())
            while not acknowledged.is_set():
                producer.poll(0.5)
            self.latencies.append((begun, (time.monotonic() - begun) * 1000))

    def _consume(self) -> None:
        """A group of which a member leaves, and another joins, every few seconds."""
        members: list[Consumer] = []
        while not self.over.is_set():
            member = Consumer(
                {
                    "bootstrap.servers": self.cluster.bootstrap,
                    "group.id": GROUP,
                    "auto.offset.reset": "latest",
                    "session.timeout.ms": 10_000,
                    "log_level": 0,
                }
            )
            member.subscribe([ROLLING, f"{WIDE}-0"])
            members.append(member)
            self._count("consumers joined")
            until = time.monotonic() + 10
            while time.monotonic() < until and not self.over.is_set():
                for each in members:
                    self._count("records consumed", len(each.consume(500, 0.1)))
            if len(members) > 2:
                members.pop(0).close()
        for each in members:
            each.close()

    def _connect(self) -> None:
        """Connections by the dozen: some ask something, some say nothing, some stop half-way."""
        while not self.over.wait(0.5):
            port = self.cluster[self.random.choice([1, 2])].port
            try:
                links = [Raw(port) for _ in range(20)]
            except OSError:
                continue
            for number, link in enumerate(links):
                try:
                    if number % 3 == 0:
                        link.metadata(ROLLING)
                    elif number % 3 == 1:
                        link.socket.sendall(b"\0\0\0\x20\0\x12")
                except OSError:
                    pass
                link.socket.close()
            self._count("connections", len(links))

    def _make_and_delete(self) -> None:
        for number in itertools.count():
            if self.over.wait(5):
                return
            name = f"temporary-{number}"
            admin = self.cluster.admin
            try:
                admin.create_topics([NewTopic(name, 10, 2)])[name].result(_PATIENCE_S)
                producer = self._producer()
                for _ in range(100):
                    producer.produce(name, _RECORD)
                producer.flush(_PATIENCE_S)
                admin.delete_topics([name])[name].result(_PATIENCE_S)
                self._count("topics made and deleted")
            except KafkaException as error:
                # Two of three brokers may be away from the controller; the next one is tried.
                if error.args[0].code() in (KafkaError._TRANSPORT, KafkaError._TIMED_OUT):
                    continue
                self._count(f"refused: {error.args[0].name()}")

    def _fail(self) -> None:
        """Every half minute: one broker is paused, stopped, killed, or the controller moves."""
        victim = self.cluster[VICTIM]
        while not self.over.wait(30):
            if self.is_measured.is_set():
                continue
            kind = self.random.choice(["pause", "stop", "kill", "pause another"])
            self._count(f"faults: {kind}")
            if kind == "stop":
                victim.stop()
            elif kind == "kill":
                victim.kill()
            else:
                paused = victim if kind == "pause" else self.cluster[self.random.choice([1, 2])]
                paused.signal(signal.SIGSTOP)
                self.over.wait(6 if paused is victim else 2)
                paused.signal(signal.SIGCONT)
            self.over.wait(3)
            victim.restart_if_dead()
