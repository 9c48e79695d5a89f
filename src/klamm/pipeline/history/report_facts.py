"""The facts of the report, gathered from the summaries of all shards: what fits on one page.

Everything here is bounded: the summaries are, and of the records only those of the tail are read.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import log10
from typing import Any, Final, TypeAlias

import pyarrow as pa

from klamm.history.partition_events import read_partition_events
from klamm.history.story import story
from klamm.pipeline.history.fold.distributions import Durations, TimeSeries
from klamm.pipeline.history.fold.summary import (
    HEAT_ROWS_SHOWN,
    STORIES_SHOWN,
    TOPICS_SHOWN,
    UNDER_MIN_ISR_SHOWN,
)

Row: TypeAlias = dict[str, Any]

_BROKERS_MAX: Final = 40
_SENTENCES_MAX: Final = 40
_BARS_PER_DECADE: Final = 4
#: Ends of registrations that nobody had asked for.
_FAILURES: Final = ("failed", "unseen", "bounced")


@dataclass(frozen=True, slots=True)
class Origin:
    """The source of a history: as the folder stores it, and as the page shows it."""

    claim: Mapping[str, Any]
    address: str
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class HeatMap:
    """How many replicas of a partition were out of sync, in each bucket of time at its worst."""

    name: str
    missing: TimeSeries


@dataclass(frozen=True, slots=True)
class PartitionStory:
    """A partition with its numbers and its story in sentences, as far as the tail has it."""

    name: str
    seconds: float
    intervals: int
    changes: int
    sentences: list[str]
    left_out: int


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """Everything on the page. Times are aware, in UTC; lists are in the order of their telling."""

    origin: Origin
    since: datetime
    until: datetime
    counts: Mapping[str, int]
    #: Rows in each table.
    tables: Mapping[str, int]
    terms: Sequence[Row]
    sessions: Sequence[Row]
    brokers: Sequence[int]
    brokers_left_out: int
    topics: Sequence[Row]
    elections: Mapping[str, TimeSeries]
    #: From, to (seconds), count; with equal steps on a logarithmic scale.
    failovers: Sequence[tuple[float, float, int]]
    latencies: Sequence[Row]
    stories: Sequence[PartitionStory]
    heat: Sequence[HeatMap]
    balance: Mapping[int, TimeSeries]
    flapping: Sequence[Row]
    reassignments: Sequence[Row]
    under_min_isr: Sequence[Row]
    gaps: Sequence[Row]
    #: Seconds that partitions were without a leader: until it was noticed, until one was elected.
    outage: Mapping[str, float] = field(default_factory=dict)


def gather(
    *,
    origin: Origin,
    since_us: int,
    until_us: int,
    cluster: Row,
    topics: Sequence[Row],
    failovers: Durations,
    latencies: Sequence[Row],
    balance: Mapping[int, TimeSeries],
    tables: Mapping[str, int],
    stories: Callable[[], pa.Table],
) -> ReportFacts:
    """Put the summaries of the cluster and of all shards of topics together."""
    since = moment(since_us)
    sessions = [_dated(each) for each in cluster["sessions"]]
    sessions.sort(key=lambda each: (each["broker"], each["from"] or since))
    shown = _brokers_shown(cluster["flapping"])
    elections = _merge_series(topics)
    worst = _largest(
        topics, "worst", STORIES_SHOWN, lambda e: (e["is_open"], e["seconds"], e["changes"])
    )
    gaps = [_dated(each) for each in cluster["gaps"]]
    counts = {kind: sum(n for _, n in each.items()) for kind, each in elections.items()}
    return ReportFacts(
        origin=origin,
        since=since,
        until=max(moment(until_us), since + timedelta(seconds=1)),
        counts={
            "events": cluster["counts"].get("events", 0),
            "terms": cluster["counts"].get("terms", 0),
            "gaps": cluster["counts"].get("gaps", 0),
            "elections": sum(n for kind, n in counts.items() if kind != "none"),
            "unclean": counts.get("unclean", 0),
            "affected": sum(each["affected"] for each in topics),
            "without_leader": sum(each["without_leader"] for each in topics),
            "failures": sum(each["failures"] for each in cluster["flapping"]),
            "topics": sum(each["topic_count"] for each in topics),
            "topics_affected": sum(each["topics_affected"] for each in topics),
            "quarantined": tables.get("quarantine", 0),
        },
        tables=tables,
        terms=[_dated(each) for each in cluster["terms"]],
        sessions=[each for each in sessions if each["broker"] in shown],
        brokers=sorted(shown),
        brokers_left_out=len(cluster["flapping"]) - len(shown),
        topics=_largest(topics, "topics", TOPICS_SHOWN, lambda each: each["seconds"]),
        elections=elections,
        failovers=_bars(failovers),
        latencies=sorted(
            latencies, key=lambda row: (row["what"], row["kind"] or "", row["measure"])
        ),
        stories=_stories(stories(), worst) if worst else [],
        heat=_heat(topics),
        balance={broker: series for broker, series in balance.items() if broker in shown},
        flapping=sorted(cluster["flapping"], key=lambda each: each["broker"]),
        reassignments=_moves(topics),
        under_min_isr=_largest(
            topics,
            "under_min_isr",
            UNDER_MIN_ISR_SHOWN,
            lambda each: (each["is_open"], each["seconds"]),
        ),
        gaps=gaps,
        outage={
            name: sum(each["outage"][name] for each in topics)
            for name in ("noticing_seconds", "electing_seconds", "longest_seconds")
        }
        | {"longest_seconds": max((e["outage"]["longest_seconds"] for e in topics), default=0.0)},
    )


def is_failure(session: Mapping[str, Any]) -> bool:
    """Whether a registration ended without its broker's having asked to shut down."""
    return session["end"] in _FAILURES and session["shutting_down_at"] is None


