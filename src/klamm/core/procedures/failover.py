"""The controller failover: read everything, inform the brokers, resume what was unfinished."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from klamm.core.cluster import RegisteredBroker, TopicRead
from klamm.core.columns import NO_BROKER
from klamm.core.context import FIRST_REBALANCE_DELAY_S, Context, Level, LoggerName
from klamm.core.effects import (
    ChangeChannels,
    DropDeletions,
    DropIsrNotifications,
    DropLogDirNotifications,
    Procedure,
    ReadBrokers,
    ReadDeletions,
    ReadPreferredRequest,
    ReadStates,
    ReadStatesAhead,
    ReadTopicNames,
    ReadTopics,
    Schedule,
    SetUpFeatures,
    StatesRead,
    WatchBrokers,
)
from klamm.core.events import AutoRebalance
from klamm.core.procedures.brokers import fit_brokers, send_metadata
from klamm.core.procedures.deletion import drop_reassignments, mark_ineligible, resume_deletions
from klamm.core.procedures.leaders import elect_requested
from klamm.core.procedures.partitions import start_partition_machine
from klamm.core.procedures.reassignment import (
    on_zk_reassignment,
    resume_reassignments,
)
from klamm.core.procedures.replicas import start_replica_machine
from klamm.core.procedures.topics import add_topics, replace_controller_only
from klamm.errors import KlammError
from klamm.names import TopicPartition, counted

#: Topics read at a time. While a portion is put into columns, the next one and the states of the
#: one before are read.
_TOPICS_AT_A_TIME: Final = 500
_NO_ROWS: Final = np.empty(0, np.int32)


def on_controller_failover(ctx: Context) -> Procedure[None]:
    """Load the state of a new controller, into an empty cluster with its controller id and epoch.

    The steps have the order of section 5. Each read sets its watch before it reads.
    """
    cluster = ctx.cluster
    cluster.finalized_features = yield SetUpFeatures()
    yield DropLogDirNotifications(None)
    yield DropIsrNotifications(None)
    yield from _read_brokers(ctx)
    yield from _read_topics(ctx)
    yield WatchBrokers(cluster.live_or_shutting_down)
    yield from _read_states(ctx)
    _say(
        ctx,
        f"found {counted(len(cluster.topics), 'topic')} with "
        f"{counted(len(cluster.all_rows()), 'partition')}",
    )
    yield ChangeChannels(open=[cluster.brokers[id] for id in cluster.live_or_shutting_down])
    yield from _read_deletions(ctx)
    _say(ctx, f"sending metadata to brokers {cluster.live_or_shutting_down}")
    # Brokers need to know each other before they get partitions.
    yield from send_metadata(ctx, _NO_ROWS)
    yield from _place_new_partitions(ctx)
    yield from start_replica_machine(ctx)
    yield from start_partition_machine(ctx)
    _say(ctx, "the state machines have started; resuming unfinished reassignments and deletions")
    handled = yield from on_zk_reassignment(ctx)
    yield from resume_reassignments(ctx, lambda _: True, handled)
    yield from resume_deletions(ctx)
    yield from _elect_preferred(ctx)
    if ctx.settings.auto_rebalance:
        yield Schedule(AutoRebalance(), FIRST_REBALANCE_DELAY_S)
    _say(
        ctx,
        f"controller of {counted(len(cluster.topics), 'topic')} on brokers "
        f"{cluster.live_or_shutting_down}",
    )


def _say(ctx: Context, stage: str) -> None:
    ctx.say(LoggerName.CONTROLLER, Level.INFO, stage)


def _read_brokers(ctx: Context) -> Procedure[None]:
    registered: dict[int, RegisteredBroker] = yield ReadBrokers()
    ctx.cluster.brokers = fit_brokers(ctx, registered.values())


def _read_topics(ctx: Context) -> Procedure[None]:
    """Load every topic, and note which partitions are being reassigned (FAILOVER-6..8)."""
    cluster = ctx.cluster
    names: set[str] = yield ReadTopicNames()
    for some, then in pairwise([*_slices(sorted(names)), ()]):
        reads: dict[str, TopicRead] = yield ReadTopics(some, then)
        rows = yield from add_topics(ctx, reads)
        if len(rows):
            yield ReadStatesAhead(rows)
    left_out = names - cluster.topics.keys()
    if left_out:
        # No controller can decide which of the two topics owns the id.
        raise KlammError(f"topics have the id of another topic: {sorted(left_out)}")
    cluster.being_reassigned.update(cluster.adding.keys() | cluster.removing.keys())


def _slices(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), _TOPICS_AT_A_TIME):
        yield names[start : start + _TOPICS_AT_A_TIME]


def _read_states(ctx: Context) -> Procedure[None]:
    rows = ctx.cluster.all_rows()
    if len(rows):
        reply: StatesRead = yield ReadStates(rows)
        ctx.cluster.record_leadership(reply.states.at(reply.found))


def _read_deletions(ctx: Context) -> Procedure[None]:
    """Queue the topics that are to be deleted; some have to wait (FAILOVER-13, FAILOVER-14)."""
    cluster = ctx.cluster
    requested: set[str] = yield ReadDeletions()
    if not requested:
        return
    if not ctx.settings.delete_topics:
        yield DropDeletions(sorted(requested))
        return
    cluster.queue_for_deletion(requested)
    cluster.hidden_from_brokers.update(requested)
    rows = cluster.rows_of(requested)
    is_down = (cluster.replicas[rows] >= 0) & ~cluster.online(rows)
    mark_ineligible(ctx, cluster.topic_names_of(rows[is_down.any(axis=1)]), "offline replicas")
    moving = rows[np.isin(rows, list(cluster.being_reassigned))]
    is_led = cluster.has_leadership[moving] & (cluster.leader[moving] != NO_BROKER)
    mark_ineligible(ctx, cluster.topic_names_of(moving[is_led]), "reassignment in progress")
    # The deletion of these topics has begun: no leader is elected any more (DEL-7) and no replica
    # can catch up. The reassignment would never end, and would restore deleted replicas if resumed.
    drop_reassignments(cluster, moving[~is_led])


def _place_new_partitions(ctx: Context) -> Procedure[None]:
    """Give partitions that were created while there was no controller brokers that hold data."""
    cluster = ctx.cluster
    rows = cluster.all_rows()
    rows = rows[~cluster.has_leadership[rows]]
    yield from replace_controller_only(ctx, rows[~cluster.is_queued(rows)])


def _elect_preferred(ctx: Context) -> Procedure[None]:
    """Run the preferred elections that are requested in ZooKeeper (FAILOVER-20)."""
    requested: set[TopicPartition] | None = yield ReadPreferredRequest()
    if requested is not None:
        yield from elect_requested(ctx, requested)
