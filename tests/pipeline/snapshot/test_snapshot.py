"""Snapshots as folders: what is written is read again, and what is not one is refused."""

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from klamm.errors import ConfigError
from klamm.pipeline import arrow
from klamm.pipeline.snapshot.snapshot import Snapshot, read_snapshot, write_snapshot, write_table

BROKERS = [{"id": 2, "host": "h", "port": 1, "rack": None}, {"id": 1, "rack": "a"}]
PARTITION = {
    "topic": "t",
    "partition": 0,
    "replicas": [1, 2],
    "isr": [2],
    "leader": 2,
    "leader_epoch": 4,
    "min_isr": 1,
    "unclean": False,
    "bytes": None,
}


def make_snapshot(brokers=BROKERS) -> Snapshot:
    topic = {"topic": "t", "topic_id": "id", "partitions": 1, "config": [("a", "b")]}
    return Snapshot(
        cluster_id="c",
        source="test",
        taken_at=datetime.now(UTC),
        brokers=pa.Table.from_pylist(brokers, arrow.BROKERS),
        topics=pa.Table.from_pylist([topic], arrow.TOPICS),
        partitions=pa.Table.from_pylist([PARTITION], arrow.PARTITIONS),
    )


@pytest.fixture(params=["spark", "little"], autouse=True)
def reading(request):
    """Snapshots are read by Spark, or by the driver if they are little, with the same result."""
    request.getfixturevalue(request.param)
    return request.param


@pytest.fixture
def written(spark, tmp_path):
    write_snapshot(spark, make_snapshot(), str(tmp_path))
    return tmp_path


def test_what_is_written_is_read_again(spark, written, reading):
    found = read_snapshot(spark, str(written))
    assert (found.partitions_here is not None) == (reading == "little")
    assert found.facts.keys() == {"Cluster", "Read from", "Taken"}
    assert found.racks() == {1: "a", 2: None}
    assert [row.asDict() for row in found.partitions.collect()] == [PARTITION]


def test_the_tables_have_the_columns_of_the_contract(spark, written):
    types = {
        name: spark.read.parquet(f"{written}/{name}").schema.simpleString()
        for name in ("brokers", "topics", "partitions")
    }
    assert types == {
        "brokers": "struct<id:int,host:string,port:int,rack:string>",
        "topics": "struct<topic:string,topic_id:string,partitions:int,config:map<string,string>>",
        "partitions": "struct<topic:string,partition:int,replicas:array<int>,isr:array<int>,"
        "leader:int,leader_epoch:int,min_isr:int,unclean:boolean,bytes:bigint>",
    }


def test_a_snapshot_of_another_version_is_refused(spark, written):
    meta = pq.read_table(written / "meta")
    other = meta.set_column(0, "version", pa.array([99], pa.int32()))
    write_table(spark, other, f"{written}/meta")
    with pytest.raises(ConfigError, match=r"version 99.*reads version 1"):
        read_snapshot(spark, str(written))


def test_a_folder_that_is_no_snapshot_is_refused(spark, tmp_path):
    with pytest.raises(ConfigError, match="is not a snapshot: it has no table brokers/"):
        read_snapshot(spark, str(tmp_path / "nothing"))


def test_missing_columns_are_named(spark, written):
    partitions = pq.read_table(written / "partitions").drop_columns(["isr", "min_isr"])
    write_table(spark, partitions, f"{written}/partitions")
    with pytest.raises(ConfigError, match="lacks the columns isr, min_isr"):
        read_snapshot(spark, str(written))


def test_a_column_of_another_type_is_named(spark, written):
    brokers = pa.table({"id": ["1"], "rack": ["a"]})
    write_table(spark, brokers, f"{written}/brokers")
    with pytest.raises(ConfigError, match="id is string, expected is int"):
        read_snapshot(spark, str(written))


def test_a_cluster_without_brokers_is_refused(spark, tmp_path):
    write_snapshot(spark, make_snapshot(brokers=[]), str(tmp_path))
    with pytest.raises(ConfigError, match="it has no broker"):
        read_snapshot(spark, str(tmp_path))
