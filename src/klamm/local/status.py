"""The status of a local cluster, and the changes between two of them as sentences."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from klamm.client.topics import PartitionDescription
from klamm.errors import KlammError
from klamm.local.broker_process import ProcessState
from klamm.local.cluster import Cluster
from klamm.names import TopicPartition, counted, is_internal

#: More changed partitions than this are counted, not listed.
_TOLD_MAX = 6


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """One broker: its process, its leaders and its replicas."""

    id: int
    address: str
    rack: str | None
    pid: int | None
    state: ProcessState
    exit_code: int | None
    #: Whether the process runs without being registered in ZooKeeper.
    has_lost_session: bool = False
    leaders: int = 0
    replicas: int = 0

    @property
    def is_serving(self) -> bool:
        return self.state is ProcessState.RUNNING and not self.has_lost_session

    @property
    def state_text(self) -> str:
        """The state of the process, and whether the cluster still counts on it."""
        return f"{self.state}, session lost" if self.has_lost_session else str(self.state)


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The whole cluster; without partitions when ZooKeeper does not respond."""

    brokers: tuple[BrokerStatus, ...]
    controller: int | None
    zookeeper_runs: bool
    partitions: Mapping[TopicPartition, PartitionDescription] = field(default_factory=dict)
    is_known: bool = True

    @property
    def under_replicated(self) -> int:
        return sum(each.is_under_replicated for each in self.partitions.values())

    @property
    def leaderless(self) -> int:
        return sum(each.is_unavailable for each in self.partitions.values())


def read_status(cluster: Cluster) -> ClusterStatus:
    """The status right now, from ZooKeeper: a broker that is paused would not respond."""
    processes = [cluster.broker(broker) for broker in cluster.broker_ids]
    partitions: dict[TopicPartition, PartitionDescription] = {}
    controller: int | None = None
    registered: set[int] = set()
    is_known = cluster.zookeeper_is_running
    if is_known:
        try:
            partitions = cluster.partitions()
            registered = cluster.registered()
            controller = cluster.controller_id()
        except (KlammError, TimeoutError):
            is_known = False
    leaders = Counter(each.leader for each in partitions.values())
    replicas = Counter(broker for each in partitions.values() for broker in each.replicas)
    return ClusterStatus(
        tuple(
            BrokerStatus(
                each.id,
                each.address,
                each.rack,
                each.pid,
                each.state,
                each.exit_code,
                is_known and each.is_alive and each.id not in registered,
                leaders[each.id],
                replicas[each.id],
            )
            for each in processes
        ),
        controller,
        cluster.zookeeper_is_running,
        partitions,
        is_known,
    )


def describe_changes(before: ClusterStatus, after: ClusterStatus) -> Iterator[str]:
    """The changes between two statuses, as sentences."""
    if before.zookeeper_runs and not after.zookeeper_runs:
        yield "ZooKeeper ended"
    then = {each.id: each for each in before.brokers}
    for each in after.brokers:
        if each.id not in then:
            continue
        if each.state is not then[each.id].state:
            yield f"broker {each.id} {_fate(each)}"
        if each.has_lost_session and not then[each.id].has_lost_session:
            yield f"broker {each.id} lost its ZooKeeper session"
        elif then[each.id].has_lost_session and each.is_serving:
            yield f"broker {each.id} is registered again"
    if not (before.is_known and after.is_known):
        return
    if after.controller != before.controller:
        was = "" if before.controller is None else f" (was {before.controller})"
        now = "nobody is" if after.controller is None else f"broker {after.controller} became"
        yield f"{now} controller{was}"
    yield from _topics(before, after)
    told = list(_partitions(before, after))
    yield from told[:_TOLD_MAX]
    if len(told) > _TOLD_MAX:
        yield f"and {counted(len(told) - _TOLD_MAX, 'more partition')} changed"


def _fate(broker: BrokerStatus) -> str:
    match broker.state:
        case ProcessState.DEAD:
            code = broker.exit_code
            how = f"by signal {-code}" if code is not None and code < 0 else f"exit code {code}"
            return f"died ({how})"
        case state:
            return f"is {state}"


def _topics(before: ClusterStatus, after: ClusterStatus) -> Iterator[str]:
    old, new = ({topic for topic, _ in status.partitions} for status in (before, after))
    yield from (f"topic {topic} was created" for topic in sorted(new - old))
    yield from (f"topic {topic} was deleted" for topic in sorted(old - new))


def _partitions(before: ClusterStatus, after: ClusterStatus) -> Iterator[str]:
    for name, new in sorted(after.partitions.items(), key=lambda each: is_own(each[0].topic)):
        old = before.partitions.get(name)
        if old is None:
            continue
        parts = []
        if new.leader != old.leader:
            parts.append(f"leader {_who(old.leader)} → {_who(new.leader)}")
        if set(new.isr) != set(old.isr):
            parts.append(f"ISR {_ids(old.isr)} → {_ids(new.isr)}")
        if new.replicas != old.replicas:
            parts.append(f"replicas {_ids(old.replicas)} → {_ids(new.replicas)}")
        if parts:
            yield f"{name[0]}-{name[1]}: {', '.join(parts)}"


def is_own(topic: str) -> bool:
    """Whether a topic is Kafka's or klamm's own: the user's topics are told of first."""
    return is_internal(topic) or topic.startswith("__klamm")


def _who(leader: int) -> str:
    return str(leader) if leader >= 0 else "none"


def _ids(brokers: tuple[int, ...]) -> str:
    return ",".join(map(str, brokers))
