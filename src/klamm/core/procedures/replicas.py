"""The replica state machine: changes states, and removes offline replicas from the ISR.

ISRs are shrunk from the cached state, in writes that are conditional on the cached version; rows
with another version are read and decided again (PSM-16).
"""

from dataclasses import replace

import numpy as np

from klamm.core.batch import BrokerRequestBatch
from klamm.core.cluster import LeaderAndIsrs
from klamm.core.columns import I32, NO_BROKER, as_run
from klamm.core.context import Context, Level, LoggerName
from klamm.core.effects import (
    DecisionReason,
    Procedure,
    ReadStates,
    StatesRead,
    WriteOutcome,
    WriteOutcomes,
    WriteStates,
)
from klamm.core.elections import shrink_isr
from klamm.core.transitions import ReplicaState, is_valid_replica_change
from klamm.errors import FencedError, SessionLostError


def change_replica_states(
    ctx: Context, row: I32, broker: I32, target: ReplicaState
) -> Procedure[None]:
    """Change the state of replicas, `row[k]` on `broker[k]`, and send one batch.

    Replicas for which the transition is not valid are logged and skipped (RSM-5).
    """
    if not len(row):
        return
    cluster = ctx.cluster
    current = cluster.states_of(row, broker)
    allowed = is_valid_replica_change(current, target)
    text = f"replicas that cannot become {target.name} from where they are"
    ctx.say_of(LoggerName.STATE_CHANGE, Level.ERROR, row[~allowed], text)
    row, broker, current = row[allowed], broker[allowed], current[allowed]
    batch = BrokerRequestBatch(cluster)
    match target:
        case ReplicaState.NEW:
            has_leadership = cluster.has_leadership[row]
            leads = has_leadership & (cluster.leader[row] == broker)
            _say_failed(ctx, row[leads], "a new replica cannot be the leader")
            told = has_leadership & ~leads
            batch.leader_and_isr(row[told], broker[told], is_new=True)
            cluster.set_replica_state(row[~leads], broker[~leads], target)
        case ReplicaState.ONLINE:
            # A replica in state New has got its LeaderAndIsr already (RSM-9).
            told = (current != ReplicaState.NEW) & cluster.has_leadership[row]
            batch.leader_and_isr(row[told], broker[told])
            cluster.set_replica_state(row, broker, target)
        case ReplicaState.OFFLINE:
            yield from _take_offline(ctx, row, broker, batch)
        case ReplicaState.DELETION_STARTED:
            cluster.set_replica_state(row, broker, target)
            batch.stop_replica(row, broker, delete=True)
        case ReplicaState.NON_EXISTENT:
            cluster.forget_replicas(row, broker)
        case ReplicaState.DELETION_SUCCESSFUL | ReplicaState.DELETION_INELIGIBLE:
            cluster.set_replica_state(row, broker, target)
    ctx.say_of(LoggerName.STATE_CHANGE, Level.TRACE, row, f"replicas become {target.name}")
    yield from batch.send()


def start_replica_machine(ctx: Context) -> Procedure[None]:
    """Set the initial state of every replica, then inform the brokers of the online ones (RSM-2,
    3).
    """
    cluster = ctx.cluster
    rows = cluster.all_rows()
    at = as_run(rows)
    is_replica = cluster.replicas[at] != NO_BROKER
    online = cluster.online(rows)
    states = cluster.replica_state[at]
    states[online] = ReplicaState.ONLINE
    states[is_replica & ~online] = ReplicaState.DELETION_INELIGIBLE
    cluster.replica_state[at] = states
    # Replicas that are online stay so, and what is left of that change is to inform their brokers.
    batch = BrokerRequestBatch(cluster)
    batch.leader_and_isr(*cluster.replicas_at(rows, online & cluster.has_leadership[at][:, None]))
    yield from batch.send()
    yield from change_replica_states(
        ctx, *cluster.replicas_at(rows, is_replica & ~online), ReplicaState.OFFLINE
    )


def _say_failed(ctx: Context, rows: I32, why: str) -> None:
    ctx.say_of(LoggerName.STATE_CHANGE, Level.ERROR, rows, f"replicas keep their state, {why}")


