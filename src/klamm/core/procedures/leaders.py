"""Elections on request, and the automatic rebalance of leaders."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from klamm.core.columns import I32, Mask, is_one_of
from klamm.core.context import Context, Level, LoggerName
from klamm.core.effects import (
    DropPreferredRequest,
    Enqueue,
    Procedure,
    ReadPreferredRequest,
    Respond,
    Schedule,
)
from klamm.core.elections import needs_preferred_election
from klamm.core.events import (
    AutoRebalance,
    ControllerError,
    ElectLeaders,
    RequestedElection,
    ZkPreferredElection,
)
from klamm.core.procedures.partitions import (
    Failure,
    Strategy,
    change_partition_states,
    trigger_elections,
)
from klamm.core.transitions import PartitionState
from klamm.errors import FencedError
from klamm.names import TopicPartition

#: The result of a request about one partition: Kafka's code, a message if it has its own, and
#: the new leader or -1.
Result = tuple[int, str | None, int]

_STRATEGY: Final = {
    RequestedElection.PREFERRED: Strategy.PREFERRED,
    RequestedElection.UNCLEAN: Strategy.UNCLEAN,
}
_NOT_ELECTED: Final = {
    RequestedElection.PREFERRED: ControllerError.PREFERRED_LEADER_NOT_AVAILABLE,
    RequestedElection.UNCLEAN: ControllerError.ELIGIBLE_LEADERS_NOT_AVAILABLE,
}

#: As the reference spells them in its messages.
_STRATEGY_NAME: Final = {
    RequestedElection.PREFERRED: "PreferredReplicaPartitionLeaderElectionStrategy",
    RequestedElection.UNCLEAN: "OfflinePartitionLeaderElectionStrategy(true)",
}


def on_elect_leaders(ctx: Context, event: ElectLeaders) -> Procedure[None]:
    """Elect leaders on request; the response has a result for each partition (PREF-1..12)."""
    if event.partitions is not None:
        results = yield from _elect_named(ctx, event.partitions, event.kind)
        yield Respond(results)
        return
    cluster = ctx.cluster
    rows = cluster.all_rows()
    rows = rows[cluster.has_leadership[rows] & ~cluster.is_queued(rows)]
    needy = rows[_needs_election(ctx, rows, event.kind)]
    results = yield from _elect(ctx, needy, event.kind)
    yield Respond(results)


def on_zk_preferred_election(ctx: Context) -> Procedure[None]:
    """Run the elections of `/admin/preferred_replica_election` and delete it in any case."""
    requested: set[TopicPartition] | None = yield ReadPreferredRequest()
    if requested is not None:
        yield from elect_requested(ctx, requested)


def elect_requested(ctx: Context, requested: Iterable[TopicPartition]) -> Procedure[None]:
    """Run the preferred elections that a znode requests, and delete the znode (PREF-9)."""
    results = yield from _elect_named(ctx, sorted(requested), RequestedElection.PREFERRED)
    for (topic, partition), (code, _, _) in results.items():
        if code not in (ControllerError.NONE, ControllerError.ELECTION_NOT_NEEDED):
            text = f"preferred election of {topic}-{partition} fails: {ControllerError(code).name}"
            ctx.say(LoggerName.CONTROLLER, Level.WARNING, text)
    yield DropPreferredRequest()
    # The next request is looked for here, not by the watch on what was just deleted (ZK-27).
    yield Enqueue(ZkPreferredElection())


def on_auto_rebalance(ctx: Context) -> Procedure[None]:
    """Hand leadership back to preferred replicas where too much of it strayed (REBAL-1..8)."""
    again = Schedule(AutoRebalance(), ctx.settings.imbalance_check_interval_s)
    try:
        yield from _rebalance(ctx)
    except FencedError:
        raise
    except Exception:
        yield again
        raise
    yield again


def _rebalance(ctx: Context) -> Procedure[None]:
    cluster = ctx.cluster
    rows = cluster.all_rows()
    rows = rows[~cluster.is_queued(rows)]
    strayed = rows[
        needs_preferred_election(
            cluster.replicas[rows],
            cluster.leader[rows],
            cluster.isr[rows],
            cluster.has_leadership[rows],
            cluster.online(rows)[:, 0],
            ctx.settings.imbalance_percentage,
        )
    ]
    yield from change_partition_states(ctx, strayed, PartitionState.ONLINE, Strategy.PREFERRED)


def on_unclean_election_enabled(ctx: Context, topic: str | None = None) -> Procedure[None]:
    """Leaderless partitions, of all topics or of one, may have a leader now (LEAD-16, LEAD-17)."""
    rows = None if topic is None else ctx.cluster.rows_of([topic])
    yield from trigger_elections(ctx, rows)


def _elect_named(
    ctx: Context, partitions: Iterable[TopicPartition], kind: RequestedElection
) -> Procedure[dict[TopicPartition, Result]]:
    """Elect leaders for the partitions that need it; returns a result for each partition."""
    cluster = ctx.cluster
    results: dict[TopicPartition, Result] = {}
    found: list[int] = []
    for tp in partitions:
        row = cluster.row(*tp)
        if row is None:
            text = "The partition does not exist."
            results[tp] = (ControllerError.UNKNOWN_TOPIC_OR_PARTITION, text, -1)
        elif tp[0] in cluster.queued_for_deletion:
            results[tp] = (
                ControllerError.INVALID_TOPIC_EXCEPTION,
                "The topic is being deleted",
                -1,
            )
        elif not cluster.has_leadership[row]:
            # Kafka would not respond at all (PREF-12).
            results[tp] = (_NOT_ELECTED[kind], "The partition has never had a leader.", -1)
        else:
            found.append(row)
    rows = np.array(sorted(set(found)), np.int32)
    is_needy = _needs_election(ctx, rows, kind)
    for row in rows[~is_needy].tolist():
        results[cluster.name(row)] = (ControllerError.ELECTION_NOT_NEEDED, None, -1)
    results |= yield from _elect(ctx, rows[is_needy], kind)
    return results


def _needs_election(ctx: Context, rows: I32, kind: RequestedElection) -> Mask:
    """Which partitions have a reason to be elected (PREF-5); all have leadership."""
    cluster = ctx.cluster
    if kind == RequestedElection.PREFERRED:
        strays: Mask = cluster.leader[rows] != cluster.replicas[rows, 0]
        return strays
    return ~is_one_of(cluster.leader[rows], list(cluster.live))


def _elect(
    ctx: Context, rows: I32, kind: RequestedElection
) -> Procedure[dict[TopicPartition, Result]]:
    cluster = ctx.cluster
    elected = yield from change_partition_states(ctx, rows, PartitionState.ONLINE, _STRATEGY[kind])
    results: dict[TopicPartition, Result] = {}
    for row, failure in zip(elected.row.tolist(), elected.failure.tolist(), strict=True):
        topic, partition = tp = cluster.name(row)
        if failure == Failure.NONE:
            results[tp] = (ControllerError.NONE, None, int(cluster.leader[row]))
        elif failure == Failure.STATE_CHANGE_FAILED:
            text = (
                f"Failed to elect leader for partition {topic}-{partition} "
                f"under strategy {_STRATEGY_NAME[kind]}"
            )
            results[tp] = (_NOT_ELECTED[kind], text, -1)
        else:
            results[tp] = (ControllerError.UNKNOWN_SERVER_ERROR, None, -1)
    return results
