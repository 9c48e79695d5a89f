"""The pictures of a history's report."""

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import numpy as np
from matplotlib import dates as mdates
from matplotlib.axes import Axes
from matplotlib.patches import PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from klamm.pipeline.history.report_facts import ReportFacts, is_failure, moment
from klamm.pipeline.render.page import broker_color, duration, percent
from klamm.pipeline.render.pictures import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    add_legend,
    drawing,
    inline_svg,
    make_figure,
    short,
)

#: Left, bottom, width and height, in the units of the axes.
_Box: TypeAlias = tuple[float, float, float, float]
#: What is left free on either side of a logarithmic scale, as a factor.
_MARGIN: Final = 4
#: Steps of a time axis in seconds, from the shortest.
_MINUTE_S, _DAY_S = 60, 86_400
_STEPS_S: Final = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30),
    *(60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200),
    *(86_400, 172_800, 604_800, 1_209_600, 2_592_000, 7_776_000),
)
_TICKS_MAX: Final = 7
#: The number of brokers with a colour of their own; more are told apart by dashed lines.
_COLORS_APART: Final = 12
_KINDS: Final = {
    "clean": BLUE,
    "preferred": GREEN,
    "reassignment": SKY,
    "controlled_shutdown": PURPLE,
    "unclean": ORANGE,
    "none": RED,
}
_HEAT: Final = ("#eef3f7", "#f6c566", "#e07b39", "#a61c1c")


def timeline_picture(facts: ReportFacts) -> str:
    """Who was controller, and which brokers were registered, over time."""
    brokers = list(facts.brokers)
    with drawing():
        figure, axes = make_figure(rows=len(brokers) + 1)
        # By row and broker: an artist for each bar and each mark would take most of a refresh.
        bars: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
        for term in facts.terms:
            bars[0, term["controller"]].append(_bar(facts, term["from"], term["until"]))
            middle = (
                term["from"] + (min(term["until"] or facts.until, facts.until) - term["from"]) / 2
            )
            label = f"{term['controller']}"
            axes.text(_day(middle), 0, label, ha="center", va="center", color="white", fontsize=8)
        failures: list[tuple[float, int]] = []
        shutdowns: list[tuple[float, int]] = []
        for session in facts.sessions:
            row = 1 + brokers.index(session["broker"])
            start = session["from"] or facts.since
            bars[row, session["broker"]].append(_bar(facts, start, session["until"]))
            if is_failure(session):
                failures.append((_day(session["until"]), row))
            elif session["end"] == "shut_down":
                shutdowns.append((_day(session["until"]), row))
        for (row, broker), of_broker in bars.items():
            axes.broken_barh(of_broker, (row - 0.32, 0.64), color=broker_color(broker))
        for marks, sign, color, size in ((failures, "x", RED, 6), (shutdowns, "|", INK, 8)):
            if marks:
                axes.plot(
                    *zip(*marks, strict=True), sign, color=color, ls="", markersize=size, mew=2
                )
        _time_axis(axes, facts.since, facts.until)
        axes.set_yticks(range(len(brokers) + 1), ["controller", *(f"broker {b}" for b in brokers)])
        axes.set_ylim(len(brokers) + 0.6, -0.6)
        return inline_svg(figure, "timeline", "Controllers and brokers over time")


def elections_picture(facts: ReportFacts) -> str:
    """Elections of each kind over time, one upon the other."""
    kinds = [kind for kind in _KINDS if kind in facts.elections]
    width_us = max(facts.elections[kind].width_us for kind in kinds)
    counts: dict[str, dict[int, int]] = {}
    for kind in kinds:
        facts.elections[kind].widen(width_us)
        counts[kind] = dict(facts.elections[kind].items())
    moments = sorted({at for each in counts.values() for at in each})
    starts = [_day(moment(at)) for at in moments]
    width = timedelta(microseconds=width_us) / timedelta(days=1)
    with drawing():
        figure, axes = make_figure(inches=2.6)
        bottom = [0] * len(moments)
        for kind in kinds:
            heights = [counts[kind].get(at, 0) for at in moments]
            _boxes(
                axes,
                [
                    (start, below, width, height)
                    for start, below, height in zip(starts, bottom, heights, strict=True)
                    if height
                ],
                facecolor=_KINDS[kind],
                lw=0,
                label=f"{kind.replace('_', ' ')} ({sum(heights)})",
            )
            bottom = [below + count for below, count in zip(bottom, heights, strict=True)]
        axes.grid(axis="y")
        axes.set_ylim(0, max(bottom) * 1.05)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("elections")
        _time_axis(axes, facts.since, facts.until)
        add_legend(axes, kinds)
        return inline_svg(figure, "elections", "Elections by kind over time")


def failovers_picture(facts: ReportFacts) -> str:
    """How long partitions were without a leader, on a logarithmic scale."""
    with drawing():
        figure, axes = make_figure(inches=2.4)
        for start, end, count in facts.failovers:
            axes.bar(start, count, width=end - start, align="edge", color=BLUE, ec="#ffffff")
        axes.set_xscale("log")
        # Some room, so that a single bar shows where it is.
        axes.set_xlim(facts.failovers[0][0] / _MARGIN, facts.failovers[-1][1] * _MARGIN)
        axes.xaxis.set_major_formatter(lambda value, _: duration(value))
        axes.minorticks_off()
        axes.grid(axis="y")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("from leader lost to leader announced")
        axes.set_ylabel("failovers")
        return inline_svg(figure, "failovers", "Failover durations")


