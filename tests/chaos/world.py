"""The cluster of a run: real brokers and ZooKeepers on this machine, every link behind a gate.

Nothing here decides what is to happen; it can be done, and looked at.
"""

import contextlib
import functools
import os
import re
import resource
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final

from klamm.client import reassignments, topics
from klamm.client.admin import Admin
from klamm.errors import KlammError, UnavailableError
from klamm.local.broker_process import BrokerProcess, ProcessState
from klamm.local.faults import FaultInjector
from klamm.local.loop_thread import LoopThread
from klamm.local.network import HOST, free_ports
from klamm.local.zookeeper_reader import ZooKeeperReader
from klamm.zookeeper.server import ZooKeeperEnsemble, ZooKeeperServer
from tests.chaos.links import Links
from tests.chaos.plan import SESSION_S
from tests.chaos.recording import Leader, Name

#: What is written to, and the replicas of each; the second one moves about.
LEDGER: Final = "ledger"
WANDERER: Final = "wanderer"
OFFSETS: Final = "__consumer_offsets"
_PARTITIONS: Final = {LEDGER: 4, WANDERER: 3}
_SETTINGS: Final = {
    "zookeeper.session.timeout.ms": str(SESSION_S * 1000),
    "replica.lag.time.max.ms": "6000",
    "controlled.shutdown.retry.backoff.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "3",
    "leader.imbalance.check.interval.seconds": "15",
    "auto.create.topics.enable": "false",
    # Small, so that segments are rolled, and full disks met, within minutes.
    "log.segment.bytes": "262144",
}
_TRACEBACK: Final = re.compile(r"^Traceback .*\n(?:(?: .*)?\n)*(\S.*)", re.MULTILINE)
_START_S: Final = 90.0
_POLL_S: Final = 0.1
_ADMIN_TIMEOUT_S: Final = 10.0


