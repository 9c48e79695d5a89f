"""Brokers that register, fail, restart or change: their replicas, endpoints and log directories.

Controlled shutdown and failed log directories are here too: both take replicas away from a broker
that is still alive.
"""

from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from klamm.core.batch import BrokerRequestBatch
from klamm.core.cluster import RegisteredBroker
from klamm.core.columns import I32, count
from klamm.core.context import Context, Level, LoggerName
from klamm.core.effects import (
    ChangeChannels,
    DropLogDirNotifications,
    Procedure,
    ReadBroker,
    ReadBrokers,
    ReadLogDirNotifications,
    Respond,
    WatchBrokers,
)
from klamm.core.events import ControlledShutdown, ControllerError, LeaderAndIsrResponseReceived
from klamm.core.procedures.deletion import fail_deletion, resume_deletion_of
from klamm.core.procedures.partitions import Strategy, change_partition_states, trigger_elections
from klamm.core.procedures.reassignment import complete_reassignments, resume_reassignments
from klamm.core.procedures.replicas import change_replica_states
from klamm.core.transitions import PartitionState, ReplicaState
from klamm.errors import FencedError
from klamm.names import TopicPartition

_NO_ROWS = np.empty(0, np.int32)


def on_broker_change(ctx: Context) -> Procedure[None]:
    """Compare the registrations with the brokers that are known, and act on the difference."""
    cluster = ctx.cluster
    registered: dict[int, RegisteredBroker] = yield ReadBrokers()
    dead = cluster.brokers.keys() - registered.keys()
    fit = fit_brokers(ctx, registered.values())
    new = {id: broker for id, broker in fit.items() if id not in cluster.brokers}
    bounced = {
        id: broker
        for id, broker in registered.items()
        if id in cluster.brokers and broker.epoch > cluster.brokers[id].epoch
    }
    back = {id: broker for id, broker in bounced.items() if id in fit}
    if not (new or bounced or dead):
        return
    ctx.say(
        LoggerName.CONTROLLER,
        Level.INFO,
        f"brokers: new {sorted(new)}, gone {sorted(dead)}, bounced {sorted(bounced)}, "
        f"all {sorted(registered)}",
    )
    yield ChangeChannels(open=[*new.values(), *back.values()], close=sorted(bounced.keys() | dead))
    if new:
        cluster.brokers.update(new)
        yield from on_brokers_started(ctx, new.keys())
    if bounced:
        yield from on_brokers_failed(ctx, bounced.keys())
    if back:
        cluster.brokers.update(back)
        yield from on_brokers_started(ctx, back.keys())
    if dead:
        yield from on_brokers_failed(ctx, dead)


def fit_brokers(ctx: Context, brokers: Iterable[RegisteredBroker]) -> dict[int, RegisteredBroker]:
    """Those brokers that support the cluster's features, by id; others are left out (BRK-3)."""
    fit = {}
    for broker in brokers:
        if broker.supports(ctx.cluster.finalized_features):
            fit[broker.id] = broker
        else:
            text = f"broker {broker.id} is ignored: it does not support the finalized features"
            ctx.say(LoggerName.CONTROLLER, Level.WARNING, text)
    return fit


def on_brokers_started(ctx: Context, started: Collection[int]) -> Procedure[None]:
    """Send joined brokers the metadata and their replicas, then elect and resume (BRK-7..12)."""
    cluster = ctx.cluster
    for id in started:
        cluster.offline_dirs.pop(id, None)
    yield from send_metadata(ctx, _NO_ROWS, cluster.brokers.keys() - set(started))
    rows = cluster.all_rows()
    known = rows[cluster.has_leadership[rows] & ~cluster.is_queued(rows)]
    yield from send_metadata(ctx, known, started)
    row, broker = cluster.hosted_by(started, rows)
    yield from change_replica_states(ctx, row, broker, ReplicaState.ONLINE)
    unled = _reassigned_before_their_first_leader(ctx)
    yield from trigger_elections(ctx)
    yield from resume_reassignments(
        ctx, lambda assignment: not set(started).isdisjoint(assignment.target)
    )
    yield from complete_reassignments(ctx, unled)
    yield from resume_deletion_of(ctx, cluster.topic_names_of(row[cluster.is_queued(row)]))
    yield WatchBrokers(sorted(started))


