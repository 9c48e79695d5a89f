"""The tables of a history as data frames: each with the function and the tables that make it.

These functions define the tables. A folder of tables is kept up to date in another way
(`klamm.pipeline.history.folder`), whose result is the same.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame

from klamm.pipeline.history import measures as measures
from klamm.pipeline.history import tables as tables
from klamm.pipeline.history import timeline as timelines
from klamm.pipeline.history.input import distinct


@dataclass(frozen=True, slots=True)
class HistoryTable:
    """A table, the function that makes it, and the tables that the function takes."""

    name: str
    make: Callable[..., DataFrame]
    inputs: tuple[str, ...]


#: In an order in which each comes after its inputs. `min_isr` and `distinct` are not written.
TABLES: Final = (
    HistoryTable("events", tables.events, ("distinct",)),
    HistoryTable("gaps", tables.gaps, ("events",)),
    HistoryTable("controller_terms", tables.controller_terms, ("events",)),
    HistoryTable("decisions", tables.decisions, ("distinct",)),
    HistoryTable("elections", tables.elections, ("decisions",)),
    HistoryTable("isr_changes", tables.isr_changes, ("decisions",)),
    HistoryTable("broker_sessions", tables.broker_sessions, ("distinct", "controller_terms")),
    HistoryTable("topic_life_cycles", tables.topic_life_cycles, ("distinct",)),
    HistoryTable(
        "reassignments", tables.reassignments, ("distinct", "decisions", "controller_terms")
    ),
    HistoryTable("timeline", timelines.timeline, ("distinct", "decisions")),
    HistoryTable("unavailability", timelines.unavailability, ("timeline", "controller_terms")),
    HistoryTable("under_min_isr", timelines.under_min_isr, ("timeline", "min_isr")),
    HistoryTable(
        "availability_by_topic",
        timelines.availability_by_topic,
        ("unavailability", "timeline", "events"),
    ),
    HistoryTable(
        "unavailability_by_broker",
        timelines.unavailability_by_broker,
        ("unavailability", "events"),
    ),
    HistoryTable("latencies", measures.latencies, ("events", "unavailability", "controller_terms")),
    HistoryTable("leadership_churn", measures.leadership_churn, ("elections",)),
    HistoryTable("flapping_brokers", measures.flapping_brokers, ("broker_sessions",)),
    HistoryTable("leader_balance", measures.leader_balance, ("timeline",)),
)


def make_tables(records: DataFrame, min_isr: DataFrame | None = None) -> dict[str, DataFrame]:
    """All tables of a history, as data frames that are not computed yet.

    `min_isr` has `topic` and `min_isr`; topics that it does not name have Kafka's default.
    """
    made = _given(distinct(records), min_isr)
    for table in TABLES:
        made[table.name] = table.make(*(made[name] for name in table.inputs))
    return {table.name: made[table.name] for table in TABLES}


def _given(once: DataFrame, min_isr: DataFrame | None) -> dict[str, DataFrame]:
    if min_isr is None:
        min_isr = once.sparkSession.createDataFrame([], "topic string, min_isr int")
    return {"distinct": once, "min_isr": min_isr}
