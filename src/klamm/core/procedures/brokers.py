"""Brokers that come, go, come back as somebody else, or change what they say of themselves."""

from collections.abc import Collection, Iterable
from dataclasses import replace

import numpy as np

from klamm.core.batch import Batch
from klamm.core.cluster import Broker
from klamm.core.columns import I32
from klamm.core.context import Context, Level, Log
from klamm.core.effects import (
    ChangeChannels,
    ForgetBrokerWatch,
    Procedure,
    ReadBroker,
    ReadBrokers,
    WatchBrokers,
)
from klamm.core.procedures.deletion import fail_deletion, resume_deletion_of
from klamm.core.procedures.moves import resume_moves
from klamm.core.procedures.partitions import move_partitions, trigger_elections
from klamm.core.procedures.replicas import move_replicas
from klamm.core.transitions import PartitionState, ReplicaState

_NO_ROWS = np.empty(0, np.int32)


def on_broker_change(ctx: Context) -> Procedure[None]:
    """Compare the registrations with the brokers that are known, and act on the difference."""
    cluster = ctx.cluster
    registered: dict[int, Broker] = yield ReadBrokers()
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
        Log.CONTROLLER,
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


def fit_brokers(ctx: Context, brokers: Iterable[Broker]) -> dict[int, Broker]:
    """Those brokers that support the cluster's features, by id; others are left out (BRK-3)."""
    fit = {}
    for broker in brokers:
        if broker.supports(ctx.cluster.finalized_features):
            fit[broker.id] = broker
        else:
            text = f"broker {broker.id} is ignored: it does not support the finalized features"
            ctx.say(Log.CONTROLLER, Level.WARNING, text)
    return fit


def on_brokers_started(ctx: Context, started: Collection[int]) -> Procedure[None]:
    """Tell brokers that have joined all they need to know, and use them (BRK-7..12)."""
    cluster = ctx.cluster
    for id in started:
        cluster.offline_dirs.pop(id, None)
    yield from send_metadata(ctx, _NO_ROWS, cluster.brokers.keys() - set(started))
    rows = cluster.all_rows()
    known = rows[cluster.has_leadership[rows] & ~cluster.is_queued(rows)]
    yield from send_metadata(ctx, known, started)
    row, broker = cluster.hosted_by(started, rows)
    yield from move_replicas(ctx, row, broker, ReplicaState.ONLINE)
    yield from trigger_elections(ctx)
    yield from resume_moves(ctx, lambda move: not set(started).isdisjoint(move.target))
    yield from resume_deletion_of(ctx, cluster.topic_names_of(row[cluster.is_queued(row)]))
    yield WatchBrokers(sorted(started))


def on_brokers_failed(ctx: Context, failed: Collection[int]) -> Procedure[None]:
    """Let go of brokers that have gone: others take over what they led (BRK-13)."""
    cluster = ctx.cluster
    failed = set(failed)
    for id in failed:
        del cluster.brokers[id]
        cluster.offline_dirs.pop(id, None)
    cluster.shutting_down -= failed
    yield from on_replicas_offline(ctx, *cluster.hosted_by(failed))
    yield ForgetBrokerWatch(sorted(failed))


def on_replicas_offline(ctx: Context, row: I32, broker: I32) -> Procedure[None]:
    """Deal with replicas that were lost, with their brokers or with a log directory (BRK-14..18).

    Leaders are elected before the replicas leave the ISR, so that a partition that has another
    in-sync replica is written once (BRK-19).
    """
    cluster = ctx.cluster
    rows = cluster.all_rows()
    rows = rows[cluster.has_leadership[rows]]
    leaderless = rows[~cluster.leader_is_online(rows)]
    leaderless = leaderless[~cluster.is_queued(leaderless)]
    yield from move_partitions(ctx, leaderless, PartitionState.OFFLINE)
    results = yield from trigger_elections(ctx)
    is_queued = cluster.is_queued(row)
    yield from move_replicas(ctx, row[~is_queued], broker[~is_queued], ReplicaState.OFFLINE)
    yield from fail_deletion(ctx, row[is_queued], broker[is_queued])
    if is_queued.all() and not len(results.elected):
        # Nothing went out so far, and the brokers have to learn who is gone.
        yield from send_metadata(ctx, _NO_ROWS)


def on_broker_modifications(ctx: Context, id: int) -> Procedure[None]:
    """Pass on what a broker has changed about its endpoints or features (BRK-20..22)."""
    cluster = ctx.cluster
    changed: Broker | None = yield ReadBroker(id)
    known = cluster.brokers.get(id)
    if changed is None or known is None:
        return
    if (changed.endpoints, changed.features) != (known.endpoints, known.features):
        ctx.say(Log.CONTROLLER, Level.INFO, f"broker {id} changed its registration")
        # Its epoch stays the known one: a new one is a bounce, which is still to be noticed.
        cluster.brokers[id] = replace(changed, epoch=known.epoch)
        yield from send_metadata(ctx, _NO_ROWS)


def send_metadata(
    ctx: Context, rows: I32, brokers: Collection[int] | None = None
) -> Procedure[None]:
    """Send one UpdateMetadata by itself, to the brokers given or to all."""
    batch = Batch(ctx.cluster)
    batch.update_metadata(rows, brokers)
    yield from batch.send()
