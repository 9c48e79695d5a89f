"""A whole cluster on this machine: ZooKeeper and brokers as child processes.

    with Cluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=6)
        cluster.kill(cluster.leader("orders"))
        cluster.wait_leader("orders")

Every method may be called from any thread, and from a notebook. No child process outlives this
process, however it ends. The state of partitions and the controller is read from ZooKeeper.
"""

import atexit
import contextlib
import fcntl
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self, TypeVar

from klamm.client import topics, users
from klamm.client.admin import Admin
from klamm.client.topics import NewTopic, PartitionDescription
from klamm.config.client_properties import PLAINTEXT, ClientSecurity
from klamm.config.properties import format_properties
from klamm.errors import ConfigError, KlammError, UnavailableError
from klamm.local.broker_process import BrokerProcess, ProcessState
from klamm.local.loop_thread import LoopThread
from klamm.local.network import HOST, Proxy, free_ports, is_free
from klamm.local.security import ADMIN, KINDS, LocalSecurity, plaintext_config, write_private
from klamm.local.zookeeper_reader import PartitionStatus, ZooKeeperReader
from klamm.names import TopicPartition
from klamm.net.scram import SCRAM_MECHANISMS
from klamm.protocol.apis import ApiKey
from klamm.zookeeper.server import ZooKeeperServer
from klamm.zookeeper.session import split_connect_string

T = TypeVar("T")

_POLL_S: Final = 0.02
#: `transaction.state.log.min.isr`, for clusters that have as many brokers.
_TRANSACTIONS_MIN_ISR: Final = 2
_REPLICATION_MAX: Final = 3
#: Settings for small clusters in which failures have to be noticed soon.
_DEFAULTS: Final = {
    "zookeeper.session.timeout.ms": "3000",
    "controlled.shutdown.retry.backoff.ms": "500",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "5",
}


class ConditionNotMetError(UnavailableError, TimeoutError):
    """A condition did not become true in time; the message has the last state."""


