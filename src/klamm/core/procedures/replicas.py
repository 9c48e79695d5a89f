"""The replica state machine: moving replicas, and taking those that are gone out of the ISR."""

import numpy as np

from klamm.core.batch import Batch
from klamm.core.cluster import States
from klamm.core.columns import I32, NO_BROKER
from klamm.core.context import Context, Level, Log
from klamm.core.effects import Outcome, Outcomes, Procedure, ReadStates, StatesRead, WriteStates
from klamm.core.elections import shrink_isr
from klamm.core.procedures.partitions import accepted
from klamm.core.transitions import ReplicaState, replica_move_allowed


def move_replicas(ctx: Context, row: I32, broker: I32, target: ReplicaState) -> Procedure[None]:
    """Move replicas, `row[k]` on `broker[k]`, to a state, and tell the brokers once.

    Replicas that may not make the move are named in the log and left alone (RSM-5).
    """
    if not len(row):
        return
    cluster = ctx.cluster
    current = cluster.states_of(row, broker)
    allowed = replica_move_allowed(current, target)
    _name_illegal(ctx, row[~allowed], broker[~allowed], target)
    row, broker, current = row[allowed], broker[allowed], current[allowed]
    batch = Batch(cluster)
    match target:
        case ReplicaState.NEW:
            has_leadership = cluster.has_leadership[row]
            leads = has_leadership & (cluster.leader[row] == broker)
            _say_failed(ctx, row[leads], broker[leads], "a new replica cannot be the leader")
            told = has_leadership & ~leads
            batch.leader_and_isr(row[told], broker[told], is_new=True)
            cluster.set_replica_state(row[~leads], broker[~leads], target)
        case ReplicaState.ONLINE:
            # A replica that comes from New has heard of its partition already (RSM-9).
            told = (current != ReplicaState.NEW) & cluster.has_leadership[row]
            batch.leader_and_isr(row[told], broker[told])
            cluster.set_replica_state(row, broker, target)
        case ReplicaState.OFFLINE:
            yield from _take_offline(ctx, row, broker, batch)
        case ReplicaState.DELETION_STARTED:
            cluster.set_replica_state(row, broker, target)
            batch.stop_replica(row, broker, delete=True)
        case ReplicaState.NON_EXISTENT:
            _forget(ctx, row, broker)
        case ReplicaState.DELETION_SUCCESSFUL | ReplicaState.DELETION_INELIGIBLE:
            cluster.set_replica_state(row, broker, target)
    yield from batch.send()


def _name_illegal(ctx: Context, row: I32, broker: I32, target: ReplicaState) -> None:
    states = ctx.cluster.states_of(row, broker).tolist()
    for r, b, state in zip(row.tolist(), broker.tolist(), states, strict=True):
        topic, partition = ctx.cluster.name(r)
        now = ReplicaState(state).name
        text = f"replica {b} of {topic}-{partition} cannot go from {now} to {target.name}"
        ctx.say(Log.STATE_CHANGE, Level.ERROR, text)


def _say_failed(ctx: Context, row: I32, broker: I32, why: str) -> None:
    for r, b in zip(row.tolist(), broker.tolist(), strict=True):
        topic, partition = ctx.cluster.name(r)
        text = f"replica {b} of {topic}-{partition} keeps its state: {why}"
        ctx.say(Log.STATE_CHANGE, Level.ERROR, text)


def _take_offline(ctx: Context, row: I32, broker: I32, batch: Batch) -> Procedure[None]:
    """Stop the replicas, take each out of its ISR in ZooKeeper, and tell those that remain."""
    cluster = ctx.cluster
    batch.stop_replica(row, broker, delete=False)
    has_leadership = cluster.has_leadership[row]
    blank = ~has_leadership
    if blank.any():
        batch.update_metadata(np.unique(row[blank]))
        cluster.set_replica_state(row[blank], broker[blank], ReplicaState.OFFLINE)
    row, broker = row[has_leadership], broker[has_leadership]
    # One write for each replica that leaves, so that the epoch counts them all (RSM-25).
    for leaving in np.unique(broker).tolist():
        yield from _leave_isr(ctx, row[broker == leaving], leaving, batch)


