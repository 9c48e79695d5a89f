"""Folders of tables of any length, as the refreshes of a long history would have left them.

The cluster of `bench.repeated_history` does the same again and again, and a refresh takes in one
stretch of that. The first ones are folded by klamm itself. From some refresh on everything in the
folder grows evenly: each number in a sealed file and in a state is that of the refresh before and
something more, always the same. So the files of later refreshes are computed from those of two,
with numpy's speed and not the fold's. Only series of times, whose buckets get wider, are counted
anew. A test compares such a folder with one that klamm has folded. Sealed files, which no refresh
reads, are computed for as many refreshes as one likes; those of later ones are copies of them.
"""

import multiprocessing
import re
import shutil
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from bench.repeated_history import Repetition
from klamm.pipeline.history import folder as folders
from klamm.pipeline.history.fold.distributions import TimeSeries
from klamm.pipeline.history.fold.manifest import MANIFEST
from klamm.pipeline.history.fold.schemas import TABLES
from klamm.pipeline.history.fold.task import (
    STATE,
    read_records,
    sealed_name,
    state_name,
    tail_records_name,
    write_records,
)
from klamm.pipeline.history.fold.topics import missing_replicas
from klamm.pipeline.history.folder import HistoryFolder
from klamm.pipeline.history.report_facts import Origin
from klamm.pipeline.ingest.location import Location
from tests.pipeline.history.refreshes import folding_here, put_in

ORIGIN = Origin({"spools": ["bench"]}, "a benchmark")
SHARDS = 4
PROCESSES = 2
_CHUNK = 50
_DIGITS = re.compile(r"(\d+)")


def open_folder(spark: Any, out: Path) -> HistoryFolder:
    return HistoryFolder(spark, Location(str(out)), ORIGIN, shards=SHARDS)


@dataclass(frozen=True, slots=True)
class Refresh:
    """What a refresh leaves that is not in sealed files."""

    manifest: Any
    base: Any
    states: list[Any]
    tail: pa.Table

    @classmethod
    def of(cls, folder: HistoryFolder) -> "Refresh":
        """The last one of a folder."""
        state, generation = folder.place / STATE, folder.manifest.generation
        names = [folders._base_name(generation, shard) for shard in (None, *range(SHARDS + 1))]
        base, *states = [orjson.loads((state / name).read()) for name in names]
        tail = read_records((state / folder.manifest.tail).read())
        return cls(orjson.loads((state / MANIFEST).read()), base, states, tail)


