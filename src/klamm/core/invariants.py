"""What is always true of a cluster between two events.

A violation is always a bug. The checks read the whole state and are meant for tests and simulation,
not for a running controller.
"""

from collections.abc import Iterator
from itertools import chain

import numpy as np

from klamm.core.cluster import NO_TOPIC, ClusterState, LeaderAndIsrs
from klamm.core.columns import I32, NO_BROKER, any_slot, contains, count
from klamm.core.transitions import PartitionState, ReplicaState


def violations(cluster: ClusterState) -> list[str]:
    """The violated invariants of the cluster, as sentences."""
    return [
        *_of_sets(cluster),
        *_of_topics(cluster),
        *_of_assignments(cluster),
        *_of_leadership(cluster),
    ]


def regressions(before: LeaderAndIsrs, after: LeaderAndIsrs) -> list[str]:
    """The rows whose epoch or version went back, or that had two leaders in one epoch."""
    went_back = (after.version < before.version) | (after.leader_epoch < before.leader_epoch)
    same_epoch = after.leader_epoch == before.leader_epoch
    two_leaders = same_epoch & (after.leader != before.leader)
    return [
        *(f"row {row}: epoch or version went back" for row in before.row[went_back].tolist()),
        *(f"row {row}: two leaders in one epoch" for row in before.row[two_leaders].tolist()),
    ]


def _of_sets(cluster: ClusterState) -> Iterator[str]:
    rows = set(cluster.all_rows().tolist())
    if not cluster.shutting_down <= cluster.brokers.keys():
        yield "an unknown broker is shutting down"
    if not cluster.offline_dirs.keys() <= cluster.brokers.keys():
        yield "an unknown broker has lost a directory"
    if not rows.issuperset(chain.from_iterable(cluster.offline_dirs.values())):
        yield "a directory was lost with a partition that is not known"
    if not cluster.ineligible_for_deletion <= cluster.queued_for_deletion:
        yield "the deletion of a topic is paused that is not queued"
    if not cluster.deletion_started <= cluster.queued_for_deletion:
        yield "the deletion of a topic has started that is not queued"
    if not cluster.queued_for_deletion <= cluster.topics.keys():
        yield "an unknown topic is still queued for deletion"
    if not cluster.being_reassigned <= rows:
        yield "an unknown partition is being reassigned"
    if not cluster.adding.keys() | cluster.removing.keys() <= cluster.being_reassigned:
        yield "replicas come or go without a reassignment"
    if cluster.leaving:
        yield f"replicas were left behind on their way out: {cluster.leaving}"


def _of_topics(cluster: ClusterState) -> Iterator[str]:
    ids = {topic.id: name for name, topic in cluster.topics.items() if topic.id is not None}
    if ids != cluster.topic_names:
        yield "topic ids and names do not match"
    seen = 0
    for name, topic in cluster.topics.items():
        seen += len(topic.rows)
        if cluster.topic_at(topic.index) is not topic or topic.name != name:
            yield f"topic {name} is not where it says it is"
        if (cluster.topic_of[topic.rows] != topic.index).any():
            yield f"topic {name} lists rows of others"
        if (cluster.partition[topic.rows] != topic.numbers).any():
            yield f"topic {name} has its partitions mixed up"
        if (np.diff(topic.numbers) <= 0).any():
            yield f"topic {name} has its partitions out of order"
    if seen != np.count_nonzero(cluster.topic_of != NO_TOPIC):
        yield "there are rows without a topic"


def _of_assignments(cluster: ClusterState) -> Iterator[str]:
    rows = cluster.all_rows()
    replicas = cluster.replicas[rows]
    yield from _of_lists(cluster, rows, replicas, "replicas")
    states = cluster.replica_state[rows]
    if (states[replicas == NO_BROKER] != ReplicaState.NON_EXISTENT).any():
        yield "a replica that does not exist has a state"
    for row in cluster.adding.keys() | cluster.removing.keys():
        move = cluster.assignment(row)
        if not set(move.adding).isdisjoint(move.removing):
            yield f"{cluster.name(row)}: a replica comes and goes at once"
        if not set(move.replicas).issuperset(move.adding + move.removing):
            yield f"{cluster.name(row)}: a replica comes or goes that is not in the list"


def _of_leadership(cluster: ClusterState) -> Iterator[str]:
    rows = cluster.all_rows()
    online = rows[cluster.state[rows] == PartitionState.ONLINE]
    for row in online[~cluster.has_leadership[online]].tolist():
        yield f"{cluster.name(row)} is online without ever having had a leader"
    rows = rows[cluster.has_leadership[rows]]
    isr = cluster.isr[rows]
    yield from _of_lists(cluster, rows, isr, "the ISR")
    for row in rows[count(isr) == 0].tolist():
        yield f"{cluster.name(row)} has an empty ISR"
    leader = cluster.leader[rows][:, None]
    is_led = leader[:, 0] != NO_BROKER
    for row in rows[is_led & ~any_slot(contains(isr, leader))].tolist():
        yield f"{cluster.name(row)} has a leader that is not in sync"
    newer = rows[cluster.decided_in[rows] > cluster.controller_epoch]
    for row in newer.tolist():
        yield f"{cluster.name(row)} was decided by a later controller"
    if np.count_nonzero(cluster.imbalanced) != cluster.imbalanced_count:
        yield "the count of imbalanced partitions is off"
    if np.count_nonzero(cluster.state == PartitionState.OFFLINE) != cluster.offline_count:
        yield "the count of offline partitions is off"
    if np.count_nonzero(cluster.has_leadership) != cluster.led_count:
        yield "the count of partitions with leadership is off"


def _of_lists(cluster: ClusterState, rows: I32, lists: I32, what: str) -> Iterator[str]:
    filled = lists != NO_BROKER
    gaps = (~filled[:, :-1] & filled[:, 1:]).any(axis=1)
    ordered = np.sort(lists, axis=1)
    twice = ((np.diff(ordered, axis=1) == 0) & (ordered[:, 1:] != NO_BROKER)).any(axis=1)
    for row in rows[gaps | twice].tolist():
        yield f"{cluster.name(row)}: {what} are not a list of different brokers"
