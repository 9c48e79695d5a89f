"""A snapshot from ZooKeeper, in bulk: what the controller itself would read."""

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa

from klamm.errors import ConfigError, MalformedZnodeError
from klamm.pipeline import arrow
from klamm.pipeline.snapshot import Snapshot, now
from klamm.pipeline.snapshot_parts import ElectionSettings, PartitionLists
from klamm.pipeline.snapshot_sizes import read_sizes
from klamm.zookeeper import znodes
from klamm.zookeeper.session import open_store, split_connect_string
from klamm.zookeeper.store import NoNodeError, Store

_T = TypeVar("_T")

_UNKNOWN: Final = -1
_BROKER_DEFAULTS: Final = znodes.config_path(f"brokers/{znodes.DEFAULT_ENTITY}")


def snapshot_from_zookeeper(
    connect: str,
    *,
    with_sizes: bool = True,
    tell: Callable[[str], None] = lambda text: None,
) -> Snapshot:
    """Read a cluster's metadata from ZooKeeper, which holds no sizes: brokers are asked for those.

    Nodes that only compete for the controller's role are left out, since they hold no replica.
    `tell` hears what is being done, and of every znode that cannot be read.
    """

    async def read() -> Snapshot:
        await _check_chroot(connect)
        store = await open_store(connect)
        try:
            return await _read(store, connect, with_sizes, tell)
        except NoNodeError as error:
            raise ConfigError(
                f"There is no Kafka cluster at {connect}: {error.path} is missing."
            ) from None
        finally:
            await store.close()

    return asyncio.run(read())


async def _check_chroot(connect: str) -> None:
    """Refuse a chroot that is not there: opening a store below it would create it."""
    hosts, chroot = split_connect_string(connect)
    if not chroot:
        return
    store = await open_store(hosts)
    try:
        if await store.exists(chroot) is None:
            raise ConfigError(f"There is no Kafka cluster at {connect}: {chroot} is missing.")
    finally:
        await store.close()


async def _read(
    store: Store, connect: str, with_sizes: bool, tell: Callable[[str], None]
) -> Snapshot:
    taken_at = now()
    brokers = await _read_brokers(store, tell)
    tell(f"{len(brokers)} brokers")
    assignments = await _read_assignments(store, tell)
    configs = await _read_configs(store, assignments, tell)
    partitions = await _read_states(store, assignments, tell)
    tell(f"{len(assignments):,} topics, {len(partitions.topic):,} partitions")
    cluster_id = await _readable(_read_cluster_id(store), tell)
    sizes = {}
    if with_sizes:
        addresses = [(each["host"], each["port"]) for each in brokers if each["host"]]
        sizes = await asyncio.to_thread(read_sizes, addresses)
        tell(f"the sizes of {len(sizes):,} partitions")
    defaults = configs.pop("", {})
    settings = {
        topic: ElectionSettings.of(configs.get(topic, {}), defaults) for topic in assignments
    }
    topics = [
        {
            "topic": topic,
            "topic_id": _topic_id(assignment.topic_id),
            "partitions": len(assignment.partitions),
            "config": list(configs.get(topic, {}).items()),
        }
        for topic, assignment in assignments.items()
    ]
    return Snapshot(
        cluster_id=cluster_id,
        source=f"zookeeper {connect}",
        taken_at=taken_at,
        brokers=pa.Table.from_pylist(brokers, arrow.BROKERS),
        topics=pa.Table.from_pylist(topics, arrow.TOPICS),
        partitions=partitions.table(settings, sizes),
    )


async def _read_brokers(store: Store, tell: Callable[[str], None]) -> list[dict[str, Any]]:
    ids = sorted(int(name) for name in await store.children(znodes.BROKER_IDS))
    rows: list[dict[str, Any]] = []
    content = await _read_all(store, map(znodes.broker_path, ids))
    for broker, (_, data) in zip(ids, content, strict=True):
        if data is None:
            continue  # it left between the listing and the reading
        try:
            registration = znodes.decode_broker(broker, data)
        except MalformedZnodeError as error:
            tell(str(error))
            continue
        if registration.controller_only:
            continue
        first = registration.endpoints[0] if registration.endpoints else None
        rows.append(
            {
                "id": broker,
                "host": first.host if first else None,
                "port": first.port if first else None,
                "rack": registration.rack,
            }
        )
    return rows


async def _read_assignments(
    store: Store, tell: Callable[[str], None]
) -> dict[str, znodes.TopicAssignment]:
    names = sorted(await store.children(znodes.TOPICS))
    found = {}
    content = await _read_all(store, map(znodes.topic_path, names))
    for topic, (_, data) in zip(names, content, strict=True):
        try:
            found[topic] = znodes.decode_topic(topic, data)
        except MalformedZnodeError as error:
            tell(str(error))
    return found


async def _read_configs(
    store: Store, topics: Iterable[str], tell: Callable[[str], None]
) -> dict[str, dict[str, str]]:
    """The overrides of topics; under the empty name those that all brokers share."""
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
    store: Store,
    assignments: Mapping[str, znodes.TopicAssignment],
    tell: Callable[[str], None],
) -> PartitionLists:
    """Leaders and ISRs; a partition whose state is missing or unreadable has neither."""
    rows = PartitionLists()
    for topic, assignment in assignments.items():
        numbers = sorted(assignment.partitions)
        rows.topic.extend([topic] * len(numbers))
        rows.partition.extend(numbers)
        rows.replicas.extend(assignment.partitions[number] for number in numbers)
    size = len(rows.topic)
    isr: list[Sequence[int]] = [()] * size
    leader, leader_epoch = [_UNKNOWN] * size, [_UNKNOWN] * size
    start = 0
    paths = map(znodes.state_path, rows.topic, rows.partition)
    async for chunk in store.read_many(paths):
        states = znodes.decode_states(chunk.path, chunk.data)
        for at, broker, epoch, members in zip(
            states.at, states.leader, states.leader_epoch, states.isr, strict=True
        ):
            leader[start + at] = broker
            leader_epoch[start + at] = epoch
            isr[start + at] = members
        for error in states.errors:
            tell(str(error))
        start += len(chunk.path)
    rows.isr, rows.leader, rows.leader_epoch = isr, leader, leader_epoch
    return rows


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