class FilledHistory:
    """Folded refreshes, and as many more as one likes."""

    def __init__(self, out: Path, start: pa.Table, repetition: Repetition, *, folded: int) -> None:
        """Fold this many refreshes into a folder; the last three must have grown evenly."""
        self._out = out
        self._folded = folded
        folder = open_folder(None, out)
        self._refreshes: dict[int, Refresh] = {}
        with folding_here():
            put_in(folder, start)
            for number in range(folded):
                put_in(folder, repetition.shifted(number))
                if number + 3 >= folded:
                    self._refreshes[folder.manifest.generation] = Refresh.of(folder)
        assert folder.manifest.generation == folded, "each refresh seals once"
        #: The last two refreshes but one, from which the others are computed.
        self._pair = (folded - 2, folded - 1)
        self._files = {place: self._read_pair(place) for place in self._places(folded - 2)}
        self._series = Series(out, self._pair)
        self._check()

    def fill(self, out: Path, refreshes: int, *, computed: int | None = None) -> None:
        """Write a folder as it is after a number of refreshes.

        Sealed files of the first `computed` ones have their own rows (None: all of them).
        """
        open_folder(None, out)
        for place in (*TABLES, STATE):
            (out / place).mkdir(exist_ok=True)
        for generation in range(1, min(refreshes, self._pair[0]) + 1):
            for place in self._places(generation):
                (out / place).write_bytes((self._out / place).read_bytes())
        later = range(self._pair[0] + 1, refreshes + 1)
        own = later[:computed]
        chunks = [own[at : at + _CHUNK] for at in range(0, len(own), _CHUNK)]
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            PROCESSES, context, _take_files, (str(out), self._pair[0], self._files)
        ) as pool:
            list(pool.map(_write_files, chunks))
        for place in self._files:
            for generation in later[len(own) :]:
                source = own[(generation - own[0]) % len(own)]
                shutil.copyfile(out / self._at(place, source), out / self._at(place, generation))
        for generation in range(self._pair[0], refreshes + 1):
            if refreshes - generation < folders._seals_kept(generation):
                self._write_base(out, generation)
        last = self.refresh(refreshes)
        write_records(
            Location(str(out)) / STATE / tail_records_name(last.manifest["serial"]), last.tail
        )
        (out / STATE / MANIFEST).write_bytes(orjson.dumps(last.manifest))

    def refresh(self, generation: int) -> Refresh:
        """What a refresh leaves, whether it was folded or not."""
        times, (one, other) = generation - self._pair[0], self._of_pair()
        manifest, base = (
            _later(a, b, times) for a, b in ((one.manifest, other.manifest), (one.base, other.base))
        )
        states = [_later(a, b, times) for a, b in zip(one.states, other.states, strict=True)]
        for each in (manifest, base):
            each["balance"]["samples"] = self._series.samples(generation)
        for shard, state in enumerate(states):
            if "elections" in state:
                state["elections"] = self._series.elections(shard, generation)
                for partition in state["partitions"]:
                    partition["lack"] = self._series.lack(shard, partition, generation)
        tail = later_table(one.tail, table_growth(one.tail, other.tail), times)
        return Refresh(manifest, base, states, tail)

    def _of_pair(self) -> tuple[Refresh, Refresh]:
        return self._refreshes[self._pair[0]], self._refreshes[self._pair[1]]

    def _places(self, generation: int) -> list[str]:
        """The sealed files of a refresh."""
        found = []
        for table in folders.OF_SHARDS:
            for shard in range(SHARDS + 1):
                name = sealed_name(generation, shard)
                if (self._out / table / name).exists():
                    found.append(f"{table}/{name}")
        return found

    def _read_pair(self, place: str) -> tuple[pa.Table, dict[str, Any]]:
        one, other = (
            parquet.read_table(self._out / self._at(place, generation)) for generation in self._pair
        )
        return one, table_growth(one, other)

    def _at(self, place: str, generation: int) -> str:
        """The file of another refresh in the place of this one."""
        return _of_generation(place, self._pair[0], generation)

    def _write_base(self, out: Path, generation: int) -> None:
        made = self.refresh(generation)
        (out / STATE / folders._base_name(generation)).write_bytes(orjson.dumps(made.base))
        for shard, state in enumerate(made.states):
            name = state_name(generation, shard)
            (out / STATE / name).write_bytes(orjson.dumps(state))

    def _check(self) -> None:
        """The last refresh that was folded is the one that would have been computed."""
        made, found = self.refresh(self._folded), self._refreshes[self._folded]
        for name in ("manifest", "base", "states"):
            assert getattr(made, name) == getattr(found, name), name
        assert made.tail.equals(found.tail)
        for place, (table, growth) in self._files.items():
            name = self._at(place, self._folded)
            assert later_table(table, growth, 2).equals(parquet.read_table(self._out / name)), name


# Files of tables, in processes of their own

_filling: dict[str, Any] = {}


def _take_files(out: str, first: int, files: dict[str, tuple[pa.Table, dict[str, Any]]]) -> None:
    _filling.update(out=Path(out), first=first, files=files)


def _write_files(generations: range) -> None:
    first, out = _filling["first"], _filling["out"]
    for generation in generations:
        for place, (table, growth) in _filling["files"].items():
            path = out / _of_generation(place, first, generation)
            made = later_table(table, growth, generation - first)
            parquet.write_table(made, path, compression="zstd")


def _of_generation(place: str, first: int, generation: int) -> str:
    return place.replace(f"part-{first:06d}-", f"part-{generation:06d}-")


