"""The replicas of a partition, before, during and after a reassignment.

During a reassignment the assignment lists the old and the new replicas, the target first, and
names those that are being added and removed. The original list and the target list both follow
from that, so the next controller can go on from what ZooKeeper holds. This module does not know
how data is copied or which requests are sent.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Assignment:
    """The replicas of one partition, and the reassignment that they are part of, if any."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()

    @property
    def is_being_reassigned(self) -> bool:
        return bool(self.adding or self.removing)

    @property
    def origin(self) -> tuple[int, ...]:
        """The replicas before the reassignment."""
        return _without(self.replicas, self.adding)

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment."""
        return _without(self.replicas, self.removing)

    def reassign_to(self, new: Sequence[int]) -> Self:
        """The assignment that begins a reassignment to `new`.

        A reassignment that replaces another one starts from the original replicas and not from the
        unfinished target, because only the original replicas are known to hold the data; a replica
        that neither list names is dropped. A reassignment to the original replicas cancels. It
        restores the members of the list but not always their order, because the replicas that both
        lists share have taken the order of the target already.
        """
        origin = self.origin
        replicas = tuple(dict.fromkeys((*new, *origin)))
        return type(self)(replicas, _without(replicas, origin), _without(replicas, new))

    def completed(self) -> Self:
        """The assignment after the reassignment."""
        return type(self)(self.target)

    def unneeded_by(self, successor: Self) -> tuple[int, ...]:
        """The replicas that `successor` does not have, in their order here."""
        return _without(self.replicas, successor.replicas)

    def without(self, broker: int) -> Self:
        """The assignment without the replica on `broker`."""
        gone = (broker,)
        return type(self)(
            _without(self.replicas, gone),
            _without(self.adding, gone),
            _without(self.removing, gone),
        )

    def is_complete(self, isr: Collection[int]) -> bool:
        """Whether every replica of the target is in sync, or no reassignment is under way."""
        return not self.is_being_reassigned or set(self.target).issubset(isr)


def _without(brokers: Sequence[int], dropped: Collection[int]) -> tuple[int, ...]:
    # A set, because a request may name as many brokers as fit into it before anything is checked.
    dropped = frozenset(dropped)
    return tuple(broker for broker in brokers if broker not in dropped)
