"""Tasks on plain batches: rows, dead letters, expectations and upserts, without Spark."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.errors import ConfigError
from klamm.pipeline.ingest.expectations import ExpectationError, check_expectations
from klamm.pipeline.ingest.files import Bucket, DataFile, Layout
from klamm.pipeline.ingest.formats.choice import table_schema
from klamm.pipeline.ingest.formats.json import JsonParser
from klamm.pipeline.ingest.formats.parsing import DEAD_LETTER_SCHEMA
from klamm.pipeline.ingest.keys import ChangeMaker
from klamm.pipeline.ingest.location import Location
from klamm.pipeline.ingest.merging import MergeWork, merge, merge_units, read_rows, wanted_bits
from klamm.pipeline.ingest.options import Expectation
from klamm.pipeline.ingest.task import Outcome, Work, ingest_records
from tests.pipeline.ingest.records import as_json, records

FIELDS = pa.struct([("id", pa.int64()), ("name", pa.string())])
SCHEMA = table_schema(FIELDS)


class Bench:
    """Folders of a table and its dead letters, and what is in them."""

    def __init__(self, folder, schema=SCHEMA, parser=None):
        self.schema = schema
        self.parser = parser
        self.folder = folder
        self.layout = Layout(Location(f"{folder}/table"), schema)
        self.dead = Layout(Location(f"{folder}/dead"), DEAD_LETTER_SCHEMA)
        self.files = []

    def work(self, **more):
        return Work(
            read=None, parser=self.parser, layout=self.layout, dead_letter_layout=self.dead, **more
        )

    def run(self, *batches, **more):
        return ingest_records(batches, self.work(**more))

    def rows(self, outcome):
        if not outcome.files:
            return []
        return read_rows(self.layout, outcome.files).to_pylist()

    def letters(self, outcome):
        if not outcome.dead_letters:
            return []
        return read_rows(self.dead, outcome.dead_letters).to_pylist()

    def upsert(self, batch, *, key=("id",), file_bytes=1 << 20, is_raw=False):
        """Ingest a batch as changes and merge it into the files so far."""
        changes = Location(f"{self.folder}/changes")
        bits = wanted_bits(self.files, file_bytes)
        outcome = self.run(batch, changes=ChangeMaker(key, changes, bits, is_raw))
        units = merge_units(self.files, outcome.files)
        offset = "offset" if is_raw else "_offset"
        wide = max([0, *(each.bucket.bits for each in (*self.files, *outcome.files))])
        work = MergeWork(self.layout, changes, key, wide, offset)
        written = [file for unit in units for file in merge(unit, work)]
        replaced = {file.path for unit in units for file in unit.files}
        self.files = [each for each in self.files if each.path not in replaced] + written
        return outcome

    def table(self):
        return read_rows(self.layout, self.files).to_pylist() if self.files else []


@pytest.fixture
def bench(tmp_path):
    return Bench(tmp_path, parser=JsonParser(FIELDS))


def test_rows_have_their_columns_and_where_they_come_from(bench):
    batch = records(as_json({"id": 1, "name": "a"}), partition=3, start=40)
    outcome = bench.run(batch)
    (row,) = bench.rows(outcome)
    origin = {"_topic": "orders", "_partition": 3, "_offset": 40}
    assert row == {"id": 1, "name": "a", **origin, "_timestamp": row["_timestamp"]}
    assert (outcome.records, outcome.rows, outcome.bad) == (1, 1, 0)
    assert outcome.bytes == len(batch.column("value")[0].as_py())


def test_what_does_not_parse_is_a_dead_letter_with_its_bytes_and_a_reason(bench):
    values = [*as_json({"id": 1}), b"nope", None, *as_json({"id": 2})]
    outcome = bench.run(records(values, keys=[b"a", b"b", b"c", b"d"]))
    assert [each["_offset"] for each in bench.rows(outcome)] == [0, 3]
    assert outcome.bad == 2
    bad, tombstone = bench.letters(outcome)
    assert (bad["topic"], bad["partition"], bad["offset"]) == ("orders", 0, 1)
    assert (bad["key"], bad["value"]) == (b"b", b"nope")
    assert bad["reason"].startswith("JSON: ")
    assert tombstone["value"] is None
    assert "tombstone" in tombstone["reason"]


def test_raw_rows_are_the_records(tmp_path):
    batch = records([b"a", None], keys=[None, b"k"])
    bench = Bench(tmp_path, batch.schema)
    assert bench.rows(bench.run(batch)) == batch.to_pylist()


def test_expectations_drop_and_keep_aside_and_are_counted(bench):
    batch = records(as_json({"id": 1}, {"id": -1}, {"id": None}, {"id": 200}))
    expectations = (Expectation("id < 100", "drop"), Expectation("id > 0", "aside"))
    outcome = bench.run(batch, expectations=expectations)
    assert [each["id"] for each in bench.rows(outcome)] == [1]
    assert outcome.broken == {"id < 100": 2, "id > 0": 2}
    letters = bench.letters(outcome)
    assert [(each["offset"], each["reason"]) for each in letters] == [
        (1, "expectation: id > 0"),
        (2, "expectation: id > 0"),
    ]
    assert outcome.bad == 0


def test_an_expectation_that_fails_the_run_shows_the_first_row(bench):
    with pytest.raises(ExpectationError, match=r"1 row .* 'id > 0'; the first is .*'id': -1"):
        bench.run(
            records(as_json({"id": 1}, {"id": -1})), expectations=(Expectation("id > 0", "fail"),)
        )


@pytest.mark.parametrize("sql", ["nope > 0", "id >", "name"])
def test_an_expectation_that_cannot_be_checked_is_refused_beforehand(sql):
    check_expectations((Expectation("id > 0"),), SCHEMA)
    if sql == "name":
        check_expectations((Expectation("length(name) > 0"),), SCHEMA)
        return
    with pytest.raises(ConfigError, match="cannot be checked"):
        check_expectations((Expectation(sql),), SCHEMA)


def test_the_last_change_of_a_key_counts_and_a_tombstone_deletes(bench):
    bench.upsert(
        records(
            [*as_json({"id": 1, "name": "a"}, {"id": 2, "name": "b"}, {"id": 1, "name": "c"})],
            keys=[b"1", b"2", b"1"],
        )
    )
    assert sorted((each["id"], each["name"]) for each in bench.table()) == [(1, "c"), (2, "b")]
    bench.upsert(
        records(
            [None, *as_json({"id": 3, "name": "d"}), None], keys=[b"2", b"3", b'{"id":1}'], start=9
        )
    )
    assert [(each["id"], each["name"], each["_offset"]) for each in bench.table()] == [(3, "d", 10)]


def test_a_key_that_is_deleted_and_written_again_is_there(bench):
    bench.upsert(records([*as_json({"id": 1, "name": "a"}), None], keys=[b"1", b"1"]))
    assert bench.table() == []
    bench.upsert(records([None, *as_json({"id": 1, "name": "b"})], keys=[b"1", b"1"], start=2))
    assert [each["name"] for each in bench.table()] == ["b"]


def test_changes_without_a_usable_key_are_dead_letters(bench):
    outcome = bench.upsert(
        records([*as_json({"id": None, "name": "a"}), None, None], keys=[b"1", None, b"x"])
    )
    assert outcome.bad == 3
    reasons = [each["reason"] for each in bench.letters(outcome)]
    assert "column id is null" in reasons[0]
    assert "does not give the columns id: it is null" in reasons[1]
    assert "does not give the columns id" in reasons[2]


def test_raw_records_are_upserted_by_their_key(tmp_path):
    batch = records([b"a", b"b", None, b"c", b"d"], keys=[b"x", b"y", b"y", b"x", None])
    bench = Bench(tmp_path, batch.schema)
    outcome = bench.upsert(batch, key=("key",), is_raw=True)
    assert [(each["key"], each["value"]) for each in bench.table()] == [(b"x", b"c")]
    assert outcome.bad == 1


changes = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.none() | st.text("ab", max_size=2)), max_size=12),
    max_size=5,
)


@settings(max_examples=25)
@given(changes, st.sampled_from([1, 2000, 1 << 20]))
def test_a_table_that_is_upserted_is_a_dictionary(tmp_path_factory, batches, file_bytes):
    bench = Bench(tmp_path_factory.mktemp("upsert"), parser=JsonParser(FIELDS))
    expected, start = {}, 0
    for batch in batches:
        values = [
            None if name is None else as_json({"id": key, "name": name})[0] for key, name in batch
        ]
        if batch:
            keys = [str(key).encode() for key, _ in batch]
            bench.upsert(records(values, keys=keys, start=start), file_bytes=file_bytes)
        start += len(batch)
        for key, name in batch:
            expected[key] = name
            if name is None:
                del expected[key]
    assert sorted((each["id"], each["name"]) for each in bench.table()) == sorted(expected.items())


def test_a_table_that_grows_is_divided_among_more_files():
    files = [DataFile("part-0-0-x.parquet", 1000, 1)]
    assert wanted_bits(files, 1000) == 0
    assert wanted_bits(files, 200) == 2
    assert wanted_bits([DataFile("part-3-1-x.parquet", 1, 1)], 1000) == 3


def test_a_file_of_unknown_keys_belongs_to_every_change():
    assert DataFile("0001.parquet", 1, 1).bucket == Bucket()
    changes = [DataFile(f"part-2-{number}-x.parquet", 1, 1) for number in range(4)]
    (unit,) = merge_units([DataFile("0001.parquet", 1, 1)], changes)
    assert len(unit.changes) == 4
    units = merge_units([DataFile("part-1-0-a.parquet", 1, 1)], changes)
    assert sorted(len(each.changes) for each in units) == [1, 1, 2]


def test_an_outcome_survives_its_way_to_the_driver(bench):
    outcome = bench.run(records(as_json({"id": 1})))
    again = Outcome.from_json(outcome.to_json())
    assert again == outcome


def test_a_disk_that_takes_no_more_fails_the_task_with_its_reason(bench, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(OSError, match="No space left on device"):
        bench.run(records(as_json({"id": 1})))
    assert not list(bench.folder.rglob("*.parquet"))
