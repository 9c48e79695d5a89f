"""What every kind of table promises to the driver, checked by reading it with another engine."""

import datetime

import pyarrow as pa
import pytest

from klamm.errors import ConfigError
from klamm.pipeline.ingest.files import DataFile, FileWriter, groups_to_compact
from klamm.pipeline.ingest.location import Location
from klamm.pipeline.ingest.merging import compact
from klamm.pipeline.ingest.options import PartitionBy, TableTarget
from klamm.pipeline.ingest.tables.parquet import ParquetFiles
from klamm.pipeline.ingest.tables.table import (
    Commit,
    CommitConflictError,
    checkpoint_beside,
    create_table,
    open_table,
)
from tests.pipeline.ingest.records import Place

SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("tags", pa.list_(pa.string())),
        ("at", pa.timestamp("us", tz="UTC")),
        ("_offset", pa.int64()),
    ]
)
QUERY = "q-1"
AT = datetime.datetime(2024, 5, 6, 23, 0, tzinfo=datetime.UTC)


def rows(*ids, schema=SCHEMA, at=AT):
    return pa.Table.from_pylist(
        [{"id": n, "name": f"n{n}", "tags": ["a"], "at": at, "_offset": n} for n in ids], schema
    )


def made(place, *, partition_by=(), schema=SCHEMA):
    return create_table(place.target(), place.catalog, schema, partition_by, QUERY)


def written(table, *ids, partition_by=(), schema=SCHEMA):
    writer = FileWriter(table.layout(schema, partition_by))
    writer.write(rows(*ids, schema=schema))
    return writer.finish()


def ids(place):
    return [each["id"] for each in place.rows()]


def test_a_new_table_belongs_to_its_query_and_has_no_batch(place):
    assert open_table(place.target(), place.catalog) is None
    made(place)
    table = open_table(place.target(), place.catalog)
    assert table.owner == QUERY
    assert table.last_batch is None
    assert table.schema().equals(SCHEMA)
    assert place.rows() == []


def test_a_commit_adds_rows_and_the_number_of_the_batch(place):
    table = made(place)
    table.commit(Commit(written(table, 1, 2), batch=0, notes={"records": 2}))
    table.commit(Commit(written(table, 3), batch=1))
    assert ids(place) == [1, 2, 3]
    again = open_table(place.target(), place.catalog)
    assert again.last_batch == 1
    assert sum(each.rows for each in again.files()) == 3


def test_a_batch_without_rows_is_a_batch(place):
    table = made(place)
    table.commit(Commit([], batch=0))
    assert open_table(place.target(), place.catalog).last_batch == 0


def test_of_two_drivers_with_the_same_batch_one_is_refused(place):
    table = made(place)
    other = open_table(place.target(), place.catalog)
    mine, yours = written(table, 1, 2), written(other, 1, 2)
    table.commit(Commit(mine, batch=0))
    with pytest.raises(CommitConflictError):
        other.commit(Commit(yours, batch=0))
    assert ids(place) == [1, 2]
    assert other.last_batch == 0


def test_files_that_no_commit_names_are_not_in_the_table(place):
    table = made(place)
    written(table, 7, 8)
    table.commit(Commit(written(table, 1), batch=0))
    assert ids(place) == [1]


def test_a_commit_replaces_files_as_one_step(place):
    table = made(place)
    table.commit(Commit(written(table, 1, 2), batch=0))
    old = table.files()
    table.commit(Commit(written(table, 2, 3), old, batch=1))
    assert ids(place) == [2, 3]
    assert table.last_batch == 1


def test_compaction_keeps_rows_and_batches(place):
    table = made(place)
    for number in range(6):
        table.commit(Commit(written(table, number), batch=number))
    (group,) = groups_to_compact(table.files(), 1 << 20)
    table.commit(Commit(compact(group, table.layout(SCHEMA, ())), group))
    assert ids(place) == [0, 1, 2, 3, 4, 5]
    assert len(table.files()) == 1
    assert open_table(place.target(), place.catalog).last_batch == 5
    assert place.rows()[3]["tags"] == ["a"]


