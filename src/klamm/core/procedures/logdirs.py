"""Log directories that brokers have lost: asking for details, and acting on the answers."""

import numpy as np

from klamm.core.codes import Code
from klamm.core.context import Context, Level, Log
from klamm.core.effects import DropLogDirNotifications, Procedure, ReadLogDirNotifications
from klamm.core.events import LeaderAndIsrAnswered
from klamm.core.procedures.brokers import on_replicas_offline
from klamm.core.procedures.replicas import move_replicas
from klamm.core.transitions import ReplicaState
from klamm.errors import FencedError


def on_log_dir_notification(ctx: Context) -> Procedure[None]:
    """Send brokers that lost a directory all their partitions: the answers say which are gone."""
    names, brokers = yield ReadLogDirNotifications()
    if not names:
        return
    drop = DropLogDirNotifications(names)
    try:
        ctx.say(Log.CONTROLLER, Level.WARNING, f"brokers lost log directories: {sorted(brokers)}")
        row, broker = ctx.cluster.hosted_by(brokers)
        yield from move_replicas(ctx, row, broker, ReplicaState.ONLINE)
    except FencedError:
        raise
    except Exception:
        yield drop
        raise
    yield drop


def on_leader_and_isr_answered(ctx: Context, event: LeaderAndIsrAnswered) -> Procedure[None]:
    """Take note of partitions that are on a lost directory, or no longer (LOGDIR-4..9)."""
    cluster = ctx.cluster
    if event.error != Code.NONE:
        text = f"broker {event.broker} answered LeaderAndIsr with error {event.error}"
        ctx.say(Log.STATE_CHANGE, Level.ERROR, text)
        return
    if event.broker not in cluster.brokers:
        return
    before = cluster.offline_dirs.get(event.broker, set())
    reported = {
        cluster.row(*tp) for tp, error in event.errors.items() if error == Code.KAFKA_STORAGE_ERROR
    }
    lost = {row for row in reported if row is not None}
    healed = {
        row
        for row in before - lost
        if (tp := cluster.name(row)) in event.answered and event.errors.get(tp, 0) == Code.NONE
    }
    if before or lost:
        cluster.offline_dirs[event.broker] = (before - healed) | lost
    newly = np.array(sorted(lost - before), np.int32)
    if len(newly):
        ctx.say_of(
            Log.STATE_CHANGE, Level.INFO, newly, f"replicas offline on broker {event.broker}"
        )
        yield from on_replicas_offline(ctx, newly, np.full(len(newly), event.broker, np.int32))
