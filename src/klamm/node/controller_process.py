"""The process that holds a broker's controller candidate, next to the broker's own.

It has an interpreter of its own, so that a failover of many thousand partitions does not keep the
broker from its clients, and a ZooKeeper session of its own, which owns `/controller` and makes all
the controller's writes. It is started by the broker and ends with it.
"""

import asyncio
import contextlib
import gc
import logging
import os
import random
import signal
import socket
import struct
import sys
from importlib.abc import MetaPathFinder
from typing import Any, Final

import orjson
import uvloop

from klamm.config.broker import BrokerConfig
from klamm.controller.announcements import RequestBatchSender
from klamm.controller.channels import ControllerChannels
from klamm.controller.interpreter import Interpreter
from klamm.controller.loop import REQUESTER, Controller, Shutdown, SystemWorld
from klamm.controller.metrics import ControllerMetrics
from klamm.controller.requests.handlers import ControllerRequests
from klamm.controller.requests.topics import TopicAdmin
from klamm.core.context import Settings
from klamm.core.events import TopicUncleanElectionEnabled, UncleanElectionEnabled
from klamm.errors import KlammError, ProtocolError
from klamm.history.recorder import History
from klamm.net.secure import SecureClient
from klamm.node.controller_link import REQUESTER_SIZE, MessageKind, ProcessLink
from klamm.node.registration import zookeeper_access
from klamm.processes import die_with_parent, follow_parent, return_large_blocks
from klamm.slices import collect_frozen, prefer_event_loop
from klamm.zookeeper.session import open_store
from klamm.zookeeper.store import Store

log = logging.getLogger("klamm.controller")
_EPOCH: Final = struct.Struct(">q")
_COLLECTION_S: Final = 600.0
#: Columns and requests of a large cluster go back to the system when they are freed. Left alone,
#: glibc raises this to 32 MB and keeps what a failover once needed.
_LARGE_BLOCK_BYTES: Final = 8 << 20


class ControllerProcess:
    """The wiring of one candidate, and its conversation with the broker."""

    def __init__(
        self,
        link: ProcessLink,
        config: BrokerConfig,
        store: Store,
        cluster_id: str | None = None,
    ) -> None:
        self._link = link
        self._config = config
        self._store = store
        self._tied_to = -1  # epoch of the registration that the present session belongs to
        self._tasks: set[asyncio.Task[Any]] = set()
        ibp = config.inter_broker_protocol_version
        world = SystemWorld()
        listener = config.control_plane_listener_name or config.inter_broker_listener_name
        channels = ControllerChannels(
            config.broker_id,
            listener,
            config.controller_socket_timeout_ms / 1000,
            config.request_timeout_ms / 1000,
            (
                config.socket_connection_setup_timeout_ms / 1000,
                config.socket_connection_setup_timeout_max_ms / 1000,
            ),
            SecureClient(config.channel_security(listener)),
        )
        self._history = History(config, world, channels.lost_at, cluster_id)
        request_sender = RequestBatchSender(
            config.broker_id, channels, ibp, config.inter_broker_listener_name
        )
        interpreter = Interpreter(
            config.broker_id,
            store,
            channels,
            request_sender,
            self._history,
            os.urandom,
            feature_version=ibp.feature_znode_version,
        )
        self._settings = Settings(
            unclean_default=config.unclean_leader_election_enable,
            delete_topics=config.delete_topic_enable,
            auto_rebalance=config.auto_leader_rebalance_enable,
            imbalance_percentage=config.leader_imbalance_per_broker_percentage,
            imbalance_check_interval_s=config.leader_imbalance_check_interval_seconds,
            topic_ids=ibp.has_topic_ids,
            recovery_state=ibp.has_leader_recovery_state,
            alter_partition=ibp.has_alter_partition,
        )
        self.controller = Controller(
            config.broker_id,
            self._settings,
            store,
            channels,
            interpreter,
            self._history,
            world,
            self._on_session_lost,
        )
        self.metrics = ControllerMetrics(self.controller, channels, world)
        self._topics = TopicAdmin(
            config, store, self.controller, interpreter, request_sender, random.SystemRandom()
        )
        self._requests = ControllerRequests(self.controller, store, self._topics)

    async def run(self) -> None:
        """Serve the broker's process until it sends STOP or ends."""
        session = asyncio.create_task(self.controller.follow_session())
        loop = asyncio.create_task(self.controller.run())
        link = asyncio.create_task(self._link.serve(self._on_message))
        self._start(self._collect_frozen())
        try:
            await asyncio.wait([loop, link, session], return_when=asyncio.FIRST_COMPLETED)
            for task in (loop, link, session):
                if task.done() and (error := task.exception()) is not None:
                    log.error("the controller's process cannot go on", exc_info=error)
        finally:
            await self._history.close()
            with contextlib.suppress(KlammError):
                await self._store.close()
            for task in (session, loop, link, *self._tasks):
                task.cancel()

    async def _collect_frozen(self) -> None:
        while True:
            await asyncio.sleep(_COLLECTION_S)
            collect_frozen()

    def _on_session_lost(self) -> None:
        """Have the broker give up its session too, unless that is where the loss began."""
        if self._tied_to >= 0:
            self._link.tell(MessageKind.SESSION_LOST, _EPOCH.pack(self._tied_to))
            self._tied_to = -1

    async def _on_message(self, kind: MessageKind, number: int, body: bytes) -> None:
        match kind:
            case MessageKind.KAFKA_REQUEST:
                self._start(self._respond_to_kafka(number, body))
            case MessageKind.REQUEST:
                self._start(self._respond_to_broker(number, orjson.loads(body)))
            case MessageKind.REGISTERED:
                (self._tied_to,) = _EPOCH.unpack(body)
                self._start(self.controller.enter_election())
            case MessageKind.SESSION_LOST:
                # Unless this process lost its own session first.
                if self._tied_to == _EPOCH.unpack(body)[0]:
                    self._tied_to = -1
                    self._start(self.controller.expire("the broker's ZooKeeper session is lost"))
            case MessageKind.CONFIG:
                self._on_config(orjson.loads(body))
            case MessageKind.STOP:
                self.controller.queue.clear_and_put(Shutdown(), cause="the broker stops")
            case MessageKind.HELLO | MessageKind.RESPONSE:
                log.error("message %s is out of place", kind.name)

    def _start(self, coroutine: Any) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _respond_to_kafka(self, number: int, frame: bytes) -> None:
        response = b""
        (size,) = REQUESTER_SIZE.unpack_from(frame)
        start = REQUESTER_SIZE.size + size
        # This coroutine is a task of its own: the context variables set here stay in this task.
        REQUESTER.set(frame[REQUESTER_SIZE.size : start].decode())
        try:
            response = await self._requests.handle(frame[start:])
        except ProtocolError as error:
            log.warning("a request for the controller cannot be handled: %s", error)
        except Exception:
            log.exception("a request for the controller failed")
        self._link.tell(MessageKind.RESPONSE, response, number)

    async def _respond_to_broker(self, number: int, request: Any) -> None:
        response: Any = None
        try:
            match request:
                case {"auto_create": name, "partitions": count, "factor": factor, "config": config}:
                    response = await self._topics.auto_create(name, count, factor, config)
                case {"metrics": _}:
                    response = self.metrics.render()
                case {"errors": _}:
                    response = [(*key, count) for key, count in self._requests.errors.items()]
                case _:
                    log.error("the broker asks for something unknown: %s", request)
        except Exception:
            log.exception("a request of the broker failed: %s", request)
        self._link.tell(MessageKind.RESPONSE, orjson.dumps(response), number)

    def _on_config(self, change: Any) -> None:
        match change:
            case {"unclean_topic": str(topic)}:
                self.controller.queue.put(
                    TopicUncleanElectionEnabled(topic), cause="topic configuration changed"
                )
            case {"dynamic": {"broker": dict(own), "default": dict(default)}}:
                config = self._config.with_dynamic(default=default, broker=own)
                self._topics.config = config
                was_enabled = self._settings.unclean_default
                self._settings.unclean_default = config.unclean_leader_election_enable
                if self._settings.unclean_default and not was_enabled:
                    self.controller.queue.put(
                        UncleanElectionEnabled(), cause="broker configuration changed"
                    )


