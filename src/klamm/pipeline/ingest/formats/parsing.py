"""What formats have in common: values go in as a column, rows come out, bad ones by reason."""

from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

I64: TypeAlias = npt.NDArray[np.int64]

#: The columns of every format but raw, after those of the schema.
SOURCE_FIELDS: Final = (
    pa.field("_topic", pa.string()),
    pa.field("_partition", pa.int32()),
    pa.field("_offset", pa.int64()),
    pa.field("_timestamp", pa.timestamp("us", tz="UTC")),
)
_SOURCE_COLUMNS: Final = ("topic", "partition", "offset", "timestamp")
DEAD_LETTER_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("reason", pa.string()),
    ]
)
NO_VALUE: Final = "The record has no value (a tombstone)."


@dataclass(slots=True)
class Parsed:
    """Rows of a column of values: which values became rows, and why the others did not."""

    #: A struct for each row that was kept.
    rows: pa.StructArray
    #: The positions of these rows in the column, in order.
    kept: I64
    #: Position: reason.
    bad: dict[int, str] = field(default_factory=dict)
    #: Ids of a registry's schemas that are not known yet; their records are in neither.
    unknown_schemas: set[int] = field(default_factory=set)


class Parser(Protocol):
    """Parses the values of one format; travels to tasks."""

    @property
    def fields(self) -> pa.StructType:
        """The columns that come out."""

    def parse(self, values: pa.BinaryArray) -> Parsed:
        """Parse values, none of which is null."""


def source_columns(batch: pa.RecordBatch) -> list[pa.Array]:
    """Where the records come from, for the columns of SOURCE_FIELDS."""
    return [batch.column(name) for name in _SOURCE_COLUMNS]


def dead_letters(batch: pa.RecordBatch, bad: dict[int, str]) -> pa.Table:
    """Rows of the dead-letter table."""
    positions = sorted(bad)
    taken = batch.take(pa.array(positions, pa.int64()))
    columns: list[Any] = [
        taken.column(name) for name in DEAD_LETTER_SCHEMA.names if name != "reason"
    ]
    columns.append(pa.array([bad[each] for each in positions], pa.string()))
    return pa.Table.from_arrays(columns, schema=DEAD_LETTER_SCHEMA)


def all_positions(count: int) -> I64:
    """The positions of all rows."""
    return np.arange(count, dtype=np.int64)


def without(count: int, bad: dict[int, str]) -> I64:
    """The positions that are not bad."""
    keep = np.ones(count, dtype=np.bool_)
    keep[list(bad)] = False
    return np.flatnonzero(keep)
