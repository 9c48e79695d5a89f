"""What a history says, as tables: events, terms, elections, ISRs, brokers, topics, reassignments.

Functions from data frames to data frames. Time is what the controllers' clocks said; order never
is: it is that of controller epoch and sequence, so that a clock that was set back, or an event that
was shipped late, changes nothing.
"""

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from klamm.history.records import (
    CREATED,
    ELECTION_KINDS,
    EPOCH_RAISED,
    MOVE_BEGINNINGS,
    MOVE_ENDINGS,
    NOBODY,
    REASSIGNMENT,
    TOPIC_ENDINGS,
)
from klamm.pipeline.history.input import EVENT, micros

_NESTED: Final = ("broker_changes", "topic_changes", "moves", "decisions")
PARTITION: Final = ("topic", "partition")


def events(records: DataFrame) -> DataFrame:
    """One row for each event, also if it has several parts.

    `decisions` counts them; `is_whole` says whether all parts are there.
    """
    nested = (*_NESTED, "part", "parts", *EVENT)
    header = [name for name in records.columns if name not in nested]
    return (
        records.groupBy(*EVENT)
        .agg(
            F.min_by(F.struct(*header), "part").alias("header"),
            F.sum(F.size("decisions")).cast("int").alias("decisions"),
            (F.count("*") == F.max("parts")).alias("is_whole"),
        )
        .select(
            "header.at",
            "header.controller",
            *EVENT,
            *(f"header.{name}" for name in header if name not in ("at", "controller")),
            "decisions",
            "is_whole",
        )
    )


def gaps(events: DataFrame) -> DataFrame:
    """What is missing: a range of sequences, or (`last_seq` is null) a whole epoch.

    `missing` says what of it: `events`, `parts` of one event, or the `epoch`. It happened between
    the times `after` and `before`, each null where there is nothing on that side.
    """
    seen = events.select(*EVENT, "at", "is_whole")
    within = Window.partitionBy("controller_epoch").orderBy("seq")
    before = F.coalesce(F.lag("seq").over(within), F.lit(0))
    missing_events = (
        seen.withColumn("first_seq", before + 1)
        .withColumn("after", F.lag("at").over(within))
        .where("seq > first_seq")
        .select(
            "controller_epoch",
            "first_seq",
            (F.col("seq") - 1).alias("last_seq"),
            F.lit("events").alias("missing"),
            "after",
            F.col("at").alias("before"),
        )
    )
    missing_parts = seen.where("not is_whole").select(
        "controller_epoch",
        F.col("seq").alias("first_seq"),
        F.col("seq").alias("last_seq"),
        F.lit("parts").alias("missing"),
        F.col("at").alias("after"),
        F.col("at").alias("before"),
    )
    epochs = seen.groupBy("controller_epoch").agg(
        F.min_by("at", "seq").alias("first_at"), F.max_by("at", "seq").alias("last_at")
    )
    # One partition, but its rows are controller terms, of which there are few.
    over_terms = Window.orderBy("controller_epoch")
    missing_epochs = (
        epochs.withColumn("previous", F.lag("controller_epoch").over(over_terms))
        .withColumn("after", F.lag("last_at").over(over_terms))
        .where("controller_epoch > previous + 1")
        .select(
            F.explode(F.sequence(F.expr("previous + 1"), F.expr("controller_epoch - 1"))).alias(
                "controller_epoch"
            ),
            F.lit(1).cast("bigint").alias("first_seq"),
            F.lit(None).cast("bigint").alias("last_seq"),
            F.lit("epoch").alias("missing"),
            "after",
            F.col("first_at").alias("before"),
        )
    )
    return missing_events.unionByName(missing_parts).unionByName(missing_epochs)


def controller_terms(events: DataFrame) -> DataFrame:
    """Who was controller from when until when.

    `end`: `ended` by an event of its own, `replaced` by the next known term (the node was gone
    before it could say so; then `until` is when that one began), or null while it lasts.
    """
    over_terms = Window.orderBy("controller_epoch")
    end_of_event = F.col("at") + micros("total_us")
    return (
        events.groupBy("controller_epoch")
        .agg(
            F.min_by("controller", "seq").alias("controller"),
            F.min_by("at", "seq").alias("from"),
            F.max(F.when(F.col("term") == "ended", end_of_event)).alias("ended_at"),
            F.max_by("cause", F.when(F.col("term") == "ended", F.col("seq"))).alias("cause"),
            F.max_by(end_of_event, "seq").alias("last_event_at"),
            F.max(
                F.when(F.col("term") == "began", F.col("at") + micros("announced_after_us"))
            ).alias("announced_at"),
            F.max(F.when(F.col("term") == "began", F.col("total_us"))).alias("takeover_us"),
            F.count("*").alias("events"),
            (F.max("seq") - F.count("*")).alias("missing_events"),
        )
        .withColumn("next_from", F.lead("from").over(over_terms))
        .select(
            "controller_epoch",
            "controller",
            "from",
            not_before("from", F.coalesce("ended_at", "next_from")).alias("until"),
            F.when(F.col("ended_at").isNotNull(), "ended")
            .when(F.col("next_from").isNotNull(), "replaced")
            .alias("end"),
            "cause",
            "announced_at",
            "takeover_us",
            "last_event_at",
            "events",
            "missing_events",
        )
    )


