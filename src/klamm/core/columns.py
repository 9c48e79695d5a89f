"""Columns of a cluster's state: their types, and rows of broker ids.

A ragged list of brokers, such as the replicas or the ISR of each partition, is a matrix with one
row per partition. A row holds its brokers from the left, in the list's own order, and `NO_BROKER`
in the slots that are left over. A matrix is at least one slot wide, so every row has a first slot.

Questions about such rows are answered with masks of the same shape. This module knows nothing of
what a row means; leaders, states and rules are elsewhere.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

I8 = NDArray[np.int8]
I32 = NDArray[np.int32]
I64 = NDArray[np.int64]
Mask = NDArray[np.bool_]
_Rows = TypeVar("_Rows", I32, I64)

#: Fills the unused slots of a row, and stands in a leader column for "no leader".
NO_BROKER: Final = -1
#: Brokers are looked up in a table from this number of slots on, up to this highest id.
_TABLE_FROM: Final = 1000
_TABLE_MAX: Final = 1 << 20


def padded(lists: Iterable[Sequence[int]], width: int | None = None) -> I32:
    """Lay lists of brokers out as rows, as wide as the longest list unless a `width` is given."""
    lists = list(lists)
    length = np.fromiter(map(len, lists), np.int64, len(lists))
    longest = int(length.max(initial=1))
    if width is None:
        width = longest
    elif width < longest:
        raise ValueError(f"a list of {longest} brokers does not fit into {width} slots")
    rows = np.full((len(lists), width), NO_BROKER, np.int32)
    rows[np.arange(width) < length[:, None]] = np.fromiter(
        chain.from_iterable(lists), np.int32, int(length.sum())
    )
    return rows


def unpad(row: I32) -> list[int]:
    """The brokers of one row, as the list it was made from."""
    brokers: list[int] = row[row != NO_BROKER].tolist()
    return brokers


def widen(rows: I32, width: int) -> I32:
    """The same rows with at least `width` slots; rows that are wide enough are returned as is."""
    missing = width - rows.shape[1]
    if missing <= 0:
        return rows
    return np.pad(rows, ((0, 0), (0, missing)), constant_values=NO_BROKER)


def alone(brokers: I32, width: int = 1) -> I32:
    """Rows that hold one broker each, or none where the column says `NO_BROKER`."""
    return widen(brokers.astype(np.int32)[:, None], width)


def keep(rows: I32, mask: Mask) -> I32:
    """The marked brokers of each row, moved together to the left in their order."""
    mask = mask & (rows != NO_BROKER)
    kept = np.full_like(rows, NO_BROKER)
    # Both sides visit their slots row by row, from the left, and agree on the number in each row.
    kept[np.arange(rows.shape[1]) < tally(mask)[:, None]] = rows[mask]
    return kept


def contains(rows: I32, ids: I32) -> Mask:
    """For each slot of `ids`, whether its broker is in the same row of `rows`.

    The mask has the shape of `ids`. Padding is never contained.
    """
    found: Mask = np.zeros(ids.shape, np.bool_)
    # One comparison per slot: rows are a few slots wide and very many, and numpy is slow to
    # reduce a short inner axis.
    for slot in range(rows.shape[1]):
        found |= ids == rows[:, slot, None]
    found &= ids != NO_BROKER
    return found


def is_one_of(rows: I32, brokers: ArrayLike) -> Mask:
    """For each slot, or each element of a column, whether it holds one of `brokers`.

    Never true of padding.
    """
    ids = np.asarray(brokers, np.int32)
    highest = int(rows.max(initial=NO_BROKER))
    if rows.size < _TABLE_FROM or highest > _TABLE_MAX or rows.min() < NO_BROKER:
        found: Mask = np.isin(rows, ids)
        found &= rows != NO_BROKER
        return found
    # A table is several times faster for many rows; padding, which is -1, finds its last entry.
    is_wanted = np.zeros(highest + 2, np.bool_)
    is_wanted[ids[(ids >= 0) & (ids <= highest)]] = True
    return is_wanted[rows]


def members(rows: I32) -> list[int]:
    """The brokers that any slot holds, in ascending order."""
    if rows.size < _TABLE_FROM or rows.max() > _TABLE_MAX or rows.min() < NO_BROKER:
        return [broker for broker in np.unique(rows).tolist() if broker >= 0]
    # A table is several times faster for many rows; padding, which is -1, marks its last entry.
    is_there = np.zeros(int(rows.max()) + 2, np.bool_)
    is_there[rows] = True
    found: list[int] = np.flatnonzero(is_there[:-1]).tolist()
    return found


def distinct(lists: Iterable[I32], capacity: int) -> I32:
    """The rows, all below `capacity`, that any of the lists has: each once, in ascending order."""
    rows = np.concatenate([np.empty(0, np.int32), *lists])
    if len(rows) < capacity // 16:
        return np.unique(rows)
    # Marking is several times faster than sorting when most of the cluster is concerned.
    is_named = np.zeros(capacity, np.bool_)
    is_named[rows] = True
    return np.flatnonzero(is_named).astype(np.int32)


def as_run(rows: _Rows) -> slice | _Rows:
    """Rows that follow each other as a slice, which numpy reads and writes without an index.

    Other rows stay as they are. What is read through a slice is a view: to be used at once.
    """
    count = len(rows)
    if count and rows[-1] - rows[0] + 1 == count and bool((rows[1:] > rows[:-1]).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def tally(mask: Mask) -> I32:
    """The number of marked slots in each row."""
    # A product, because numpy is several times slower to sum a short inner axis.
    marked: I32 = np.matmul(mask, np.ones(mask.shape[1], np.int32), dtype=np.int32)
    return marked


def any_slot(mask: Mask) -> Mask:
    """Which rows have a marked slot."""
    # The product of truth values is "or"; for its speed see `tally`.
    marked: Mask = mask @ np.ones(mask.shape[1], np.bool_)
    return marked


def count(rows: I32) -> I32:
    """The number of brokers in each row."""
    return tally(rows != NO_BROKER)
