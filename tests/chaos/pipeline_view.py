"""The history pipeline's view of a run: its tables, made by Spark from the brokers' spools."""

from collections.abc import Sequence
from pathlib import Path

from pyarrow import dataset

from klamm.pipeline.history.sources import SpoolInput
from klamm.pipeline.session import spark_session
from tests.chaos.agreement import TABLES, TableRow


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