def on_brokers_failed(ctx: Context, failed: Collection[int]) -> Procedure[None]:
    """Elect new leaders for what the failed brokers led, then take their replicas offline
    (BRK-13).
    """
    cluster = ctx.cluster
    failed = set(failed)
    for id in failed:
        del cluster.brokers[id]
        cluster.offline_dirs.pop(id, None)
    cluster.shutting_down -= failed
    yield from on_replicas_offline(ctx, *cluster.hosted_by(failed))


def on_replicas_offline(ctx: Context, row: I32, broker: I32) -> Procedure[None]:
    """Handle replicas that went offline with their broker or their log directory (BRK-14..18).

    Leaders are elected before the replicas leave the ISR, so that a partition that has another
    in-sync replica is written once (BRK-19).
    """
    cluster = ctx.cluster
    rows = cluster.all_rows()
    rows = rows[cluster.has_leadership[rows]]
    leaderless = rows[~cluster.leader_is_online(rows)]
    leaderless = leaderless[~cluster.is_queued(leaderless)]
    yield from change_partition_states(ctx, leaderless, PartitionState.OFFLINE)
    unled = _reassigned_before_their_first_leader(ctx)
    results = yield from trigger_elections(ctx)
    is_queued = cluster.is_queued(row)
    yield from change_replica_states(ctx, row[~is_queued], broker[~is_queued], ReplicaState.OFFLINE)
    if is_queued.any():
        yield from fail_deletion(ctx, row[is_queued], broker[is_queued])
    if is_queued.all() and not len(results.elected):
        # No request was sent so far, and the brokers have to learn which brokers failed.
        yield from send_metadata(ctx, _NO_ROWS)
    yield from complete_reassignments(ctx, unled)


def _reassigned_before_their_first_leader(ctx: Context) -> list[int]:
    """Partitions whose reassignment may be complete as soon as they have a leader (REASG-A5).

    All live replicas are in the first ISR, so no change of the ISR may follow that completes it.
    """
    cluster = ctx.cluster
    rows = np.array(list(cluster.being_reassigned), np.int32)
    unled: list[int] = rows[~cluster.has_leadership[rows]].tolist()
    return unled


def on_broker_modifications(ctx: Context, id: int) -> Procedure[None]:
    """Send all brokers the endpoints that a broker has changed (BRK-20..22)."""
    cluster = ctx.cluster
    changed: RegisteredBroker | None = yield ReadBroker(id)
    known = cluster.brokers.get(id)
    if changed is None or known is None:
        return
    if (changed.endpoints, changed.features) != (known.endpoints, known.features):
        ctx.say(LoggerName.CONTROLLER, Level.INFO, f"broker {id} changed its registration")
        # Its epoch stays the known one: a new one is a bounce, which is still to be noticed.
        cluster.brokers[id] = replace(changed, epoch=known.epoch)
        yield from send_metadata(ctx, _NO_ROWS)


def send_metadata(
    ctx: Context, rows: I32, brokers: Collection[int] | None = None
) -> Procedure[None]:
    """Send an UpdateMetadata alone, to the given brokers or to all."""
    batch = BrokerRequestBatch(ctx.cluster)
    batch.update_metadata(rows, brokers)
    yield from batch.send()


def on_log_dir_notification(ctx: Context) -> Procedure[None]:
    """Send brokers that lost a log directory all their partitions; the responses name the lost
    ones.
    """
    names, brokers = yield ReadLogDirNotifications()
    if not names:
        return
    drop = DropLogDirNotifications(names)
    try:
        ctx.say(
            LoggerName.CONTROLLER, Level.WARNING, f"brokers lost log directories: {sorted(brokers)}"
        )
        row, broker = ctx.cluster.hosted_by(brokers)
        yield from change_replica_states(ctx, row, broker, ReplicaState.ONLINE)
    except FencedError:
        raise
    except Exception:
        yield drop
        raise
    yield drop


