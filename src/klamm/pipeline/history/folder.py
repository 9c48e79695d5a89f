"""A folder of tables and a report that are kept up to date as records come.

A refresh takes new records, folds them in parallel into the tables of each shard (Spark's tasks,
`klamm.pipeline.history.fold`), and writes the few tables that need all shards, and the report. It
costs what the new records and the tail cost, however long the history is. docs/adr/0021 has the
reasons.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet
from pyspark.sql import SparkSession

from klamm.errors import ConfigError
from klamm.pipeline.history.fold import summary
from klamm.pipeline.history.fold.manifest import MANIFEST, EventKey, Manifest, RecordKey
from klamm.pipeline.history.fold.schemas import OF_ALL, TABLES
from klamm.pipeline.history.fold.task import (
    CLUSTER_SHARD,
    STAGED,
    STATE,
    FoldPlan,
    fold_shard,
    read_records,
    sealed_name,
    staged_place,
    state_name,
    tail_name,
    tail_records_name,
    write_records,
    write_rows,
)
from klamm.pipeline.history.report import write_report
from klamm.pipeline.history.report_facts import Origin, ReportFacts, gather
from klamm.pipeline.ingest.location import Location
from klamm.pipeline.source.workers import forget_spark_archives

Row: TypeAlias = dict[str, Any]
#: The least number of rows (events and their decisions) that a seal leaves in the tail.
_TAIL_ROWS_MIN: Final = 4000
#: A base is kept for this many seals, and every second one, fourth one and so on for twice, four
#: times and so on as many. So a late record finds a base that is hardly older than itself.
_SEALS_KEPT: Final = 4
_SOURCE: Final = "_source.json"
#: Sorts after the names of all sealed files.
_LAST_SEALED: Final = "part-~"
#: Files of an object store that are renamed at the same time.
_REQUESTS_AT_A_TIME: Final = 16
#: The tables whose sealed files the fold makes.
OF_SHARDS: Final = tuple(name for name in TABLES if name != "quarantine")
#: What is known of a record before it is folded.
KEYS: Final = pa.schema(
    [
        ("controller_epoch", pa.int32()),
        ("seq", pa.int64()),
        ("part", pa.int32()),
        ("parts", pa.int32()),
        ("decision_count", pa.int32()),
        ("at", pa.int64()),
        ("cluster_id", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class RecordSize:
    """How much a record has: the parts of its event, and its own decisions."""

    parts: int
    decisions: int


class HistoryFolder:
    """The tables below a folder; one process at a time keeps them."""

    def __init__(
        self,
        spark: SparkSession,
        out: Location,
        origin: Origin,
        *,
        shards: int,
        min_isr: Mapping[str, int] | None = None,
    ) -> None:
        """Open the folder, or make it with this number of shards.

        `min_isr` is as for `assume_min_isr`; None: as before.
        """
        self._spark = spark
        self._out = out
        self._origin = origin
        self._claim()
        content = (out / STATE / MANIFEST).read()
        if content is None:
            self.manifest = Manifest(shards)
            for name, schema in TABLES.items():
                write_rows(out, f"{name}/{tail_name(CLUSTER_SHARD)}", schema, [])
        else:
            self.manifest = Manifest.from_json(content)
            self._remove_unknown()
            self._put_in_place()
        #: Places of files that waited, and have been made again since.
        self._superseded: list[str] = []
        self._tail = self._read_tail_keys()
        if min_isr is not None:
            self.assume_min_isr(min_isr)

    @property
    def place(self) -> Location:
        """Where the folder is."""
        return self._out

    def path(self, name: str) -> str:
        """The address of something in the folder, as Spark takes it."""
        address = str(self._out / name)
        return address.replace("s3://", "s3a://", 1) if address.startswith("s3://") else address

    @property
    def next_serial(self) -> int:
        """The number of the next refresh."""
        return self.manifest.serial + 1

    def assume_min_isr(self, min_isr: Mapping[str, int]) -> bool:
        """Take the min.insync.replicas of topics from here on; Kafka's default for all others.

        If they are others than before, the next refresh makes the tables again from the records
        that they hold, and the result is True.
        """
        wanted = {name: value for name, value in min_isr.items() if value != 1}
        if self.manifest.min_isr == wanted:
            return False
        self.manifest.min_isr = wanted
        if self.manifest.serial:
            self._revert(0)
        return True

    def refresh(
        self,
        names: Sequence[str],
        keys: pa.Table,
        *,
        seal_before: EventKey | None = None,
        is_forced: bool = False,
    ) -> ReportFacts | None:
        """Take in the records in these files; None if none of them is new, unless it `is_forced`.

        `keys` has a row (`KEYS`) for each of the records. Records that are known to come later are
        not before `seal_before`; None: nothing is known of them.
        """
        fresh, late = self._sort_out(keys)
        if late:
            self._revert(self._base_before(min(late)))
            fresh, _ = self._sort_out(keys)
        self._note(keys)
        if self.manifest.again:
            self._take_in_again(names, fresh)
            fresh, names = {}, ()
        elif not (fresh or is_forced):
            self._remove(names)
            return None
        self._tail.update(fresh)
        return self._fold(names, seal_before)

    def _fold(self, names: Sequence[str], seal_before: EventKey | None) -> ReportFacts:
        manifest = self.manifest
        seal_until = self._seal_until(seal_before)
        plan = FoldPlan(
            out=self._out.uri,
            shards=manifest.shards,
            generation=manifest.generation,
            serial=self.next_serial,
            inputs=(*self._tail_files(), *names),
            base=manifest.base,
            seal_until=seal_until,
            # Rows move from one file to another then, or are made again.
            is_staged=seal_until is not None or manifest.reverted_to is not None,
            cluster_id=manifest.cluster_id,
            history_from=manifest.history_from or 0,
            history_until=manifest.history_until or 0,
            min_isr=manifest.min_isr,
            store=self._out.store,
        )
        return self._publish(plan, run_shards(self._spark, plan))

    def _publish(self, plan: FoldPlan, told: Sequence[Row]) -> ReportFacts:
        """Write the tables that need all shards, and the manifest; put staged files in place."""
        manifest = self.manifest
        cluster, topics = told[0], told[1:]
        manifest.partitions = sum(shard["topics"]["partition_count"] for shard in topics)
        balance = summary.LeaderBalance()
        if manifest.balance is not None:
            balance = summary.LeaderBalance.from_json(manifest.balance)
        changes = [tuple(each) for shard in topics for each in shard["leader_changes"]]
        if plan.seal_until is not None:
            sealed = [tuple(each) for shard in topics for each in shard["sealed_leader_changes"]]
            final = balance.seal(sealed, changes)
            name = sealed_name(plan.next_generation, CLUSTER_SHARD)
            manifest.sealed_rows["leader_balance"] = manifest.sealed_rows.get(
                "leader_balance", 0
            ) + self._write(plan, "leader_balance", name, final)
            manifest.balance = balance.to_json()
        summaries = [shard["topics"] for shard in topics]
        failovers = summary.merge_failovers(summaries)
        tail_balance = balance.tail_rows(changes)
        rows = {
            "unavailability_by_broker": summary.merge_losses(summaries),
            "latencies": summary.latency_rows(cluster["cluster"], failovers),
            "leader_balance": tail_balance,
        }
        counts: dict[str, int] = defaultdict(int)
        for table, of_table in rows.items():
            counts[table] += self._write(plan, table, tail_name(CLUSTER_SHARD), of_table)
        for number, shard in enumerate(told):
            for table, count in shard["rows"]["tail"].items():
                counts[table] += count
                self._note_staged(plan, table, tail_name(number))
            for table, count in shard["rows"]["sealed"].items():
                manifest.sealed_rows[table] = manifest.sealed_rows.get(table, 0) + count
                self._note_staged(plan, table, sealed_name(plan.next_generation, number))
        for table, count in manifest.sealed_rows.items():
            counts[table] += count
        counts["quarantine"] = manifest.quarantined
        self._commit(plan)
        self._put_in_place()
        self._remove(plan.inputs)
        for place in self._superseded:
            self._out.delete(place)
        self._superseded.clear()
        balance.sample(tail_balance)
        facts = gather(
            origin=replace(self._origin, cluster_id=manifest.cluster_id),
            since_us=plan.history_from,
            until_us=plan.history_until,
            cluster=cluster["cluster"],
            topics=summaries,
            failovers=failovers["total"],
            latencies=rows["latencies"],
            balance=balance.samples,
            tables=dict(counts),
            stories=self._story_records,
        )
        if not manifest.again:
            write_report(facts, self._out)
        return facts

    def _commit(self, plan: FoldPlan) -> None:
        manifest = self.manifest
        manifest.serial = plan.serial
        manifest.tail = tail_records_name(plan.serial)
        if plan.seal_until is not None:
            events: dict[EventKey, list[int]] = defaultdict(list)
            for (epoch, seq, part), _ in self._tail.items():
                events[epoch, seq].append(part)
            for key in sorted(events):
                if key <= plan.seal_until:
                    of = self._tail[(*key, events[key][0])].parts
                    manifest.sealed.add(*key, events[key], of)
            self._tail = {
                key: size for key, size in self._tail.items() if key[:2] > plan.seal_until
            }
            manifest.generation = plan.next_generation
            manifest.base = plan.seal_until
            base = self._out / STATE / _base_name(manifest.generation)
            base.replace(manifest.to_json())
        (self._out / STATE / MANIFEST).replace(manifest.to_json())

    # What is there already

    def _claim(self) -> None:
        """Store the source of a folder's records, since a checkpoint belongs to one topic."""
        path = self._out / _SOURCE
        source = self._origin.claim
        content = path.read()
        if content is not None:
            before = orjson.loads(content)
            if before.keys() != source.keys() or ("spools" not in source and before != source):
                raise ConfigError(
                    f"{self._out} holds a history made from {_named(before)}, not from "
                    f"{_named(source)}: name another folder with --out, or remove it"
                )
            if before != source:
                self._start_over()
        elif self._out.exists() and not self._out.is_empty():
            raise ConfigError(f"{self._out} is not empty and holds no history: name another folder")
        path.replace(orjson.dumps(source))

    def _start_over(self) -> None:
        """Delete the tables, because they were made from other spools."""
        for name in (*TABLES, STATE, STAGED):
            for file in (self._out / name).names():
                (self._out / name).delete(file)

    def _remove_unknown(self) -> None:
        """Remove files of a refresh that did not complete."""
        known = {self._staged_place(place) for place in self.manifest.staged}
        for name in (self._out / STAGED).names():
            if f"{STAGED}/{name}" not in known:
                (self._out / STAGED).delete(name)

    def _staged_place(self, place: str) -> str:
        """Where a file that the manifest calls staged waits."""
        table, name = place.split("/")
        return staged_place(table, name, self.manifest.staged[place])

    def _put_in_place(self) -> None:
        """Show readers the files that wait, unless more records have to be taken in again first.

        Rows that a seal moves are in two files between two renames, the shortest time that there
        can be: a folder has no operation for both.
        """
        manifest = self.manifest
        if manifest.again or not manifest.staged:
            return
        # Of each shard of each table the sealed file comes first, and at once its tail.
        places = sorted(manifest.staged, key=lambda place: (place[-len("00.parquet") :], place))
        with ThreadPoolExecutor(1 if self._out.is_local else _REQUESTS_AT_A_TIME) as pool:
            list(pool.map(self._put_file_in_place, places))
        if manifest.reverted_to is not None:
            self._remove_outdated(manifest.reverted_to)
        manifest.staged, manifest.reverted_to = {}, None

    def _put_file_in_place(self, place: str) -> None:
        self._out.put_in_place(self._staged_place(place), place)

    def _remove_outdated(self, after: int) -> None:
        """Remove sealed files after a base that the folder went back to, if none replaces them."""
        first = sealed_name(after + 1, CLUSTER_SHARD)
        for table in OF_SHARDS:
            for name in (self._out / table).names():
                is_sealed = name.startswith("part-") and name >= first
                if is_sealed and f"{table}/{name}" not in self.manifest.staged:
                    (self._out / table).delete(name)

    def _read_tail_keys(self) -> dict[RecordKey, RecordSize]:
        keys: dict[RecordKey, RecordSize] = {}
        for name in self._tail_files():
            content = (self._out / STATE / name).read()
            assert content is not None, "the tail that the manifest names is there"
            keys |= record_sizes(keys_of(read_records(content)))
        return keys

    def _tail_files(self) -> list[str]:
        return [] if self.manifest.tail is None else [self.manifest.tail]

    def _sort_out(self, keys: pa.Table) -> tuple[dict[RecordKey, RecordSize], list[RecordKey]]:
        """Records that are new; and those among them that should have been sealed by now."""
        base, sealed = self.manifest.base, self.manifest.sealed
        fresh = {
            key: size
            for key, size in record_sizes(keys).items()
            if key not in self._tail and not sealed.has(*key)
        }
        return fresh, [key for key in fresh if base is not None and key[:2] <= base]

    def _note(self, keys: pa.Table) -> None:
        manifest = self.manifest
        for at, cluster_id in zip(
            keys.column("at").to_pylist(), keys.column("cluster_id").to_pylist(), strict=True
        ):
            if manifest.history_from is None or manifest.history_until is None:
                manifest.history_from = manifest.history_until = at
            manifest.history_from = min(manifest.history_from, at)
            manifest.history_until = max(manifest.history_until, at)
            manifest.cluster_id = manifest.cluster_id or cluster_id
        manifest.cluster_id = manifest.cluster_id or self._origin.cluster_id

    def _seal_until(self, seal_before: EventKey | None) -> EventKey | None:
        """The last event to be sealed now, if the tail has become long."""
        rows: dict[EventKey, int] = defaultdict(lambda: 1)
        for (epoch, seq, _), size in self._tail.items():
            rows[epoch, seq] += size.decisions
        left, kept = sum(rows.values()), tail_rows(self.manifest.partitions)
        if left <= (2 * kept if seal_before is None else kept):
            return None
        until: EventKey | None = None
        for key in sorted(rows):
            is_ready = left > kept if seal_before is None else key < seal_before
            if not is_ready:
                break
            left, until = left - rows[key], key
        return until

    # Records that come later than the tail reaches back

    def _base_before(self, key: RecordKey) -> int:
        """The newest base whose state is kept and that is before a record; 0 if there is none."""
        newest = self.manifest.generation
        for generation in range(newest, 0, -1):
            if newest - generation >= _seals_kept(generation):
                continue
            content = (self._out / STATE / _base_name(generation)).read()
            base = None if content is None else Manifest.from_json(content).base
            if base is not None and base < key[:2]:
                return generation
        return 0

    def _revert(self, generation: int) -> None:
        """Go back to an earlier base; what came after it is taken in again by the next refresh.

        The tables stay as they are until all of it is taken in.
        """
        before = self.manifest
        again = [*self._copy_records(generation), *before.again]
        if generation:
            content = (self._out / STATE / _base_name(generation)).read()
            assert content is not None, "the state of a base that was found"
            self.manifest = Manifest.from_json(content)
        else:
            self.manifest = Manifest(before.shards, before.min_isr, before.cluster_id)
        self.manifest.serial, self.manifest.tail = before.serial, None
        self.manifest.history_from = before.history_from
        self.manifest.history_until = before.history_until
        self.manifest.positions = before.positions
        self.manifest.quarantined = before.quarantined
        self.manifest.again = sorted(again)
        earlier = before.reverted_to
        self.manifest.reverted_to = generation if earlier is None else min(generation, earlier)
        first = sealed_name(generation + 1, CLUSTER_SHARD)
        self.manifest.staged = {}
        for place, serial in before.staged.items():
            table, name = place.split("/")
            if first <= name < _LAST_SEALED:
                self._superseded.append(staged_place(table, name, serial))
            else:
                self.manifest.staged[place] = serial
        self._tail = {}

    def _copy_records(self, after: int) -> list[tuple[int, int, str]]:
        """Files in `_state` with the records after a base, and the first event in each."""
        tables = [
            parquet.read_table(pa.BufferReader((self._out / place).read() or b""))
            for place in self._sealed_records(after)
        ]
        for name in self._tail_files():
            tables.append(read_records((self._out / STATE / name).read() or b""))
        copies = []
        for number, table in enumerate(tables):
            if table.num_rows:
                name = f"again-{self.next_serial:08d}-{number:06d}.arrows"
                write_records(self._out / STATE / name, table)
                first = table.slice(0, 1).select(["controller_epoch", "seq"]).to_pylist()[0]
                copies.append((first["controller_epoch"], first["seq"], name))
        return copies

    def _sealed_records(self, after: int) -> list[str]:
        """Where the records that were sealed after a base are; some files may still wait."""
        first = sealed_name(after + 1, CLUSTER_SHARD)
        names = [
            name
            for name in (self._out / "records").names()
            if name.startswith("part-") and name >= first
        ]
        if self.manifest.reverted_to is not None:
            outdated = sealed_name(self.manifest.reverted_to + 1, CLUSTER_SHARD)
            names = [name for name in names if name < outdated]
        places = [f"records/{name}" for name in names]
        for place in sorted(self.manifest.staged):
            table, name = place.split("/")
            if table == "records" and first <= name < _LAST_SEALED:
                places.append(self._staged_place(place))
        return places

    def _take_in_again(self, names: Sequence[str], fresh: Mapping[RecordKey, RecordSize]) -> None:
        """Fold everything after the base that was gone back to, a file at a time."""
        self._tail.update(fresh)
        extra = list(names)
        while self.manifest.again:
            (_, _, name), *rest = self.manifest.again
            table = read_records((self._out / STATE / name).read() or b"")
            self._tail.update(record_sizes(keys_of(table)))
            self.manifest.again = rest
            self._fold([name, *extra], rest[0][:2] if rest else None)
            extra = []

    # Files

    def _write(self, plan: FoldPlan, table: str, name: str, rows: list[Row]) -> int:
        cluster = {"cluster_id": self.manifest.cluster_id}
        self._note_staged(plan, table, name)
        return write_rows(
            self._out, plan.place(table, name), OF_ALL[table], [row | cluster for row in rows]
        )

    def _note_staged(self, plan: FoldPlan, table: str, name: str) -> None:
        if plan.is_staged:
            place = f"{table}/{name}"
            if place in self.manifest.staged:
                self._superseded.append(self._staged_place(place))
            self.manifest.staged[place] = plan.serial

    def _remove(self, names: Iterable[str]) -> None:
        """Remove files of `_state` that are not needed any more."""
        kept = set(self._tail_files())
        for name in names:
            if name not in kept:
                (self._out / STATE).delete(name)
        newest = self.manifest.generation
        age = _SEALS_KEPT
        while age < newest:
            if _seals_kept(newest - age) == age:
                for shard in (None, *range(self.manifest.shards + 1)):
                    (self._out / STATE).delete(_base_name(newest - age, shard))
            age *= 2

    def _story_records(self) -> pa.Table:
        """The records of the tail."""
        (name,) = self._tail_files()
        return read_records((self._out / STATE / name).read() or b"")


