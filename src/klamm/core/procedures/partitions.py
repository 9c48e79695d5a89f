"""The partition state machine: moving partitions, creating their state, electing their leaders.

Decisions are taken from the cache. Each write is conditional on the version that the cache knows,
and a row whose znode has moved on is read and decided again, as often as it takes (PSM-16, PSM-20).
"""

from dataclasses import dataclass
from enum import Enum, IntEnum, auto

import numpy as np

from klamm.core.batch import Batch
from klamm.core.cluster import States
from klamm.core.columns import I8, I32, NO_BROKER, Mask, any_slot, contains
from klamm.core.context import Context, Level, Log
from klamm.core.effects import (
    CreateStates,
    Outcome,
    Outcomes,
    Procedure,
    ReadStates,
    ReadUncleanOverrides,
    StatesRead,
    UnreadableConfig,
    WriteStates,
)
from klamm.core.elections import (
    RECOVERED,
    UNCLEAN,
    Elections,
    elect_controlled_shutdown,
    elect_offline,
    elect_preferred,
    elect_reassign,
    initialise,
)
from klamm.core.transitions import PartitionState, partition_move_allowed


class Strategy(Enum):
    """How a leader is chosen (section 8)."""

    OFFLINE = auto()
    #: OFFLINE, with unclean election forced by an administrator.
    UNCLEAN = auto()
    REASSIGN = auto()
    PREFERRED = auto()
    CONTROLLED_SHUTDOWN = auto()


class Failure(IntEnum):
    """Why a partition did not get a leader."""

    NONE = 0
    #: No replica qualifies, or there is no state to decide from.
    STATE_CHANGE_FAILED = 1
    #: ZooKeeper or the topic's configuration could not be used.
    STORE = 2


@dataclass(frozen=True, slots=True, eq=False)
class ElectionResults:
    """What an election came to, for each row that took part in one (PSM-9)."""

    row: I32
    failure: I8

    @property
    def elected(self) -> I32:
        """Rows that have a new leader."""
        elected: I32 = self.row[self.failure == Failure.NONE]
        return elected


NOBODY_ELECTED = ElectionResults(np.empty(0, np.int32), np.empty(0, np.int8))


def move_partitions(
    ctx: Context, rows: I32, target: PartitionState, strategy: Strategy | None = None
) -> Procedure[ElectionResults]:
    """Move partitions to a state, tell the brokers once, and say how the elections went.

    Rows that may not make the move are named in the log and left alone (PSM-6).
    """
    cluster = ctx.cluster
    if not len(rows):
        return NOBODY_ELECTED
    allowed = partition_move_allowed(cluster.state[rows], target)
    _name_illegal(ctx, rows[~allowed], target)
    rows = rows[allowed]
    if target != PartitionState.ONLINE:
        cluster.state[rows] = target
        return NOBODY_ELECTED
    batch = Batch(cluster)
    is_new = cluster.state[rows] == PartitionState.NEW
    yield from _initialise(ctx, rows[is_new], batch)
    results = NOBODY_ELECTED
    if not is_new.all():
        if strategy is None:
            raise ValueError("an election needs a strategy")
        results = yield from _elect(ctx, rows[~is_new], strategy, batch)
    yield from batch.send()
    return results


def trigger_elections(ctx: Context, rows: I32 | None = None) -> Procedure[ElectionResults]:
    """Bring partitions in New and Offline online if that is possible (PSM-3, PSM-4).

    All of the cluster's, unless rows are given; topics queued for deletion are left in peace.
    """
    cluster = ctx.cluster
    rows = cluster.all_rows() if rows is None else rows
    state = cluster.state[rows]
    waiting = rows[(state == PartitionState.NEW) | (state == PartitionState.OFFLINE)]
    waiting = waiting[~cluster.is_queued(waiting)]
    results = yield from move_partitions(ctx, waiting, PartitionState.ONLINE, Strategy.OFFLINE)
    return results