def decisions(records: DataFrame) -> DataFrame:
    """One row for each decision, refused ones included, in the order (`order`) they were taken.

    `arrived_at` is when the event came, `announced_at` when brokers had been told (null: they never
    were, as far as this controller is concerned). `alive_at` is when the old leader was last known
    to be alive, if the event found it lost: a broker that a new controller does not find was there
    a session timeout ago at the earliest.
    """
    arrived_at = F.col("at") - micros("queued_us")
    announced = F.when(
        F.col("announced_after_us").isNotNull(), F.col("at") + micros("announced_after_us")
    ).when(F.col("outcome") == "done", F.col("at") + micros("total_us"))
    return records.select(
        "at",
        arrived_at.alias("arrived_at"),
        announced.alias("announced_at"),
        *EVENT,
        "part",
        "cause",
        "lost",
        F.when(
            F.col("term") == "began", arrived_at - micros(F.col("session_timeout_ms") * 1000)
        ).alias("alive_by_default"),
        F.posexplode("decisions").alias("place", "decision"),
    ).select(
        "at",
        "arrived_at",
        "announced_at",
        *EVENT,
        F.struct(*EVENT, "part", "place").alias("order"),
        "cause",
        "decision.*",
        F.when(
            F.col("decision.old_leader") >= 0,
            F.coalesce(
                F.try_element_at(
                    F.filter("lost", lambda each: each["broker"] == F.col("decision.old_leader")),
                    F.lit(1),
                )["alive_at"],
                "alive_by_default",
            ),
        ).alias("alive_at"),
    )


def elections(decisions: DataFrame) -> DataFrame:
    """Elections that ZooKeeper accepted, and (`none`) those without a candidate.

    The first leader of a new partition is no election: there was nothing to replace. A new
    controller takes the lead from dead brokers before it elects others, so the old leader is the
    one that the event found, where the election itself found none.
    """
    in_event = Window.partitionBy(*PARTITION, *EVENT).orderBy("order")
    old_leader = F.when(F.col("old_leader") >= 0, F.col("old_leader")).otherwise(
        F.first("old_leader").over(in_event)
    )
    return (
        decisions.where(F.col("outcome") == "done")
        .withColumn("old_leader", old_leader)
        .where(F.col("kind").isin(*ELECTION_KINDS))
        .select(
            "at",
            *EVENT,
            *PARTITION,
            "kind",
            "old_leader",
            F.col("leader").alias("new_leader"),
            "leader_epoch",
            "isr",
            "cause",
            "announced_at",
            "old_isr",
            "replicas",
        )
    )


def isr_changes(decisions: DataFrame) -> DataFrame:
    """Brokers that joined or left an ISR, and because of which decision (`kind`)."""
    # `none` sums up an event, whose other decisions have said already what became of the ISR.
    changed = (
        (F.col("outcome") == "done")
        & ~F.col("kind").isin(NOBODY, CREATED)
        & (F.array_sort("isr") != F.array_sort("old_isr"))
    )
    return decisions.where(changed).select(
        "at",
        *EVENT,
        *PARTITION,
        "kind",
        "leader",
        "leader_epoch",
        "old_isr",
        "isr",
        F.array_except("isr", "old_isr").alias("joined"),
        F.array_except("old_isr", "isr").alias("left"),
        "replicas",
        "cause",
    )


