"""A cluster whose brokers fail and return again and again, and a history of any length.

Only the first events are recorded; later ones are the same with other times, sequences and epochs,
and it is checked that such a repetition is what the cluster records.
"""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from klamm.core.events import AlterPartition, PartitionProposal
from klamm.history.arrow import SCHEMA
from klamm.history.spool import read_spool
from tests.pipeline.history.night import Cluster

TOPICS = ("orders", "payments", "parcels", "returns")
#: Seconds of a cluster's life in which two brokers fail and return.
ROTATION_S = 40.0


def rotate(cluster: Cluster, at: float) -> None:
    """Brokers 2 and 3 fail and return, one after the other."""
    for broker in (2, 3):
        cluster.lose(at, broker)
        cluster.start(at + 5, broker)
        catch_up(cluster, at + 10)
        at += ROTATION_S / 2


def catch_up(cluster: Cluster, at: float) -> None:
    """Every leader puts all replicas back into its ISRs, in one request."""
    controller = cluster.at(at)
    proposals = defaultdict(list)
    for topic in TOPICS:
        for name, replicas in controller.topic(topic)["partitions"].items():
            partition = int(name)
            leader, epoch, isr = controller.state(topic, partition)
            if sorted(isr) != sorted(replicas):
                version = controller.version(topic, partition)
                proposals[leader].append(
                    PartitionProposal(topic, None, partition, epoch, tuple(replicas), 0, version)
                )
    for leader, wanted in sorted(proposals.items()):
        event = AlterPartition(leader, controller.registrations[leader].epoch, 3, wanted)
        controller.handle(event, f"AlterPartition from broker {leader}")


def record(directory: Path, *, partitions: int, rotations: int) -> tuple[pa.Table, "Repetition"]:
    """How a history begins, and the stretch that it goes on with again and again."""
    cluster = Cluster(directory, brokers=(1, 2, 3))
    cluster.new_controller(1, epoch=1, at=0)
    replicas = {p: [1 + (p + k) % 3 for k in range(3)] for p in range(partitions)}
    cluster.create(1, **dict.fromkeys(TOPICS, replicas))
    ends = []
    for number in range(2 * rotations + 2):
        if number in (2, rotations + 2):
            ends.append(cluster.controller.history._term.seq)
        # Times of events that take a while must not drift into the next ones.
        rotate(cluster, 100 + number * ROTATION_S)
    cluster.close()
    batches = [batch for spool in cluster.spools for batch in read_spool(spool)]
    records = pa.Table.from_batches(batches, SCHEMA).combine_chunks()
    first, second = records.slice(ends[0], ends[1] - ends[0]), records.slice(ends[1])
    return records.slice(0, ends[0]), Repetition(first, second, rotations)


class Repetition:
    """A stretch of a history, and the same stretch later."""

    def __init__(self, first: pa.Table, second: pa.Table, rotations: int) -> None:
        self.first = first
        self.rotations = rotations
        self._events = len(first)
        self._us = int(rotations * ROTATION_S * 1e6)
        self._registrations = self._epoch(second) - self._epoch(first)
        self._elections = self._leader_epochs(second) - self._leader_epochs(first)
        for name in SCHEMA.names:
            assert self.shifted(1)[name].equals(second[name]), name

    @staticmethod
    def _epoch(records: pa.Table) -> int:
        return min(e["epoch"] for row in records["broker_changes"].to_pylist() for e in row)

    @staticmethod
    def _leader_epochs(records: pa.Table) -> np.ndarray:
        decisions = records["decisions"].combine_chunks().flatten()
        partitions = decisions.field("partition").to_numpy()
        last = np.zeros(partitions.max() + 1, np.int32)
        last[partitions] = decisions.field("leader_epoch")
        return last

    def shifted(self, times: int) -> pa.Table:
        """The same stretch, `times` repetitions later."""
        us = pa.scalar(times * self._us, pa.duration("us"))
        table = self.first
        changed = {
            "at": pc.add(table["at"].combine_chunks(), us),
            "seq": pc.add(table["seq"].combine_chunks(), times * self._events),
            "lost": _with_fields(table["lost"], alive_at=lambda column, _: pc.add(column, us)),
            "broker_changes": _with_fields(
                table["broker_changes"],
                epoch=lambda column, _: pc.add(column, times * self._registrations),
            ),
            "decisions": _with_fields(
                table["decisions"],
                old_leader_epoch=lambda column, all_: self._later(column, all_, times),
                leader_epoch=lambda column, all_: self._later(column, all_, times),
            ),
        }
        arrays = [changed.get(name, table[name]) for name in SCHEMA.names]
        return pa.table(arrays, schema=SCHEMA)

    def _later(self, column: pa.Array, decisions: pa.StructArray, times: int) -> pa.Array:
        by = self._elections[decisions.field("partition").to_numpy()]
        return pc.add(column, pa.array(times * by, pa.int32()))


def _with_fields(column: pa.ChunkedArray, **changes) -> pa.ListArray:
    """A column of lists of structs, some of whose fields are changed."""
    lists = column.combine_chunks()
    structs = lists.flatten()
    fields = [
        changes[field.name](structs.field(field.name), structs)
        if field.name in changes
        else structs.field(field.name)
        for field in structs.type
    ]
    values = pa.StructArray.from_arrays(fields, fields=list(structs.type))
    lengths = pc.list_value_length(lists).to_numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), values).cast(lists.type)
