"""Leader election: the four strategies, the first leader, leaving an ISR, and the balance.

Rows are partitions. Candidates are always scanned in the order of assignment, never in that of the
ISR, and a new ISR keeps the order of the old one. Each kernel is given the replicas that it may
scan and a mask, slot by slot, of those that are online: a replica can be offline although its
broker is alive, when the broker has lost the log directory. An ISR member is online if it is an
online replica.

The preferred replica is the first of a partition's list. Placement spreads the first replicas
evenly, so leaders are balanced if each partition is led by its preferred replica. The kernels of
the balance get partitions of topics that are not queued for deletion; `is_known` marks those with
leadership info, and a leader of `NO_BROKER` counts as a leader in the wrong place.

Epochs, versions, the times of checks and the writing of results are not known here. A row that
finds no leader is left as it was, and says so in its outcome.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from klamm.core.columns import (
    I8,
    I32,
    NO_BROKER,
    Mask,
    alone,
    any_slot,
    contains,
    count,
    is_one_of,
    keep,
)

#: Outcomes: the leader was in sync; it was not, and records may be lost; no replica qualified.
CLEAN: Final = 0
UNCLEAN: Final = 1
NO_CANDIDATE: Final = 2

#: Recovery states, as znodes and requests spell them. A leader from outside the ISR has to confirm
#: that it has dealt with what that may have broken (KIP-704).
RECOVERED: Final = 0
RECOVERING: Final = 1


@dataclass(frozen=True, slots=True, eq=False)
class Elections:
    """The results of elections, row by row."""

    leader: I32  # NO_BROKER where no replica could be elected
    isr: I32  # unchanged where no replica could be elected
    outcome: I8
    recovery: I8
    recipients: Mask  # the slots of the scanned replicas that are to hear of the result

    @property
    def won(self) -> Mask:
        """The rows that have a new leader."""
        won: Mask = self.outcome != NO_CANDIDATE
        return won


def initialise(replicas: I32, online: Mask) -> Elections:
    """Give new partitions their first leader: the first online replica, with all of them in sync.

    Nothing has been written yet, so any replica agrees with any other.
    """
    is_live = _live(replicas, online)
    leader, won = _first(replicas, is_live)
    return Elections(
        leader=leader,
        isr=keep(replicas, is_live),
        outcome=_outcome(won),
        recovery=np.full(len(replicas), RECOVERED, np.int8),
        recipients=is_live,
    )


def elect_offline(
    replicas: I32,
    isr: I32,
    online: Mask,
    unclean: Mask,
    recovery: I8,
    *,
    marks_recovering: bool = True,
) -> Elections:
    """Choose a leader for each partition that has lost its own.

    The first replica that is online and in sync wins, and the ISR keeps its online members.
    Failing that, a row marked `unclean` takes its first online replica, alone in the ISR, because
    no other is known to agree with the new leader. Such a leader is to recover first, unless the
    brokers are too old to be told (`marks_recovering`: inter-broker protocol 3.2 and later).
    """
    is_live = _live(replicas, online)
    pool = is_live & contains(isr, replicas)
    is_clean = any_slot(pool)
    is_desperate = unclean & ~is_clean
    pool[is_desperate] = is_live[is_desperate]
    leader, won = _first(replicas, pool)
    is_unclean = won & ~is_clean
    new_isr = keep(isr, contains(np.where(is_live, replicas, NO_BROKER), isr))
    new_isr[is_unclean] = alone(leader[is_unclean], isr.shape[1])
    new_isr[~won] = isr[~won]
    return Elections(
        leader=leader,
        isr=new_isr,
        outcome=np.select([is_clean, is_unclean], [CLEAN, UNCLEAN], NO_CANDIDATE).astype(np.int8),
        recovery=np.where(is_unclean & marks_recovering, np.int8(RECOVERING), recovery),
        recipients=is_live & won[:, None],
    )


def elect_preferred(replicas: I32, isr: I32, online: Mask, recovery: I8) -> Elections:
    """Hand leadership back to the first replica of the list, if that is online and in sync.

    No other replica is considered, and the ISR stays as it is. The caller checks whether the first
    replica leads already.
    """
    pool = _live(replicas, online) & contains(isr, replicas)
    pool[:, 1:] = False
    return _with_isr_kept(replicas, isr, pool, recovery)


def elect_reassign(target: I32, isr: I32, online: Mask, recovery: I8) -> Elections:
    """Choose a leader among the replicas that a reassignment aims for.

    The first of `target` that is online and in sync wins; `online` is aligned with `target`. The
    ISR stays as it is: members that are to go are taken out one by one afterwards.
    """
    pool = _live(target, online) & contains(isr, target)
    return _with_isr_kept(target, isr, pool, recovery)


def elect_controlled_shutdown(
    replicas: I32, isr: I32, online: Mask, shutting_down: ArrayLike, recovery: I8
) -> Elections:
    """Move leadership off the brokers that are shutting down, while they still serve.

    `shutting_down` are broker ids, and `online` counts those brokers as alive. The first replica
    that is online, in sync and not shutting down wins. The ISR loses all brokers that are shutting
    down, not only the one that asked; a dead member stays, because its failure removes it.
    """
    is_live = _live(replicas, online)
    pool = is_live & contains(isr, replicas) & ~is_one_of(replicas, shutting_down)
    leader, won = _first(replicas, pool)
    staying = keep(isr, ~is_one_of(isr, shutting_down))
    return Elections(
        leader=leader,
        isr=np.where(won[:, None], staying, isr),
        outcome=_outcome(won),
        recovery=recovery,
        recipients=is_live & won[:, None],
    )


@dataclass(frozen=True, slots=True, eq=False)
class IsrRemovals:
    """Leaders and ISRs after a broker was removed from them."""

    leader: I32
    isr: I32
    was_member: Mask  # the rows to be written; the others are as they were


def shrink_isr(leader: I32, isr: I32, broker: int) -> IsrRemovals:
    """Take `broker` out of the ISRs and out of the lead.

    The last member of an ISR stays in it, although it no longer leads: it holds what was committed
    last, so the way back to a leader without loss starts with it. A row whose ISR does not name
    the broker is left alone. The others change at least their epoch.
    """
    is_broker = is_one_of(isr, broker)
    was_member = any_slot(is_broker)
    is_sole = was_member & (count(isr) == 1)
    return IsrRemovals(
        leader=np.where(was_member & (leader == broker), np.int32(NO_BROKER), leader),
        isr=np.where(is_sole[:, None], isr, keep(isr, ~is_broker)),
        was_member=was_member,
    )


def _with_isr_kept(candidates: I32, isr: I32, pool: Mask, recovery: I8) -> Elections:
    leader, won = _first(candidates, pool)
    return Elections(
        leader=leader,
        isr=isr,
        outcome=_outcome(won),
        recovery=recovery,
        recipients=(candidates != NO_BROKER) & won[:, None],
    )


def _live(replicas: I32, online: Mask) -> Mask:
    live: Mask = online & (replicas != NO_BROKER)
    return live


def _first(replicas: I32, pool: Mask) -> tuple[I32, Mask]:
    """The first marked broker of each row, or `NO_BROKER`; and which rows have one."""
    row = np.arange(len(pool))
    slot = pool.argmax(axis=1)
    won: Mask = pool[row, slot]
    return np.where(won, replicas[row, slot], np.int32(NO_BROKER)), won


def _outcome(won: Mask) -> I8:
    return np.where(won, np.int8(CLEAN), np.int8(NO_CANDIDATE))


def is_imbalanced(replicas: I32, adding: I32, leader: I32, isr: I32, is_known: Mask) -> Mask:
    """Which partitions the gauge of imbalanced partitions counts.

    While the preferred replica is still being added it cannot lead, so nothing is wrong until it
    is in sync. From then on the partition counts until the reassignment ends, whichever replica
    leads.
    """
    preferred = replicas[:, :1]
    is_adding = contains(adding, preferred)[:, 0]
    in_sync = contains(isr, preferred)[:, 0]
    imbalanced: Mask = is_known & np.where(is_adding, in_sync, leader != preferred[:, 0])
    return imbalanced


def needs_preferred_election(
    replicas: I32,
    leader: I32,
    isr: I32,
    is_known: Mask,
    preferred_online: Mask,
    percentage: int,
) -> Mask:
    """Which partitions an automatic rebalance hands back to their preferred replica.

    For each broker, this is the share of partitions that prefer it but are led by another one.
    Where it exceeds `percentage`, each such partition gets a preferred election, if its preferred
    replica is online and in sync.
    """
    preferred = replicas[:, 0]
    is_misplaced = is_known & (leader != preferred)
    brokers, group = np.unique(preferred, return_inverse=True)
    preferring = np.bincount(group, minlength=len(brokers))
    misplaced = np.bincount(group[is_misplaced], minlength=len(brokers))
    is_tilted = misplaced / preferring > percentage / 100
    able = preferred_online & contains(isr, replicas[:, :1])[:, 0]
    chosen: Mask = is_misplaced & is_tilted[group] & able
    return chosen
