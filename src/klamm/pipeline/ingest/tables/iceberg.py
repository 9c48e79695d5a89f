"""An Iceberg table, through pyiceberg and any catalog that it knows.

The number of the batch is a property of the table that changes in the same transaction as its
files, and a property of the snapshot, for people.
"""

import contextlib
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import WAREHOUSE_LOCATION, Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import parquet_files_to_data_files
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.table import TableProperties
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.transforms import DayTransform, IdentityTransform

from klamm.errors import ConfigError
from klamm.pipeline.ingest.evolution import added_and_widened
from klamm.pipeline.ingest.files import DataFile, Layout
from klamm.pipeline.ingest.location import Location, locate, s3_endpoint
from klamm.pipeline.ingest.options import PartitionBy
from klamm.pipeline.ingest.tables.table import PREFIX, Commit, CommitConflictError

_OWNER: Final = f"{PREFIX}query"
_BATCH: Final = f"{PREFIX}batch"
_DEFAULT_NAMESPACE: Final = "default"


class IcebergFiles:
    """An Iceberg table that exists."""

    def __init__(self, table: PyIcebergTable) -> None:
        self._table = table
        self._folder: Location = locate(table.location()) / "data"

    @classmethod
    def open(cls, name: str, properties: Mapping[str, str]) -> "IcebergFiles | None":
        catalog, identifier = _catalog(name, properties)
        try:
            return cls(catalog.load_table(identifier))
        except NoSuchTableError:
            return None
        except Exception as error:
            raise ConfigError(f"iceberg:{name} cannot be opened: {error}") from None

    @classmethod
    def create(
        cls,
        name: str,
        properties: Mapping[str, str],
        schema: pa.Schema,
        partition_by: tuple[PartitionBy, ...],
        owner: str,
    ) -> "IcebergFiles":
        catalog, identifier = _catalog(name, properties)
        try:
            catalog.create_namespace_if_not_exists(identifier[:-1])
            # The fields get their ids from the catalog, so the partitioning comes after them.
            with catalog.create_table_transaction(
                identifier,
                schema,
                properties={
                    _OWNER: owner,
                    # A second try would not look whether another driver has committed the batch.
                    "commit.retry.num-retries": "0",
                },
            ) as transaction:
                if partition_by:
                    with transaction.update_spec() as spec:
                        for each in partition_by:
                            transform: Any = DayTransform() if each.by_day else IdentityTransform()
                            spec.add_field(each.column, transform)
        except TableAlreadyExistsError:
            pass  # by another driver of the same query, or else the owner tells
        except Exception as error:
            raise ConfigError(f"iceberg:{name} cannot be created: {error}") from None
        return cls(catalog.load_table(identifier))

    @property
    def owner(self) -> str | None:
        return self._table.properties.get(_OWNER)

    @property
    def last_batch(self) -> int | None:
        self._table.refresh()
        found = self._table.properties.get(_BATCH)
        return None if found is None else int(found)

    def schema(self) -> pa.Schema:
        return _plain(self._table.schema().as_arrow())

    def layout(self, schema: pa.Schema, partition_by: tuple[PartitionBy, ...]) -> Layout:
        return Layout(self._folder, schema, partition_by, keeps_partition_columns=True)

    def evolve(self, schema: pa.Schema) -> None:
        added, widened = added_and_widened(self.schema(), schema)
        if added or widened:
            with self._table.update_schema() as update:
                update.union_by_name(pa.schema([*added, *widened.values()]))
            self._table.refresh()

    def files(self) -> list[DataFile]:
        self._table.refresh()
        return [self._described(each.file) for each in self._table.scan().plan_files()]

    def commit(self, change: Commit) -> None:
        notes = {f"{PREFIX}{name}": str(value) for name, value in change.notes.items()}
        if change.batch is not None:
            notes[_BATCH] = str(change.batch)
        removed = {each.path for each in change.remove}
        old = [
            each.file
            for each in (self._table.scan().plan_files() if removed else ())
            if self._described(each.file).path in removed
        ]
        if len(old) != len(removed):
            raise CommitConflictError(f"{self._name}: another writer has removed files.")
        try:
            with self._table.transaction() as transaction:
                if change.batch is not None:
                    transaction.set_properties({_BATCH: str(change.batch)})
                if transaction.table_metadata.name_mapping() is None:
                    mapping = self._table.schema().name_mapping.model_dump_json()
                    transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})
                if change.add or old:
                    update = transaction.update_snapshot(snapshot_properties=notes)
                    paths = [f"{self._folder}/{each.path}" for each in change.add]
                    producer = update.overwrite() if old else update.fast_append()
                    with producer as snapshot:
                        for file in old:
                            snapshot.delete_data_file(file)
                        for file in parquet_files_to_data_files(
                            self._table.io, transaction.table_metadata, iter(paths)
                        ):
                            snapshot.append_data_file(file)
        except CommitFailedException as error:
            raise CommitConflictError(f"{self._name}: {error}") from None
        self._table.refresh()

    def expire(self, older_than_s: float) -> None:
        import datetime

        limit = datetime.datetime.now() - datetime.timedelta(seconds=older_than_s)
        before = self._table.metadata.snapshots
        with self._table.maintenance.expire_snapshots() as expired:
            expired.older_than(limit)
        self._table.refresh()
        kept = self._table.metadata.snapshots
        ids = {each.snapshot_id for each in kept}
        gone = [each for each in before if each.snapshot_id not in ids]
        if gone:
            # Readers of a version that is kept never look at these.
            for path in sorted(self._referred(gone) - self._referred(kept)):
                with contextlib.suppress(FileNotFoundError):
                    self._table.io.delete(path)

    def _referred(self, snapshots: Iterable[Snapshot]) -> set[str]:
        """The files that snapshots consist of: lists of manifests, manifests, and data files."""
        io = self._table.io
        lists = {each.manifest_list for each in snapshots}
        manifests = {
            manifest.manifest_path: manifest
            for each in snapshots
            for manifest in each.manifests(io)
        }
        # A file that another writer has put below another folder is left to that writer.
        own = f"{self._folder}/"
        data = {
            entry.data_file.file_path
            for manifest in manifests.values()
            for entry in manifest.fetch_manifest_entry(io)
            if locate(entry.data_file.file_path).uri.startswith(own)
        }
        return lists | set(manifests) | data

    @property
    def _name(self) -> str:
        return "iceberg:" + ".".join(self._table.name())

    def _described(self, file: Any) -> DataFile:
        path = locate(file.file_path).uri
        partition = {
            part.split("=", 1)[0]: part.split("=", 1)[1]
            for part in path.removeprefix(f"{self._folder}/").split("/")[:-1]
            if "=" in part
        }
        return DataFile(
            path.removeprefix(f"{self._folder}/"),
            file.file_size_in_bytes,
            file.record_count,
            partition,
        )


