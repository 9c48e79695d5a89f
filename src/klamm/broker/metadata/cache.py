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
from klamm.protocol.fast.control_decode import TopicStates
from klamm.protocol.fast.metadata_states import (
    PackedStates,
    PartitionMetadata,
    index_and_leader,
    index_of,
    response_record,
    unpack_partition,
    with_leader,
)

#: The leader that UpdateMetadata gives to a partition that is being deleted.
_LEADER_DURING_DELETE: Final = -2
NO_CONTROLLER: Final = -1

#: Topics are divided into this many dictionaries; an update copies only those that it changes.
_SHARDS: Final = 256
#: Updates of a topic are kept as they are until there are more than this, or until they have this
#: many times the states of the topic.
_LAYERS_MAX: Final = 32
_LAYERED_STATES_MAX: Final = 2

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
    topics: Iterable[TopicStates] = ()


class TopicMetadata:
    """One topic: the states of its partitions, and the updates since that are laid over them.

    An update costs little more than keeping its bytes. What it says is found out when a partition
    of the topic is asked for.
    """

    __slots__ = ("_count", "_layers", "_states", "has_gaps", "id_bytes", "name")

    def __init__(
        self, name: str, id_bytes: bytes, layers: tuple[PackedStates, ...], has_gaps: bool = False
    ) -> None:
        """The first of the layers has all partitions in their order, later ones some of them."""
        self.name = name
        #: Empty if the topic has no id.
        self.id_bytes = id_bytes
        #: Partitions are numbered from zero without gaps, except for a moment while they come
        #: or go one by one.
        self.has_gaps = has_gaps
        self._count = len(layers[0])
        self._layers = layers
        #: All states in their order, once one was asked for.
        self._states: list[bytes] | None = None

    def __len__(self) -> int:
        return self._count

    @property
    def topic_id(self) -> uuid.UUID | None:
        return uuid.UUID(bytes=self.id_bytes) if self.id_bytes else None

    def states(self) -> list[bytes]:
        """The packed states in the order of their partitions, see `metadata_states`."""
        if self._states is not None:
            return self._states
        states = list(self._layers[0])
        for layer in self._layers[1:]:
            for state in layer:
                states[index_of(state)] = state
        return states

    def partitions(self) -> Iterator[PartitionMetadata]:
        return map(unpack_partition, self.states())

    def response_records(self) -> list[bytes]:
        """The partitions of a Metadata response from v9 on, with no error."""
        if len(self._layers) == 1:
            return self._layers[0].response_records()
        return [*map(response_record, self.states())]

    def knows(self, index: int) -> bool:
        """Whether the topic has this partition."""
        if not self.has_gaps:
            return 0 <= index < self._count
        return self.partition(index) is not None

    def partition(self, index: int) -> PartitionMetadata | None:
        if self._states is None:
            self._states = self.states()
        at = bisect_left(self._states, index, key=index_of) if self.has_gaps else index
        if not 0 <= at < len(self) or index_of(self._states[at]) != index:
            return None
        return unpack_partition(self._states[at])

    def after(self, news: PackedStates) -> "TopicMetadata | None":
        """The topic after an update that only changes partitions that it has; else None."""
        if self.has_gaps or news.may_have_leader(_LEADER_DURING_DELETE):
            return None
        if len(news) >= len(self) and news.are_gapless():
            return TopicMetadata(self.name, self.id_bytes, (news,))
        if news.highest >= len(self):
            return None
        changed = TopicMetadata(self.name, self.id_bytes, (*self._layers, news))
        if changed._has_too_many_layers():
            changed._layers = (PackedStates.of(changed.states()),)
        return changed

    def _has_too_many_layers(self) -> bool:
        first, *laid_over = self._layers
        states = sum(map(len, laid_over))
        return len(laid_over) > _LAYERS_MAX or states > _LAYERED_STATES_MAX * len(first)


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
        return topic is not None and topic.knows(name.partition)

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
                [TopicStates(each.name, each.id_bytes, _as_deleted(each)) for each in gone],
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
            if known and known.id_bytes and told_id and told_id != known.id_bytes:
                topic, gone = _merged(name, told_id, [], news)
            elif known and known.id_bytes == told_id and (changed := known.after(news)):
                topic, gone = changed, []
            else:
                topic, gone = _merged(name, told_id, known.states() if known else [], news)
            deleted += (TopicPartition(name, index) for index in gone)
            id_bytes = topic.id_bytes if topic else b""
            if known and known.id_bytes and known.id_bytes != id_bytes:
                names.writable(known.id_bytes[0]).pop(known.id_bytes, None)
            if id_bytes and (not known or known.id_bytes != id_bytes):
                names.writable(id_bytes[0])[id_bytes] = name
            if topic:
                shard[name] = topic
            else:
                shard.pop(name, None)
            topic_count += (topic is not None) - (known is not None)
            partition_count += (len(topic) if topic else 0) - (len(known) if known else 0)
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


def _as_deleted(topic: TopicMetadata) -> PackedStates:
    return PackedStates.of(with_leader(each, _LEADER_DURING_DELETE) for each in topic.states())


def _merged(
    name: str, id_bytes: bytes, states: Sequence[bytes], news: PackedStates
) -> tuple[TopicMetadata | None, list[int]]:
    """A topic after any update, and the partitions that were deleted; None if none is left."""
    if not states and news.are_gapless() and not news.may_have_leader(_LEADER_DURING_DELETE):
        return TopicMetadata(name, id_bytes, (news,)) if len(news) else None, []
    by_index = {index_of(state): state for state in states}
    gone: list[int] = []
    for state in news:
        index, leader = index_and_leader(state)
        if leader == _LEADER_DURING_DELETE:
            gone.append(index)
            by_index.pop(index, None)
        else:
            by_index[index] = state
    if not by_index:
        return None, gone
    merged = PackedStates.of(by_index[index] for index in sorted(by_index))
    return TopicMetadata(name, id_bytes, (merged,), has_gaps=not merged.are_gapless()), gone


class MetadataCache:
    """Holds the current snapshot. A caller that needs a consistent view reads it once."""

    def __init__(self) -> None:
        self.snapshot = ClusterSnapshot()

    def is_alive(self, broker: int) -> bool:
        return broker in self.snapshot.brokers

    def install(self, change: SnapshotChange) -> None:
        """Make the snapshot of an update the current one. Updates are applied one at a time."""
        self.snapshot = change.snapshot