def _leave_isr(ctx: Context, rows: I32, broker: int, batch: Batch) -> Procedure[None]:
    cluster = ctx.cluster
    own_epoch = cluster.controller_epoch
    known = cluster.leadership(rows)
    # Leaders that write states themselves may be ahead of the cache (PSM-16).
    must_read = not ctx.settings.alter_partition
    if must_read:
        reply: StatesRead = yield ReadStates(rows)
        _say_missing(ctx, rows[~reply.found], broker)
        known = reply.states.at(reply.found)
    while len(known):
        shrunk = shrink_isr(known.leader, known.isr, broker)
        newer = known.controller_epoch > own_epoch
        _say_failed(
            ctx,
            known.row[newer],
            np.full(int(newer.sum()), broker, np.int32),
            "a newer controller has decided about it",
        )
        untouched = known.at(~shrunk.was_member & ~newer)
        _gone_offline(ctx, _now_ours(untouched, own_epoch), broker, batch)
        leaving = shrunk.was_member & ~newer
        if not leaving.any():
            return
        before = known.at(leaving)
        decided = States(
            row=before.row,
            leader=shrunk.leader[leaving],
            leader_epoch=before.leader_epoch + 1,
            isr=shrunk.isr[leaving],
            recovery=before.recovery,
            controller_epoch=np.full(len(before), own_epoch, np.int32),
            version=before.version,
        )
        outcomes: Outcomes = yield WriteStates(decided, "replica offline")
        _gone_offline(ctx, accepted(decided.at(outcomes == Outcome.DONE)), broker, batch)
        _say_missing(ctx, decided.row[outcomes == Outcome.NO_NODE], broker)
        failed = decided.row[outcomes == Outcome.FAILED]
        _say_failed(
            ctx, failed, np.full(len(failed), broker, np.int32), "ZooKeeper refused the write"
        )
        moved_on = decided.row[outcomes == Outcome.BAD_VERSION]
        if not len(moved_on):
            return
        reply = yield ReadStates(moved_on)
        _say_missing(ctx, moved_on[~reply.found], broker)
        known = reply.states.at(reply.found)


def _now_ours(states: States, epoch: int) -> States:
    """The same states as decided by this controller, in memory only (RSM-14)."""
    return States(
        states.row,
        states.leader,
        states.leader_epoch,
        states.isr,
        states.recovery,
        np.full(len(states), epoch, np.int32),
        states.version,
    )


def _say_missing(ctx: Context, rows: I32, broker: int) -> None:
    """A missing state is worth an error, unless the topic is going away anyway (RSM-17)."""
    rows = rows[~ctx.cluster.is_queued(rows)]
    _say_failed(ctx, rows, np.full(len(rows), broker, np.int32), "its state is not in ZooKeeper")


def _gone_offline(ctx: Context, states: States, broker: int, batch: Batch) -> None:
    """Cache the states, mark the replica offline, and tell the partition's other replicas."""
    if not len(states):
        return
    cluster = ctx.cluster
    row = states.row
    cluster.record_leadership(states)
    told = row[~cluster.is_queued(row)]
    others = (cluster.replicas[told] != broker) & (cluster.replicas[told] != NO_BROKER)
    at, slot = np.nonzero(others)
    batch.leader_and_isr(told[at], cluster.replicas[told[at], slot])
    # A partition without another replica still has news for everybody (CHAN-17).
    batch.update_metadata(told)
    cluster.set_replica_state(row, np.full(len(row), broker, np.int32), ReplicaState.OFFLINE)


def _forget(ctx: Context, row: I32, broker: I32) -> None:
    """Take replicas out of the assignments in memory, with their states (RSM-22)."""
    for r, b in zip(row.tolist(), broker.tolist(), strict=True):
        ctx.cluster.set_assignment(r, ctx.cluster.assignment(r).without(b))
