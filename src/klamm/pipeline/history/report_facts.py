"""The facts of the report, gathered from the tables and limited to what fits on one page.

Spark counts, ranks and samples; this module receives few rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import Any, Final, TypeAlias

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from klamm.errors import KlammError
from klamm.history.partition_events import Gap
from klamm.history.story import story
from klamm.pipeline.history.input import EVENT, distinct
from klamm.pipeline.history.tables import PARTITION

Row: TypeAlias = dict[str, Any]

#: The number of time buckets in a picture.
BUCKETS: Final = 60
_BROKERS_MAX: Final = 40
_TOPICS_MAX: Final = 20
_STORIES: Final = 5
_HEAT_ROWS_MAX: Final = 30
_SENTENCES_MAX: Final = 40
_BARS_PER_DECADE: Final = 4
_NESTED: Final = ("decisions", "moves", "topic_changes")


@dataclass(frozen=True, slots=True)
class HeatMap:
    """How many replicas of a partition were out of sync, in each bucket at its worst."""

    name: str
    missing: list[int]


@dataclass(frozen=True, slots=True)
class PartitionStory:
    """A partition with its numbers and its story in sentences."""

    name: str
    seconds: float
    intervals: int
    changes: int
    sentences: list[str]
    left_out: int


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """Everything on the page. Times are aware, in UTC; lists are in the order of their telling."""

    since: datetime
    until: datetime
    counts: Mapping[str, int]
    terms: Sequence[Row]
    sessions: Sequence[Row]
    brokers_left_out: int
    topics: Sequence[Row]
    topics_in_all: int
    elections: Sequence[Row]
    failovers: Sequence[tuple[float, float, int]]
    latencies: Sequence[Row]
    stories: Sequence[PartitionStory]
    heat: Sequence[HeatMap]
    balance: Sequence[Row]
    flapping: Sequence[Row]
    reassignments: Sequence[Row]
    under_min_isr: Sequence[Row]
    gaps: Sequence[Row]


def gather(records: DataFrame, tables: Mapping[str, DataFrame]) -> ReportFacts:
    """Read what the report needs from the tables that `write_tables` has made of the records."""
    (span,) = _rows(
        tables["events"].agg(
            F.min("at").alias("since"), F.max("at").alias("until"), F.count("*").alias("events")
        )
    )
    if not span["events"]:
        raise KlammError("The history has no events yet, so there is nothing to report.")
    since, until = span["since"], max(span["until"], span["since"] + timedelta(seconds=1))
    gaps = sorted(
        _rows(tables["gaps"]), key=lambda gap: (gap["controller_epoch"], gap["first_seq"])
    )
    sessions = _rows(tables["broker_sessions"].orderBy("broker", "from"))
    shown = _brokers_shown(sessions)
    elections = _rows(
        tables["elections"].groupBy("kind", _bucket("at", since, until).alias("bucket")).count()
    )
    topics = _rows(
        tables["availability_by_topic"]
        .withColumn("in_all", F.count("*").over(Window.partitionBy()))
        .orderBy(F.desc("seconds"), "topic")
        .limit(_TOPICS_MAX)
    )
    worst = _worst(tables)
    return ReportFacts(
        since=since,
        until=until,
        counts={
            "events": span["events"],
            **_election_counts(elections),
            **_loss_counts(tables["unavailability"]),
            "failures": sum(each["end"] == "failed" for each in sessions),
        },
        terms=_rows(tables["controller_terms"].orderBy("controller_epoch")),
        sessions=[each for each in sessions if each["broker"] in shown],
        brokers_left_out=len({each["broker"] for each in sessions}) - len(shown),
        topics=topics,
        topics_in_all=topics[0]["in_all"] if topics else 0,
        elections=elections,
        failovers=_failovers(tables["unavailability"]),
        latencies=_rows(tables["latencies"].where("measure = 'total'").orderBy("what", "kind")),
        stories=_stories(records, worst, gaps),
        heat=_heat(tables["timeline"], since, until),
        balance=_balance(tables["leader_balance"], since, until, shown),
        flapping=_rows(tables["flapping_brokers"].orderBy("broker")),
        reassignments=_rows(
            tables["reassignments"]
            .groupBy("outcome")
            .agg(F.count("*").alias("count"), F.max("seconds").alias("longest_seconds"))
        ),
        under_min_isr=_rows(
            tables["under_min_isr"]
            .groupBy(*PARTITION, "min_isr")
            .agg(F.count("*").alias("intervals"), F.sum("seconds").alias("seconds"))
            .orderBy(F.desc_nulls_first("seconds"), *PARTITION)
            .limit(10)
        ),
        gaps=gaps,
    )


def gap_sentence(gap: Mapping[str, Any]) -> str:
    """A gap with its range of sequences."""
    epoch, first, last = gap["controller_epoch"], gap["first_seq"], gap["last_seq"]
    if last is None:
        return f"Nothing is known of controller epoch {epoch}."
    if gap["missing"] == "parts":
        return f"Event {first} of controller epoch {epoch} is there only in part."
    which = f"Event {first}" if first == last else f"Events {first} to {last}"
    return f"{which} of controller epoch {epoch} {'is' if first == last else 'are'} missing."


def _rows(table: DataFrame) -> list[Row]:
    # Through Arrow, which gives times with a time zone.
    rows: list[Row] = table.toArrow().to_pylist()
    return [
        {
            name: value.astimezone(UTC) if isinstance(value, datetime) else value
            for name, value in row.items()
        }
        for row in rows
    ]


def _bucket(name: str, since: datetime, until: datetime) -> Column:
    width = (until - since).total_seconds() / BUCKETS
    passed = (F.unix_micros(name) - F.lit(round(since.timestamp() * 1e6))) / 1e6
    return F.least(F.floor(passed / width), F.lit(BUCKETS - 1)).cast("int")


def _election_counts(elections: Sequence[Row]) -> dict[str, int]:
    held = [each for each in elections if each["kind"] != "none"]
    return {
        "elections": sum(each["count"] for each in held),
        "unclean": sum(each["count"] for each in held if each["kind"] == "unclean"),
    }


def _loss_counts(unavailability: DataFrame) -> Row:
    (lost,) = _rows(
        unavailability.agg(
            F.countDistinct(*PARTITION).alias("affected"),
            F.count_if(F.col("until").isNull()).alias("without_leader"),
        )
    )
    return lost


def _brokers_shown(sessions: Sequence[Row]) -> set[int]:
    """All brokers, or those that came and went most."""
    times: dict[int, int] = {}
    for each in sessions:
        times[each["broker"]] = times.get(each["broker"], 0) + 1
    return set(sorted(times, key=lambda broker: (-times[broker], broker))[:_BROKERS_MAX])


def _failovers(unavailability: DataFrame) -> list[tuple[float, float, int]]:
    """How many took how long: from, to, count, with equal steps on a logarithmic scale."""
    step = F.floor(F.log10(F.greatest("seconds", F.lit(1e-6))) * _BARS_PER_DECADE)
    rows = _rows(
        unavailability.where("end = 'elected'").groupBy(step.cast("int").alias("step")).count()
    )
    return [
        (
            10 ** (row["step"] / _BARS_PER_DECADE),
            10 ** ((row["step"] + 1) / _BARS_PER_DECADE),
            row["count"],
        )
        for row in sorted(rows, key=lambda row: row["step"])
    ]


def _worst(tables: Mapping[str, DataFrame]) -> list[Row]:
    """Partitions that were longest without a leader; then those whose leader changed most."""
    lost = (
        tables["unavailability"]
        .groupBy(*PARTITION)
        .agg(
            F.sum("seconds").alias("seconds"),
            F.count("*").alias("intervals"),
            F.count_if(F.col("until").isNull()).alias("open"),
        )
    )
    churn = tables["leadership_churn"].select(*PARTITION, "changes")
    return _rows(
        lost.join(churn, list(PARTITION), "full")
        .na.fill(0)
        .orderBy(F.desc("open"), F.desc("seconds"), F.desc("changes"), *PARTITION)
        .limit(_STORIES)
    )


def _stories(records: DataFrame, worst: Sequence[Row], gaps: Sequence[Row]) -> list[PartitionStory]:
    if not worst:
        return []
    names = [(each["topic"], each["partition"]) for each in worst]
    rows = _rows_about(records, names)
    stories = []
    for each, (topic, partition) in zip(worst, names, strict=True):
        events = _partition_events(rows, topic, partition, gaps)
        sentences = list(story(events, topic, partition))
        stories.append(
            PartitionStory(
                name=f"{topic}-{partition}",
                seconds=each["seconds"],
                intervals=each["intervals"],
                changes=each["changes"],
                sentences=sentences[:_SENTENCES_MAX],
                left_out=max(0, len(sentences) - _SENTENCES_MAX),
            )
        )
    return stories


def _rows_about(records: DataFrame, names: Sequence[tuple[str, int]]) -> list[Row]:
    """Events that say something about the partitions, or about the term, without all the rest."""

    def is_about(entry: Column) -> Column:
        each = ((entry["topic"] == t) & (entry["partition"] == p) for t, p in names)
        return reduce(lambda a, b: a | b, each)

    topics = sorted({topic for topic, _ in names})
    reduced = distinct(records).select(
        *(name for name in records.columns if name not in _NESTED),
        F.filter("decisions", is_about).alias("decisions"),
        F.filter("moves", is_about).alias("moves"),
        F.filter("topic_changes", lambda entry: entry["topic"].isin(topics)).alias("topic_changes"),
    )
    says_something = F.col("term").isNotNull()
    for name in _NESTED:
        says_something |= F.size(name) > 0
    return _rows(reduced.where(says_something).orderBy(*EVENT, "part"))


def _partition_events(
    rows: Sequence[Row], topic: str, partition: int, gaps: Sequence[Row]
) -> list[Row | Gap]:
    """What `klamm story` would be told about a partition."""
    events: dict[tuple[int, int], Row | Gap] = {}
    for row in rows:
        about = {
            name: [
                entry
                for entry in row[name]
                if entry["topic"] == topic and entry.get("partition", partition) == partition
            ]
            for name in _NESTED
        }
        if row["term"] or any(about.values()):
            key = (row["controller_epoch"], row["seq"])
            earlier = events.get(key)
            if isinstance(earlier, dict):  # another part of the same event
                about = {name: earlier[name] + about[name] for name in _NESTED}
                row = earlier
            events[key] = row | about
    for gap in gaps:
        if gap["missing"] != "parts":
            key = (gap["controller_epoch"], gap["first_seq"])
            events[key] = Gap(gap["controller_epoch"], gap["first_seq"], gap["last_seq"])
    return [events[key] for key in sorted(events)]


def _heat(timeline: DataFrame, since: datetime, until: datetime) -> list[HeatMap]:
    """The partitions that lacked in-sync replicas the longest, and when."""
    end = F.coalesce("until", F.lit(until))
    in_sync = F.when(F.col("leader") >= 0, F.size("isr")).otherwise(0)
    missing = F.when(F.col("state") == "deleting", 0).otherwise(
        F.greatest(F.lit(0), F.size("replicas") - in_sync)
    )
    lacking = (
        timeline.select(*PARTITION, "from", end.alias("end"), missing.alias("missing"))
        .where("missing > 0")
        .withColumn("first", _bucket("from", since, until))
        .withColumn("last", _bucket("end", since, until))
        .withColumn("seconds", (F.unix_micros("end") - F.unix_micros("from")) / 1e6)
    )
    worst = (
        lacking.groupBy(*PARTITION)
        .agg(F.sum(F.col("seconds") * F.col("missing")).alias("lack"))
        .orderBy(F.desc("lack"), *PARTITION)
        .limit(_HEAT_ROWS_MAX)
    )
    rows = _rows(lacking.join(worst, list(PARTITION)).orderBy(*PARTITION, "first"))
    heat: dict[str, list[int]] = {}
    for row in rows:
        buckets = heat.setdefault(f"{row['topic']}-{row['partition']}", [0] * BUCKETS)
        for bucket in range(max(0, row["first"]), max(row["first"], row["last"]) + 1):
            buckets[bucket] = max(buckets[bucket], row["missing"])
    return [HeatMap(name, missing) for name, missing in heat.items()]


def _balance(
    leader_balance: DataFrame, since: datetime, until: datetime, brokers: set[int]
) -> list[Row]:
    """How many partitions each broker led at the end of each bucket in which that changed."""
    return _rows(
        leader_balance.where(F.col("broker").isin(sorted(brokers)))
        .groupBy("broker", _bucket("at", since, until).alias("bucket"))
        .agg(F.max("at").alias("at"), F.max_by("leaders", "at").alias("leaders"))
        .orderBy("broker", "bucket")
    )
