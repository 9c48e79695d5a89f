"""Ingestions on a real broker and Spark: exactly once, whatever is killed between two steps."""

import json
import threading
from collections import Counter

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from klamm.errors import ConfigError, KlammError
from klamm.pipeline.ingest import run as run_module
from klamm.pipeline.ingest.checkpoint import Checkpoint
from klamm.pipeline.ingest.options import (
    Expectation,
    IngestOptions,
    PartitionBy,
    TableTarget,
)
from klamm.pipeline.ingest.run import TooManyBadError, ingest_topics
from klamm.pipeline.ingest.tables.delta import DeltaFiles
from klamm.pipeline.ingest.tables.iceberg import IcebergFiles
from klamm.pipeline.ingest.tables.parquet import ParquetFiles
from klamm.pipeline.ingest.tables.table import open_table
from tests.pipeline.ingest.records import Place

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]


class Killed(BaseException):
    """Stands for a driver that is killed."""


def produce(cluster, topic, values, keys=None):
    producer = cluster.producer(acks="all")
    for at, value in enumerate(values):
        content = value if value is None or isinstance(value, bytes) else json.dumps(value).encode()
        key = None if keys is None else str(keys[at]).encode()
        producer.produce(topic, content, key, partition=at % 2 if keys is None else -1)
    assert producer.flush(30) == 0


def options(cluster, topic, place, **more):
    settings = {"format": "json", "catalog": place.catalog}
    settings |= {"checkpoint": f"{place.folder}/checkpoint"}
    return IngestOptions((topic,), place.target(), cluster.bootstrap, **(settings | more))


def offsets(rows, prefix="_"):
    return Counter((each[f"{prefix}partition"], each[f"{prefix}offset"]) for each in rows)


@pytest.fixture
def parquet(tmp_path):
    return Place("parquet", tmp_path)


def steps(monkeypatch, kill_at):
    """Count the steps that change something outside, and kill the driver at one of them."""
    seen = Counter()

    def step():
        seen["steps"] += 1
        if seen["steps"] == kill_at:
            raise Killed

    def around(owner, name):
        before = getattr(owner, name)

        def killed(*arguments, **named):
            step()
            result = before(*arguments, **named)
            step()
            return result

        monkeypatch.setattr(owner, name, killed)

    around(Checkpoint, "add_plan")
    around(Checkpoint, "prepare")
    around(Checkpoint, "keep_schema")
    around(run_module, "create_table")
    for table in (DeltaFiles, IcebergFiles, ParquetFiles):
        around(table, "commit")
    return seen


