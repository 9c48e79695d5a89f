"""Checks of requests about topics; each one fails with Kafka's error code and message."""

import itertools
from collections.abc import Mapping, Sequence
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


def check_collision(name: str, existing: Sequence[str]) -> None:
    """Refuse a name that has the same metric name as an existing topic (ADM-9)."""
    if "." not in name and "_" not in name:
        return
    flat = name.replace(".", "_")
    colliding = sorted(
        other for other in existing if other != name and other.replace(".", "_") == flat
    )
    if colliding:
        raise TopicRefusedError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topics: {', '.join(colliding)}",
        )


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
    cluster: ClusterState, added: Mapping[int, Sequence[int]], more: int, factor: int
) -> None:
    """The form of an explicit assignment of added partitions (ADM-21)."""
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    unknown = sorted(set(itertools.chain.from_iterable(added.values())) - cluster.brokers.keys())
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
