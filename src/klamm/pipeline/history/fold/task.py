"""One shard's part of a refresh: fold the records that are not final into the shard's tables.

A shard has a state, which stands for all records up to some event (the base), and gets the records
after it (the tail), old and new. It folds the tail into the state and writes what comes of it.
When the tail is long, its older half is sealed: its finished rows get files that do
not change any more, and the state moves on. Late records that fall into the tail need no special
care, and the cost of a refresh does not depend on how long the history is.

The task knows Arrow and files; it needs no Spark session. All that it does can be done again.
"""

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, TypeAlias

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from klamm.history.arrow import SCHEMA
from klamm.pipeline.history.fold import summary
from klamm.pipeline.history.fold.cluster import ClusterHistory
from klamm.pipeline.history.fold.schemas import OF_CLUSTER, OF_TOPICS, PLACED_DECISION, ROUTED
from klamm.pipeline.history.fold.topics import TopicShard
from klamm.pipeline.ingest.location import Location

Row: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[int, int]
#: The shard that has no topics but the cluster itself.
CLUSTER_SHARD: Final = 0
STATE: Final = "_state"
#: The folder of files that are being written, or wait for the end of their refresh. Nothing else
#: is there, so that opening a long history does not list its tables.
STAGED: Final = "_staged"
_EMPTY: Final = np.empty(0, np.int64)
#: The columns of a record that have times, with numbers instead.
_IN_MICROS: Final = {
    "at": pa.int64(),
    "lost": pa.list_(pa.struct([("broker", pa.int32()), ("alive_at", pa.int64())])),
}


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """The input that all tasks of a refresh share; it is sent as JSON."""

    out: str
    #: Shards of topics; the cluster's is one more.
    shards: int
    #: The number of the present base, 0 for none, and of the refresh.
    generation: int
    serial: int
    #: Files in `_state` with the tail and with what came now; those have fresh records only.
    inputs: tuple[str, ...]
    #: The last event that is final; records up to it are duplicates.
    base: Key | None
    #: The last event to be sealed now; None if nothing is.
    seal_until: Key | None
    #: Whether files wait in another place until the manifest is written.
    is_staged: bool
    cluster_id: str | None
    #: When the history begins and ends.
    history_from: int
    history_until: int
    min_isr: Mapping[str, int] = field(default_factory=dict)
    #: The settings of the object store's client.
    store: tuple[tuple[str, str | bool], ...] = field(default=(), repr=False)

    def to_json(self) -> bytes:
        return orjson.dumps(self)

    @classmethod
    def from_json(cls, content: bytes) -> "FoldPlan":
        values = orjson.loads(content)
        base, until = values["base"], values["seal_until"]
        return cls(
            **values
            | {
                "inputs": tuple(values["inputs"]),
                "store": tuple((name, value) for name, value in values["store"]),
                "base": None if base is None else tuple(base),
                "seal_until": None if until is None else tuple(until),
            }
        )

    @property
    def next_generation(self) -> int:
        return self.generation if self.seal_until is None else self.generation + 1

    def place(self, table: str, name: str) -> str:
        """Where below the folder a file of a table is written."""
        return staged_place(table, name, self.serial) if self.is_staged else f"{table}/{name}"

    @property
    def folder(self) -> Location:
        return Location(self.out, self.store)


def shard_of(topic: str, shards: int) -> int:
    """The shard of a topic, from 1 on."""
    return 1 + zlib.crc32(topic.encode()) % shards


def state_name(generation: int, shard: int) -> str:
    """The file with a shard's state as of a base."""
    return f"base-{generation:06d}-{shard:02d}.json"


def sealed_name(generation: int, shard: int) -> str:
    """The file with a shard's rows that a seal made final."""
    return f"part-{generation:06d}-{shard:02d}.parquet"


def tail_name(shard: int) -> str:
    """The file with a shard's rows that may change."""
    return f"tail-{shard:02d}.parquet"


def staged_place(table: str, name: str, serial: int) -> str:
    """Where below the folder a file of a table waits for the end of its refresh."""
    return f"{STAGED}/{table}.{name}.{serial:08d}"


def tail_records_name(serial: int) -> str:
    """The file in `_state` with the records of the tail, as a refresh left it."""
    return f"tail-{serial:08d}.arrows"


def fold_shard(plan: FoldPlan, shard: int) -> Row:
    """Fold and write; returns the shard's summary."""
    records = _read_inputs(plan)
    if shard == CLUSTER_SHARD:
        return _fold_cluster(plan, records)
    return _fold_topics(plan, shard, records)


