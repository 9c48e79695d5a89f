"""The history pipeline's view of a run: its tables, made by Spark from the brokers' spools."""

from collections.abc import Sequence
from pathlib import Path

from pyarrow import dataset

from klamm.pipeline.history.folder import SpoolInput, write_tables
from klamm.pipeline.history.report import write_report
from klamm.pipeline.session import spark_session
from tests.chaos.agreement import TABLES, TableRow


def make_view(spools: Sequence[Path], out: Path) -> None:
    """Tables and `report.html`, as `klamm history --spool ... --out` makes them."""
    with spark_session(progress=False, little=True) as spark:
        records = SpoolInput(spools).lay_down(spark, out)
        assert records is not None, "nothing was laid down before"
        write_report(records, write_tables(records, out), out)


def read_view(out: Path) -> dict[str, list[TableRow]]:
    """The rows of the tables that are compared."""
    return {
        name: dataset.dataset(out / name, format="parquet").to_table().to_pylist()
        for name in TABLES
    }
