"""The metadata log of KRaft as the source of a folder of tables."""

import logging
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

from klamm.errors import ConfigError, KlammError
from klamm.history.kraft.directory import PARTITION
from klamm.pipeline.history import metadata_log
from klamm.pipeline.history.metadata_log import MetadataLogInput
from klamm.pipeline.history.report_facts import ReportFacts
from klamm.protocol.schema.metadata_records import MetadataRecordType
from tests.support.command_line import run_here
from tests.support.metadata_log import (
    LogBuilder,
    changed_broker,
    changed_partition,
    created_partition,
    created_topic,
    registered,
    value_of,
)

pytestmark = pytest.mark.timeout(600)


def small_log(directory: Path, cluster_id: str = "cluster") -> LogBuilder:
    """Brokers 1 and 2, and orders-0 on both of them."""
    log = LogBuilder()
    log.elect(101, 1)
    for broker in (1, 2):
        log.append(registered(broker, broker), changed_broker(broker, fenced=-1))
    log.append(created_topic(1, "orders"), created_partition(1, 0, [1, 2]))
    log.write(directory / PARTITION)
    (directory / "meta.properties").write_text(f"cluster.id={cluster_id}\n")
    return log


def fail_broker(log: LogBuilder, directory: Path) -> None:
    log.append(changed_partition(1, 0, leader=2, isr=[2]), changed_broker(1, fenced=1))
    log.write(directory / PARTITION)


def update(spark: SparkSession, directory: Path, out: Path) -> ReportFacts:
    source = MetadataLogInput.from_directory(directory)
    source.check()
    facts = source.update(spark, out)
    assert facts is not None
    return facts


def rows(out: Path, table: str) -> list[dict[str, Any]]:
    return parquet.read_table(out / table).to_pylist()


def test_a_log_becomes_tables_and_a_later_run_goes_on(spark: SparkSession, tmp_path: Path):
    log, out = small_log(tmp_path), tmp_path / "out"
    assert update(spark, tmp_path, out).counts["elections"] == 0
    assert len(rows(out, "events")) == 4
    fail_broker(log, tmp_path)
    facts = update(spark, tmp_path, out)
    assert (facts.counts["elections"], len(facts.gaps)) == (1, 0)
    (election,) = rows(out, "elections")
    assert (election["kind"], election["old_leader"], election["new_leader"]) == ("clean", 1, 2)
    assert election["cause"] == "broker 1 had been fenced (offset 8)"
    assert {row["cluster_id"] for row in rows(out, "events")} == {"cluster"}
    assert [row["seq"] for row in rows(out, "records")] == [1, 2, 3, 4, 5, 6]
    assert "elections" in (out / "report.html").read_text()


def test_the_settings_of_topics_come_from_the_log(spark: SparkSession, tmp_path: Path):
    log, out = small_log(tmp_path), tmp_path / "out"
    fail_broker(log, tmp_path)
    update(spark, tmp_path, out)
    assert rows(out, "under_min_isr") == []
    setting = {"resource_name": "orders", "name": "min.insync.replicas", "value": "2"}
    log.append(value_of(MetadataRecordType.CONFIG, resource_type=2, **setting))
    log.write(tmp_path / PARTITION)
    update(spark, tmp_path, out)
    (under,) = rows(out, "under_min_isr")
    assert (under["topic"], under["min_isr"], under["in_sync"]) == ("orders", 2, 1)
    assert [row["seq"] for row in rows(out, "records")] == [1, 2, 3, 4, 5, 6]


def test_a_long_log_is_taken_in_by_portions(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(metadata_log, "_PORTION_EVENTS", 1200)
    log, out = small_log(tmp_path), tmp_path / "out"
    for number in range(1500):
        log.append(changed_partition(1, 0, isr=[1] if number % 2 == 0 else [1, 2]))
    log.write(tmp_path / PARTITION)
    facts = update(spark, tmp_path, out)
    assert (facts.counts["events"], len(facts.gaps)) == (1504, 0)
    assert len(rows(out, "isr_changes")) == 1500
    assert sorted(row["seq"] for row in rows(out, "events")) == [*range(1, 1505)]


def test_an_older_copy_of_the_log_is_refused(spark: SparkSession, tmp_path: Path):
    log, out = small_log(tmp_path / "old"), tmp_path / "out"
    small_log(tmp_path / "new")
    fail_broker(log, tmp_path / "new")
    update(spark, tmp_path / "new", out)
    with pytest.raises(ConfigError, match=r"ends before offset 9, up to which .* older copy"):
        update(spark, tmp_path / "old", out)


def test_the_log_of_another_cluster_is_refused(spark: SparkSession, tmp_path: Path):
    small_log(tmp_path / "a", "first")
    small_log(tmp_path / "b", "second")
    update(spark, tmp_path / "a", tmp_path / "out")
    message = "made from the metadata log of first, not from the metadata log of second"
    with pytest.raises(ConfigError, match=message):
        update(spark, tmp_path / "b", tmp_path / "out")


def test_unknown_records_are_told_of(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    log = small_log(tmp_path)
    log.append(value_of(99), value_of(99))
    log.write(tmp_path / PARTITION)
    with caplog.at_level(logging.WARNING):
        update(spark, tmp_path, tmp_path / "out")
    assert "2 records of unknown type 99 were skipped" in caplog.messages


def test_a_record_that_cannot_be_read_ends_it_with_its_offset(spark: SparkSession, tmp_path: Path):
    log = small_log(tmp_path)
    log.append(b"\x01\x03\x00 cut short")
    log.write(tmp_path / PARTITION)
    with pytest.raises(KlammError, match="at offset 7: a PartitionRecord cannot be read"):
        update(spark, tmp_path, tmp_path / "out")


def test_a_directory_without_a_log_ends_the_command_before_spark_begins(tmp_path: Path):
    out = tmp_path / "out"
    done = run_here("history", "--metadata-log", str(tmp_path), "--out", str(out))
    done.failed("holds no metadata log", PARTITION)
    assert not out.exists()


def test_an_address_at_which_nobody_listens_ends_it_too(tmp_path: Path):
    done = run_here("history", "--kraft", "127.0.0.1:1", "--out", str(tmp_path / "out"))
    done.failed("No leader of the KRaft quorum is found", "controller.listener.names")


def test_an_address_without_a_port_is_refused(tmp_path: Path):
    done = run_here("history", "--kraft", "controller", "--out", str(tmp_path / "out"))
    done.failed("'controller' is not an address; expected is HOST:PORT")


def test_one_source_is_named(tmp_path: Path):
    given = ("--kraft", "127.0.0.1:1", "--metadata-log", str(tmp_path))
    done = run_here("history", *given, "--out", str(tmp_path / "out"))
    assert done.code == 2
    assert "--metadata-log and --kraft exclude each other" in done.err
