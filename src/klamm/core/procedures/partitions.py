"""The partition state machine: changes states, creates `state` znodes and elects leaders.

Decisions are made from the cached state. Each write is conditional on the cached version; a row
whose znode has another version is read and decided again, until the write succeeds (PSM-16,
PSM-20).
"""

from dataclasses import dataclass, replace
from enum import Enum, IntEnum

import numpy as np

from klamm.core.batch import BrokerRequestBatch
from klamm.core.cluster import LeaderAndIsrs
from klamm.core.columns import I8, I32, NO_BROKER, Mask, any_slot, as_run, contains
from klamm.core.context import Context, Level, LoggerName
from klamm.core.effects import (
    CreateStates,
    DecisionReason,
    Procedure,
    ReadStates,
    ReadUncleanOverrides,
    StatesRead,
    UnreadableConfig,
    WriteOutcome,
    WriteOutcomes,
    WriteStates,
)
from klamm.core.elections import (
    UNCLEAN,
    Elections,
    elect_controlled_shutdown,
    elect_offline,
    elect_preferred,
    elect_reassign,
    initialise,
)
from klamm.core.transitions import PartitionState, is_valid_partition_change
from klamm.errors import FencedError, SessionLostError


class Strategy(Enum):
    """How a leader is chosen (section 8); the value is the reason that is recorded for it."""

    OFFLINE = DecisionReason.OFFLINE_ELECTION
    #: OFFLINE, with unclean election forced by an administrator.
    UNCLEAN = DecisionReason.UNCLEAN_ELECTION
    REASSIGN = DecisionReason.REASSIGN_ELECTION
    PREFERRED = DecisionReason.PREFERRED_ELECTION
    CONTROLLED_SHUTDOWN = DecisionReason.CONTROLLED_SHUTDOWN_ELECTION


class Failure(IntEnum):
    """Why a partition did not get a leader."""

    NONE = 0
    #: No replica qualifies, or there is no state to decide from.
    STATE_CHANGE_FAILED = 1
    #: ZooKeeper or the topic's configuration could not be used.
    STORE = 2


@dataclass(frozen=True, slots=True, eq=False)
class ElectionResults:
    """The result of an election, for each row that took part (PSM-9)."""

    row: I32
    failure: I8

    @property
    def elected(self) -> I32:
        """Rows that have a new leader."""
        elected: I32 = self.row[self.failure == Failure.NONE]
        return elected


NOBODY_ELECTED = ElectionResults(np.empty(0, np.int32), np.empty(0, np.int8))


def change_partition_states(
    ctx: Context, rows: I32, target: PartitionState, strategy: Strategy | None = None
) -> Procedure[ElectionResults]:
    """Change the state of partitions, send one batch, and return the results of the elections.

    Partitions for which the transition is not valid are logged and skipped (PSM-6).
    """
    cluster = ctx.cluster
    if not len(rows):
        return NOBODY_ELECTED
    allowed = is_valid_partition_change(cluster.state[rows], target)
    text = f"partitions that cannot become {target.name} from where they are"
    ctx.say_of(LoggerName.STATE_CHANGE, Level.ERROR, rows[~allowed], text)
    rows = rows[allowed]
    if target != PartitionState.ONLINE:
        cluster.set_state(rows, target)
        level = Level.INFO if target == PartitionState.NEW else Level.TRACE
        ctx.say_of(LoggerName.STATE_CHANGE, level, rows, f"partitions become {target.name}")
        return NOBODY_ELECTED
    batch = BrokerRequestBatch(cluster)
    is_new = cluster.state[rows] == PartitionState.NEW
    if strategy is None and not is_new.all():
        raise ValueError("an election needs a strategy")
    results = NOBODY_ELECTED
    try:
        yield from _initialise(ctx, rows[is_new], batch)
        if strategy is not None:
            results = yield from _elect(ctx, rows[~is_new], strategy, batch)
    except (FencedError, SessionLostError):
        raise
    except Exception as error:
        # Any other error concerns only this call; the event continues (PSM-22).
        ctx.say(LoggerName.PARTITION_MACHINE, Level.ERROR, f"moving partitions failed: {error!r}")
        failed = rows[~is_new]
        results = ElectionResults(failed, np.full(len(failed), Failure.STORE, np.int8))
    yield from batch.send()
    return results


def trigger_elections(ctx: Context, rows: I32 | None = None) -> Procedure[ElectionResults]:
    """Bring partitions in New and Offline online if that is possible (PSM-3, PSM-4).

    All partitions, unless rows are given; topics queued for deletion are skipped.
    """
    cluster = ctx.cluster
    rows = cluster.all_rows() if rows is None else rows
    state = cluster.state[rows]
    waiting = rows[(state == PartitionState.NEW) | (state == PartitionState.OFFLINE)]
    waiting = waiting[~cluster.is_queued(waiting)]
    results = yield from change_partition_states(
        ctx, waiting, PartitionState.ONLINE, Strategy.OFFLINE
    )
    return results


def start_partition_machine(ctx: Context) -> Procedure[None]:
    """Set the initial state of every partition, then elect leaders for those without (PSM-2,
    PSM-3).
    """
    cluster = ctx.cluster
    rows = cluster.all_rows()
    states = np.select(
        [~cluster.has_leadership[as_run(rows)], cluster.leader_is_online(rows)],
        [PartitionState.NEW, PartitionState.ONLINE],
        PartitionState.OFFLINE,
    )
    cluster.set_state(rows, states.astype(np.int8))
    yield from trigger_elections(ctx)


