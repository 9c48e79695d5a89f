"""Records and tables for tests without Spark or brokers."""

import datetime
import json
from urllib.parse import unquote

import duckdb
import fastavro
import pyarrow as pa

from klamm.pipeline.ingest.options import TableTarget
from klamm.pipeline.ingest.tables.parquet import read_manifest
from klamm.pipeline.source.columns import schema as source_schema
from klamm.pipeline.source.options import COLUMN_TYPES

#: The status of a manifest's entry whose file is no longer in the table.
ICEBERG_DELETED = 2
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
        """All rows, as somebody else reads them: DuckDB, with files from the table's own logs."""
        match self.kind:
            case "delta":
                files = delta_files(self.folder / name)
            case "iceberg":
                files = iceberg_files(self.folder / "warehouse" / "lake" / name)
            case _:
                files = read_manifest(f"{self.folder}/{name}")
        if not files:
            return []
        listed = duckdb.sql(
            f"select * from read_parquet({files!r}, hive_partitioning={self.kind != 'iceberg'}, "
            "union_by_name=true)"
        )
        table = listed.to_arrow_table()
        return table.sort_by(order).to_pylist() if table.num_rows else []


def delta_files(folder):
    """The files of a Delta table, by its log alone."""
    files = {}
    for version in sorted((folder / "_delta_log").glob("*.json")):
        for line in version.read_text().splitlines():
            action = json.loads(line)
            if "add" in action:
                files[action["add"]["path"]] = f"{folder}/{unquote(action['add']['path'])}"
            elif "remove" in action:
                files.pop(action["remove"]["path"], None)
    return list(files.values())


def iceberg_files(folder):
    """The files of an Iceberg table, by its newest metadata and manifests alone."""
    newest = max((folder / "metadata").glob("*.metadata.json"), key=lambda path: path.name)
    metadata = json.loads(newest.read_text())
    current = [
        each
        for each in metadata.get("snapshots", ())
        if each["snapshot-id"] == metadata.get("current-snapshot-id")
    ]
    return [
        local_path(entry["data_file"]["file_path"])
        for snapshot in current
        for manifest in read_avro(local_path(snapshot["manifest-list"]))
        for entry in read_avro(local_path(manifest["manifest_path"]))
        if entry["status"] != ICEBERG_DELETED
    ]


def read_avro(path):
    with open(path, "rb") as file:
        yield from fastavro.reader(file)


def local_path(uri):
    return uri.removeprefix("file://")