def write_rows(folder: Location, place: str, schema: pa.Schema, rows: pa.Table | list[Row]) -> int:
    """Put a file with these rows in a place below the folder; returns their number.

    A file that has the same rows is left alone, so that readers and caches are not disturbed.
    """
    made = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows, schema=schema)
    sink = pa.BufferOutputStream()
    parquet.write_table(made, sink, compression="zstd")
    file, content = folder / place, sink.getvalue().to_pybytes()
    if file.read() != content:
        file.replace(content, by_way_of=folder / STAGED)
    return int(made.num_rows)


def _fold_cluster(plan: FoldPlan, records: pa.Table) -> Row:
    state = ClusterHistory(_load_state(plan, CLUSTER_SHARD))
    slim = records.drop_columns(["decisions", "moves", "topic_changes"]).append_column(
        "decision_count", pc.fill_null(pc.list_value_length(records.column("decisions")), 0)
    )
    sealed, open_tail = _divide(records, plan.seal_until)
    counts = _fold(plan, CLUSTER_SHARD, state, slim, OF_CLUSTER)
    if plan.seal_until is not None:
        place = plan.place("records", sealed_name(plan.next_generation, CLUSTER_SHARD))
        sealed = _stamped(sealed, plan.cluster_id)
        counts["sealed"]["records"] = write_rows(plan.folder, place, SCHEMA, sealed)
    place = plan.place("records", tail_name(CLUSTER_SHARD))
    shown = _stamped(open_tail, plan.cluster_id)
    counts["tail"]["records"] = write_rows(plan.folder, place, SCHEMA, shown)
    write_records(plan.folder / STATE / tail_records_name(plan.serial), open_tail)
    return {"rows": counts, "cluster": summary.of_cluster(state)}


def _fold_topics(plan: FoldPlan, shard: int, records: pa.Table) -> Row:
    state = TopicShard(_load_state(plan, shard), plan.min_isr)
    state.history_from, state.history_until = plan.history_from, plan.history_until
    routed = route(records, shard, plan.shards)
    sealed_changes: list[tuple[int, int, int]] = []

    def on_sealed() -> None:
        sealed_changes.extend(summary.leader_changes(state))
        state.leader_changes.clear()

    counts = _fold(plan, shard, state, routed, OF_TOPICS, on_sealed)
    return {
        "rows": counts,
        "topics": summary.of_topics(state),
        "sealed_leader_changes": sealed_changes,
        "leader_changes": summary.leader_changes(state),
    }


def _fold(
    plan: FoldPlan,
    shard: int,
    state: ClusterHistory | TopicShard,
    records: pa.Table,
    schemas: Mapping[str, pa.Schema],
    on_sealed: Callable[[], None] = lambda: None,
) -> dict[str, dict[str, int]]:
    """Apply the records in order; write sealed rows, the state after them, and the tail's rows."""
    counts: dict[str, dict[str, int]] = {"sealed": {}, "tail": {}}
    is_sealing = plan.seal_until is not None
    for key, parts in groupby(_rows(records), _key):
        if is_sealing and plan.seal_until is not None and key > plan.seal_until:
            counts["sealed"] = _seal(plan, shard, state, schemas)
            on_sealed()
            is_sealing = False
        state.apply(list(parts))
    if is_sealing:
        counts["sealed"] = _seal(plan, shard, state, schemas)
        on_sealed()
    open_rows = state.open_rows()
    for table, schema in schemas.items():
        if table != "records":
            rows = [*state.rows.get(table, ()), *open_rows.get(table, ())]
            counts["tail"][table] = _write(plan, table, tail_name(shard), schema, rows)
    return counts


def _seal(
    plan: FoldPlan,
    shard: int,
    state: ClusterHistory | TopicShard,
    schemas: Mapping[str, pa.Schema],
) -> dict[str, int]:
    name = sealed_name(plan.next_generation, shard)
    counts = {}
    for table, schema in schemas.items():
        if rows := state.rows.get(table):
            counts[table] = _write(plan, table, name, schema, rows)
    state.rows.clear()
    place = plan.folder / STATE / state_name(plan.next_generation, shard)
    place.replace(orjson.dumps(state.to_json()))
    return counts


def _write(plan: FoldPlan, table: str, name: str, schema: pa.Schema, rows: Sequence[Row]) -> int:
    cluster = {"cluster_id": plan.cluster_id}
    return write_rows(plan.folder, plan.place(table, name), schema, [row | cluster for row in rows])


def _load_state(plan: FoldPlan, shard: int) -> Row | None:
    if plan.generation == 0:
        return None
    content = (plan.folder / STATE / state_name(plan.generation, shard)).read()
    assert content is not None, "a base has a state of each shard"
    state: Row = orjson.loads(content)
    return state


