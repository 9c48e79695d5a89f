"""What a refresh of `klamm history` costs on a short history and on a long one.

    python -m bench.history_refresh [GIGABYTES...]

A cluster of three brokers and 120 partitions in four topics, two of whose brokers fail and return
again and again, leaves a history; by default folders of 1 GB and of 5 GB are filled with it.
Gigabytes are those of the records in Arrow, which a spool and a topic have compressed. Only the
first events are recorded; later ones are the same with other times, sequences and epochs, and it is
checked that such a repetition is what the cluster records. A refresh takes in one failure of each
broker; it is repeated, and the middle of its times is shown: all of it, of which the report takes
the larger part, and of the fold alone. Spark runs in this process, as under `--follow`.
"""

import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from klamm.core.events import AlterPartition, PartitionProposal
from klamm.history.arrow import SCHEMA
from klamm.history.spool import read_spool
from klamm.pipeline.history import folder as folders
from klamm.pipeline.history.fold.task import STATE, write_records
from klamm.pipeline.history.folder import HistoryFolder, keys_of
from klamm.pipeline.history.report_facts import Origin
from klamm.pipeline.ingest.location import Location
from klamm.pipeline.session import open_session
from tests.pipeline.history.night import Cluster

TOPICS = ("orders", "payments", "parcels", "returns")
PARTITIONS = 30
ROTATIONS = 25
#: Seconds of a cluster's life in which two brokers fail and return.
ROTATION_S = 40.0
REFRESHES = 9
#: Repetitions that a folder takes in at a time; the last ones follow one by one.
TOGETHER = 40
ORIGIN = Origin({"spools": ["bench"]}, "a benchmark")


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


def record(directory: Path) -> tuple[pa.Table, pa.Table, pa.Table]:
    """How a history begins, and two equal stretches after that."""
    cluster = Cluster(directory, brokers=(1, 2, 3))
    cluster.new_controller(1, epoch=1, at=0)
    replicas = {p: [1 + (p + k) % 3 for k in range(3)] for p in range(PARTITIONS)}
    cluster.create(1, **dict.fromkeys(TOPICS, replicas))
    ends = []
    for number in range(2 * ROTATIONS + 2):
        if number in (2, ROTATIONS + 2):
            ends.append(cluster.controller.history._term.seq)
        # Times of events that take a while must not drift into the next ones.
        rotate(cluster, 100 + number * ROTATION_S)
    cluster.close()
    batches = [batch for spool in cluster.spools for batch in read_spool(spool)]
    records = pa.Table.from_batches(batches, SCHEMA).combine_chunks()
    parts = (records.slice(0, ends[0]), records.slice(ends[0], ends[1] - ends[0]))
    return (*parts, records.slice(ends[1]))


class Repetition:
    """A stretch of a history, and the same stretch later."""

    def __init__(self, first: pa.Table, second: pa.Table) -> None:
        self.first = first
        self._events = len(first)
        self._us = int(ROTATIONS * ROTATION_S * 1e6)
        self._registrations = self._epoch(second) - self._epoch(first)
        self._elections = self._leader_epochs(second) - self._leader_epochs(first)
        for name in SCHEMA.names:
            assert self.shifted(1)[name].equals(second[name]), name

    @staticmethod
    def _epoch(records: pa.Table) -> int:
        return min(e["epoch"] for row in records["broker_changes"].to_pylist() for e in row)

    @staticmethod
    def _leader_epochs(records: pa.Table) -> np.ndarray:
        last = np.zeros(PARTITIONS, np.int32)
        decisions = records["decisions"].combine_chunks().flatten()
        last[decisions.field("partition")] = decisions.field("leader_epoch")
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


def put_in(folder: HistoryFolder, records: pa.Table) -> float:
    """The seconds that taking in these records takes."""
    start = time.perf_counter()
    name = f"incoming-{folder.next_serial:08d}-00000.arrows"
    write_records(folder.place / STATE / name, records)
    folder.refresh([name], keys_of(records))
    return time.perf_counter() - start


def portions(start: pa.Table, repetition: Repetition, size: float) -> Iterator[pa.Table]:
    """Records of this many bytes, the last of them in small portions.

    So folders of any size end with tails of the same length.
    """
    count = round(size / repetition.first.nbytes)
    yield start
    numbers = list(range(count))
    last = 4 + (count - 4) % TOGETHER
    for at in range(0, count - last, TOGETHER):
        yield pa.concat_tables([repetition.shifted(n) for n in numbers[at : at + TOGETHER]])
    for number in numbers[count - last :]:
        yield repetition.shifted(number)


def main() -> None:
    sizes = [float(word) for word in sys.argv[1:]] or [1.0, 5.0]
    folds: list[float] = []
    run_shards = folders.run_shards

    def timed(*arguments: object) -> object:
        start = time.perf_counter()
        try:
            return run_shards(*arguments)  # type: ignore[arg-type]
        finally:
            folds.append(time.perf_counter() - start)

    folders.run_shards = timed  # type: ignore[assignment]
    with tempfile.TemporaryDirectory() as directory:
        start, first, second = record(Path(directory, "nodes"))
        repetition = Repetition(first, second)
        spark = open_session("local[2]", progress=False, little=True)
        middles = []
        for size in sizes:
            out = Location(str(Path(directory, f"out-{size:g}")))
            folder = HistoryFolder(spark, out, ORIGIN, shards=4)
            began = time.perf_counter()
            events = 0
            for records in portions(start, repetition, size * 1e9):
                put_in(folder, records)
                events += len(records)
            filled = time.perf_counter() - began
            count = (events - len(start)) // len(first)
            coming = repetition.shifted(count)
            step = len(coming) // ROTATIONS
            folds.clear()
            wholes = [put_in(folder, coming.slice(n * step, step)) for n in range(REFRESHES)]
            middles.append((statistics.median(wholes), statistics.median(folds)))
            whole, fold = middles[-1]
            print(
                f"{size:g} GB, {events:,} events (filled in {filled:.0f} s): refresh "
                f"{whole * 1000:.0f} ms, fold {fold * 1000:.0f} ms",
                flush=True,
            )
        (small, small_fold), *_, (large, large_fold) = middles
        print(
            f"{sizes[-1] / sizes[0]:g} times the history: refresh x{large / small:.2f}, "
            f"fold x{large_fold / small_fold:.2f}"
        )
        spark.stop()


if __name__ == "__main__":
    main()
