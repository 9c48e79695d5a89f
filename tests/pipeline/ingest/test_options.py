"""Options: what is taken, and what is refused with what would be right."""

import pytest

from klamm.errors import ConfigError
from klamm.pipeline.ingest.options import (
    Expectation,
    IngestOptions,
    PartitionBy,
    TableTarget,
    parse_bytes,
    parse_duration_s,
    parse_expectation,
    parse_partition,
    parse_target,
)


def test_targets_are_kinds_with_names():
    assert parse_target("delta:lake/orders") == TableTarget("delta", "lake/orders")
    assert parse_target("iceberg:local.shop.orders") == TableTarget("iceberg", "local.shop.orders")
    assert parse_target("parquet:s3://b/x").dead_letters == TableTarget(
        "parquet", "s3://b/x_dead_letters"
    )
    assert parse_target("iceberg:c.t").dead_letters.name == "c.t_dead_letters"


@pytest.mark.parametrize("text", ["lake", "hudi:x", "delta:", "iceberg:orders", "iceberg:a."])
def test_what_is_no_target_is_refused(text):
    with pytest.raises(ConfigError, match="expected is"):
        parse_target(text)


def test_expectations_say_what_becomes_of_other_rows():
    assert parse_expectation("a > 0") == Expectation("a > 0", "aside")
    assert parse_expectation("drop: a > 0") == Expectation("a > 0", "drop")
    assert parse_expectation("fail:a::int > 0") == Expectation("a::int > 0", "fail")
    assert parse_expectation("a::int > 0") == Expectation("a::int > 0", "aside")
    with pytest.raises(ConfigError, match="is not an expectation"):
        parse_expectation("drop:")


def test_partitions_durations_and_sizes():
    assert parse_partition("country") == PartitionBy("country")
    assert parse_partition("day(at)") == PartitionBy("at", by_day=True)
    assert (parse_duration_s("7d"), parse_duration_s("30m")) == (604800, 1800)
    assert (parse_bytes("128m"), parse_bytes("1k"), parse_bytes("7")) == (128 << 20, 1024, 7)
    for parse, text in ((parse_partition, "a b"), (parse_duration_s, "7"), (parse_bytes, "x")):
        with pytest.raises(ConfigError, match="expected is"):
            parse(text)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"topics": ()}, "at least one topic"),
        ({"format": "xml"}, "Unknown format 'xml'; known are raw, json, avro, protobuf"),
        ({"mode": "merge"}, "Unknown mode 'merge'; known are append, upsert"),
        ({"format": "avro"}, "avro needs a schema"),
        ({"format": "json", "schema": "{}", "registry": "http://x"}, "either --schema or"),
        ({"schema": "{}"}, "raw has no schema"),
        ({"format": "json", "mode": "upsert"}, "needs --key"),
        ({"key": ("id",)}, "--key is for --mode upsert"),
        ({"max_bad": 2.0}, "a share from 0 to 1"),
        ({"format": "json", "include_headers": True}, "Headers are kept"),
        ({"starting": "yesterday"}, "earliest or latest"),
    ],
)
def test_options_that_make_no_sense_are_refused(given, what):
    whole = {"topics": ("t",), "to": TableTarget("delta", "x"), "bootstrap_servers": "b", **given}
    with pytest.raises(ConfigError, match=what):
        IngestOptions(**whole)
