"""Partition reassignment: replicas move in phases, from one list of brokers to another.

Phase U writes the new assignment, phase A starts the replicas that are added, and phase B, once all
of the target is in sync, elects a leader from the target and deletes the replicas that are removed.
Only the topic's znode records a reassignment, so it is written first when one begins and last when
it ends.

Many partitions go through a phase together. For each of them the order of steps is the one of
section 11, with the same epochs and versions as one by one.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import islice
from typing import Final

import numpy as np

from klamm.core.batch import BrokerRequestBatch
from klamm.core.cluster import ClusterState
from klamm.core.columns import I32, NO_BROKER, Mask
from klamm.core.context import Context, Level, LoggerName
from klamm.core.effects import (
    DecisionReason,
    Enqueue,
    Procedure,
    ReadReassignRequest,
    ReadStates,
    Respond,
    StatesRead,
    WatchStates,
    WriteOutcome,
    WriteOutcomes,
    WriteReassignRequest,
    WriteStates,
    WriteTopic,
    WriteTopics,
)
from klamm.core.events import (
    ApiReassignment,
    ControllerError,
    ListReassignments,
    ReassignmentIsrChange,
    ZkReassignment,
)
from klamm.core.procedures.deletion import mark_ineligible, resume_deletion_of
from klamm.core.procedures.partitions import Strategy, change_partition_states
from klamm.core.procedures.replicas import change_replica_states
from klamm.core.reassignment import Assignment
from klamm.core.transitions import PartitionState, ReplicaState
from klamm.names import TopicPartition

#: The result of a request about one partition: Kafka's code, and a message if it has its own.
Verdict = tuple[int, str | None]
_ACCEPTED: Final[Verdict] = (ControllerError.NONE, None)
_NO_SUCH_PARTITION: Final[Verdict] = (
    ControllerError.UNKNOWN_TOPIC_OR_PARTITION,
    "The partition does not exist.",
)
#: Reassignments that go through the phases together, as one bulk write and one request batch.
_TOGETHER: Final = 2048
#: No cluster has that many brokers; a list of more is refused before it is looked at.
_REPLICAS_MAX: Final = 10_000
#: Up to this many reassignments of one topic are written one by one.
_ONE_BY_ONE: Final = 16


# Requests


def on_zk_reassignment(ctx: Context) -> Procedure[set[int]]:
    """Begin the reassignments that `/admin/reassign_partitions` requests; returns their rows.

    Invalid entries are removed from the znode; the others stay until they are complete
    (REASG-1..4).
    """
    requested: dict[TopicPartition, list[int]] | None = yield ReadReassignRequest()
    if requested is None:
        return set()
    verdicts: dict[TopicPartition, Verdict] = {}
    targets: dict[TopicPartition, Sequence[int]] = {}
    for tp, replicas in requested.items():
        flaw = _flaw(replicas) or _no_replica_in_sync(ctx, tp, replicas)
        if flaw is None:
            targets[tp] = replicas
        else:
            verdicts[tp] = flaw
    verdicts |= yield from _reassign_to(ctx, targets)
    failed = {tp: verdict for tp, verdict in verdicts.items() if verdict[0] != ControllerError.NONE}
    for (topic, partition), (code, _) in failed.items():
        text = f"reassignment of {topic}-{partition} fails: {ControllerError(code).name}"
        ctx.say(LoggerName.CONTROLLER, Level.WARNING, text)
    if failed:
        yield from _shrink_request(ctx, lambda tp, _: tp in failed)
    rows = (ctx.cluster.row(*tp) for tp in verdicts.keys() - failed.keys())
    return {row for row in rows if row is not None}


def on_api_reassignment(ctx: Context, event: ApiReassignment) -> Procedure[None]:
    """Begin, replace or cancel reassignments, and respond once they have begun (REASG-5..13)."""
    verdicts: dict[TopicPartition, Verdict] = {}
    targets: dict[TopicPartition, Sequence[int]] = {}
    brokers = ctx.cluster.brokers
    # A node without the broker role would never catch up.
    usable = {broker for broker in ctx.cluster.live if not brokers[broker].controller_only}
    for tp, replicas in event.targets.items():
        current = _current(ctx, tp)
        if replicas is None:
            if not current.is_being_reassigned:
                verdicts[tp] = (ControllerError.NO_REASSIGNMENT_IN_PROGRESS, None)
                continue
            replicas, flaw = current.origin, None
        else:
            flaw = _flaw(replicas) or _unreachable(usable, current, replicas)
        flaw = flaw or _no_replica_in_sync(ctx, tp, replicas)
        if flaw is None:
            targets[tp] = replicas
        else:
            verdicts[tp] = flaw
    if targets:
        # The latest request wins, however the earlier one was made.
        yield from _shrink_request(ctx, lambda tp, _: tp in targets)
        verdicts |= yield from _reassign_to(ctx, targets)
    yield Respond((ControllerError.NONE, verdicts))


def on_list_reassignments(ctx: Context, event: ListReassignments) -> Procedure[None]:
    """Respond with the assignments of partitions that are being reassigned (REASG-32)."""
    cluster = ctx.cluster
    wanted = event.partitions
    if wanted is None:
        wanted = [cluster.name(row) for row in sorted(cluster.being_reassigned)]
    found = {tp: _current(ctx, tp) for tp in wanted}
    moving = {tp: assignment for tp, assignment in found.items() if assignment.is_being_reassigned}
    yield Respond((ControllerError.NONE, moving))


def _current(ctx: Context, tp: TopicPartition) -> Assignment:
    """The assignment of a partition; that of an unknown one is empty."""
    row = ctx.cluster.row(*tp)
    return Assignment(()) if row is None else ctx.cluster.assignment(row)


def _flaw(replicas: Sequence[int]) -> Verdict | None:
    """The error of an invalid list of replicas; None if it is valid (REASG-6)."""
    text = None
    if not replicas:
        text = "Empty replica list specified in partition reassignment."
    elif len(replicas) > _REPLICAS_MAX:
        text = f"{len(replicas)} replicas in partition reassignment replica list."
    elif len(set(replicas)) < len(replicas):
        text = f"Duplicate replica ids in partition reassignment replica list: {list(replicas)}"
    elif min(replicas) < 0:
        text = f"Invalid broker id in replica list: {list(replicas)}"
    return None if text is None else (ControllerError.INVALID_REPLICA_ASSIGNMENT, text)


def _unreachable(usable: Set[int], current: Assignment, replicas: Sequence[int]) -> Verdict | None:
    """Added replicas need brokers that are alive; replicas that exist already do not."""
    origin = set(current.origin)
    adding = [broker for broker in replicas if broker not in origin]
    if usable >= set(adding):
        return None
    text = (
        "Replica assignment has brokers that are not alive. "
        f"Replica list: {adding}, live broker list: {sorted(usable)}"
    )
    return ControllerError.INVALID_REPLICA_ASSIGNMENT, text


def _no_replica_in_sync(
    ctx: Context, tp: TopicPartition, replicas: Sequence[int]
) -> Verdict | None:
    """A reassignment that ends or replaces another must keep a replica that is in sync.

    If only replicas that were to be added are in sync, dropping them would lose committed records.
    """
    row = ctx.cluster.row(*tp)
    if row is None or not ctx.cluster.has_leadership[row]:
        return None
    in_sync = [broker for broker in ctx.cluster.isr[row].tolist() if broker != NO_BROKER]
    kept = ctx.cluster.assignment(row).reassign_to(replicas).replicas
    if not set(in_sync).isdisjoint(kept):
        return None
    text = (
        f"No replica of {list(kept)} is in sync; in sync: {in_sync}. Dropping them would lose "
        "committed records. Wait until another replica is in sync."
    )
    return ControllerError.INVALID_REPLICA_ASSIGNMENT, text


def _reassign_to(
    ctx: Context, targets: Mapping[TopicPartition, Sequence[int]]
) -> Procedure[dict[TopicPartition, Verdict]]:
    """Reassign known partitions to new lists of replicas; returns a result for each."""
    cluster = ctx.cluster
    verdicts = {}
    assignments: dict[int, Assignment] = {}
    for tp, replicas in targets.items():
        row = cluster.row(*tp)
        if row is None or tp[0] in cluster.queued_for_deletion:
            verdicts[tp] = _NO_SUCH_PARTITION
        else:
            verdicts[tp] = _ACCEPTED
            assignments[row] = cluster.assignment(row).reassign_to(replicas)
    names = {row: cluster.name(row) for row in assignments}
    failed = yield from run_reassignments(ctx, assignments)
    for row in failed:
        verdicts[names[row]] = (ControllerError.UNKNOWN_SERVER_ERROR, None)
    return verdicts


# What continues a reassignment


def resume_reassignments(
    ctx: Context,
    chosen: Callable[[Assignment], bool],
    handled: Iterable[int] = (),
) -> Procedure[None]:
    """Run unfinished reassignments again from the first phase: those chosen, without `handled`."""
    cluster = ctx.cluster
    rows = sorted(cluster.being_reassigned.difference(handled))
    assignments = {row: assignment for row in rows if chosen(assignment := cluster.assignment(row))}
    failed = yield from run_reassignments(ctx, assignments)
    text = "reassignments that could not be resumed"
    ctx.say_of(LoggerName.CONTROLLER, Level.ERROR, np.array(sorted(failed), np.int32), text)


def complete_reassignments(ctx: Context, rows: Iterable[int]) -> Procedure[None]:
    """Finish the reassignments that a change of these rows' ISRs has completed (REASG-25..27)."""
    cluster = ctx.cluster
    moving = np.array(sorted(cluster.being_reassigned.intersection(rows)), np.int32)
    if len(moving):
        done = yield from _is_complete(ctx, moving)
        assignments = {row: cluster.assignment(row) for row in moving[done].tolist()}
        yield from run_reassignments(ctx, assignments)


