"""The metadata cache: the brokers, topics and leaders of the cluster as the controller sends them.

The cache is filled by UpdateMetadata requests only, and rid of topics whose deletion this broker
missed (`missed_deletions.py`). A topic that is not in it is unknown to clients, even if it is on
disk or in ZooKeeper. A snapshot never changes. An update makes the next
snapshot, possibly in another thread, shares with the old one what the update does not name, and
replaces the old one in one step.
"""

import uuid
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Generic, NamedTuple, TypeVar
from zlib import crc32

from klamm.names import TopicPartition
from klamm.protocol.fast.control_decode import TopicRecords
from klamm.protocol.fast.metadata_records import (
    LEADER,
    PartitionMetadata,
    index_and_leader,
    index_of,
    unpack_partition,
)

#: The leader that UpdateMetadata gives to a partition that is being deleted.
_LEADER_DURING_DELETE: Final = -2
NO_CONTROLLER: Final = -1

#: Topics are divided into this many dictionaries; an update copies only those that it changes.
_SHARDS: Final = 256

K = TypeVar("K")
V = TypeVar("V")


class BrokerEndpoint(NamedTuple):
    """The address of a broker on one listener."""

    host: str
    port: int


class CachedBroker(NamedTuple):
    """A broker that the controller considers alive, with its endpoint on each listener."""

    id: int
    endpoints: Mapping[str, BrokerEndpoint]
    rack: str | None = None


class BrokerNode(NamedTuple):
    """A broker with its address on one listener."""

    id: int
    host: str
    port: int
    rack: str | None


class MetadataUpdate(NamedTuple):
    """The contents of an UpdateMetadata request."""

    controller_id: int
    brokers: Iterable[CachedBroker]
    topics: Iterable[TopicRecords] = ()


class TopicMetadata:
    """One topic. Its partitions are stored packed and unpacked on access."""

    __slots__ = ("_has_gaps", "id_bytes", "name", "records")

    def __init__(self, name: str, id_bytes: bytes, records: tuple[bytes, ...]) -> None:
        self.name = name
        #: Empty if the topic has no id.
        self.id_bytes = id_bytes
        #: In the order of their partitions, see `metadata_records`.
        self.records = records
        # Partitions are numbered from zero without gaps, except for a moment while they come
        # or go one by one.
        self._has_gaps = bool(records) and (
            index_of(records[0]) != 0 or index_of(records[-1]) != len(records) - 1
        )

    def __len__(self) -> int:
        return len(self.records)

    @property
    def topic_id(self) -> uuid.UUID | None:
        return uuid.UUID(bytes=self.id_bytes) if self.id_bytes else None

    def partitions(self) -> Iterator[PartitionMetadata]:
        return map(unpack_partition, self.records)

    def partition(self, index: int) -> PartitionMetadata | None:
        record = self.record(index)
        return unpack_partition(record) if record else None

    def record(self, index: int) -> bytes | None:
        """The packed record of a partition; None if the topic does not have it."""
        records = self.records
        if not self._has_gaps:
            return records[index] if 0 <= index < len(records) else None
        at = bisect_left(records, index, key=index_of)
        if at < len(records) and index_of(records[at]) == index:
            return records[at]
        return None


class SnapshotChange(NamedTuple):
    """The snapshot after an update, the topics in the update, and the deleted partitions."""

    snapshot: "ClusterSnapshot"
    topics: frozenset[str]
    deleted: tuple[TopicPartition, ...]


TopicShards = tuple[dict[str, TopicMetadata], ...]
NameShards = tuple[dict[bytes, str], ...]


