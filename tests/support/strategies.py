"""Hypothesis strategies that more than one area draws from."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from klamm.core.columns import I8, I32, Mask, padded

#: Few enough ids for lists to overlap, and far enough apart for an id not to pass for an index.
BROKERS = (0, 1, 2, 3, 5, 8, 13, 1001)

broker_ids = st.sampled_from(BROKERS)


def broker_lists(min_size: int = 0, max_size: int = len(BROKERS)) -> st.SearchStrategy[list[int]]:
    """Lists of different brokers in any order."""
    return st.lists(broker_ids, unique=True, min_size=min_size, max_size=max_size)


@dataclass(frozen=True)
class Partition:
    """One partition as a scalar twin sees it."""

    replicas: list[int]
    isr: list[int]  # mostly, not always, among the replicas
    leader: int
    online: set[int]  # among the replicas
    unclean: bool
    recovery: int


@dataclass(frozen=True, eq=False)
class PartitionColumns:
    """The same partitions as a kernel sees them."""

    replicas: I32
    isr: I32
    leader: I32
    online: Mask
    unclean: Mask
    recovery: I8


@st.composite
def partitions(draw: st.DrawFn) -> Partition:
    replicas = draw(broker_lists(min_size=1, max_size=5))
    members = st.one_of(st.sampled_from(replicas), broker_ids)
    isr = draw(st.lists(members, unique=True, max_size=5))
    return Partition(
        replicas,
        isr,
        leader=draw(st.sampled_from([-1, *replicas])),
        online=draw(st.sets(st.sampled_from(replicas))),
        unclean=draw(st.booleans()),
        recovery=draw(st.integers(0, 1)),
    )


clusters = st.lists(partitions(), max_size=8)


def columns_of(rows: list[Partition]) -> PartitionColumns:
    replicas = padded(row.replicas for row in rows)
    # True in the padding, which a kernel must not take for a replica.
    online = np.ones(replicas.shape, np.bool_)
    for row, slot in np.argwhere(replicas != -1):
        online[row, slot] = replicas[row, slot] in rows[row].online
    return PartitionColumns(
        replicas,
        padded(row.isr for row in rows),
        np.array([row.leader for row in rows], np.int32),
        online,
        np.array([row.unclean for row in rows], np.bool_),
        np.array([row.recovery for row in rows], np.int8),
    )
