"""The tables of one night, whose records were read twice and in the wrong order."""

from collections import Counter
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
from pyspark.sql import SparkSession

from klamm.pipeline.history.definitions import TABLES
from tests.pipeline.history.conftest import Told
from tests.pipeline.history.night import START

#: The first test of a run pays for Spark's start and for all tables.
pytestmark = pytest.mark.timeout(600)

CONTRACT = {
    "elections": "at timestamp, controller_epoch int, seq bigint, topic string, partition int, "
    "kind string, old_leader int, new_leader int, leader_epoch int, isr array<int>, cause string",
    "unavailability": "topic string, partition int, from timestamp, until timestamp, "
    "seconds double",
}


def second(moment: datetime | None) -> float | None:
    """Seconds after the beginning of the night."""
    return None if moment is None else round(moment.timestamp() - START, 2)


def only(rows: list[dict[str, Any]], **values: Any) -> dict[str, Any]:
    (found,) = [row for row in rows if values.items() <= row.items()]
    return found


def test_the_columns_of_the_contract_are_there(spark: SparkSession, told: Told):
    for name, columns in CONTRACT.items():
        table = spark.read.parquet(str(told.out / name))
        found = [f"{each.name} {each.dataType.simpleString()}" for each in table.schema]
        assert set(columns.split(", ")) <= set(found)
    folders = {path.name for path in told.out.iterdir() if not path.name.startswith("_")}
    expected = {"records", "quarantine", "report.html"}
    assert folders == {table.name for table in TABLES} | expected


def test_every_row_names_its_cluster(spark: SparkSession, told: Told):
    for table in TABLES:
        assert "cluster_id" in spark.read.parquet(str(told.out / table.name)).columns


def test_records_that_came_twice_count_once(spark: SparkSession, told: Told):
    assert spark.read.parquet(str(told.out / "records")).count() == len(told["events"])
    assert told.records.count() == len(told["events"]) + 10
    keys = Counter((event["controller_epoch"], event["seq"]) for event in told["events"])
    assert keys == Counter([(1, seq) for seq in range(1, 11)] + [(2, seq) for seq in range(1, 20)])
    assert told["gaps"] == []


def test_a_term_whose_end_nobody_recorded_lasts_until_the_next(told: Told):
    first, second_term = sorted(told["controller_terms"], key=lambda term: term["controller_epoch"])
    assert (first["controller"], first["end"]) == (1, "replaced")
    assert (second(first["from"]), second(first["until"])) == (0, 206.0)
    assert (second_term["controller"], second_term["end"], second_term["until"]) == (3, None, None)
    assert (first["events"], second_term["missing_events"]) == (10, 0)


def test_elections_have_their_kinds_and_causes(told: Told):
    found = {
        (round(second(e["at"]) or 0), e["topic"], e["partition"], e["kind"], e["new_leader"])
        for e in told["elections"]
    }
    assert found == {
        (60, "orders", 1, "clean", 3),
        (60, "audit", 0, "none", -1),
        (90, "audit", 0, "clean", 2),
        (120, "orders", 1, "preferred", 2),
        (150 + 20, "orders", 0, "reassignment", 2),
    }
    lost = only(told["elections"], topic="orders", kind="clean")
    assert (lost["old_leader"], lost["isr"], lost["leader_epoch"]) == (2, [3, 1], 1)
    assert lost["cause"] == "watch on /brokers/ids"


def test_a_partition_is_unavailable_from_leader_lost_to_leader_announced(told: Told):
    assert len(told["unavailability"]) == 2
    audit = only(told["unavailability"], topic="audit")
    assert (audit["lost_leader"], audit["new_leader"], audit["end"]) == (2, 2, "elected")
    # The broker's session had 18 seconds; nothing else is known of its last moments.
    assert second(audit["from"]) == 60.0 - 18
    assert second(audit["noticed_at"]) == 60.0
    assert (audit["noticing_seconds"], round(audit["electing_seconds"], 2)) == (18.0, 30.01)
    # Five milliseconds in the queue, and one for each effect up to the announcement.
    assert second(audit["until"]) == 90.01
    assert audit["seconds"] == (audit["until"] - audit["from"]).total_seconds()
    orders = only(told["unavailability"], topic="orders")
    assert (orders["partition"], orders["lost_leader"], orders["new_leader"]) == (1, 2, 3)
    assert 0.005 < orders["electing_seconds"] < 0.02


