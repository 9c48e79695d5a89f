"""Controlled shutdown: what a broker leads is handed over before it stops."""

import numpy as np

from klamm.core.batch import Batch
from klamm.core.cluster import TopicPartition
from klamm.core.codes import Code
from klamm.core.columns import count
from klamm.core.context import Context, Level, Log
from klamm.core.effects import Answer, Procedure
from klamm.core.events import ControlledShutdown
from klamm.core.procedures.partitions import Strategy, move_partitions
from klamm.core.procedures.replicas import move_replicas
from klamm.core.transitions import PartitionState, ReplicaState

#: The epoch of brokers too old to know theirs.
_ANY_EPOCH = -1


def on_controlled_shutdown(ctx: Context, event: ControlledShutdown) -> Procedure[None]:
    """Move leadership off the broker and answer with what it still leads."""
    refusal = _refusal(ctx, event)
    if refusal is None:
        remaining = yield from _empty(ctx, event.broker)
        yield Answer(event, (Code.NONE, remaining))
    else:
        yield Answer(event, (refusal, []))


def _refusal(ctx: Context, event: ControlledShutdown) -> Code | None:
    known = ctx.cluster.brokers.get(event.broker)
    if event.broker_epoch == _ANY_EPOCH:
        return Code.BROKER_NOT_AVAILABLE if known is None else None
    if known is None:
        return Code.UNKNOWN_SERVER_ERROR
    return Code.STALE_BROKER_EPOCH if event.broker_epoch < known.epoch else None


def _empty(ctx: Context, broker: int) -> Procedure[list[TopicPartition]]:
    """Take the broker out of the lead and out of the ISRs; returns what could not be moved."""
    cluster = ctx.cluster
    cluster.shutting_down.add(broker)
    ctx.say(Log.CONTROLLER, Level.INFO, f"shutting down {sorted(cluster.shutting_down)}")
    rows, _ = cluster.hosted_by([broker])
    # A partition without another replica has nowhere to go; it is neither moved nor reported.
    rows = rows[count(cluster.replicas[rows]) > 1]
    rows = rows[cluster.has_leadership[rows] & ~cluster.is_queued(rows)]
    leads = cluster.leader[rows] == broker
    yield from move_partitions(
        ctx, rows[leads], PartitionState.ONLINE, Strategy.CONTROLLED_SHUTDOWN
    )
    followed = rows[~leads]
    brokers = np.full(len(followed), broker, np.int32)
    # It stops fetching first, so that leaders do not take it back.
    batch = Batch(cluster)
    batch.stop_replica(followed, brokers, delete=False)
    yield from batch.send()
    yield from move_replicas(ctx, followed, brokers, ReplicaState.OFFLINE)
    still_led = rows[cluster.leader[rows] == broker]
    ctx.say_of(Log.CONTROLLER, Level.WARNING, still_led, f"broker {broker} still leads partitions")
    return [cluster.name(row) for row in still_led.tolist()]
