"""The processes and connections of a local cluster that runs.

`klamm.local.cluster` decides what is done to them. They are started and closed as a whole; when the
interpreter ends without that, `end` leaves no process and no temporary directory behind.
"""

import contextlib
import fcntl
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, Self, TypeVar

from klamm.broker.fault_injection import CLUSTER_CLIENT_ID
from klamm.client.admin import Admin
from klamm.config.client_properties import PLAINTEXT, ClientSecurity
from klamm.errors import ConfigError, KlammError, UnavailableError
from klamm.local.broker_process import BrokerProcess, ProcessState
from klamm.local.faults import FaultInjector
from klamm.local.loop_thread import LoopThread
from klamm.local.network import HOST, Proxy, free_ports, is_free
from klamm.local.security import KINDS, LocalSecurity
from klamm.local.zookeeper_reader import ZooKeeperReader
from klamm.protocol.apis import ApiKey
from klamm.temporary import TemporaryFolder
from klamm.zookeeper.server import ZooKeeperServer
from klamm.zookeeper.session import split_connect_string

T = TypeVar("T")

_POLL_S: Final = 0.02
#: `transaction.state.log.min.isr`, for clusters that have as many brokers.
_TRANSACTIONS_MIN_ISR: Final = 2
REPLICATION_MAX: Final = 3
#: Settings for small clusters in which failures have to be noticed soon.
_DEFAULTS: Final = {
    "zookeeper.session.timeout.ms": "3000",
    # ZooKeeper starts beside the brokers, and on a busy machine it takes its time.
    "zookeeper.connection.timeout.ms": "30000",
    "controlled.shutdown.retry.backoff.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "5",
}
_METRICS: Final = {"klamm.metrics.host": HOST, "klamm.metrics.port": "0"}


class ConditionNotMetError(UnavailableError, TimeoutError):
    """A condition did not become true in time; the message has the last state."""


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """The options that a cluster was created with."""

    ids: tuple[int, ...]
    racks: Sequence[str] | Mapping[int, str]
    config: Mapping[str, str]
    base_port: int | None
    data_dir: Path | None
    zookeeper: str | None
    can_be_cut: bool
    security: str | None
    metrics: bool

    @classmethod
    def checked(
        cls,
        brokers: int | Iterable[int],
        racks: Sequence[str] | Mapping[int, str] | None,
        config: Mapping[str, Any] | None,
        base_port: int | None,
        data_dir: Path | str | None,
        zookeeper: str | None,
        can_be_cut: bool,
        security: str | None,
        metrics: bool,
    ) -> Self:
        """The options, if a cluster can have them; otherwise a ConfigError."""
        if isinstance(racks, str):
            raise ConfigError(f"racks={racks!r} is a text; expected is a list, as in ['a', 'b']")
        if config is not None and not isinstance(config, Mapping):
            raise ConfigError(f"config={config!r} is not a dict of settings of the brokers")
        if base_port is not None and not isinstance(base_port, int):
            raise ConfigError(f"base_port={base_port!r} is not a number")
        if security is not None and security not in KINDS:
            raise ConfigError(f"security={security!r} is not one of {', '.join(KINDS)}")
        return cls(
            _broker_ids(brokers),
            racks or (),
            settings_text(config),
            base_port,
            None if data_dir is None else Path(data_dir).absolute(),
            zookeeper,
            can_be_cut,
            security,
            metrics,
        )

    def rack_of(self, broker: int) -> str | None:
        """The rack of one of the brokers."""
        if isinstance(self.racks, Mapping):
            return self.racks.get(broker)
        return self.racks[self.ids.index(broker) % len(self.racks)] if self.racks else None


def _broker_ids(brokers: int | Iterable[int]) -> tuple[int, ...]:
    expected = "expected is a number, as in brokers=3, or ids, as in brokers=[1, 2, 3]"
    if isinstance(brokers, bool | str | bytes) or not isinstance(brokers, int | Iterable):
        raise ConfigError(f"brokers={brokers!r} is no number; {expected}")
    ids = tuple(range(1, brokers + 1)) if isinstance(brokers, int) else tuple(brokers)
    for each in ids:
        if isinstance(each, bool) or not isinstance(each, int) or each < 0:
            raise ConfigError(f"brokers: {each!r} is not the id of a broker; {expected}")
    if not ids or len(set(ids)) < len(ids):
        raise ConfigError(f"A cluster has one broker or more, each with its id: {brokers!r}.")
    return ids