def broker_sessions(records: DataFrame, terms: DataFrame) -> DataFrame:
    """How long each registration of a broker lasted; its epoch tells one from the next.

    `start`: `present` if it was there before (`from` is when it was first seen), `started` or
    `bounced`. `end`: `failed`, `shut_down` (after it had asked to), `bounced` (replaced by the next
    registration), `unseen` (gone between two controller terms), or null while it lasts.
    """
    changes = records.select(
        "at", *EVENT, F.posexplode("broker_changes").alias("place", "change")
    ).select("at", *EVENT, F.struct(*EVENT, "place").alias("order"), "change.*")
    changes = changes.where("epoch >= 0")
    is_start = F.col("change").isin("present", "started", "bounced")
    by_broker = Window.partitionBy("broker").orderBy("first")
    sessions = (
        changes.groupBy("broker", "epoch")
        .agg(
            F.min("order").alias("first"),
            F.min_by("at", F.when(is_start, F.col("order"))).alias("from"),
            F.min_by("change", F.when(is_start, F.col("order"))).alias("start"),
            F.min(F.when(F.col("change") == "failed", F.col("at"))).alias("failed_at"),
            F.min(F.when(F.col("change") == "shutting_down", F.col("at"))).alias(
                "shutting_down_at"
            ),
            F.max("controller_epoch").alias("last_epoch"),
        )
        .withColumn("next_from", F.lead("from").over(by_broker))
    )
    return (
        _with_next_term(sessions, terms)
        .select(
            "broker",
            "epoch",
            "from",
            not_before("from", F.coalesce("failed_at", F.least("next_from", "next_term"))).alias(
                "until"
            ),
            "start",
            F.when(
                F.col("failed_at").isNotNull() & F.col("shutting_down_at").isNotNull(), "shut_down"
            )
            .when(F.col("failed_at").isNotNull(), "failed")
            .when(F.col("next_from") <= F.coalesce("next_term", "next_from"), "bounced")
            # A controller that shuts down is gone before it could say so.
            .when(
                F.col("next_term").isNotNull() & F.col("shutting_down_at").isNotNull(), "shut_down"
            )
            .when(F.col("next_term").isNotNull(), "unseen")
            .alias("end"),
            "shutting_down_at",
        )
        .withColumn("seconds", seconds_between("from", "until"))
    )


def topic_life_cycles(records: DataFrame) -> DataFrame:
    """From creation to deletion, one row for each topic that had a name.

    `created_at` is null for a topic that was there before; `end`: `deleted`, `vanished` (removed
    from ZooKeeper by somebody else), or null while it exists.
    """
    changes = records.select(
        "at", *EVENT, F.posexplode("topic_changes").alias("place", "change")
    ).select("at", F.struct(*EVENT, "place").alias("order"), "change.*")
    by_topic = Window.partitionBy("topic").orderBy("order")
    is_end = F.col("change").isin(*TOPIC_ENDINGS)
    ends_before = F.sum(is_end.cast("int")).over(
        by_topic.rowsBetween(Window.unboundedPreceding, -1)
    )

    def first_at(*kinds: str) -> Column:
        return F.min(F.when(F.col("change").isin(*kinds), F.col("at")))

    return (
        changes.withColumn("life", F.coalesce(ends_before, F.lit(0)) + 1)
        .groupBy("topic", "life")
        .agg(
            first_at("created").alias("created_at"),
            F.max_by("partitions", F.when(F.col("change") == "created", F.col("order"))).alias(
                "created_with"
            ),
            F.sum(
                F.when(F.col("change").isin("created", "expanded"), F.col("partitions")).otherwise(
                    0
                )
            )
            .cast("int")
            .alias("partitions_added"),
            first_at("deletion_queued").alias("deletion_queued_at"),
            first_at("deletion_started").alias("deletion_started_at"),
            F.count_if(F.col("change") == "deletion_paused").cast("int").alias("deletion_pauses"),
            first_at(*TOPIC_ENDINGS).alias("ended_at"),
            F.max(F.when(is_end, F.col("change"))).alias("end"),
        )
        .withColumn("deletion_at", F.coalesce("deletion_queued_at", "deletion_started_at"))
        .withColumn("deletion_seconds", seconds_between("deletion_at", "ended_at"))
        .drop("deletion_at")
    )