def availability_picture(facts: ReportFacts) -> str:
    """Seconds that partitions of each topic were without a leader, the worst topics first."""
    topics = [each for each in facts.topics if each["seconds"] > 0]
    with drawing():
        figure, axes = make_figure(rows=len(topics))
        rows = range(len(topics))
        noticing = [each["noticing_seconds"] for each in topics]
        electing = [each["electing_seconds"] for each in topics]
        axes.barh(rows, noticing, height=0.7, color=ORANGE, label="until it was noticed")
        bars = axes.barh(
            rows,
            electing,
            left=noticing,
            height=0.7,
            color=RED,
            label="from then until a leader was announced",
        )
        labels = [
            f"{duration(each['seconds'])}, {percent(each['availability'])}" for each in topics
        ]
        axes.bar_label(bars, labels, padding=4, fontsize=8)
        axes.set_yticks(range(len(topics)), [short(each["topic"]) for each in topics])
        axes.set_ylim(len(topics) - 0.4, -0.6)
        axes.margins(x=0.28)
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(lambda value, _: duration(value))
        axes.grid(axis="x")
        axes.set_xlabel("without a leader, all partitions together")
        add_legend(axes, ("noticing", "electing"))
        return inline_svg(figure, "availability", "Time without a leader by topic")


def heat_picture(facts: ReportFacts) -> str:
    """When the ISRs of the worst partitions were incomplete, and by how many replicas."""
    width_us = max(each.missing.width_us for each in facts.heat)
    found = []
    for each in facts.heat:
        each.missing.widen(width_us)
        found.append(dict(each.missing.items()))
    first = round(facts.since.timestamp() * 1e6) // width_us
    last = round(facts.until.timestamp() * 1e6) // width_us
    starts = [number * width_us for number in range(first, last + 1)]
    worst = max(max(each.values()) for each in found)
    levels = min(worst, len(_HEAT) - 1)
    days = [_day(moment(at)) for at in starts]
    width = timedelta(microseconds=width_us) / timedelta(days=1)
    cells: list[list[_Box]] = [[] for _ in range(levels + 1)]
    for row, missing in enumerate(found):
        for at, day in zip(starts, days, strict=True):
            cells[min(missing.get(at, 0), levels)].append((day, row - 0.5, width, 1.0))
    with drawing():
        figure, axes = make_figure(rows=len(facts.heat))
        for color, of_level in zip(_HEAT, cells, strict=False):
            _boxes(axes, of_level, facecolor=color, edgecolor="#ffffff", lw=0.2)
        axes.set_yticks(range(len(facts.heat)), [short(each.name) for each in facts.heat])
        axes.set_ylim(len(facts.heat) - 0.5, -0.5)
        _time_axis(axes, facts.since, facts.until)
        for level in range(levels + 1):
            text = "all in sync" if level == 0 else f"{level} missing"
            more = " or more" if level == levels < worst else ""
            axes.plot([], [], "s", color=_HEAT[level], label=text + more, mec=GREY, mew=0.5)
        add_legend(axes, _HEAT[: levels + 1])
        return inline_svg(figure, "heat", "In-sync replicas missing, by partition over time")


def balance_picture(facts: ReportFacts) -> str:
    """How many of the known partitions each broker led."""
    with drawing():
        figure, axes = make_figure(inches=2.6)
        for broker in sorted(facts.balance):
            points = [(_day(moment(at)), leaders) for at, leaders in facts.balance[broker].items()]
            points.append((_day(facts.until), points[-1][1]))
            axes.step(
                [at for at, _ in points],
                [leaders for _, leaders in points],
                where="post",
                color=broker_color(broker),
                ls=("-", "--", ":", "-.")[broker // _COLORS_APART % 4],
                label=f"broker {broker}",
            )
        axes.grid(axis="y")
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_ylabel("partitions led")
        _time_axis(axes, facts.since, facts.until)
        add_legend(axes, list(facts.balance))
        return inline_svg(figure, "balance", "Leaders on each broker over time")


def _bar(facts: ReportFacts, start: datetime, end: datetime | None) -> tuple[float, float]:
    """Where a bar begins, and how long it is, in days."""
    last = max(start, min(end or facts.until, facts.until))
    return _day(start), _day(last) - _day(start)


def _boxes(axes: Axes, boxes: Sequence[_Box], **look: Any) -> None:
    """Draw boxes of one colour as a single path: one for each of them would take seconds."""
    corners = [[(x, y), (x + w, y), (x + w, y + h), (x, y + h)] for x, y, w, h in boxes]
    if corners:
        # Not `add_patch`, which looks at every corner for the limits of the axes.
        axes.add_artist(PathPatch(Path.make_compound_path_from_polys(np.array(corners)), **look))


def _time_axis(axes: Axes, since: datetime, until: datetime) -> None:
    """Few ticks at round times; the date stands where it begins."""
    length_s = (until - since).total_seconds()
    step_s = next((each for each in _STEPS_S if length_s / each <= _TICKS_MAX), _STEPS_S[-1])
    first = -(-since.timestamp() // step_s) * step_s
    count = int((until.timestamp() - first) // step_s) + 1
    ticks = [datetime.fromtimestamp(first + n * step_s, UTC) for n in range(max(0, count))]
    labels, day = [], None
    for tick in ticks:
        label = f"{tick:%H:%M}" if step_s >= _MINUTE_S else f"{tick:%H:%M:%S}"
        if step_s < 1:
            label += f".{tick.microsecond // 100_000}"
        if step_s >= _DAY_S:
            label = f"{tick.day} {tick:%b}"
        elif tick.date() != day:
            label += f"\n{tick.day} {tick:%b %Y}"
        day = tick.date()
        labels.append(label)
    axes.set_xticks([_day(tick) for tick in ticks], labels)
    axes.set_xlim(_day(since), _day(until))


def _day(moment: datetime) -> float:
    days: float = mdates.date2num(moment)
    return days