def on_reassignment_isr_change(ctx: Context, event: ReassignmentIsrChange) -> Procedure[None]:
    """Check whether a state that a leader wrote itself completes its reassignment (REASG-30)."""
    row = ctx.cluster.row(event.topic, event.partition)
    if row is not None and row in ctx.cluster.being_reassigned:
        yield WatchStates(np.array([row], np.int32))
        yield from complete_reassignments(ctx, [row])


# The procedure


def run_reassignments(ctx: Context, assignments: Mapping[int, Assignment]) -> Procedure[set[int]]:
    """Run reassignments from the first phase as far as possible; returns the rows that failed."""
    failed: set[int] = set()
    for together in _chunks(assignments):
        written = yield from _update_assignments(ctx, together)
        rows = np.array(written, np.int32)
        done = yield from _is_complete(ctx, rows)
        begun = yield from _add_replicas(ctx, rows[~done])
        ended = yield from _hand_over(ctx, rows[done])
        failed |= together.keys() - begun - ended
    return failed


def _chunks(assignments: Mapping[int, Assignment]) -> Iterator[dict[int, Assignment]]:
    rest = iter(assignments.items())
    while chunk := dict(islice(rest, _TOGETHER)):
        yield chunk


def _update_assignments(
    ctx: Context, assignments: Mapping[int, Assignment]
) -> Procedure[list[int]]:
    """Phase U: write the assignments, then record them; returns the rows that are up to date.

    Replicas that a replaced or cancelled reassignment no longer needs are deleted.
    """
    cluster = ctx.cluster
    rows = np.array(list(assignments), np.int32)
    mark_ineligible(ctx, cluster.topic_names_of(rows), "reassignment in progress")
    changed = [row for row in assignments if assignments[row] != cluster.assignment(row)]
    written = yield from _write_assignments(ctx, {row: assignments[row] for row in changed})
    unneeded = []
    for row in written:
        unneeded += [
            (row, broker) for broker in cluster.assignment(row).unneeded_by(assignments[row])
        ]
    cluster.set_assignments({row: assignments[row] for row in written})
    yield from _retire(ctx, unneeded)
    ready = [row for row in assignments if row in written or row not in changed]
    cluster.being_reassigned.update(ready)
    if ready and not ctx.settings.alter_partition:
        yield WatchStates(np.array(ready, np.int32))
    ctx.say_of(
        LoggerName.CONTROLLER, Level.INFO, np.array(ready, np.int32), "partitions are reassigned"
    )
    return ready