def reassignments(records: DataFrame, decisions: DataFrame, terms: DataFrame) -> DataFrame:
    """Reassignments of partitions with their phases in order.

    `outcome` is the last phase: `completed`, `cancelled`, `dropped` (with its topic), `replaced`
    (by another target), `unseen` (over when the next controller term began), or null while it
    lasts. There are also the phases `epoch_raised` and `leader_moved`.
    """
    moves = (
        records.select("at", *EVENT, F.explode("moves").alias("move"))
        .select("at", *EVENT, "move.*")
        .withColumn("is_move", F.lit(True))
    )
    milestones = (
        decisions.where(
            F.col("kind").isin(EPOCH_RAISED, REASSIGNMENT) & (F.col("outcome") == "done")
        )
        .select(
            "at",
            *EVENT,
            *PARTITION,
            F.when(F.col("kind") == REASSIGNMENT, "leader_moved")
            .otherwise("epoch_raised")
            .alias("phase"),
        )
        .withColumn("is_move", F.lit(False))
    )
    # A move is noted at the end of its event, whose decisions come after a beginning but before
    # an ending.
    rank = F.when(F.col("phase").isin(*MOVE_ENDINGS), 2).when(F.col("is_move"), 0).otherwise(1)
    phases = moves.unionByName(milestones, allowMissingColumns=True).withColumn(
        "order", F.struct(*EVENT, rank.alias("rank"))
    )
    by_partition = Window.partitionBy(*PARTITION).orderBy("order")
    so_far = by_partition.rowsBetween(Window.unboundedPreceding, -1)

    def last_of_move(name: str) -> Column:
        return F.last(F.when(F.col("is_move"), F.col(name)), ignorenulls=True).over(so_far)

    target = F.array_sort(F.array_except("replicas", "removing"))
    was_over = F.coalesce(F.col("last_phase").isin(*MOVE_ENDINGS), F.lit(True))
    begins = F.col("phase").isin(*MOVE_BEGINNINGS) | (
        (F.col("phase") == "present") & (was_over | (F.col("target") != F.col("last_target")))
    )
    numbered = (
        phases.withColumn("target", F.when(F.col("is_move"), target))
        .withColumn("last_phase", last_of_move("phase"))
        .withColumn("last_target", last_of_move("target"))
        .where(F.col("is_move") | ~was_over)
        .withColumn("begins", begins)
        .withColumn("number", F.sum(F.col("begins").cast("int")).over(by_partition))
        # An end whose beginning is not in the history has number 0.
    )
    whole = (
        numbered.groupBy(*PARTITION, "number")
        .agg(
            F.min_by("at", "order").alias("from"),
            F.min("order").alias("first"),
            F.min_by(
                F.struct("replicas", "adding", "removing"),
                F.when(F.col("is_move"), F.col("order")),
            ).alias("move"),
            F.array_sort(F.collect_list(F.struct("order", "phase", "at"))).alias("ordered"),
            F.max("controller_epoch").alias("last_epoch"),
        )
        .withColumn("last", F.element_at("ordered", -1))
        .withColumn("is_over", F.col("last.phase").isin(*MOVE_ENDINGS))
        .withColumn(
            "next_from", F.lead("from").over(Window.partitionBy(*PARTITION).orderBy("number"))
        )
    )
    over = F.when(F.col("is_over"), F.col("last.at"))
    return (
        _with_next_term(whole, terms)
        .select(
            *PARTITION,
            F.when(F.col("number") > 0, F.col("from")).alias("from"),
            not_before("from", F.coalesce(over, F.least("next_from", "next_term"))).alias("until"),
            F.when(F.col("is_over"), F.col("last.phase"))
            .when(F.col("next_from") <= F.coalesce("next_term", "next_from"), "replaced")
            .when(F.col("next_term").isNotNull(), "unseen")
            .alias("outcome"),
            F.array_except("move.replicas", "move.removing").alias("target"),
            "move.adding",
            "move.removing",
            F.transform(
                "ordered",
                lambda each: F.struct(
                    each["phase"].alias("phase"),
                    each["at"].alias("at"),
                    each["order"]["controller_epoch"].alias("controller_epoch"),
                    each["order"]["seq"].alias("seq"),
                ),
            ).alias("phases"),
        )
        .withColumn("seconds", seconds_between("from", "until"))
    )


def seconds_between(start: str, end: str) -> Column:
    """Seconds from one time to another, with their fraction; null if either is."""
    passed: Column = (F.unix_micros(end) - F.unix_micros(start)) / 1e6
    return passed


def not_before(start: str, end: Column) -> Column:
    """An end that a clock, set back between two controllers, puts before its beginning."""
    return F.when(end.isNotNull(), F.greatest(F.col(start), end))


def next_terms(terms: DataFrame) -> DataFrame:
    """For each epoch the next one whose beginning is known.

    `next_epoch` is that one, `next_term` when it began, `next_announced` when it had announced
    every leader. A new controller lists everything that it finds, so what it does not mention was
    over by then. `follows_end` says whether the term before said that it ended.
    """
    in_order = Window.orderBy("controller_epoch")
    later = Window.orderBy("controller_epoch").rowsBetween(1, Window.unboundedFollowing)
    is_known = F.col("takeover_us").isNotNull()
    announced = F.coalesce("announced_at", F.col("from") + micros("takeover_us"))
    return terms.select(
        "controller_epoch",
        F.first(F.when(is_known, F.col("from")), ignorenulls=True).over(later).alias("next_term"),
        F.first(F.when(is_known, announced), ignorenulls=True).over(later).alias("next_announced"),
        F.first(F.when(is_known, F.col("controller_epoch")), ignorenulls=True)
        .over(later)
        .alias("next_epoch"),
        F.coalesce(
            (F.lag("controller_epoch").over(in_order) == F.col("controller_epoch") - 1)
            & (F.lag("end").over(in_order) == "ended"),
            F.lit(False),
        ).alias("follows_end"),
    )


def _with_next_term(table: DataFrame, terms: DataFrame) -> DataFrame:
    later = next_terms(terms).withColumnRenamed("controller_epoch", "last_epoch")
    return table.join(F.broadcast(later), "last_epoch", "left")
