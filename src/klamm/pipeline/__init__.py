"""The pipeline on Spark: its public functions, from data frames to data frames.

No function starts a Spark session: it comes with the data frames, or from the caller. Modules are
imported at the first access to a name, so that streaming a topic does not import matplotlib.
"""

from importlib import import_module
from typing import Any, Final

_TABLES: Final = "klamm.pipeline.history.tables"
_TIMELINE: Final = "klamm.pipeline.history.timeline"
_MEASURES: Final = "klamm.pipeline.history.measures"
#: name: the module that has it.
_PUBLIC: Final = {
    "snapshot_from_zookeeper": "klamm.pipeline.snapshot.zookeeper",
    "snapshot_from_brokers": "klamm.pipeline.snapshot.admin",
    "write_snapshot": "klamm.pipeline.snapshot.snapshot",
    "read_snapshot": "klamm.pipeline.snapshot.snapshot",
    "play_through": "klamm.pipeline.whatif.frames",
    "broker_failures": "klamm.pipeline.whatif.whatif",
    "rack_failures": "klamm.pipeline.whatif.whatif",
    "named_failure": "klamm.pipeline.whatif.whatif",
    "write_answer": "klamm.pipeline.whatif.frames",
    "plan_moves": "klamm.pipeline.planner.frames",
    "make_plan": "klamm.pipeline.planner.planner",
    "make_waves": "klamm.pipeline.planner.waves",
    "Demands": "klamm.pipeline.planner.planner",
    "Capacity": "klamm.pipeline.planner.planner",
    "make_tables": "klamm.pipeline.history.folder",
    "write_tables": "klamm.pipeline.history.folder",
    "read_spools": "klamm.pipeline.history.input",
    "stream_topic": "klamm.pipeline.history.input",
    "decode_messages": "klamm.pipeline.history.input",
    "distinct": "klamm.pipeline.history.input",
    "write_report": "klamm.pipeline.history.report",
    "ingest_topics": "klamm.pipeline.ingest.run",
    "IngestOptions": "klamm.pipeline.ingest.options",
    "parse_target": "klamm.pipeline.ingest.options",
    "read_manifest": "klamm.pipeline.ingest.tables.parquet",
    "events": _TABLES,
    "gaps": _TABLES,
    "controller_terms": _TABLES,
    "decisions": _TABLES,
    "elections": _TABLES,
    "isr_changes": _TABLES,
    "broker_sessions": _TABLES,
    "topic_life_cycles": _TABLES,
    "reassignments": _TABLES,
    "timeline": _TIMELINE,
    "unavailability": _TIMELINE,
    "under_min_isr": _TIMELINE,
    "availability_by_topic": _TIMELINE,
    "unavailability_by_broker": _TIMELINE,
    "latencies": _MEASURES,
    "leadership_churn": _MEASURES,
    "flapping_brokers": _MEASURES,
    "leader_balance": _MEASURES,
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
