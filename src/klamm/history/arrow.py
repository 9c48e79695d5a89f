"""The records of the history as Arrow: one schema, a row for each event.

An event with very many decisions takes several rows, its *parts*: the header is repeated, the
decisions are divided. So a row, and a batch, stays small enough for one message of a topic. This
module imports pyarrow; only code that writes or reads histories imports it.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from klamm.core.columns import I32, NO_BROKER, tally, widen
from klamm.errors import KlammError
from klamm.history.records import Decisions, EventRecord

#: Decisions in one row at most, and in one batch about as many; events in one batch at most.
PART_DECISIONS_MAX: Final = 4096
BATCH_EVENTS_MAX: Final = 512
#: Raised when a column changes its meaning; new columns may come without.
FORMAT_VERSION: Final = b"1"
_VERSION_KEY: Final = b"klamm.history"

_IDS: Final = pa.list_(pa.int32())

DECISION: Final = pa.struct(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("kind", pa.string()),
        ("outcome", pa.string()),
        ("old_leader", pa.int32()),
        ("old_leader_epoch", pa.int32()),
        ("old_isr", _IDS),
        ("old_state", pa.string()),
        ("leader", pa.int32()),
        ("leader_epoch", pa.int32()),
        ("isr", _IDS),
        ("state", pa.string()),
        ("replicas", _IDS),
    ]
)
BROKER_CHANGE: Final = pa.struct(
    [("broker", pa.int32()), ("change", pa.string()), ("epoch", pa.int64())]
)
LOST_BROKER: Final = pa.struct([("broker", pa.int32()), ("alive_at", pa.timestamp("us", tz="UTC"))])
TOPIC_CHANGE: Final = pa.struct(
    [("topic", pa.string()), ("change", pa.string()), ("partitions", pa.int32())]
)
MOVE: Final = pa.struct(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("phase", pa.string()),
        ("replicas", _IDS),
        ("adding", _IDS),
        ("removing", _IDS),
    ]
)
SCHEMA: Final = pa.schema(
    [
        ("at", pa.timestamp("us", tz="UTC")),
        ("controller", pa.int32()),
        ("controller_epoch", pa.int32()),
        ("seq", pa.int64()),
        ("part", pa.int32()),
        ("parts", pa.int32()),
        ("kind", pa.string()),
        ("cause", pa.string()),
        ("caused_by", pa.int64()),
        ("term", pa.string()),
        ("outcome", pa.string()),
        ("queued_us", pa.int64()),
        ("reading_us", pa.int64()),
        ("deciding_us", pa.int64()),
        ("writing_us", pa.int64()),
        ("announcing_us", pa.int64()),
        ("total_us", pa.int64()),
        ("announced_after_us", pa.int64()),
        ("brokers", _IDS),
        ("topics", pa.list_(pa.string())),
        ("lost", pa.list_(LOST_BROKER)),
        ("session_timeout_ms", pa.int32()),
        ("cluster_id", pa.string()),
        ("broker_changes", pa.list_(BROKER_CHANGE)),
        ("topic_changes", pa.list_(TOPIC_CHANGE)),
        ("moves", pa.list_(MOVE)),
        ("decisions", pa.list_(DECISION)),
    ],
    metadata={_VERSION_KEY: FORMAT_VERSION},
)
#: Small first, since a spool holds more of it then; the work is done beside the event loop.
WRITE_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="zstd")

_OUTCOMES: Final = pa.array(["done", "bad_version", "no_node", "exists", "failed"])
_STATES: Final = pa.array(["new", "online", "offline", "non_existent"])


def check_schema(schema: pa.Schema, source: object) -> None:
    """Raise KlammError if a schema is not that of a history of this version."""
    version = (schema.metadata or {}).get(_VERSION_KEY)
    if version != FORMAT_VERSION:
        found = "none" if version is None else f"version {version.decode()}"
        expected = FORMAT_VERSION.decode()
        raise KlammError(f"{source} holds no history of version {expected}, but {found}.")


def conform(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns of `SCHEMA`: an older node writes fewer, a newer one may write more."""
    if batch.schema.names == SCHEMA.names:
        return batch
    present = set(batch.schema.names)
    columns = [
        batch.column(field.name)
        if field.name in present
        else pa.array([[]] * batch.num_rows, field.type)
        if pa.types.is_list(field.type)
        else pa.nulls(batch.num_rows, field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def encode_batches(records: Sequence[EventRecord]) -> Iterator[pa.RecordBatch]:
    """Batches of at most `BATCH_EVENTS_MAX` rows and, roughly, `PART_DECISIONS_MAX` decisions."""
    rows: list[tuple[EventRecord, int, int]] = []
    ends: list[int] = [0]
    for record in records:
        count = sum(map(len, record.decisions))
        parts = max(1, -(-count // PART_DECISIONS_MAX))
        for part in range(parts):
            rows.append((record, part, parts))
            ends.append(ends[-1] + min(count - part * PART_DECISIONS_MAX, PART_DECISIONS_MAX))
    decisions = pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()),
        _decisions([block for record in records for block in record.decisions]),
    )
    start = 0
    for end in range(1, len(rows) + 1):
        is_full = (
            end == len(rows)
            or end - start == BATCH_EVENTS_MAX
            or ends[end + 1] - ends[start] > PART_DECISIONS_MAX
        )
        if is_full:
            columns = [_column(name, rows[start:end]) for name in SCHEMA.names[:-1]]
            columns.append(decisions.slice(start, end - start))
            yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)
            start = end


def encode_stream(batch: pa.RecordBatch) -> bytes:
    """Encode a batch with its schema: the value of a message of the history topic."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=WRITE_OPTIONS) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def decode_stream(value: bytes | pa.Buffer | None, source: object) -> list[pa.RecordBatch]:
    """The records in a message of the history topic; KlammError says why if it holds none."""
    if value is None:
        raise KlammError(f"{source} holds no history: its value is null.")
    try:
        with pa.ipc.open_stream(value) as stream:
            check_schema(stream.schema, source)
            return [conform(batch) for batch in stream]
    except (pa.ArrowException, OSError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise KlammError(f"{source} holds no history: {reason}") from error


def _changes(records: Any, names: Sequence[str]) -> list[dict[str, Any]]:
    return [{name: getattr(record, name) for name in names} for record in records]


def _column(name: str, rows: Sequence[tuple[EventRecord, int, int]]) -> pa.Array:
    match name:
        case "part":
            values: list[Any] = [part for _, part, _ in rows]
        case "parts":
            values = [parts for _, _, parts in rows]
        case "broker_changes" | "topic_changes" | "moves":
            # Only the first part carries them, so that they count once.
            fields = SCHEMA.field(name).type.value_type.names
            values = [
                _changes(getattr(record, name), fields) if part == 0 else []
                for record, part, _ in rows
            ]
        case "lost":
            values = [_changes(record.lost, LOST_BROKER.names) for record, _, _ in rows]
        case _:
            attribute = name.removesuffix("_us")
            values = [getattr(record, attribute) for record, _, _ in rows]
    return pa.array(values, SCHEMA.field(name).type)


def _decisions(blocks: Sequence[Decisions]) -> pa.StructArray:
    """One struct array of all decisions, built column by column."""
    if not blocks:
        return pa.array([], DECISION)
    topics: list[str] = []
    kinds: list[str] = []
    topic_at, kind_at = [], []
    for block in blocks:
        topic_at.append(block.topic + len(topics))
        kind_at.append(block.kind.astype(np.int32) + len(kinds))
        topics += block.topics
        kinds += block.kinds
    columns = {
        "topic": pa.array(topics, pa.string()).take(pa.array(np.concatenate(topic_at))),
        "kind": pa.array(kinds, pa.string()).take(pa.array(np.concatenate(kind_at))),
        "outcome": _OUTCOMES.take(_joined(blocks, "outcome")),
        "old_state": _STATES.take(_joined(blocks, "old_state")),
        "state": _STATES.take(_joined(blocks, "state")),
        "old_isr": _lists(blocks, "old_isr"),
        "isr": _lists(blocks, "isr"),
        "replicas": _lists(blocks, "replicas"),
    }
    arrays = [
        columns[field.name] if field.name in columns else _joined(blocks, field.name)
        for field in DECISION
    ]
    return pa.StructArray.from_arrays(arrays, fields=list(DECISION))


def _joined(blocks: Sequence[Decisions], name: str) -> pa.Array:
    return pa.array(np.concatenate([getattr(block, name) for block in blocks]))


def _lists(blocks: Sequence[Decisions], name: str) -> pa.ListArray:
    """Padded rows of ids as lists: the marked slots in order, cut where each row's count ends."""
    columns: list[I32] = [getattr(block, name) for block in blocks]
    width = max(column.shape[1] for column in columns)
    rows = np.concatenate([widen(column, width) for column in columns])
    mask = rows != NO_BROKER
    offsets = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(tally(mask), out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(rows[mask]))
