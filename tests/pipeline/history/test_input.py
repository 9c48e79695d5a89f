"""Where records come from, and what is refused."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import klamm.pipeline
from klamm.core.effects import WriteOutcome
from klamm.core.events import BrokerChange
from klamm.errors import ConfigError
from klamm.history.arrow import SCHEMA, encode_stream
from klamm.history.spool import read_spool, spool_files
from klamm.pipeline import session
from klamm.pipeline.history.definitions import TABLES, make_tables
from klamm.pipeline.history.input import (
    check_spools,
    decode_messages,
    distinct,
    read_spools,
    wrong_with,
)
from klamm.pipeline.history.tables import controller_terms, events, gaps
from tests.pipeline.history.night import Cluster
from tests.support.procedure_store import state_path

#: The first test of a run pays for Spark's start and for all tables.
pytestmark = pytest.mark.timeout(600)


def write_file(directory: Path, schema: pa.Schema) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / "000000000000001.arrows"
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema):
        pass
    return path


def test_a_spool_that_is_not_there_is_refused_with_the_key(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"There is no spool .*klamm\.history\.dir"):
        check_spools([tmp_path / "nowhere"])


def test_a_directory_without_files_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="holds no history"):
        check_spools([tmp_path])


def test_a_file_that_is_no_history_says_why(tmp_path: Path):
    path = tmp_path / "000000000000001.arrows"
    path.write_bytes(b"something else")
    assert "is not an Arrow stream" in (wrong_with(path) or "")
    write_file(tmp_path, pa.schema([("x", pa.int32())]))
    assert "holds no history of version 1, but none" in (wrong_with(path) or "")
    write_file(tmp_path, SCHEMA.with_metadata({b"klamm.history": b"7"}))
    assert "version 7" in (wrong_with(path) or "")
    path.unlink()
    path.mkdir()
    assert "cannot be read: Is a directory" in (wrong_with(path) or "")


def test_a_file_torn_in_its_first_message_holds_nothing_and_is_accepted(tmp_path: Path):
    path = write_file(tmp_path, SCHEMA)
    path.write_bytes(path.read_bytes()[:100])
    assert check_spools([tmp_path]) == [path]
    assert wrong_with(path) is None


def test_messages_of_the_topic_hold_the_same_records(spark: SparkSession, night_cluster: Cluster):
    batches = [batch for each in night_cluster.spools for batch in read_spool(each)]
    rows = [("t", 0, n, encode_stream(batch)) for n, batch in enumerate(batches)]
    rows += [("t", 0, 1000, b"foreign"), ("t", 0, 1001, None)]
    messages = spark.createDataFrame(
        rows, "topic string, partition int, offset bigint, value binary"
    )
    keys = ("controller_epoch", "seq", "part")
    found = decode_messages(messages).select(*keys).collect()
    expected = read_spools(spark, night_cluster.spools).select(*keys).collect()
    assert sorted(found) == sorted(expected)


def test_workers_read_spools_that_are_not_little(
    spark: SparkSession, night_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
):
    here = read_spools(spark, night_cluster.spools).toArrow()
    monkeypatch.setattr(session, "LITTLE_BYTES", 0)
    there = read_spools(spark, night_cluster.spools).toArrow()
    order = [(name, "ascending") for name in ("controller_epoch", "seq", "part")]
    assert here.num_rows > 0
    assert there.sort_by(order).to_pylist() == here.sort_by(order).to_pylist()


def test_gaps_are_ranges_of_sequences_parts_and_epochs(told, spark: SparkSession):
    kept = (
        distinct(told.records)
        .where("not (controller_epoch = 1 and seq in (1, 4, 5, 10))")
        # The later term becomes epoch 4, and one of its events loses its second half.
        .withColumn("controller_epoch", F.expr("if(controller_epoch = 2, 4, controller_epoch)"))
        .withColumn("parts", F.expr("if(controller_epoch = 4 and seq = 7, 2, parts)"))
    )
    of_kept = events(kept)
    found = gaps(of_kept).select("controller_epoch", "first_seq", "last_seq", "missing").collect()
    assert sorted(tuple(row) for row in found if row["last_seq"] is not None) == [
        (1, 1, 1, "events"),
        (1, 4, 5, "events"),
        (4, 7, 7, "parts"),
    ]
    assert sorted(tuple(row)[:2] for row in found if row["last_seq"] is None) == [(2, 1), (3, 1)]
    terms = {row["controller_epoch"]: row for row in controller_terms(of_kept).collect()}
    assert terms[1]["missing_events"] == 3
    assert terms[1]["takeover_us"] is None


def test_a_leader_that_was_never_announced_counts_when_the_next_controller_announces_it(
    spark: SparkSession, tmp_path: Path
):
    cluster = Cluster(tmp_path, brokers=(1, 2, 3))
    cluster.new_controller(1, epoch=1, at=0)
    cluster.create(1, orders={0: [2, 3]}, other={0: [2, 3]})
    # The controller elects, and is gone before it can say so to anybody.
    controller = cluster.at(10)
    controller.faults.refuse[state_path("other", 0)] = [WriteOutcome.FAILED]
    controller.fail_announcements()
    controller.lose(2)
    controller.handle(BrokerChange(), "watch on /brokers/ids")
    cluster.new_controller(3, epoch=2, at=20)
    cluster.close()
    tables = make_tables(read_spools(spark, cluster.spools))
    rows = {row["topic"]: row for row in tables["unavailability"].collect()}
    assert (rows["orders"]["lost_leader"], rows["orders"]["new_leader"]) == (2, 3)
    assert 10 < rows["orders"]["electing_seconds"] < 10.1
    # This one's election was not written: it stays without a leader until the next term's is.
    assert (rows["other"]["controller_epoch"], rows["other"]["new_leader"]) == (1, 3)
    assert 10 < rows["other"]["electing_seconds"] < 10.1


def test_a_torn_spool_is_read_up_to_where_it_is_torn(spark, night_cluster: Cluster, tmp_path):
    (path,) = spool_files(night_cluster.spools[0])
    data = path.read_bytes()
    (tmp_path / path.name).write_bytes(data[: len(data) * 2 // 3])
    whole = sum(batch.num_rows for batch in read_spool(night_cluster.spools[0]))
    assert 0 <= read_spools(spark, [tmp_path]).count() < whole


def test_every_table_has_a_public_function():
    assert {table.name for table in TABLES} <= set(dir(klamm.pipeline))
    for table in TABLES:
        assert getattr(klamm.pipeline, table.name) is table.make
