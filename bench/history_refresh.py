"""What a refresh of `klamm history` costs on a short history and on a long one.

    python -m bench.history_refresh [GIGABYTES...] [--keep DIR]

A cluster of three brokers and 120 partitions in four topics, two of whose brokers fail and return
again and again, leaves a history; by default folders of 1 GB and of 20 GB are filled with it, which
takes minutes (`bench.filled_history`). Gigabytes are those of the records in Arrow; a spool and a
topic have them compressed, and so have the folder's tables, whose files and bytes are shown. A
refresh takes in one failure of each broker. It is repeated, in turns on each folder, and the middle
of its times is shown: of all of it, of the fold alone, and of opening the folder, which a run of
`klamm history` does before. Spark runs in this process, as under `--follow`.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from bench.filled_history import FilledHistory, open_folder
from bench.repeated_history import Repetition, record
from klamm.pipeline.history import folder as folders
from klamm.pipeline.history.folder import HistoryFolder
from klamm.pipeline.session import open_session
from tests.pipeline.history.refreshes import put_in

PARTITIONS = 30
ROTATIONS = 25
#: Refreshes until everything in a folder grows evenly; a page shows 500 registrations of brokers.
FOLDED = 14
#: Of the sealed files of this many refreshes, a gigabyte of records, all others are copies.
COMPUTED = 700
REFRESHES = 11


def timed(call: Any, *arguments: Any) -> tuple[float, Any]:
    """The seconds that a call takes, and its result."""
    start = time.perf_counter()
    result = call(*arguments)
    return time.perf_counter() - start, result


def size_on_disk(out: Path) -> tuple[int, int]:
    """The number of files, and their bytes."""
    sizes = [path.stat().st_size for path in out.rglob("*") if path.is_file()]
    return len(sizes), sum(sizes)


def fill(place: Path, sizes: Sequence[float], start: pa.Table, repetition: Repetition) -> None:
    """Make the folders that are not there yet."""
    missing = [size for size in sizes if not (place / f"out-{size:g}").exists()]
    if missing:
        history = FilledHistory(place / "folded", start, repetition, folded=FOLDED)
    for size in missing:
        count = round(size * 1e9 / repetition.first.nbytes)
        took, _ = timed(partial(history.fill, computed=COMPUTED), place / "filling", count)
        (place / "filling").rename(place / f"out-{size:g}")
        print(f"{size:g} GB: filled in {took:.0f} s", flush=True)


def next_events(folder: HistoryFolder, start: pa.Table, repetition: Repetition) -> pa.Table:
    """One failure of each broker, after what the folder has."""
    stretch = len(repetition.first)
    number, at = divmod(max(folder._tail)[1] - len(start), stretch)
    return repetition.shifted(number).slice(at, stretch // ROTATIONS)


def measure(
    spark: SparkSession, outs: Sequence[Path], start: pa.Table, repetition: Repetition
) -> list[list[float]]:
    """For each folder the seconds of a refresh, of its fold, and of opening the folder."""
    folds: list[float] = []
    run_shards = folders.run_shards

    def run_timed(*arguments: Any) -> Any:
        took, told = timed(run_shards, *arguments)
        folds.append(took)
        return told

    folders.run_shards = run_timed
    times: list[list[tuple[float, float, float]]] = [[] for _ in outs]
    for _ in range(REFRESHES + 1):
        for of_folder, out in zip(times, outs, strict=True):
            opening, folder = timed(open_folder, spark, out)
            records = next_events(folder, start, repetition)
            whole, _ = timed(put_in, folder, records)
            of_folder.append((whole, folds[-1], opening))
    # The first round starts Spark's workers.
    return [[statistics.median(each) for each in zip(*some[1:], strict=True)] for some in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("sizes", metavar="GIGABYTES", type=float, nargs="*", default=[1.0, 20.0])
    parser.add_argument("--keep", metavar="DIR", type=Path, help="for folders, to measure again")
    options = parser.parse_args()
    sizes = options.sizes
    with tempfile.TemporaryDirectory() as directory:
        start, repetition = record(
            Path(directory, "nodes"), partitions=PARTITIONS, rotations=ROTATIONS
        )
        place = options.keep or Path(directory)
        fill(place, sizes, start, repetition)
        outs = [place / f"out-{size:g}" for size in sizes]
        spark = open_session("local[2]", progress=False, little=True)
        middles = measure(spark, outs, start, repetition)
        spark.stop()
        for size, out, (whole, fold, opening) in zip(sizes, outs, middles, strict=True):
            files, disk = size_on_disk(out)
            events = round(size * 1e9 / repetition.first.nbytes) * len(repetition.first)
            print(
                f"{size:g} GB ({events:,} events; {files:,} files with {disk / 1e9:.2f} GB): "
                f"refresh {whole * 1000:.0f} ms, of which the fold {fold * 1000:.0f} ms; "
                f"opening {opening * 1000:.0f} ms"
            )
    ratios = [large / small for small, large in zip(middles[0], middles[-1], strict=True)]
    print(
        f"{sizes[-1] / sizes[0]:g} times the history: refresh x{ratios[0]:.2f}, "
        f"fold x{ratios[1]:.2f}, opening x{ratios[2]:.2f}; load {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