def test_a_driver_killed_at_every_step_leaves_each_offset_once(
    spark, cluster, topic, place, monkeypatch
):
    values = [{"id": n} if n % 50 else b"bad" for n in range(600)]
    produce(cluster, topic, values)
    chosen = options(cluster, topic, place, batch_records=250)
    kills = 0
    for kill_at in range(1, 100):
        with monkeypatch.context() as patched:
            steps(patched, kill_at)
            try:
                ingest_topics(spark, chosen)
                break
            except Killed:
                kills += 1
    assert kills >= 8
    rows, letters = place.rows(), place.rows("orders_dead_letters", order="offset")
    assert len(letters) == 12
    assert {each["value"] for each in letters} == {b"bad"}
    expected = Counter((n % 2, n // 2) for n in range(600))
    assert offsets(rows) + offsets(letters, prefix="") == expected
    assert all(
        values[2 * each["_offset"] + each["_partition"]]["id"] == each["id"] for each in rows
    )


def test_each_run_goes_on_where_the_last_one_stopped(spark, cluster, topic, place):
    produce(cluster, topic, [{"id": n} for n in range(10)])
    chosen = options(cluster, topic, place)
    assert ingest_topics(spark, chosen).records == 10
    assert ingest_topics(spark, chosen).records == 0
    produce(cluster, topic, [{"id": n} for n in range(10, 15)])
    summary = ingest_topics(spark, chosen)
    assert (summary.records, summary.batches, summary.lag, summary.files) == (5, 1, 0, 1)
    assert sorted(each["id"] for each in place.rows()) == list(range(15))


def test_upserts_on_a_real_topic(spark, cluster, topic, place):
    produce(cluster, topic, [{"id": n, "n": 0} for n in range(20)], keys=range(20))
    chosen = options(cluster, topic, place, mode="upsert", key=("id",))
    ingest_topics(spark, chosen)
    produce(cluster, topic, [{"id": n, "n": 1} for n in range(5)] + [None] * 5, keys=range(10))
    assert ingest_topics(spark, chosen).bad == 0
    found = {each["id"]: each["n"] for each in place.rows()}
    assert found == {n: 1 if n < 5 else 0 for n in range(20) if not 5 <= n < 10}
    assert ingest_topics(spark, chosen).records == 0


def test_raw_records_with_headers_partitioned_by_day(spark, cluster, topic, parquet):
    produce(cluster, topic, [b"a", b"b", None])
    by = (PartitionBy("timestamp", by_day=True),)
    chosen = options(cluster, topic, parquet, format="raw", include_headers=True, partition_by=by)
    ingest_topics(spark, chosen)
    rows = parquet.rows(order="value")
    assert [each["value"] for each in rows][:2] == [b"a", b"b"]
    assert {"headers", "timestampType", "timestamp_day"} <= rows[0].keys()


def test_too_many_bad_records_stop_the_run_and_nothing_is_lost(spark, cluster, topic, parquet):
    produce(cluster, topic, [{"id": 1}, b"bad", {"id": 2}, {"id": 3}])
    chosen = options(cluster, topic, parquet, max_bad=0.01)
    with pytest.raises(TooManyBadError, match=r"1 of 4 records \(25.00%\)"):
        ingest_topics(spark, chosen)
    assert parquet.rows() == []
    summary = ingest_topics(spark, options(cluster, topic, parquet, max_bad=0.5))
    assert (summary.rows, summary.bad) == (3, 1)


def test_an_expectation_that_fails_names_itself(spark, cluster, topic, parquet):
    produce(cluster, topic, [{"id": 1}, {"id": -1}])
    failing = (Expectation("id > 0", "fail"),)
    with pytest.raises(KlammError, match="breaks the expectation 'id > 0'"):
        ingest_topics(spark, options(cluster, topic, parquet, expectations=failing))
    aside = (Expectation("id > 0", "aside"),)
    summary = ingest_topics(spark, options(cluster, topic, parquet, expectations=aside))
    assert (summary.rows, summary.broken) == (1, {"id > 0": 1})


def test_a_column_that_a_new_schema_drops_keeps_its_old_values(spark, cluster, topic, place):
    produce(cluster, topic, [{"id": 1, "old": "a"}])
    first = options(cluster, topic, place, schema="id bigint, old string", schema_name="1.txt")
    ingest_topics(spark, first)
    produce(cluster, topic, [{"id": 2, "new": "b"}])
    second = options(cluster, topic, place, schema="id bigint, new string", schema_name="2.txt")
    assert ingest_topics(spark, second).files == 1
    found = [(each["id"], each["old"], each["new"]) for each in place.rows()]
    assert sorted(found) == [(1, "a", None), (2, None, "b")]


def test_small_files_are_compacted_on_the_way(spark, cluster, topic, parquet):
    produce(cluster, topic, [{"id": n} for n in range(400)])
    summary = ingest_topics(spark, options(cluster, topic, parquet, batch_records=20))
    assert summary.batches >= 20
    assert summary.compactions >= 2
    assert summary.files == 1
    assert sorted(each["id"] for each in parquet.rows()) == list(range(400))


def test_a_continuous_run_takes_what_comes_until_it_is_stopped(spark, cluster, topic, parquet):
    stop, seen = threading.Event(), []

    def on_progress(summary):
        seen.append(summary.records)
        if summary.records == 3:
            produce(cluster, topic, [{"id": n} for n in range(3, 6)])
        elif summary.records == 6:
            stop.set()

    produce(cluster, topic, [{"id": n} for n in range(3)])
    chosen = options(cluster, topic, parquet)
    summary = ingest_topics(
        spark, chosen, continuous=True, every_s=0.1, stop=stop, on_progress=on_progress
    )
    assert summary.records == 6
    assert sorted(each["id"] for each in parquet.rows()) == list(range(6))


def test_an_empty_topic_is_no_failure(spark, cluster, topic, parquet):
    assert ingest_topics(spark, options(cluster, topic, parquet)).records == 0


def test_an_empty_topic_whose_columns_are_known_is_an_empty_table(spark, cluster, topic, place):
    chosen = options(cluster, topic, place, schema="id bigint", schema_name="columns.txt")
    assert ingest_topics(spark, chosen).records == 0
    table = open_table(place.target(), place.catalog)
    assert table.schema().names == ["id", "_topic", "_partition", "_offset", "_timestamp"]
    produce(cluster, topic, [{"id": 1}])
    assert ingest_topics(spark, chosen).records == 1
    assert [each["id"] for each in place.rows()] == [1]


def test_a_lost_checkpoint_is_refused_because_rows_would_be_doubled(
    spark, cluster, topic, place, tmp_path
):
    produce(cluster, topic, [{"id": 1}])
    ingest_topics(spark, options(cluster, topic, place))
    with pytest.raises(ConfigError, match=r"belongs to the query .* another checkpoint"):
        ingest_topics(spark, options(cluster, topic, place, checkpoint=f"{tmp_path}/new"))
    assert len(place.rows()) == 1


def test_a_checkpoint_of_another_query_is_refused(spark, cluster, topic, parquet):
    produce(cluster, topic, [{"id": 1}])
    ingest_topics(spark, options(cluster, topic, parquet))
    other = TableTarget("parquet", f"{parquet.folder}/other")
    with pytest.raises(ConfigError, match="checkpoint of another query: its to is"):
        ingest_topics(
            spark,
            IngestOptions(
                (topic,),
                other,
                cluster.bootstrap,
                format="json",
                checkpoint=f"{parquet.folder}/checkpoint",
            ),
        )


def test_a_table_that_is_gone_is_refused(spark, cluster, topic, parquet):
    chosen = options(cluster, topic, parquet, batch_records=1)
    produce(cluster, topic, [{"id": 1}, {"id": 2}, {"id": 3}])
    ingest_topics(spark, chosen)
    (parquet.folder / "orders").rename(parquet.folder / "moved")
    with pytest.raises(ConfigError, match=r"do not belong together|is gone"):
        ingest_topics(spark, chosen)


def test_offsets_that_are_gone_stop_a_run_unless_that_is_allowed(spark, cluster, topic, parquet):
    produce(cluster, topic, [{"id": n} for n in range(4)])
    ingest_topics(spark, options(cluster, topic, parquet))
    produce(cluster, topic, [{"id": n} for n in range(4, 8)])
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    for future in admin.delete_records([TopicPartition(topic, 0, 3)]).values():
        future.result(30)
    with pytest.raises(KlammError, match="may have been lost"):
        ingest_topics(spark, options(cluster, topic, parquet))
    summary = ingest_topics(spark, options(cluster, topic, parquet, allow_data_loss=True))
    assert summary.records == 3
    assert sorted(each["id"] for each in parquet.rows()) == [0, 1, 2, 3, 5, 6, 7]


def test_a_topic_that_does_not_exist_is_refused_and_leaves_nothing(spark, cluster, parquet):
    with pytest.raises(ConfigError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        ingest_topics(spark, options(cluster, "nope", parquet))
    assert not (parquet.folder / "checkpoint").exists()


def test_a_key_that_is_no_column_is_refused(spark, cluster, topic, parquet):
    produce(cluster, topic, [{"id": 1}])
    with pytest.raises(ConfigError, match="no column nope to upsert by"):
        ingest_topics(spark, options(cluster, topic, parquet, mode="upsert", key=("nope",)))
