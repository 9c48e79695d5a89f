"""What a refresh of `klamm history` costs on a small history and on one twenty times as long.

Run with `python -m bench.history_refresh [EVENTS]` from the root of the repository. Both histories
are of the same cluster, in which a broker fails and returns again and again. A refresh takes in one
failure; it is repeated, and the middle of its times is shown: all of it, of which the report takes
the larger part, and of the fold alone. Spark runs in this process, as under `--follow`.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from klamm.history.arrow import SCHEMA
from klamm.history.spool import read_spool
from klamm.pipeline.history import folder as folders
from klamm.pipeline.history.fold.task import STATE, write_records
from klamm.pipeline.history.folder import HistoryFolder, keys_of
from klamm.pipeline.history.report_facts import Origin
from klamm.pipeline.ingest.location import Location
from klamm.pipeline.session import open_session
from tests.pipeline.history.night import Cluster

TIMES = 20
REFRESHES = 9
PORTION = 1000
ORIGIN = Origin({"spools": ["bench"]}, "a benchmark")


def make_records(directory: Path, events: int) -> pa.Table:
    """A cluster of three brokers and 30 partitions, one of whose brokers fails every 20 seconds."""
    cluster = Cluster(directory, brokers=(1, 2, 3))
    cluster.new_controller(1, epoch=1, at=0)
    cluster.create(1, orders={p: [1 + (p + k) % 3 for k in range(3)] for p in range(30)})
    at = 10.0
    while cluster.controller.history._term.seq < events:
        for step in (cluster.lose, cluster.start):
            step(at, 2)
            at += 5
        cluster.catch_up(at)
        at += 10
    cluster.close()
    batches = [batch for spool in cluster.spools for batch in read_spool(spool)]
    return pa.Table.from_batches(batches, SCHEMA)


def put_in(folder: HistoryFolder, records: pa.Table) -> float:
    """The seconds that taking in these records takes."""
    start = time.perf_counter()
    name = f"incoming-{folder.next_serial:08d}-00000.arrows"
    write_records(folder.place / STATE / name, records)
    folder.refresh([name], keys_of(records))
    return time.perf_counter() - start


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 3000
    spark = open_session("local[2]", progress=False, little=True)
    folds: list[float] = []
    run_shards = folders.run_shards

    def timed(*arguments: object) -> object:
        start = time.perf_counter()
        try:
            return run_shards(*arguments)  # type: ignore[arg-type]
        finally:
            folds.append(time.perf_counter() - start)

    folders.run_shards = timed  # type: ignore[assignment]
    middles = []
    with tempfile.TemporaryDirectory() as directory:
        records = make_records(Path(directory, "nodes"), events * TIMES + 60 * REFRESHES)
        for count in (events, events * TIMES):
            out = Location(str(Path(directory, f"out-{count}")))
            folder = HistoryFolder(spark, out, ORIGIN, shards=4)
            # In portions, so that both end with tails of the same length.
            for start in range(0, count, PORTION):
                put_in(folder, records.slice(start, min(PORTION, count - start)))
            folds.clear()
            wholes = [
                put_in(folder, records.slice(count + number * 40, 40))
                for number in range(REFRESHES)
            ]
            middles.append((statistics.median(wholes), statistics.median(folds)))
            whole, fold = middles[-1]
            print(f"{count:7,} events: refresh {whole * 1000:6.0f} ms, fold {fold * 1000:6.0f} ms")
    (small, small_fold), (large, large_fold) = middles
    print(
        f"{TIMES} times the history: refresh x{large / small:.2f}, "
        f"fold x{large_fold / small_fold:.2f}"
    )
    spark.stop()


if __name__ == "__main__":
    main()
