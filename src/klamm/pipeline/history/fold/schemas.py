"""The columns of the tables in a history's folder, as Arrow has them.

Every table has `cluster_id`; its other columns are those that the function of the same name in
`klamm.pipeline` gives (docs/history.md says what they mean).
"""

from typing import Final

import pyarrow as pa

from klamm.history.arrow import DECISION, SCHEMA

_INT, _LONG, _TEXT = pa.int32(), pa.int64(), pa.string()
_DOUBLE, _BOOL = pa.float64(), pa.bool_()
_TIME: Final = pa.timestamp("us", tz="UTC")
_IDS: Final = pa.list_(pa.int32())
_NESTED: Final = ("broker_changes", "topic_changes", "moves", "decisions")
_EVENT: Final = (("controller_epoch", _INT), ("seq", _LONG))
_PARTITION: Final = (("topic", _TEXT), ("partition", _INT))
_INTERVAL: Final = (("from", _TIME), ("until", _TIME))
CLUSTER: Final = ("cluster_id", _TEXT)

#: A decision with its place in the record that it came in.
PLACED_DECISION: Final = pa.struct([*DECISION, pa.field("place", _INT)])
#: What a shard of topics gets: records, reduced to what they say about the shard's topics.
ROUTED: Final = pa.schema(
    [
        pa.field("decisions", pa.list_(PLACED_DECISION)) if each.name == "decisions" else each
        for each in SCHEMA
    ]
)


