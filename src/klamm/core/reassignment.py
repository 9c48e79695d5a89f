"""Moving the replicas of a partition in stages: the assignment, and when a move is complete.

While a move is under way the assignment lists both old and new replicas, the target first, and
names those that are being added and removed. The list it started from and the list it aims for
both follow from that, so a successor can go on from what ZooKeeper holds. Who copies the data, and
what is sent when, is not known here.

`Assignment` is one partition's; the functions below it answer the same questions for many at once.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np

from klamm.core.columns import I32, NO_BROKER, Mask, any_slot, contains, keep


@dataclass(frozen=True, slots=True)
class Assignment:
    """The replicas of one partition, and the move that they are part of, if any."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_being_reassigned(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas before the move."""
        return _without(self.replicas, self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the move."""
        return _without(self.replicas, self.removing)

    def reassign_to(self, new: Sequence[int]) -> Self:
        """Aim for `new`, from where the replicas were before any move.

        Replacing a move starts from its origin and not from its half-done target, for only the
        origin is known to hold the data; a replica that neither list names is given up. Going back
        to the origin cancels. That restores its members but not always their order, because the
        replicas that both lists share have already taken the order of the target.
        """
        origin = self.origin
        replicas = tuple(dict.fromkeys((*new, *origin)))
        return type(self)(replicas, _without(replicas, origin), _without(replicas, new))

    def completed(self) -> Self:
        """The assignment once the move is over."""
        return type(self)(self.target)

    def unneeded_by(self, successor: Self) -> tuple[int, ...]:
        """The replicas that `successor` has no use for, in their order here."""
        return _without(self.replicas, successor.replicas)

    def without(self, broker: int) -> Self:
        """The assignment after `broker` has given up its replica."""
        gone = (broker,)
        return type(self)(
            _without(self.replicas, gone),
            _without(self.adding, gone),
            _without(self.removing, gone),
        )

    def is_complete(self, isr: Collection[int]) -> bool:
        """Whether nothing is left to wait for: every replica of the target is in sync."""
        return not self.is_being_reassigned or set(self.target).issubset(isr)


def _without(brokers: Sequence[int], dropped: Collection[int]) -> tuple[int, ...]:
    return tuple(broker for broker in brokers if broker not in dropped)


@dataclass(frozen=True, slots=True, eq=False)
class Assignments:
    """The assignments of many partitions, a row each."""

    replicas: I32
    adding: I32
    removing: I32

    @property
    def is_being_reassigned(self) -> Mask:
        return any_slot(self.adding != NO_BROKER) | any_slot(self.removing != NO_BROKER)

    @property
    def origin(self) -> I32:
        """The replicas before the move."""
        return keep(self.replicas, ~contains(self.adding, self.replicas))

    @property
    def target(self) -> I32:
        """The replicas after the move."""
        return keep(self.replicas, ~contains(self.removing, self.replicas))

    def reassign_to(self, new: I32) -> Self:
        """Aim for the rows of `new`, each as `Assignment.reassign_to` does."""
        origin = self.origin
        is_leaving = ~contains(new, origin)
        replicas = keep(
            np.concatenate([new, origin], axis=1),
            np.concatenate([new != NO_BROKER, is_leaving], axis=1),
        )
        return type(self)(
            replicas,
            adding=keep(replicas, ~contains(origin, replicas)),
            removing=keep(replicas, ~contains(new, replicas)),
        )

    def is_complete(self, isr: I32) -> Mask:
        """Which rows have nothing left to wait for: every replica of the target is in sync."""
        target = self.target
        is_missing: Mask = (target != NO_BROKER) & ~contains(isr, target)
        return ~any_slot(is_missing) | ~self.is_being_reassigned
