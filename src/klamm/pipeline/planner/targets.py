"""How much each broker should hold, and between which limits.

The fair share of a broker is the same for all, as far as racks and capacities let it be: a rack
gets at most one replica of a partition while another rack has none, so a rack that is smaller or
larger than the others may have to hold more or less. Within those limits shares are levelled.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from klamm.core.columns import I32, I64

F64 = NDArray[np.float64]

#: How far from its share a broker may be: this part of it, or one replica, whichever is more.
TOLERANCE: Final = 0.02
#: More would not change a double any more.
_HALVINGS: Final = 60


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """For each broker its share, and what it may hold at least and at most."""

    share: F64
    lower: F64
    upper: F64

    @classmethod
    def around(cls, share: F64, one: float, limit: F64) -> "Target":
        """Within two percent or `one` of the share, and never beyond the limit."""
        slack = np.maximum(TOLERANCE * share, one)
        return cls(share, share - slack, np.minimum(share + slack, limit))

    def excess(self, load: F64) -> F64:
        return np.maximum(0, load - self.upper)

    def deficit(self, load: F64) -> F64:
        return np.maximum(0, self.lower - load)

    def is_met(self, load: F64) -> bool:
        return not (self.excess(load).any() or self.deficit(load).any())


def level(total: float, floor: F64, ceiling: F64) -> F64:
    """Share out `total` as evenly as floors and ceilings let it be."""
    low, high = float(floor.min(initial=0)), float(ceiling.max(initial=0, where=ceiling < np.inf))
    high = max(high, total) + 1
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if np.clip(middle, floor, ceiling).sum() < total:
            low = middle
        else:
            high = middle
    return np.asarray(np.clip(high, floor, ceiling))


def shares(rack: I32, factor: I64, weight: F64, capacity: F64) -> F64:
    """The fair share of each broker, for rows of `factor` replicas that weigh `weight` each.

    `rack` are the racks of brokers, numbered from 0.
    """
    racks = int(rack.max()) + 1
    size = np.bincount(rack, minlength=racks)
    total = float((factor * weight).sum())
    at_least = float(weight[factor >= racks].sum())
    at_most = np.array(
        [(weight * np.clip(factor - racks + 1, 1, brokers)).sum() for brokers in size], np.float64
    )
    room = np.bincount(rack, weights=np.minimum(capacity, total), minlength=racks)
    # First between racks, by the level that their brokers would have; then inside each.
    per_broker = level_racks(total, size, np.minimum(at_least, room), np.minimum(at_most, room))
    share = np.empty(len(rack))
    for number in range(racks):
        members = rack == number
        share[members] = level(
            per_broker[number], np.zeros(members.sum()), np.minimum(capacity[members], total)
        )
    return share


def level_racks(total: float, size: I64, floor: F64, ceiling: F64) -> F64:
    """Share out `total` between racks so that their brokers get the same, as far as possible."""
    low, high = 0.0, total + 1
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if np.clip(middle * size, floor, ceiling).sum() < total:
            low = middle
        else:
            high = middle
    return np.clip(high * size, floor, ceiling)


def pour(amount: int, gap: F64, limit: F64) -> I64:
    """Whole numbers that add up to `amount`, more where the gap is larger, up to the limits.

    The gaps that are left over are as even as possible; less is given if the limits say so.
    """
    amount = int(min(amount, np.floor(np.maximum(limit, 0)).sum()))
    limit = np.floor(np.maximum(limit, 0))
    low, high = float(gap.min()) - amount - 1, float(gap.max()) + 1
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if np.clip(gap - middle, 0, limit).sum() > amount:
            low = middle
        else:
            high = middle
    given = np.floor(np.clip(gap - high, 0, limit))
    left = amount - int(given.sum())
    while left > 0:
        open_ = np.flatnonzero(given < limit)
        first = open_[np.argsort(-(gap - given)[open_], kind="stable")][:left]
        given[first] += 1
        left -= len(first)
    return given.astype(np.int64)