def run_shards(spark: SparkSession, plan: FoldPlan) -> list[Row]:
    """Fold every shard, one task each; the cluster's summary comes first."""
    count = plan.shards + 1
    told = (
        spark.range(0, count, 1, count)
        .mapInArrow(partial(_fold_shards, plan.to_json()), "shard int, summary binary")
        .toArrow()
        .sort_by("shard")
    )
    return [orjson.loads(each) for each in told.column("summary").to_pylist()]


def _fold_shards(plan: bytes, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    forget_spark_archives()
    for batch in batches:
        for shard in batch.column("id").to_pylist():
            told = orjson.dumps(fold_shard(FoldPlan.from_json(plan), shard))
            yield pa.RecordBatch.from_pydict(
                {"shard": pa.array([shard], pa.int32()), "summary": pa.array([told], pa.binary())}
            )


def tail_rows(partitions: int) -> int:
    """The number of rows that a seal leaves in the tail.

    The tail is folded anew in each refresh, which besides writes a row for each partition.
    """
    return max(_TAIL_ROWS_MIN, partitions)


def record_sizes(keys: pa.Table) -> dict[RecordKey, RecordSize]:
    """The records that keys (`KEYS`) are of, and how much they have."""
    names = ("controller_epoch", "seq", "part", "parts", "decision_count")
    columns = (keys.column(name).to_pylist() for name in names)
    return {
        (epoch, seq, part): RecordSize(parts, decisions)
        for epoch, seq, part, parts, decisions in zip(*columns, strict=True)
    }


def keys_of(records: pa.Table) -> pa.Table:
    """The columns of `KEYS`, with times as microseconds."""
    count = pc.fill_null(pc.list_value_length(records.column("decisions")), 0)
    return records.append_column("decision_count", count).select(KEYS.names).cast(KEYS)


def _seals_kept(generation: int) -> int:
    """For how many seals the state of a base is kept."""
    return _SEALS_KEPT * (generation & -generation)


def _base_name(generation: int, shard: int | None = None) -> str:
    """The file with the manifest as of a base, or with a shard's state."""
    return f"base-{generation:06d}.json" if shard is None else state_name(generation, shard)


def _named(source: Mapping[str, Any]) -> str:
    if "metadata_log" in source:
        return f"the metadata log of {source['metadata_log']}"
    return f"topic {source['topic']}" if "topic" in source else "spools"