def table_growth(one: pa.Table, other: pa.Table) -> dict[str, Any]:
    """By how much each column grows, for those that do."""
    assert len(one) == len(other)
    found = {}
    for name in one.column_names:
        growth = _growth(one[name].combine_chunks(), other[name].combine_chunks())
        if growth is not None:
            found[name] = growth
    return found


def _growth(one: Any, other: Any) -> Any:
    if one.equals(other):
        return None
    if pa.types.is_struct(one.type):
        return [_growth(a, b) for a, b in zip(one.flatten(), other.flatten(), strict=True)]
    if pa.types.is_list(one.type):
        assert pc.list_value_length(one).equals(pc.list_value_length(other))
        return _growth(one.flatten(), other.flatten())
    return pc.subtract(other, one)


def later_table(table: pa.Table, growth: dict[str, Any], times: int) -> pa.Table:
    """The table after its columns have grown `times` times."""
    for name, by in growth.items():
        at = table.schema.get_field_index(name)
        grown = _later_array(table.column(at).combine_chunks(), by, times)
        table = table.set_column(at, table.schema.field(at), grown)
    return table


def _later_array(array: Any, growth: Any, times: int) -> Any:
    if growth is None:
        return array
    if pa.types.is_struct(array.type):
        fields = [
            _later_array(each, by, times) for each, by in zip(array.flatten(), growth, strict=True)
        ]
        return pa.StructArray.from_arrays(fields, fields=list(array.type))
    if pa.types.is_list(array.type):
        lengths = pc.list_value_length(array).to_numpy()
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        values = _later_array(array.flatten(), growth, times)
        return pa.ListArray.from_arrays(pa.array(offsets), values).cast(array.type)
    scale = pa.scalar(times, pa.int64() if pa.types.is_duration(growth.type) else growth.type)
    return pc.add(array, pc.multiply(growth, scale))


# States


def _later(one: Any, other: Any, times: int) -> Any:
    """JSON that has grown `times` times by the difference of two, numbers in texts included.

    A time series becomes None.
    """
    if isinstance(one, dict) and "width_us" in one:
        return None
    if isinstance(one, dict):
        keys = [_later_text(a, b, times) for a, b in zip(one, other, strict=True)]
        values = [_later(a, b, times) for a, b in zip(one.values(), other.values(), strict=True)]
        return dict(zip(keys, values, strict=True))
    if isinstance(one, list):
        return [_later(a, b, times) for a, b in zip(one, other, strict=True)]
    if isinstance(one, str):
        return _later_text(one, other, times)
    if one == other:
        return one
    return one + times * (other - one)


def _later_text(one: str, other: str, times: int) -> str:
    if one == other:
        return one
    parts = zip(_DIGITS.split(one), _DIGITS.split(other), strict=True)
    return "".join(
        a if a == b else f"{int(a) + times * (int(b) - int(a)):0{len(a)}d}" for a, b in parts
    )


class Entries:
    """Times with a value (from, until, value), by the refresh whose sealed files have them."""

    def __init__(self) -> None:
        self.by_refresh: dict[int, list[tuple[int, int, int]]] = {}

    def add(self, refresh: int, start: int, end: int, value: int) -> None:
        self.by_refresh.setdefault(refresh, []).append((start, end, value))

    def with_later(self, refresh: int, again: np.ndarray) -> np.ndarray:
        """All entries, and those of a refresh once more for each of the shifts in `again`."""
        rows = [
            each for number in sorted(self.by_refresh) for each in sorted(self.by_refresh[number])
        ]
        last = np.array(sorted(self.by_refresh.get(refresh, ())), np.int64).reshape(-1, 3)
        later = np.tile(last, (len(again), 1))
        later[:, :2] += np.repeat(again, len(last))[:, None]
        return np.concatenate([np.array(rows), later])


