"""A whole cluster on this machine: ZooKeeper and brokers as child processes.

    with Cluster(brokers=3) as cluster:
        cluster.create_topic("orders", partitions=6)
        cluster.kill(cluster.leader("orders"))
        cluster.wait_leader("orders")

Every method may be called from any thread, and from a notebook. No child process outlives this
process, however it ends. The state of partitions and the controller is read from ZooKeeper.
"""

import atexit
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from klamm.client import topics, users
from klamm.client.admin import Admin
from klamm.client.topics import NewTopic, PartitionDescription
from klamm.config.client_properties import ClientSecurity
from klamm.config.properties import format_properties
from klamm.errors import KlammError, UnavailableError
from klamm.local.broker_process import BrokerProcess, ProcessState
from klamm.local.faults import InjectedFault
from klamm.local.network import Proxy, free_ports
from klamm.local.running import (
    REPLICATION_MAX,
    ClusterOptions,
    RunningCluster,
    settings_text,
    wait_for,
)
from klamm.local.security import ADMIN, plaintext_config, write_private
from klamm.local.zookeeper_reader import PartitionStatus
from klamm.names import TopicPartition
from klamm.net.scram import SCRAM_MECHANISMS


class Cluster:
    """Brokers 1 to n, or those whose ids are given, with a ZooKeeper of their own or a given one.

    `racks` are assigned in turn, or by id. `config` holds for all brokers; its values are
    converted to text. With `data_dir`, data is kept and used by the next start; without it, data
    is temporary. Without `base_port`, brokers get free ports.
    With `metrics`, each broker serves its metrics on a port of loopback.
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
        metrics: bool = False,
    ) -> None:
        self._options = ClusterOptions.checked(
            brokers, racks, config, base_port, data_dir, zookeeper, can_be_cut, security, metrics
        )
        self._lock = threading.RLock()
        self._running: RunningCluster | None = None
        self._has_run = False

    # Starting and stopping

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._running is None:
            return f"<Cluster of brokers {list(self._options.ids)}, not running>"
        states = ", ".join(f"{each.id} {each.state}" for each in self._running.brokers.values())
        return f"<Cluster at {self.bootstrap_servers}: {states}>"

    def start(self, broker: int | None = None, *, timeout_s: float = 60.0) -> Self:
        """Start the cluster, or one of its brokers again; returns when it serves clients."""
        if broker is not None:
            self._broker(broker).start()
            self._live.wait_usable([self._broker(broker)], timeout_s)
            return self
        with self._lock:
            if self._running is not None:
                raise KlammError("The cluster is running already.")
            running = RunningCluster(self._options)
            try:
                running.start(timeout_s)
            except BaseException:
                running.close()
                raise
            self._running, self._has_run = running, True
            # After ZooKeeper's own, so that this comes before it.
            atexit.register(self._end)
        return self

    def close(self) -> None:
        """Stop everything. Brokers whose data is kept get a controlled shutdown."""
        with self._lock:
            if self._running is None:
                return
            if self._options.data_dir is not None:
                self.stop_brokers()
            running, self._running = self._running, None
            atexit.unregister(self._end)
            running.close()

    def _end(self) -> None:
        """The interpreter ends, and nobody has closed the cluster."""
        if self._running is not None:
            if self._options.data_dir is not None:
                self.stop_brokers()
            self._running.end()

    def stop_brokers(self, timeout_s: float = 30.0) -> None:
        """Shut all brokers down in order, the controller last; kill those that take too long."""
        self._live.stop_brokers(timeout_s)

    def kill_brokers(self) -> None:
        """Kill all brokers."""
        self._live.kill_brokers()

    @property
    def _live(self) -> RunningCluster:
        if self._running is not None:
            return self._running
        if self._has_run:
            raise KlammError("The cluster is closed; start() runs it again.")
        raise KlammError(
            "The cluster has not been started: call start(), or use it as in "
            "`with Cluster() as cluster:`."
        )

    # Where it is

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, for any Kafka client."""
        return self._live.bootstrap_servers

    @property
    def zookeeper(self) -> str:
        """The address of ZooKeeper."""
        return self._live.zookeeper

    @property
    def admin_security(self) -> ClientSecurity:
        """How klamm's own clients reach the cluster as its administrator."""
        return self._live.admin_security

    def client_config(
        self,
        client: str = "confluent-kafka",
        user: str = ADMIN,
        mechanism: str = "SCRAM-SHA-512",
    ) -> dict[str, Any]:
        """What a client library needs to connect, in its own spelling.

        `client` is confluent-kafka, kafka-python, aiokafka, java or spark. A user who does not
        exist yet is made; only `admin` may do anything without ACLs.
        """
        security = self._live.security
        if security is None:
            return plaintext_config(client, self.bootstrap_servers)
        if mechanism.startswith("SCRAM") and security.protocol != "SSL":
            self._ensure_user(user, security.password(user), mechanism)
        return security.client_config(client, self.bootstrap_servers, user, mechanism)

    @property
    def command_config(self) -> Path | None:
        """Client properties of the administrator in a file, as `--command-config` takes it."""
        security = self._live.security
        if security is None:
            return None
        path = self.data_dir / "security" / "admin.properties"
        if not path.exists():
            write_private(path, format_properties(security.properties(ADMIN, "PLAIN")))
        return path

    def _ensure_user(self, user: str, password: str, mechanism: str) -> None:
        live = self._live
        with live.lock:
            if (user, mechanism) in live.users:
                return
            scram = SCRAM_MECHANISMS[mechanism]
            users.add(live.admin, user, password, scram)
            live.users.add((user, mechanism))
            # Every broker learns of the user by itself, and a client may ask any of them.
            wait_for(
                lambda: [
                    broker
                    for broker in live.running_ids()
                    if not users.is_known(live.admin, broker, user, scram)
                ],
                lambda unaware: not unaware,
                f"all brokers to hear of user {user}",
                lambda unaware: f"{unaware} have not",
                30.0,
            )

    @property
    def broker_ids(self) -> list[int]:
        """The ids of all brokers, running or not."""
        return sorted(self._live.brokers)

    @property
    def data_dir(self) -> Path:
        """The folder with the data, settings and output of the brokers."""
        return self._live.data_dir

    @property
    def spools(self) -> list[Path]:
        """The history folders of the brokers, for `klamm story --spool`."""
        return [each.spool for each in self._live.brokers.values() if each.spool.is_dir()]

    @property
    def zookeeper_is_running(self) -> bool:
        """Whether the cluster's own ZooKeeper runs; True for a given one."""
        server = self._live.server
        return server is None or server.is_running

    @property
    def admin(self) -> Admin:
        """A client for `klamm.client`."""
        return self._live.admin

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
        self._live.loop_thread.call(self._proxy(broker).cut)

    def rejoin_zookeeper(self, broker: int) -> None:
        """Reconnect a broker to ZooKeeper."""
        self._live.loop_thread.call(self._proxy(broker).restore)

    def put_behind_proxy(self, broker: int, *, timeout_s: float = 60.0) -> None:
        """Restart a broker of a cluster with `can_be_cut=False` so that it can be cut off."""
        process, live = self._broker(broker), self._live
        with live.lock:
            if broker in live.proxies:
                return
            process.config["zookeeper.connect"] = live.start_proxy(broker)
        if process.is_alive:
            process.stop(timeout_s)
            self.start(broker, timeout_s=timeout_s)

    def inject(
        self,
        api: str,
        *,
        error: str | None = None,
        delay_ms: float = 0,
        disconnect: bool = False,
        times: int | None = None,
        topic: str | None = None,
        partition: int | None = None,
        group: str | None = None,
        client_id: str | None = None,
        broker: int | Iterable[int] | None = None,
    ) -> InjectedFault:
        """Let requests of clients fail, come late, or lose their connection.

            with cluster.inject("Produce", error="NOT_LEADER_OR_FOLLOWER", times=3, topic="orders"):
                ...

        `api` is Kafka's name of an API that clients use. The next `times` requests that fit get
        `error` in place of being carried out, at the topics or partitions that they name where the
        API has a place for it there, or their connection is closed; both after `delay_ms`. Only
        `delay_ms` carries the request out late. Without `times` it holds until it is cleared. A
        request for several topics is carried out for those that are not meant.
        The cluster's own requests are spared: of followers, coordinators and this object.
        """
        meant = [broker] if isinstance(broker, int) else list(broker or ())
        for each in meant:
            self._broker(each)
        return self._live.faults.inject(
            times,
            meant,
            api=api,
            error=error,
            delay_ms=delay_ms,
            disconnect=disconnect,
            topic=topic,
            partition=partition,
            group=group,
            client_id=client_id,
        )

    @property
    def faults(self) -> list[InjectedFault]:
        """The injected faults that can still hit a request."""
        return self._live.faults.active

    def clear_faults(self) -> None:
        """End all injected faults."""
        faults = self._live.faults
        faults.clear(*faults.active)

    def add_broker(
        self,
        broker: int | None = None,
        *,
        rack: str | None = None,
        config: Mapping[str, Any] | None = None,
        timeout_s: float = 60.0,
    ) -> int:
        """Start one more broker and return its id, by default the next one."""
        live = self._live
        with live.lock:
            chosen = max(live.brokers) + 1 if broker is None else broker
            if chosen in live.brokers:
                raise KlammError(f"There is a broker {chosen} already.")
            (port,) = free_ports(1)
            made = live.make_broker(chosen, port, rack, settings_text(config))
            live.brokers[chosen] = made
        made.start()
        live.wait_usable([made], timeout_s)
        return chosen

    def remove_broker(self, broker: int, *, timeout_s: float = 60.0) -> None:
        """Shut a broker down and remove it; move its replicas away first."""
        process = self._broker(broker)
        if process.is_alive:
            process.stop(timeout_s)
        live = self._live
        with live.lock:
            del live.brokers[broker]
            proxy = live.proxies.pop(broker, None)
        if proxy is not None:
            live.loop_thread.call(proxy.close)

    def heal(self, *, timeout_s: float = 60.0) -> None:
        """End injected faults; start, resume and reconnect every broker that needs it."""
        self.clear_faults()
        live = self._live
        for broker in list(live.proxies):
            self.rejoin_zookeeper(broker)
        for each in list(live.brokers.values()):
            if each.state is ProcessState.PAUSED:
                each.resume()
            elif not each.is_alive:
                each.start()
        live.wait_usable(list(live.brokers.values()), timeout_s)

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
            self.admin,
            NewTopic(
                name,
                -1 if assignment else partitions,
                -1
                if assignment
                else replication_factor or min(REPLICATION_MAX, len(self.broker_ids)),
                assignment,
                settings_text(config),
            ),
        )
        for partition in range(count):
            self.wait_leader(name, partition, timeout_s=timeout_s)
        wait_for(
            lambda: topics.brokers_unaware_of(self.admin, name, count),
            lambda unaware: not unaware,
            f"all brokers to hear of topic {name}",
            lambda unaware: f"{sorted(unaware)} have not",
            timeout_s,
        )

    # What it is like

    def controller_id(self) -> int | None:
        """The id of the controller; None if there is none."""
        return self._live.reader.controller()

    def registered(self) -> set[int]:
        """The brokers that are registered in ZooKeeper."""
        return self._live.reader.brokers()

    def partition(self, topic: str, partition: int = 0) -> PartitionStatus | None:
        """Leader, leader epoch and ISR of a partition; None if it does not exist."""
        return self._live.reader.partition(topic, partition)

    def partitions(self) -> dict[TopicPartition, PartitionDescription]:
        """Every partition, as ZooKeeper has it; TimeoutError if ZooKeeper does not respond."""
        return self._live.reader.partitions()

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
        """Wait for a leader: any, a given one, or one other than a given one.

        A broker that was killed or stopped does not count, even before the controller knows of it.
        """
        brokers = self._live.brokers

        def is_so(state: PartitionStatus | None) -> bool:
            return (
                state is not None
                and state.leader is not None
                and state.leader in brokers
                and brokers[state.leader].is_alive
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
        found = wait_for(
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
        found = wait_for(
            lambda: self.partition(topic, partition),
            is_so,
            f"{wanted} of {topic}-{partition}",
            lambda state: f"{state or 'there is no such partition'}",
            timeout_s,
        )
        assert found is not None
        return found

    def _broker(self, broker: int) -> BrokerProcess:
        known = self._live.brokers
        if broker not in known:
            raise KlammError(
                f"There is no broker {broker}; there are {', '.join(map(str, known))}."
            )
        return known[broker]

    def _proxy(self, broker: int) -> Proxy:
        self._broker(broker)
        if broker not in self._live.proxies:
            raise KlammError("This cluster was made with can_be_cut=False: see put_behind_proxy.")
        return self._live.proxies[broker]