class World:
    """Brokers 1 to n. Used as a context manager, it leaves no process behind."""

    def __init__(self, directory: Path, brokers: int, zookeepers: int) -> None:
        self.directory = directory
        self._count = brokers
        self._is_ensemble = zookeepers > 1
        self._stack = contextlib.ExitStack()
        self._loop_thread = LoopThread("chaos")
        self._links = Links()
        self.zookeepers: list[ZooKeeperServer] = []
        self.brokers: dict[int, BrokerProcess] = {}
        self._zookeeper_reader: ZooKeeperReader
        self.admin: Admin

    def __enter__(self) -> "World":
        with contextlib.ExitStack() as stack:
            stack.callback(self._loop_thread.close)
            stack.callback(lambda: self._loop_thread.call(self._links.close))
            if self._is_ensemble:
                ensemble = ZooKeeperEnsemble(3, heap="128m")
                stack.callback(ensemble.stop)
                self.zookeepers = list(ensemble.start().members)
                address = ensemble.address
            else:
                server = ZooKeeperServer(heap="256m")
                stack.callback(server.stop)
                self.zookeepers = [server.start()]
                address = server.address
            self._zookeeper_reader = ZooKeeperReader(self._loop_thread, address)
            stack.callback(self._zookeeper_reader.close)
            # Chaos injects nothing into requests.
            self._faults = FaultInjector(self._loop_thread, tuple)
            ports = free_ports(2 * self._count)
            for broker in range(1, self._count + 1):
                self.brokers[broker] = self._make_broker(broker, ports.pop(), ports.pop())
            stack.callback(self._kill_brokers)
            for process in self.brokers.values():
                process.start()
            self.admin = Admin(self.bootstrap, client_id="chaos", timeout_s=_ADMIN_TIMEOUT_S)
            stack.callback(self.admin.close)
            self.wait_whole((), _START_S)
            self._create_topics()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        # A paused process could not close its session.
        for server in self.zookeepers:
            if server.is_running:
                os.kill(server.pid, signal.SIGCONT)
        self._stack.close()

    def _make_broker(self, broker: int, clients: int, brokers: int) -> BrokerProcess:
        directory = self.directory / f"broker-{broker}"
        directory.mkdir(parents=True)
        name = f"broker {broker}"
        gate = self._loop_thread.call(self._links.open_gate, name, brokers)
        gates = [
            self._loop_thread.call(self._links.open_gate, f"ZooKeeper {number}", each.port, name)
            for number, each in enumerate(self.zookeepers, start=1)
        ]
        settings: Mapping[str, str] = {
            "broker.id": str(broker),
            "listeners": f"CLIENTS://{HOST}:{clients},BROKERS://{HOST}:{brokers}",
            "advertised.listeners": f"CLIENTS://{HOST}:{clients},BROKERS://{gate}",
            "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
            "inter.broker.listener.name": "BROKERS",
            "zookeeper.connect": ",".join(gates),
            "log.dirs": ",".join(str(directory / disk) for disk in ("disk-a", "disk-b")),
            "klamm.history.dir": str(directory / "history"),
            "offsets.topic.replication.factor": str(min(3, self._count)),
            **_SETTINGS,
        }
        return BrokerProcess(broker, clients, directory, settings, self._faults)

    def _create_topics(self) -> None:
        """One topic that may lose a broker and be written to, and one that is easily moved."""
        for name, replicas, in_sync in ((LEDGER, 3, 2), (WANDERER, 2, 1)):
            topics.create(
                self.admin,
                topics.NewTopic(
                    name,
                    _PARTITIONS[name],
                    min(replicas, self._count),
                    config={"min.insync.replicas": str(min(in_sync, self._count))},
                ),
            )
        self.wait_whole(_PARTITIONS, _START_S)

    # What can be done to it

    @property
    def bootstrap(self) -> str:
        return ",".join(process.address for process in self.brokers.values())

    def candidate_pid(self, broker: int) -> int | None:
        """The process in which a broker stands for controller."""
        pid = self.brokers[broker].pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return None
        return int(children[0]) if children else None

    def part(self, one: str, other: str, *, silently: bool, one_way: bool = False) -> None:
        """Part two brokers, or a broker from ZooKeeper; `one` is who opens connections."""
        for source, target in ((one, other),) if one_way else ((one, other), (other, one)):
            cut = functools.partial(self._links.part, source, target, silently=silently)
            self._loop_thread.call(cut)

    def isolate(self, name: str, *, silently: bool) -> None:
        """Part a broker from everybody but its clients."""
        self.cut_from_zookeeper(name, silently=silently)
        for other in self.brokers:
            if f"broker {other}" != name:
                self.part(name, f"broker {other}", silently=silently)

    def cut_from_zookeeper(self, name: str, *, silently: bool) -> None:
        for number in range(1, len(self.zookeepers) + 1):
            self.part(name, f"ZooKeeper {number}", silently=silently, one_way=True)

    def limit_files(self, broker: int, size: int) -> None:
        """Limit the file size of a broker's process, not of its controller's process."""
        pid = self.brokers[broker].pid
        if pid is not None:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    def undo(self) -> None:
        """Everybody runs again and reaches everybody."""
        self._loop_thread.call(self._links.join)
        for server in self.zookeepers:
            if server.is_running:
                os.kill(server.pid, signal.SIGCONT)
            else:
                server.start()
        for process in self.brokers.values():
            if process.state is ProcessState.PAUSED:
                process.resume()
            elif not process.is_alive:
                process.start()

    def _kill_brokers(self) -> None:
        for process in self.brokers.values():
            process.kill()

    # What it is like

    def controller(self) -> int | None:
        """The controller's id; None also if no ZooKeeper can be reached."""
        try:
            return self._zookeeper_reader.controller()
        except (KlammError, TimeoutError):
            return None

    def leader(self, name: Name) -> int | None:
        try:
            state = self._zookeeper_reader.partition(*name)
        except (KlammError, TimeoutError):
            return None
        return None if state is None else state.leader

    def led_by(self, broker: int) -> tuple[Name, ...]:
        """The partitions that clients write to and a broker leads."""
        return tuple(name for name in written() if self.leader(name) == broker)

    def leaders(self) -> list[Leader]:
        """As ZooKeeper has them."""
        found = []
        for name in written():
            state = self._zookeeper_reader.partition(*name)
            if state is not None:
                leader = -1 if state.leader is None else state.leader
                found.append(Leader(*name, leader, state.leader_epoch, time.time()))
        return found

    def leader_ports(self) -> dict[Name, int]:
        """Where clients find the leader of each partition that they write to."""
        ports = {broker: process.port for broker, process in self.brokers.items()}
        return {
            (each.topic, each.partition): ports[each.leader]
            for each in self.leaders()
            if each.leader in ports
        }

    def topics(self) -> dict[str, int]:
        """The topics there are, and how many partitions each has."""
        return {each.topic: len(each.partitions) for each in topics.describe(self.admin).topics}

    def tracebacks(self) -> list[str]:
        """The exceptions in the brokers' logs."""
        found = []
        for broker, process in self.brokers.items():
            text = process.log.read_text(encoding="utf-8", errors="replace")
            found += [f"broker {broker}: {match[1]}" for match in _TRACEBACK.finditer(text)]
        return found

    def wait_whole(self, names: Collection[str] | None, timeout_s: float) -> list[str]:
        """Wait until nothing is wrong; what still is when the time is over."""
        deadline = time.monotonic() + timeout_s
        while wrong := self.wrong(names):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_S)
        return wrong

    def wrong(self, names: Collection[str] | None) -> list[str]:
        """What keeps the cluster from being whole, as ZooKeeper and every broker has it.

        Some topics may be left out of account; with None there must not be moves under way either.
        """
        try:
            registered = self._zookeeper_reader.brokers()
            found = [
                f"broker {broker} is not registered" for broker in self.brokers.keys() - registered
            ]
            for broker, process in self.brokers.items():
                found += self._wrong_at(broker, process, names)
            if names is None and not found:
                found += [
                    f"{move} is under way" for move in reassignments.list_reassignments(self.admin)
                ]
            return found
        except (KlammError, TimeoutError) as error:
            return [f"cannot be asked: {error}"]

    def _wrong_at(
        self, broker: int, process: BrokerProcess, names: Collection[str] | None
    ) -> list[str]:
        if not process.is_alive:
            return [f"broker {broker} ended: {process.last_words()}"]
        try:
            with Admin(process.address, timeout_s=5) as admin:
                view = topics.describe(admin, None if names is None else sorted(names))
        except UnavailableError as error:
            return [f"broker {broker} cannot be asked: {error}"]
        if missing := self.brokers.keys() - {each.id for each in view.brokers}:
            return [f"broker {broker} does not know of {sorted(missing)}"]
        if view.controller != (actual := self._zookeeper_reader.controller()):
            return [f"broker {broker} takes {view.controller} for controller instead of {actual}"]
        found = []
        for each in view.partitions():
            state = self._zookeeper_reader.partition(each.topic, each.partition)
            where = f"{each.topic}-{each.partition}"
            if state is None or state.leader is None:
                found.append(f"{where} has no leader")
            elif (each.leader, each.leader_epoch) != (state.leader, state.leader_epoch):
                found.append(
                    f"{where}: broker {broker} knows leader {each.leader} of epoch "
                    f"{each.leader_epoch}; there is {state}"
                )
            elif set(state.isr) != set(each.replicas):
                found.append(f"{where}: ISR {state.isr} of {each.replicas}")
        return found


def written() -> list[Name]:
    """The partitions that producers write to."""
    return [(topic, number) for topic, count in _PARTITIONS.items() for number in range(count)]