class Series:
    """The series of times in states, counted from the rows of sealed files."""

    def __init__(self, out: Path, pair: tuple[int, int]) -> None:
        self._out = out
        self._first = pair[0]
        self._memory: dict[Any, Any] = {}
        at = [self._rows("leader_balance", 0, generation)[-1]["at"] for generation in pair]
        self._us = at[1] - at[0]
        self._brokers = self._of_brokers()
        self._by_shard = {
            shard: self._of_shard(shard)
            for shard in range(1, SHARDS + 1)
            if self._rows("timeline", shard, pair[0])
        }

    def elections(self, shard: int, generation: int) -> Any:
        """Of each kind, those of a shard."""
        kinds = self._by_shard[shard][0] if shard in self._by_shard else {}
        return {kind: self._made("sum", rows, generation) for kind, rows in kinds.items()}

    def lack(self, shard: int, partition: Any, generation: int) -> Any:
        """The replicas that a partition lacked."""
        rows = self._by_shard[shard][1].get((partition["topic"], partition["partition"]))
        return None if rows is None else self._made("peak", rows, generation)

    def samples(self, generation: int) -> list[Any]:
        """The partitions that each broker led."""
        return [
            [broker, self._made("last", rows, generation)] for broker, rows in self._brokers.items()
        ]

    def _of_brokers(self) -> dict[int, Entries]:
        brokers: dict[int, Entries] = defaultdict(Entries)
        for number in range(1, self._first + 1):
            for row in self._rows("leader_balance", 0, number):
                brokers[row["broker"]].add(number, row["at"], row["at"], row["leaders"])
        return brokers

    def _of_shard(self, shard: int) -> tuple[dict[str, Entries], dict[Any, Entries]]:
        kinds: dict[str, Entries] = defaultdict(Entries)
        partitions: dict[Any, Entries] = defaultdict(Entries)
        for number in range(1, self._first + 1):
            elected = Counter(
                (row["kind"], row["at"]) for row in self._rows("elections", shard, number)
            )
            for (kind, at), count in elected.items():
                kinds[kind].add(number, at, at, count)
            for row in self._rows("timeline", shard, number):
                if missing := missing_replicas(row):
                    place = (row["topic"], row["partition"])
                    partitions[place].add(number, row["from"], row["until"], missing)
        return kinds, partitions

    def _rows(self, table: str, shard: int, generation: int) -> list[Any]:
        path = self._out / table / sealed_name(generation, shard)
        if not path.exists():
            return []
        found = parquet.read_table(path)
        names = [name for name in ("at", "from", "until") if name in found.column_names]
        for name in names:
            index = found.schema.get_field_index(name)
            found = found.set_column(index, name, found[name].cast(pa.int64()))
        return found.to_pylist()

    def _made(self, mode: str, entries: Entries, generation: int) -> Any:
        """A series of entries, of which those of the last refresh come again and again."""
        key = (mode, generation, orjson.dumps(entries.by_refresh, option=orjson.OPT_NON_STR_KEYS))
        if key not in self._memory:
            again = self._us * np.arange(1, generation - self._first + 1)
            self._memory[key] = _series(mode, entries.with_later(self._first, again))
        return self._memory[key]


def _series(mode: str, entries: np.ndarray) -> Any:
    """A series of entries (from, until, value), in the order of time."""
    series = TimeSeries(mode=mode)
    width = series.width_us
    while entries[:, 1].max() // width - entries[:, 0].min() // width >= 120:
        width *= 2
    series.widen(width)
    low = int(entries[:, 0].min() // width)
    first, last, value = entries[:, 0] // width - low, entries[:, 1] // width - low, entries[:, 2]
    count = int(last.max()) + 1
    is_there = np.cumsum(_counts(first, count) - _counts(last + 1, count)) > 0
    if mode == "sum":
        values = np.bincount(first, value, count)
    elif mode == "last":
        values = value[np.searchsorted(first, np.arange(count), "right") - 1]
    else:
        values = np.zeros(count)
        for each in np.unique(value):
            chosen = value == each
            covers = _counts(first[chosen], count) - _counts(last[chosen] + 1, count)
            values[np.cumsum(covers) > 0] = each
    for bucket in np.flatnonzero(is_there):
        series.add(int(low + bucket) * width, int(values[bucket]))
    return series.to_json()


def _counts(buckets: np.ndarray, count: int) -> np.ndarray:
    return np.bincount(buckets, minlength=count + 1)[:count]
