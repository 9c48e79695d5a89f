"""Requests to brokers, collected while a procedure decides and sent together at its end.

Within a batch there is one entry for each broker, partition and kind of request (CHAN-15): a later
one replaces an earlier one, but a replica once called new stays new, and a deletion stays one.
The contents of an entry are read from the columns when the batch is sent, so they are never older
than what ZooKeeper has accepted by then.
"""

from collections.abc import Collection, Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from klamm.core.cluster import EPOCH_DURING_DELETE, NO_EPOCH, ClusterState
from klamm.core.columns import I32, Mask, distinct, is_one_of
from klamm.core.effects import Procedure, ReplicaRequestRows, SendRequestBatch

#: Rows, the broker of each, its flag, and its leader epoch.
Entries = list[tuple[I32, I32, Mask, I32]]


class BrokerRequestBatch:
    """One batch of LeaderAndIsr, UpdateMetadata and StopReplica requests.

    A batch belongs to the call that fills it and is dropped with it, so that none is ever found
    half full by the next (CHAN-11, CHAN-14).
    """

    def __init__(self, cluster: ClusterState) -> None:
        self._cluster = cluster
        self._leader_and_isr: Entries = []
        self._stop_replica: Entries = []
        self._metadata_rows: list[I32] = []
        self._metadata_brokers: set[int] = set()

    def leader_and_isr(self, row: I32, broker: I32, *, is_new: bool = False) -> None:
        """Add a LeaderAndIsr for `row[k]` to `broker[k]`, and its UpdateMetadata to all brokers."""
        if len(row):
            no_epoch = np.broadcast_to(np.int32(NO_EPOCH), len(row))
            flag = np.broadcast_to(np.bool_(is_new), len(row))
            self._leader_and_isr.append((row, broker, flag, no_epoch))
            self.update_metadata(row)

    def leader_and_isr_to(self, rows: I32, recipients: Mask) -> None:
        """Add a LeaderAndIsr to the marked replicas, and an UpdateMetadata to all brokers."""
        if len(rows):
            self.leader_and_isr(*self._cluster.replicas_at(rows, recipients))
            # The metadata goes out even if no replica gets a LeaderAndIsr (CHAN-17).
            self.update_metadata(rows)

    def update_metadata(self, rows: I32, brokers: Iterable[int] | None = None) -> None:
        """Add an UpdateMetadata, by default to all brokers; without rows it describes brokers
        only.
        """
        self._metadata_rows.append(rows)
        self._metadata_brokers.update(self._cluster.brokers if brokers is None else brokers)

    def stop_replica(self, row: I32, broker: I32, *, delete: bool) -> None:
        """Stop replica `row[k]` on `broker[k]`, with the leader epoch as it is known now."""
        if not len(row):
            return
        cluster = self._cluster
        epoch = np.where(cluster.has_leadership[row], cluster.leader_epoch[row], NO_EPOCH)
        epoch = np.where(cluster.is_queued(row), EPOCH_DURING_DELETE, epoch).astype(np.int32)
        self._stop_replica.append((row, broker, np.full(len(row), delete), epoch))

    def send(self) -> Procedure[None]:
        """Yield the batch as an effect, unless it is empty."""
        known = self._cluster.brokers
        announcement = SendRequestBatch(
            leader_and_isr=_by_broker(self._leader_and_isr, known),
            metadata_rows=self._distinct_metadata_rows(),
            metadata_brokers=sorted(self._metadata_brokers & known.keys()),
            stop_replica=_by_broker(self._stop_replica, known),
        )
        if (
            announcement.leader_and_isr
            or announcement.metadata_brokers
            or announcement.stop_replica
        ):
            yield announcement

    def _distinct_metadata_rows(self) -> I32:
        return distinct(self._metadata_rows, len(self._cluster.topic_of))


def _by_broker(entries: Entries, known: Collection[int]) -> dict[int, ReplicaRequestRows]:
    """For each known broker its entries by row; the last of a row counts, with its flags or-ed."""
    if not entries or not known:
        return {}
    row, broker, flag, epoch = (
        column[0] if len(column) == 1 else np.concatenate(column)
        for column in zip(*entries, strict=True)
    )
    ids = np.array(sorted(known), np.int32)
    is_known = is_one_of(broker, ids)
    if not is_known.all():
        row, broker, flag, epoch = (column[is_known] for column in (row, broker, flag, epoch))
    # Sorting a column of 16-bit numbers is a radix sort, and keeps the order of equal ones.
    rank = _ranks(ids, broker)
    order = np.argsort(rank, kind="stable")
    bounds = np.searchsorted(rank[order], np.arange(len(ids) + 1))
    found = {}
    for k, (start, end) in enumerate(pairwise(bounds.tolist())):
        if start < end:
            mine = order[start:end]
            found[int(ids[k])] = _merged(row[mine], flag[mine], epoch[mine])
    return found


def _ranks(ids: I32, broker: I32) -> NDArray[np.uint16]:
    """The position of each broker among the ids, which are sorted."""
    if ids[-1] > 1 << 20:
        return np.searchsorted(ids, broker).astype(np.uint16)
    table = np.zeros(int(ids[-1]) + 1, np.uint16)
    table[ids] = np.arange(len(ids), dtype=np.uint16)
    return table[broker]


def _merged(row: I32, flag: Mask, epoch: I32) -> ReplicaRequestRows:
    """Entries of one broker in the order of rows, one for each."""
    if not (np.diff(row) > 0).all():
        order = np.argsort(row, kind="stable")
        row, flag, epoch = row[order], flag[order], epoch[order]
        starts = np.flatnonzero(np.diff(row, prepend=-1))
        last = np.append(starts[1:], len(row)) - 1
        row, flag, epoch = row[last], np.logical_or.reduceat(flag, starts), epoch[last]
    return ReplicaRequestRows(row, flag, epoch)
