"""A plan in portions, so that no broker copies too much at a time."""

from typing import Final

import numpy as np

from klamm.core.columns import I32, I64, NO_BROKER, Mask
from klamm.pipeline.planner.planner import Planned

#: Unless a limit is given, a wave may touch this part of what a broker holds on average.
_PART: Final = 0.05
_PASSES: Final = 4


def default_limit(planned: Planned) -> int:
    """How many moves a broker takes part in during one wave."""
    replicas = int((planned.after != NO_BROKER).sum())
    return max(10, int(_PART * replicas / max(1, len(planned.brokers))))


def make_waves(planned: Planned, limit: int) -> list[I64]:
    """The changed rows, wave by wave; a partition is in one of them as a whole.

    A move counts for the broker that receives the replica and for the leader that it is copied
    from. Changes of order copy nothing and come last, together. A partition with more moves than
    the limit has a wave nearly of its own.
    """
    changed = planned.changed
    added = planned.added[changed]
    copies = added.sum(axis=1)
    waves: list[I64] = []
    waiting = changed[copies > 0]
    after, leader = planned.after, planned.leader
    is_new = planned.added
    size = (
        int(max(after.max(initial=0), leader.max(initial=0))) + 2
    )  # the last stands for no broker
    while len(waiting):
        used = np.zeros(size, np.int64)
        wave: list[I64] = []
        for _ in range(_PASSES):
            fits = _within(after[waiting], is_new[waiting], leader[waiting], used, limit)
            if not wave and not fits.any():
                fits[0] = True
            wave.append(waiting[fits])
            used += _usage(after[waiting[fits]], is_new[waiting[fits]], leader[waiting[fits]], size)
            waiting = waiting[~fits]
            if not len(waiting) or not fits.any():
                break
        waves.append(np.sort(np.concatenate(wave)))
    if len(reordered := changed[copies == 0]):
        waves.append(reordered)
    return waves


def _touches(after: I32, is_new: Mask, leader: I32) -> tuple[I64, I64]:
    """Which row (of those given) touches which broker, once for every copy at either end."""
    row, slot = np.nonzero(is_new)
    broker = after[row, slot].astype(np.int64)
    return np.concatenate([row, row]), np.concatenate([broker, leader[row].astype(np.int64)])


def _usage(after: I32, is_new: Mask, leader: I32, size: int) -> I64:
    _, broker = _touches(after, is_new, leader)
    return np.bincount(broker % size, minlength=size)


def _within(after: I32, is_new: Mask, leader: I32, used: I64, limit: int) -> Mask:
    """The rows that keep every broker below the limit, if all rows before them are taken too."""
    row, broker = _touches(after, is_new, leader)
    broker %= len(used)
    order = np.lexsort((row, broker))
    start = np.searchsorted(broker[order], np.arange(len(used)))
    rank = np.arange(len(order)) - start[broker[order]]
    too_many = used[broker[order]] + rank >= limit
    # Without a leader there is no source whose copies count.
    too_many &= broker[order] != len(used) - 1
    fits = np.ones(len(after), np.bool_)
    fits[row[order][too_many]] = False
    return fits
