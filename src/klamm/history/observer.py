"""The observer: follows a cluster through its ZooKeeper, and writes its history to a spool.

It only reads. Persistent recursive watches (ZooKeeper 3.6) say which znodes have changed; those are
read in bulk and given to `klamm.history.observed`, which infers what was decided. After a lost
connection or session everything is read again.
"""

import asyncio
import itertools
import logging
import signal
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from klamm.config.client_properties import PLAINTEXT, ClientSecurity
from klamm.core.cluster import (
    AdvertisedEndpoint,
    LeaderAndIsrs,
    RegisteredBroker,
    TopicRead,
)
from klamm.core.columns import I32, padded
from klamm.errors import ConfigError, MalformedZnodeError, SessionLostError, UnavailableError
from klamm.history.observed import ControllerSeen, ObservedCluster
from klamm.history.records import EventRecord
from klamm.history.shipping import Shipper
from klamm.history.spool import Spool, read_file, spool_files
from klamm.history.topic import HistoryTopicWriter
from klamm.names import TopicPartition
from klamm.zookeeper import znodes
from klamm.zookeeper.session import ZooKeeperStore, open_existing_store
from klamm.zookeeper.store import (
    NodeError,
    NoNodeError,
    SessionExpired,
    SessionResumed,
    WatchEvent,
    ZooKeeperCode,
)

log = logging.getLogger("klamm.history.observer")

#: Changes that arrive within this time of the first one are looked at together.
_GATHER_S: Final = 0.05
_RETRY_PAUSE_S: Final = 1.0
_WATCHED: Final = ("/brokers", znodes.CONTROLLER, znodes.CONTROLLER_EPOCH, znodes.DELETE_TOPICS)
_CLIENT_ID: Final = "klamm-observer"


@dataclass(slots=True)
class Changes:
    """What may have changed since the last look."""

    everything: bool = False
    controller: bool = False
    brokers: bool = False
    deletions: bool = False
    topics: set[str] = field(default_factory=set)
    states: set[TopicPartition] = field(default_factory=set)

    def note(self, path: str) -> None:
        """Note a znode that was created, changed or deleted; those of no interest are ignored."""
        match path.split("/")[1:]:
            case ["controller"] | ["controller_epoch"]:
                self.controller = True
            case ["brokers", "ids", *_]:
                self.brokers = True
            case ["admin", "delete_topics", *_]:
                self.deletions = True
            case ["brokers", "topics", topic]:
                self.topics.add(topic)
            case ["brokers", "topics", topic, "partitions", number, "state"] if number.isdecimal():
                self.states.add(TopicPartition(topic, int(number)))


