"""The life of each partition as intervals, and when it had no leader or too few replicas in sync.

An interval of the timeline begins with an event that decided something about the partition, and
ends with the next one, or with the topic.
"""

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from klamm.history.records import CLEAN, NOBODY, TOPIC_ENDINGS, UNCLEAN
from klamm.pipeline.history.input import EVENT
from klamm.pipeline.history.tables import (
    PARTITION,
    next_terms,
    not_before,
    seconds_between,
)

#: What Kafka assumes of a topic that does not say how many replicas a write needs.
DEFAULT_MIN_ISR: Final = 1
#: Decisions that are taken because the leader is gone.
_AFTER_LOSS: Final = (CLEAN, UNCLEAN, NOBODY)


def timeline(records: DataFrame, decisions: DataFrame) -> DataFrame:
    """What each partition was from when until when (null: still), and which event made it so.

    An event that decided several things about a partition (`kinds`) counts with where it left it.
    `topic_ended` marks the last interval before the topic went; the state is `deleting` while a
    partition is being deleted, else `online` with a leader and `offline` or `new` without.
    """
    steps = (
        decisions.where(F.col("outcome") == "done")
        .groupBy(*PARTITION, *EVENT)
        .agg(
            F.min("at").alias("at"),
            F.min("arrived_at").alias("arrived_at"),
            F.max("announced_at").alias("announced_at"),
            F.min("cause").alias("cause"),
            F.min_by(F.struct("old_leader", "old_leader_epoch", "alive_at"), "order").alias("old"),
            F.max_by(F.struct("leader", "leader_epoch", "isr", "replicas", "state"), "order").alias(
                "new"
            ),
            F.array_sort(F.collect_list(F.struct("order", "kind"))).getField("kind").alias("kinds"),
        )
        .withColumn("is_end", F.lit(False))
    )
    topic_ends = (
        records.select("at", *EVENT, F.explode("topic_changes").alias("change"))
        .where(F.col("change.change").isin(*TOPIC_ENDINGS))
        .select("at", *EVENT, "change.topic", F.lit(True).alias("is_end"))
        .join(steps.select(*PARTITION).distinct(), "topic")
    )
    in_order = Window.partitionBy(*PARTITION).orderBy(*EVENT, "is_end")
    return (
        steps.unionByName(topic_ends, allowMissingColumns=True)
        .withColumn("until", not_before("at", F.lead("at").over(in_order)))
        .withColumn("topic_ended", F.coalesce(F.lead("is_end").over(in_order), F.lit(False)))
        .where("not is_end")
        .select(
            *PARTITION,
            F.col("at").alias("from"),
            "until",
            "new.leader",
            "new.leader_epoch",
            "new.isr",
            "new.replicas",
            F.when(F.col("new.leader") >= 0, "online")
            .when(F.col("new.state") == "non_existent", "deleting")
            .otherwise(F.col("new.state"))
            .alias("state"),
            "kinds",
            "cause",
            "old.old_leader",
            "old.old_leader_epoch",
            "arrived_at",
            "announced_at",
            "old.alive_at",
            "topic_ended",
            *EVENT,
        )
    )


def unavailability(timeline: DataFrame, terms: DataFrame) -> DataFrame:
    """Intervals without a leader: from when it was last known to be alive to the announcement.

    The first part is until the loss was noticed (`noticed_at`, the arrival of the event), the
    second until a leader was announced. A leader was not alive in the role before it had it; and
    nothing was lost with a controller that said that its term ended. A leader that was elected and
    never announced, because its controller was gone before, counts from when the next controller
    announced it. `until` is null for what has no leader yet. `end`: `elected`, or `topic_ended`.
    `lost_leader` is the lost leader, -1 if there was none.
    """
    has_leader = F.col("leader") >= 0
    is_deleting = F.col("state") == "deleting"
    in_order = Window.partitionBy(*PARTITION).orderBy(*EVENT)
    following = F.lead("controller_epoch").over(in_order)
    is_announced_by_next = following.isNull() | (following >= F.col("next_epoch"))
    restored_at = (
        F.when(
            has_leader,
            F.coalesce("announced_at", F.when(is_announced_by_next, F.col("next_announced"))),
        )
        .when(is_deleting, F.col("arrived_at"))
        .when(F.col("topic_ended"), F.col("until"))
        .alias("restored_at")
    )
    is_lost = F.arrays_overlap("kinds", F.array(*map(F.lit, _AFTER_LOSS))) | ~(
        has_leader | is_deleting
    )
    alive_at = F.when(~((F.col("seq") == 1) & F.col("follows_end")), F.col("alive_at"))
    led_from = F.lag("from").over(in_order)
    lost_at = F.coalesce(
        F.least("arrived_at", F.when(alive_at.isNotNull(), F.greatest(alive_at, led_from))),
        "arrived_at",
    )
    # Rows up to a restoration, which is the last of its stretch, belong together.
    stretch = F.sum(F.col("restored_at").isNotNull().cast("int")).over(
        in_order.rowsBetween(Window.unboundedPreceding, -1)
    )
    later = next_terms(terms).drop("next_term")
    return (
        timeline.join(F.broadcast(later), "controller_epoch", "left")
        .select("*", restored_at, is_lost.alias("is_lost"), lost_at.alias("lost_at"))
        .withColumn("stretch", F.coalesce(stretch, F.lit(0)))
        .groupBy(*PARTITION, "stretch")
        .agg(
            F.min_by(
                F.struct("lost_at", "arrived_at", "old_leader", *EVENT, "cause"),
                F.when(F.col("is_lost"), F.struct(*EVENT)),
            ).alias("lost"),
            F.max("restored_at").alias("restored_at"),
            F.max_by("leader", F.struct(*EVENT)).alias("new_leader"),
        )
        .where("lost is not null")
        .select(
            *PARTITION,
            F.col("lost.lost_at").alias("from"),
            F.col("lost.arrived_at").alias("noticed_at"),
            not_before("lost.arrived_at", F.col("restored_at")).alias("until"),
            F.col("lost.old_leader").alias("lost_leader"),
            F.when(F.col("restored_at").isNotNull(), F.col("new_leader")).alias("new_leader"),
            F.when(F.col("restored_at").isNull(), None)
            .when(F.col("new_leader") >= 0, "elected")
            .otherwise("topic_ended")
            .alias("end"),
            "lost.controller_epoch",
            "lost.seq",
            "lost.cause",
        )
        .withColumn("seconds", seconds_between("from", "until"))
        .withColumn("noticing_seconds", seconds_between("from", "noticed_at"))
        .withColumn("electing_seconds", seconds_between("noticed_at", "until"))
    )


