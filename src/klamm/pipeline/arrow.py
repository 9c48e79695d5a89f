"""Arrow batches and columns: the schemas of a snapshot, and lists of brokers in both forms.

In Arrow a list of brokers is a list; in the kernels it is a row padded with `NO_BROKER`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from klamm.core.columns import I32, I64, NO_BROKER, Mask, count

#: Increased when a reader of the old form could misread the new one.
SNAPSHOT_VERSION: Final = 1

META: Final = pa.schema(
    [
        ("version", pa.int32()),
        ("cluster_id", pa.string()),
        ("source", pa.string()),
        ("taken_at", pa.timestamp("us", tz="UTC")),
    ]
)
BROKERS: Final = pa.schema(
    [("id", pa.int32()), ("host", pa.string()), ("port", pa.int32()), ("rack", pa.string())]
)
TOPICS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partitions", pa.int32()),
        ("config", pa.map_(pa.string(), pa.string())),
    ]
)
PARTITIONS: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("replicas", pa.list_(pa.int32())),
        ("isr", pa.list_(pa.int32())),
        ("leader", pa.int32()),
        ("leader_epoch", pa.int32()),
        ("min_isr", pa.int32()),
        ("unclean", pa.bool_()),
        ("bytes", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True, eq=False)
class PartitionColumns:
    """The columns of partitions that the kernels need."""

    replicas: I32
    isr: I32
    leader: I32
    min_isr: I32
    unclean: Mask

    def __len__(self) -> int:
        return len(self.leader)

    def rows(self, start: int, stop: int) -> "PartitionColumns":
        """Some of the partitions, as views of the same columns."""
        return PartitionColumns(
            replicas=self.replicas[start:stop],
            isr=self.isr[start:stop],
            leader=self.leader[start:stop],
            min_isr=self.min_isr[start:stop],
            unclean=self.unclean[start:stop],
        )


def partitions_from_arrow(rows: pa.Table | pa.RecordBatch) -> PartitionColumns:
    """The columns of a table or batch with a snapshot's partitions."""
    return PartitionColumns(
        replicas=rows_from_arrow(rows["replicas"]),
        isr=rows_from_arrow(rows["isr"]),
        leader=numbers_from_arrow(rows["leader"], NO_BROKER).astype(np.int32),
        min_isr=numbers_from_arrow(rows["min_isr"], 1).astype(np.int32),
        unclean=numbers_from_arrow(rows["unclean"], False).astype(np.bool_),
    )


def numbers_from_arrow(column: Any, missing: float | bool) -> Any:
    """A column of numbers or booleans, with `missing` instead of null."""
    return pc.fill_null(column, missing).to_numpy(zero_copy_only=False)


def rows_from_arrow(lists: Any) -> I32:
    """Lists of brokers as padded rows; null counts as an empty list."""
    if isinstance(lists, pa.ChunkedArray):
        lists = lists.combine_chunks()
    length = numbers_from_arrow(pc.list_value_length(lists), 0).astype(np.int64)
    width = int(length.max(initial=1))
    rows = np.full((len(lists), width), NO_BROKER, np.int32)
    rows[np.arange(width) < length[:, None]] = lists.flatten().to_numpy(zero_copy_only=False)
    return rows


def rows_to_arrow(rows: I32) -> pa.ListArray:
    """Padded rows as lists of brokers."""
    ends: I64 = np.cumsum(count(rows), dtype=np.int64)
    offsets = np.concatenate([[0], ends]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(rows[rows != NO_BROKER]))


def in_chunks(batches: Iterable[pa.RecordBatch], rows_min: int) -> Iterator[pa.Table]:
    """Join batches into tables of at least `rows_min` rows, except the last.

    Spark delivers small batches; the kernels are faster on large ones.
    """
    pending: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        pending.append(batch)
        size += batch.num_rows
        if size >= rows_min:
            yield pa.Table.from_batches(pending)
            pending, size = [], 0
    if pending:
        yield pa.Table.from_batches(pending)
