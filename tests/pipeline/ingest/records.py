"""Records and tables for tests without Spark or brokers."""

import datetime
import json

import duckdb
import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from klamm.pipeline.ingest.options import TableTarget
from klamm.pipeline.ingest.tables.parquet import read_manifest
from klamm.pipeline.source.columns import schema as source_schema
from klamm.pipeline.source.options import COLUMN_TYPES

AT = datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC)


def records(values, keys=None, *, topic="orders", partition=0, start=0, at=AT):
    """A batch as the source reads it."""
    count = len(values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(keys or [None] * count, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array([topic] * count),
            pa.array([partition] * count, pa.int32()),
            pa.array(range(start, start + count), pa.int64()),
            pa.array([at] * count, pa.timestamp("us", tz="UTC")),
            pa.array([0] * count, pa.int32()),
        ],
        schema=source_schema([name for name in COLUMN_TYPES if name != "headers"]),
    )


def as_json(*rows):
    return [None if each is None else json.dumps(each).encode() for each in rows]


class Place:
    """Where a kind of table is made for one test, and how another engine reads it."""

    def __init__(self, kind, folder):
        self.kind = kind
        self.folder = folder
        self.catalog = {}
        if kind == "iceberg":
            self.catalog = {
                "type": "sql",
                "uri": f"sqlite:///{folder}/catalog.db",
                "warehouse": f"file://{folder}/warehouse",
            }

    def target(self, name="orders"):
        if self.kind == "iceberg":
            return TableTarget("iceberg", f"test.lake.{name}")
        return TableTarget(self.kind, f"{self.folder}/{name}")

    def rows(self, name="orders", *, order="_offset"):
        """All rows, as somebody else reads them."""
        match self.kind:
            case "delta":
                table = DeltaTable(f"{self.folder}/{name}").to_pyarrow_table()
            case "iceberg":
                catalog = load_catalog("test", **self.catalog)
                table = catalog.load_table(f"lake.{name}").scan().to_arrow()
            case _:
                files = read_manifest(f"{self.folder}/{name}")
                if not files:
                    return []
                listed = duckdb.sql(
                    f"select * from read_parquet({files!r}, hive_partitioning=true, "
                    "union_by_name=true)"
                )
                table = listed.to_arrow_table()
        return table.sort_by(order).to_pylist() if table.num_rows else []
