"""Tables that are kept up to date are those that are made at once, whatever way records come."""

import contextlib
import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from klamm.errors import ConfigError
from klamm.history.spool import spool_files
from klamm.pipeline.history import folder as folders
from klamm.pipeline.history.definitions import TABLES, make_tables
from klamm.pipeline.history.fold.schemas import TABLES as SCHEMAS
from klamm.pipeline.history.fold.task import STAGED, STATE
from klamm.pipeline.history.folder import HistoryFolder
from klamm.pipeline.history.input import read_spools
from klamm.pipeline.history.report_facts import Origin
from klamm.pipeline.history.sources import SpoolInput
from klamm.pipeline.ingest.location import Location
from tests.pipeline.history.chance import random_history
from tests.pipeline.history.night import Cluster
from tests.pipeline.history.refreshes import (
    Row,
    assert_same,
    differences,
    fill_in_pieces,
    folding_here,
    open_folder,
    put_in,
    records_in,
    rows_of,
)

#: The first test of a run pays for Spark's start.
pytestmark = pytest.mark.timeout(600)

Key = tuple[int, int, int]


@pytest.fixture
def in_process() -> Iterator[None]:
    """Shards are folded one after the other, without Spark."""
    with folding_here():
        yield


@pytest.mark.parametrize("seed", range(3))
def test_records_in_any_order_twice_and_late_make_the_same_tables(
    in_process: None, tmp_path: Path, seed: int
):
    records = records_in(random_history(tmp_path / "nodes", seed).spools)
    put_in(open_folder(tmp_path / "once"), records)
    folder = fill_in_pieces(records, tmp_path / "pieces", seed, tail=6)
    assert folder.manifest.generation >= 1
    assert [*differences(tmp_path / "pieces", tmp_path / "once")] == []


class KilledError(Exception):
    """In the place of the end of a process."""


