"""What the driver asks of a table, whatever its kind.

A commit adds and removes files as one step, and says in the same step which batch of which query it
is. Nothing else changes what a reader sees.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pyarrow as pa

from klamm.errors import ConfigError, KlammError
from klamm.pipeline.ingest.files import DataFile, Layout
from klamm.pipeline.ingest.options import PartitionBy, TableTarget, need

#: Properties of tables and commits begin with this.
PREFIX: Final = "klamm."
_CHECKPOINT: Final = "_checkpoint"


class CommitConflictError(KlammError):
    """Another writer changed the table at the same time; nothing of this commit is in it."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A change of a table."""

    add: Sequence[DataFile]
    remove: Sequence[DataFile] = ()
    #: The number of the batch; None for a compaction, which changes no row.
    batch: int | None = None
    #: For people: the offsets of the batch, and counts.
    notes: Mapping[str, Any] = field(default_factory=dict)


class Table(Protocol):
    """A table that exists."""

    @property
    def owner(self) -> str | None:
        """The query that the table belongs to; None if klamm did not create it."""

    @property
    def last_batch(self) -> int | None:
        """The number of the last batch of the owner that is in the table."""

    def schema(self) -> pa.Schema:
        """The columns of the table as it is now."""

    def layout(self, schema: pa.Schema, partition_by: tuple[PartitionBy, ...]) -> Layout:
        """How tasks lay out the files of the table, for rows of these columns."""

    def evolve(self, schema: pa.Schema) -> None:
        """Add the columns that the table lacks, and widen those that the schema has wider."""

    def files(self) -> list[DataFile]:
        """The files of the table as it is now."""

    def commit(self, change: Commit) -> None:
        """Add and remove files as one step; a conflict changes nothing."""

    def expire(self, older_than_s: float) -> None:
        """Delete old versions and files that no version has."""


def open_table(target: TableTarget, catalog: Mapping[str, str]) -> Table | None:
    """The table, or None if there is none yet."""
    return _implementation(target).open(target.name, catalog)  # type: ignore[no-any-return]


def create_table(
    target: TableTarget,
    catalog: Mapping[str, str],
    schema: pa.Schema,
    partition_by: tuple[PartitionBy, ...],
    owner: str,
) -> Table:
    """A new table that belongs to a query."""
    for each in partition_by:
        if each.column not in schema.names:
            raise ConfigError(
                f"There is no column {each.column} to partition by; the columns are "
                f"{', '.join(schema.names)}."
            )
        if each.by_day and not pa.types.is_timestamp(schema.field(each.column).type):
            raise ConfigError(
                f"day({each.column}) needs a timestamp; {each.column} is "
                f"{schema.field(each.column).type}."
            )
    return _implementation(target).create(  # type: ignore[no-any-return]
        target.name, catalog, schema, partition_by, owner
    )


def checkpoint_beside(target: TableTarget, catalog: Mapping[str, str]) -> str:
    """The folder beside a table in which its query keeps its plans unless another is named."""
    if target.kind != "iceberg":
        return target.name.rstrip("/") + _CHECKPOINT
    need("pyiceberg", "An Iceberg table")
    from klamm.pipeline.ingest.tables.iceberg import place_in_warehouse

    return place_in_warehouse(target.name, catalog) + _CHECKPOINT


def _implementation(target: TableTarget) -> Any:
    # Each kind imports its own library of the extra, only when that kind is used.
    match target.kind:
        case "delta":
            need("deltalake", "A Delta table")
            from klamm.pipeline.ingest.tables.delta import DeltaFiles

            return DeltaFiles
        case "iceberg":
            need("pyiceberg", "An Iceberg table")
            from klamm.pipeline.ingest.tables.iceberg import IcebergFiles

            return IcebergFiles
        case "parquet":
            from klamm.pipeline.ingest.tables.parquet import ParquetFiles

            return ParquetFiles
