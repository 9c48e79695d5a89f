"""A plan for people: what moves, wave by wave, and what brokers hold before and after."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from klamm.core.columns import I64, NO_BROKER
from klamm.names import counted
from klamm.pipeline.planner.planner import Planned
from klamm.pipeline.planner.targets import TOLERANCE
from klamm.pipeline.render.page import (
    Html,
    broker_chip,
    cards,
    command,
    details,
    duration,
    note,
    page,
    paragraph,
    picture,
    section,
    size,
    table,
)
from klamm.pipeline.render.pictures import (
    BLUE,
    GREEN,
    GREY,
    WIDTH_INCHES,
    add_legend,
    drawing,
    inline_svg,
)

_MEASURES: Final = ("replicas", "leaders", "bytes")
_WAVES_SHOWN: Final = 50
_MOVES_SHOWN: Final = 30
_PANEL_INCHES: Final = 1.9
#: A label for each broker as long as there is room for them.
_LABELS_MAX: Final = 30


@dataclass(frozen=True, slots=True, eq=False)
class PlannedWaves:
    """The moves of a plan as its page shows them."""

    partitions: pa.Table  # topic and partition of each row of the plan
    planned: Planned
    waves: Sequence[I64]
    racks: Mapping[int, str | None]  # of all brokers, before and after
    new: frozenset[int]  # brokers that had no replica
    file: str  # of the whole plan
    throttle: int  # bytes a second that a broker may copy


def render_summary(
    summary: Mapping[str, Any], moves: PlannedWaves, facts: Mapping[str, str]
) -> str:
    """The page, from what `summarise` says, and the moves."""
    return page(
        title="Reassignment plan",
        subtitle=_verdict(summary),
        facts=facts,
        body=[
            _cards(summary),
            note("What to know about this plan", summary["notes"]),
            _to_run(summary, moves),
            _movement(summary),
            _waves(moves),
            _balance(summary),
            _brokers(summary, moves),
        ],
        footer="Made by <code>klamm plan</code>; <code>summary.json</code> beside this file has "
        "the same numbers, and <code>waves/</code> the moves in portions.",
    )


def _verdict(summary: Mapping[str, Any]) -> str:
    changed, reordered = summary["partitions_changed"], summary["partitions_reordered"]
    if not changed:
        return "Nothing has to move: every rule holds, and brokers are balanced."
    volume = "" if summary["bytes_moved"] is None else f" ({size(summary['bytes_moved'])})"
    least = summary["lower_bound_replicas"]
    times = f", {summary['replicas_moved'] / least:.2f} times the least possible" if least else ""
    return (
        f"{counted(summary['replicas_moved'], 'replica')}{volume} are to be copied in "
        f"{counted(summary['waves'], 'wave')}{times}; {counted(changed, 'partition')} change, "
        f"{reordered:,} of them only in their preferred leader."
    )


def _to_run(summary: Mapping[str, Any], moves: PlannedWaves) -> str:
    if not summary["partitions_changed"]:
        return ""
    rate = f"at {size(moves.throttle)}/s for each broker"
    took = ""
    if summary["bytes_moved"]:
        seconds = sum(_seconds(moves, rows) for rows in moves.waves)
        took = paragraph(f"Copying takes about {duration(seconds)} {rate}.")
    run = command(
        f"klamm reassign execute waves --throttle {moves.throttle} --wait\n"
        f"kafka-reassign-partitions.sh --bootstrap-server HOST:PORT --execute "
        f"--reassignment-json-file {moves.file} --throttle {moves.throttle}"
    )
    return section("To carry it out", took + run)


def _seconds(moves: PlannedWaves, rows: I64) -> float:
    """How long a wave takes if no broker copies, or is copied from, faster than the throttle."""
    planned = moves.planned
    if planned.weight is None:
        return 0.0
    added = planned.added[rows]
    row, slot = np.nonzero(added)
    copied = planned.weight[rows][row]
    received = np.bincount(planned.after[rows][row, slot], weights=copied)
    leader = planned.leader[rows][row]
    sent = np.bincount(leader[leader >= 0], weights=copied[leader >= 0])
    most = max(received.max(initial=0.0), sent.max(initial=0.0))
    return float(most / moves.throttle)


def _waves(moves: PlannedWaves) -> str:
    """The moves, wave by wave: what each broker gets, and the first partitions."""
    if not moves.waves:
        return ""
    key = paragraph(
        "A ring marks a replica that comes, a line through it one that goes; + marks a broker that "
        "had none before."
    )
    shown = [
        _wave(moves, number, rows) for number, rows in enumerate(moves.waves[:_WAVES_SHOWN], 1)
    ]
    more = ""
    if len(moves.waves) > _WAVES_SHOWN:
        more = paragraph(f"In waves/: {counted(len(moves.waves) - _WAVES_SHOWN, 'more wave')}.")
    return section("Moves, wave by wave", key + "".join(shown) + more)


def _wave(moves: PlannedWaves, number: int, rows: I64) -> str:
    planned = moves.planned
    copies = int(planned.added[rows].sum())
    volume = took = ""
    if planned.weight is not None and copies:
        moved = float((planned.added[rows].sum(axis=1) * planned.weight[rows]).sum())
        volume, took = f", {size(moved)}", f", about {duration(_seconds(moves, rows))}"
    what = f"{counted(copies, 'replica')} to copy{volume}{took}" if copies else "new order only"
    summary = f"Wave {number:03}: {counted(len(rows), 'partition')}, {what}"
    first = rows[:_MOVES_SHOWN]
    some = moves.partitions.select(["topic", "partition"]).take(pa.array(first))
    lines = [
        {
            "partition": f"{topic}-{partition}",
            "before": before[before != NO_BROKER].tolist(),
            "after": after[after != NO_BROKER].tolist(),
            "bytes": None if planned.weight is None else float(planned.weight[row]),
        }
        for topic, partition, before, after, row in zip(
            some["topic"].to_pylist(),
            some["partition"].to_pylist(),
            planned.before[first],
            planned.after[first],
            first.tolist(),
            strict=True,
        )
    ]
    columns: dict[str, Any] = {
        "partition": itemgetter("partition"),
        "from": lambda line: _replicas(moves, line["before"], line["after"], "gone"),
        "to": lambda line: _replicas(moves, line["after"], line["before"], "new"),
    }
    if any(moves.racks.values()):
        columns["racks"] = lambda line: _racks_change(moves, line)
    if planned.weight is not None:
        columns["#bytes to copy"] = lambda line: size(
            line["bytes"] * len(set(line["after"]) - set(line["before"]))
        )
    more = len(rows) - len(first)
    rest = paragraph(f"In waves/{number:03}.json: {more:,} more.") if more else ""
    return details(summary, table(lines, columns) + rest, is_open=number == 1)


def _replicas(moves: PlannedWaves, here: Sequence[int], there: Sequence[int], mark: str) -> Html:
    """Replicas in their order; those that are not on the other side are marked."""
    chips = (
        broker_chip(
            broker, f"{'' if broker in there else mark} {'fresh' if broker in moves.new else ''}"
        )
        for broker in here
    )
    return Html("".join(chips))


def _racks_change(moves: PlannedWaves, line: Mapping[str, Any]) -> str:
    before, after = (
        sorted({moves.racks.get(broker) or "?" for broker in line[when]})
        for when in ("before", "after")
    )
    same = ", ".join(after)
    return same if before == after else f"{', '.join(before)} → {same}"


def _cards(summary: Mapping[str, Any]) -> str:
    after = summary["balance"]["after"]
    spreads = [
        (f"furthest from the mean in {name}, after", f"{after[name]['max_deviation_percent']:.3g}%")
        for name in _measures(summary)
    ]
    numbers = [("replicas to be copied", f"{summary['replicas_moved']:,}")]
    if summary["bytes_moved"] is not None:
        numbers.append(("to be copied", size(summary["bytes_moved"])))
    return cards((name, value, False) for name, value in [*numbers, *spreads])


def _movement(summary: Mapping[str, Any]) -> str:
    rows = [
        {"what": what, "planned": summary[f"{what}_moved"], "least": summary[f"lower_bound_{what}"]}
        for what in ("replicas", "bytes")
        if summary[f"{what}_moved"] is not None
    ]
    listed = table(
        rows,
        {
            "": lambda row: row["what"],
            "#planned": lambda row: _amount(row["what"], row["planned"]),
            "#at least": lambda row: _amount(row["what"], row["least"]),
            "#times": lambda row: f"{row['planned'] / row['least']:.3f}" if row["least"] else "",
        },
    )
    reason = f"At least that much, because {summary['lower_bound_reason']}"
    return section("What moves", listed + paragraph(reason))


def _balance(summary: Mapping[str, Any]) -> str:
    rows = [
        {"what": name, "when": when, **summary["balance"][when][name]}
        for name in _measures(summary)
        for when in ("before", "after")
    ]
    listed = table(
        rows,
        {
            "": lambda row: f"{row['what']}, {row['when']}",
            "#least": lambda row: _amount(row["what"], row["min"]),
            "#mean": lambda row: _amount(row["what"], row["mean"]),
            "#most": lambda row: _amount(row["what"], row["max"]),
            "#furthest from the mean": lambda row: f"{row['max_deviation_percent']:.3g}%",
        },
    )
    caption = f"Each broker before and after; the band is {TOLERANCE:.0%} around the mean."
    return section("Balance", picture(balance_picture(summary), caption) + listed)


def _brokers(summary: Mapping[str, Any], moves: PlannedWaves) -> str:
    before, after = (summary["balance"][when]["brokers"] for when in ("before", "after"))
    rows = []
    for broker in _every_broker(summary):
        mark = "fresh" if int(broker) in moves.new else "" if broker in after else "gone"
        row: dict[str, str] = {"broker": broker_chip(int(broker), mark)}
        if any(moves.racks.values()):
            row["rack"] = moves.racks.get(int(broker)) or ""
        for name in _measures(summary):
            for when, held in (("before", before), ("after", after)):
                row[f"#{name} {when}"] = _amount(name, held.get(broker, {}).get(name, 0))
        rows.append(row)
    columns = {heading: itemgetter(heading) for heading in rows[0]}
    return section("Brokers", table(rows, columns))


def balance_picture(summary: Mapping[str, Any]) -> str:
    """What each broker holds before and after, one panel for each measure."""
    brokers = _every_broker(summary)
    measures = _measures(summary)
    place = np.arange(len(brokers))
    with drawing():
        figure = Figure(figsize=(WIDTH_INCHES, _PANEL_INCHES * len(measures)), layout="constrained")
        panels = figure.subplots(len(measures), 1, sharex=True, squeeze=False)[:, 0]
        for axes, name in zip(panels, measures, strict=True):
            for when, color, width in (("before", GREY, 0.9), ("after", BLUE, 0.5)):
                held = summary["balance"][when]["brokers"]
                values = [held.get(broker, {}).get(name, 0) for broker in brokers]
                axes.bar(place, values, width=width, color=color, label=when)
            mean = summary["balance"]["after"][name]["mean"]
            axes.axhspan(mean * (1 - TOLERANCE), mean * (1 + TOLERANCE), color=GREEN, alpha=0.35)
            axes.set_ylabel(name)
            axes.grid(axis="y")
            axes.margins(x=0.01)
            axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
            axes.yaxis.set_major_formatter(lambda value, _, name=name: _amount(name, value))
        add_legend(panels[0], ("before", "after"))
        if len(brokers) <= _LABELS_MAX:
            panels[-1].set_xticks(place, brokers)
        else:
            step = -(-len(brokers) // _LABELS_MAX)
            panels[-1].set_xticks(place[::step], brokers[::step])
        panels[-1].set_xlabel("broker")
        return inline_svg(figure, "balance", "What brokers hold before and after")


def _measures(summary: Mapping[str, Any]) -> list[str]:
    return [name for name in _MEASURES if name in summary["balance"]["after"]]


def _every_broker(summary: Mapping[str, Any]) -> list[str]:
    before, after = (summary["balance"][when]["brokers"] for when in ("before", "after"))
    return sorted({*before, *after}, key=int)


def _amount(measure: str, value: float) -> str:
    if measure == "bytes":
        return size(value)
    return f"{value:,.1f}".removesuffix(".0")