def _table(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema([*columns, CLUSTER])


_HEADER: Final = tuple(
    (each.name, each.type)
    for each in SCHEMA
    if each.name not in (*_NESTED, "part", "parts", "cluster_id")
)
_LOSSES: Final = (
    ("intervals", _LONG),
    ("seconds", _DOUBLE),
    ("longest_seconds", _DOUBLE),
    ("still_without_leader", _LONG),
)

#: Tables of the cluster as a whole.
OF_CLUSTER: Final = {
    "records": SCHEMA,
    "events": _table(*_HEADER, ("decisions", _INT), ("is_whole", _BOOL)),
    "gaps": _table(
        ("controller_epoch", _INT),
        ("first_seq", _LONG),
        ("last_seq", _LONG),
        ("missing", _TEXT),
        ("after", _TIME),
        ("before", _TIME),
    ),
    "controller_terms": _table(
        ("controller_epoch", _INT),
        ("controller", _INT),
        *_INTERVAL,
        ("end", _TEXT),
        ("cause", _TEXT),
        ("announced_at", _TIME),
        ("takeover_us", _LONG),
        ("last_event_at", _TIME),
        ("events", _LONG),
        ("missing_events", _LONG),
    ),
    "broker_sessions": _table(
        ("broker", _INT),
        ("epoch", _LONG),
        *_INTERVAL,
        ("start", _TEXT),
        ("end", _TEXT),
        ("shutting_down_at", _TIME),
        ("seconds", _DOUBLE),
    ),
    "flapping_brokers": _table(
        ("broker", _INT),
        ("sessions", _LONG),
        ("failed", _LONG),
        ("shut_down", _LONG),
        ("otherwise_gone", _LONG),
        ("shortest_seconds", _DOUBLE),
        ("starts_within_window", _LONG),
        ("is_flapping", _BOOL),
    ),
}
#: Tables of topics and partitions: each shard of topics writes its rows.
OF_TOPICS: Final = {
    "decisions": _table(
        ("at", _TIME),
        ("arrived_at", _TIME),
        ("announced_at", _TIME),
        *_EVENT,
        (
            "order",
            pa.struct([*_EVENT, ("part", _INT), ("place", _INT)]),
        ),
        ("cause", _TEXT),
        *((each.name, each.type) for each in DECISION),
        ("alive_at", _TIME),
    ),
    "elections": _table(
        ("at", _TIME),
        *_EVENT,
        *_PARTITION,
        ("kind", _TEXT),
        ("old_leader", _INT),
        ("new_leader", _INT),
        ("leader_epoch", _INT),
        ("isr", _IDS),
        ("cause", _TEXT),
        ("announced_at", _TIME),
        ("old_isr", _IDS),
        ("replicas", _IDS),
    ),
    "isr_changes": _table(
        ("at", _TIME),
        *_EVENT,
        *_PARTITION,
        ("kind", _TEXT),
        ("leader", _INT),
        ("leader_epoch", _INT),
        ("old_isr", _IDS),
        ("isr", _IDS),
        ("joined", _IDS),
        ("left", _IDS),
        ("replicas", _IDS),
        ("cause", _TEXT),
    ),
    "topic_life_cycles": _table(
        ("topic", _TEXT),
        ("life", _LONG),
        ("created_at", _TIME),
        ("created_with", _INT),
        ("partitions_added", _INT),
        ("deletion_queued_at", _TIME),
        ("deletion_started_at", _TIME),
        ("deletion_pauses", _INT),
        ("ended_at", _TIME),
        ("end", _TEXT),
        ("deletion_seconds", _DOUBLE),
    ),
    "reassignments": _table(
        *_PARTITION,
        *_INTERVAL,
        ("outcome", _TEXT),
        ("target", _IDS),
        ("adding", _IDS),
        ("removing", _IDS),
        ("phases", pa.list_(pa.struct([("phase", _TEXT), ("at", _TIME), *_EVENT]))),
        ("seconds", _DOUBLE),
    ),
    "timeline": _table(
        *_PARTITION,
        *_INTERVAL,
        ("leader", _INT),
        ("leader_epoch", _INT),
        ("isr", _IDS),
        ("replicas", _IDS),
        ("state", _TEXT),
        ("kinds", pa.list_(_TEXT)),
        ("cause", _TEXT),
        ("old_leader", _INT),
        ("old_leader_epoch", _INT),
        ("arrived_at", _TIME),
        ("announced_at", _TIME),
        ("alive_at", _TIME),
        ("topic_ended", _BOOL),
        *_EVENT,
    ),
    "unavailability": _table(
        *_PARTITION,
        *_INTERVAL,
        ("seconds", _DOUBLE),
        ("noticed_at", _TIME),
        ("noticing_seconds", _DOUBLE),
        ("electing_seconds", _DOUBLE),
        ("lost_leader", _INT),
        ("new_leader", _INT),
        ("end", _TEXT),
        *_EVENT,
        ("cause", _TEXT),
    ),
    "under_min_isr": _table(
        *_PARTITION, *_INTERVAL, ("min_isr", _INT), ("in_sync", _INT), ("seconds", _DOUBLE)
    ),
    "availability_by_topic": _table(
        ("topic", _TEXT),
        ("partitions", _LONG),
        ("affected", _LONG),
        *_LOSSES,
        ("noticing_seconds", _DOUBLE),
        ("electing_seconds", _DOUBLE),
        ("observed_seconds", _DOUBLE),
        ("availability", _DOUBLE),
    ),
    "leadership_churn": _table(
        *_PARTITION,
        ("elections", _LONG),
        ("changes", _LONG),
        ("leaders", _LONG),
        ("clean", _LONG),
        ("unclean", _LONG),
        ("preferred", _LONG),
        ("reassignment", _LONG),
        ("controlled_shutdown", _LONG),
        ("none", _LONG),
        ("first_at", _TIME),
        ("last_at", _TIME),
    ),
}
#: Tables made from what all shards say.
OF_ALL: Final = {
    "unavailability_by_broker": _table(("broker", _INT), ("partitions", _LONG), *_LOSSES),
    "latencies": _table(
        ("what", _TEXT),
        ("kind", _TEXT),
        ("measure", _TEXT),
        ("count", _LONG),
        ("p50", _DOUBLE),
        ("p90", _DOUBLE),
        ("p99", _DOUBLE),
        ("max", _DOUBLE),
    ),
    "leader_balance": _table(
        ("at", _TIME), ("broker", _INT), ("leaders", _LONG), ("share", _DOUBLE)
    ),
}
#: Messages of the topic that are no history.
QUARANTINE: Final = _table(
    ("topic", _TEXT),
    ("partition", _INT),
    ("offset", _LONG),
    ("file", _TEXT),
    ("timestamp", _TIME),
    ("reason", _TEXT),
    ("bytes", pa.binary()),
)
TABLES: Final[dict[str, pa.Schema]] = {
    **OF_CLUSTER,
    **OF_TOPICS,
    **OF_ALL,
    "quarantine": QUARANTINE,
}