def gap_sentence(gap: Mapping[str, Any]) -> str:
    """A gap with its range of sequences."""
    epoch, first, last = gap["controller_epoch"], gap["first_seq"], gap["last_seq"]
    if last is None:
        return f"Nothing is known of controller epoch {epoch}."
    if gap["missing"] == "parts":
        return f"Event {first} of controller epoch {epoch} is there only in part."
    which = f"Event {first}" if first == last else f"Events {first} to {last}"
    return f"{which} of controller epoch {epoch} {'is' if first == last else 'are'} missing."


def moment(micros: int) -> datetime:
    """A time in microseconds since 1970, as people have it."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=micros)


_TIMES: Final = frozenset({"from", "until", "after", "before", "shutting_down_at", "failed_at"})


def _dated(row: Row) -> Row:
    return {
        name: moment(value) if name in _TIMES and value is not None else value
        for name, value in row.items()
    }


def _largest(
    summaries: Sequence[Row], name: str, count: int, key: Callable[[Row], Any]
) -> list[Row]:
    """The first rows of all shards together, by a key and then by name."""
    rows = [each for summary in summaries for each in summary[name]]
    rows.sort(key=lambda each: (each.get("topic", ""), each.get("partition", 0)))
    rows.sort(key=key, reverse=True)
    return rows[:count]


def _merge_series(summaries: Sequence[Row]) -> dict[str, TimeSeries]:
    merged: dict[str, TimeSeries] = {}
    for summary in summaries:
        for kind, state in summary["elections"].items():
            series = merged.setdefault(kind, TimeSeries())
            for at, count in TimeSeries(**state).items():
                series.add(at, count)
    return merged


def _brokers_shown(flapping: Sequence[Row]) -> set[int]:
    """All brokers, or those that came and went most."""
    order = sorted(flapping, key=lambda each: (-each["sessions"], each["broker"]))
    return {each["broker"] for each in order[:_BROKERS_MAX]}


def _bars(failovers: Durations) -> list[tuple[float, float, int]]:
    bars: dict[int, int] = {}
    for micros, count in failovers.items():
        step = int(log10(max(micros, 1) / 1e6) * _BARS_PER_DECADE // 1)
        bars[step] = bars.get(step, 0) + count
    return [
        (10 ** (step / _BARS_PER_DECADE), 10 ** ((step + 1) / _BARS_PER_DECADE), bars[step])
        for step in sorted(bars)
    ]


def _stories(records: pa.Table, worst: Sequence[Row]) -> list[PartitionStory]:
    stories = []
    batches = records.to_batches()
    for each in worst:
        topic, partition = each["topic"], each["partition"]
        events = read_partition_events(batches, topic, partition)
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


def _heat(summaries: Sequence[Row]) -> list[HeatMap]:
    """The partitions that lacked in-sync replicas the longest, by name."""
    rows = []
    for each in _largest(summaries, "heat", HEAT_ROWS_SHOWN, lambda each: each["lack_us"]):
        series = TimeSeries(mode="peak") if each["lack"] is None else TimeSeries(**each["lack"])
        if each["open"] is not None:
            series.add_interval(*each["open"])
        rows.append(HeatMap(each["name"], series))
    return sorted(rows, key=lambda each: each.name)


def _moves(summaries: Sequence[Row]) -> list[Row]:
    merged: dict[str, Row] = {}
    for summary in summaries:
        for outcome, (count, longest) in summary["moves"].items():
            row = merged.setdefault(
                outcome, {"outcome": outcome or None, "count": 0, "longest_seconds": 0.0}
            )
            row["count"] += int(count)
            row["longest_seconds"] = max(row["longest_seconds"], longest)
    return [merged[outcome] for outcome in sorted(merged)]