async def _main(fd: int) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=fd))
    await run_candidate(ProcessLink(reader, writer))


async def run_candidate(link: ProcessLink) -> None:
    """Run the controller for the broker at the other end of the link, until it stops."""
    kind, _, hello = await link.receive()
    if kind is MessageKind.STOP:
        return  # The broker gave up before it knew what to run with.
    settings = orjson.loads(hello)
    config = BrokerConfig.from_properties(settings["properties"]).with_broker_id(
        settings["broker_id"]
    )
    store = await open_store(
        config.zookeeper_connect,
        config.zookeeper_session_timeout_ms,
        connect_timeout_s=config.zookeeper_connection_timeout_ms / 1000,
        access=zookeeper_access(config),
    )
    candidate = ControllerProcess(link, config, store, settings["cluster_id"])
    store.on_response = candidate.metrics.zookeeper_responded
    await candidate.run()


class _NoPandas(MetaPathFinder):
    """Keeps pyarrow from importing pandas, which takes half a second and memory during a failover,
    only to check that no value is a pandas object.
    """

    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("A controller does not use pandas.", name=fullname)


def run(fd: int, broker_pid: int) -> None:
    """Run the candidate of a broker's process, over the socket that it shares with this one."""
    die_with_parent(broker_pid)
    follow_parent(broker_pid)
    # The broker's process handles signals to the group and sends STOP.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(
        level=os.environ.get("KLAMM_LOG_LEVEL", "INFO"),
        format="[%(asctime)s] %(levelname)s %(message)s (%(name)s)",
        stream=sys.stdout,
    )
    sys.meta_path.insert(0, _NoPandas())
    return_large_blocks(_LARGE_BLOCK_BYTES)
    # A failover creates and drops millions of objects, none of them in a reference cycle.
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    prefer_event_loop()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        try:
            runner.run(_main(fd))
        except KlammError as error:
            # The broker starts another process, again and again while ZooKeeper is away.
            log.error("%s", error)
            sys.exit(1)


if __name__ == "__main__":
    # python -m klamm.node.controller_process FD BROKER_PID
    run(int(sys.argv[1]), int(sys.argv[2]))
