"""Folders of tables that tests fill piece by piece, without Spark, and compare."""

import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pytest
from pyarrow import parquet

from klamm.history.arrow import SCHEMA
from klamm.history.spool import read_spool
from klamm.pipeline.history import folder as folders
from klamm.pipeline.history.fold.schemas import TABLES as SCHEMAS
from klamm.pipeline.history.fold.task import STATE, FoldPlan, fold_shard, write_records
from klamm.pipeline.history.folder import HistoryFolder, keys_of
from klamm.pipeline.history.report_facts import Origin
from klamm.pipeline.ingest.location import Location

Row = dict[str, Any]
SPOOLS = Origin({"spools": ["here"]}, "spools")


@contextmanager
def folding_here() -> Iterator[pytest.MonkeyPatch]:
    """Shards are folded one after the other, without Spark, and no report is written."""

    def run_shards(spark: Any, plan: FoldPlan) -> list[Row]:
        sent = FoldPlan.from_json(plan.to_json())
        told = (fold_shard(sent, shard) for shard in range(plan.shards + 1))
        return [orjson.loads(orjson.dumps(each)) for each in told]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folders, "run_shards", run_shards)
        patch.setattr(folders, "write_report", lambda facts, out: None)
        yield patch


def open_folder(out: Path, shards: int = 1, **options: Any) -> HistoryFolder:
    return HistoryFolder(None, Location(str(out)), SPOOLS, shards=shards, **options)  # type: ignore[arg-type]


def records_in(spools: Sequence[Path]) -> pa.Table:
    batches = [batch for spool in spools for batch in read_spool(spool)]
    return pa.Table.from_batches(batches, SCHEMA)


def put_in(folder: HistoryFolder, records: pa.Table) -> None:
    name = f"incoming-{folder.next_serial:08d}-00000.arrows"
    write_records(folder.place / STATE / name, records)
    folder.refresh([name], keys_of(records))


def rows_of(out: Path, table: str) -> list[Row]:
    rows: list[Row] = parquet.read_table(out / table).to_pylist()
    return rows


def fill_in_pieces(records: pa.Table, out: Path, seed: int, *, tail: int) -> HistoryFolder:
    """A folder that took records late and twice, sealed its tail often, and was opened anew."""
    chance = random.Random(seed)
    with folding_here() as patch:
        patch.setattr(folders, "tail_rows", lambda partitions: tail)
        order = sorted(range(len(records)), key=lambda at: at + chance.uniform(0, 4 * tail))
        order += chance.sample(order, min(5, len(order)))
        folder = open_folder(out, shards=3)
        while order:
            count = chance.randint(tail - 2, 2 * tail + 3)
            put_in(folder, records.take(pa.array(order[:count])))
            del order[:count]
            if chance.random() < 0.2:  # as after a kill
                folder = open_folder(out, shards=3)
    return folder


def differences(found: Path, expected: Path) -> Iterator[str]:
    """The tables of two folders that differ, each with its first difference."""
    for table, schema in SCHEMAS.items():
        try:
            assert_same(rows_of(found, table), rows_of(expected, table), schema.names)
        except AssertionError as error:
            yield f"{table}: {str(error).splitlines()[0]}"


def assert_same(found: list[Row], expected: list[Row], columns: list[str]) -> None:
    found, expected = in_any_order(found, columns), in_any_order(expected, columns)
    assert len(found) == len(expected), f"{len(found)} rows, not {len(expected)}"
    for one, other in zip(found, expected, strict=True):
        for name in columns:
            if isinstance(one[name], float) and isinstance(other[name], float):
                is_same = math.isclose(one[name], other[name], rel_tol=1e-9, abs_tol=1e-6)
            else:
                is_same = one[name] == other[name]
            assert is_same, f"{name} of {one}, not of {other}"


def in_any_order(rows: list[Row], columns: list[str]) -> list[Row]:
    """Rows with these columns, in an order that depends on nothing else."""
    chosen = [{name: row[name] for name in columns} for row in rows]
    return sorted(chosen, key=lambda row: repr([_coarse(row[name]) for name in columns]))


def _coarse(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value