def _take_offline(
    ctx: Context, row: I32, broker: I32, batch: BrokerRequestBatch
) -> Procedure[None]:
    """Stop the replicas, remove each from its ISR in ZooKeeper, and inform the remaining ones."""
    try:
        # One write for each replica that leaves, so that the epoch counts them all (RSM-25).
        for leaving in sorted(set(broker.tolist())):
            yield from _take_broker_offline(ctx, row[broker == leaving], leaving, batch)
    except (FencedError, SessionLostError):
        raise
    except Exception as error:
        # Any other error concerns only this call; the event continues (RSM-24).
        ctx.say(
            LoggerName.REPLICA_MACHINE, Level.ERROR, f"taking replicas offline failed: {error!r}"
        )


def _take_broker_offline(
    ctx: Context, rows: I32, broker: int, batch: BrokerRequestBatch
) -> Procedure[None]:
    cluster = ctx.cluster
    brokers = np.full(len(rows), broker, np.int32)
    batch.stop_replica(rows, brokers, delete=False)
    has_leadership = cluster.has_leadership[rows]
    blank = rows[~has_leadership]
    if len(blank):
        batch.update_metadata(blank)
        cluster.set_replica_state(blank, brokers[~has_leadership], ReplicaState.OFFLINE)
    yield from _leave_isr(ctx, rows[has_leadership], broker, batch)


def _leave_isr(ctx: Context, rows: I32, broker: int, batch: BrokerRequestBatch) -> Procedure[None]:
    cluster = ctx.cluster
    known = cluster.leadership(rows)
    # Leaders that write states themselves may be ahead of the cache (PSM-16).
    if not ctx.settings.alter_partition:
        known = yield from _read_again(ctx, rows)
    while len(known):
        is_newer = known.controller_epoch > cluster.controller_epoch
        _say_failed(ctx, known.row[is_newer], "a newer controller having decided (FENCE-8)")
        known = known.at(~is_newer)
        shrunk = shrink_isr(known.leader, known.isr, broker)
        untouched = known.at(~shrunk.was_member)
        # In memory only, these count as decided by this controller (RSM-14).
        _gone_offline(ctx, untouched.decided_in(cluster.controller_epoch), broker, batch)
        before = known.at(shrunk.was_member)
        if not len(before):
            return
        decided = replace(
            before.decided_in(cluster.controller_epoch),
            leader=shrunk.leader[shrunk.was_member],
            leader_epoch=before.leader_epoch + 1,
            isr=shrunk.isr[shrunk.was_member],
        )
        outcomes: WriteOutcomes = yield WriteStates(decided, DecisionReason.REPLICA_OFFLINE)
        shrunken = decided.at(outcomes == WriteOutcome.DONE).accepted()
        _gone_offline(ctx, shrunken, broker, batch)
        text = f"replica {broker} is taken out of the ISR of partitions"
        ctx.say_of(LoggerName.STATE_CHANGE, Level.INFO, shrunken.row, text, with_leaders=True)
        _say_missing(ctx, decided.row[outcomes == WriteOutcome.NO_NODE])
        _say_failed(
            ctx, decided.row[outcomes == WriteOutcome.FAILED], "ZooKeeper refusing the write"
        )
        known = yield from _read_again(ctx, decided.row[outcomes == WriteOutcome.BAD_VERSION])


def _read_again(ctx: Context, rows: I32) -> Procedure[LeaderAndIsrs]:
    """The states of the rows in ZooKeeper."""
    if not len(rows):
        return ctx.cluster.leadership(rows)
    reply: StatesRead = yield ReadStates(rows)
    _say_missing(ctx, rows[~reply.found])
    return reply.states.at(reply.found)


def _say_missing(ctx: Context, rows: I32) -> None:
    """Log missing states as errors, except those of topics that are being deleted (RSM-17)."""
    _say_failed(ctx, rows[~ctx.cluster.is_queued(rows)], "their states not being in ZooKeeper")


def _gone_offline(
    ctx: Context, states: LeaderAndIsrs, broker: int, batch: BrokerRequestBatch
) -> None:
    """Record the states, mark the replica offline, and inform the partition's other replicas."""
    cluster = ctx.cluster
    row = states.row
    cluster.record_leadership(states)
    told = row[~cluster.is_queued(row)]
    others = (cluster.replicas[told] != broker) & (cluster.replicas[told] != NO_BROKER)
    batch.leader_and_isr_to(told, others)
    cluster.set_replica_state(row, np.full(len(row), broker, np.int32), ReplicaState.OFFLINE)
