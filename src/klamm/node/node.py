"""One node, from its first connection to ZooKeeper to its controlled shutdown (section 3).

The order of starting matters: logs are loaded and listeners are open before the broker registers,
because the controller sends its first requests right after the registration.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, ParamSpec, TypeVar

import uvloop

from klamm.broker.fault_injection import FaultInjection
from klamm.broker.handlers.dispatch import Dispatcher
from klamm.broker.identity import BrokerIdentity
from klamm.broker.security.password_encoder import decode_settings
from klamm.config.broker import BrokerConfig
from klamm.config.dynamic import sift
from klamm.errors import ConfigError, SessionLostError
from klamm.net.server import OS_DEFAULT_BUFFER, Server
from klamm.node import registration
from klamm.node.broker_server import BrokerServer
from klamm.node.config_changes import ConfigChanges
from klamm.node.controller_link import ControllerLink, fork_controller
from klamm.node.fault_link import FaultLink
from klamm.node.metrics import MetricsEndpoint
from klamm.processes import Forked, raise_file_limit
from klamm.protocol.apis import ApiKey
from klamm.slices import prefer_event_loop
from klamm.zookeeper import znodes
from klamm.zookeeper.configs import read_config
from klamm.zookeeper.session import open_store
from klamm.zookeeper.store import EventKind, SessionExpired, Store, WatchEvent

log = logging.getLogger("klamm.broker")

P = ParamSpec("P")
T = TypeVar("T")

#: How long a step of the start waits for the new session after it has lost its own.
_RETRY_PAUSE_S: Final = 0.1
#: How much of a client's large requests waits in the kernel; Linux doubles it for its bookkeeping.
_BULK_RECEIVE_BUFFER_BYTES: Final = 256 << 10


class Node:
    """A broker's main process."""

    def __init__(
        self,
        config: BrokerConfig,
        faults: FaultLink | None = None,
        controller: tuple[Forked, socket.socket] | None = None,
    ) -> None:
        self.config = config
        self._faults = faults
        self._candidate = ControllerLink(self._on_candidate_session_lost, controller)
        self._stopped = asyncio.Event()
        self._is_stopping = False
        self._failure: ConfigError | None = None
        self._session: asyncio.Task[None] | None = None
        self._is_registered = False
        self._registering = asyncio.Lock()
        self._previous_session: int | None = None
        self._store: Store
        self._identity: BrokerIdentity
        self._broker: BrokerServer
        self._server: Server
        self._metrics = MetricsEndpoint(self._candidate)
        self._config_changes: ConfigChanges
        self._registration: znodes.BrokerRegistration

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopped.set)
        loop.add_signal_handler(signal.SIGCONT, self._candidate.resume)
        for name in self.config.without_effect:
            log.warning("%s is accepted but has no effect", name)
        try:
            await self._start()
            log.info("[BrokerServer id=%s] started", self._identity.broker_id)
            await self._stopped.wait()
            if self._failure is not None:
                raise self._failure
        finally:
            await self._stop()

    # Starting

    async def _start(self) -> None:
        config = self.config
        # The candidate's process takes its time to come up; the broker does so meanwhile.
        await self._candidate.spawn()
        store = self._store = await open_store(
            config.zookeeper_connect,
            config.zookeeper_session_timeout_ms,
            connect_timeout_s=config.zookeeper_connection_timeout_ms / 1000,
            access=registration.zookeeper_access(config),
        )
        self._session = asyncio.create_task(self._follow_session())
        await self._in_session(registration.create_persistent_paths, store)
        cluster_id = await self._in_session(registration.cluster_id, store)
        broker_id = await self._in_session(self._determine_broker_id, store)
        config = self.config = config.with_broker_id(broker_id)
        if config.klamm_metrics_port is not None:
            # Before anybody hears of this node, which ends if the port is taken.
            port = self._metrics.open(config.klamm_metrics_host, config.klamm_metrics_port)
            config = self.config = config.with_metrics_port(port)
        self._identity = BrokerIdentity(broker_id, cluster_id)
        self._candidate.configure(config.layers.static, broker_id, cluster_id)
        await self._in_session(self._load_dynamic_config)
        self._config_changes = ConfigChanges(store, self._apply_config)
        self._broker = BrokerServer(
            self.config, self._identity, store, self._candidate, self._config_changes.catch_up
        )
        await self._in_session(self._broker.load)
        meters = self._broker.meters.requests
        dispatcher = Dispatcher(self._broker.handlers(), meters)
        await self._inject_faults(dispatcher)
        receive_bytes, bulk_receive_bytes = receive_buffers(config)
        self._server = Server(
            dispatcher,
            frame_bytes_max=config.socket_request_max_bytes,
            idle_max_s=config.connections_max_idle_ms / 1000,
            backlog=config.socket_listen_backlog_size,
            send_buffer_bytes=config.socket_send_buffer_bytes,
            receive_buffer_bytes=receive_bytes,
            bulk_receive_buffer_bytes=bulk_receive_bytes,
            quotas=self._broker.security.connections,
        )
        ports = {}
        for each in config.listeners:
            meter = meters.of_api[ApiKey.SASL_AUTHENTICATE]
            listener = self._broker.security.listener(each, dispatcher, meter)
            ports[each.name] = await self._server.listen(each, listener)
        self._registration = self._describe(ports)
        endpoints = config.advertised_endpoints(
            hostname=registration.advertised_hostname(), bound_ports=ports
        )
        await self._in_session(registration.check_endpoints, store, broker_id, endpoints)
        await self._in_session(self._register)
        # A session that is lost right after the registration is renewed like any other.
        with contextlib.suppress(SessionLostError):
            await self._config_changes.process()
        self._broker.start()
        await self._metrics.serve(self._broker)

    async def _in_session(
        self, step: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """Carry out a step of the start, again under a new session if its own is lost.

        A machine that slept, or a long recovery, must not end a broker that is about to register.
        """
        while True:
            try:
                return await step(*args, **kwargs)
            except SessionLostError:
                log.warning("the ZooKeeper session was lost during the start; trying again")
                await asyncio.sleep(_RETRY_PAUSE_S)

    async def _inject_faults(self, dispatcher: Dispatcher) -> None:
        """Follow the faults of a local cluster, if this broker belongs to one."""
        if self._faults is not None:
            injection = FaultInjection(
                self._faults.claim,
                lambda topic_id: self._broker.metadata.snapshot.topic_name(topic_id),
                dispatcher.intercept,
            )
            await self._faults.open(injection)

    async def _determine_broker_id(self, store: Store) -> int:
        """The configured id, or the one in the log directories, or a generated one."""
        config = self.config
        if config.broker_id >= 0:
            return config.broker_id
        from klamm.broker.log.checkpoints import read_broker_id

        found = {read_broker_id(path) for path in config.log_dirs} - {None}
        if len(found) > 1:
            raise ConfigError(
                f"log.dirs: they belong to different brokers: {sorted(map(str, found))}"
            )
        if found:
            (stored,) = found
            assert stored is not None
            return stored
        if not config.broker_id_generation_enable:
            raise ConfigError("broker.id: an id is needed, since broker.id.generation.enable=false")
        return await registration.generate_broker_id(store, config.reserved_broker_max_id)

    def _describe(self, ports: Mapping[str, int]) -> znodes.BrokerRegistration:
        endpoints = self.config.advertised_endpoints(
            hostname=registration.advertised_hostname(), bound_ports=ports
        )
        return znodes.BrokerRegistration(
            self._identity.broker_id,
            tuple(znodes.RegisteredEndpoint(e.name, e.protocol, e.host, e.port) for e in endpoints),
            rack=self.config.broker_rack,
            controller_only="broker" not in self.config.klamm_roles,
        )

    async def _register(self) -> None:
        """Register, adopt the epoch that comes with it, and let the candidate run."""
        while True:
            epoch = await registration.register(
                self._store, self._registration, previous_session=self._previous_session
            )
            # The watch sees the registration being removed by hand while the session lives.
            if await self._store.exists(self._registration_path, watch=True) is not None:
                break
        self._identity.broker_epoch = epoch
        self._broker.registered()
        self._is_registered = True
        self._previous_session = self._store.session_id
        log.info("[BrokerServer id=%s] registered with epoch %s", self._identity.broker_id, epoch)
        if "controller" in self.config.klamm_roles:
            self._candidate.registered(epoch)

    @property
    def _registration_path(self) -> str:
        return znodes.broker_path(self._identity.broker_id)

    # The session

    async def _follow_session(self) -> None:
        async for happened in self._store.events():
            match happened:
                case WatchEvent(EventKind.CHILDREN, znodes.CONFIG_CHANGES):
                    with contextlib.suppress(SessionLostError):
                        await self._config_changes.process()
                case WatchEvent(EventKind.CHILDREN, path) if self._broker.security.watches(path):
                    with contextlib.suppress(SessionLostError):
                        await self._broker.security.on_acl_changes(path)
                case WatchEvent(_, path) if path == self._registration_path:
                    await self._on_registration_change()
                case SessionExpired(session_id) if session_id == self._store.session_id:
                    if not self._is_registered:
                        await self._renew_session()
                        continue
                    self._candidate.session_lost()
                    await self._start_new_session(self._identity.broker_epoch)

    async def _renew_session(self) -> None:
        """Open a new session for a broker that has yet to register."""
        while not self._is_stopping:
            try:
                await self._store.renew()
                if hasattr(self, "_broker"):
                    await self._broker.security.on_new_session()
            except SessionLostError:
                continue
            return

    async def _on_registration_change(self) -> None:
        """Register again if somebody has removed the registration: the session is still alive."""
        async with self._registering:
            try:
                if self._is_stopping or await self._store.exists(
                    self._registration_path, watch=True
                ):
                    return
                log.warning("%s was removed; registering again", self._registration_path)
                await self._register()
            except SessionLostError:
                pass  # The loss of the session leads to a new registration.
            except ConfigError as error:
                self._fail(error)

    def _fail(self, error: ConfigError) -> None:
        """Stop the node: a broker without a registration gets no partitions."""
        self._failure = error
        self._stopped.set()

    async def _on_candidate_session_lost(self, broker_epoch: int) -> None:
        """The candidate lost its session: the broker's counts as lost too, unless it is newer."""
        if broker_epoch == self._identity.broker_epoch and not self._is_stopping:
            log.warning("the controller's session is lost; opening a new one for the broker too")
            await self._start_new_session(broker_epoch)

    async def _start_new_session(self, lost_epoch: int) -> None:
        """Register again under a new session; partitions keep their roles meanwhile (LIFE-9).

        Both sessions may be lost at the same time, and one new registration is enough.
        """
        async with self._registering:
            while not self._is_stopping and self._identity.broker_epoch == lost_epoch:
                try:
                    await self._store.renew()
                    await self._broker.security.on_new_session()
                    await self._register()
                    await self._config_changes.process()
                except SessionLostError:
                    continue
                except ConfigError as error:
                    self._fail(error)
                return

    # Configuration

    async def _load_dynamic_config(self) -> None:
        default = await read_config(self._store, f"brokers/{znodes.DEFAULT_ENTITY}")
        own = await read_config(self._store, f"brokers/{self.config.broker_id}")
        self._use_dynamic_config(default, own)

    def _use_dynamic_config(self, default: dict[str, str], own: dict[str, str]) -> None:
        readable, unreadable = decode_settings(own, self.config)
        usable_default, complaints = sift(default, per_broker=False)
        usable_own, more = sift(readable, per_broker=True)
        for complaint in (*complaints, *more, *unreadable):
            log.error("%s", complaint)
        try:
            config = self.config.with_dynamic(default=usable_default, broker=usable_own)
        except ConfigError as error:
            log.error("the dynamic settings of this broker do not go together: %s", error)
            return
        self.config = config.with_broker_id(self.config.broker_id)
        self._candidate.dynamic_config(usable_default, usable_own)

    async def _apply_config(self, entity_path: str, settings: dict[str, str]) -> None:
        kind, _, name = entity_path.partition("/")
        if kind == "topics":
            self._broker.topic_config_changed(name, settings)
            if settings.get("unclean.leader.election.enable", "").lower() == "true":
                self._candidate.unclean_topic(name)
        elif kind == "brokers" and name in (znodes.DEFAULT_ENTITY, str(self.config.broker_id)):
            await self._load_dynamic_config()
            self._broker.config_changed(self.config)
        else:
            self._broker.security.entities.apply(entity_path, settings)

    # Stopping

    async def _stop(self) -> None:
        self._is_stopping = True
        if hasattr(self, "_broker"):
            if self.config.controlled_shutdown_enable and self._identity.broker_epoch >= 0:
                await self._broker.leave_in_order()
            if hasattr(self, "_server"):
                await self._server.close()
            await self._broker.close()
        await self._metrics.close()
        if self._faults is not None:
            self._faults.close()
        await self._candidate.stop()
        if self._session is not None:
            self._session.cancel()
        if hasattr(self, "_store"):
            await self._store.close()


def receive_buffers(config: BrokerConfig) -> tuple[int, int]:
    """The sizes of the receive buffer of clients' sockets: at first, and after large requests.

    Kafka's default is not applied, because Linux drops packets within the window that it has
    offered if a buffer of fixed size is full of small requests. While the window is closed, it also
    drops the client's acknowledgements: a large response that is being sent, for which the requests
    behind it wait, goes on only when timers of TCP expire, up to a minute later.

    Large requests fill a buffer of fixed size without that. Left to itself, Linux lets up to 32 MB
    of them wait in the kernel: by the time they are read, no processor's cache has them.
    """
    if config.layers.is_set("socket.receive.buffer.bytes"):
        return config.socket_receive_buffer_bytes, OS_DEFAULT_BUFFER
    return OS_DEFAULT_BUFFER, _BULK_RECEIVE_BUFFER_BYTES


def run(config: BrokerConfig, faults_fd: int | None = None) -> None:
    """Run a node in the foreground until SIGTERM or SIGINT; ConfigError if it cannot start.

    `faults_fd` is a socket that a local cluster uses to inject faults.
    """
    raise_file_limit()
    # What is loaded by now stays: the garbage collector need not visit it again, and the memory
    # that both processes share after the fork stays shared.
    gc.freeze()
    controller = fork_controller()
    logging.basicConfig(
        level=os.environ.get("KLAMM_LOG_LEVEL", "INFO"),
        format="[%(asctime)s] %(levelname)s %(message)s (%(name)s)",
        stream=sys.stdout,
    )
    # A full collection visits every request that waits and every partition, so it runs less often
    # than by default; few objects form cycles.
    gc.set_threshold(5_000, 10, 5)
    prefer_event_loop()

    async def main() -> None:
        faults = None if faults_fd is None else FaultLink(faults_fd)
        await Node(config, faults, controller).run()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())