def _write_assignments(ctx: Context, assignments: Mapping[int, Assignment]) -> Procedure[set[int]]:
    """Write topics' znodes; returns the rows that were accepted.

    Kafka writes the whole topic once for each row. klamm does the same for few rows; for ten
    thousand partitions it would write gigabytes, so all rows of a topic are written at once.
    """
    cluster = ctx.cluster
    if not assignments:
        return set()
    rows_of: dict[str, list[int]] = {}
    for row in assignments:
        rows_of.setdefault(cluster.topic(row).name, []).append(row)
    portions: list[list[int]] = []
    writes = []
    for name, rows in rows_of.items():
        content = cluster.assignments(name)
        for portion in [[row] for row in rows] if len(rows) <= _ONE_BY_ONE else [rows]:
            moved = {int(cluster.partition[row]): assignments[row] for row in portion}
            content = {**content, **moved}
            portions.append(portion)
            writes.append(WriteTopic(name, cluster.topics[name].id, content))
    outcomes: list[WriteOutcome] = yield WriteTopics(writes)
    return {
        row
        for portion, outcome in zip(portions, outcomes, strict=True)
        if outcome == WriteOutcome.DONE
        for row in portion
    }


def _is_complete(ctx: Context, rows: I32) -> Procedure[Mask]:
    """Which reassignments are complete, by the ISRs in ZooKeeper (REASG-20)."""
    cluster = ctx.cluster
    assignments = [cluster.assignment(row) for row in rows.tolist()]
    done = np.array([not assignment.is_being_reassigned for assignment in assignments], np.bool_)
    if not done.all():
        reply: StatesRead = yield ReadStates(rows[~done])
        pending = np.flatnonzero(~done)[reply.found].tolist()
        for k, isr in zip(pending, reply.states.at(reply.found).isr.tolist(), strict=True):
            done[k] = assignments[k].is_complete(isr)
    return done