def under_min_isr(
    timeline: DataFrame, min_isr: DataFrame, default: int = DEFAULT_MIN_ISR
) -> DataFrame:
    """Intervals in which writes with acks=all were refused: fewer in sync than the topic demands.

    `min_isr` has `topic` and `min_isr`; topics that it does not name have the default. A partition
    without a leader takes no writes, whatever its ISR.
    """
    in_sync = F.when(F.col("leader") >= 0, F.size("isr")).otherwise(0)
    in_order = Window.partitionBy(*PARTITION).orderBy(*EVENT)
    is_new = F.col("is_under") != F.coalesce(F.lag("is_under").over(in_order), F.lit(False))
    return (
        timeline.join(F.broadcast(min_isr.select("topic", "min_isr")), "topic", "left")
        .withColumn("min_isr", F.coalesce("min_isr", F.lit(default)).cast("int"))
        .withColumn("in_sync", in_sync)
        .withColumn(
            "is_under", (F.col("in_sync") < F.col("min_isr")) & (F.col("state") != "deleting")
        )
        .withColumn("stretch", F.sum(is_new.cast("int")).over(in_order))
        .where("is_under")
        .groupBy(*PARTITION, "stretch", "min_isr")
        .agg(
            F.min_by("from", F.struct(*EVENT)).alias("from"),
            F.max_by("until", F.struct(*EVENT)).alias("until"),
            F.min("in_sync").alias("in_sync"),
        )
        .select(*PARTITION, "from", "until", "min_isr", "in_sync")
        .withColumn("seconds", seconds_between("from", "until"))
    )


def availability_by_topic(
    unavailability: DataFrame, timeline: DataFrame, events: DataFrame
) -> DataFrame:
    """Totals for each topic; what is not over yet counts up to the end of the history.

    `availability` is the share of `observed_seconds`, the time that its partitions are known to
    have existed, in which they had a leader.
    """
    span = F.broadcast(_span(events))
    in_order = F.struct(*EVENT)
    existed = (
        timeline.crossJoin(span)
        .withColumn("until", F.coalesce("until", "history_until"))
        .groupBy(*PARTITION)
        .agg(
            F.sum(seconds_between("from", "until")).alias("known"),
            # A partition that had a state when it was first mentioned had been there all along.
            F.min_by(
                F.when(
                    F.col("old_leader_epoch") >= 0, seconds_between("history_from", "from")
                ).otherwise(0.0),
                in_order,
            ).alias("before"),
        )
        .groupBy("topic")
        .agg(F.count("*").alias("partitions"), F.sum(F.expr("known + before")).alias("observed"))
    )
    lost = (
        _closed(unavailability, span)
        .groupBy("topic")
        .agg(
            F.countDistinct("partition").alias("affected"),
            F.count("*").alias("intervals"),
            F.sum("seconds").alias("seconds"),
            F.sum("noticing_seconds").alias("noticing_seconds"),
            F.sum(F.col("seconds") - F.col("noticing_seconds")).alias("electing_seconds"),
            F.max("seconds").alias("longest_seconds"),
            F.count_if("is_open").alias("still_without_leader"),
        )
    )
    share = F.when(F.col("observed") > 0, 1 - F.col("seconds") / F.col("observed")).otherwise(1.0)
    return (
        existed.join(lost, "topic", "left")
        .na.fill(0)
        .select(
            "topic",
            "partitions",
            "affected",
            "intervals",
            "seconds",
            "longest_seconds",
            "still_without_leader",
            "noticing_seconds",
            "electing_seconds",
            F.col("observed").alias("observed_seconds"),
            F.greatest(F.lit(0.0), share).alias("availability"),
        )
    )


def unavailability_by_broker(unavailability: DataFrame, events: DataFrame) -> DataFrame:
    """Totals for each broker whose partitions lost their leader with it."""
    return (
        _closed(unavailability, F.broadcast(_span(events)))
        .where("lost_leader >= 0")
        .groupBy(F.col("lost_leader").alias("broker"))
        .agg(
            F.countDistinct(*PARTITION).alias("partitions"),
            F.count("*").alias("intervals"),
            F.sum("seconds").alias("seconds"),
            F.max("seconds").alias("longest_seconds"),
            F.count_if("is_open").alias("still_without_leader"),
        )
    )


def _span(events: DataFrame) -> DataFrame:
    """One row: when the history begins and ends."""
    return events.agg(F.min("at").alias("history_from"), F.max("at").alias("history_until"))


def _closed(unavailability: DataFrame, span: DataFrame) -> DataFrame:
    return (
        unavailability.crossJoin(span)
        .withColumn("is_open", F.col("until").isNull())
        .withColumn("until", F.coalesce("until", not_before("from", F.col("history_until"))))
        .withColumn("seconds", seconds_between("from", "until"))
    )