class RunningCluster:
    """Everything that exists only while a cluster runs."""

    def __init__(self, options: ClusterOptions) -> None:
        self.options = options
        self.lock = threading.RLock()
        self.brokers: dict[int, BrokerProcess] = {}
        self.proxies: dict[int, Proxy] = {}
        self.security: LocalSecurity | None = None
        #: The users that clients have asked for, with their mechanisms.
        self.users: set[tuple[str, str]] = set()
        self.data_dir: Path
        self.zookeeper: str
        self.server: ZooKeeperServer | None
        self.loop_thread: LoopThread
        self.faults: FaultInjector
        self.reader: ZooKeeperReader
        self.admin: Admin
        # Processes and directories must go however this process ends; connections go with it.
        self._processes = contextlib.ExitStack()
        self._connections = contextlib.ExitStack()

    def start(self, timeout_s: float) -> None:
        """Start everything; returns when it serves clients."""
        options = self.options
        self.data_dir = self._take_data_dir()
        if options.security is not None:
            self.security = LocalSecurity(options.security, self.data_dir / "security")
        self.loop_thread = LoopThread("klamm cluster")
        self._connections.callback(self.loop_thread.close)
        self.faults = FaultInjector(self.loop_thread, self.running_ids)
        self.server = self._launch_zookeeper()
        for broker, port in zip(options.ids, self._choose_ports(), strict=True):
            self.brokers[broker] = self.make_broker(broker, port, options.rack_of(broker))
        # Brokers start in parallel with ZooKeeper, and wait for it themselves.
        self._processes.callback(self.kill_brokers)
        for each in self.brokers.values():
            each.start()
        if self.server is not None:
            self.server.wait_until_serving(timeout_s)
        self.reader = ZooKeeperReader(self.loop_thread, self.zookeeper)
        self._connections.callback(self.reader.close)
        self.admin = self._open_admin(self.bootstrap_servers)
        self._connections.callback(self.admin.close)
        self.wait_usable(list(self.brokers.values()), timeout_s)
        # FindCoordinator creates the offsets topic. Its creation needs as many brokers as it has
        # replicas, and the caller may kill brokers from now on.
        self.admin.ask_any(ApiKey.FIND_COORDINATOR, {"key": "klamm", "key_type": 0})

    def close(self) -> None:
        """End everything: the brokers, the connections, then the rest."""
        self.kill_brokers()
        try:
            self._connections.close()
        finally:
            self._processes.close()

    def end(self) -> None:
        """End the processes only: at the exit of the interpreter, connections need no care."""
        # They are about to be lost, which is nothing to be warned of.
        logging.getLogger("klamm").setLevel(logging.CRITICAL)
        self._processes.close()

    def stop_brokers(self, timeout_s: float) -> None:
        """Shut all brokers down in order, the controller last; kill those that take too long."""
        # Without ZooKeeper, the controller is unknown.
        is_there = self.server is None or self.server.is_running
        controller = self.reader.controller() if is_there else None
        running = [each for each in self.brokers.values() if each.is_alive]
        for each in sorted(running, key=lambda each: each.id == controller):
            with contextlib.suppress(KlammError):
                each.stop(timeout_s)
            each.kill()

    def kill_brokers(self) -> None:
        """Kill all brokers."""
        for each in list(self.brokers.values()):
            each.kill()

    def _take_data_dir(self) -> Path:
        given = self.options.data_dir
        if given is None:
            made = TemporaryFolder("cluster")
            self._processes.callback(made.remove)
            return made.path
        try:
            given.mkdir(parents=True, exist_ok=True)
            lock: IO[str] = (given / "lock").open("w")
        except OSError as error:
            raise ConfigError(
                f"The data directory {given} is of no use: {error.strerror}."
            ) from None
        self._processes.callback(lock.close)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"The data directory {given} is in use by another cluster.") from None
        return given

    def _launch_zookeeper(self) -> ZooKeeperServer | None:
        if self.options.zookeeper is not None:
            self.zookeeper = self.options.zookeeper
            return None
        kept = None if self.options.data_dir is None else self.data_dir / "zookeeper"
        server = ZooKeeperServer(data_dir=kept, heap="256m", starts_quickly=True)
        self._processes.callback(server.stop)
        server.launch()
        self.zookeeper = server.address
        return server

    def _choose_ports(self) -> list[int]:
        count, base = len(self.options.ids), self.options.base_port
        if base is None:
            return free_ports(count)
        ports = list(range(base, base + count))
        for port in ports:
            if not is_free(port):
                raise ConfigError(
                    f"Port {port} is taken: stop what listens there, or choose other ports with "
                    "--base-port."
                )
        return ports

    def make_broker(
        self, broker: int, port: int, rack: str | None, config: Mapping[str, str] | None = None
    ) -> BrokerProcess:
        """A broker with its settings, not started."""
        directory = self.data_dir / f"broker-{broker}"
        count = len(self.options.ids)
        replication = str(min(REPLICATION_MAX, count))
        protocol = "PLAINTEXT" if self.security is None else self.security.protocol
        settings = {
            "broker.id": str(broker),
            "listeners": f"{protocol}://{HOST}:{port}",
            **({} if self.security is None else self.security.broker_settings(protocol)),
            "zookeeper.connect": self._zookeeper_for(broker),
            "log.dirs": str(directory / "log"),
            "klamm.history.dir": str(directory / "log-history"),
            "offsets.topic.replication.factor": replication,
            "transaction.state.log.replication.factor": replication,
            "transaction.state.log.min.isr": str(min(_TRANSACTIONS_MIN_ISR, count)),
            **_DEFAULTS,
            **(_METRICS if self.options.metrics else {}),
            **({"broker.rack": rack} if rack is not None else {}),
            **self.options.config,
            **(config or {}),
        }
        return BrokerProcess(broker, port, directory, settings, self.faults)

    def _zookeeper_for(self, broker: int) -> str:
        """The address of ZooKeeper for a broker: of its own proxy, if it can be cut off."""
        return self.start_proxy(broker) if self.options.can_be_cut else self.zookeeper

    def start_proxy(self, broker: int) -> str:
        """Stand between a broker and ZooKeeper; the address of ZooKeeper for the broker."""
        hosts, chroot = split_connect_string(self.zookeeper)
        host, _, port = hosts.partition(",")[0].rpartition(":")
        proxy = self.proxies[broker] = Proxy(host, int(port))
        address = self.loop_thread.call(proxy.start)
        self._connections.callback(lambda: self.loop_thread.call(proxy.close))
        return address + chroot

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers."""
        return ",".join(each.address for each in self.brokers.values())

    @property
    def admin_security(self) -> ClientSecurity:
        """How the cluster's own clients reach it as its administrator."""
        return PLAINTEXT if self.security is None else self.security.admin_security()

    def running_ids(self) -> list[int]:
        """The brokers whose processes run and are not paused."""
        return [each.id for each in self.brokers.values() if each.state is ProcessState.RUNNING]

    def wait_usable(self, brokers: Sequence[BrokerProcess], timeout_s: float) -> None:
        """Wait until these brokers know the controller and every other broker that is alive."""
        deadline = time.monotonic() + timeout_s
        for each in brokers:
            with self._open_admin(each.address, timeout_s=5) as admin:
                while not self._is_usable(admin):
                    if not each.is_alive:
                        raise UnavailableError(
                            f"Broker {each.id} ended (exit code {each.exit_code}): "
                            f"{each.last_words()}"
                        )
                    if time.monotonic() > deadline:
                        raise ConditionNotMetError(
                            f"Broker {each.id} was not ready within {timeout_s:g} s; registered "
                            f"are {sorted(self.reader.brokers())}, the controller is "
                            f"{self.reader.controller()}; it said: {each.last_words()}"
                        )
                    time.sleep(_POLL_S)

    def _is_usable(self, admin: Admin) -> bool:
        try:
            response = admin.metadata([])
        except UnavailableError:
            return False
        known = {each.node_id for each in response.brokers}
        # A broker whose session expired may know all others and not be registered itself.
        expected = set(self.running_ids())
        return response.controller_id in known and expected <= (known & self.reader.brokers())

    def _open_admin(self, servers: str, **options: Any) -> Admin:
        return Admin(servers, client_id=CLUSTER_CLIENT_ID, security=self.admin_security, **options)


def wait_for(
    look: Callable[[], T],
    is_so: Callable[[T], bool],
    wanted: str,
    tell: Callable[[T], str],
    timeout_s: float,
) -> T:
    """Look until something is so; the error names what was wanted and what was last seen."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if is_so(found):
            return found
        if time.monotonic() > deadline:
            raise ConditionNotMetError(
                f"Waited {timeout_s:g} s for {wanted}; at the end: {tell(found)}."
            )
        time.sleep(_POLL_S)


def settings_text(settings: Mapping[str, Any] | None) -> dict[str, str]:
    """Settings as `server.properties` has them."""
    return {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in (settings or {}).items()
    }
