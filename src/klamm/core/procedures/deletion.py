"""Deleting topics: accepting requests, stopping and deleting replicas, retrying, finishing.

`resume_deletions` takes each queued topic as far as the states of its replicas allow. It runs again
after every change of those states. An ineligible topic waits: one of its replicas is offline or
could not be deleted, or one of its partitions is being reassigned.
"""

from collections.abc import Collection

import numpy as np

from klamm.core.batch import BrokerRequestBatch
from klamm.core.cluster import ClusterState
from klamm.core.columns import I32, NO_BROKER
from klamm.core.context import Context, Level, LoggerName
from klamm.core.effects import (
    DeleteTopic,
    DropDeletions,
    Procedure,
    ReadDeletions,
)
from klamm.core.events import ControllerError, StopReplicaResponseReceived
from klamm.core.procedures.partitions import change_partition_states
from klamm.core.procedures.replicas import change_replica_states
from klamm.core.reassignment import Assignment
from klamm.core.transitions import PartitionState, ReplicaState


def on_topic_deletion(ctx: Context) -> Procedure[None]:
    """Accept the requests for deletion that are in ZooKeeper (DEL-1..6)."""
    cluster = ctx.cluster
    requested: set[str] = yield ReadDeletions()
    unknown = requested - cluster.topics.keys()
    if unknown:
        text = f"requests to delete unknown topics are dropped: {sorted(unknown)}"
        ctx.say(LoggerName.DELETION, Level.WARNING, text)
        yield DropDeletions(sorted(unknown))
    requested -= unknown
    if not requested:
        return
    if not ctx.settings.delete_topics:
        yield DropDeletions(sorted(requested))
        return
    ctx.say(LoggerName.DELETION, Level.INFO, f"topics queued for deletion: {sorted(requested)}")
    moving = np.fromiter(cluster.being_reassigned, np.int32, len(cluster.being_reassigned))
    cluster.queue_for_deletion(requested)
    mark_ineligible(ctx, cluster.topic_names_of(moving) & requested, "reassignment in progress")
    yield from resume_deletions(ctx)


def on_stop_replica_response(ctx: Context, event: StopReplicaResponseReceived) -> Procedure[None]:
    """Record which replicas a broker has deleted and which it could not delete (DEL-20..24)."""
    cluster = ctx.cluster
    deleted: list[int] = []
    failed: list[int] = []
    for (topic, partition), error in event.errors.items():
        row = cluster.row(topic, partition) if topic in cluster.deletion_started else None
        if row is not None:
            is_failed = event.error != ControllerError.NONE or error != ControllerError.NONE
            (failed if is_failed else deleted).append(row)
    if failed:
        yield from fail_deletion(ctx, *_on(failed, event.broker))
    if deleted:
        row_of, broker = _on(deleted, event.broker)
        # `fail_deletion` may have completed or dropped a topic meanwhile.
        is_queued = cluster.is_queued(row_of)
        yield from change_replica_states(
            ctx, row_of[is_queued], broker[is_queued], ReplicaState.DELETION_SUCCESSFUL
        )
        yield from resume_deletions(ctx)


def _on(rows: list[int], broker: int) -> tuple[I32, I32]:
    return np.array(rows, np.int32), np.full(len(rows), broker, np.int32)


def fail_deletion(ctx: Context, row: I32, broker: I32) -> Procedure[None]:
    """Pause topics of which replicas could not be deleted or were lost (DEL-22, DEL-25)."""
    is_queued = ctx.cluster.is_queued(row)
    row, broker = row[is_queued], broker[is_queued]
    if not len(row):
        return
    yield from change_replica_states(ctx, row, broker, ReplicaState.DELETION_INELIGIBLE)
    mark_ineligible(ctx, ctx.cluster.topic_names_of(row), "replica deletion failure")
    yield from resume_deletions(ctx)


def mark_ineligible(ctx: Context, names: Collection[str], why: str) -> None:
    """Pause the deletion of those topics that are queued for it."""
    paused = ctx.cluster.queued_for_deletion & set(names)
    if paused:
        ctx.cluster.ineligible_for_deletion |= paused
        ctx.say(LoggerName.DELETION, Level.INFO, f"deletion of {sorted(paused)} is paused: {why}")


