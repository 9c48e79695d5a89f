"""Measures of a history: latencies, churn, flapping brokers, balance of leaders."""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from klamm.history.records import FLAPPING_STARTS, FLAPPING_WINDOW_S, PHASES
from klamm.pipeline.history.tables import PARTITION

_PERCENTILES: Final = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


def latencies(events: DataFrame, unavailability: DataFrame, terms: DataFrame) -> DataFrame:
    """Percentiles in seconds: of each phase of each kind of `event`, of `failover`, of `takeover`.

    `failover` is from a leader lost to its successor announced: `total`, and its parts `noticing`
    and `electing`. `takeover` is the failover of the controller. Durations have
    three digits: each counts as the longest that shares its first three.
    """
    stacked = ", ".join(f"'{name.removesuffix('_us')}', {name}" for name in PHASES)
    of_events = events.select(
        F.lit("event").alias("what"),
        "kind",
        F.expr(f"stack({len(PHASES)}, {stacked}) as (measure, micros)"),
    )
    of_failovers = unavailability.where("end = 'elected'").select(
        F.lit("failover").alias("what"),
        F.lit(None).cast("string").alias("kind"),
        F.expr(
            "stack(3, 'total', seconds, 'noticing', noticing_seconds, 'electing', electing_seconds)"
            " as (measure, seconds)"
        ),
    )
    of_takeovers = terms.select(
        F.lit("takeover").alias("what"),
        F.lit(None).cast("string").alias("kind"),
        F.lit("total").alias("measure"),
        F.col("takeover_us").alias("micros"),
    )
    each = ("what", "kind", "measure")
    micros = F.round(F.col("seconds") * 1e6).cast("bigint").alias("micros")
    size = F.pow(F.lit(10), F.greatest(F.lit(0), F.length(F.col("micros").cast("string")) - 3))
    so_far = Window.partitionBy(*each).orderBy("bucket")
    share = F.sum("count").over(so_far) / F.sum("count").over(Window.partitionBy(*each))
    return (
        of_events.unionByName(of_failovers.select(*each, micros))
        .unionByName(of_takeovers)
        .where("micros is not null")
        .groupBy(*each, F.floor(F.col("micros") / size).alias("digits"), size.alias("size"))
        .agg(F.count("*").alias("count"), F.max("micros").alias("longest"))
        .withColumn("bucket", F.col("digits") * F.col("size"))
        .withColumn("share", share)
        .groupBy(*each)
        .agg(
            F.sum("count").alias("count"),
            *(
                (F.min(F.when(F.col("share") >= part, F.col("longest"))) / 1e6).alias(name)
                for name, part in _PERCENTILES.items()
            ),
            (F.max("longest") / 1e6).alias("max"),
        )
    )


def leadership_churn(elections: DataFrame) -> DataFrame:
    """How often each partition's leader changed, and between how many brokers."""
    kinds = ("clean", "unclean", "preferred", "reassignment", "controlled_shutdown", "none")
    changed = (F.col("new_leader") >= 0) & (F.col("new_leader") != F.col("old_leader"))
    return elections.groupBy(*PARTITION).agg(
        F.count("*").alias("elections"),
        F.count_if(changed).alias("changes"),
        F.countDistinct(F.when(F.col("new_leader") >= 0, F.col("new_leader"))).alias("leaders"),
        *(F.count_if(F.col("kind") == kind).alias(kind) for kind in kinds),
        F.min("at").alias("first_at"),
        F.max("at").alias("last_at"),
    )


def flapping_brokers(
    sessions: DataFrame, starts: int = FLAPPING_STARTS, window_s: int = FLAPPING_WINDOW_S
) -> DataFrame:
    """How often each broker came and went; `is_flapping`: `starts` times within `window_s`."""
    recent = Window.partitionBy("broker").orderBy(F.unix_seconds("from")).rangeBetween(-window_s, 0)
    began = F.col("start").isin("started", "bounced").cast("int")
    return (
        sessions.withColumn("recent_starts", F.sum(began).over(recent))
        .groupBy("broker")
        .agg(
            F.count("*").alias("sessions"),
            F.count_if(F.col("end") == "failed").alias("failed"),
            F.count_if(F.col("end") == "shut_down").alias("shut_down"),
            F.count_if(F.col("end").isin("bounced", "unseen")).alias("otherwise_gone"),
            F.min("seconds").alias("shortest_seconds"),
            F.max("recent_starts").alias("starts_within_window"),
        )
        .withColumn("is_flapping", F.col("starts_within_window") >= starts)
    )


def leader_balance(timeline: DataFrame) -> DataFrame:
    """How many of the known partitions each broker led, from each moment at which that changed.

    `share` is the broker's part of all that had a leader at that moment.
    """
    led = timeline.where("leader >= 0")
    gained = led.select(F.col("from").alias("at"), F.col("leader").alias("broker"), _change(1))
    given_up = led.where("until is not null").select(
        F.col("until").alias("at"), F.col("leader").alias("broker"), _change(-1)
    )
    changes = (
        gained.unionByName(given_up).groupBy("at", "broker").agg(F.sum("change").alias("change"))
    )
    so_far = Window.partitionBy("broker").orderBy("at")
    moments = changes.groupBy("at").agg(F.sum("change").alias("all_changes"))
    # One partition, of moments: there are at most as many as events.
    totals = moments.select("at", F.sum("all_changes").over(Window.orderBy("at")).alias("led"))
    return (
        changes.where("change != 0")
        .withColumn("leaders", F.sum("change").over(so_far))
        .join(totals, "at")
        .select(
            "at",
            "broker",
            "leaders",
            F.when(F.col("led") > 0, F.col("leaders") / F.col("led")).alias("share"),
        )
    )


def _change(by: int) -> Column:
    return F.lit(by).cast("bigint").alias("change")