class ClusterSnapshot:
    """The cluster as of one UpdateMetadata."""

    __slots__ = ("_names", "_topics", "brokers", "controller_id", "partition_count", "topic_count")

    def __init__(
        self,
        controller_id: int = NO_CONTROLLER,
        brokers: Mapping[int, CachedBroker] = MappingProxyType({}),
        topics: TopicShards = ({},) * _SHARDS,
        names: NameShards = ({},) * _SHARDS,
        topic_count: int = 0,
        partition_count: int = 0,
    ) -> None:
        self.controller_id = controller_id
        self.brokers = brokers
        self.topic_count = topic_count
        self.partition_count = partition_count
        self._topics = topics
        self._names = names

    # Topics

    def topic(self, name: str) -> TopicMetadata | None:
        return self._topics[crc32(name.encode()) % _SHARDS].get(name)

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        id_bytes = topic_id.bytes
        return self._names[id_bytes[0]].get(id_bytes)

    def topics(self) -> Iterator[TopicMetadata]:
        return (topic for shard in self._topics for topic in shard.values())

    def partition(self, name: TopicPartition) -> PartitionMetadata | None:
        topic = self.topic(name.topic)
        return topic.partition(name.partition) if topic else None

    def knows(self, name: TopicPartition) -> bool:
        topic = self.topic(name.topic)
        return topic is not None and topic.record(name.partition) is not None

    # Brokers

    def is_alive(self, broker: int) -> bool:
        return broker in self.brokers

    def node(self, broker: int, listener: str) -> BrokerNode | None:
        """A broker's address on a listener; None if it is not alive or has no such listener."""
        live = self.brokers.get(broker)
        endpoint = live.endpoints.get(listener) if live else None
        return (
            BrokerNode(broker, endpoint.host, endpoint.port, live.rack)
            if live and endpoint
            else None
        )

    def nodes(self, listener: str) -> list[BrokerNode]:
        """The live brokers that have a listener of this name."""
        nodes = (self.node(broker, listener) for broker in self.brokers)
        return [node for node in nodes if node]

    def controller(self, listener: str) -> BrokerNode | None:
        """The controller's address on a listener; None if no live controller is known."""
        return self.node(self.controller_id, listener)

    def racks(self, listener: str) -> dict[int, str | None]:
        """The racks of the brokers that clients of a listener can reach."""
        return {node.id: node.rack for node in self.nodes(listener)}

    def shared_topics(self, other: "ClusterSnapshot") -> set[str]:
        """The topics that no update between this snapshot and the other has named."""
        return {
            name
            for own, others in zip(self._topics, other._topics, strict=True)
            for name, topic in own.items()
            if others.get(name) is topic
        }

    # Updates

    def without(self, names: Collection[str]) -> SnapshotChange:
        """The snapshot without some of its topics."""
        gone = [topic for name in names if (topic := self.topic(name)) is not None]
        return self.after(
            MetadataUpdate(
                self.controller_id,
                self.brokers.values(),
                [
                    TopicRecords(each.name, each.id_bytes, [*map(_as_deleted, each.records)])
                    for each in gone
                ],
            )
        )

    def after(self, update: MetadataUpdate) -> SnapshotChange:
        """The snapshot after an update. The cost depends on the size of the update alone.

        A topic with another id is another topic: partitions of the earlier one are not kept.
        """
        topics, names = _Shards(self._topics), _Shards(self._names)
        topic_count, partition_count = self.topic_count, self.partition_count
        touched: set[str] = set()
        deleted: list[TopicPartition] = []
        for name, told_id, news in update.topics:
            shard = topics.writable(crc32(name.encode()) % _SHARDS)
            known = shard.get(name)
            is_another = known and known.id_bytes and told_id and told_id != known.id_bytes
            records, gone = _merge(known.records if known and not is_another else (), news)
            deleted += (TopicPartition(name, index) for index in gone)
            id_bytes = told_id if records else b""
            if known and known.id_bytes and known.id_bytes != id_bytes:
                names.writable(known.id_bytes[0]).pop(known.id_bytes, None)
            if id_bytes:
                names.writable(id_bytes[0])[id_bytes] = name
            if records:
                shard[name] = TopicMetadata(name, id_bytes, records)
            else:
                shard.pop(name, None)
            topic_count += bool(records) - bool(known)
            partition_count += len(records) - (len(known) if known else 0)
            touched.add(name)
        snapshot = ClusterSnapshot(
            update.controller_id if update.controller_id >= 0 else NO_CONTROLLER,
            MappingProxyType({broker.id: broker for broker in update.brokers}),
            topics.sealed(),
            names.sealed(),
            topic_count,
            partition_count,
        )
        return SnapshotChange(snapshot, frozenset(touched), tuple(deleted))


class _Shards(Generic[K, V]):
    """The shards of a snapshot, each copied when it is first written to."""

    def __init__(self, shards: tuple[dict[K, V], ...]) -> None:
        self._shared = shards
        self._own: dict[int, dict[K, V]] = {}

    def writable(self, index: int) -> dict[K, V]:
        own = self._own.get(index)
        if own is None:
            own = self._own[index] = self._shared[index].copy()
        return own

    def sealed(self) -> tuple[dict[K, V], ...]:
        shards = list(self._shared)
        for index, own in self._own.items():
            shards[index] = own
        return tuple(shards)


def _as_deleted(record: bytes) -> bytes:
    leader = _LEADER_DURING_DELETE.to_bytes(4, "big", signed=True)
    return record[: LEADER.start] + leader + record[LEADER.stop :]


def _merge(
    records: tuple[bytes, ...], news: Sequence[bytes]
) -> tuple[tuple[bytes, ...], list[int]]:
    """Merge an update into the records of a topic; return them and the deleted partitions."""
    merged = list(records)
    gone: list[int] = []
    # The usual case: partitions are numbered without gaps, and none goes.
    is_whole = not merged or (index_of(merged[0]) == 0 and index_of(merged[-1]) == len(merged) - 1)
    for record in news:
        index, leader = index_and_leader(record)
        if is_whole and 0 <= index < len(merged) and leader != _LEADER_DURING_DELETE:
            merged[index] = record
        elif is_whole and index == len(merged) and leader != _LEADER_DURING_DELETE:
            merged.append(record)
        else:
            is_whole = False
            at = bisect_left(merged, index, key=index_of)
            is_known = at < len(merged) and index_of(merged[at]) == index
            if leader == _LEADER_DURING_DELETE:
                gone.append(index)
                if is_known:
                    del merged[at]
            elif is_known:
                merged[at] = record
            else:
                merged.insert(at, record)
    return tuple(merged), gone


class MetadataCache:
    """Holds the current snapshot. A caller that needs a consistent view reads it once."""

    def __init__(self) -> None:
        self.snapshot = ClusterSnapshot()

    def is_alive(self, broker: int) -> bool:
        return broker in self.snapshot.brokers

    def install(self, change: SnapshotChange) -> None:
        """Make the snapshot of an update the current one. Updates are applied one at a time."""
        self.snapshot = change.snapshot