def test_a_new_column_is_null_in_older_rows(place):
    table = made(place)
    table.commit(Commit(written(table, 1), batch=0))
    wider = SCHEMA.append(pa.field("note", pa.string()))
    table.evolve(wider)
    writer = FileWriter(table.layout(wider, ()))
    writer.write(rows(2).append_column("note", pa.array(["new"])).select(wider.names))
    table.commit(Commit(writer.finish(), batch=1))
    assert [each["note"] for each in place.rows()] == [None, "new"]
    assert open_table(place.target(), place.catalog).last_batch == 1


def test_a_number_becomes_wider(place):
    table = made(place)
    table.commit(Commit(written(table, 1), batch=0))
    wide = SCHEMA.set(0, pa.field("id", pa.int64()))
    table.evolve(wide)
    writer = FileWriter(table.layout(wide, ()))
    writer.write(rows(2**40, schema=wide))
    table.commit(Commit(writer.finish(), batch=1))
    assert ids(place) == [1, 2**40]
    assert open_table(place.target(), place.catalog).last_batch == 1


def test_a_column_that_becomes_another_is_refused_by_name(place):
    table = made(place)
    with pytest.raises(ConfigError, match="Column name is string in the table"):
        table.evolve(SCHEMA.set(1, pa.field("name", pa.int64())))


def test_partitions_by_column_and_by_day(place):
    by = (PartitionBy("name"), PartitionBy("at", by_day=True))
    table = made(place, partition_by=by)
    files = written(table, 1, 2, partition_by=by)
    assert len(files) == 2
    table.commit(Commit(files, batch=0))
    table.commit(Commit(written(table, 1, partition_by=by), batch=1))
    assert [each["name"] for each in place.rows()] == ["n1", "n1", "n2"]
    assert len(table.files()) == 3
    groups = groups_to_compact(table.files(), 1 << 20)
    layout = table.layout(SCHEMA, by)
    for group in groups:
        table.commit(Commit(compact(group, layout), group))
    assert [each["name"] for each in place.rows()] == ["n1", "n1", "n2"]
    assert place.rows()[0]["at"].replace(tzinfo=None) == AT.replace(tzinfo=None)
    assert len(table.files()) == 2


@pytest.mark.parametrize("name", ["a/b c=ü%20", "..", None])
def test_files_of_partitions_with_any_name_can_be_replaced(place, name):
    by = (PartitionBy("name"),)
    table = made(place, partition_by=by)
    for number in range(3):
        writer = FileWriter(table.layout(SCHEMA, by))
        writer.write(rows(number).set_column(1, "name", pa.array([name], pa.string())))
        table.commit(Commit(writer.finish(), batch=number))
    (group,) = groups_to_compact(table.files(), 1 << 20)
    table.commit(Commit(compact(group, table.layout(SCHEMA, by)), group))
    assert len(table.files()) == 1
    table.expire(0)
    assert [(each["id"], each["name"]) for each in place.rows()] == [(n, name) for n in range(3)]


def test_a_partition_that_is_no_column_is_refused(place):
    with pytest.raises(ConfigError, match="no column nope to partition by"):
        made(place, partition_by=(PartitionBy("nope"),))
    with pytest.raises(ConfigError, match=r"day\(id\) needs a timestamp"):
        made(place, partition_by=(PartitionBy("id", by_day=True),))


def test_old_versions_can_be_deleted(place):
    table = made(place)
    for number in range(3):
        table.commit(Commit(written(table, number), table.files(), batch=number))
    table.expire(0)
    assert ids(place) == [2]
    assert open_table(place.target(), place.catalog).last_batch == 2
    left = [each for each in place.folder.rglob("*.parquet") if "_delta_log" not in each.parts]
    assert len(left) == len(table.files()) == 1