def resume_deletion_of(ctx: Context, names: Collection[str]) -> Procedure[None]:
    """Resume the deletion of paused topics, since their reason to wait is over (DEL-27, DEL-28)."""
    resumed = ctx.cluster.queued_for_deletion & set(names)
    if resumed:
        ctx.cluster.ineligible_for_deletion -= resumed
        yield from resume_deletions(ctx)


def resume_deletions(ctx: Context) -> Procedure[None]:
    """Finish, retry or begin the deletion of each queued topic, by what its replicas are at."""
    cluster = ctx.cluster
    retried, begun = [], []
    for name in sorted(cluster.queued_for_deletion):
        rows = cluster.rows_of([name])
        states = set(np.unique(cluster.replica_state[rows][cluster.replicas[rows] != NO_BROKER]))
        if states <= {ReplicaState.DELETION_SUCCESSFUL}:
            yield from _finish(ctx, name)
        elif ReplicaState.DELETION_STARTED not in states:
            if ReplicaState.DELETION_INELIGIBLE in states:
                retried.append(name)
            if name not in cluster.ineligible_for_deletion:
                begun.append(name)
    row, broker = cluster.replicas_in(cluster.rows_of(retried), ReplicaState.DELETION_INELIGIBLE)
    yield from change_replica_states(ctx, row, broker, ReplicaState.OFFLINE)
    if begun:
        yield from _begin(ctx, begun)


def drop_reassignments(cluster: ClusterState, rows: I32) -> None:
    """Drop reassignments: all replicas, old and new, become the partition's assignment.

    ZooKeeper is not changed, since the topics are being deleted.
    """
    replicas = {row: cluster.assignment(row).replicas for row in rows.tolist()}
    cluster.set_assignments({row: Assignment(each) for row, each in replicas.items()})
    cluster.being_reassigned -= replicas.keys()


def _begin(ctx: Context, names: list[str]) -> Procedure[None]:
    """Take topics out of service, then stop and delete the replicas that can be reached.

    A reassignment that is under way ends here: no replica can catch up any more, and resuming it
    would restore replicas that are deleted already.
    """
    cluster = ctx.cluster
    doomed = cluster.rows_of(names)
    drop_reassignments(cluster, doomed[np.isin(doomed, list(cluster.being_reassigned))])
    unseen = cluster.rows_of(sorted(set(names) - cluster.deletion_started))
    yield from change_partition_states(ctx, unseen, PartitionState.OFFLINE)
    yield from change_partition_states(ctx, unseen, PartitionState.NON_EXISTENT)
    cluster.deletion_started.update(names)
    ctx.say(LoggerName.DELETION, Level.INFO, f"deletion of {names} starts")
    rows = cluster.rows_of(names)
    batch = BrokerRequestBatch(cluster)
    batch.update_metadata(rows)
    yield from batch.send()
    row, broker = cluster.replicas_of(rows)
    # Of a reassignment that failed as it began, brokers may have been told all the same.
    is_unknown = cluster.states_of(row, broker) == ReplicaState.NON_EXISTENT
    cluster.set_replica_state(row[is_unknown], broker[is_unknown], ReplicaState.OFFLINE)
    is_online = cluster.online(rows)[cluster.replicas[rows] != NO_BROKER]
    dead = row[~is_online]
    yield from change_replica_states(
        ctx, dead, broker[~is_online], ReplicaState.DELETION_INELIGIBLE
    )
    todo = is_online & (cluster.states_of(row, broker) != ReplicaState.DELETION_SUCCESSFUL)
    yield from change_replica_states(ctx, row[todo], broker[todo], ReplicaState.OFFLINE)
    yield from change_replica_states(ctx, row[todo], broker[todo], ReplicaState.DELETION_STARTED)
    mark_ineligible(ctx, cluster.topic_names_of(dead), "offline replicas")


def _finish(ctx: Context, name: str) -> Procedure[None]:
    """Remove every trace of a topic whose replicas are all deleted (DEL-15)."""
    cluster = ctx.cluster
    row, broker = cluster.replicas_in(cluster.rows_of([name]), ReplicaState.DELETION_SUCCESSFUL)
    yield from change_replica_states(ctx, row, broker, ReplicaState.NON_EXISTENT)
    yield DeleteTopic(name)
    cluster.remove_topic(name)
    ctx.say(LoggerName.DELETION, Level.INFO, f"deletion of {name} is complete")