def _name_illegal(ctx: Context, rows: I32, target: PartitionState) -> None:
    for row in rows.tolist():
        topic, partition = ctx.cluster.name(row)
        state = PartitionState(ctx.cluster.state[row]).name
        text = f"partition {topic}-{partition} cannot go from {state} to {target.name}"
        ctx.say(Log.STATE_CHANGE, Level.ERROR, text)


def _say_failed(ctx: Context, rows: I32, why: str) -> None:
    for row in rows.tolist():
        topic, partition = ctx.cluster.name(row)
        state = PartitionState(ctx.cluster.state[row]).name
        text = f"partition {topic}-{partition} stays {state}: {why}"
        ctx.say(Log.STATE_CHANGE, Level.ERROR, text)


# New to Online


def _initialise(ctx: Context, rows: I32, batch: Batch) -> Procedure[None]:
    """Give partitions their first leader: the first live replica, all live ones in sync."""
    if not len(rows):
        return
    cluster = ctx.cluster
    online = cluster.online(rows)
    first = initialise(cluster.replicas[rows], online)
    won = first.won
    _say_failed(ctx, rows[~won], "none of its replicas is live")
    rows = rows[won]
    if not len(rows):
        return
    states = States(
        row=rows,
        leader=first.leader[won],
        leader_epoch=np.zeros(len(rows), np.int32),
        isr=first.isr[won],
        recovery=np.full(len(rows), RECOVERED, np.int8),
        controller_epoch=np.full(len(rows), cluster.controller_epoch, np.int32),
        version=np.zeros(len(rows), np.int32),
    )
    outcomes: Outcomes = yield CreateStates(states)
    created = outcomes == Outcome.DONE
    _say_failed(ctx, rows[~created], "its state could not be created in ZooKeeper")
    states = states.at(created)
    cluster.record_leadership(states)
    cluster.state[states.row] = PartitionState.ONLINE
    at, slot = np.nonzero(states.isr != NO_BROKER)
    batch.leader_and_isr(states.row[at], states.isr[at, slot], is_new=True)


# Elections


def _elect(ctx: Context, rows: I32, strategy: Strategy, batch: Batch) -> Procedure[ElectionResults]:
    """Choose leaders and write them; what the cache had wrong is read and chosen again."""
    cluster = ctx.cluster
    failure = np.full(len(rows), Failure.STATE_CHANGE_FAILED, np.int8)
    is_cached = cluster.has_leadership[rows]
    # Positions in `rows` whose state is at hand, and those that have to be read first.
    ready = np.flatnonzero(is_cached)
    unread = np.flatnonzero(~is_cached)
    known = cluster.leadership(rows[ready])
    from_cache = True
    while len(ready) or len(unread):
        again = unread
        if len(ready):
            chosen, unreadable = yield from _choose(ctx, known, strategy)
            failure[ready[unreadable]] = Failure.STORE
            newer = known.controller_epoch > cluster.controller_epoch
            won = chosen.won & ~unreadable & ~newer
            if from_cache:
                # The cache may be behind ZooKeeper: nobody stays leaderless on its word alone.
                again = np.concatenate([again, ready[~won & ~unreadable]])
            decided = _decision(ctx, known.at(won), chosen, won)
            outcomes: Outcomes = yield WriteStates(decided, f"{strategy.name.lower()} election")
            done = outcomes == Outcome.DONE
            position = ready[won]
            failure[position[done]] = Failure.NONE
            failure[position[(outcomes == Outcome.NO_NODE)]] = Failure.STATE_CHANGE_FAILED
            failure[position[outcomes == Outcome.FAILED]] = Failure.STORE
            again = np.concatenate([again, position[outcomes == Outcome.BAD_VERSION]])
            ctx.unclean_elections += int(np.count_nonzero(chosen.outcome[won][done] == UNCLEAN))
            _settle(ctx, decided.at(done), chosen.recipients[won][done], batch)
        ready, unread = np.empty(0, np.int64), np.empty(0, np.int64)
        if len(again):
            reply: StatesRead = yield ReadStates(rows[again])
            ready, known = again[reply.found], reply.states.at(reply.found)
        from_cache = False
    _say_failed(ctx, rows[failure == Failure.STATE_CHANGE_FAILED], "no replica can lead it")
    _say_failed(ctx, rows[failure == Failure.STORE], "ZooKeeper or its configuration failed")
    return ElectionResults(rows, failure)


