"""The events of one partition in a history: in order, without duplicates, with gaps marked.

The spools of several nodes, or a topic with duplicate messages, are merged here: events are
ordered by controller epoch and sequence, duplicates are dropped, and gaps are entries of their own.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Row: TypeAlias = dict[str, Any]
_NESTED: Final = ("decisions", "moves", "topic_changes")


@dataclass(frozen=True, slots=True)
class Gap:
    """Events that are missing from the history.

    With `last` the events from `first` to it are missing, or parts of them; without, everything
    of the epoch is.
    """

    controller_epoch: int
    first: int = 1
    last: int | None = None


@dataclass(slots=True)
class _Seen:
    """The parts of one event that were found."""

    parts: int
    met: set[int] = field(default_factory=set)
    rows: list[Row] = field(default_factory=list)


def read_partition_events(
    batches: Iterable[pa.RecordBatch], topic: str, partition: int
) -> Iterator[Row | Gap]:
    """The controller terms, the events about the partition or its topic, and all gaps.

    A row has the columns of docs/history.md, with decisions, moves and topic changes reduced to
    those about the partition, and without parts.
    """
    epochs: dict[int, dict[int, _Seen]] = defaultdict(dict)
    for batch in batches:
        rows = _rows_about(batch, topic, partition)
        keys = zip(
            *(batch.column(n).to_pylist() for n in ("controller_epoch", "seq", "part", "parts")),
            strict=True,
        )
        for at, (epoch, seq, part, parts) in enumerate(keys):
            seen = epochs[epoch].setdefault(seq, _Seen(parts))
            if part not in seen.met and at in rows:
                seen.rows.append(rows[at])
            seen.met.add(part)
    previous: int | None = None
    for epoch in sorted(epochs):
        if previous is not None:
            yield from (Gap(missing) for missing in range(previous + 1, epoch))
        yield from _in_order(epoch, epochs[epoch])
        previous = epoch


def _in_order(epoch: int, events: dict[int, _Seen]) -> Iterator[Row | Gap]:
    expected = 1
    for seq in sorted(events):
        seen = events[seq]
        is_torn = len(seen.met) < seen.parts
        if seq > expected or is_torn:
            yield Gap(epoch, expected, seq if is_torn else seq - 1)
        expected = seq + 1
        row = _joined(sorted(seen.rows, key=lambda row: row["part"]))
        if row is not None:
            yield row


def _joined(parts: list[Row]) -> Row | None:
    """Merge the parts of an event into one row; None if none of them is about the partition."""
    if not any(row["term"] or any(row[name] for name in _NESTED) for row in parts):
        return None
    whole = dict(parts[0])
    for row in parts[1:]:
        for name in (*_NESTED, "broker_changes"):
            whole[name] = whole[name] + row[name]
    del whole["part"], whole["parts"]
    return whole


def _rows_about(batch: pa.RecordBatch, topic: str, partition: int) -> dict[int, Row]:
    """The rows of a batch that may be about the partition, by position."""
    found = {name: _chosen(batch.column(name), topic, partition) for name in _NESTED}
    chosen = set().union(*found.values())
    chosen.update(pc.indices_nonzero(pc.is_valid(batch.column("term"))).to_pylist())
    # The first part of an event has its cause; the partition may be in another part.
    first = pc.and_(pc.equal(batch.column("part"), 0), pc.greater(batch.column("parts"), 1))
    chosen.update(pc.indices_nonzero(first).to_pylist())
    order = sorted(chosen)
    header = batch.select([name for name in batch.schema.names if name not in _NESTED])
    rows = header.take(pa.array(order, pa.int64())).to_pylist()
    for at, row in zip(order, rows, strict=True):
        row |= {name: found[name].get(at, []) for name in _NESTED}
    return dict(zip(order, rows, strict=True))


def _chosen(lists: pa.ListArray, topic: str, partition: int) -> dict[int, list[Row]]:
    """The entries about the partition, or about its topic, by the position of their row."""
    entries = lists.flatten()
    is_about = pc.equal(entries.field("topic"), topic)
    if entries.type.get_field_index("partition") >= 0:
        is_about = pc.and_(is_about, pc.equal(entries.field("partition"), partition))
    at = pc.indices_nonzero(is_about)
    found: dict[int, list[Row]] = defaultdict(list)
    owners = pc.list_parent_indices(lists).take(at).to_pylist()
    for owner, entry in zip(owners, entries.take(at).to_pylist(), strict=True):
        found[owner].append(entry)
    return found