def _say_failed(ctx: Context, rows: I32, why: str) -> None:
    ctx.say_of(LoggerName.STATE_CHANGE, Level.ERROR, rows, f"partitions stay as they are, {why}")


# New to Online


def _initialise(ctx: Context, rows: I32, batch: BrokerRequestBatch) -> Procedure[None]:
    """Give partitions their first leader: the first live replica, all live ones in sync."""
    cluster = ctx.cluster
    first = initialise(cluster.replicas[rows], cluster.online(rows))
    won = first.won
    _say_failed(ctx, rows[~won], "none of their replicas being live")
    rows = rows[won]
    if not len(rows):
        return
    states = LeaderAndIsrs(
        row=rows,
        leader=first.leader[won],
        leader_epoch=np.zeros(len(rows), np.int32),
        isr=first.isr[won],
        recovery=first.recovery[won],
        controller_epoch=np.full(len(rows), cluster.controller_epoch, np.int32),
        version=np.zeros(len(rows), np.int32),
    )
    outcomes: WriteOutcomes = yield CreateStates(states)
    created = outcomes == WriteOutcome.DONE
    _say_failed(ctx, rows[~created], "their states not having been created in ZooKeeper")
    states = states.at(created)
    cluster.record_leadership(states)
    cluster.set_state(states.row, PartitionState.ONLINE)
    at, slot = np.nonzero(states.isr != NO_BROKER)
    batch.leader_and_isr(states.row[at], states.isr[at, slot], is_new=True)
    text = "partitions become ONLINE with their first leader"
    ctx.say_of(LoggerName.STATE_CHANGE, Level.INFO, states.row, text, with_leaders=True)


# Elections


def _elect(
    ctx: Context, rows: I32, strategy: Strategy, batch: BrokerRequestBatch
) -> Procedure[ElectionResults]:
    """Choose leaders and write them; where the cache is outdated, read and choose again.

    The cached state is used where it offers an in-sync leader, since the conditional write fails if
    it is outdated. Before a partition stays leaderless or is elected unclean, its znode is read.
    """
    if not len(rows):
        return NOBODY_ELECTED
    cluster = ctx.cluster
    failure = np.full(len(rows), Failure.STATE_CHANGE_FAILED, np.int8)
    # `at` are positions in `rows`, and `known` are the states of those rows.
    at = np.flatnonzero(cluster.has_leadership[rows])
    known = cluster.leadership(rows[at])
    is_fresh = False
    while True:
        chosen, unreadable = yield from _choose(ctx, known, strategy, may_be_unclean=is_fresh)
        failure[at[unreadable]] = Failure.STORE
        # A partition that a newer controller has decided about is not ours to change (FENCE-8).
        won = chosen.won & (known.controller_epoch <= cluster.controller_epoch)
        decided = replace(
            known.at(won).decided_in(cluster.controller_epoch),
            leader=chosen.leader[won],
            leader_epoch=known.leader_epoch[won] + 1,
            isr=chosen.isr[won],
            recovery=chosen.recovery[won],
        )
        # To be read again: rows that get no leader from the cache, and rows whose version has
        # changed.
        doubtful = np.full(len(rows), not is_fresh)
        doubtful[at[won]] = False
        if len(decided):
            outcomes: WriteOutcomes = yield WriteStates(decided, strategy.value)
            done = outcomes == WriteOutcome.DONE
            failure[at[won][done]] = Failure.NONE
            failure[at[won][outcomes == WriteOutcome.FAILED]] = Failure.STORE
            doubtful[at[won][outcomes == WriteOutcome.BAD_VERSION]] = True
            ctx.unclean_elections += int(np.count_nonzero(chosen.outcome[won][done] == UNCLEAN))
            cluster.record_leadership(decided.at(done).accepted())
            cluster.set_state(decided.row[done], PartitionState.ONLINE)
            batch.leader_and_isr_to(decided.row[done], chosen.recipients[won][done])
        again = np.flatnonzero(doubtful)
        if not len(again):
            break
        reply: StatesRead = yield ReadStates(rows[again])
        at, known, is_fresh = again[reply.found], reply.states.at(reply.found), True
    results = ElectionResults(rows, failure)
    text = f"partitions become ONLINE by {strategy.name} election"
    ctx.say_of(LoggerName.STATE_CHANGE, Level.INFO, results.elected, text, with_leaders=True)
    _say_failed(ctx, rows[failure == Failure.STATE_CHANGE_FAILED], "no replica being able to lead")
    _say_failed(ctx, rows[failure == Failure.STORE], "ZooKeeper or their topic's config failing")
    return results


def _choose(
    ctx: Context, known: LeaderAndIsrs, strategy: Strategy, *, may_be_unclean: bool
) -> Procedure[tuple[Elections, Mask]]:
    """Apply the strategy to states; the mask marks rows whose configuration cannot be read."""
    cluster = ctx.cluster
    row = known.row
    replicas = cluster.replicas[row]
    online = cluster.online(row)
    unreadable = np.zeros(len(row), np.bool_)
    match strategy:
        case Strategy.OFFLINE | Strategy.UNCLEAN:
            unclean = np.full(len(row), may_be_unclean)
            lost = ~any_slot(online & contains(known.isr, replicas))
            if strategy is Strategy.OFFLINE and may_be_unclean and lost.any():
                unclean[lost], unreadable[lost] = yield from _unclean_allowed(ctx, row[lost])
            chosen = elect_offline(
                replicas,
                known.isr,
                online,
                unclean,
                known.recovery,
                marks_recovering=ctx.settings.recovery_state,
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