def _choose(ctx: Context, known: States, strategy: Strategy) -> Procedure[tuple[Elections, Mask]]:
    """Apply the strategy to states; the mask marks rows whose configuration cannot be read."""
    cluster = ctx.cluster
    row = known.row
    replicas = cluster.replicas[row]
    online = cluster.online(row)
    unreadable = np.zeros(len(row), np.bool_)
    mark = ctx.settings.recovery_state
    match strategy:
        case Strategy.OFFLINE:
            unclean = np.zeros(len(row), np.bool_)
            lost = ~any_slot(online & contains(known.isr, replicas))
            if lost.any():
                unclean[lost], unreadable[lost] = yield from _unclean_allowed(ctx, row[lost])
            chosen = elect_offline(
                replicas, known.isr, online, unclean, known.recovery, marks_recovering=mark
            )
        case Strategy.UNCLEAN:
            forced = np.ones(len(row), np.bool_)
            chosen = elect_offline(
                replicas, known.isr, online, forced, known.recovery, marks_recovering=mark
            )
        case Strategy.REASSIGN:
            # By now the assignment in memory is the target (REASG-B2).
            chosen = elect_reassign(replicas, known.isr, online, known.recovery)
        case Strategy.PREFERRED:
            chosen = elect_preferred(replicas, known.isr, online, known.recovery)
        case Strategy.CONTROLLED_SHUTDOWN:
            chosen = elect_controlled_shutdown(
                replicas,
                known.isr,
                cluster.online(row, count_shutting_down=True),
                sorted(cluster.shutting_down),
                known.recovery,
            )
    return chosen, unreadable


def _unclean_allowed(ctx: Context, rows: I32) -> Procedure[tuple[Mask, Mask]]:
    """Whether the topic, or else the broker's default, allows an unclean election (LEAD-4, 5)."""
    cluster = ctx.cluster
    index, inverse = np.unique(cluster.topic_of[rows], return_inverse=True)
    names = [cluster.topic_at(i).name for i in index.tolist()]
    overrides = yield ReadUncleanOverrides(names)
    values = [overrides[name] for name in names]
    unreadable = np.array([v is UnreadableConfig for v in values], np.bool_)
    allowed = np.array(
        [ctx.settings.unclean_default if v is None else v is True for v in values], np.bool_
    )
    return allowed[inverse], unreadable[inverse]


def _decision(ctx: Context, known: States, chosen: Elections, won: Mask) -> States:
    """The states to write for the rows that have a winner: the leader epoch rises by one."""
    return States(
        row=known.row,
        leader=chosen.leader[won],
        leader_epoch=known.leader_epoch + 1,
        isr=chosen.isr[won],
        recovery=chosen.recovery[won],
        controller_epoch=np.full(len(known), ctx.cluster.controller_epoch, np.int32),
        version=known.version,
    )


def accepted(states: States) -> States:
    """States as ZooKeeper has them after it accepted the write: one version further."""
    return States(
        states.row,
        states.leader,
        states.leader_epoch,
        states.isr,
        states.recovery,
        states.controller_epoch,
        states.version + 1,
    )


def _settle(ctx: Context, decided: States, recipients: Mask, batch: Batch) -> None:
    """Cache what was accepted, and tell those whom the strategy names."""
    cluster = ctx.cluster
    row = decided.row
    cluster.record_leadership(accepted(decided))
    cluster.state[row] = PartitionState.ONLINE
    at, slot = np.nonzero(recipients)
    batch.leader_and_isr(row[at], cluster.replicas[row[at], slot])
    batch.update_metadata(row)
