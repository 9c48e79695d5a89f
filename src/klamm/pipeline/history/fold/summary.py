"""The summary of a shard's state, and the tables that are made from all summaries.

A summary is bounded: sums for each broker, distributions, the changes of leaders within the tail,
and the few topics and partitions that a page shows.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from heapq import nlargest
from typing import Any, Final, TypeAlias

from klamm.pipeline.history.fold.cluster import ClusterHistory
from klamm.pipeline.history.fold.distributions import Durations, TimeSeries
from klamm.pipeline.history.fold.topics import (
    FAILOVER_MEASURES,
    BrokerLosses,
    PartitionHistory,
    TopicShard,
    count_move,
    missing_replicas,
)

Row: TypeAlias = dict[str, Any]
#: A time, a broker, and by how many partitions its leadership grew then (negative: shrank).
LeaderChange: TypeAlias = tuple[int, int, int]

TOPICS_SHOWN: Final = 20
STORIES_SHOWN: Final = 5
HEAT_ROWS_SHOWN: Final = 30
UNDER_MIN_ISR_SHOWN: Final = 10


def of_cluster(state: ClusterHistory) -> Row:
    """The summary of the cluster for the page, with the durations of events."""
    return {
        "counts": state.counts,
        "gaps": state.gaps_shown,
        "terms": state.shown_terms(),
        "sessions": state.shown_sessions(),
        "flapping": state.open_rows()["flapping_brokers"],
        "phases": [[*key, each.to_json()] for key, each in state.phases.items()],
        "takeovers": state.takeovers.to_json(),
    }


def leader_changes(state: TopicShard) -> list[LeaderChange]:
    """The changes since the state was loaded."""
    return [(at, broker, by) for (at, broker), by in state.leader_changes.items()]


def of_topics(state: TopicShard) -> Row:
    """The summary of some topics, for the page and for the tables about all topics."""
    until = state.history_until
    partitions = list(state.all_partitions())
    by_broker = {broker: asdict(each) | {"still": 0} for broker, each in state.by_broker.items()}
    for each in partitions:
        if each.lost is not None and each.lost["lost_leader"] >= 0:
            _add_open_loss(by_broker, each, until)
    open_rows = state.open_rows()
    topics = open_rows["availability_by_topic"]
    moves = {outcome: list(each) for outcome, each in state.moves.items()}
    for row in open_rows["reassignments"]:
        count_move(moves, row)
    return {
        "by_broker": {str(broker): each for broker, each in by_broker.items()},
        "failovers": {name: each.to_json() for name, each in state.failovers.items()},
        "elections": {kind: each.to_json() for kind, each in state.elections.items()},
        "topics": nlargest(TOPICS_SHOWN, topics, key=lambda t: (t["seconds"], t["topic"])),
        "topic_count": len(topics),
        "partition_count": len(partitions),
        "topics_affected": sum(each["affected"] > 0 for each in topics),
        "outage": {
            "noticing_seconds": sum(each["noticing_seconds"] for each in topics),
            "electing_seconds": sum(each["electing_seconds"] for each in topics),
            "longest_seconds": max((each["longest_seconds"] for each in topics), default=0.0),
        },
        "affected": sum(each.outages > 0 or each.lost is not None for each in partitions),
        "without_leader": sum(each.lost is not None for each in partitions),
        "worst": [
            _story_numbers(each, until)
            for each in nlargest(STORIES_SHOWN, partitions, _badness)
            if _badness(each) > (False, 0, 0)
        ],
        "heat": [
            _heat(each, until)
            for each in nlargest(HEAT_ROWS_SHOWN, partitions, lambda p: _lack(p, until))
            if _lack(each, until) > 0
        ],
        "under_min_isr": [
            _under_numbers(each)
            for each in nlargest(UNDER_MIN_ISR_SHOWN, partitions, _shortage)
            if _shortage(each) > (False, 0)
        ],
        "moves": moves,
    }


def _add_open_loss(by_broker: dict[int, Row], partition: PartitionHistory, until: int) -> None:
    lost = partition.lost
    assert lost is not None, "the partition has no leader"
    broker = lost["lost_leader"]
    losses = by_broker.setdefault(broker, asdict(BrokerLosses()) | {"still": 0})
    lasted = max(0, until - lost["from"])
    losses["partitions"] += broker not in partition.lost_leaders
    losses["intervals"] += 1
    losses["outage_us"] += lasted
    losses["longest_us"] = max(losses["longest_us"], lasted)
    losses["still"] += 1


def _badness(partition: PartitionHistory) -> tuple[bool, int, int]:
    """Sort key: without a leader now, then the longest time without one, then changes of leader."""
    changes = 0 if partition.churn is None else partition.churn["changes"]
    return partition.lost is not None, partition.outage_us, changes


def _story_numbers(partition: PartitionHistory, until: int) -> Row:
    is_open, outage_us, changes = _badness(partition)
    if partition.lost is not None:
        outage_us += max(0, until - partition.lost["from"])
    return {
        "topic": partition.topic,
        "partition": partition.partition,
        "is_open": is_open,
        "seconds": outage_us / 1e6,
        "intervals": partition.outages + is_open,
        "changes": changes,
    }


def _lack(partition: PartitionHistory, until: int) -> int:
    step = partition.step
    open_us = 0 if step is None else max(0, until - step["from"]) * missing_replicas(step)
    return partition.lack_us + open_us


def _heat(partition: PartitionHistory, until: int) -> Row:
    step = partition.step
    missing = 0 if step is None else missing_replicas(step)
    return {
        "name": partition.name,
        "lack_us": _lack(partition, until),
        "lack": None if partition.lack is None else partition.lack.to_json(),
        "open": None if step is None or not missing else [step["from"], until, missing],
    }


def _shortage(partition: PartitionHistory) -> tuple[bool, int]:
    under = partition.under
    is_open = under is not None and under["until"] is None
    closed_us = 0
    if under is not None and not is_open:
        closed_us = under["until"] - under["from"]
    return is_open, partition.under_us + closed_us


def _under_numbers(partition: PartitionHistory) -> Row:
    is_open, total_us = _shortage(partition)
    return {
        "name": partition.name,
        "min_isr": partition.min_isr,
        "intervals": partition.unders + (partition.under is not None),
        "is_open": is_open,
        "seconds": total_us / 1e6,
    }


# What is made of all summaries


def merge_losses(summaries: Iterable[Row]) -> list[Row]:
    """Rows of `unavailability_by_broker`."""
    merged: dict[int, Row] = {}
    for each in summaries:
        for broker, losses in each["by_broker"].items():
            row = merged.setdefault(
                int(broker),
                {
                    "broker": int(broker),
                    "partitions": 0,
                    "intervals": 0,
                    "seconds": 0.0,
                    "longest_seconds": 0.0,
                    "still_without_leader": 0,
                },
            )
            row["partitions"] += losses["partitions"]
            row["intervals"] += losses["intervals"]
            row["seconds"] += losses["outage_us"] / 1e6
            row["longest_seconds"] = max(row["longest_seconds"], losses["longest_us"] / 1e6)
            row["still_without_leader"] += losses["still"]
    return [merged[broker] for broker in sorted(merged)]


def merge_failovers(summaries: Iterable[Row]) -> dict[str, Durations]:
    """How long partitions were without a leader until one was elected, by measure."""
    merged = {name: Durations() for name in FAILOVER_MEASURES}
    for summary in summaries:
        for name, durations in merged.items():
            durations.merge(Durations(summary["failovers"][name]))
    return merged


def latency_rows(cluster: Row, failovers: Mapping[str, Durations]) -> list[Row]:
    """Rows of `latencies`."""
    takeovers = Durations(cluster["takeovers"])
    rows = [
        {"what": "event", "kind": kind, "measure": measure, **Durations(buckets).summary()}
        for kind, measure, buckets in cluster["phases"]
    ]
    of_all = [("failover", measure, each) for measure, each in failovers.items()]
    for what, measure, durations in (*of_all, ("takeover", "total", takeovers)):
        if len(durations):
            rows.append({"what": what, "kind": None, "measure": measure, **durations.summary()})
    return rows


@dataclass(slots=True)
class LeaderBalance:
    """How many partitions each broker leads, as of the base, and changes that are not final.

    Changes come in the order of events and are told in the order of time. A change waits until no
    later event can be earlier, unless a clock is set back by more than the tail holds.
    """

    leaders: dict[int, int] = field(default_factory=dict)
    waiting: list[LeaderChange] = field(default_factory=list)
    #: For the page: how many each broker led at the end of each bucket of time.
    samples: dict[int, TimeSeries] = field(default_factory=dict)

    def to_json(self) -> Row:
        return {
            "leaders": list(self.leaders.items()),
            "waiting": self.waiting,
            "samples": [(broker, each.to_json()) for broker, each in self.samples.items()],
        }

    @classmethod
    def from_json(cls, state: Row) -> "LeaderBalance":
        return cls(
            dict(state["leaders"]),
            [tuple(each) for each in state["waiting"]],
            {broker: TimeSeries(**each) for broker, each in state["samples"]},
        )

    def sample(self, rows: Iterable[Row]) -> None:
        """Count rows for the page."""
        for row in rows:
            series = self.samples.setdefault(row["broker"], TimeSeries(mode="last"))
            series.add(row["at"], row["leaders"])

    def seal(self, sealed: Sequence[LeaderChange], later: Sequence[LeaderChange]) -> list[Row]:
        """Take changes that are final; returns the rows that are final with them."""
        self.waiting += sealed
        first_later = min((at for at, _, _ in later), default=None)
        ready = [each for each in self.waiting if first_later is None or each[0] < first_later]
        if first_later is not None:
            self.waiting = [each for each in self.waiting if each[0] >= first_later]
        else:
            self.waiting = []
        rows = _balance_rows(ready, self.leaders)
        self.sample(rows)
        return rows

    def tail_rows(self, changes: Sequence[LeaderChange]) -> list[Row]:
        """Rows of what may still change."""
        return _balance_rows([*self.waiting, *changes], dict(self.leaders))


def _balance_rows(changes: Sequence[LeaderChange], leaders: dict[int, int]) -> list[Row]:
    """A row for each moment and broker with a change; `leaders` is brought up to date."""
    moments: dict[int, dict[int, int]] = {}
    for at, broker, by in changes:
        of_moment = moments.setdefault(at, {})
        of_moment[broker] = of_moment.get(broker, 0) + by
    rows = []
    for at in sorted(moments):
        changed = {broker: by for broker, by in moments[at].items() if by}
        for broker, by in changed.items():
            leaders[broker] = leaders.get(broker, 0) + by
        led = sum(leaders.values())
        rows += [
            {
                "at": at,
                "broker": broker,
                "leaders": leaders[broker],
                "share": leaders[broker] / led if led > 0 else None,
            }
            for broker in sorted(changed)
        ]
    return rows