def on_leader_and_isr_response(
    ctx: Context, event: LeaderAndIsrResponseReceived
) -> Procedure[None]:
    """Record which partitions are on a failed log directory, or are not any more (LOGDIR-4..9)."""
    cluster = ctx.cluster
    if event.error != ControllerError.NONE:
        text = f"broker {event.broker} responded to LeaderAndIsr with error {event.error}"
        ctx.say(LoggerName.STATE_CHANGE, Level.ERROR, text)
        return
    if event.broker not in cluster.brokers:
        return
    before = cluster.offline_dirs.get(event.broker, set())
    reported = {
        cluster.row(*tp)
        for tp, error in event.errors.items()
        if error == ControllerError.KAFKA_STORAGE_ERROR
    }
    lost = {row for row in reported if row is not None}
    healed = {
        row
        for row in before - lost
        if (tp := cluster.name(row)) in event.answered
        and event.errors.get(tp, 0) == ControllerError.NONE
    }
    if before or lost:
        cluster.offline_dirs[event.broker] = (before - healed) | lost
    newly = np.array(sorted(lost - before), np.int32)
    if len(newly):
        ctx.say_of(
            LoggerName.STATE_CHANGE, Level.INFO, newly, f"replicas offline on broker {event.broker}"
        )
        yield from on_replicas_offline(ctx, newly, np.full(len(newly), event.broker, np.int32))


#: The epoch of brokers too old to know theirs.
_ANY_EPOCH = -1


def on_controlled_shutdown(ctx: Context, event: ControlledShutdown) -> Procedure[None]:
    """Move leadership off the broker; the response names the partitions that it still leads."""
    refusal = _refusal(ctx, event)
    if refusal is None:
        remaining = yield from _empty(ctx, event.broker)
        yield Respond((ControllerError.NONE, remaining))
    else:
        yield Respond((refusal, []))


def _refusal(ctx: Context, event: ControlledShutdown) -> ControllerError | None:
    known = ctx.cluster.brokers.get(event.broker)
    if event.broker_epoch == _ANY_EPOCH:
        return ControllerError.BROKER_NOT_AVAILABLE if known is None else None
    if known is None:
        return ControllerError.UNKNOWN_SERVER_ERROR
    return ControllerError.STALE_BROKER_EPOCH if event.broker_epoch < known.epoch else None


def _empty(ctx: Context, broker: int) -> Procedure[list[TopicPartition]]:
    """Take the broker out of leadership and ISRs; returns the partitions that it still leads."""
    cluster = ctx.cluster
    cluster.shutting_down.add(broker)
    ctx.say(LoggerName.CONTROLLER, Level.INFO, f"shutting down {sorted(cluster.shutting_down)}")
    rows, _ = cluster.hosted_by([broker])
    # A partition without another replica cannot get another leader; it is not reported either.
    rows = rows[count(cluster.replicas[rows]) > 1]
    rows = rows[cluster.has_leadership[rows] & ~cluster.is_queued(rows)]
    leads = cluster.leader[rows] == broker
    yield from change_partition_states(
        ctx, rows[leads], PartitionState.ONLINE, Strategy.CONTROLLED_SHUTDOWN
    )
    followed = rows[~leads]
    brokers = np.full(len(followed), broker, np.int32)
    # It stops fetching first, so that leaders do not add it to the ISR again.
    batch = BrokerRequestBatch(cluster)
    batch.stop_replica(followed, brokers, delete=False)
    yield from batch.send()
    yield from change_replica_states(ctx, followed, brokers, ReplicaState.OFFLINE)
    still_led = rows[cluster.leader[rows] == broker]
    ctx.say_of(
        LoggerName.CONTROLLER, Level.WARNING, still_led, f"broker {broker} still leads partitions"
    )
    return [cluster.name(row) for row in still_led.tolist()]