def _add_replicas(ctx: Context, rows: I32) -> Procedure[set[int]]:
    """Phase A: write a new epoch and send the new list to all its replicas; returns those rows."""
    cluster = ctx.cluster
    batch = BrokerRequestBatch(cluster)
    # A replica that a replaced reassignment no longer needs may have been the leader. Kafka leaves
    # such a partition without one until its next failure (KAFKA-14808).
    is_orphaned = cluster.state[rows] == PartitionState.ONLINE
    is_orphaned &= cluster.has_leadership[rows] & (cluster.leader[rows] == NO_BROKER)
    yield from change_partition_states(
        ctx, rows[is_orphaned], PartitionState.ONLINE, Strategy.OFFLINE
    )
    raised = yield from _raise_epoch(ctx, rows)
    batch.leader_and_isr(
        *_pairs(
            (row, broker) for row in raised.tolist() for broker in cluster.assignment(row).origin
        )
    )
    batch.leader_and_isr(*_added(cluster, raised), is_new=True)
    yield from batch.send()
    # A partition that never had a leader goes on when it has one, and nobody is told before that
    # (REASG-A5). Its new replicas have a state all the same, so that they can fail or be deleted.
    started = np.concatenate([raised, rows[~cluster.has_leadership[rows]]])
    # A replica that a resumed or replaced reassignment has added before is not started again.
    yield from change_replica_states(ctx, *_added(cluster, started), ReplicaState.NEW)
    return set(raised.tolist())


