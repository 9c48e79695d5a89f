"""What a request about topics must not ask for: each check refuses with Kafka's code and words."""

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Final

from klamm.core.cluster import Cluster
from klamm.protocol.codes import ErrorCode

_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_NAME_LENGTH_MAX: Final = 249


class Refused(Exception):
    """A topic of a request cannot be served; the others go on."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        super().__init__(message or code.message)
        self.code = code


def check_name(name: str) -> None:
    """Refuse a name that no topic can have (ADM-7)."""
    reason = None
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > _NAME_LENGTH_MAX:
        reason = f"the length of '{name}' is longer than the max allowed length {_NAME_LENGTH_MAX}"
    elif not _NAME.fullmatch(name):
        reason = (
            f"'{name}' contains one or more characters other than "
            "ASCII alphanumerics, '.', '_' and '-'"
        )
    if reason is not None:
        raise Refused(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {reason}")


def check_collision(name: str, existing: Sequence[str]) -> None:
    """Refuse a name that metrics could not tell from an existing one (ADM-9)."""
    if "." not in name and "_" not in name:
        return
    flat = name.replace(".", "_")
    colliding = sorted(
        other for other in existing if other != name and other.replace(".", "_") == flat
    )
    if colliding:
        raise Refused(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topics: {', '.join(colliding)}",
        )


def check_consistent(partitions: Mapping[int, Sequence[int]]) -> None:
    """The form of an explicit assignment (ADM-10)."""
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    if len({len(replicas) for replicas in partitions.values()}) != 1:
        raise Refused(code, "All partitions should have the same number of replicas")
    for replicas in partitions.values():
        if len(set(replicas)) != len(replicas):
            raise Refused(code, f"Duplicate replica assignment found: {dict(partitions)}")
    if sorted(partitions) != list(range(len(partitions))):
        raise Refused(code, "partitions should be a consecutive 0-based integer sequence")


def check_expansion(
    cluster: Cluster, lists: Sequence[Sequence[int]], more: int, factor: int
) -> None:
    """The form of an explicit assignment of added partitions (ADM-21)."""
    code = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    unknown = sorted(set(itertools.chain.from_iterable(lists)) - cluster.brokers.keys())
    if unknown:
        raise Refused(
            code, f"Unknown broker(s) in replica assignment: {', '.join(map(str, unknown))}."
        )
    if len(lists) != more:
        raise Refused(
            code,
            f"Increasing the number of partitions by {more} but {len(lists)} assignments provided.",
        )
    for replicas in lists:
        if not replicas:
            raise Refused(code, "Cannot have replication factor of 0 for partition.")
        if len(set(replicas)) != len(replicas):
            raise Refused(code, f"Duplicate brokers not allowed in replica assignment: {replicas}.")
        if len(replicas) != factor:
            raise Refused(
                code,
                f"Inconsistent replication factor between partitions, partition 0 has {factor} "
                f"while another has {len(replicas)}.",
            )


def racks_of(cluster: Cluster) -> dict[int, str | None]:
    """Brokers that take replicas, in ascending order, with their racks."""
    brokers = (cluster.brokers[b] for b in cluster.live_or_shutting_down)
    return {broker.id: broker.rack for broker in brokers if not broker.controller_only}


def check_racks(cluster: Cluster) -> None:
    """Racks are known of all brokers or of none, or nothing can be placed (ADM-22)."""
    racks = racks_of(cluster).values()
    if None in racks and any(rack is not None for rack in racks):
        raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, "Not all brokers have rack information.")
