"""Notes on a plan: which brokers are not balanced, and why."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from klamm.core.columns import I32, I64
from klamm.pipeline.planner.targets import F64, TOLERANCE, Target

_NAMED: Final = 5
#: A plan that moves more than this multiple of the lower bound gets a note.
_MOVEMENT_FACTOR: Final = 1.1


@dataclass(frozen=True, slots=True, eq=False)
class Measure:
    """What brokers hold of one measure after the plan, and their targets."""

    name: str
    load: F64
    target: Target
    pinned: F64  # the part of the load that had to stay where it was
    one: float  # the largest single piece

    def notes(self, ids: I32) -> list[str]:
        return [*self._uneven_shares(ids), *self._missed(ids)]

    def _uneven_shares(self, ids: I32) -> list[str]:
        """Shares that racks or capacities keep away from the mean."""
        share = self.target.share
        mean = float(share.mean())
        away = np.abs(share - mean) > max(TOLERANCE * mean, self.one)
        if not away.any():
            return []
        low, high = int(share.argmin()), int(share.argmax())
        return [
            f"The {self.name} cannot be the same on all brokers, because racks are of different "
            "sizes, or capacities limit some: from "
            f"{share[low]:,.0f} (broker {ids[low]}) to {share[high]:,.0f} (broker {ids[high]}), "
            f"where the mean is {mean:,.0f}."
        ]

    def _missed(self, ids: I32) -> list[str]:
        """Brokers that are still outside of their limits."""
        over, under = self.target.excess(self.load), self.target.deficit(self.load)
        missed = np.flatnonzero((over > 0) | (under > 0))
        if not len(missed):
            return []
        worst = missed[np.argsort(-(over + under)[missed], kind="stable")]
        named = ", ".join(
            f"broker {ids[each]} holds {self.load[each]:,.0f} and its share is "
            f"{self.target.share[each]:,.0f}"
            for each in worst[:_NAMED]
        )
        more = f", and {len(worst) - _NAMED} others" if len(worst) > _NAMED else ""
        return [f"The {self.name} are not balanced: {named}{more}. {self._reason(worst)}"]

    def _reason(self, missed: I64) -> str:
        pinned = float(self.pinned.sum())
        if (self.pinned > self.target.upper)[missed].any():
            return "What has to stay where it is (pinned, or on brokers not alive) is more already."
        if pinned > TOLERANCE * float(self.load.sum()):
            return (
                f"{pinned:,.0f} of all {self.load.sum():,.0f} have to stay where they are (pinned, "
                "or on brokers not alive)."
            )
        return "No move or exchange of single replicas was found that keeps the rules and helps."


def movement_note(what: str, moved: int, least: int, one: float) -> list[str]:
    """A note on a plan that moves clearly more than the lower bound."""
    if moved <= max(_MOVEMENT_FACTOR * least, least + one):
        return []
    times = f"{moved / least:.2f} times the least" if least else "where none would have to"
    return [
        f"The plan moves {moved:,} {what}, {times}: the rules for racks and numbers let balance be "
        "reached only in a roundabout way."
    ]