def test_files_that_a_kept_version_of_an_iceberg_table_has_stay(tmp_path):
    place = Place("iceberg", tmp_path)
    table = made(place)
    table.commit(Commit(written(table, 1), batch=0))
    table.commit(Commit(written(table, 2), batch=1))  # has the first file as well
    table.commit(Commit(written(table, 3), table.files()[:1], batch=2))
    table.expire(3600)
    assert len(list(tmp_path.rglob("*.parquet"))) == 3
    assert len(ids(place)) == 2
    table.expire(0)
    assert len(list(tmp_path.rglob("*.parquet"))) == 2
    assert len(ids(place)) == 2
    assert len(list(tmp_path.rglob("snap-*.avro"))) == 1


def test_young_versions_of_a_delta_table_stay_and_files_of_failed_attempts_go(tmp_path):
    place = Place("delta", tmp_path)
    table = made(place)
    for number in range(3):
        table.commit(Commit(written(table, number), table.files(), batch=number))
    written(table, 7)  # and never committed
    assert len(list(tmp_path.rglob("*.parquet"))) == 4
    table.expire(1800)
    assert ids(place) == [2]
    assert len(list(tmp_path.rglob("*.parquet"))) == 3


@pytest.mark.parametrize("name", ["test.orders", "test.a.b.orders"])
def test_the_checkpoint_is_beside_the_table(tmp_path, name):
    assert checkpoint_beside(TableTarget("delta", "lake/x/"), {}) == "lake/x_checkpoint"
    iceberg, catalog = TableTarget("iceberg", name), Place("iceberg", tmp_path).catalog
    inside = {"test.orders": "default/orders", "test.a.b.orders": "a/b/orders"}[name]
    found = checkpoint_beside(iceberg, catalog)
    assert found == f"file://{tmp_path}/warehouse/{inside}_checkpoint"
    with pytest.raises(ConfigError, match="name --checkpoint DIR"):
        checkpoint_beside(iceberg, {**catalog, "warehouse": "analytics"})


def test_a_folder_that_is_somebody_elses_is_refused(tmp_path, place):
    if place.kind == "iceberg":
        pytest.skip("tables of a catalog have no folder that could be another's")
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "data.csv").write_text("1,2")
    with pytest.raises(ConfigError, match="is not empty"):
        open_table(place.target(), place.catalog)


class Killed(BaseException):
    """Stands for a driver that is killed."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_folder_shows_rows_once_after_a_kill_in_a_replacement(tmp_path, monkeypatch, when):
    place = Place("parquet", tmp_path)
    table = made(place)
    for number in range(3):
        table.commit(Commit(written(table, number), batch=number))
    old = table.files()
    merged = compact(old, table.layout(SCHEMA, ()))
    with monkeypatch.context() as patched:
        add_version = ParquetFiles._add_version

        def killed(self, content):
            if when == "after":
                add_version(self, content)
            raise Killed

        patched.setattr(ParquetFiles, "_add_version", killed)
        # A driver that is killed cleans nothing up.
        patched.setattr(Location, "delete", lambda *_: None)
        with pytest.raises(Killed):
            table.commit(Commit(merged, old))
    again = open_table(place.target(), place.catalog)
    listed = sorted((tmp_path / "orders").glob("*.parquet"))
    assert len(listed) == len(again.files()) == (3 if when == "before" else 1)
    assert ids(place) == [0, 1, 2]
    if when == "before":  # the one that was killed is refused, should it be alive
        with pytest.raises(CommitConflictError):
            table.commit(Commit(merged, old))
        assert ids(place) == [0, 1, 2]
        assert len(sorted((tmp_path / "orders").glob("*.parquet"))) == 3


@pytest.mark.parametrize("count", [1, 2, 3, 7, 20, 50])
def test_after_compaction_there_are_few_more_files_than_needed(count):
    size = 30
    files = [DataFile(f"{n}.parquet", size, 1) for n in range(count)]
    left = list(files)
    for _ in range(3):
        groups = groups_to_compact(left, 100)
        merged = {each.path for group in groups for each in group}
        left = [each for each in left if each.path not in merged]
        left += [
            DataFile(f"c{len(left)}-{at}", sum(each.size for each in group), 1)
            for at, group in enumerate(groups)
        ]
    ideal = max(-(-count * size // 100), 1)
    assert len(left) <= max(1.2 * ideal, 1)