class Observer:
    """Observes one cluster; see the module."""

    def __init__(
        self,
        connect: str,
        spool: Path,
        *,
        retention_bytes: int = -1,
        history_topic: str | None = None,
        security: ClientSecurity = PLAINTEXT,
        on_record: Callable[[EventRecord], None] = lambda record: None,
    ) -> None:
        """`on_record` is called with each event; `security` is for the history topic."""
        self._connect = connect
        self._spool = Spool(spool, retention_bytes)
        self._history_topic = history_topic
        self._security = security
        self._on_record = on_record
        self._store: ZooKeeperStore
        self._cluster: ObservedCluster
        self._changes = Changes()
        self._news = asyncio.Event()

    async def run(self, on_ready: Callable[[ObservedCluster], None]) -> None:
        """Observe until SIGINT or SIGTERM; `on_ready` is called after the first look."""
        stopped = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stopped.set)
        self._store = await open_existing_store(self._connect)
        tasks: list[asyncio.Task[None]] = []
        try:
            cluster_id = await self._read_cluster_id()
            resumed_at = await asyncio.to_thread(last_event, self._spool.directory, cluster_id)
            self._cluster = ObservedCluster(cluster_id, resumed_at)
            await self._watch()
            await self._look(Changes(everything=True))
            on_ready(self._cluster)
            running = [self._listen(), self._follow()]
            if self._history_topic is not None:
                running.append(self._ship(self._history_topic))
            tasks = [asyncio.create_task(each) for each in running]
            until_stopped = asyncio.create_task(stopped.wait())
            done, _ = await asyncio.wait(
                {*tasks, until_stopped}, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done - {until_stopped}:
                task.result()  # raises what ended it
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.to_thread(self._spool.close)
            await self._store.close()

    # Watching

    async def _watch(self) -> None:
        for path in _WATCHED:
            try:
                await self._store.watch_tree(path)
            except NodeError as error:
                if error.code is not ZooKeeperCode.UNIMPLEMENTED:
                    raise
                raise ConfigError(
                    f"The ZooKeeper at {self._connect} is older than 3.6: it cannot watch a whole "
                    "tree, which an observer needs."
                ) from None

    async def _listen(self) -> None:
        """Note what the watches report."""
        async for event in self._store.events():
            match event:
                case WatchEvent(path=path):
                    self._changes.note(path)
                case SessionResumed() | SessionExpired():
                    # Watches of the old connection are gone, and with them what they would have
                    # reported.
                    self._changes.everything = True
                case _:
                    continue
            self._news.set()

    async def _follow(self) -> None:
        """Look at what has changed, again and again."""
        while True:
            await self._news.wait()
            if not self._changes.everything:
                await asyncio.sleep(_GATHER_S)
            self._news.clear()
            changes, self._changes = self._changes, Changes()
            try:
                if changes.everything:
                    await self._watch()
                await self._look(changes)
            except SessionLostError:
                await self._renew()
            except (UnavailableError, NodeError, MalformedZnodeError) as error:
                log.warning("ZooKeeper could not be read, which is tried again: %s", error)
                await asyncio.sleep(_RETRY_PAUSE_S)
                self._look_again()

    async def _renew(self) -> None:
        log.warning("the session is lost; a new one is opened")
        await self._store.renew()
        self._look_again()

    def _look_again(self) -> None:
        self._changes.everything = True
        self._news.set()

    # Looking

    async def _look(self, changes: Changes) -> None:
        """Read what may have changed, and record what has."""
        cluster, everything = self._cluster, changes.everything
        cluster.begin(time.time_ns() // 1000)
        if everything or changes.controller:
            cluster.see_controller(await self._read_controller())
        if everything or changes.brokers:
            cluster.see_brokers(await self._read_brokers())
        topics = set(changes.topics)
        topics |= {each.topic for each in changes.states if each.topic not in cluster.state.topics}
        if everything:
            topics |= await self._children(znodes.TOPICS) | cluster.state.topics.keys()
        cluster.see_topics({name: read async for name, read in self._read_topics(topics)})
        # After the topics: one that is gone was deleted if its deletion was known before.
        if everything or changes.deletions:
            cluster.see_deletions(await self._children(znodes.DELETE_TOPICS))
        rows = cluster.state.all_rows() if everything else self._rows(changes.states)
        if len(rows):
            cluster.see_states(await self._read_states(rows))
        for record in cluster.end():
            self._spool.put(record)
            self._on_record(record)

    def _rows(self, partitions: Iterable[TopicPartition]) -> I32:
        rows = (self._cluster.state.row(*each) for each in sorted(partitions))
        return np.fromiter((row for row in rows if row is not None), np.int32)

    async def _read_cluster_id(self) -> str | None:
        data = await self._data(znodes.CLUSTER_ID)
        return None if data is None else znodes.decode_cluster_id(data)

    async def _read_controller(self) -> ControllerSeen:
        # In one read: a new controller writes both in one transaction.
        paths = [znodes.CONTROLLER, znodes.CONTROLLER_EPOCH]
        async for chunk in self._store.read_many(paths):
            controller, epoch = chunk.data
        return ControllerSeen(
            None if controller is None else znodes.decode_controller(controller),
            0 if epoch is None else znodes.decode_controller_epoch(epoch),
        )

    async def _read_brokers(self) -> dict[int, RegisteredBroker]:
        found = {}
        names = await self._children(znodes.BROKER_IDS)
        for name in sorted(name for name in names if name.isdecimal()):
            try:
                node = await self._store.get(f"{znodes.BROKER_IDS}/{name}")
                registration = znodes.decode_broker(int(name), node.data)
            except NoNodeError:
                continue
            except MalformedZnodeError as error:
                log.warning("%s", error)
                continue
            endpoints = tuple(
                AdvertisedEndpoint(each.security_protocol, each.host, each.port)
                for each in registration.endpoints
            )
            found[int(name)] = RegisteredBroker(int(name), node.stat.czxid, endpoints)
        return found

    async def _read_topics(
        self, names: Collection[str]
    ) -> AsyncIterator[tuple[str, TopicRead | None]]:
        async for chunk in self._store.read_many(map(znodes.topic_path, sorted(names))):
            for path, data in zip(chunk.path, chunk.data, strict=True):
                name = path.removeprefix(f"{znodes.TOPICS}/")
                if data is None:
                    yield name, None
                    continue
                try:
                    topic = znodes.decode_topic(name, data)
                except MalformedZnodeError as error:
                    log.warning("%s", error)
                    continue
                topic_id = (
                    None if topic.topic_id is None else znodes.encode_topic_id(topic.topic_id)
                )
                yield name, TopicRead(topic_id, topic.partitions, topic.adding, topic.removing)

    async def _read_states(self, rows: I32) -> LeaderAndIsrs:
        names = map(self._cluster.state.name, rows.tolist())
        found: list[I32] = []
        columns: tuple[list[int], ...] = ([], [], [], [], [])
        leader, leader_epoch, recovery, controller_epoch, version = columns
        isr: list[list[int]] = []
        start = 0
        async for chunk in self._store.read_many(znodes.state_path(*name) for name in names):
            states = znodes.decode_states(chunk.path, chunk.data)
            for error in states.errors:
                log.warning("%s", error)
            found.append(rows[start + np.array(states.at, np.int64)])
            leader += states.leader
            leader_epoch += states.leader_epoch
            isr += states.isr
            recovery += states.recovery
            controller_epoch += states.controller_epoch
            version += (chunk.version[at] for at in states.at)
            start += len(chunk.path)
        return LeaderAndIsrs(
            np.concatenate(found),
            np.array(leader, np.int32),
            np.array(leader_epoch, np.int32),
            padded(isr),
            np.array(recovery, np.int8),
            np.array(controller_epoch, np.int32),
            np.array(version, np.int32),
        )

    async def _children(self, path: str) -> set[str]:
        try:
            return set(await self._store.children(path))
        except NoNodeError:
            return set()

    async def _data(self, path: str) -> bytes | None:
        try:
            return (await self._store.get(path)).data
        except NoNodeError:
            return None

    # Shipping

    async def _ship(self, topic: str) -> None:
        """Ship the spool to a topic of the observed cluster, through one broker or another."""
        turn = itertools.count()
        writer: HistoryTopicWriter | None = None

        async def send(value: bytes, key: bytes) -> None:
            nonlocal writer
            if writer is None:
                endpoints = self._endpoints()
                if not endpoints:
                    raise UnavailableError("no broker is registered")
                host, port = endpoints[next(turn) % len(endpoints)]
                writer = HistoryTopicWriter(host, port, topic, _CLIENT_ID, self._security)
            try:
                await writer.send(value, key)
            except UnavailableError:
                writer.close()
                writer = None
                raise

        shipper = Shipper(self._spool.directory, topic, send)
        loop = asyncio.get_running_loop()

        def on_written() -> None:
            loop.call_soon_threadsafe(shipper.notify)

        self._spool.on_written = on_written
        try:
            await shipper.run()
        finally:
            if writer is not None:
                writer.close()

    def _endpoints(self) -> list[tuple[str, int]]:
        """Where brokers listen for clients with this security protocol."""
        return [
            (each.host, each.port)
            for broker in self._cluster.state.brokers.values()
            for each in broker.endpoints
            if each.listener == self._security.protocol
        ]


def last_event(spool: Path, cluster_id: str | None) -> tuple[int, int] | None:
    """Epoch and sequence of the last event in a spool; None if it is empty.

    Raises `ConfigError` if the spool has the history of another cluster: two would be mixed up.
    """
    last = None
    for path in reversed(spool_files(spool)):
        for read in read_file(path):
            last = read.batch.slice(read.batch.num_rows - 1).to_pylist()[0]
        if last is not None:
            break
    if last is None:
        return None
    if None not in (cluster_id, last["cluster_id"]) and last["cluster_id"] != cluster_id:
        raise ConfigError(
            f"{spool} has the history of cluster {last['cluster_id']}, not of {cluster_id}: name "
            "another directory with --spool."
        )
    return last["controller_epoch"], last["seq"]
