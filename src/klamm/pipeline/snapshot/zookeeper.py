"""A snapshot from ZooKeeper, read in bulk as the controller reads it."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice, starmap
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from klamm.config.client_properties import PLAINTEXT, ClientSecurity
from klamm.errors import ConfigError, MalformedZnodeError, ProtocolError, UnavailableError
from klamm.names import counted
from klamm.net.blocking import BlockingConnection
from klamm.net.secure import SecureClient
from klamm.pipeline import arrow
from klamm.pipeline.snapshot.parts import (
    AssignmentColumns,
    StateColumns,
    chunked,
    lists_to_arrow,
    partition_table,
    topic_table,
)
from klamm.pipeline.snapshot.snapshot import Snapshot, now
from klamm.pipeline.source.tables.rows import ElectionSettings
from klamm.protocol.apis import ApiKey
from klamm.protocol.codes import KafkaError
from klamm.zookeeper import znodes
from klamm.zookeeper.session import open_existing_store
from klamm.zookeeper.store import NoNodeError, Store

_T = TypeVar("_T")

_UNKNOWN: Final = -1
_BROKERS_AT_A_TIME: Final = 64
_SIZES_TIMEOUT_S: Final = 60.0
_BROKER_DEFAULTS: Final = znodes.config_path(f"brokers/{znodes.DEFAULT_ENTITY}")


def snapshot_from_zookeeper(
    connect: str,
    *,
    with_sizes: bool = True,
    tell: Callable[[str], None] = lambda text: None,
    security: ClientSecurity = PLAINTEXT,
) -> Snapshot:
    """Read a cluster's metadata from ZooKeeper, and the sizes of partitions from the brokers.

    Brokers are shown, and asked, at their first listener of the protocol of `security`; at their
    first one where none is of that protocol. Controller-only nodes are left out: they have no
    replica.
    `tell` hears what is being done, and of every znode that cannot be read.
    """

    async def read() -> Snapshot:
        store = await open_existing_store(connect)
        try:
            return await _read(store, connect, with_sizes, tell, security)
        except NoNodeError as error:
            raise ConfigError(
                f"There is no Kafka cluster at {connect}: {error.path} is missing."
            ) from None
        finally:
            await store.close()

    return asyncio.run(read())


async def _read(
    store: Store,
    connect: str,
    with_sizes: bool,
    tell: Callable[[str], None],
    security: ClientSecurity,
) -> Snapshot:
    taken_at = now()
    brokers = await _read_brokers(store, tell, security.protocol)
    tell(counted(len(brokers), "broker"))
    assignments = await _read_assignments(store, tell)
    configs = await _read_configs(store, assignments.topics, tell)
    states = await _read_states(store, assignments, tell)
    tell(f"{counted(len(assignments.topics), 'topic')}, {counted(len(states.leader), 'partition')}")
    cluster_id = await _readable(_read_cluster_id(store), tell)
    sizes = {}
    if with_sizes:
        addresses = [(each["host"], each["port"]) for each in brokers if each["host"]]
        sizes = await asyncio.to_thread(_read_sizes, addresses, security)
        tell(f"the sizes of {counted(len(sizes), 'partition')}")
    defaults = configs.pop("", {})
    settings = {
        topic: ElectionSettings.of(configs.get(topic, {}), defaults) for topic in assignments.topics
    }
    return Snapshot(
        cluster_id=cluster_id,
        source=f"zookeeper {connect}",
        taken_at=taken_at,
        brokers=pa.Table.from_pylist(brokers, arrow.BROKERS),
        topics=topic_table(assignments, configs),
        partitions=partition_table(assignments, states, settings, sizes),
    )


async def _read_brokers(
    store: Store, tell: Callable[[str], None], protocol: str
) -> list[dict[str, Any]]:
    ids = sorted(int(name) for name in await store.children(znodes.BROKER_IDS))
    rows: list[dict[str, Any]] = []
    content = await _read_all(store, map(znodes.broker_path, ids))
    for broker, (_, data) in zip(ids, content, strict=True):
        if data is None:
            continue  # the broker left between the listing and the reading
        try:
            registration = znodes.decode_broker(broker, data)
        except MalformedZnodeError as error:
            tell(str(error))
            continue
        if registration.controller_only:
            continue
        fitting = [each for each in registration.endpoints if each.security_protocol == protocol]
        first = next(iter((*fitting, *registration.endpoints)), None)
        rows.append(
            {
                "id": broker,
                "host": first.host if first else None,
                "port": first.port if first else None,
                "rack": registration.rack,
            }
        )
    return rows


async def _read_assignments(store: Store, tell: Callable[[str], None]) -> AssignmentColumns:
    names = sorted(await store.children(znodes.TOPICS))
    topics: list[str] = []
    topic_ids: list[str | None] = []
    counts: list[int] = []
    partition: list[int] = []
    replicas: list[pa.ListArray] = []
    known = iter(names)
    async for chunk in store.read_many(map(znodes.topic_path, names)):
        rows: list[Sequence[int]] = []
        for topic, data in zip(islice(known, len(chunk.path)), chunk.data, strict=True):
            try:
                found = znodes.decode_topic(topic, data)
            except MalformedZnodeError as error:
                tell(str(error))
                continue
            numbers = sorted(found.partitions)
            topics.append(topic)
            topic_ids.append(_topic_id(found.topic_id))
            counts.append(len(numbers))
            partition.extend(numbers)
            rows.extend(map(found.partitions.__getitem__, numbers))
        replicas.append(lists_to_arrow(rows))
    return AssignmentColumns(
        topics,
        topic_ids,
        np.array(counts, np.int32),
        np.array(partition, np.int32),
        chunked(replicas),
    )


async def _read_configs(
    store: Store, topics: Iterable[str], tell: Callable[[str], None]
) -> dict[str, dict[str, str]]:
    """The settings of topics; the empty name has the defaults of all brokers."""
    paths = {_BROKER_DEFAULTS: ""}
    paths |= {znodes.config_path(f"topics/{topic}"): topic for topic in topics}
    configs = {}
    for path, data in await _read_all(store, paths):
        try:
            configs[paths[path]] = znodes.decode_config(path, data)
        except MalformedZnodeError as error:
            tell(str(error))
    return configs


async def _read_states(
    store: Store, assignments: AssignmentColumns, tell: Callable[[str], None]
) -> StateColumns:
    """Leaders and ISRs; a partition whose state is missing or unreadable has neither."""
    size = len(assignments.partition)
    leader, leader_epoch = np.full(size, _UNKNOWN, np.int32), np.full(size, _UNKNOWN, np.int32)
    isr: list[pa.ListArray] = []
    start = 0
    async for chunk in store.read_many(starmap(znodes.state_path, assignments.names())):
        states = znodes.decode_states(chunk.path, chunk.data)
        at = np.array(states.at, np.int64) + start
        leader[at] = states.leader
        leader_epoch[at] = states.leader_epoch
        members: Sequence[Sequence[int]] = states.isr
        if len(members) < len(chunk.path):
            found = dict(zip(states.at, states.isr, strict=True))
            members = [found.get(place, ()) for place in range(len(chunk.path))]
        isr.append(lists_to_arrow(members))
        for error in states.errors:
            tell(str(error))
        start += len(chunk.path)
    return StateColumns(leader, leader_epoch, chunked(isr))


async def _read_cluster_id(store: Store) -> str | None:
    try:
        return znodes.decode_cluster_id((await store.get(znodes.CLUSTER_ID)).data)
    except NoNodeError:
        return None


async def _readable(reading: Awaitable[_T], tell: Callable[[str], None]) -> _T | None:
    try:
        return await reading
    except MalformedZnodeError as error:
        tell(str(error))
        return None


async def _read_all(store: Store, paths: Iterable[str]) -> list[tuple[str, bytes | None]]:
    return [
        pair
        async for chunk in store.read_many(paths)
        for pair in zip(chunk.path, chunk.data, strict=True)
    ]


def _topic_id(topic_id: uuid.UUID | None) -> str | None:
    return None if topic_id is None else znodes.encode_topic_id(topic_id)


def _read_sizes(
    addresses: Iterable[tuple[str, int]], security: ClientSecurity
) -> dict[tuple[str, int], int]:
    """The bytes of every partition that a broker at one of these addresses has a replica of.

    The largest replica counts, since others may be catching up. The sizes of a broker that does not
    answer, or refuses, stay unknown: the snapshot is useful without them.
    """
    sizes: dict[tuple[str, int], int] = {}
    with ThreadPoolExecutor(_BROKERS_AT_A_TIME) as pool:
        for response in pool.map(partial(_describe_log_dirs, SecureClient(security)), addresses):
            for directory in () if response is None else response.results:
                for topic in directory.topics:
                    for each in topic.partitions:
                        # A future replica is being copied between two log directories.
                        if each.is_future_key:
                            continue
                        name = (topic.name, each.partition_index)
                        sizes[name] = max(sizes.get(name, 0), each.partition_size)
    return sizes


def _describe_log_dirs(secure: SecureClient, address: tuple[str, int]) -> Any:
    connection = BlockingConnection(*address, "klamm-snapshot", secure)
    try:
        return connection.send(ApiKey.DESCRIBE_LOG_DIRS, {"topics": None}, _SIZES_TIMEOUT_S)
    except (UnavailableError, ProtocolError, KafkaError):
        return None
    finally:
        connection.close()