# Records


def write_records(place: Location, records: pa.Table) -> None:
    """Write a file of records for the tasks of a refresh."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as stream:
        stream.write_table(records.cast(SCHEMA))
    place.replace(sink.getvalue().to_pybytes())


def read_records(content: bytes) -> pa.Table:
    """The records in a file of `_state`."""
    with pa.ipc.open_stream(content) as stream:
        table: pa.Table = stream.read_all()
        return table


def _read_inputs(plan: FoldPlan) -> pa.Table:
    """The records of the tail and the new ones, in order, without duplicates."""
    tables = [SCHEMA.empty_table()]
    for name in plan.inputs:
        content = (plan.folder / STATE / name).read()
        assert content is not None, f"{name} is there until the next refresh is over"
        tables.append(read_records(content))
    _, fresh = _divide(pa.concat_tables(tables), plan.base)
    return in_order(fresh)


def in_order(records: pa.Table) -> pa.Table:
    """Each record once, in the order of events."""
    names = ("controller_epoch", "seq", "part")
    order = pc.sort_indices(records, sort_keys=[(name, "ascending") for name in names])
    if len(order) > 1:
        keys = [records.column(name).take(order).to_numpy() for name in names]
        is_new = np.ones(len(order), np.bool_)
        is_new[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
        order = order.filter(pa.array(is_new))
    return records.take(order)


def route(records: pa.Table, shard: int, shards: int) -> pa.Table:
    """Records reduced to the topics of a shard; of the others only terms are kept."""
    columns = {
        name: _of_shard(records.column(name), shard, shards)
        for name in ("decisions", "moves", "topic_changes")
    }
    says_something = pc.is_valid(records.column("term"))
    for lists in columns.values():
        says_something = pc.or_(says_something, pc.greater(pc.list_value_length(lists), 0))
    arrays = [columns.get(each.name, records.column(each.name)) for each in ROUTED]
    routed = pa.Table.from_arrays(arrays, schema=ROUTED)
    return routed.drop_columns(["broker_changes"]).filter(says_something)


def _of_shard(lists: Any, shard: int, shards: int) -> pa.ListArray:
    """Lists without the entries about other shards' topics; decisions get their places."""
    lists = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
    entries = lists.flatten()
    topics = entries.field("topic").dictionary_encode()
    own = np.array([shard_of(each, shards) == shard for each in topics.dictionary.to_pylist()])
    is_own = own[topics.indices.to_numpy()] if len(own) else np.zeros(0, np.bool_)
    owner = pc.list_parent_indices(lists).to_numpy()
    lengths = np.bincount(owner[is_own], minlength=len(lists)).astype(np.int32)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    chosen = entries.filter(pa.array(is_own))
    if lists.type == SCHEMA.field("decisions").type:
        starts = np.searchsorted(owner, np.arange(len(lists)))
        place = (np.arange(len(owner)) - starts[owner]).astype(np.int32) if len(owner) else _EMPTY
        fields = [chosen.field(each.name) for each in lists.type.value_type]
        chosen = pa.StructArray.from_arrays(
            [*fields, pa.array(place[is_own], pa.int32())], fields=list(PLACED_DECISION)
        )
    return pa.ListArray.from_arrays(pa.array(offsets), chosen)


def _divide(records: pa.Table, until: Key | None) -> tuple[pa.Table, pa.Table]:
    """Records up to an event, and those after it."""
    if until is None:
        return records.slice(0, 0), records
    epoch, seq = records.column("controller_epoch"), records.column("seq")
    is_sealed = pc.or_(
        pc.less(epoch, until[0]),
        pc.and_(pc.equal(epoch, until[0]), pc.less_equal(seq, until[1])),
    )
    return records.filter(is_sealed), records.filter(pc.invert(is_sealed))


def _stamped(records: pa.Table, cluster_id: str | None) -> pa.Table:
    """Records with the cluster's id where they do not say it."""
    at = SCHEMA.get_field_index("cluster_id")
    filled = pc.coalesce(records.column(at), pa.scalar(cluster_id, pa.string()))
    return records.set_column(at, SCHEMA.field(at), filled)


def _rows(records: pa.Table) -> list[Row]:
    """Records as Python values, with times as microseconds."""
    columns = [each.with_type(_IN_MICROS.get(each.name, each.type)) for each in records.schema]
    rows: list[Row] = records.cast(pa.schema(columns)).to_pylist()
    return rows


def _key(record: Row) -> Key:
    return record["controller_epoch"], record["seq"]
