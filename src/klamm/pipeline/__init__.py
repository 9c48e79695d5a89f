"""The pipeline on Spark: its public functions, from data frames to data frames.

No function starts a Spark session: it comes with the data frames, or from the caller. Modules are
imported at the first access to a name, so that streaming a topic does not import matplotlib.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # for editors and type checkers; the same names as below
    from klamm.pipeline.history.definitions import make_tables as make_tables
    from klamm.pipeline.history.input import decode_messages as decode_messages
    from klamm.pipeline.history.input import distinct as distinct
    from klamm.pipeline.history.input import read_spools as read_spools
    from klamm.pipeline.history.input import stream_topic as stream_topic
    from klamm.pipeline.history.measures import flapping_brokers as flapping_brokers
    from klamm.pipeline.history.measures import latencies as latencies
    from klamm.pipeline.history.measures import leader_balance as leader_balance
    from klamm.pipeline.history.measures import leadership_churn as leadership_churn
    from klamm.pipeline.history.metadata_log import MetadataLogInput as MetadataLogInput
    from klamm.pipeline.history.sources import SpoolInput as SpoolInput
    from klamm.pipeline.history.sources import TopicInput as TopicInput
    from klamm.pipeline.history.tables import broker_sessions as broker_sessions
    from klamm.pipeline.history.tables import controller_terms as controller_terms
    from klamm.pipeline.history.tables import decisions as decisions
    from klamm.pipeline.history.tables import elections as elections
    from klamm.pipeline.history.tables import events as events
    from klamm.pipeline.history.tables import gaps as gaps
    from klamm.pipeline.history.tables import isr_changes as isr_changes
    from klamm.pipeline.history.tables import reassignments as reassignments
    from klamm.pipeline.history.tables import topic_life_cycles as topic_life_cycles
    from klamm.pipeline.history.timeline import availability_by_topic as availability_by_topic
    from klamm.pipeline.history.timeline import timeline as timeline
    from klamm.pipeline.history.timeline import unavailability as unavailability
    from klamm.pipeline.history.timeline import unavailability_by_broker as unavailability_by_broker
    from klamm.pipeline.history.timeline import under_min_isr as under_min_isr
    from klamm.pipeline.ingest.options import IngestOptions as IngestOptions
    from klamm.pipeline.ingest.options import parse_target as parse_target
    from klamm.pipeline.ingest.run import ingest_topics as ingest_topics
    from klamm.pipeline.ingest.tables.parquet import read_manifest as read_manifest
    from klamm.pipeline.planner.frames import plan_moves as plan_moves
    from klamm.pipeline.planner.planner import Capacity as Capacity
    from klamm.pipeline.planner.planner import Demands as Demands
    from klamm.pipeline.planner.planner import make_plan as make_plan
    from klamm.pipeline.planner.waves import make_waves as make_waves
    from klamm.pipeline.snapshot.admin import snapshot_from_brokers as snapshot_from_brokers
    from klamm.pipeline.snapshot.snapshot import read_snapshot as read_snapshot
    from klamm.pipeline.snapshot.snapshot import write_snapshot as write_snapshot
    from klamm.pipeline.snapshot.zookeeper import snapshot_from_zookeeper as snapshot_from_zookeeper
    from klamm.pipeline.whatif.frames import play_through as play_through
    from klamm.pipeline.whatif.frames import write_answer as write_answer
    from klamm.pipeline.whatif.whatif import broker_failures as broker_failures
    from klamm.pipeline.whatif.whatif import named_failure as named_failure
    from klamm.pipeline.whatif.whatif import rack_failures as rack_failures

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
    "make_tables": "klamm.pipeline.history.definitions",
    "MetadataLogInput": "klamm.pipeline.history.metadata_log",
    "SpoolInput": "klamm.pipeline.history.sources",
    "TopicInput": "klamm.pipeline.history.sources",
    "read_spools": "klamm.pipeline.history.input",
    "stream_topic": "klamm.pipeline.history.input",
    "decode_messages": "klamm.pipeline.history.input",
    "distinct": "klamm.pipeline.history.input",
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
