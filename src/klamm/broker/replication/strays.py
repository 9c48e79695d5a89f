"""Stray replicas: logs on this broker that ZooKeeper does not assign to it.

A controller tells a broker once that a replica is gone, with a StopReplica. A broker that is down
at that moment keeps its log, and so does one whose controller dies between writing the assignment
and sending the request: it may even go on leading the partition under an old epoch. No controller
looks for such replicas, so each broker looks for its own whenever it has registered or the
controller has changed, once it has forgotten the topics whose deletion it missed. The metadata
names the candidates; ZooKeeper decides, because metadata may be incomplete.

Like Apache Kafka, this module moves the directory of a stray replica aside, under a name that ends
in `-stray`, and deletes nothing.
"""

import asyncio
import logging
import uuid
from collections.abc import Iterable
from typing import Final

from klamm.broker.identity import BrokerIdentity
from klamm.broker.log.errors import StorageError
from klamm.broker.log.log import Log
from klamm.broker.metadata.cache import ClusterSnapshot, MetadataCache
from klamm.broker.replication.manager import ReplicaManager
from klamm.errors import MalformedZnodeError, SessionLostError
from klamm.names import TopicPartition
from klamm.slices import paced
from klamm.zookeeper import znodes
from klamm.zookeeper.store import NO_VERSION, NoNodeError, Store

log = logging.getLogger("klamm.broker.replicas")

#: A replica is stray if two checks that are this far apart find it so: the controller that took it
#: away may be about to send its StopReplica.
_PAUSE_S: Final = 1.0


class StrayReplicas:
    """Finds stray replicas and moves them aside."""

    def __init__(
        self,
        identity: BrokerIdentity,
        store: Store,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        control: asyncio.Lock,
    ) -> None:
        """`control` is held while a request of the controller is carried out."""
        self._identity = identity
        self._store = store
        self._metadata = metadata
        self._replicas = replicas
        self._control = control

    async def clear_way(self, name: TopicPartition, topic_id: uuid.UUID | None) -> None:
        """Move a log aside that a deleted topic of the same name has left, before a LeaderAndIsr.

        A partition that is hosted already is left alone: then it is the request that is wrong.
        """
        try:
            found = self._replicas.logs.get(name)
        except StorageError:
            return  # the log directory is offline
        if found is None or topic_id is None or found.topic_id in (None, topic_id):
            return
        if self._replicas.hosts(name):
            return
        try:
            node = await self._store.get(znodes.topic_path(name.topic))
            current = znodes.decode_topic(name.topic, node.data).topic_id
        except (NoNodeError, MalformedZnodeError, SessionLostError):
            return
        if current == topic_id:
            self._replicas.move_aside(name)

    async def check(self) -> None:
        """Look twice, and move aside what is stray both times."""
        suspects: set[TopicPartition] = set()
        for is_last in (False, True):
            while True:
                try:
                    async with self._control:
                        found = await self._find()
                        suspects = found & suspects if is_last else found
                        for name in sorted(suspects) if is_last else ():
                            await self._replicas.settle(name)
                            self._replicas.move_aside(name)
                except SessionLostError:
                    await asyncio.sleep(_PAUSE_S)
                else:
                    break
            if is_last or not suspects:
                return
            await asyncio.sleep(_PAUSE_S)

    async def _find(self) -> set[TopicPartition]:
        """The logs that ZooKeeper does not assign to this broker."""
        snapshot, broker = self._metadata.snapshot, self._identity.broker_id
        suspects: dict[str, list[Log]] = {}
        async for each in paced(list(self._replicas.logs.logs())):
            if not _is_assigned(each, snapshot, broker):
                suspects.setdefault(each.partition.topic, []).append(each)
        topics = iter(suspects.items())
        strays: set[TopicPartition] = set()
        async for chunk in self._store.read_many(znodes.topic_path(topic) for topic in suspects):
            for data, version in zip(chunk.data, chunk.version, strict=True):
                topic, logs = next(topics)
                try:
                    assignment = znodes.decode_topic(topic, data)
                except MalformedZnodeError:
                    continue
                if version != NO_VERSION and not assignment.partitions:
                    continue  # the node cannot be read, or not yet
                strays |= find_strays(logs, assignment, broker)
        return strays


def _is_assigned(replica: Log, snapshot: ClusterSnapshot, broker: int) -> bool:
    """Whether the metadata says that this broker has this replica."""
    topic = snapshot.topic(replica.partition.topic)
    if topic is None:
        return False
    if replica.topic_id and topic.id_bytes not in (b"", replica.topic_id.bytes):
        return False
    partition = topic.partition(replica.partition.partition)
    return partition is not None and broker in partition.replicas


def find_strays(
    logs: Iterable[Log], assignment: znodes.TopicAssignment, broker: int
) -> set[TopicPartition]:
    """The logs of a topic that are another topic's, or whose partition is not assigned here."""
    return {
        each.partition
        for each in logs
        if (each.topic_id and assignment.topic_id not in (None, each.topic_id))
        or broker not in assignment.partitions.get(each.partition.partition, ())
    }
