"""A Delta table, through delta-rs.

The query is the application of Delta's own transaction identifiers and the batch its version, so
that any Delta reader can tell how far the query has got.
"""

import json
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable, Field, Schema
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, CommitProperties, RemoveAction, Transaction

from klamm.errors import ConfigError
from klamm.pipeline.ingest.evolution import added_and_widened
from klamm.pipeline.ingest.files import DataFile, Layout, partition_text
from klamm.pipeline.ingest.location import Location, locate
from klamm.pipeline.ingest.options import PartitionBy
from klamm.pipeline.ingest.tables.table import PREFIX, Commit, CommitConflictError

_OWNER: Final = f"{PREFIX}query"
_REWRITE: Final = "The table is rewritten with wider columns."


class DeltaFiles:
    """A Delta table that exists."""

    def __init__(self, folder: Location, table: DeltaTable) -> None:
        self._folder = folder
        self._table = table

    @classmethod
    def open(cls, path: str, _: Mapping[str, str]) -> "DeltaFiles | None":
        folder = locate(path)
        try:
            return cls(folder, DeltaTable(folder.uri))
        except TableNotFoundError:
            if folder.is_local and not folder.is_empty():
                raise ConfigError(f"{folder} is not empty and not a Delta table.") from None
            return None
        except (DeltaError, OSError) as error:
            raise ConfigError(f"{folder} cannot be opened as a Delta table: {error}") from None

    @classmethod
    def create(
        cls,
        path: str,
        _: Mapping[str, str],
        schema: pa.Schema,
        partition_by: tuple[PartitionBy, ...],
        owner: str,
    ) -> "DeltaFiles":
        folder = locate(path)
        columns = Layout(folder, schema, partition_by).table_schema
        try:
            table = DeltaTable.create(
                folder.uri,
                columns,
                partition_by=[each.name for each in partition_by],
                configuration={_OWNER: owner},
                raise_if_key_not_exists=False,
            )
        except (DeltaError, OSError) as error:
            raise ConfigError(f"{folder} cannot be created as a Delta table: {error}") from None
        return cls(folder, table)

    @property
    def owner(self) -> str | None:
        return self._table.metadata().configuration.get(_OWNER)

    @property
    def last_batch(self) -> int | None:
        owner = self.owner
        self._table.update_incremental()
        return None if owner is None else self._table.transaction_version(owner)

    def schema(self) -> pa.Schema:
        return pa.schema(self._table.schema().to_arrow())

    def layout(self, schema: pa.Schema, partition_by: tuple[PartitionBy, ...]) -> Layout:
        return Layout(self._folder, schema, partition_by)

    def evolve(self, schema: pa.Schema) -> None:
        added, widened = added_and_widened(self.schema(), schema)
        if widened:
            self._rewrite(added_to(self.schema(), added, widened))
        elif added:
            fields = Schema.from_arrow(pa.schema(added)).fields
            self._table.alter.add_columns([Field(each.name, each.type) for each in fields])

    def files(self) -> list[DataFile]:
        self._table.update_incremental()
        listing = pa.table(self._table.get_add_actions(flatten=False)).to_pylist()
        return [
            DataFile(
                unquote(each["path"]),  # as the log has it: a URI
                each["size_bytes"],
                each["num_records"] or 0,
                {
                    name: partition_text(value)
                    for name, value in (each.get("partition") or {}).items()
                },
            )
            for each in listing
        ]

    def commit(self, change: Commit) -> None:
        now_ms = int(time.time() * 1000)
        is_change = change.batch is not None
        actions: list[AddAction | RemoveAction] = [
            AddAction(
                each.path, each.size, each.partition, now_ms, is_change, json.dumps(each.stats)
            )
            for each in change.add
        ]
        actions += [
            RemoveAction(each.path, is_change, now_ms, each.size, dict(each.partition))
            for each in change.remove
        ]
        notes: dict[str, Any] = {PREFIX.rstrip("."): dict(change.notes)}
        transactions = None
        if change.batch is not None:
            assert self.owner is not None
            transactions = [Transaction(self.owner, change.batch, now_ms)]
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                partition_by=self._table.metadata().partition_columns,
                # A second try would not look whether another driver has committed the batch.
                commit_properties=CommitProperties(
                    custom_metadata=notes, max_commit_retries=0, app_transactions=transactions
                ),
            )
        except CommitFailedError as error:
            raise CommitConflictError(f"{self._folder}: {error}") from None
        self._table.update_incremental()

    def expire(self, older_than_s: float) -> None:
        self._table.update_incremental()
        limit_ms = (time.time() - older_than_s) * 1000
        history = self._table.history()
        young = [each["version"] for each in history if each["timestamp"] >= limit_ms]
        # Readers may still be at the version that was current when the first of these was made.
        current = [each["version"] for each in history if each["timestamp"] < limit_ms][:1]
        self._table.vacuum(
            # Whole hours only, so the versions say the rest.
            retention_hours=int(older_than_s // 3600),
            keep_versions=sorted(current + young),
            dry_run=False,
            enforce_retention_duration=False,
            full=True,  # with files that no version ever had, of attempts that failed
        )

    def _rewrite(self, schema: pa.Schema) -> None:
        """Write every row again in wider columns: few Delta readers widen while they read."""
        from deltalake import write_deltalake

        rows = self._table.to_pyarrow_dataset().scanner().to_reader()
        batches = (each.cast(schema) for each in _widened(rows, schema))
        write_deltalake(
            self._table,
            pa.RecordBatchReader.from_batches(schema, batches),
            mode="overwrite",
            schema_mode="overwrite",
            partition_by=self._table.metadata().partition_columns or None,
            commit_properties=CommitProperties(custom_metadata={"klamm": {"note": _REWRITE}}),
        )
        self._table.update_incremental()


def _widened(rows: pa.RecordBatchReader, schema: pa.Schema) -> Any:
    for batch in rows:
        columns = [
            batch.column(name)
            if name in batch.schema.names
            else pa.nulls(batch.num_rows, schema.field(name).type)
            for name in schema.names
        ]
        yield pa.RecordBatch.from_arrays(columns, names=schema.names)


def added_to(
    schema: pa.Schema, added: list[pa.Field], widened: Mapping[str, pa.Field]
) -> pa.Schema:
    """The schema with columns added at the end, and with wider ones in their place."""
    return pa.schema([*(widened.get(each.name, each) for each in schema), *added])
