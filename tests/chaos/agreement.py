"""Whether the history that the controllers wrote agrees with what clients saw of the same run.

The history comes as the pipeline's tables (docs/history.md), as lists of rows; nothing here starts
Spark. Topics that are deleted may come again with epochs from 0, so those that clients write to,
which stay, are the ones that are compared.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Final

from tests.chaos.checker import Violation, write_waits
from tests.chaos.recording import Fault, History, Name
from tests.chaos.silence import Span, silences, uncovered_s

TableRow = Mapping[str, Any]
#: The tables that are looked at.
TABLES: Final = ("timeline", "elections", "unavailability", "controller_terms")
#: How long it takes at most until a decision is in ZooKeeper.
_WRITTEN_S: Final = 1.0
#: Faults that take the lead from a broker which does not come back in time, or not as leader.
_LEADERS_LOST: Final = ("kill", "pause", "isolate", "cut from ZooKeeper")


@dataclass(frozen=True, slots=True)
class Margins:
    """By how much the two may differ.

    A session has to time out before a controller hears of a lost broker, and clients hear of a new
    leader later than brokers do. An acknowledgement may be on its way for as long as a request.
    """

    session_s: float = 6.0
    hearing_s: float = 20.0
    under_way_s: float = 10.0
    #: Silences below this are the machine's.
    silence_s: float = 5.0


def compare(
    history: History, tables: Mapping[str, Sequence[TableRow]], margins: Margins
) -> list[Violation]:
    """Every disagreement."""
    written = history.topics
    ours = {
        name: [row for row in rows if row.get("topic", "") in {"", *written}]
        for name, rows in tables.items()
    }
    rules: tuple[Callable[[], Iterable[Violation]], ...] = (
        lambda: two_leaders(ours["timeline"]),
        lambda: unclean(ours["elections"]),
        lambda: unknown_epochs(history, ours["timeline"], ours["controller_terms"]),
        lambda: out_of_term(history, ours["timeline"], margins),
        lambda: no_election(history, ours["timeline"], ours["controller_terms"], margins),
        lambda: unexplained(history, ours, margins),
        lambda: other_leaders(history, ours["timeline"]),
    )
    return [found for rule in rules for found in rule()]


def two_leaders(timeline: Sequence[TableRow]) -> Iterator[Violation]:
    """An epoch of a partition has one leader."""
    leaders: dict[tuple[Name, int], set[int]] = defaultdict(set)
    for row in timeline:
        if row["leader"] >= 0:
            leaders[_name(row), row["leader_epoch"]].add(row["leader"])
    for (name, epoch), found in leaders.items():
        if len(found) > 1:
            yield _differ(name, f"epoch {epoch} had the leaders {sorted(found)}")


def unclean(elections: Sequence[TableRow]) -> Iterator[Violation]:
    """Nobody leads who was not in sync, as long as that is not allowed."""
    for row in elections:
        if row["kind"] == "unclean":
            yield _differ(_name(row), f"unclean election of {row['new_leader']}", _at(row["at"]))


def unknown_epochs(
    history: History, timeline: Sequence[TableRow], terms: Sequence[TableRow]
) -> Iterator[Violation]:
    """Whatever epoch clients find in their records, a controller decided on.

    The last moments of a controller that was killed may be missing from the history. An event that
    raises an epoch several times, as the end of a reassignment does, has one row in the timeline.
    """
    began = _beginnings(timeline)
    passed = {
        (_name(row), epoch)
        for row in timeline
        for epoch in range(row["old_leader_epoch"] + 1, row["leader_epoch"])
    }
    found = {
        ((row.topic, row.partition), row.epoch) for row in history.kept if row.epoch is not None
    }
    for name, epoch in sorted(found - began.keys() - passed):
        since = max((at for (n, e), at in began.items() if n == name and e < epoch), default=0)
        until = min(
            (at for (n, e), at in began.items() if n == name and e > epoch), default=float("inf")
        )
        if not any(_is_crash_between(term, since, until) for term in terms):
            yield _differ(name, f"records have epoch {epoch}, of which the history knows nothing")


def out_of_term(
    history: History, timeline: Sequence[TableRow], margins: Margins
) -> Iterator[Violation]:
    """Records are acknowledged while the leader leads in whose epoch they were written.

    A leader that was replaced and does not know it yet must not acknowledge anything any more.
    """
    began = _beginnings(timeline)
    epochs = {(row.producer, row.number): row for row in history.kept}
    replaced = _replaced(began)
    for write in history.writes:
        row = epochs.get((write.producer, write.number))
        if write.error is not None or row is None or row.epoch is None:
            continue
        name = row.topic, row.partition
        since = began.get((name, row.epoch))
        until = replaced.get((name, row.epoch))
        late_s = 0.0
        if until is not None:
            overdue = Span(until, write.done_at)
            late_s = uncovered_s(overdue, _stalls(history)) if overdue.seconds > 0 else 0.0
        if since is not None and write.done_at < since:
            text = f"acknowledged {since - write.done_at:.1f} s before its epoch {row.epoch} began"
        elif late_s > margins.under_way_s and row.offset == write.offset:
            text = f"acknowledged {late_s:.1f} s after its epoch {row.epoch} ended"
        else:
            continue
        yield _differ(name, f"{write.producer} {write.number} was {text}", write.done_at)


def no_election(
    history: History,
    timeline: Sequence[TableRow],
    terms: Sequence[TableRow],
    margins: Margins,
) -> Iterator[Violation]:
    """A broker that was killed, or away for longer than its session, has lost the lead of all
    that it led; the history says so, for each of them."""
    changes: dict[Name, list[TableRow]] = defaultdict(list)
    for row in timeline:
        changes[_name(row)].append(row)
    for fault in history.faults:
        if not _costs_lead(fault, margins):
            continue
        until = fault.ended_at + margins.session_s + margins.hearing_s
        if any(_is_crash_between(term, fault.began_at, until) for term in terms):
            # A controller that went at the same time may have taken its last words with it.
            continue
        for name in fault.led:
            told = any(
                fault.began_at - 1 <= _at(row["from"]) <= until
                and (row["leader"] != fault.broker or row["old_leader"] != fault.broker)
                for row in changes[name]
            )
            if not told:
                yield _differ(
                    name,
                    f"broker {fault.broker} led it ({fault.text}), and the history has no election",
                    fault.began_at,
                )


def unexplained(
    history: History, tables: Mapping[str, Sequence[TableRow]], margins: Margins
) -> Iterator[Violation]:
    """When clients wait, the history shows why: nobody leads, or who leads changes, or the ISR.

    What parts brokers from each other, without any of them being lost, is not in the history.
    """
    spans: dict[Name, list[Span]] = defaultdict(list)
    for row in tables["unavailability"]:
        until = float("inf") if row["until"] is None else _at(row["until"])
        spans[_name(row)].append(
            Span(_at(row["from"]) - margins.session_s, until + margins.hearing_s)
        )
    for row in tables["timeline"]:
        at = _at(row["from"])
        spans[_name(row)].append(Span(at - margins.session_s, at + margins.hearing_s))
    parted = [
        Span(fault.began_at, fault.ended_at + margins.hearing_s)
        for fault in history.faults
        if fault.broker is None
    ]
    for (producer, name), waits in write_waits(history).items():
        for silence in silences(waits):
            left_s = uncovered_s(silence, [*spans[name], *parted, *_stalls(history)])
            if left_s > margins.silence_s:
                yield _differ(
                    name,
                    f"{producer} heard nothing for {silence}, {left_s:.1f} s of which are not in "
                    "the history",
                    silence.began_at,
                )


def other_leaders(history: History, timeline: Sequence[TableRow]) -> Iterator[Violation]:
    """Where the history was when ZooKeeper was asked in the end, ZooKeeper is.

    Decisions of the last second may not have been written yet, and others may have followed.
    """
    rows: dict[Name, list[TableRow]] = defaultdict(list)
    for row in sorted(timeline, key=lambda row: (row["controller_epoch"], row["seq"])):
        rows[_name(row)].append(row)
    for leader in history.leaders:
        name = leader.topic, leader.partition
        decided = [row for row in rows[name] if _at(row["from"]) <= leader.at]
        recent = sum(_at(row["from"]) > leader.at - _WRITTEN_S for row in decided)
        told = [(row["leader"], row["leader_epoch"]) for row in decided[-recent - 1 :]]
        if (leader.leader, leader.epoch) not in told:
            had = " or ".join(f"leader {each} of epoch {epoch}" for each, epoch in told) or "none"
            yield _differ(
                name,
                f"leader {leader.leader} of epoch {leader.epoch} in the end; the history has {had}",
            )


def _costs_lead(fault: Fault, margins: Margins) -> bool:
    if fault.kind not in _LEADERS_LOST or fault.broker is None:
        return False
    # A broker that is back before its session ends need not have lost anything.
    return fault.kind == "kill" or fault.ended_at - fault.began_at > 2 * margins.session_s


def _is_crash_between(term: TableRow, since: float, until: float) -> bool:
    return term["end"] == "replaced" and since - 1 <= _at(term["until"]) <= until


def _beginnings(timeline: Sequence[TableRow]) -> dict[tuple[Name, int], float]:
    """When each epoch began."""
    began: dict[tuple[Name, int], float] = {}
    for row in timeline:
        key = _name(row), row["leader_epoch"]
        began[key] = min(began.get(key, float("inf")), _at(row["from"]))
    return began


def _replaced(began: Mapping[tuple[Name, int], float]) -> dict[tuple[Name, int], float]:
    """When each epoch gave way to the next one that is known."""
    epochs: dict[Name, list[int]] = defaultdict(list)
    for name, epoch in sorted(began):
        epochs[name].append(epoch)
    return {
        (name, epoch): began[name, later]
        for name, each in epochs.items()
        for epoch, later in pairwise(each)
    }


def _stalls(history: History) -> list[Span]:
    return [Span(stall.began_at, stall.ended_at) for stall in history.stalls]


def _differ(name: Name, text: str, at: float | None = None) -> Violation:
    return Violation("disagreement", f"{name[0]}-{name[1]}", text, at)


def _name(row: TableRow) -> Name:
    return row["topic"], row["partition"]


def _at(moment: datetime) -> float:
    """Tables that were read from Parquet have moments in UTC, with or without saying so."""
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
