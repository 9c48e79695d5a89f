"""Checks of requests about topics; each one fails with Kafka's error code and message."""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from klamm.core.cluster import ClusterState
from klamm.names import complaint_about
from klamm.protocol.codes import ErrorCode

#: All of a topic is in one znode, in which that many would take ten times what ZooKeeper accepts.
PARTITIONS_MAX: Final = 1_000_000


class TopicRefusedError(Exception):
    """A topic of a request cannot be served; the others go on."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.message)
        self.code = code


def check_name(name: str) -> None:
    """Refuse a name that no topic can have (ADM-7)."""
    complaint = complaint_about(name)
    if complaint is not None:
        raise TopicRefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, complaint)


class TakenNames:
    """The names of all topics, in which a new topic must not be found (ADM-8, ADM-9)."""

    def __init__(self, existing: Iterable[str], marked_for_deletion: Iterable[str]) -> None:
        self._existing = set(existing)
        self._marked_for_deletion = set(marked_for_deletion)
        #: Names by their metric name, once that is asked for.
        self._by_metric_name: dict[str, list[str]] | None = None

    def check(self, name: str) -> None:
        """Refuse a topic that exists or is being deleted, or has the metric name of another."""
        code = ErrorCode.TOPIC_ALREADY_EXISTS
        if name in self._marked_for_deletion:
            raise TopicRefusedError(code, f"Topic '{name}' is marked for deletion.")
        if name in self._existing:
            raise TopicRefusedError(code, f"Topic '{name}' already exists.")
        if "." not in name and "_" not in name:
            return
        if self._by_metric_name is None:
            self._by_metric_name = {}
            for each in self._existing:
                self._by_metric_name.setdefault(_metric_name(each), []).append(each)
        colliding = self._by_metric_name.get(_metric_name(name))
        if colliding:
            raise TopicRefusedError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with existing topics: {', '.join(sorted(colliding))}",
            )

    def add(self, name: str) -> None:
        """A topic that passed the check is going to exist."""
        self._existing.add(name)
        if self._by_metric_name is not None:
            self._by_metric_name.setdefault(_metric_name(name), []).append(name)


def _metric_name(topic: str) -> str:
    return topic.replace(".", "_")


def check_count(partitions: int) -> None:
    """Refuse what no znode could hold, before any of it is placed."""
    if partitions > PARTITIONS_MAX:
        raise TopicRefusedError(
            ErrorCode.INVALID_PARTITIONS,
            f"A topic cannot have {partitions} partitions, but at most {PARTITIONS_MAX}.",
        )


def check_consistent(partitions: Mapping[int, Sequence[int]]) -> None:
    """The form of an explicit assignment (ADM-10)."""
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    if len({len(replicas) for replicas in partitions.values()}) != 1:
        raise TopicRefusedError(code, "All partitions should have the same number of replicas")
    for replicas in partitions.values():
        if len(set(replicas)) != len(replicas):
            raise TopicRefusedError(code, f"Duplicate replica assignment found: {dict(partitions)}")
    if sorted(partitions) != list(range(len(partitions))):
        raise TopicRefusedError(code, "partitions should be a consecutive 0-based integer sequence")


def check_expansion(
    brokers: Collection[int], added: Mapping[int, Sequence[int]], more: int, factor: int
) -> None:
    """The form of an explicit assignment of added partitions (ADM-21)."""
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    unknown = sorted(set(itertools.chain.from_iterable(added.values())) - set(brokers))
    if unknown:
        raise TopicRefusedError(
            code, f"Unknown broker(s) in replica assignment: {', '.join(map(str, unknown))}."
        )
    if len(added) != more:
        raise TopicRefusedError(
            code,
            f"Increasing the number of partitions by {more} but {len(added)} assignments provided.",
        )
    for partition, replicas in added.items():
        if not replicas:
            raise TopicRefusedError(
                code, f"Cannot have replication factor of 0 for partition id {partition}."
            )
        if len(set(replicas)) != len(replicas):
            raise TopicRefusedError(
                code,
                "Duplicate brokers not allowed in replica assignment: "
                f"{', '.join(map(str, replicas))} for partition id {partition}.",
            )
    others = {partition: len(each) for partition, each in added.items() if len(each) != factor}
    if others:
        raise TopicRefusedError(
            code,
            f"Inconsistent replication factor between partitions, partition 0 has {factor} while "
            f"partitions {list(others)} have replication factors {list(others.values())}, "
            "respectively.",
        )


def racks_of(cluster: ClusterState) -> dict[int, str | None]:
    """Brokers that take replicas, in ascending order, with their racks."""
    brokers = (cluster.brokers[b] for b in cluster.live_or_shutting_down)
    return {broker.id: broker.rack for broker in brokers if not broker.controller_only}


def check_racks(cluster: ClusterState) -> None:
    """Racks are known of all brokers or of none, or nothing can be placed (ADM-22)."""
    racks = racks_of(cluster).values()
    if None in racks and any(rack is not None for rack in racks):
        raise TopicRefusedError(
            ErrorCode.UNKNOWN_SERVER_ERROR, "Not all brokers have rack information."
        )
