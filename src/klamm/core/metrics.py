"""The gauges that follow from the controller's state (section 19)."""

from dataclasses import dataclass

import numpy as np

from klamm.core.cluster import ClusterState
from klamm.core.columns import NO_BROKER
from klamm.core.transitions import PartitionState, ReplicaState


@dataclass(frozen=True, slots=True)
class Gauges:
    """Gauges of type KafkaController; all are 0 on a node that is not controller (MET-1)."""

    active_controller_count: int = 0
    offline_partitions_count: int = 0
    preferred_replica_imbalance_count: int = 0
    global_topic_count: int = 0
    global_partition_count: int = 0
    topics_to_delete_count: int = 0
    replicas_to_delete_count: int = 0
    topics_ineligible_to_delete_count: int = 0
    replicas_ineligible_to_delete_count: int = 0
    active_broker_count: int = 0
    fenced_broker_count: int = 0


def gauges(cluster: ClusterState | None) -> Gauges:
    """Compute the gauges; without a cluster state, on a node that is not controller, all are 0."""
    if cluster is None:
        return Gauges()
    offline = np.flatnonzero(cluster.state == PartitionState.OFFLINE).astype(np.int32)
    going = cluster.rows_of(cluster.queued_for_deletion)
    states = cluster.replica_state[going][cluster.replicas[going] != NO_BROKER]
    return Gauges(
        active_controller_count=1,
        offline_partitions_count=int(np.count_nonzero(~cluster.is_deletion_started(offline))),
        preferred_replica_imbalance_count=cluster.imbalanced_count,
        global_topic_count=len(cluster.topics),
        global_partition_count=int(np.count_nonzero(cluster.has_leadership)),
        topics_to_delete_count=len(cluster.queued_for_deletion),
        replicas_to_delete_count=int(np.count_nonzero(states != ReplicaState.DELETION_SUCCESSFUL)),
        topics_ineligible_to_delete_count=len(cluster.ineligible_for_deletion),
        replicas_ineligible_to_delete_count=int(
            np.count_nonzero(states == ReplicaState.DELETION_INELIGIBLE)
        ),
        active_broker_count=len(cluster.brokers),
    )
