"""Requests to brokers, collected while a procedure decides and sent together at its end.

Within a batch there is one entry for each broker, partition and kind of request (CHAN-15): a later
one replaces an earlier one, but a replica once called new stays new, and a deletion stays one.
What an entry says is read from the columns when the batch is sent, so it is never older than what
ZooKeeper has accepted by then.
"""

from collections.abc import Iterable

import numpy as np

from klamm.core.cluster import EPOCH_DURING_DELETE, NO_EPOCH, Cluster
from klamm.core.columns import I32, Mask
from klamm.core.effects import Announce, Procedure, ToReplicas

Entries = list[tuple[I32, I32, Mask, I32]]


class Batch:
    """One batch of LeaderAndIsr, UpdateMetadata and StopReplica requests."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._leader_and_isr: Entries = []
        self._stop_replica: Entries = []
        self._metadata_rows: list[I32] = []
        self._metadata_brokers: set[int] = set()

    def leader_and_isr(self, row: I32, broker: I32, is_new: bool | Mask = False) -> None:
        """Tell each `broker[k]` about partition `row[k]`; all brokers then hear its metadata."""
        if len(row):
            flag = np.broadcast_to(np.asarray(is_new, np.bool_), row.shape)
            self._leader_and_isr.append((row, broker, flag, np.zeros_like(row)))
            self.update_metadata(np.unique(row))

    def update_metadata(self, rows: I32, brokers: Iterable[int] | None = None) -> None:
        """Tell brokers, by default all of them, about partitions; no rows: about brokers only."""
        self._metadata_rows.append(rows)
        self._metadata_brokers.update(self._cluster.brokers if brokers is None else brokers)

    def stop_replica(self, row: I32, broker: I32, *, delete: bool) -> None:
        """Stop replica `row[k]` on `broker[k]`, with the leader epoch as it is known now."""
        if not len(row):
            return
        cluster = self._cluster
        epoch = np.where(cluster.has_leadership[row], cluster.leader_epoch[row], NO_EPOCH)
        epoch = np.where(cluster.is_queued(row), EPOCH_DURING_DELETE, epoch).astype(np.int32)
        flag = np.full(len(row), delete)
        self._stop_replica.append((row, broker, flag, epoch))

    def send(self) -> Procedure[None]:
        """Yield the announcement, unless there is nothing to announce."""
        if not (self._leader_and_isr or self._stop_replica or self._metadata_brokers):
            return
        known = self._cluster.brokers
        rows = np.concatenate(self._metadata_rows or [np.empty(0, np.int32)])
        yield Announce(
            leader_and_isr=_by_broker(self._leader_and_isr, known),
            metadata_rows=np.unique(rows),
            metadata_brokers=sorted(self._metadata_brokers & known.keys()),
            stop_replica=_by_broker(self._stop_replica, known),
        )


def _by_broker(entries: Entries, known: Iterable[int]) -> dict[int, ToReplicas]:
    """For each broker and row the last entry counts, with flags that once were true."""
    if not entries:
        return {}
    row, broker, flag, epoch = (np.concatenate(column) for column in zip(*entries, strict=True))
    kept = np.isin(broker, np.array(list(known), np.int32)) & (broker >= 0)
    row, broker, flag, epoch = row[kept], broker[kept], flag[kept], epoch[kept]
    # Stable, so that of equal keys the last one added comes last in its run.
    order = np.lexsort((row, broker))
    row, broker, flag, epoch = row[order], broker[order], flag[order], epoch[order]
    if not len(row):
        return {}
    starts = np.flatnonzero(np.r_[True, (np.diff(row) != 0) | (np.diff(broker) != 0)])
    flag = np.logical_or.reduceat(flag, starts)
    last = np.r_[starts[1:], len(row)] - 1
    row, broker, epoch = row[last], broker[last], epoch[last]
    cuts = np.flatnonzero(np.diff(broker)) + 1
    return {
        int(brokers[0]): ToReplicas(rows, flags, epochs)
        for brokers, rows, flags, epochs in zip(
            np.split(broker, cuts),
            np.split(row, cuts),
            np.split(flag, cuts),
            np.split(epoch, cuts),
            strict=True,
        )
    }