def _hand_over(ctx: Context, rows: I32) -> Procedure[set[int]]:
    """Phase B: elect a leader from the target and delete the other replicas; returns completed
    rows.
    """
    cluster = ctx.cluster
    if not len(rows):
        return set()
    assignments = {row: cluster.assignment(row) for row in rows.tolist()}
    yield from change_replica_states(ctx, *_added(cluster, rows), ReplicaState.ONLINE)
    cluster.set_assignments(
        {row: assignment.completed() for row, assignment in assignments.items()}
    )
    # The leader has to know the new list before others leave, or it would take them back.
    leader = cluster.leader[rows]
    is_target = (cluster.replicas[rows] == leader[:, None]).any(axis=1)
    stays = is_target & cluster.leader_is_online(rows)
    yield from change_partition_states(ctx, rows[~stays], PartitionState.ONLINE, Strategy.REASSIGN)
    told = yield from _raise_epoch(ctx, rows[stays])
    batch = BrokerRequestBatch(cluster)
    batch.leader_and_isr(*cluster.replicas_of(told))
    yield from batch.send()
    yield from _retire(
        ctx,
        [
            (row, broker)
            for row, assignment in assignments.items()
            for broker in assignment.removing
        ],
    )
    completed = yield from _write_assignments(
        ctx, {row: cluster.assignment(row) for row in assignments}
    )
    ended = np.array(sorted(completed), np.int32)
    targets = {cluster.name(row): list(assignments[row].target) for row in completed}
    yield from _shrink_request(ctx, lambda tp, replicas: targets.get(tp) == list(replicas))
    cluster.being_reassigned -= completed
    batch = BrokerRequestBatch(cluster)
    batch.update_metadata(ended)
    yield from batch.send()
    ctx.say_of(LoggerName.CONTROLLER, Level.INFO, ended, "reassignments are complete")
    yield from resume_deletion_of(ctx, cluster.topic_names_of(ended))
    return completed


def _raise_epoch(ctx: Context, rows: I32) -> Procedure[I32]:
    """Write a new leader epoch and nothing else; returns the rows for which that worked."""
    cluster = ctx.cluster
    raised = [np.empty(0, np.int32)]
    is_cached = cluster.has_leadership[rows]
    known, unread = cluster.leadership(rows[is_cached]), rows[~is_cached]
    while len(known) or len(unread):
        # A partition that a newer controller has decided about is not ours to change (FENCE-8).
        known = known.at(known.controller_epoch <= cluster.controller_epoch)
        if len(known):
            decided = replace(
                known.decided_in(cluster.controller_epoch), leader_epoch=known.leader_epoch + 1
            )
            outcomes: WriteOutcomes = yield WriteStates(decided, DecisionReason.REASSIGNMENT)
            done = decided.at(outcomes == WriteOutcome.DONE)
            cluster.record_leadership(done.accepted())
            raised.append(done.row)
            unread = np.concatenate([unread, decided.row[outcomes == WriteOutcome.BAD_VERSION]])
        if not len(unread):
            break
        reply: StatesRead = yield ReadStates(unread)
        known, unread = reply.states.at(reply.found), unread[:0]
    return np.sort(np.concatenate(raised))


def _retire(ctx: Context, replicas: Sequence[tuple[int, int]]) -> Procedure[None]:
    """Stop and delete replicas without waiting for the responses (REASG-B4, B5)."""
    row, broker = _pairs(replicas)
    for state in (
        ReplicaState.OFFLINE,
        ReplicaState.DELETION_STARTED,
        ReplicaState.DELETION_SUCCESSFUL,
        ReplicaState.NON_EXISTENT,
    ):
        yield from change_replica_states(ctx, row, broker, state)


def _added(cluster: ClusterState, rows: I32) -> tuple[I32, I32]:
    """The replicas (row, broker) that the reassignments of the rows add."""
    return _pairs(
        (row, broker) for row in rows.tolist() for broker in cluster.assignment(row).adding
    )


def _pairs(replicas: Iterable[tuple[int, int]]) -> tuple[I32, I32]:
    """Replicas (row, broker) as columns."""
    columns = np.array(list(replicas), np.int32).reshape(-1, 2)
    return columns[:, 0], columns[:, 1]


def _shrink_request(
    ctx: Context, is_over: Callable[[TopicPartition, Sequence[int]], bool]
) -> Procedure[None]:
    """Remove entries from `/admin/reassign_partitions`, and the node with the last entry."""
    requested: dict[TopicPartition, list[int]] | None = yield ReadReassignRequest()
    if requested is None:
        return
    left = {tp: replicas for tp, replicas in requested.items() if not is_over(tp, replicas)}
    if not left or len(left) < len(requested):
        yield WriteReassignRequest(left)
    if not left:
        # This event finds the next request; the watch on the deleted node would not (ZK-27).
        yield Enqueue(ZkReassignment())
