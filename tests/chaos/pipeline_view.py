"""The history pipeline's view of a run: its tables, made by Spark from the brokers' spools."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from pyarrow import dataset

from klamm.pipeline.history.sources import SpoolInput
from klamm.pipeline.session import spark_session
from tests.chaos.agreement import TABLES, TableRow
from tests.chaos.checker import Violation
from tests.pipeline.history.refreshes import differences, fill_in_pieces, records_in

#: So few events that a run of a minute is sealed many times, and records come after that.
_TAIL_EVENTS = 20


def make_view(spools: Sequence[Path], out: Path) -> None:
    """Tables and `report.html`, as `klamm history --spool ... --out` makes them."""
    with spark_session(progress=False, little=True) as spark:
        SpoolInput(spools).update(spark, out)


def read_view(out: Path) -> dict[str, list[TableRow]]:
    """The rows of the tables that are compared."""
    return {
        name: dataset.dataset(out / name, format="parquet").to_table().to_pylist()
        for name in TABLES
    }


def compare_refreshes(
    spools: Sequence[Path], view: Path, out: Path, seed: int
) -> Iterator[Violation]:
    """Tables that are kept up to date, whatever way records come, are those made from scratch."""
    shutil.rmtree(out, ignore_errors=True)
    records = records_in(spools).sort_by("at")
    fill_in_pieces(records, out, seed, tail=_TAIL_EVENTS)
    for difference in differences(out, view):
        yield Violation("history", "tables kept up to date", difference)