def test_a_partition_that_is_being_deleted_is_not_unavailable(told: Told):
    assert not [row for row in told["unavailability"] if row["topic"] == "bulk"]
    last = max((r for r in told["timeline"] if r["topic"] == "bulk"), key=lambda r: r["from"])
    assert (last["state"], last["topic_ended"]) == ("deleting", True)


def test_totals_by_topic_and_broker(told: Told):
    audit = only(told["availability_by_topic"], topic="audit")
    assert (audit["affected"], audit["intervals"]) == (1, 1)
    assert round(audit["availability"], 2) == 0.84
    assert only(told["availability_by_topic"], topic="bulk")["availability"] == 1.0
    broker = only(told["unavailability_by_broker"], broker=2)
    assert (broker["partitions"], broker["intervals"]) == (2, 2)


def test_broker_sessions_are_told_apart_by_their_epochs(told: Told):
    by_broker = sorted(told["broker_sessions"], key=lambda s: (s["broker"], s["from"]))
    assert [(s["broker"], s["start"], s["end"]) for s in by_broker] == [
        (1, "present", "unseen"),
        (1, "started", None),
        (2, "present", "failed"),
        (2, "started", None),
        (3, "present", None),
        (4, "present", "failed"),
        (4, "started", "failed"),
        (4, "started", "failed"),
        (4, "started", None),
    ]
    assert second(by_broker[0]["until"]) == 206.0
    flapping = [row["broker"] for row in told["flapping_brokers"] if row["is_flapping"]]
    assert flapping == [4]


def test_isr_changes_name_who_joined_and_who_left(told: Told):
    changes = [c for c in told["isr_changes"] if (c["topic"], c["partition"]) == ("orders", 2)]
    changes.sort(key=lambda c: (c["controller_epoch"], c["seq"]))
    assert [(c["kind"], c["joined"], c["left"]) for c in changes] == [
        ("replica_offline", [], [2]),
        ("isr_changed", [2], []),
        ("replica_offline", [], [1]),
        ("isr_changed", [1], []),
    ]


def test_a_reassignment_has_its_phases_in_order(told: Told):
    (move,) = told["reassignments"]
    assert (move["topic"], move["partition"], move["outcome"]) == ("orders", 0, "completed")
    assert (move["target"], move["adding"], move["removing"]) == ([2, 3, 4], [4], [1])
    phases = [phase["phase"] for phase in move["phases"]]
    assert phases == ["started", "epoch_raised", "leader_moved", "completed"]
    assert move["seconds"] == 20.0


def test_a_topic_lives_from_creation_to_deletion(told: Told):
    bulk = only(told["topic_life_cycles"], topic="bulk")
    assert (bulk["life"], bulk["created_with"], bulk["end"]) == (1, 1, "deleted")
    assert 0 < bulk["deletion_seconds"] < 2
    assert only(told["topic_life_cycles"], topic="orders")["end"] is None


def test_the_timeline_of_a_partition_has_no_holes(told: Told):
    partitions: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in told["timeline"]:
        partitions.setdefault((row["topic"], row["partition"]), []).append(row)
    assert len(partitions) == 5
    for rows in partitions.values():
        rows.sort(key=lambda row: (row["controller_epoch"], row["seq"]))
        for row, after in pairwise(rows):
            assert row["until"] == after["from"]
            assert row["leader"] == after["old_leader"]


def test_the_balance_of_leaders_ends_with_who_leads_what(told: Told):
    last = {}
    for row in sorted(told["leader_balance"], key=lambda row: row["at"]):
        last[row["broker"]] = row["leaders"]
    # orders-0 and orders-1 and audit-0 are led by 2, orders-2 by 3; bulk is gone.
    assert last == {1: 0, 2: 3, 3: 1}


def test_time_under_min_isr_counts_what_has_no_leader(told: Told):
    (under,) = told["under_min_isr"]
    assert (under["topic"], under["in_sync"], under["min_isr"]) == ("audit", 0, 1)
    assert under["seconds"] == 30.0


def test_latencies_are_percentiles_of_seconds(told: Told):
    failover = only(told["latencies"], what="failover", measure="electing")
    assert failover["count"] == 2
    assert failover["p50"] < 0.02
    assert failover["max"] == failover["p99"] > 30
    queued = only(told["latencies"], what="event", kind="BrokerChange", measure="queued")
    assert (queued["count"], queued["p50"]) == (9, 0.005)


def test_churn_counts_changes_of_leader(told: Told):
    orders = only(told["leadership_churn"], topic="orders", partition=1)
    assert (orders["changes"], orders["leaders"], orders["preferred"]) == (2, 2, 1)
