"""The transitions that the two state machines allow.

There is one table per machine, with every state as a key, to be read against sections 6 and 7 of
docs/spec/controller.md. This module knows which transitions are valid, not what they do.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final, TypeVar

import numpy as np

from klamm.core.columns import I8, Mask


class PartitionState(IntEnum):
    """The state of a partition; the values are the codes in the state column."""

    NEW = 0
    ONLINE = 1
    OFFLINE = 2
    NON_EXISTENT = 3


class ReplicaState(IntEnum):
    """The state of a replica; the values are the codes in the state matrix.

    There is no state 0: slots without a replica have that code, and no transition starts there.
    """

    NEW = 1
    ONLINE = 2
    OFFLINE = 3
    DELETION_STARTED = 4
    DELETION_SUCCESSFUL = 5
    DELETION_INELIGIBLE = 6
    NON_EXISTENT = 7


P = PartitionState
R = ReplicaState
State = TypeVar("State", PartitionState, ReplicaState)

#: target: the states it may be entered from.
PARTITION_ENTERED_FROM: Final[Mapping[PartitionState, frozenset[PartitionState]]] = {
    P.NEW: frozenset({P.NON_EXISTENT}),
    # Electing another leader is a transition from ONLINE to itself.
    P.ONLINE: frozenset({P.NEW, P.ONLINE, P.OFFLINE}),
    P.OFFLINE: frozenset({P.NEW, P.ONLINE, P.OFFLINE}),
    # Deletion passes through OFFLINE, so that no replica serves while its data is deleted.
    P.NON_EXISTENT: frozenset({P.OFFLINE}),
}

#: target: the states it may be entered from.
REPLICA_ENTERED_FROM: Final[Mapping[ReplicaState, frozenset[ReplicaState]]] = {
    R.NEW: frozenset({R.NON_EXISTENT}),
    # A replica whose deletion was paused comes back like any other when its broker does.
    R.ONLINE: frozenset({R.NEW, R.ONLINE, R.OFFLINE, R.DELETION_INELIGIBLE}),
    R.OFFLINE: frozenset({R.NEW, R.ONLINE, R.OFFLINE, R.DELETION_INELIGIBLE}),
    R.DELETION_STARTED: frozenset({R.OFFLINE}),
    R.DELETION_SUCCESSFUL: frozenset({R.DELETION_STARTED}),
    # From OFFLINE when the broker is dead as the deletion begins, so that none was started.
    R.DELETION_INELIGIBLE: frozenset({R.OFFLINE, R.DELETION_STARTED}),
    R.NON_EXISTENT: frozenset({R.DELETION_SUCCESSFUL}),
}


def _dense(entered_from: Mapping[State, frozenset[State]]) -> Mask:
    """The table as an array indexed [current, target], so that one lookup checks a column."""
    size = max(entered_from) + 1
    legal = np.zeros((size, size), np.bool_)
    for target, sources in entered_from.items():
        legal[list(sources), target] = True
    legal.setflags(write=False)
    return legal


PARTITION_LEGAL: Final = _dense(PARTITION_ENTERED_FROM)
REPLICA_LEGAL: Final = _dense(REPLICA_ENTERED_FROM)


def is_valid_partition_change(current: I8, target: PartitionState) -> Mask:
    """Which of the partitions with these states may change to `target`."""
    allowed: Mask = PARTITION_LEGAL[current, target]
    return allowed


def is_valid_replica_change(current: I8, target: ReplicaState) -> Mask:
    """Which of the replicas with these states may change to `target`."""
    allowed: Mask = REPLICA_LEGAL[current, target]
    return allowed