class Cluster:
    """Brokers 1 to n, or those whose ids are given, with a ZooKeeper of their own or a given one.

    `racks` are assigned in turn, or by id. `config` holds for all brokers; its values are
    converted to text. With `data_dir`, data is kept and used by the next start; without it, data
    is temporary. Without `base_port`, brokers get free ports.
    `security` is `ssl`, `sasl_plaintext` or `sasl_ssl`; `client_config` then gives clients what
    they need.
    """

    def __init__(
        self,
        brokers: int | Iterable[int] = 3,
        *,
        racks: Sequence[str] | Mapping[int, str] | None = None,
        config: Mapping[str, Any] | None = None,
        base_port: int | None = None,
        data_dir: Path | str | None = None,
        zookeeper: str | None = None,
        can_be_cut: bool = True,
        security: str | None = None,
    ) -> None:
        self._ids = list(range(1, brokers + 1)) if isinstance(brokers, int) else list(brokers)
        if not self._ids or len(set(self._ids)) < len(self._ids):
            raise ConfigError(f"A cluster has one broker or more, each with its id: {self._ids}.")
        self._racks = racks
        self._config = {key: _text(value) for key, value in (config or {}).items()}
        self._base_port = base_port
        self._given_data_dir = None if data_dir is None else Path(data_dir).absolute()
        self._given_zookeeper = zookeeper
        self._can_be_cut = can_be_cut
        if security is not None and security not in KINDS:
            raise ConfigError(f"security={security!r} is not one of {', '.join(KINDS)}")
        self._security_kind = security
        self._security: LocalSecurity | None = None
        self._users: set[str] = set()
        self._lock = threading.RLock()
        self._is_running = False
        self._resources = contextlib.ExitStack()
        self._brokers: dict[int, BrokerProcess] = {}
        self._proxies: dict[int, Proxy] = {}
        self._server: ZooKeeperServer | None = None
        self._data_dir: Path
        self._loop_thread: LoopThread
        self._zookeeper_reader: ZooKeeperReader
        self._admin: Admin

    # Starting and stopping

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if not self._is_running:
            return f"<Cluster of brokers {self._ids}, not running>"
        states = ", ".join(f"{each.id} {each.state}" for each in self._brokers.values())
        return f"<Cluster at {self.bootstrap_servers}: {states}>"

    def start(self, broker: int | None = None, *, timeout_s: float = 60.0) -> Self:
        """Start the cluster, or one of its brokers again; returns when it serves clients."""
        if broker is not None:
            self._broker(broker).start()
            self._wait_usable([self._broker(broker)], timeout_s)
            return self
        with self._lock:
            if self._is_running:
                raise KlammError("The cluster is running already.")
            try:
                self._start_all(timeout_s)
            except BaseException:
                self._resources.close()
                raise
            self._is_running = True
        return self

    def close(self) -> None:
        """Stop everything. Brokers whose data is kept get a controlled shutdown."""
        with self._lock:
            if not self._is_running:
                return
            self._is_running = False
            if self._given_data_dir is not None:
                self.stop_brokers()
            self._resources.close()

    def stop_brokers(self, timeout_s: float = 30.0) -> None:
        """Shut all brokers down in order, the controller last; kill those that take too long."""
        # Without ZooKeeper, the controller is unknown.
        controller = self.controller_id() if self.zookeeper_is_running else None
        running = [each for each in self._brokers.values() if each.is_alive]
        for each in sorted(running, key=lambda each: each.id == controller):
            with contextlib.suppress(KlammError):
                each.stop(timeout_s)
            each.kill()

    def kill_brokers(self) -> None:
        """Kill all brokers."""
        for each in list(self._brokers.values()):
            each.kill()

    def _start_all(self, timeout_s: float) -> None:
        stack = self._resources = contextlib.ExitStack()
        atexit.register(self.close)
        stack.callback(atexit.unregister, self.close)
        self._data_dir = self._take_data_dir(stack)
        if self._security_kind is not None:
            self._security = LocalSecurity(self._security_kind, self._data_dir / "security")
        self._loop_thread = LoopThread("klamm cluster")
        stack.callback(self._loop_thread.close)
        self._server = self._launch_zookeeper(stack)
        self._brokers = {}
        ports = self._choose_ports(len(self._ids))
        for broker, port in zip(self._ids, ports, strict=True):
            self._brokers[broker] = self._make_broker(broker, port, self._rack_of(broker))
        # Brokers start in parallel with ZooKeeper, and wait for it themselves.
        stack.callback(self.kill_brokers)
        for each in self._brokers.values():
            each.start()
        if self._server is not None:
            self._server.wait_until_serving(timeout_s)
        self._zookeeper_reader = ZooKeeperReader(self._loop_thread, self.zookeeper)
        stack.callback(self._zookeeper_reader.close)
        self._admin = Admin(
            self.bootstrap_servers, client_id="klamm-cluster", security=self.admin_security
        )
        stack.callback(self._admin.close)
        self._wait_usable(list(self._brokers.values()), timeout_s)
        # FindCoordinator creates the offsets topic. Its creation needs as many brokers as it has
        # replicas, and the caller may kill brokers from now on.
        self._admin.ask_any(ApiKey.FIND_COORDINATOR, {"key": "klamm", "key_type": 0})

    def _take_data_dir(self, stack: contextlib.ExitStack) -> Path:
        if self._given_data_dir is None:
            made = Path(tempfile.mkdtemp(prefix="klamm-"))
            stack.callback(shutil.rmtree, made, ignore_errors=True)
            return made
        try:
            self._given_data_dir.mkdir(parents=True, exist_ok=True)
            lock: IO[str] = (self._given_data_dir / "lock").open("w")
        except OSError as error:
            raise ConfigError(
                f"The data directory {self._given_data_dir} is of no use: {error.strerror}."
            ) from None
        stack.callback(lock.close)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(
                f"The data directory {self._given_data_dir} is in use by another cluster."
            ) from None
        return self._given_data_dir

    def _launch_zookeeper(self, stack: contextlib.ExitStack) -> ZooKeeperServer | None:
        if self._given_zookeeper is not None:
            self.zookeeper = self._given_zookeeper
            return None
        kept = None if self._given_data_dir is None else self._data_dir / "zookeeper"
        server = ZooKeeperServer(data_dir=kept, heap="256m")
        stack.callback(server.stop)
        server.launch()
        self.zookeeper = server.address
        return server

    def _choose_ports(self, count: int) -> list[int]:
        if self._base_port is None:
            return free_ports(count)
        ports = list(range(self._base_port, self._base_port + count))
        for port in ports:
            if not is_free(port):
                raise ConfigError(
                    f"Port {port} is taken: stop what listens there, or choose other ports with "
                    "--base-port."
                )
        return ports

    def _rack_of(self, broker: int) -> str | None:
        if not self._racks:
            return None
        if isinstance(self._racks, Mapping):
            return self._racks.get(broker)
        return self._racks[self._ids.index(broker) % len(self._racks)]

    def _make_broker(
        self, broker: int, port: int, rack: str | None, config: Mapping[str, str] | None = None
    ) -> BrokerProcess:
        directory = self._data_dir / f"broker-{broker}"
        replication = str(min(_REPLICATION_MAX, len(self._ids)))
        protocol = "PLAINTEXT" if self._security is None else self._security.protocol
        settings = {
            "broker.id": str(broker),
            "listeners": f"{protocol}://{HOST}:{port}",
            **({} if self._security is None else self._security.broker_settings(protocol)),
            "zookeeper.connect": self._zookeeper_for(broker),
            "log.dirs": str(directory / "log"),
            "klamm.history.dir": str(directory / "log-history"),
            "offsets.topic.replication.factor": replication,
            "transaction.state.log.replication.factor": replication,
            "transaction.state.log.min.isr": str(min(_TRANSACTIONS_MIN_ISR, len(self._ids))),
            **_DEFAULTS,
            **({"broker.rack": rack} if rack is not None else {}),
            **self._config,
            **(config or {}),
        }
        return BrokerProcess(broker, port, directory, settings)

    def _zookeeper_for(self, broker: int) -> str:
        """The address of ZooKeeper for a broker: of its own proxy, if it can be cut off."""
        if not self._can_be_cut:
            return self.zookeeper
        hosts, chroot = split_connect_string(self.zookeeper)
        host, _, port = hosts.partition(",")[0].rpartition(":")
        proxy = self._proxies[broker] = Proxy(host, int(port))
        address = self._loop_thread.call(proxy.start())
        self._resources.callback(lambda: self._loop_thread.call(proxy.close()))
        return address + chroot

    # Where it is

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, for any Kafka client."""
        return ",".join(each.address for each in self._brokers.values())

    @property
    def admin_security(self) -> ClientSecurity:
        """How klamm's own clients reach the cluster as its administrator."""
        return PLAINTEXT if self._security is None else self._security.admin_security()

    def client_config(
        self, client: str, user: str = ADMIN, mechanism: str = "SCRAM-SHA-512"
    ) -> dict[str, Any]:
        """What a client library needs to connect, in its own spelling.

        `client` is confluent-kafka, kafka-python, aiokafka, java or spark. A user who does not
        exist yet is made; only `admin` may do anything without ACLs.
        """
        if self._security is None:
            return plaintext_config(client, self.bootstrap_servers)
        if mechanism.startswith("SCRAM") and self._security.protocol != "SSL":
            self._ensure_user(user, mechanism)
        return self._security.client_config(client, self.bootstrap_servers, user, mechanism)

    @property
    def command_config(self) -> Path | None:
        """Client properties of the administrator in a file, as `--command-config` takes it."""
        if self._security is None:
            return None
        path = self._data_dir / "security" / "admin.properties"
        if not path.exists():
            write_private(path, format_properties(self._security.properties(ADMIN, "PLAIN")))
        return path

    def _ensure_user(self, user: str, mechanism: str) -> None:
        assert self._security is not None
        with self._lock:
            if f"{user} {mechanism}" in self._users:
                return
            scram = SCRAM_MECHANISMS[mechanism]
            password = self._security.password(user)
            users.add(self._admin, user, password, scram)
            self._users.add(f"{user} {mechanism}")
            # Every broker learns of the user by itself, and a client may ask any of them.
            _wait(
                lambda: [
                    broker
                    for broker in self._running_ids()
                    if not users.is_known(self._admin, broker, user, scram)
                ],
                lambda unaware: not unaware,
                f"all brokers to hear of user {user}",
                lambda unaware: f"{unaware} have not",
                30.0,
            )

    def _running_ids(self) -> list[int]:
        return [each.id for each in self._brokers.values() if each.state is ProcessState.RUNNING]

    @property
    def broker_ids(self) -> list[int]:
        """The ids of all brokers, running or not."""
        return sorted(self._brokers)

    @property
    def data_dir(self) -> Path:
        """The folder with the data, settings and output of the brokers."""
        return self._data_dir

    @property
    def spools(self) -> list[Path]:
        """The history folders of the brokers, for `klamm story --spool`."""
        return [each.spool for each in self._brokers.values() if each.spool.is_dir()]

    @property
    def zookeeper_is_running(self) -> bool:
        """Whether the cluster's own ZooKeeper runs; True for a given one."""
        return self._server is None or self._server.is_running

    @property
    def admin(self) -> Admin:
        """A client for `klamm.client`."""
        return self._admin

    def broker(self, broker: int) -> BrokerProcess:
        """The process of a broker: `pid`, `address`, `state`, `log`."""
        return self._broker(broker)

    # What can happen to it

    def kill(self, broker: int) -> None:
        """Kill a broker (SIGKILL)."""
        self._broker(broker).kill()

    def stop(self, broker: int, *, timeout_s: float = 60.0) -> None:
        """Shut a broker down in order (SIGTERM) and wait for it."""
        self._broker(broker).stop(timeout_s)

    def pause(self, broker: int) -> None:
        """Suspend a broker (SIGSTOP), as a long pause of its machine would."""
        self._broker(broker).pause()

    def resume(self, broker: int) -> None:
        """Continue a paused broker (SIGCONT)."""
        self._broker(broker).resume()

    def cut_from_zookeeper(self, broker: int) -> None:
        """Cut a broker off from ZooKeeper; clients and other brokers still reach it."""
        self._loop_thread.call(self._proxy(broker).cut())

    def rejoin_zookeeper(self, broker: int) -> None:
        """Reconnect a broker to ZooKeeper."""
        self._loop_thread.call(self._proxy(broker).restore())

    def add_broker(
        self,
        broker: int | None = None,
        *,
        rack: str | None = None,
        config: Mapping[str, Any] | None = None,
        timeout_s: float = 60.0,
    ) -> int:
        """Start one more broker and return its id, by default the next one."""
        with self._lock:
            chosen = max(self._brokers) + 1 if broker is None else broker
            if chosen in self._brokers:
                raise KlammError(f"There is a broker {chosen} already.")
            settings = {key: _text(value) for key, value in (config or {}).items()}
            (port,) = free_ports(1)
            made = self._make_broker(chosen, port, rack, settings)
            self._brokers[chosen] = made
        made.start()
        self._wait_usable([made], timeout_s)
        return chosen

    def remove_broker(self, broker: int, *, timeout_s: float = 60.0) -> None:
        """Shut a broker down and remove it; move its replicas away first."""
        process = self._broker(broker)
        if process.is_alive:
            process.stop(timeout_s)
        with self._lock:
            del self._brokers[broker]
            proxy = self._proxies.pop(broker, None)
        if proxy is not None:
            self._loop_thread.call(proxy.close())

    def heal(self, *, timeout_s: float = 60.0) -> None:
        """Start, resume and reconnect every broker that needs it."""
        for broker in list(self._proxies):
            self.rejoin_zookeeper(broker)
        for each in list(self._brokers.values()):
            if each.state is ProcessState.PAUSED:
                each.resume()
            elif not each.is_alive:
                each.start()
        self._wait_usable(list(self._brokers.values()), timeout_s)

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        *,
        assignment: Sequence[Sequence[int]] = (),
        config: Mapping[str, Any] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Create a topic, by default with up to three replicas.

        Returns when it has leaders and every running broker knows them.
        """
        count = len(assignment) or partitions
        topics.create(
            self._admin,
            NewTopic(
                name,
                -1 if assignment else partitions,
                -1
                if assignment
                else replication_factor or min(_REPLICATION_MAX, len(self._brokers)),
                assignment,
                {key: _text(value) for key, value in (config or {}).items()},
            ),
        )
        for partition in range(count):
            self.wait_leader(name, partition, timeout_s=timeout_s)
        _wait(
            lambda: topics.brokers_unaware_of(self._admin, name, count),
            lambda unaware: not unaware,
            f"all brokers to hear of topic {name}",
            lambda unaware: f"{sorted(unaware)} have not",
            timeout_s,
        )

    # What it is like

    def controller_id(self) -> int | None:
        """The id of the controller; None if there is none."""
        return self._zookeeper_reader.controller()

    def registered(self) -> set[int]:
        """The brokers that are registered in ZooKeeper."""
        return self._zookeeper_reader.brokers()

    def partition(self, topic: str, partition: int = 0) -> PartitionStatus | None:
        """Leader, leader epoch and ISR of a partition; None if it does not exist."""
        return self._zookeeper_reader.partition(topic, partition)

    def partitions(self) -> dict[TopicPartition, PartitionDescription]:
        """Every partition, as ZooKeeper has it; TimeoutError if ZooKeeper does not respond."""
        return self._zookeeper_reader.partitions()

    def leader(self, topic: str, partition: int = 0) -> int:
        """The leader of a partition; raises if it has none."""
        state = self.partition(topic, partition)
        if state is None or state.leader is None:
            raise UnavailableError(f"{topic}-{partition}: {state or 'there is none'}.")
        return state.leader

    def isr(self, topic: str, partition: int = 0) -> set[int]:
        """The in-sync replicas of a partition."""
        state = self.partition(topic, partition)
        return set() if state is None else set(state.isr)

    def wait_leader(
        self,
        topic: str,
        partition: int = 0,
        *,
        leader: int | None = None,
        other_than: int | None = None,
        timeout_s: float = 30.0,
    ) -> int:
        """Wait for a leader: any, a given one, or one other than a given one."""

        def is_so(state: PartitionStatus | None) -> bool:
            return (
                state is not None
                and state.leader is not None
                and leader in (None, state.leader)
                and state.leader != other_than
            )

        wanted = "a leader" if leader is None else f"leader {leader}"
        if other_than is not None:
            wanted += f" other than {other_than}"
        state = self._wait_partition(topic, partition, is_so, wanted, timeout_s)
        assert state.leader is not None
        return state.leader

    def wait_isr(
        self, topic: str, partition: int, isr: Collection[int], *, timeout_s: float = 30.0
    ) -> None:
        """Wait until exactly these replicas are in sync."""
        wanted = f"the ISR {','.join(map(str, sorted(isr)))}"
        self._wait_partition(
            topic,
            partition,
            lambda state: state is not None and set(state.isr) == set(isr),
            wanted,
            timeout_s,
        )

    def wait_controller(
        self,
        *,
        controller: int | None = None,
        other_than: int | None = None,
        timeout_s: float = 30.0,
    ) -> int:
        """Wait for a controller: any, a given one, or one other than a given one."""

        def is_so(holder: int | None) -> bool:
            return holder is not None and controller in (None, holder) and holder != other_than

        wanted = "a controller" if controller is None else f"controller {controller}"
        if other_than is not None:
            wanted += f" other than {other_than}"
        found = _wait(
            self.controller_id, is_so, wanted, lambda holder: f"it is {holder}", timeout_s
        )
        assert found is not None
        return found

    def _wait_partition(
        self,
        topic: str,
        partition: int,
        is_so: Callable[[PartitionStatus | None], bool],
        wanted: str,
        timeout_s: float,
    ) -> PartitionStatus:
        found = _wait(
            lambda: self.partition(topic, partition),
            is_so,
            f"{wanted} of {topic}-{partition}",
            lambda state: f"{state or 'there is no such partition'}",
            timeout_s,
        )
        assert found is not None
        return found

    def _wait_usable(self, brokers: Sequence[BrokerProcess], timeout_s: float) -> None:
        """Wait until these brokers know the controller and every other broker that is alive."""
        deadline = time.monotonic() + timeout_s
        for each in brokers:
            with Admin(each.address, timeout_s=5, security=self.admin_security) as admin:
                while not self._is_usable(each, admin):
                    if not each.is_alive:
                        raise UnavailableError(
                            f"Broker {each.id} ended (exit code {each.exit_code}): "
                            f"{each.last_words()}"
                        )
                    if time.monotonic() > deadline:
                        raise ConditionNotMetError(
                            f"Broker {each.id} was not ready within {timeout_s:g} s; registered "
                            f"are {sorted(self.registered())}, the controller is "
                            f"{self.controller_id()}; it said: {each.last_words()}"
                        )
                    time.sleep(_POLL_S)

    def _is_usable(self, broker: BrokerProcess, admin: Admin) -> bool:
        expected = {
            each.id for each in self._brokers.values() if each.state is ProcessState.RUNNING
        }
        try:
            answer = admin.metadata([])
        except UnavailableError:
            return False
        known = {each.node_id for each in answer.brokers}
        # A broker whose session expired may know all others and not be registered itself.
        return answer.controller_id in known and expected <= (known & self.registered())

    def _broker(self, broker: int) -> BrokerProcess:
        try:
            return self._brokers[broker]
        except KeyError:
            known = ", ".join(map(str, self._brokers)) or "none, as the cluster is not running"
            raise KlammError(f"There is no broker {broker}; there are {known}.") from None

    def _proxy(self, broker: int) -> Proxy:
        self._broker(broker)
        if broker not in self._proxies:
            raise KlammError("This cluster was made with can_be_cut=False.")
        return self._proxies[broker]


def _wait(
    look: Callable[[], T],
    is_so: Callable[[T], bool],
    wanted: str,
    tell: Callable[[T], str],
    timeout_s: float,
) -> T:
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


def _text(value: Any) -> str:
    """A setting as `server.properties` has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