def place_in_warehouse(name: str, properties: Mapping[str, str]) -> str:
    """The path of a table that may not exist yet, in the warehouse of its catalog."""
    catalog, identifier = _catalog(name, properties)
    warehouse = catalog.properties.get(WAREHOUSE_LOCATION, "")
    # A REST catalog may call its warehouse by a name.
    if "/" not in warehouse:
        raise ConfigError(
            f"The catalog of iceberg:{name} names no folder as its warehouse, so there is no place "
            "beside the table: name --checkpoint DIR."
        )
    return "/".join((warehouse.rstrip("/"), *identifier))


def _catalog(name: str, properties: Mapping[str, str]) -> tuple[Catalog, tuple[str, ...]]:
    """The catalog, and the name of the table in it; a table without namespace is in `default`."""
    catalog_name, _, rest = name.partition(".")
    parts = tuple(rest.split("."))
    identifier = parts if len(parts) > 1 else (_DEFAULT_NAMESPACE, *parts)
    try:
        catalog = load_catalog(catalog_name, **properties)
        # pyiceberg itself does not look at the variables by which other clients find S3.
        surroundings = {"s3.endpoint": s3_endpoint(), "s3.region": os.environ.get("AWS_REGION")}
        more = {
            key: value
            for key, value in surroundings.items()
            if value is not None and key not in catalog.properties
        }
        if more:
            catalog = load_catalog(catalog_name, **{**properties, **more})
        return catalog, identifier
    except Exception as error:
        raise ConfigError(
            f"There is no catalog {catalog_name}: {error} Configure it in ~/.pyiceberg.yaml, by "
            f"PYICEBERG_CATALOG__{catalog_name.upper()}__URI, or with --catalog-property uri=..."
        ) from None


def _plain(schema: pa.Schema) -> pa.Schema:
    """Without the ids of fields, and with the types that are written."""
    return pa.schema([pa.field(each.name, _plain_type(each.type)) for each in schema])


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _plain_type(each.type)) for each in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    return kind