class Killer:
    """Ends a refresh before one of its changes of files."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left: int | None = None
        self._has_killed = False
        for name in ("replace", "put_in_place", "delete"):
            monkeypatch.setattr(Location, name, self._counted(getattr(Location, name)))

    def arm(self, changes: int | None) -> None:
        """Let this number of changes happen and no more; None: do nothing."""
        self._left, self._has_killed = changes, False

    def disarm(self) -> bool:
        """Let all changes happen again; whether one did not."""
        self._left = None
        return self._has_killed

    def _counted(self, change: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            if self._left is not None:
                self._left -= 1
                if self._left < 0:
                    self._has_killed = True
                    raise KilledError
            return change(*arguments, **options)

        return counted


@pytest.mark.parametrize("seed", range(3))
def test_a_refresh_killed_at_any_change_of_a_file_loses_and_doubles_nothing(
    in_process: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seed: int
):
    """Records come late, so that seals are taken back as well; a killed refresh comes again."""
    records = records_in(random_history(tmp_path / "nodes", seed).spools)
    put_in(open_folder(tmp_path / "once"), records)
    monkeypatch.setattr(folders, "tail_rows", lambda partitions: 6)
    killer, chance = Killer(monkeypatch), random.Random(seed)
    order = sorted(range(len(records)), key=lambda at: at + chance.uniform(0, 25))
    folder, kills = open_folder(tmp_path / "pieces", shards=2), 0
    done: set[Key] = set()
    size = 10
    while order:
        some = records.take(pa.array(order[:size]))
        killer.arm(chance.choice([None, *range(0, 100)]))
        with contextlib.suppress(KilledError):
            put_in(folder, some)
            del order[: len(some)]
            done |= {*keys_in(some)}
            size = chance.randint(4, 12)
        was_killed = killer.disarm()
        kills += was_killed
        if was_killed or chance.random() < 0.2:
            folder = open_folder(tmp_path / "pieces", shards=2)
        if not folder.manifest.again:
            shown = [*keys_in(parquet.read_table(tmp_path / "pieces" / "records"))]
            assert len(shown) == len({*shown})
            assert done <= {*shown} <= done | {*keys_in(some)}
    assert kills > 5
    assert folder.manifest.generation >= 1
    assert [*differences(tmp_path / "pieces", tmp_path / "once")] == []
    assert not [*(tmp_path / "pieces" / STAGED).iterdir()]


def keys_in(records: pa.Table) -> Iterator[Key]:
    names = ("controller_epoch", "seq", "part")
    return zip(*(records.column(name).to_pylist() for name in names), strict=True)


def rows_in_tail(out: Path) -> int:
    records = parquet.read_table(out / "records" / "tail-00.parquet")
    decisions = sum(len(each) for each in records.column("decisions").to_pylist())
    return decisions + len({key[:2] for key in keys_in(records)})


def test_the_tail_is_bounded_by_its_decisions_not_by_its_events_alone(
    in_process: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(folders, "tail_rows", lambda partitions: 30)
    records = records_in(random_history(tmp_path / "nodes", 1).spools)
    folder = open_folder(tmp_path / "out")
    lengths = []
    for at in range(len(records)):
        put_in(folder, records.slice(at, 1))
        lengths.append(rows_in_tail(tmp_path / "out"))
    assert folder.manifest.generation >= 3
    assert 30 < max(lengths) <= 60


def test_a_tail_is_as_long_as_the_history_has_partitions():
    assert folders.tail_rows(1) == folders.tail_rows(100) > 1000
    assert folders.tail_rows(1_000_000) == 1_000_000


def test_a_record_of_any_age_finds_a_base_that_is_hardly_older(
    in_process: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(folders, "tail_rows", lambda partitions: 1)
    records = records_in(random_history(tmp_path / "nodes", 6).spools)
    folder = open_folder(tmp_path / "out")
    for at in range(len(records)):
        put_in(folder, records.slice(at, 1))
    newest = folder.manifest.generation
    kept = sorted(
        int(path.stem[5:]) for path in (tmp_path / "out" / STATE).glob("base-??????.json")
    )
    assert newest > 30
    assert len(kept) < newest / 2
    assert all((newest - older) <= 2 * (newest - younger) for older, younger in pairwise(kept[:-4]))


def test_opening_a_folder_lists_no_table(
    in_process: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """A long history has very many files."""
    put_in(open_folder(tmp_path / "out"), records_in(random_history(tmp_path / "nodes", 3).spools))
    listed = []

    def names(place: Location) -> list[str]:
        listed.append(place.uri)
        return []

    monkeypatch.setattr(Location, "names", names)
    folder = open_folder(tmp_path / "out")
    folder.refresh([], folders.KEYS.empty_table(), is_forced=True)
    assert listed == [str(tmp_path / "out" / STAGED)]


@pytest.mark.spark_heavy
@pytest.mark.parametrize("seed", [1])
def test_they_are_the_tables_that_the_definitions_give(
    spark: SparkSession, in_process: None, tmp_path: Path, seed: int
):
    cluster = random_history(tmp_path / "nodes", seed)
    out = tmp_path / "out"
    put_in(open_folder(out), records_in(cluster.spools))
    defined = make_tables(read_spools(spark, cluster.spools))
    for table in TABLES:
        expected = defined[table.name].toArrow()
        columns = [name for name in SCHEMAS[table.name].names if name != "cluster_id"]
        if table.name == "events":
            columns.remove("lost")
        assert set(columns) <= set(expected.column_names), table.name
        assert_same(rows_of(out, table.name), _in_utc(expected), columns)


def _in_utc(table: pa.Table) -> list[Row]:
    rows: list[Row] = table.to_pylist()
    return rows


def test_a_refresh_without_news_changes_no_file(in_process: None, tmp_path: Path):
    records = records_in(random_history(tmp_path / "nodes", 3).spools)
    folder = open_folder(tmp_path / "out")
    put_in(folder, records)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.parquet")}
    put_in(folder, records)
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.parquet")}
    assert after == before


def test_another_min_isr_makes_the_tables_again(
    in_process: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(folders, "tail_rows", lambda partitions: 12)
    records = records_in(random_history(tmp_path / "nodes", 4).spools)
    put_in(open_folder(tmp_path / "out"), records)
    two = {f"topic-{number}": 2 for number in range(30)}
    again = open_folder(tmp_path / "out", min_isr=two)
    again.refresh([], folders.KEYS.empty_table(), is_forced=True)
    put_in(open_folder(tmp_path / "fresh", min_isr=two), records)
    columns = SCHEMAS["under_min_isr"].names
    expected = rows_of(tmp_path / "fresh", "under_min_isr")
    assert expected
    assert_same(rows_of(tmp_path / "out", "under_min_isr"), expected, columns)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path):
    (tmp_path / "precious").touch()
    with pytest.raises(ConfigError, match="is not empty"):
        open_folder(tmp_path)


def test_a_folder_made_from_spools_takes_no_topic(in_process: None, tmp_path: Path):
    open_folder(tmp_path / "out")
    with pytest.raises(ConfigError, match="made from spools, not from topic x"):
        HistoryFolder(
            None,  # type: ignore[arg-type]
            Location(str(tmp_path / "out")),
            Origin({"topic": "x"}, "there"),
            shards=1,
        )


def test_a_spool_file_that_is_no_history_is_put_aside(
    spark: SparkSession, in_process: None, night_cluster: Cluster, tmp_path: Path
):
    (path,) = spool_files(night_cluster.spools[0])
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / path.name).write_bytes(path.read_bytes())
    foreign = tmp_path / "spool" / "000000000000001.arrows"
    foreign.write_bytes(b"something else")
    facts = SpoolInput([tmp_path / "spool"]).update(spark, tmp_path / "out")
    assert facts is not None
    assert (facts.counts["events"], facts.counts["quarantined"]) == (10, 1)
    (row,) = rows_of(tmp_path / "out", "quarantine")
    assert (row["file"], row["bytes"]) == (str(foreign), b"something else")
    assert "not an Arrow stream" in row["reason"]
